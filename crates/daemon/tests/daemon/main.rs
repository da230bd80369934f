//! A daemon and its hosts, without sockets.

mod conformance;
mod inside;
mod rights;
