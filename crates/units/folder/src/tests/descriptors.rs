//! What is kept open, and locked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base::Slot;
use testkit::units::conformance::{SLOT_BYTES, put, read, segment};
use unit::Unit as _;
use world::simulated::{Fault, Simulation};

use super::faults::path;
use super::watched::{Seen, Watched};
use super::{create, open};

/// Each segment that was used kept its file open, even beyond the limit of the process.
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
fn unsynced_segments_do_not_exhaust_the_descriptors() {
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
fn a_write_lost_by_an_early_sync_is_reported_by_the_next_sync() {
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
    let open = (0..200).filter(|number| unit.segments.cache.get(segment(*number)).is_some());
    let open = open.count();
    assert!((1..=64).contains(&open), "{open}");
}

/// A sync of `segments/` may take long; what asks for the list of folders
/// known to be durable, as a probe does, must not wait for it.
#[test]
fn no_lock_is_held_while_a_folder_is_synced() {
    let simulation = Simulation::new(1);
    let mut world = simulation.world();
    let syncs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&syncs);
    let watched = Watched::new(&world, move |unit, seen| {
        if let Seen::SyncFolder(_) = seen {
            count.fetch_add(1, Ordering::Relaxed);
            assert!(unit.segments.durable_folders.try_lock().is_some());
        }
    });
    world.disk = Arc::clone(&watched) as _;
    let unit = Arc::new(create(&world));
    watched.watch(&unit);
    put(&*unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    assert_eq!(syncs.load(Ordering::Relaxed), 2);
    assert_eq!(unit.segments.durable_folders.lock().known.len(), 1);
    put(&*unit, segment(2), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(2)]).expect("synced");
    assert_eq!(syncs.load(Ordering::Relaxed), 3, "known by now");
}
