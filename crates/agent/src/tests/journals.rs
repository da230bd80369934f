//! Journals in a folder that several hosts share, one of which is lost.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use api::host::AttachmentState;
use base::{AttachmentId, BlockDevice as _, Durability, Request, VolumeId};

use super::end;
use super::rig::{Rig, RigSettings, Scree};

fn folder(rig: &Rig) -> PathBuf {
    rig.folder.path().join("journals")
}

async fn start(rig: &Rig) -> Scree {
    fs::create_dir_all(folder(rig)).expect("made");
    let settings = RigSettings {
        lease: Some(Duration::from_secs(10)),
        journals: Some(folder(rig)),
        ..rig.settings()
    };
    rig.try_start(settings).await.expect("starts")
}

/// The only journal in the folder.
fn journal(rig: &Rig) -> PathBuf {
    let names = fs::read_dir(folder(rig)).expect("there");
    let mut paths: Vec<PathBuf> = names.map(|entry| entry.expect("read").path()).collect();
    paths.retain(|path| !path.ends_with("scree-journals"));
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths.pop().expect("one")
}

/// A volume that is served and has writes.
async fn written(scree: &Scree) -> (VolumeId, AttachmentId) {
    let volume = scree.create("disk").await.row.id;
    let id = scree.export("disk").await.expect("served").id;
    let open_volume = scree.open(volume).expect("open");
    let write = |volume: &mut volume::Volume| {
        let started = volume.start(Request::write(1, 0, &[7; 4096], Durability::Volatile));
        volume.end_batch().expect("the journal works");
        started
    };
    let started = open_volume.on_volume(write).await;
    assert_eq!(started.expect("answers"), base::Started::Done);
    (volume, id)
}

async fn state(scree: &Scree, id: AttachmentId) -> (AttachmentState, String) {
    let view = scree
        .control
        .attachments()
        .get(id, Duration::from_secs(60))
        .await;
    let row = view.expect("there").row;
    (
        row.observed.state,
        row.observed
            .problem
            .map_or_else(String::new, |why| why.text),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_journal_is_an_error_until_it_is_restored_or_abandoned_by_force() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let (volume, id) = written(&scree).await;
    end(scree).await;
    let (lost, aside) = (journal(&rig), folder(&rig).join("aside"));
    fs::rename(&lost, &aside).expect("moved");

    let scree = start(&rig).await;
    let (now, reason) = state(&scree, id).await;
    assert_eq!(now, AttachmentState::Error);
    assert!(
        reason.contains("is missing") && reason.contains("scree detach VOLUME --force"),
        "{reason}"
    );
    assert!(scree.open(volume).is_none());

    // It is restored.
    fs::rename(&aside, &lost).expect("moved");
    let row = scree.export("disk").await.expect("served");
    assert_eq!((row.id, row.observed.notice), (id, None));
    assert!(scree.open(volume).is_some());
    end(scree).await;

    // It is lost for good, and that is known.
    fs::remove_file(journal(&rig)).expect("removed");
    let scree = start(&rig).await;
    assert_eq!(state(&scree, id).await.0, AttachmentState::Error);
    scree
        .control
        .attachments()
        .detach(id, true)
        .await
        .expect("asked");
    let (now, reason) = state(&scree, id).await;
    assert_eq!(now, AttachmentState::Detached);
    assert!(
        reason.contains("detached by force") && reason.contains(": the volume is at version "),
        "{reason}"
    );
    let row = scree.export("disk").await.expect("served");
    assert_eq!(row.observed.notice.map(|notice| notice.text), Some(reason));
    assert!(scree.open(volume).is_some());
    end(scree).await;
}

/// The detachment by force was requested before the loss was known, so it does not apply to flushed
/// writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_from_before_the_loss_abandons_no_journal() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let (_, id) = written(&scree).await;
    scree.cut_off();
    scree
        .control
        .attachments()
        .detach(id, true)
        .await
        .expect("asked");
    end(scree).await;
    let (lost, aside) = (journal(&rig), folder(&rig).join("aside"));
    fs::rename(&lost, &aside).expect("moved");

    let scree = start(&rig).await;
    let (now, reason) = state(&scree, id).await;
    assert_eq!(now, AttachmentState::Busy);
    assert!(reason.contains("is missing"), "{reason}");
    fs::rename(&aside, &lost).expect("moved");
    scree
        .control
        .attachments()
        .detach(id, true)
        .await
        .expect("requested again");
    assert_eq!(
        state(&scree, id).await,
        (AttachmentState::Detached, String::new())
    );
    end(scree).await;
}

/// The agent is started without its folder, or with another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_its_shared_folder_opens_no_older_state() {
    let rig = Rig::new();
    let scree = start(&rig).await;
    let (volume, id) = written(&scree).await;
    end(scree).await;
    let settings = RigSettings {
        lease: Some(Duration::from_secs(10)),
        ..rig.settings()
    };
    let scree = rig.try_start(settings).await.expect("starts");
    let (now, reason) = state(&scree, id).await;
    assert_eq!(now, AttachmentState::Error);
    assert!(
        reason.contains("out of reach") && reason.contains("--journals"),
        "{reason}"
    );
    assert!(scree.open(volume).is_none());
    end(scree).await;
    let scree = start(&rig).await;
    assert!(scree.open(volume).is_some());
    end(scree).await;
    assert_eq!(
        journal(&rig).extension().and_then(|end| end.to_str()),
        Some("journal-2"),
        "it was refused a lease"
    );
}
