//! Restores on a folder in which something does not work. Each of these left a note by
//! which no daemon started any more.

use std::path::Path;
use std::time::Duration;

use testkit::units::conformance::{Generations, SLOT_BYTES, is_absent, read, replace, segment};
use unit::Unit as _;
use world::OpenMode;
use world::simulated::{Fault, Simulation};

use super::{
    DAY, all, free, freed_files, is_there, made, of, path_of, put_synced, replaced, run_for,
    settle, with_undelete,
};
use crate::tests::PATH;
use crate::{RestoreReport, SegmentFate};

#[test]
fn a_log_that_cannot_be_read_costs_only_what_it_names_and_only_until_the_next_walk() {
    let mut simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let ids = [1, 2, 3].map(|number| put_synced(&unit, number, 8));
    // A log an hour.
    for id in ids {
        free(&unit, id, [0, 1]);
        run_for(&simulation, &unit, Duration::from_secs(4000));
    }
    let logs = freed_files(&simulation, "log-");
    assert_eq!(logs.len(), 3);
    simulation.kill();
    simulation.disk.inject(&logs[1], Fault::Unreadable);
    let unit = with_undelete(&simulation.world());
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(restored.unreadable_logs, 1);
    assert!(!restored.is_complete());
    let fates: Vec<_> = restored.segments.iter().map(|one| one.segment).collect();
    assert_eq!(fates, [ids[0], ids[2]]);
    // It goes, since it may name what was brought back.
    assert!(!freed_files(&simulation, "log-").contains(&logs[1]));
    simulation.kill();
    let unit = with_undelete(&simulation.world());
    assert_eq!(
        unit.complete_restore().expect("through"),
        RestoreReport::default()
    );
    settle(&unit);
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, ids[1]), (SegmentFate::Present, 2, 0));
    assert!(restored.is_complete());
    for id in ids {
        read(&unit, id, SLOT_BYTES, 0, 8).expect("as it was put");
    }
}

#[test]
fn a_segment_that_fails_does_not_keep_the_others_from_being_brought_back() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let ids = [1, 2, 3, 4, 5].map(|number| put_synced(&unit, number, 8));
    let [bad, good, moved, other, unseen] = ids;
    for id in [bad, good] {
        free(&unit, id, [0, 1]);
    }
    unit.delete(moved).expect("deleted");
    unit.delete(other).expect("deleted");
    unit.delete(unseen).expect("deleted");
    settle(&unit);
    // What is in its place cannot be looked at.
    simulation
        .disk
        .inject(&path_of(&unit, unseen), Fault::Broken);
    let unmoved = freed_files(&simulation, &other.to_string()).remove(0);
    simulation.disk.inject(&path_of(&unit, bad), Fault::Broken);
    simulation.disk.inject(&unmoved, Fault::Unremovable);
    let unit = with_undelete(&simulation.world());
    let restored = unit
        .restore(&all(), false)
        .expect("restored, as far as it can be");
    assert_eq!(of(&restored, bad).0, SegmentFate::Failed);
    assert_eq!(of(&restored, good), (SegmentFate::Present, 2, 0));
    assert_eq!(of(&restored, moved), (SegmentFate::Restored, 0, 0));
    assert_eq!(of(&restored, other).0, SegmentFate::Failed);
    assert_eq!(of(&restored, unseen).0, SegmentFate::Failed);
    assert!(!restored.is_complete());
    assert_eq!(
        freed_files(&simulation, "restore").len(),
        0,
        "it is through"
    );
    // What was left can be had later.
    simulation.disk.heal(&path_of(&unit, bad));
    simulation.disk.heal(&unmoved);
    simulation.disk.heal(&path_of(&unit, unseen));
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, bad), (SegmentFate::Present, 2, 0));
    assert_eq!(of(&restored, unseen), (SegmentFate::Restored, 0, 0));
    assert_eq!(of(&restored, other), (SegmentFate::Restored, 0, 0));
    for id in ids {
        read(&unit, id, SLOT_BYTES, 0, 8).expect("as it was put");
    }
}

