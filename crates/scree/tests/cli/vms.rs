//! Volumes in running VMs.

use crate::guest::Guest;
use crate::host::{Host, wait_until};

/// The serial of a volume in a guest.
fn serial(host: &Host, volume: &str) -> String {
    let shown = host.json(&["volume", "show", volume]);
    shown["id"].as_str().expect("text").replace('-', "")
}

fn attach(host: &Host, volume: &str, guest: &Guest, more: &[&str]) {
    let vm = guest.address();
    let arguments = [&["attach", volume, "--vm", &vm], more].concat();
    let attachment = host.json(&arguments);
    assert_eq!(attachment["state"], "attached", "{attachment}");
    assert_eq!(attachment["device"], serial(host, volume).as_str());
    assert_eq!(
        attachment["message"],
        serde_json::Value::Null,
        "{attachment}"
    );
}

fn detach(host: &Host, volume: &str, guest: &Guest) {
    let vm = guest.address();
    let attachment = host.json(&["detach", volume, "--vm", &vm]);
    assert_eq!(attachment["state"], "detached", "{attachment}");
}

/// The checksum of a disk's first MiB, read past the guest's page cache.
fn sum(guest: &mut Guest, serial: &str) -> String {
    guest.does(&format!(
        "echo 3 >/proc/sys/vm/drop_caches; \
         dd if=$(disk {serial}) bs=1M count=1 2>/dev/null | md5sum"
    ))
}

/// Refuses what would give a volume two writers, or a writer beside readers.
fn refuse_second_writers(host: &Host, at_one: &str, at_two: &str) {
    host.refuses(
        1,
        &["attach", "first", "--vm", at_two],
        &["read-write", "scree detach first"],
    );
    host.refuses(
        1,
        &["attach", "second", "--vm", at_one, "--read-only"],
        &["read-write"],
    );
    host.refuses(1, &["attach", "motions", "--vm", at_two], &["read-only"]);
    host.refuses(1, &["volume", "export", "motions"], &["read-only"]);
    host.refuses(
        1,
        &["volume", "delete", "motions"],
        &["scree detach motions"],
    );
    host.refuses(
        1,
        &["attach", "first", "--vm", "xen:one"],
        &["is not the address of a VM"],
    );
}

/// Two guests read one volume of input data, each writes a volume of its own, and then each
/// continues with the volume of the other.
#[test]
fn two_guests_share_a_read_only_volume_and_exchange_their_own() {
    let mut guests = [Guest::boot(), Guest::boot()];
    let mut host = Host::with(&["--units", "2"]);
    for volume in ["motions", "first", "second"] {
        host.json(&["volume", "create", volume, "--size", "16M"]);
    }
    host.qemu_io("motions", &["write -P 0x51 0 1M"]);
    host.json(&["volume", "unexport", "motions"]);
    let [motions, first, second] =
        ["motions", "first", "second"].map(|volume| serial(&host, volume));
    for guest in &mut guests {
        guest.wait_for_boot();
        attach(&host, "motions", guest, &["--read-only"]);
    }
    let [one, two] = &mut guests;
    attach(&host, "first", one, &[]);
    attach(&host, "second", two, &[]);
    assert_eq!(
        host.json(&["attachment", "list"]).as_array().map(Vec::len),
        Some(4)
    );

    refuse_second_writers(&host, &one.address(), &two.address());

    for guest in [&mut *one, &mut *two] {
        assert_eq!(
            guest.does(&format!(
                "d=$(disk {motions}); cat /sys/block/${{d##*/}}/ro"
            )),
            "1"
        );
        let (is_done, _) = guest.shell(&format!(
            "dd if=/dev/zero of=$(disk {motions}) bs=4k count=1 conv=fsync 2>/dev/null"
        ));
        assert!(!is_done, "the shared volume is write-protected");
    }
    let shared = sum(one, &motions);
    assert_eq!(sum(two, &motions), shared);
    let write = |guest: &mut Guest, serial: &str| {
        guest.does(&format!(
            "dd if=/dev/urandom of=$(disk {serial}) bs=1M count=1 conv=fsync 2>/dev/null"
        ));
        sum(guest, serial)
    };
    let of_first = write(one, &first);
    assert_ne!(write(two, &second), of_first);

    // A killed process is not noticed: requests wait for the next one.
    host.kill();
    host.start();
    assert_eq!(sum(one, &first), of_first);
    let of_second = write(two, &second);
    assert_eq!(sum(two, &motions), shared);

    detach(&host, "first", one);
    detach(&host, "second", two);
    attach(&host, "first", two, &[]);
    attach(&host, "second", one, &[]);
    assert_eq!(sum(two, &first), of_first);
    assert_eq!(sum(one, &second), of_second);

    detach(&host, "motions", one);
    assert_eq!(sum(two, &motions), shared);
    detach(&host, "second", one);
    assert_eq!(one.does("ls /sys/block | grep -c vd || :"), "0");

    // A VM that has ended cannot be queried.
    drop(guests);
    for volume in ["motions", "first"] {
        let attachment = host.json(&["detach", volume]);
        assert_eq!(attachment["state"], "detached", "{attachment}");
    }
    assert_eq!(host.state("first"), "available");
    assert_eq!(
        host.json(&["attachment", "list"]).as_array().map(Vec::len),
        Some(0)
    );
}

