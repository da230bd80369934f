//! The NBD server from outside: over sockets, with its own small client and
//! with foreign ones (libnbd, QEMU, fio); and the client that is a device, against this
//! server, foreign ones (nbdkit, QEMU) and hostile ones. The foreign tools must be installed:
//! without one its test fails and says so.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests are clients of a real machine"
)]

mod again;
mod client;
mod device;
mod device_foreign;
mod device_hostile;
mod exports;
mod foreign;
mod hostile;
mod requester;
mod support;
mod tls;
