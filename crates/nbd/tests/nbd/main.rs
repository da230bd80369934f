//! Tests of the NBD server over sockets, with a small client of their own and with libnbd, QEMU and
//! fio; and of the client that is a device, against this server, nbdkit, QEMU and hostile servers.
//! The foreign tools have to be installed: without one its test fails and names it.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests are clients of a real machine"
)]

mod client;
mod crashing_server;
mod device;
mod device_foreign;
mod device_hostile;
mod exports;
mod foreign;
mod hostile;
mod reconnect;
mod requester;
mod support;
mod tls;
