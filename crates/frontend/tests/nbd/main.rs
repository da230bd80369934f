//! The NBD server from outside: over sockets, with its own small client and
//! with foreign ones (libnbd, QEMU, fio). The foreign tools must be installed:
//! without one its test fails and says so.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests are clients of a real machine"
)]

mod client;
mod exports;
mod foreign;
mod hostile;
mod support;
mod tls;