#[test]
fn what_cannot_be_put_back_leaves_in_its_place_what_is_there() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    replace(&unit, id, segment(9), Generations::new(Some(0), 1), 8).expect("replaced");
    settle(&unit);
    let old = freed_files(&simulation, &id.to_string()).remove(0);
    simulation.disk.inject(&old, Fault::Unremovable);
    let unit = with_undelete(&simulation.world());
    let restored = unit.restore(&replaced(), false).expect("reported");
    assert_eq!(of(&restored, id).0, SegmentFate::Failed);
    assert_eq!(unit.stat_segment(id).expect("there").generation, 1);
    simulation.disk.heal(&old);
    let restored = unit.restore(&replaced(), false).expect("restored");
    assert_eq!(of(&restored, id).0, SegmentFate::Reverted);
    read(&unit, id, SLOT_BYTES, 0, 8).expect("as it was put");
}

/// An attacker who deletes segments may also have filled the unit.
#[test]
fn a_unit_without_any_room_is_restored() {
    for free_bytes in [0, 4096, 8192, 16_384] {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let unit = made(&world);
        unit.probe().expect("room for now");
        let ids: Vec<_> = (0..6).map(|number| put_synced(&unit, number, 8)).collect();
        for id in &ids[..2] {
            free(&unit, *id, [0, 2]);
        }
        unit.delete(ids[2]).expect("deleted");
        replace(&unit, ids[3], segment(9), Generations::new(Some(0), 1), 8).expect("replaced");
        settle(&unit);
        let taken = super::room_taken(&world, &simulation);
        let capacity = taken + free_bytes;
        simulation.disk.set_capacity(Path::new(PATH), capacity);
        let unit = with_undelete(&simulation.world());
        let restored = unit.restore(&replaced(), false).expect("restored");
        assert!(restored.is_complete(), "{restored:?}");
        for id in &ids {
            read(&unit, *id, SLOT_BYTES, 0, 8).expect("as it was put");
        }
        assert_eq!(
            unit.restore(&replaced(), false).expect("again").segments,
            []
        );
        // No log names any more what was brought back.
        for id in &ids[..2] {
            free(&unit, *id, [0]);
        }
        run_for(&simulation, &unit, DAY / 2);
        let restored = unit.restore(&all(), true).expect("reported");
        assert_eq!(of(&restored, ids[0]), (SegmentFate::Present, 1, 0));
    }
}

#[test]
fn a_note_that_has_rotted_is_given_up_with_the_logs_and_nothing_is_lost() {
    for is_unreadable in [false, true] {
        let mut simulation = Simulation::new(1);
        let unit = made(&simulation.world());
        let [slots, whole] = [1, 2].map(|number| put_synced(&unit, number, 8));
        free(&unit, slots, [0, 1]);
        unit.delete(whole).expect("deleted");
        settle(&unit);
        simulation.kill();
        let world = simulation.world();
        let note = Path::new(PATH).join("freed/restore");
        let file = world.disk.open(&note, OpenMode::CreateNew).expect("made");
        file.write_at(b"since = \xff", 0).expect("written");
        if is_unreadable {
            simulation.disk.inject(&note, Fault::Unreadable);
        }
        let unit = with_undelete(&world);
        let ended = unit.complete_restore().expect("given up");
        simulation.disk.heal(&note);
        assert_eq!((ended.unreadable_logs, ended.segments.len()), (1, 0));
        assert_eq!(
            unit.complete_restore().expect("gone"),
            RestoreReport::default()
        );
        settle(&unit);
        let restored = unit.restore(&all(), false).expect("restored");
        assert_eq!(of(&restored, slots), (SegmentFate::Present, 2, 0));
        assert_eq!(of(&restored, whole), (SegmentFate::Restored, 0, 0));
        for id in [slots, whole] {
            read(&unit, id, SLOT_BYTES, 0, 8).expect("as it was put");
        }
    }
}

