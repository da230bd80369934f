//! Plug, unplug and look, with a fake QEMU that behaves as no real one can be made to at the right
//! moment.

use agent::vm::qmp::QmpError;
use agent::vm::{Found, Plugged, Unplugged, VmError};

use crate::fake_qemu::{Close, FakeQemu, Guest, disk};

const NEWLY: Plugged = Plugged {
    was_there: false,
    waits_for_server: true,
};

fn reason(unplugged: Unplugged) -> String {
    match unplugged {
        Unplugged::Busy { reason } => reason,
        other => panic!("it is not busy: {other:?}"),
    }
}

#[tokio::test]
async fn a_plugged_disk_is_listed_until_it_is_unplugged() {
    let qemu = FakeQemu::start();
    let vm = qemu.vm();
    assert_eq!(vm.disks().await.expect("seen"), []);
    assert_eq!(vm.plug(&disk("att-1")).await.expect("plugged"), NEWLY);
    let again = vm.plug(&disk("att-1")).await.expect("plugged");
    assert!(again.was_there);
    let found = Found {
        name: disk("att-1").name,
        serial: Some(disk("att-1").serial),
        is_read_only: false,
        is_plugged: true,
    };
    assert_eq!(vm.disks().await.expect("seen"), [found]);
    let gone = vm.unplug(&disk("att-1").name).await.expect("unplugged");
    assert_eq!(gone, Unplugged::Removed);
    assert!(qemu.state().nodes.is_empty() && qemu.state().devices.is_empty());
    let gone = vm.unplug(&disk("att-1").name).await.expect("unplugged");
    assert_eq!(gone, Unplugged::Removed);
}

#[tokio::test]
async fn plug_may_be_repeated_after_an_end_at_any_command() {
    let commands = {
        let qemu = FakeQemu::start();
        qemu.vm().plug(&disk("att-1")).await.expect("plugged");
        qemu.state().asked.len()
    };
    assert!(commands > 4, "it looks, adds a node and adds a device");
    for at in 0..commands {
        for is_done in [false, true] {
            let qemu = FakeQemu::start();
            qemu.state().close = Some(Close { at, is_done });
            let error = qemu.vm().plug(&disk("att-1")).await.expect_err("it ended");
            let VmError::Qmp { source, .. } = error else {
                panic!("another error: {error}");
            };
            assert!(matches!(source, QmpError::Closed(_)), "{source}");
            qemu.vm().plug(&disk("att-1")).await.expect("plugged");
            assert_eq!(qemu.state().nodes.len(), 1);
            assert_eq!(qemu.state().devices.len(), 1);
        }
    }
}

#[tokio::test]
async fn unplug_may_be_repeated_after_an_end_at_any_command() {
    let (first, commands) = {
        let qemu = FakeQemu::start();
        qemu.vm().plug(&disk("att-1")).await.expect("plugged");
        let first = qemu.state().asked.len();
        qemu.vm().unplug(&disk("att-1").name).await.expect("gone");
        let last = qemu.state().asked.len();
        (first, last)
    };
    for at in first..commands {
        for is_done in [false, true] {
            let qemu = FakeQemu::start();
            qemu.vm().plug(&disk("att-1")).await.expect("plugged");
            qemu.state().close = Some(Close { at, is_done });
            // The connection has closed, and QEMU has not ended.
            qemu.vm()
                .unplug(&disk("att-1").name)
                .await
                .expect_err("it closed");
            let gone = qemu.vm().unplug(&disk("att-1").name).await;
            assert_eq!(gone.expect("unplugged"), Unplugged::Removed);
            assert!(qemu.state().nodes.is_empty() && qemu.state().devices.is_empty());
        }
    }
}

#[tokio::test]
async fn a_refused_plug_leaves_nothing_behind() {
    let qemu = FakeQemu::start();
    qemu.state()
        .refuses
        .insert("device_add", "Bus 'pcie.0' does not support hotplugging");
    let full = qemu.vm().plug(&disk("att-1")).await.expect_err("full");
    assert!(matches!(full, VmError::NoFreePort { .. }));
    assert!(
        full.to_string().contains("-device pcie-root-port"),
        "{full}"
    );
    assert!(qemu.state().nodes.is_empty());

    qemu.state().refuses.insert("device_add", "it is Sunday");
    let refused = qemu.vm().plug(&disk("att-1")).await.expect_err("refused");
    let words = base::with_causes(&refused);
    assert!(words.contains("`device_add`: it is Sunday"), "{words}");
    assert!(qemu.state().nodes.is_empty());

    qemu.state()
        .refuses
        .insert("blockdev-add", "Failed to connect to socket");
    qemu.vm().plug(&disk("att-1")).await.expect_err("refused");
    qemu.state().refuses.clear();
    assert_eq!(
        qemu.vm().plug(&disk("att-1")).await.expect("plugged"),
        NEWLY
    );
}