/// The reason and the remedy are shown immediately, and the host retries until the attachment is
/// withdrawn.
#[test]
fn an_attachment_to_a_stopped_vm_is_an_error_until_it_runs_or_is_detached() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "16M"]);
    let vm = format!("qmp:{}/none", host.path().display());
    let said = host.run(&["attach", "disk", "--vm", &vm]);
    assert_eq!(said.code, 1);
    assert!(
        said.error.contains("does not run on this host"),
        "{}",
        said.error
    );
    let listed = host.run(&["attachment", "list"]);
    assert!(
        listed.out.contains("error") && listed.out.contains("does not run"),
        "{}",
        listed.out
    );
    let said = host.run(&["volume", "unexport", "disk"]);
    assert!(said.error.contains("scree detach disk"), "{}", said.error);
    let detached = host.json(&["detach", "disk"]);
    assert_eq!(detached["state"], "detached", "{detached}");
    assert_eq!(host.state("disk"), "available");
    host.refuses(1, &["detach", "disk"], &["not attached"]);
}

/// An attachment without a free port is an error that names the option to add.
#[test]
fn an_error_for_a_missing_port_names_the_option_to_add() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "16M"]);
    let guest = Guest::paused(0);
    let vm = guest.address();
    let said = host.run(&["attach", "disk", "--vm", &vm]);
    assert_eq!(said.code, 1, "{}", said.error);
    assert!(said.error.contains("pcie-root-port"), "{}", said.error);
    assert_eq!(host.state("disk"), "error");
    let detached = host.json(&["detach", "disk", "--vm", &vm]);
    assert_eq!(detached["state"], "detached", "{detached}");
    assert_eq!(host.state("disk"), "available");
}

/// A paused guest accepts a disk, but does not release one.
#[test]
fn a_paused_vm_accepts_a_disk_and_is_busy_when_it_is_detached() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "16M"]);
    let mut guest = Guest::paused(1);
    attach(&host, "disk", &guest, &[]);
    let vm = guest.address();
    let said = host.run(&["detach", "disk", "--vm", &vm]);
    assert_eq!(said.code, 1, "{}", said.error);
    assert!(
        said.error.contains("the VM is not running"),
        "{}",
        said.error
    );
    let listed = host.json(&["attachment", "list"]);
    assert_eq!(listed[0]["state"], "busy", "{listed}");
    // A VM that has ended has no disks.
    guest.kill();
    let detached = host.json(&["detach", "disk", "--vm", &vm]);
    assert_eq!(detached["state"], "detached", "{detached}");
}

/// QEMU is stopped during the request, and then killed.
#[test]
fn a_vm_that_dies_during_attach_is_an_error_until_it_runs_again() {
    let host = Host::with(&["--units", "2"]);
    host.json(&["volume", "create", "disk", "--size", "16M"]);
    let mut guest = Guest::paused(1);
    guest.signal("-STOP");
    let vm = guest.address();
    let requested = host.json(&["attach", "disk", "--vm", &vm, "--no-wait"]);
    assert_eq!(requested["state"], "attaching", "{requested}");
    let shown = |field: &str| host.json(&["attachment", "list"])[0][field].clone();
    wait_until("a socket is made for it", || {
        std::fs::read_dir(host.path().join("vm")).is_ok_and(|mut found| found.next().is_some())
    });
    guest.kill();
    wait_until("its end is noticed", || {
        shown("state") == "error" && shown("message").to_string().contains("does not run")
    });
    guest.start_again();
    wait_until("it is plugged", || shown("state") == "attached");
    assert_eq!(shown("device"), serial(&host, "disk").as_str());
}