/// A daemon runs beside a restore that it could not end: what that brought back may be
/// named by a log, and freed once more.
#[test]
fn nothing_is_over_while_a_restore_is_not_through() {
    let mut simulation = Simulation::new(3);
    let unit = made(&simulation.world());
    let [slots, whole] = [1, 2].map(|number| put_synced(&unit, number, 8));
    free(&unit, slots, [0, 1]);
    unit.delete(whole).expect("deleted");
    settle(&unit);
    let freed = Path::new(PATH).join("freed");
    // All but the note: names in the folder cannot be made durable then.
    let unit = with_undelete(&simulation.world());
    let segments = Path::new(PATH).join("segments");
    simulation.disk.inject(&segments, Fault::SyncFails);
    unit.restore(&all(), false)
        .expect_err("it cannot be made durable");
    simulation.disk.heal(&segments);
    simulation.kill();
    assert!(freed_files(&simulation, "restore").contains(&freed.join("restore")));
    let unit = with_undelete(&simulation.world());
    free(&unit, slots, [0, 1]);
    run_for(&simulation, &unit, DAY * 3);
    let kept = unit.undelete_usage().expect("known");
    assert!(kept.bytes > 0, "{kept:?}");
    simulation.kill();
    let unit = with_undelete(&simulation.world());
    unit.complete_restore().expect("ended");
    read(&unit, slots, SLOT_BYTES, 0, 8).expect("it was freed before the restore, too");
    read(&unit, whole, SLOT_BYTES, 0, 8).expect("as it was put");
    run_for(&simulation, &unit, DAY * 3);
    assert_eq!(unit.undelete_usage().expect("known").bytes, 0);
}

/// Nothing could be deleted any more where one small file could not be read.
#[test]
fn an_unreadable_run_time_is_saved_again() {
    for fault in [Fault::Unreadable, Fault::Broken] {
        let mut simulation = Simulation::new(1);
        let unit = made(&simulation.world());
        let ids = [1, 2].map(|number| put_synced(&unit, number, 8));
        unit.delete(ids[0]).expect("deleted");
        run_for(&simulation, &unit, DAY / 2);
        simulation.kill();
        let run_time = Path::new(PATH).join("freed/run-time");
        simulation.disk.inject(&run_time, fault);
        let unit = with_undelete(&simulation.world());
        unit.delete(ids[1]).expect("deleted");
        assert!(is_absent(&read(&unit, ids[1], SLOT_BYTES, 0, 1)));
        assert_eq!(is_there(&unit, ids[1], 0..1), [false]);
        if fault == Fault::Unreadable {
            settle(&unit);
        }
        simulation.disk.heal(&run_time);
        let restored = unit.restore(&all(), true).expect("reported");
        assert_eq!(restored.segments.len(), 2);
    }
}

/// The administrator of the folder may plant the largest possible run time.
#[test]
fn impossible_run_times_are_passed_over() {
    let mut simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let ids = [1, 2].map(|number| put_synced(&unit, number, 8));
    unit.delete(ids[0]).expect("deleted");
    settle(&unit);
    simulation.kill();
    let world = simulation.world();
    for name in [
        "log-ffffffffffffffff".to_owned(),
        format!("{}.ffffffffffffffff.0000000000000000", ids[1]),
    ] {
        let path = Path::new(PATH).join("freed").join(name);
        let file = world.disk.open(&path, OpenMode::CreateNew).expect("made");
        file.write_at(&[1; 64], 0).expect("written");
    }
    let unit = with_undelete(&world);
    unit.delete(ids[1]).expect("deleted");
    let restored = unit.restore(&all(), false).expect("restored");
    for id in ids {
        assert_eq!(of(&restored, id), (SegmentFate::Restored, 0, 0));
    }
}