#[tokio::test]
async fn another_disk_of_the_same_name_is_a_conflict() {
    let qemu = FakeQemu::start();
    qemu.vm().plug(&disk("att-1")).await.expect("plugged");
    let mut other = disk("att-1");
    other.is_read_only = true;
    let conflict = qemu.vm().plug(&other).await.expect_err("a conflict");
    assert!(matches!(conflict, VmError::Conflict { .. }));
    assert!(
        conflict
            .to_string()
            .contains("vol0123456789abcdef0, writable"),
        "{conflict}"
    );
}

#[tokio::test]
async fn a_guest_may_refuse_and_be_asked_again() {
    let qemu = FakeQemu::start();
    qemu.vm().plug(&disk("att-1")).await.expect("plugged");
    qemu.state().guest = Guest::Refuses;
    let busy = qemu.vm().unplug(&disk("att-1").name).await.expect("asked");
    assert!(reason(busy).contains("refuses"));
    assert_eq!(qemu.state().devices.len(), 1);
    qemu.state().guest = Guest::Releases;
    let gone = qemu.vm().unplug(&disk("att-1").name).await.expect("asked");
    assert_eq!(gone, Unplugged::Removed);
}

#[tokio::test]
async fn a_guest_that_hangs_is_busy_until_it_releases_the_disk() {
    let qemu = FakeQemu::start();
    let name = disk("att-1").name;
    qemu.vm().plug(&disk("att-1")).await.expect("plugged");
    qemu.state().guest = Guest::Hangs;
    for status in ["running", "paused"] {
        qemu.state().status = status;
        // The second time QEMU replies that the request is pending.
        let busy = reason(qemu.impatient_vm().unplug(&name).await.expect("asked"));
        assert_eq!(busy.contains("(paused)"), status == "paused", "{busy}");
        let seen = qemu.vm().disks().await.expect("seen");
        assert!(seen.iter().all(|disk| disk.is_plugged) && seen.len() == 1);
    }
    // The guest releases it while no client listens.
    qemu.state().devices.clear();
    let seen = qemu.vm().disks().await.expect("seen");
    assert!(seen.iter().all(|disk| !disk.is_plugged) && seen.len() == 1);
    let gone = qemu.vm().unplug(&name).await.expect("asked");
    assert_eq!(gone, Unplugged::Removed);
    assert!(qemu.state().nodes.is_empty());
}

#[tokio::test]
async fn a_missed_event_is_not_waited_for() {
    let qemu = FakeQemu::start();
    qemu.vm().plug(&disk("att-1")).await.expect("plugged");
    qemu.state().guest = Guest::ReleasesSilently;
    qemu.state().lingers = 3;
    let gone = qemu.vm().unplug(&disk("att-1").name).await.expect("asked");
    assert_eq!(gone, Unplugged::Removed);
    assert!(qemu.state().nodes.is_empty());
}

#[tokio::test]
async fn a_vm_that_has_ended_has_nothing_plugged() {
    let qemu = FakeQemu::start();
    qemu.vm().plug(&disk("att-1")).await.expect("plugged");
    // The VM ends during the unplugging.
    qemu.state().guest = Guest::Ends;
    let name = disk("att-1").name;
    let ended = qemu.vm().unplug(&name).await.expect("asked");
    assert_eq!(ended, Unplugged::VmEnded);
    assert!(qemu.has_ended());
    let ended = qemu.vm().unplug(&name).await.expect("asked");
    assert_eq!(ended, Unplugged::VmEnded);
    assert!(matches!(
        qemu.vm().disks().await,
        Err(VmError::Ended { .. })
    ));
    let error = qemu.vm().plug(&disk("att-1")).await.expect_err("no VM");
    assert!(matches!(error, VmError::Ended { .. }));
}

#[tokio::test]
async fn a_source_with_control_characters_is_refused_before_any_request() {
    let qemu = FakeQemu::start();
    let mut bad = disk("att-1");
    bad.export = "a\nb".into();
    let error = qemu.vm().plug(&bad).await.expect_err("no text");
    assert!(matches!(error, VmError::BadSource { .. }));
    assert!(qemu.state().asked.is_empty());
}
