//! Tests of a controller and an agent together, with a disk that hangs, lost units and restored
//! databases.

#![expect(clippy::disallowed_methods, reason = "these tests use a real machine")]

mod altered;
mod audits;
mod copies;
mod daemons;
mod database_age;
mod degraded;
mod hangs;
mod health;
mod images;
mod journals;
mod keys;
mod leases;
mod lost;
mod rejoined;
mod requests;
pub mod rig;
mod vms;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice as _, CopysetId, Durability, Location, Outcome, Request, SegmentId, Slot, Started,
};
use catalog::FreePlan;
use tokio::task::JoinHandle;

use api::host::Access;
use control::ControlError;
use control::database::Database;
use rig::{Rig, Scree, aside, small};
use world::host;

use crate::keys::{KeyEntry, WrappingKeys};

/// Regression: a client that hung up canceled its request half way, and the volume could be deleted
/// while its journal was being replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_runs_to_completion_without_its_client() {
    let rig = Rig::new();
    let control = rig.start().await;
    let disk = control.create("disk").await;
    rig.disk.hold(&control.agent.folder().journal(disk.row.id));
    let held = Arc::clone(&rig.disk);
    tokio::select! {
        _ = control.export("disk") => panic!("it is held"),
        () = aside(move || held.wait_for_one()) => {}
    }
    // The client hangs up; another one comes.
    let deleted = control.control.volumes().delete("disk").await;
    assert!(
        matches!(deleted, Err(ControlError::Conflict { .. })),
        "{deleted:?}"
    );
    rig.disk.release();
    control.export("disk").await.expect("the same request");
    let view = control.control.volumes().get("disk").await.expect("there");
    assert!(view.served().is_some() && view.problem().is_none());
    end(control).await;
}

/// Regression: a volume that was being opened was neither closed nor counted: its process ended
/// with a lease and a journal in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_being_opened_at_shutdown_is_closed() {
    let rig = Rig::new();
    let control = rig.start().await;
    let disk = control.create("disk").await;
    rig.disk.hold(&control.agent.folder().journal(disk.row.id));
    let opening = tokio::spawn({
        let control = control.control.clone();
        let host = control.local_host();
        async move {
            control
                .volumes()
                .export("disk", host, Access::ReadWrite)
                .await
        }
    });
    let held = Arc::clone(&rig.disk);
    aside(move || held.wait_for_one()).await;
    let mut ending = tokio::spawn({
        let agent = control.agent.clone();
        async move { agent.shut_down().await }
    });
    let ended = host::timeout(Duration::from_millis(200), &mut ending).await;
    assert!(ended.is_none(), "it waits for the opening volume");
    rig.disk.release();
    assert_eq!(ending.await.expect("no panic"), 0);
    assert!(control.agent.parts.volumes.attachments.is_empty());
    opening.abort();
    drop(opening.await);
    end(control).await;
    let control = rig.start().await;
    let view = control.control.volumes().get("disk").await.expect("there");
    assert!(view.served().is_some() && view.problem().is_none());
    end(control).await;
}

/// Regression: the copy of a unit was claimed before it was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_unit_is_refused_unchanged() {
    let rig = Rig::new();
    let control = rig.start().await;
    let copy = rig.folder.path().join("copy");
    fs::create_dir_all(copy.join("segments")).expect("made");
    let name = "scree-unit.toml";
    let marker = fs::read_to_string(rig.unit(1).join(name)).expect("text");
    let (unowned, _) = marker.split_once("[owner]").expect("it has one");
    fs::write(copy.join(name), unowned).expect("written");
    let refused = control.add_unit(copy.to_str().expect("UTF-8")).await;
    let refused = refused.expect_err("a copy").to_string();
    assert!(refused.contains("is a copy of unit"), "{refused}");
    let left = fs::read_to_string(copy.join(name)).expect("there");
    assert_eq!(left, unowned);
    end(control).await;
}

/// Regression: a row with a URL of other spelling was another unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_has_one_url_however_old_its_row_is() {
    let rig = Rig::new();
    let control = rig.start().await;
    let folder = rig.folder.path().join("my units");
    fs::create_dir(&folder).expect("made");
    let added = control.add_unit(folder.to_str().expect("UTF-8")).await;
    let url = added.expect("added").row.url;
    assert!(url.ends_with("/my%20units"), "{url}");
    let pool = altered::open(&control.control.folder().database()).await;
    altered::alter(&pool, "UPDATE units SET url = replace(url, '%20', ' ')").await;
    pool.close().await;
    end(control).await;
    let control = rig.start().await;
    let urls: Vec<String> = control
        .control
        .unit_registry()
        .all()
        .await
        .expect("known")
        .into_iter()
        .map(|unit| unit.row.url)
        .collect();
    assert_eq!(urls.len(), 3);
    assert!(urls.contains(&url), "{urls:?}");
    end(control).await;
}

/// Shuts down with all volumes closed.
pub async fn end(control: Scree) {
    assert_eq!(control.end().await, 0);
}

/// Writes a block of the volume `disk`, and closes the volume.
pub async fn writes(scree: &Scree, block: u64, content: u8) {
    let exported = scree.export("disk").await.expect("served");
    let open_volume = scree.open(exported.volume).expect("attached");
    let started = open_volume.on_volume(move |volume| {
        volume.start(Request::write(
            1,
            block * 4096,
            &[content; 4096],
            Durability::Volatile,
        ))
    });
    started.await.expect("answers");
    let closed = scree.control.volumes().unexport("disk").await;
    closed.expect("closed");
}

