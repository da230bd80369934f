//! Full, read-only, away, somebody else's.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use base::{ClusterId, Slot, UnitId};
use world::simulated::{Fault, Simulation};
use world::{DirectoryEntry, Disk, File, OpenMode, Space, World};

use super::{PATH, cluster, create, open, unit_id};
use crate::conformance::{SLOT_BYTES, put, read, segment};
use crate::folder::lock;
use crate::{FolderUnit, Unit, UnitError};

fn path() -> &'static Path {
    Path::new(PATH)
}

/// Everything that changes the unit, and what comes of it.
pub(super) fn change_everything(unit: &FolderUnit) -> Vec<Result<(), UnitError>> {
    vec![
        put(unit, segment(900), SLOT_BYTES, 0, 1),
        unit.free(segment(1), &[Slot(0)], false),
        unit.free(segment(1), &[Slot(0)], true),
        unit.delete(segment(1)),
        unit.settle().map(|_| ()),
        unit.probe(),
    ]
}

pub(super) fn look_at_everything(unit: &FolderUnit) -> Vec<Result<(), UnitError>> {
    vec![
        read(unit, segment(1), SLOT_BYTES, 0, 1),
        unit.list().map(|_| ()),
        unit.stat().map(|_| ()),
        unit.stat_segment(segment(1)).map(|_| ()),
        unit.scrub(segment(1)).map(|_| ()),
    ]
}

fn is_away(error: &UnitError) -> bool {
    matches!(error, UnitError::Missing { .. } | UnitError::Away { .. })
}

pub(super) fn assert_all(results: Vec<Result<(), UnitError>>, is_meant: fn(&UnitError) -> bool) {
    for (number, result) in results.into_iter().enumerate() {
        match result {
            Err(error) if is_meant(&error) => {}
            other => panic!("number {number}: {other:?}"),
        }
    }
}

#[test]
fn a_full_unit_says_so_keeps_what_it_has_and_takes_more_once_it_has_room() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world()).with_segment_data_bytes(1 << 20);
    simulation.disk.set_capacity(path(), 4 << 20);
    let mut number = 0;
    let full = loop {
        match put(&unit, segment(number), SLOT_BYTES, 0, 128) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, UnitError::Full { .. }), "{full}");
    assert!(number >= 6, "{number}");
    let listed = unit.list().expect("listed").len() as u64;
    assert_eq!(listed, number, "the one that failed left nothing");
    let full = unit.probe().expect_err("full");
    assert!(matches!(full, UnitError::Full { .. }), "{full}");
    for number in 0..number {
        unit.sync(&[segment(number)]).expect("synced");
        read(&unit, segment(number), SLOT_BYTES, 0, 128).expect("kept");
    }
    let most: Vec<Slot> = (0..127).map(Slot).collect();
    for number in 0..number {
        unit.free(segment(number), &most, false)
            .expect("freeing needs no room");
    }
    unit.probe().expect("room again");
    put(&unit, segment(1000), SLOT_BYTES, 0, 128).expect("room again");
    read(&unit, segment(0), SLOT_BYTES, 127, 1).expect("kept");
}

#[test]
fn a_read_only_unit_can_still_be_read() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world());
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    simulation.disk.inject(path(), Fault::ReadOnly);
    for unit in [&unit, &open(&simulation.world())] {
        let mut results = change_everything(unit);
        // Nothing waits to be settled before the walk has found it.
        results.remove(4).ok();
        assert_all(results, |error| matches!(error, UnitError::ReadOnly { .. }));
        for result in look_at_everything(unit) {
            result.expect("it can be read");
        }
    }
}

#[test]
fn a_unit_that_was_moved_away_is_missing_until_it_comes_back() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    simulation.disk.inject(path(), Fault::Missing);
    let unit = open(&world);
    assert_all(change_everything(&unit), is_away);
    simulation.disk.heal(path());
    assert_all(vec![unit.probe()], is_away);

    let unit = create(&world);
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    simulation.disk.inject(path(), Fault::Missing);
    for unit in [&unit, &open(&world)] {
        assert_all(change_everything(unit), is_away);
        assert_all(look_at_everything(unit), is_away);
        assert_all(vec![unit.sync(&[segment(1)])], is_away);
    }
    simulation.disk.heal(path());
    for unit in [&unit, &open(&world)] {
        unit.probe().expect("it is back");
        read(unit, segment(1), SLOT_BYTES, 0, 4).expect("with all it had");
        assert_eq!(unit.stat().expect("there").segments, 1);
    }
}

