//! A daemon and its hosts.

mod conformance;
mod inside;
mod network;
mod rights;
mod service;
