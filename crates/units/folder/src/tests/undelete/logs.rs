//! The logs of what was freed, where they fail.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use testkit::units::conformance::{Generations, SLOT_BYTES, is_absent, read, replace};
use unit::Unit as _;
use world::OpenMode;
use world::simulated::{Fault, Simulation};

use super::{all, free, made, of, path_of, put_synced, settle, with_undelete};
use crate::SegmentFate;
use crate::reclaim::punch;
use crate::tests::PATH;
use crate::tests::watched::{Seen, Watched};

#[test]
fn what_a_log_has_lost_is_found_after_the_next_start() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut simulation = Simulation::new(seed);
        let unit = made(&simulation.world());
        let id = put_synced(&unit, 1, 8);
        let freed = Path::new(PATH).join("freed");
        free(&unit, id, [0]);
        settle(&unit);
        simulation.disk.inject(&freed, Fault::SyncFails);
        free(&unit, id, [1]);
        unit.reclaim().expect_err("it cannot be made durable");
        simulation.disk.heal(&freed);
        free(&unit, id, [2]);
        settle(&unit);
        simulation.crash();
        let unit = with_undelete(&simulation.world());
        let logged = unit.restore(&all(), true).expect("reported");
        lost += 3 - of(&logged, id).1;
        settle(&unit);
        let restored = unit.restore(&all(), false).expect("restored");
        assert_eq!(
            of(&restored, id),
            (SegmentFate::Present, 3, 0),
            "seed {seed}"
        );
        read(&unit, id, SLOT_BYTES, 0, 8).expect("as it was put");
    }
    assert!((1..20).contains(&lost), "{lost}");
}

#[test]
fn what_cannot_be_logged_is_free_and_logged_later() {
    let simulation = Simulation::new(3);
    let unit = made(&simulation.world());
    let [id, other] = [1, 2].map(|number| put_synced(&unit, number, 8));
    free(&unit, id, [0]);
    let freed = Path::new(PATH).join("freed");
    simulation.disk.inject(&freed, Fault::Broken);
    free(&unit, id, [1]);
    assert!(is_absent(&read(&unit, id, SLOT_BYTES, 1, 1)));
    unit.delete(other).expect_err("it cannot be kept");
    read(&unit, other, SLOT_BYTES, 0, 8).expect("it is there");
    unit.reclaim().expect_err("it cannot be logged");
    simulation.disk.heal(&freed);
    settle(&unit);
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::Present, 2, 0));
}

/// Punching other slots of the segment, which are not stored, removed it from the queue of
/// segments to log.
#[test]
fn slots_that_cannot_be_logged_are_logged_later_although_others_are_punched() {
    let simulation = Simulation::new(3);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    // The walk of the start is through.
    settle(&unit);
    free(&unit, id, [0, 1, 2]);
    // Of what is free there the one in its place has no content.
    replace(&unit, id, id, Generations::new(Some(0), 1), 8).expect("replaced");
    let freed = Path::new(PATH).join("freed");
    simulation.disk.inject(&freed, Fault::Broken);
    free(&unit, id, [5]);
    let file = simulation
        .world()
        .disk
        .open(&path_of(&unit, id), OpenMode::Read);
    let allocated = file.expect("there").allocated().expect("known");
    // A page of the header, one of the table, and five slots.
    assert_eq!(allocated, 7 * 4096, "the room of three is given back");
    simulation.disk.heal(&freed);
    settle(&unit);
    let restored = unit.restore(&all(), true).expect("reported");
    assert_eq!(of(&restored, id).1, 1);
}

/// Of two deletes at once one found that the names were being made durable, took that
/// for done, and was acknowledged: a power failure then left its segment nowhere.
#[test]
fn no_delete_is_done_while_another_one_makes_its_name_durable() {
    let simulation = Simulation::new(1);
    let mut world = simulation.world();
    let syncs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&syncs);
    let watched = Watched::new(&world, move |unit, seen| {
        if let Seen::SyncFolder(path) = seen
            && path == Path::new("freed")
        {
            count.fetch_add(1, Ordering::Relaxed);
            let store = unit.undelete.as_ref().expect("enabled");
            assert!(store.syncing_names.try_lock().is_none(), "others wait");
        }
    });
    world.disk = Arc::clone(&watched) as _;
    let unit = Arc::new(made(&world));
    watched.watch(&unit);
    for number in [1, 2] {
        let id = put_synced(&unit, number, 8);
        unit.delete(id).expect("deleted");
        assert_eq!(u64::from(syncs.load(Ordering::Relaxed)), number);
    }
}

/// The walk counted: as many slots as a log named of a segment that had been deleted
/// were taken for logged in the one that was put in its place.
#[test]
fn what_no_log_names_is_found_though_as_many_other_slots_are_named() {
    for is_of_another in [false, true] {
        let mut simulation = Simulation::new(3);
        let unit = made(&simulation.world());
        let id = put_synced(&unit, 1, 8);
        free(&unit, id, [0, 1, 2]);
        settle(&unit);
        if is_of_another {
            unit.delete(id).expect("deleted");
            put_synced(&unit, 1, 8);
        }
        let freed = Path::new(PATH).join("freed");
        simulation.disk.inject(&freed, Fault::Broken);
        free(&unit, id, [5]);
        simulation.kill();
        simulation.disk.heal(&freed);
        let unit = with_undelete(&simulation.world());
        if !is_of_another {
            // The log still names what was reclaimed since.
            let punched = unit
                .segments
                .read_table(id, OpenMode::Write)
                .expect("there");
            let punch = punch(&unit.segments, id, &*punched.file, &punched.table, &[0]);
            punch.expect("as a log is given back in part");
        }
        settle(&unit);
        let restored = unit.restore(&all(), true).expect("reported");
        match is_of_another {
            true => assert_eq!(of(&restored, id), (SegmentFate::Occupied, 1, 0)),
            false => assert_eq!(of(&restored, id), (SegmentFate::Present, 3, 1)),
        }
        // What was named before is not named once more.
        let kept = unit.undelete_usage().expect("known");
        // A record of one run takes 44 bytes; the file has two pages besides its slots.
        let aside = u64::from(is_of_another) * 10 * 4096;
        assert_eq!(kept.bytes, aside + 2 * 44 + 4 * 4096);
    }
}

#[test]
fn what_could_not_be_logged_is_logged_once_that_works_again() {
    let simulation = Simulation::new(3);
    let unit = made(&simulation.world());
    let [id, other] = [1, 2].map(|number| put_synced(&unit, number, 8));
    // The walk of the start is through.
    settle(&unit);
    let freed = Path::new(PATH).join("freed");
    simulation.disk.inject(&freed, Fault::Broken);
    free(&unit, id, [1]);
    for _ in 0..3 {
        let _ = unit.reclaim();
    }
    simulation.disk.heal(&freed);
    free(&unit, other, [2]);
    settle(&unit);
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::Present, 1, 0));
    assert_eq!(of(&restored, other), (SegmentFate::Present, 1, 0));
}
