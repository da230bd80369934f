//! Attachments to a VM without an operating system, which never releases a disk.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use api::host::AttachmentState;
use base::AttachmentId;
use control::attachments::{AttachmentRequest, AttachmentView};

use super::end;
use super::rig::{Rig, Scree, eventually, small};

const ENOUGH: Duration = Duration::from_secs(60);

/// A QEMU that stays in its firmware, with a port for one disk.
struct Qemu(Child);

impl Qemu {
    async fn start(monitor: &Path) -> Self {
        // A socket of an earlier QEMU.
        let _ = std::fs::remove_file(monitor);
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-accel", "tcg", "-m", "64", "-machine", "q35"])
            .args(["-nodefaults", "-display", "none"])
            .args(["-device", "pcie-root-port,id=one"])
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", monitor.display()))
            .stdin(Stdio::null());
        let started = command.spawn();
        let qemu = Self(started.expect("QEMU starts; `tools/packages test` installs it"));
        let is_there = async || monitor.exists().then_some(());
        eventually("QEMU's monitor", is_there).await;
        qemu
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn attach(scree: &Scree, vm: &str) -> AttachmentView {
    let request = AttachmentRequest {
        volume: "disk".to_owned(),
        vm: Some(vm.to_owned()),
        ..AttachmentRequest::default()
    };
    let asked = scree
        .control
        .attachments()
        .attach(request)
        .await
        .expect("asked");
    let view = scree.control.attachments().get(asked.row.id, ENOUGH).await;
    view.expect("there")
}

async fn detach(scree: &Scree, id: AttachmentId, force: bool) -> AttachmentView {
    scree
        .control
        .attachments()
        .detach(id, force)
        .await
        .expect("asked");
    scree
        .control
        .attachments()
        .get(id, ENOUGH)
        .await
        .expect("there")
}

fn is_busy(view: &AttachmentView) {
    let reason = view
        .row
        .observed
        .problem
        .as_ref()
        .map_or("", |why| &why.text);
    assert_eq!(view.row.observed.state, AttachmentState::Busy, "{view:?}");
    assert!(reason.contains("booted"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_does_not_release_its_disk_keeps_it_until_it_is_forced() {
    let rig = Rig::new();
    let scree = rig.start().await;
    let monitor = rig.folder.path().join("qmp");
    let vm = format!("qmp:{}", monitor.display());
    let volume = scree.create("disk").await.row.id;

    // The VM is not running yet; plugging will be retried.
    let view = attach(&scree, &vm).await;
    let id = view.row.id;
    let reason = view.row.observed.problem.expect("a problem").text;
    assert_eq!(view.row.observed.state, AttachmentState::Error);
    assert!(reason.contains("does not run"), "{reason}");
    let qemu = Qemu::start(&monitor).await;
    let view = attach(&scree, &vm).await;
    assert_eq!(
        view.row.observed.state,
        AttachmentState::Attached,
        "{view:?}"
    );
    assert_eq!(view.row.id, id, "the same attachment");
    let serial = volume.to_string().replace('-', "");
    assert_eq!(view.row.observed.device, Some(serial));
    let socket = scree.agent.folder().vm_socket(id);
    let mode = std::fs::metadata(&socket).expect("there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);

    is_busy(&detach(&scree, id, false).await);
    assert!(scree.open(volume).is_some(), "it is still served");
    // The operator attaches it again.
    let view = attach(&scree, &vm).await;
    assert_eq!(
        (view.row.id, view.row.observed.state),
        (id, AttachmentState::Attached)
    );

    // A process that starts in the middle serves the disk, which is still plugged.
    is_busy(&detach(&scree, id, false).await);
    end(scree).await;
    assert!(!socket.exists());
    let scree = rig.start().await;
    let view = scree
        .control
        .attachments()
        .get(id, ENOUGH)
        .await
        .expect("there");
    is_busy(&view);
    assert!(scree.open(volume).is_some() && socket.exists());

    let view = detach(&scree, id, true).await;
    assert_eq!(
        view.row.observed.state,
        AttachmentState::Detached,
        "{view:?}"
    );
    let note = view.row.observed.notice.expect("a notice").text;
    assert!(note.contains("by force"), "{note}");
    assert!(scree.open(volume).is_none() && !socket.exists());

    // The VM's only port is occupied by the disk that it has not released.
    let view = attach(&scree, &vm).await;
    let reason = view.row.observed.problem.expect("a problem").text;
    assert_eq!(view.row.observed.state, AttachmentState::Error);
    assert!(reason.contains("no free port"), "{reason}");
    drop(qemu);
    let view = detach(&scree, view.row.id, false).await;
    assert_eq!(
        view.row.observed.state,
        AttachmentState::Detached,
        "{view:?}"
    );
    end(scree).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_that_has_ended_has_no_disk_to_unplug() {
    let rig = Rig::new();
    let scree = rig.start().await;
    let monitor = rig.folder.path().join("qmp");
    let vm = format!("qmp:{}", monitor.display());
    scree.create("disk").await;
    let qemu = Qemu::start(&monitor).await;
    let view = attach(&scree, &vm).await;
    assert_eq!(
        view.row.observed.state,
        AttachmentState::Attached,
        "{view:?}"
    );
    let id = view.row.id;
    drop(qemu);
    rig.clock.advance(Duration::from_secs(11));
    // No report was due yet by this clock.
    let reason = eventually("the attachment is in error", async || {
        let view = scree.control.attachments().get(id, Duration::ZERO).await;
        let row = view.expect("there").row;
        let is_error = row.observed.state == AttachmentState::Error;
        is_error.then(|| row.observed.problem.expect("a problem").text)
    });
    let reason = reason.await;
    assert!(reason.contains("does not run"), "{reason}");

    // A volume that is deleted and created again with the same name is another volume.
    let view = detach(&scree, id, false).await;
    assert_eq!(
        view.row.observed.state,
        AttachmentState::Detached,
        "{view:?}"
    );
    scree
        .control
        .volumes()
        .delete("disk")
        .await
        .expect("deleted");
    let again = eventually("its name is free", async || {
        let cleaned = scree
            .agent
            .parts
            .maintenance
            .cleaning
            .remove_unneeded()
            .await;
        cleaned.expect("cleaned");
        scree.control.volumes().create(small("disk")).await.ok()
    });
    let again = again.await;
    let _qemu = Qemu::start(&monitor).await;
    let view = attach(&scree, &vm).await;
    assert_eq!(
        view.row.observed.state,
        AttachmentState::Attached,
        "{view:?}"
    );
    assert_eq!(view.row.volume, again.row.id);
    assert_ne!(view.row.id, id);
    end(scree).await;
}
