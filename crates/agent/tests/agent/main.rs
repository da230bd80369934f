//! What the agent promises, on a real machine: with QEMU and libvirt where they
//! show it, and with stand-ins for what they cannot be made to do.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests make the machine's other half: monitors, guests, daemons"
)]

mod fake_qemu;
mod keys;
mod libvirt;
mod machine;
mod monitor;
mod qemu;
mod verbs;
mod virsh;