#[test]
fn nothing_is_ever_written_into_a_folder_without_a_marker() {
    let root = tempfile::tempdir().expect("a folder");
    let (path, away) = (root.path().join("mount"), root.path().join("away"));
    let world = World::real(1);
    let unit = FolderUnit::create(&world, &path, cluster(), unit_id()).expect("made");
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    world.disk.rename(&path, &away).expect("unmounted");
    world
        .disk
        .create_directory(&path)
        .expect("a bare mount point");
    for unit in [
        &unit,
        &FolderUnit::open(&world, &path, cluster(), unit_id()),
    ] {
        assert_all(change_everything(unit), is_away);
        let listed = unit.list().expect_err("not an empty unit");
        assert!(listed.to_string().contains("is it mounted?"), "{listed}");
    }
    assert_eq!(world.disk.list(&path).expect("there"), []);
}

#[test]
fn a_unit_of_another_cluster_is_not_touched() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    put(&create(&world), segment(1), SLOT_BYTES, 0, 4).expect("put");
    let operations = simulation.disk.operations();
    let other_cluster = ClusterId::from_random(0xbad);
    let other_unit = UnitId::from_random(0xbad);
    for (cluster, unit) in [(other_cluster, unit_id()), (cluster(), other_unit)] {
        let unit = FolderUnit::open(&world, path(), cluster, unit);
        let foreign = |error: &UnitError| matches!(error, UnitError::Foreign { .. });
        assert_all(change_everything(&unit), foreign);
        assert!(unit.list().is_err() && unit.stat().is_err());
    }
    assert_eq!(simulation.disk.operations(), operations);
    let taken = FolderUnit::create(&world, path(), other_cluster, other_unit).map(|_| ());
    assert!(matches!(taken, Err(UnitError::Foreign { .. })), "{taken:?}");
}

#[test]
fn a_folder_with_other_files_is_not_made_into_a_unit() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    world.disk.create_directory(path()).expect("made");
    let thesis = path().join("thesis.tex");
    world.disk.open(&thesis, OpenMode::CreateNew).expect("made");
    let refused = FolderUnit::create(&world, path(), cluster(), unit_id()).map(|_| ());
    let refused = refused.expect_err("not empty").to_string();
    assert!(refused.contains("thesis.tex"), "{refused}");
    world.disk.remove(&thesis).expect("removed");
    world
        .disk
        .create_directory(&path().join("lost+found"))
        .expect("made");
    create(&world);
    create(&world)
        .probe()
        .expect("making it again changes nothing");
}

#[test]
fn a_copied_folder_is_recognised_by_its_id() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    create(&world);
    let copy = Path::new("/copy");
    world.disk.create_directory(copy).expect("made");
    copy_file(&world, "scree-unit.toml", copy, |text| text);
    let marker = FolderUnit::identify(&world, copy).expect("a marker");
    assert_eq!((marker.cluster, marker.unit), (cluster(), unit_id()));
}

#[test]
fn what_the_system_said_of_a_unit_that_is_away_is_kept_as_its_cause() {
    use std::error::Error as _;
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world());
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    simulation
        .disk
        .inject(&path().join("segments"), Fault::Missing);
    let error = unit.list().expect_err("it is away");
    assert!(matches!(error, UnitError::Away { .. }), "{error}");
    let cause = error.source().expect("a cause").to_string();
    assert!(cause.contains("No such file"), "{cause}");
    assert!(!error.to_string().contains(&cause), "said once: {error}");
}

/// Each segment that was touched kept its file open, whatever the process may.
#[test]
fn a_unit_gives_up_what_it_keeps_open_when_no_more_can_be_opened() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world()).with_open_segments(100);
    simulation.disk.set_open_files_max(6);
    for number in 0..40 {
        put(&unit, segment(number), SLOT_BYTES, 0, 4).expect("put");
        unit.sync(&[segment(number)]).expect("synced");
    }
    for number in (0..40).rev() {
        read(&unit, segment(number), SLOT_BYTES, 0, 4).expect("read");
        unit.free(segment(number), &[Slot(1)], false)
            .expect("freed");
    }
    unit.probe().expect("well");
    assert_eq!(unit.list().expect("listed").len(), 40);
}

/// What a destage that failed had put kept its files open until it was freed,
/// and so made the next destage fail too.
#[test]
fn segments_that_nobody_syncs_do_not_use_up_the_descriptors() {
    let mut simulation = Simulation::new(1);
    let unit = create(&simulation.world()).with_open_segments(3);
    simulation.disk.set_open_files_max(8);
    for number in 0..40 {
        put(&unit, segment(number), SLOT_BYTES, 0, 4).expect("put");
    }
    for number in 0..40 {
        put(&unit, segment(number), SLOT_BYTES, 4, 4).expect("appended");
    }
    let all: Vec<_> = (0..40).map(segment).collect();
    unit.sync(&all).expect("synced");
    simulation.crash();
    let unit = open(&simulation.world());
    for number in 0..40 {
        read(&unit, segment(number), SLOT_BYTES, 0, 8).expect("kept");
    }
}

