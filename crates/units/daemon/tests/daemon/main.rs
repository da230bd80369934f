//! A daemon and its hosts.

mod broken;
mod conformance;
mod fuzz;
mod inside;
mod network;
mod restoring;
mod rights;
mod service;
mod site;
