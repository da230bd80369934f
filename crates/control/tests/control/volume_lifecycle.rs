//! Volumes, snapshots and clones in the database: creating, restoring and deleting them.

use base::JournalFolderId;
use catalog::conformance::Fixture;
use catalog::{Catalog, CatalogError, RESTORE_SKIPS_BYTES, VersionKey};
use control::database::{DatabaseError, Need, SnapshotState};
use world::Millis;

use crate::catalog_scene::{SALT, Scene};

/// The records of a journal do not follow the version to which the volume was restored.
#[test]
fn restoring_a_volume_discards_its_journal() {
    let scene = Scene::new();
    let volume = scene.create();
    let held = scene.write(volume);
    scene.write(volume);
    scene.attach(volume);
    let folder = Some(JournalFolderId::from_u128(1));
    let lease = scene.catalog.acquire(volume, SALT, folder);
    let epoch = lease.expect("a lease").epoch;
    let named = scene.catalog.name_journal(volume, epoch, folder);
    named.expect("its lease holds");
    scene.detach_by_force(volume);
    let set_back = scene
        .database
        .volumes()
        .set_head(&scene.catalog.principal, volume, held);
    scene.runtime.block_on(set_back).expect("detached");
    let lease = scene.catalog.acquire(volume, SALT, folder);
    assert_eq!(lease.expect("a lease").journal, None);
}

/// A clone could once be restored to versions older than itself, and then not back to its own
/// versions: its list of versions was that of the volume it had been restored from.
#[test]
fn a_clone_is_restored_to_its_origin_and_no_earlier_version() {
    let scene = Scene::new();
    let volume = scene.create();
    scene.write(volume);
    let held = scene.write(volume);
    let snapshot = scene.take_snapshot(volume, "held").expect("a new name");
    scene.write(volume);
    let clone = scene.clone_of(snapshot);
    let own = scene.write(clone);
    assert_eq!((held.number, own.number), (2, 3));
    let line = || {
        let line = scene
            .runtime
            .block_on(scene.database.catalog().line_of(clone));
        line.expect("a line")
    };
    let keys = || -> Vec<VersionKey> { line().iter().map(|version| version.key).collect() };
    assert_eq!(keys(), [held, own]);
    assert_eq!(line()[0].snapshots, ["held"]);
    let go_back = |to| {
        let gone = scene.runtime.block_on(scene.database.volumes().set_head(
            &scene.catalog.principal,
            clone,
            to,
        ));
        gone.expect("detached");
    };
    go_back(held);
    assert_eq!(keys(), [held, own], "and forth");
    go_back(own);
    // The same holds when the snapshot and the neighboring versions are deleted.
    let forgotten = scene
        .database
        .snapshots()
        .delete(&scene.catalog.principal, snapshot);
    scene.runtime.block_on(forgotten).expect("it exists");
    assert_eq!(keys(), [held, own]);
    let around = scene.catalog.neighbors(held).expect("kept");
    let removed = scene.catalog.remove_version(held, &around, Millis(0), &[]);
    removed.expect("nothing needs it");
    assert_eq!(keys(), [own], "not version 1 in its place");
}

#[test]
fn a_name_is_free_when_its_volume_is_deleted() {
    let scene = Scene::new();
    let first = scene.insert("disk", None).expect("a new name");
    assert!(matches!(
        scene.insert("disk", None),
        Err(DatabaseError::Taken { .. })
    ));
    scene
        .runtime
        .block_on(
            scene
                .database
                .volumes()
                .begin_delete(&scene.catalog.principal, first, Millis(0)),
        )
        .expect("detached");
    let second = scene.insert("disk", None).expect("free again");
    let found = scene
        .runtime
        .block_on(
            scene
                .database
                .volumes()
                .find(&scene.catalog.principal, "disk", Need::See),
        )
        .expect("it exists");
    assert_eq!(found.id, second);
}

#[test]
fn a_snapshot_of_a_detached_volume_holds_its_head_at_once() {
    let scene = Scene::new();
    let volume = scene.create();
    let empty = scene.take_snapshot(volume, "empty").expect("a new name");
    assert_eq!(scene.state(empty), SnapshotState::Completed(None));
    let key = scene.write(volume);
    let full = scene.take_snapshot(volume, "full").expect("a new name");
    assert_eq!(scene.state(full), SnapshotState::Completed(Some(key)));
    assert!(matches!(
        scene.take_snapshot(volume, "full"),
        Err(DatabaseError::Taken { .. })
    ));
}