#[test]
fn a_write_that_an_early_sync_lost_is_told_to_whoever_syncs() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world()).with_open_segments(1);
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    simulation.disk.inject(path(), Fault::SyncFails);
    put(&unit, segment(2), SLOT_BYTES, 0, 4).expect("put; the other is lost");
    simulation.disk.heal(path());
    assert!(unit.sync(&[segment(1)]).is_err(), "forgotten, not saved");
    unit.sync(&[segment(2)]).expect("this one is well");
}

#[test]
fn a_unit_keeps_no_more_open_than_its_process_may() {
    let simulation = Simulation::new(1);
    simulation.disk.set_open_files_max(256);
    let unit = create(&simulation.world());
    for number in 0..200 {
        put(&unit, segment(number), SLOT_BYTES, 0, 1).expect("put");
        unit.sync(&[segment(number)]).expect("synced");
    }
    let open = (0..200).filter(|number| unit.cache.get(segment(*number)).is_some());
    let open = open.count();
    assert!((1..=64).contains(&open), "{open}");
}

#[test]
fn a_unit_of_a_newer_format_is_not_touched() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    create(&world);
    world
        .disk
        .create_directory(Path::new("/new"))
        .expect("made");
    let newer = |text: String| text.replace("format = 1", "format = 2");
    copy_file(&world, "scree-unit.toml", Path::new("/new"), newer);
    let unit = FolderUnit::open(&world, Path::new("/new"), cluster(), unit_id());
    assert_all(change_everything(&unit), |error| {
        matches!(
            error,
            UnitError::Newer {
                found: 2,
                known: 1,
                ..
            }
        )
    });
}

/// A sync of `segments/` may take long; what asks for the list of folders
/// known to be durable, as a probe does, must not wait for it.
#[test]
fn no_lock_is_held_while_a_folder_is_synced() {
    let simulation = Simulation::new(1);
    let mut world = simulation.world();
    let watched = Arc::new(Watched {
        disk: Arc::clone(&world.disk),
        unit: Arc::default(),
        syncs: Arc::default(),
    });
    world.disk = Arc::clone(&watched) as _;
    let unit = Arc::new(create(&world));
    watched.unit.set(Arc::downgrade(&unit)).expect("once");
    put(&*unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    assert_eq!(watched.syncs.load(Ordering::Relaxed), 2);
    assert_eq!(lock(&unit.durable_folders).known.len(), 1);
    put(&*unit, segment(2), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(2)]).expect("synced");
    assert_eq!(watched.syncs.load(Ordering::Relaxed), 3, "known by now");
}

/// A disk that looks at a unit while it syncs a folder.
struct Watched {
    disk: Arc<dyn Disk>,
    unit: Arc<OnceLock<Weak<FolderUnit>>>,
    syncs: Arc<AtomicU32>,
}

impl Disk for Watched {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.disk.open(path, mode)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.disk.list(folder)
    }
    fn create_directory(&self, folder: &Path) -> io::Result<()> {
        self.disk.create_directory(folder)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn sync_directory(&self, folder: &Path) -> io::Result<()> {
        if let Some(unit) = self.unit.get().and_then(Weak::upgrade) {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            assert!(unit.durable_folders.try_lock().is_ok());
        }
        self.disk.sync_directory(folder)
    }
    fn within(&self, folder: &Path) -> Arc<dyn Disk> {
        Arc::new(Self {
            disk: self.disk.within(folder),
            unit: Arc::clone(&self.unit),
            syncs: Arc::clone(&self.syncs),
        })
    }
    fn space(&self, folder: &Path) -> io::Result<Space> {
        self.disk.space(folder)
    }
}

fn copy_file(world: &World, name: &str, to: &Path, edit: impl Fn(String) -> String) {
    let from = world.disk.open(&path().join(name), OpenMode::Read);
    let from = from.expect("there");
    let mut text = vec![0; from.length().expect("open") as usize];
    from.read_at(&mut text, 0).expect("read");
    let text = edit(String::from_utf8(text).expect("text"));
    let copy = world.disk.open(&to.join(name), OpenMode::CreateNew);
    copy.expect("new")
        .write_at(text.as_bytes(), 0)
        .expect("written");
}

