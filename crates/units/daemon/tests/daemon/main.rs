//! A daemon and its hosts.

mod broken;
mod conformance;
mod fake_controller;
mod fuzz;
mod inside;
mod network;
mod restarts;
mod restoring;
mod rights;
mod service;
mod site;
