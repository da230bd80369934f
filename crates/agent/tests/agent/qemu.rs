//! Plug, unplug and look, with a real QEMU and a real guest.

use std::time::Duration;

use agent::vm::qmp::{Monitor, QmpError};
use agent::vm::{Unplugged, Vm, VmAddress, VmError, VmOptions};
use serde_json::json;

use crate::machine::{Qemu, run, wait_until};

const ENOUGH: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

const WRITABLE: &str = "vol0123456789abcdef0:ro=0:write=taken";
const READ_ONLY: &str = "vol0123456789abcdef1:ro=1:write=refused";

fn reason(unplugged: Result<Unplugged, VmError>) -> String {
    match unplugged.expect("asked") {
        Unplugged::Busy { reason } => reason,
        other => panic!("it is not busy: {other:?}"),
    }
}

/// A machine with PCIe: two free ports, one without hotplug, and one without a name.
#[test]
fn a_guest_with_pcie_ports_sees_disks_come_and_go() {
    let mut qemu = Qemu::boot(&[
        "-machine",
        "q35",
        "-device",
        "pcie-root-port,id=a,chassis=1,hotplug=off",
        "-device",
        "pcie-root-port,id=b,chassis=2",
        "-device",
        "pcie-root-port,chassis=3",
        "-device",
        "pcie-root-port,id=c,chassis=4",
    ]);
    let vm = qemu.vm(ENOUGH);
    let one = qemu.nbd.disk("att-1", "vol-0123456789abcdef0", false);
    let two = qemu.nbd.disk("att-2", "vol-0123456789abcdef1", true);
    let three = qemu.nbd.disk("att-3", "vol-0123456789abcdef2", false);

    assert_eq!(run(vm.disks()).expect("seen"), []);
    assert!(!run(vm.plug(&one)).expect("plugged").was_there);
    qemu.console.wait_for_disks(&[WRITABLE]);
    run(vm.plug(&two)).expect("plugged");
    qemu.console.wait_for_disks(&[WRITABLE, READ_ONLY]);
    assert!(run(vm.plug(&two)).expect("plugged").was_there);
    let seen = run(vm.disks()).expect("seen");
    assert!(seen.len() == 2 && seen.iter().all(|disk| disk.is_plugged));
    assert_eq!(seen[1].serial, Some(two.serial.clone()));
    assert!(seen[1].is_read_only && !seen[0].is_read_only);

    let full = run(vm.plug(&three)).expect_err("it is full");
    assert!(matches!(full, VmError::NoFreePort { .. }), "{full}");
    assert_eq!(qemu.nodes(), 2);

    // A paused guest cannot release a disk until it is resumed.
    qemu.execute("stop", json!({}));
    for _ in 0..2 {
        let busy = reason(run(qemu.vm(SHORT).unplug(&one.name)));
        assert!(busy.contains("(paused)"), "{busy}");
    }
    assert_eq!(run(vm.disks()).expect("seen").len(), 2);
    qemu.execute("cont", json!({}));
    assert_eq!(
        run(vm.unplug(&one.name)).expect("asked"),
        Unplugged::Removed
    );
    qemu.console.wait_for_disks(&[READ_ONLY]);
    assert_eq!(qemu.nodes(), 1);
    assert_eq!(
        run(vm.unplug(&one.name)).expect("asked"),
        Unplugged::Removed
    );

    // Into the port that became free; an unfinished plug is made again.
    let server = json!({ "type": "unix", "path": qemu.nbd.socket });
    qemu.execute(
        "blockdev-add",
        json!({ "driver": "nbd", "node-name": "scree-att-1", "server": server, "read-only": true }),
    );
    let seen = run(vm.disks()).expect("seen");
    assert!(!seen[0].is_plugged && seen[0].name == one.name);
    run(vm.plug(&one)).expect("plugged");
    qemu.console.wait_for_disks(&[WRITABLE, READ_ONLY]);

    qemu.process.kill();
    assert!(matches!(run(vm.disks()), Err(VmError::Ended { .. })));
    let ended = run(vm.unplug(&one.name)).expect("asked");
    assert_eq!(ended, Unplugged::VmEnded);
}

