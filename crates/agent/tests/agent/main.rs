//! Tests of the agent on a real machine: with QEMU and libvirt where possible, and with fakes for
//! behavior that they cannot be made to show.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests implement monitors, guests and daemons"
)]

mod fake_qemu;
mod keys;
mod libvirt;
mod machine;
mod monitor;
mod qemu;
mod verbs;
mod virsh;