#[test]
fn a_pending_snapshot_is_completed_or_fails() {
    let scene = Scene::new();
    let is_error = |snapshot| matches!(scene.state(snapshot), SnapshotState::Error { .. });
    let cut = |snapshot| {
        let cut = scene
            .database
            .snapshots()
            .record_consistency_point(snapshot, scene.catalog.host);
        scene.runtime.block_on(cut).expect("noted");
    };
    let volume = scene.create();
    let early = scene.snapshot(volume);
    assert_eq!(scene.state(early), SnapshotState::Pending);
    assert!(matches!(
        scene.insert("early", Some(early)),
        Err(DatabaseError::Refused { .. })
    ));
    scene.catalog.acquire(volume, SALT, None).expect("a lease");
    scene.catalog.detach(volume);
    let state = scene.state(early);
    assert_eq!(state, SnapshotState::Completed(None), "as it was closed");

    let lost = scene.snapshot(volume);
    let later = scene.snapshot(volume);
    cut(lost);
    scene
        .catalog
        .acquire(volume, SALT, None)
        .expect("after a crash");
    assert!(is_error(lost), "its moment went with the process");
    assert_eq!(scene.state(later), SnapshotState::Pending);
    assert!(matches!(
        scene.insert("late", Some(lost)),
        Err(DatabaseError::Refused { .. })
    ));
    cut(later);
    scene.catalog.detach(volume);
    assert!(is_error(later), "no version has its moment");

    let deleted = scene.snapshot(volume);
    let attachments = scene.database.attachments().of_volume(volume);
    let attachments = scene.runtime.block_on(attachments).expect("read");
    let asked =
        scene
            .database
            .attachments()
            .detach(&scene.catalog.principal, attachments[0].id, false);
    scene.runtime.block_on(asked).expect("it exists");
    scene
        .runtime
        .block_on(scene.database.volumes().begin_delete(
            &scene.catalog.principal,
            volume,
            Millis(0),
        ))
        .expect("not wanted");
    assert!(is_error(deleted));
}

#[test]
fn deleting_a_volume_leaves_its_snapshots_and_their_clones() {
    let scene = Scene::new();
    let volume = scene.create();
    let held = scene.write(volume);
    let snapshot = scene.take_snapshot(volume, "held").expect("a new name");
    let head = scene.write(volume);
    scene
        .runtime
        .block_on(scene.database.volumes().begin_delete(
            &scene.catalog.principal,
            volume,
            Millis(0),
        ))
        .expect("detached");
    scene.remove(head).expect("nothing holds the head now");
    assert!(matches!(
        scene.remove(held),
        Err(CatalogError::Refused { .. })
    ));
    scene.finish_delete(volume);
    let clone = scene.clone_of(snapshot);
    let lease = scene.catalog.acquire(clone, SALT, None).expect("a lease");
    assert_eq!(lease.head.expect("a head").key, held);
}

#[test]
fn a_key_is_erased_when_nothing_sealed_with_it_is_left() {
    let scene = Scene::new();
    let volume = scene.create();
    let key = scene.write(volume);
    let snapshot = scene.take_snapshot(volume, "moment").expect("a new name");
    let clone = scene.clone_of(snapshot);
    let keys = scene
        .catalog
        .acquire(clone, SALT, None)
        .expect("a lease")
        .keys;
    let parent = keys[1].lineage;
    scene
        .runtime
        .block_on(scene.database.volumes().begin_delete(
            &scene.catalog.principal,
            volume,
            Millis(0),
        ))
        .expect("detached");
    scene.finish_delete(volume);
    scene.delete_snapshot(snapshot);
    assert!(
        scene.catalog.keys(parent).is_ok(),
        "the clone reads with it"
    );
    scene.catalog.detach(clone);
    scene
        .runtime
        .block_on(
            scene
                .database
                .volumes()
                .begin_delete(&scene.catalog.principal, clone, Millis(0)),
        )
        .expect("detached");
    scene.remove(key).expect("nothing holds it now");
    assert!(
        scene.catalog.keys(parent).is_ok(),
        "the clone is not gone yet"
    );
    scene.finish_delete(clone);
    assert!(matches!(
        scene.catalog.keys(parent),
        Err(CatalogError::NotFound { .. })
    ));
    assert!(matches!(
        scene.catalog.keys(keys[0].lineage),
        Err(CatalogError::NotFound { .. })
    ));
}

#[test]
fn restoring_fences_the_owner_and_needs_a_closed_volume() {
    let scene = Scene::new();
    let volume = scene.create();
    let old = scene.write(volume);
    scene.write(volume);
    let lease = scene.catalog.acquire(volume, SALT, None).expect("a lease");
    scene.attach(volume);
    let set_head = || {
        scene.runtime.block_on(scene.database.volumes().set_head(
            &scene.catalog.principal,
            volume,
            old,
        ))
    };
    assert!(matches!(set_head(), Err(DatabaseError::Refused { .. })));
    scene.catalog.detach(volume);
    set_head().expect("closed");
    let late = scene.catalog.reserve_serials(volume, lease.epoch, 1);
    assert!(matches!(late, Err(CatalogError::Fenced { .. })));
    let next = scene.catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!((next.head.expect("a head").key, next.number_last), (old, 2));
    let skipped = next.journal_next - lease.journal_next;
    assert_eq!(skipped, RESTORE_SKIPS_BYTES, "no stale record follows it");
    assert_eq!((lease.restores, next.restores), (Some(0), Some(1)));
}

#[test]
fn a_volume_in_use_is_not_deleted() {
    let scene = Scene::new();
    let volume = scene.create();
    scene.attach(volume);
    let refused = scene
        .runtime
        .block_on(scene.database.volumes().begin_delete(
            &scene.catalog.principal,
            volume,
            Millis(0),
        ));
    assert!(matches!(refused, Err(DatabaseError::Refused { .. })));
}
