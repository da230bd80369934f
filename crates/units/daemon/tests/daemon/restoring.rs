//! A host that was compromised destroys what it may, and the operator brings it back.

use std::path::Path;
use std::time::Duration;

use base::{LineageTag, Slot};
use metrics::Part as _;
use unit::{Replacement, Unit as _};
use unit_daemon::{FolderError, RestoreError, RestoreFilter, SegmentFate, UndeletePolicy, restore};
use unit_remote::RemoteUnit;
use world::{Disk, Millis, OpenMode};

use crate::fake_controller::{Controller, remote, settings, start, start_with};
use crate::service::as_host;
use crate::site::{Site, put, read, segment};

/// All that it holds a lease on, in every way that there is.
fn destroy(unit: &RemoteUnit) {
    unit.free(segment(10), &[Slot(0)], false)
        .expect("it is allowed");
    unit.free(segment(11), &[Slot(0)], true)
        .expect("it is allowed");
    unit.delete(segment(12)).expect("it is allowed");
    let by = Replacement {
        expected: Some(0),
        generation: 0,
        lineage_tag: LineageTag::NONE,
        slot_bytes: 512,
        tags: &[[9; 16]],
        data: &[99; 512],
    };
    unit.replace(segment(13), by).expect("it is allowed");
    for serial in 10..13 {
        read(unit, serial).expect_err("it is gone at once");
    }
    assert_eq!(read(unit, 13).expect("another one"), [99; 512]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_compromised_host_has_destroyed_is_brought_back_while_no_daemon_runs() {
    let site = Site::new();
    let _controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let unit = remote(&site, &service);
    as_host(move || {
        for serial in 10..15 {
            put(&unit, serial, 0).expect("put");
            unit.sync(&[segment(serial)]).expect("synced");
        }
        destroy(&unit);
    })
    .await;
    let since = Millis(site.world.clock.wall().0 - 60_000);
    let meant = RestoreFilter {
        since,
        until: Millis(i64::MAX),
        segment: None,
        replaced: true,
    };
    let folder = site.folder.path().join("d");
    let refused = restore(&site.world, &folder, &meant, true);
    let is_locked = matches!(
        refused,
        Err(RestoreError::Folder(FolderError::Locked { .. }))
    );
    assert!(is_locked, "{refused:?}");
    service.shut_down().await;
    drop(service);

    let nowhere = site.folder.path().join("nowhere");
    restore(&site.world, &nowhere, &meant, false).expect_err("no daemon was there");
    assert!(!world::host::is_folder(&nowhere));
    let restored = restore(&site.world, &folder, &meant, false).expect("restored");
    let fates: Vec<_> = restored
        .segments
        .iter()
        .map(|segment| segment.whole)
        .collect();
    let fate = |serial| {
        let mut segments = restored.segments.iter();
        let found = segments.find(|one| one.segment == segment(serial));
        found.map(|one| (one.whole, one.slots, one.lost))
    };
    assert_eq!(fates.len(), 4, "{restored:?}");
    assert_eq!(fate(10), Some((SegmentFate::Present, 1, 0)));
    assert_eq!(fate(11), Some((SegmentFate::Restored, 0, 0)));
    assert_eq!(fate(12), Some((SegmentFate::Restored, 0, 0)));
    assert_eq!(fate(13), Some((SegmentFate::Reverted, 0, 0)));

    let service = start(&site).await.expect("started");
    let unit = remote(&site, &service);
    as_host(move || {
        for serial in 10..15_u8 {
            let found = read(&unit, u64::from(serial)).expect("it is back");
            assert_eq!(found, [serial; 512]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_says_how_much_it_keeps_and_keeps_nothing_if_told_so() {
    let site = Site::new();
    let _controller = Controller::start(&site);
    for (time, kept) in [(Duration::from_secs(3600), 1), (Duration::ZERO, 0)] {
        let settings = unit_daemon::Settings {
            undelete: UndeletePolicy {
                window: time,
                ..UndeletePolicy::default()
            },
            ..settings(&site).0
        };
        let service = start_with(&site, settings).await.expect("started");
        let unit = remote(&site, &service);
        let serial = 20 + kept;
        as_host(move || {
            put(&unit, serial, 0).expect("put");
            unit.delete(segment(serial)).expect("deleted");
        })
        .await;
        let running = tokio::spawn({
            let service = service.clone();
            async move { service.run().await }
        });
        let stored = format!("scree_daemon_undelete_segments {kept}.0");
        let evicted = "scree_daemon_undelete_evicted_bytes_total 0";
        crate::service::until("it is counted", async || {
            let text = service.measure().await.whole();
            let has = |line: &str| text.lines().any(|found| found == line);
            has(&stored) && has(evicted)
        })
        .await;
        running.abort();
        service.shut_down().await;
    }
}

/// A restore that failed half way left a note by which no daemon started any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_starts_whatever_a_restore_has_left() {
    let site = Site::new();
    let _controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    let unit = remote(&site, &service);
    as_host(move || {
        put(&unit, 10, 0).expect("put");
        unit.sync(&[segment(10)]).expect("synced");
        unit.free(segment(10), &[Slot(0)], false)
            .expect("it is allowed");
    })
    .await;
    service.shut_down().await;
    drop(service);
    let folder = site.folder.path().join("d");
    let note = folder.join("unit/freed/restore");
    let disk = &site.world.disk;
    let leave: [fn(&dyn Disk, &Path); 2] = [
        |disk, note| {
            let file = disk.open(note, OpenMode::CreateNew).expect("made");
            file.write_at(b"since = ", 0).expect("written");
        },
        |disk, note| disk.create_directory(note).expect("made"),
    ];
    for leave in leave {
        leave(&**disk, &note);
        let service = start(&site).await.expect("started all the same");
        service.shut_down().await;
    }
    // What is no file at all is for the operator, who hears of it.
    let meant = RestoreFilter {
        since: Millis(0),
        until: Millis(i64::MAX),
        segment: None,
        replaced: false,
    };
    let refused = restore(&site.world, &folder, &meant, false).expect_err("no note");
    assert!(
        refused.to_string().contains("complete a restore"),
        "{refused}"
    );
    let aside = folder.join("aside");
    disk.rename(&note, &aside).expect("moved away");
    restore(&site.world, &folder, &meant, false).expect("restored");
}

#[tokio::test(flavor = "multi_thread")]
async fn root_brings_nothing_back_for_another_user() {
    // Only root can give a folder away, and only root is refused.
    if world::host::this_user() != 0 {
        return;
    }
    let site = Site::new();
    let _controller = Controller::start(&site);
    let service = start(&site).await.expect("started");
    service.shut_down().await;
    drop(service);
    let folder = site.folder.path().join("d");
    world::host::change_owner(&folder.join("unit"), 4711).expect("given away");
    let meant = RestoreFilter {
        since: Millis(0),
        until: Millis(i64::MAX),
        segment: None,
        replaced: false,
    };
    let refused = restore(&site.world, &folder, &meant, true);
    let is_meant = matches!(refused, Err(RestoreError::OtherUser { owner: 4711, .. }));
    assert!(is_meant, "{refused:?}");
}