/// Checks that block `block` of an export is full of `content`.
pub async fn reads(scree: &Scree, name: &str, block: u64, content: u8) {
    let id = scree.export(name).await.expect("served").volume;
    let open_volume = scree.open(id).expect("attached");
    let read = open_volume.on_volume(move |volume| read_block(volume, block));
    assert_eq!(read.await.expect("answers"), vec![content; 4096], "{name}");
    scree
        .control
        .volumes()
        .unexport(name)
        .await
        .expect("closed");
}

/// The content of block `block`. Blocks the thread that serves the volume.
fn read_block(volume: &mut volume::Volume, block: u64) -> Vec<u8> {
    let mut read = vec![0; 4096];
    match volume.start(Request::read(1, block * 4096, &mut read)) {
        Started::Done => return read,
        started => assert_eq!(started, Started::Pending),
    }
    match completed(volume) {
        Outcome::Data(read) => read,
        other => panic!("{other:?}"),
    }
}

/// The result of the only request in progress.
fn completed(volume: &mut volume::Volume) -> Outcome {
    let mut completions = Vec::new();
    loop {
        volume.poll(&mut completions);
        if let Some(done) = completions.pop() {
            return done.result.expect("completed");
        }
        std::thread::yield_now();
    }
}

async fn finish(scans: impl IntoIterator<Item = JoinHandle<()>>) {
    for scan in scans {
        scan.await.expect("no panic");
    }
}

/// Regression: only "cannot read its marker" was reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_fails_is_shown_with_the_cause() {
    let rig = Rig::new();
    let control = rig.start().await;
    let path = rig.unit(1);
    fs::rename(&path, rig.folder.path().join("away")).expect("renamed");
    std::os::unix::fs::symlink(&path, &path).expect("a link to itself");
    finish(control.agent.parts.storage.units.probe(true)).await;
    let shown = &control.agent.parts.storage.units.reports()[0];
    assert_eq!(shown.state, "failing");
    let reason = shown.problem.as_deref().expect("a problem");
    assert!(reason.contains("Too many levels"), "{reason}");
    let problems = control.control.status().await.expect("answers").problems;
    assert!(problems[0].contains("Too many levels"), "{problems:?}");
    end(control).await;
}

/// Regression: segments on a lost unit could not be freed, and a batch of such plans delayed all
/// plans after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_plan_does_not_delay_the_plans_after_it() {
    let rig = Rig::new();
    let control = rig.start().await;
    // Copysets with one unit each.
    let mut request = small("disk");
    request.replicas = Some(1);
    control
        .control
        .volumes()
        .create(request)
        .await
        .expect("made");
    let database = control.control.database();
    let copysets = database.units().copysets().await.expect("read");
    let units = control.agent.parts.storage.units.reports();
    let on = |unit: usize| {
        let is_it = |set: &&catalog::Copyset| set.members == [units[unit].id];
        copysets.iter().find(is_it).expect("planned").id
    };
    let (lost, well): (CopysetId, CopysetId) = (on(0), on(1));
    for serial in 0..40 {
        let copyset = if serial < 39 { lost } else { well };
        let segment = SegmentId::new(copyset, serial + 1).expect("36 bits");
        let mut plan = FreePlan::default();
        plan.add(Location::new(segment, Slot(0)));
        note(database, &plan).await;
    }
    fs::rename(rig.unit(1), rig.folder.path().join("away")).expect("renamed");
    control
        .agent
        .parts
        .maintenance
        .cleaning
        .free_due()
        .await
        .expect_err("a unit is lost");
    assert_eq!(
        database.catalog().pending_free_count().await.expect("read"),
        39
    );
    end(control).await;
}

/// Stores a plan, as the removal of a version does.
async fn note(database: &Database, plan: &FreePlan) {
    database
        .catalog()
        .record_free_now(&plan.encode())
        .await
        .expect("noted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_closed_without_a_polling_client() {
    let rig = Rig::new();
    let control = rig.start().await;
    let view = control.create("disk").await;
    control.export("disk").await.expect("served");
    let open_volume = control.open(view.row.id).expect("attached");
    let started = open_volume
        .on_volume(|volume| volume.start(Request::write(1, 0, &[7; 8192], Durability::Volatile)))
        .await
        .expect("answers");
    assert!(matches!(started, Started::Done | Started::Pending));
    let view = control
        .control
        .volumes()
        .unexport("disk")
        .await
        .expect("closed");
    assert!(view.row.head.is_some() && view.attachments.is_empty());
    assert!(control.open(view.row.id).is_none());
    end(control).await;
}

/// Regression: the name of the data directory was not durable: after a power failure the whole
/// folder could be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_names_of_all_created_folders_are_durable() {
    let rig = Rig::new();
    let mut settings = rig.settings();
    let top = rig.folder.path().to_owned();
    settings.folder = top.join("a/b");
    let control = rig.try_start(settings).await.expect("starts");
    let synced = rig.disk.synced();
    for folder in [&top, &top.join("a"), &top.join("a/b")] {
        assert!(synced.contains(folder), "{folder:?} of {synced:?}");
    }
    end(control).await;
}

/// Regression: `--key-file scree.key` failed on the first start, because the folder had an empty
/// name.
#[test]
fn a_key_file_may_be_in_the_working_directory() {
    let rig = Rig::new();
    // Tests share the working directory, so the name is unique.
    let name = format!("test-{}.key", std::process::id());
    let path = Path::new(&name).to_owned();
    let made = WrappingKeys::new(rig.world()).create(&KeyEntry::File { path: path.clone() });
    let removed = fs::remove_file(&path);
    made.expect("made");
    removed.expect("removed");
}