/// A machine with PCI: its root bus accepts disks itself.
#[test]
fn a_guest_waits_for_the_server_of_its_disk_as_long_as_configured() {
    let mut qemu = Qemu::boot(&["-machine", "pc"]);
    let vm = qemu.vm(ENOUGH);
    let mut disk = qemu.nbd.disk("att-1", "vol-0123456789abcdef0", false);
    run(vm.plug(&disk)).expect("plugged");
    qemu.console.wait_for_disks(&[WRITABLE]);
    qemu.nbd.kill();
    qemu.nbd.restart();
    assert_eq!(
        run(vm.unplug(&disk.name)).expect("asked"),
        Unplugged::Removed
    );
    qemu.console.wait_for_disks(&[]);
    assert!(!qemu.console.has_seen("write=refused"));
    assert_eq!(qemu.nodes(), 0);

    // By force: the server stops, and writes of the guest fail. It still has to release the disk.
    disk.reconnect_delay_seconds = 1;
    run(vm.plug(&disk)).expect("plugged");
    qemu.console.wait_for_disks(&[WRITABLE]);
    qemu.nbd.kill();
    let failing = WRITABLE.replace("taken", "refused");
    qemu.console.wait_for_disks(&[&failing]);
    assert!(run(vm.disks()).expect("seen")[0].is_plugged);
    assert_eq!(
        run(vm.unplug(&disk.name)).expect("asked"),
        Unplugged::Removed
    );
    qemu.console.wait_for_disks(&[]);
    assert_eq!(qemu.nodes(), 0);
}

#[test]
fn a_guest_without_a_system_is_busy_and_may_be_asked_again() {
    let qemu = Qemu::start(&["-machine", "q35", "-device", "pcie-root-port,id=a"]);
    let vm = qemu.vm(SHORT);
    let disk = qemu.nbd.disk("att-1", "vol-1", false);
    run(vm.plug(&disk)).expect("plugged");
    for _ in 0..2 {
        let busy = reason(run(vm.unplug(&disk.name)));
        assert!(busy.contains("booted"), "{busy}");
    }
    assert!(run(vm.plug(&disk)).expect("plugged").was_there);
    // A reset releases the disk, and no client waits for the event.
    qemu.execute("system_reset", json!({}));
    wait_until("it is unplugged", || {
        run(vm.unplug(&disk.name)).expect("asked") == Unplugged::Removed
    });
    assert_eq!(qemu.nodes(), 0);
}

#[test]
fn a_machine_without_ports_names_what_to_add() {
    let qemu = Qemu::start(&["-machine", "q35", "-S"]);
    let disk = qemu.nbd.disk("att-1", "vol-1", false);
    let full = run(qemu.vm(SHORT).plug(&disk)).expect_err("it has no port");
    assert!(matches!(full, VmError::NoFreePort { .. }), "{full}");
    assert!(
        full.to_string().contains("-device pcie-root-port"),
        "{full}"
    );
    assert_eq!(qemu.nodes(), 0);
}

#[test]
fn a_disk_without_a_server_is_refused_with_the_text_of_qemu() {
    let qemu = Qemu::start(&["-machine", "pc", "-S"]);
    let mut disk = qemu.nbd.disk("att-1", "vol-1", false);
    disk.socket = qemu.socket("missing.sock");
    let error = run(qemu.vm(SHORT).plug(&disk)).expect_err("no server");
    let words = base::with_causes(&error);
    assert!(
        words.contains("`blockdev-add`: Failed to connect"),
        "{words}"
    );
    assert_eq!(qemu.nodes(), 0);
}

#[test]
fn a_monitor_with_another_client_is_reported_as_in_use() {
    let qemu = Qemu::start(&["-machine", "pc", "-S"]);
    let monitor = qemu.socket("scree.qmp");
    let somebody = std::os::unix::net::UnixStream::connect(&monitor);
    let somebody = somebody.expect("connected");
    let options = VmOptions {
        answer_within: SHORT,
        ..Default::default()
    };
    let vm = Vm::new(VmAddress::Qmp(monitor), options);
    // QEMU's queue holds a few of the waiting clients.
    for _ in 0..3 {
        let error = run(vm.disks()).expect_err("in use");
        assert!(
            matches!(
                &error,
                VmError::Qmp {
                    source: QmpError::InUse { .. },
                    ..
                }
            ),
            "{error}"
        );
    }
    drop(somebody);
    wait_until("the monitor is free", || run(vm.disks()).is_ok());
}

#[test]
fn a_qemu_that_is_killed_during_an_unplug_has_nothing_plugged() {
    let mut qemu = Qemu::start(&["-machine", "pc"]);
    let vm = qemu.vm(ENOUGH);
    let disk = qemu.nbd.disk("att-1", "vol-1", false);
    run(vm.plug(&disk)).expect("plugged");
    let asked = std::thread::spawn(move || run(vm.unplug(&disk.name)));
    // The monitor is in use only while Scree waits for the guest.
    let monitor = qemu.socket("scree.qmp");
    wait_until("it waits for the guest", || {
        let other = run(Monitor::connect(&monitor, SHORT));
        matches!(other, Err(QmpError::InUse { .. }))
    });
    qemu.process.kill();
    let ended = asked.join().expect("no panic").expect("asked");
    assert_eq!(ended, Unplugged::VmEnded);
}