/// Linux reports a lost write once and then forgets it: a sync that is tried
/// again says that all is well.
#[test]
fn a_segment_that_lost_a_write_is_never_called_durable() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world()).with_open_segments(1);
    for id in [segment(1), segment(2)] {
        put(&unit, id, SLOT_BYTES, 0, 4).expect("put");
    }
    simulation.disk.inject(path(), Fault::SyncFails);
    assert!(unit.sync(&[segment(1)]).is_err());
    simulation.disk.heal(path());
    for _ in 0..2 {
        assert!(unit.sync(&[segment(1)]).is_err(), "forgotten, not saved");
        assert!(put(&unit, segment(1), SLOT_BYTES, 4, 1).is_err());
        unit.sync(&[segment(2)]).expect("another one is well");
        put(
            &unit,
            segment(2),
            SLOT_BYTES,
            unit.stat_segment(segment(2)).expect("there").slots as u16,
            1,
        )
        .expect("appended");
    }
    unit.delete(segment(1)).expect("given up");
    put(&unit, segment(3), SLOT_BYTES, 0, 1).expect("the unit works");
    unit.sync(&[segment(3)]).expect("the unit works");
}

/// A free whose sync failed was tried again, found its marks in the page
/// cache, and synced: which saved nothing, for Linux takes what it lost for
/// written. After a crash the slots were held again, by nobody.
#[test]
fn a_free_that_is_tried_again_after_a_failed_sync_survives_a_crash() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(seed);
        let unit = create(&simulation.world());
        put(&unit, segment(1), SLOT_BYTES, 0, 8).expect("put");
        unit.sync(&[segment(1)]).expect("synced");
        drop(unit);
        simulation.kill();
        let unit = open(&simulation.world());
        simulation.disk.inject(path(), Fault::SyncFails);
        assert!(unit.free(segment(1), &[Slot(2), Slot(5)], true).is_err());
        simulation.disk.heal(path());
        unit.free(segment(1), &[Slot(2), Slot(5)], true)
            .expect("the unit is well again");
        simulation.crash();
        let stat = open(&simulation.world()).stat_segment(segment(1));
        assert_eq!(stat.expect("there").freed, 2, "seed {seed}");
    }
}

/// A segment that was not listed came back with the next power failure: its
/// name had been removed, and nobody had synced that.
#[test]
fn a_segment_that_is_not_listed_stays_away_after_a_crash() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(seed);
        let unit = create(&simulation.world());
        put(&unit, segment(1), SLOT_BYTES, 0, 8).expect("put");
        unit.sync(&[segment(1)]).expect("synced");
        simulation.disk.inject(path(), Fault::SyncFails);
        assert!(unit.delete(segment(1)).is_err());
        assert!(
            unit.list_serials(0..16).is_err(),
            "it cannot promise that now"
        );
        simulation.disk.heal(path());
        drop(unit);
        simulation.kill();
        let unit = open(&simulation.world());
        assert_eq!(unit.list_serials(0..16).expect("listed"), []);
        simulation.crash();
        let unit = open(&simulation.world());
        assert_eq!(unit.list().expect("listed"), [], "seed {seed}");
    }
}

#[test]
fn an_unreadable_segment_is_an_io_error_that_names_it() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world());
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    simulation
        .disk
        .inject(&path().join("segments"), Fault::Unreadable);
    let error = read(&unit, segment(1), SLOT_BYTES, 0, 1).expect_err("EIO");
    assert!(matches!(error, UnitError::Io { .. }), "{error}");
    assert!(
        error.to_string().contains(&segment(1).to_string()),
        "{error}"
    );
}

#[test]
fn counting_on_a_slow_unit_stops_in_time_and_goes_on_with_the_next_call() {
    /// Lets the clock follow the disk: each look takes 5 ms.
    struct SlowDisk(Simulation);
    impl world::Clock for SlowDisk {
        fn monotonic(&self) -> Duration {
            self.0.clock.advance(self.0.disk.take_waited());
            self.0.clock.monotonic()
        }
        fn wall(&self) -> world::Millis {
            self.0.clock.wall()
        }
    }
    let simulation = Simulation::new(1);
    let mut world = simulation.world();
    let unit = create(&world);
    for number in 0..300 {
        put(&unit, segment(number * 16), SLOT_BYTES, 0, 1).expect("put");
    }
    simulation
        .disk
        .inject(path(), Fault::Slow(Duration::from_millis(5)));
    world.clock = Arc::new(SlowDisk(simulation));
    let unit = open(&world);
    let (mut calls, mut segments) = (0, 0);
    while segments < 300 {
        let before = world.clock.monotonic();
        let stat = unit.stat().expect("there");
        assert!(world.clock.monotonic() - before < Duration::from_secs(1));
        assert!(stat.segments >= segments);
        segments = stat.segments;
        calls += 1;
        assert!(calls < 100);
    }
    assert!(calls > 3, "{calls}");
}
