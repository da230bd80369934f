//! Files that cannot be read, and content that is not what was put.

use std::path::PathBuf;

use base::{Slot, UnitId};
use testkit::units::InjectedFaults;
use unit::Unit as _;
use world::simulated::Fault;

use super::tests::{Rig, SLOT_BYTES, Steps, all_committed, copyset, path, segment};
use super::*;
use crate::catalog::MemberState::{Draining, InSync, Rebuilding};

/// One file of a member cannot be read, or not be written: the pass goes on with the
/// rest, and if another one has what is there, with that too.
#[test]
fn one_bad_file_takes_no_member_out_of_the_pass() {
    let rig_with = |fault: Fault, bad: usize| {
        let rig = Rig::new(3);
        for serial in 1..4 {
            rig.put(0, serial, 0..6);
            rig.put(1, serial, 0..6);
            rig.put(2, serial, 0..2);
        }
        let name = segment(2).to_string();
        let files = rig.simulation.disk.files_under(&path(bad).join("segments"));
        let (file, _) = files
            .into_iter()
            .find(|(file, _)| file.ends_with(&name))
            .expect("it has it");
        rig.simulation.disk.inject(&file, fault);
        (rig, file)
    };
    let all: Vec<u16> = (0..6).collect();
    // Of the one that is read from.
    let (rig, file) = rig_with(Fault::Broken, 0);
    let members = |rig: &Rig| {
        let mut members = rig.members(&[InSync, Draining, Rebuilding]);
        members.remove(1);
        members
    };
    let repair = |rig: &Rig| {
        let pace = Steps::endless();
        let found =
            Task::new(copyset()).pass(None, &members(rig), &all_committed(), Depth::Rebuild, &pace);
        found.expect("nobody stops it")
    };
    let found = repair(&rig);
    assert_eq!(found.in_sync, [], "it lacks some of one");
    assert!(!found.problems.is_empty());
    let (first, second, third) = (rig.kept(2, 1), rig.kept(2, 2), rig.kept(2, 3));
    assert_eq!(
        (first, second, third),
        (all.clone(), vec![0, 1], all.clone())
    );
    rig.simulation.disk.heal(&file);
    repair(&rig);
    assert_eq!(repair(&rig).in_sync.len(), 2);
    assert_eq!(rig.kept(2, 2), all);
    // Another one has it.
    let (rig, _) = rig_with(Fault::Unreadable, 0);
    for _ in 0..2 {
        rig.pass(
            &[InSync, InSync, Rebuilding],
            &all_committed(),
            Depth::Rebuild,
        );
    }
    assert_eq!(rig.kept(2, 2), all);
    // Of the one that is filled.
    let (rig, file) = rig_with(Fault::Broken, 2);
    repair(&rig);
    let found = repair(&rig);
    assert_eq!(found.in_sync, [UnitId::from_u128(0)]);
    assert_eq!((rig.kept(2, 1), rig.kept(2, 3)), (all.clone(), all.clone()));
    rig.simulation.disk.heal(&file);
    repair(&rig);
    assert_eq!(repair(&rig).in_sync.len(), 2);
}

/// The file of a segment on a unit.
fn file_of(rig: &Rig, unit: usize) -> PathBuf {
    let files = rig
        .simulation
        .disk
        .files_under(&path(unit).join("segments"));
    assert_eq!(files.len(), 1, "one segment");
    files[0].0.clone()
}

#[test]
fn what_has_rotted_comes_back_from_another_copy() {
    let mut rig = Rig::new(2);
    for unit in 0..2 {
        rig.put(unit, 1, 0..10);
    }
    let file = file_of(&rig, 1);
    let length = rig.units[1].stat_segment(segment(1)).expect("there").slots;
    let data_offset = {
        let files = rig.simulation.disk.files_under(&path(1).join("segments"));
        files[0].1 - u64::from(length) * u64::from(SLOT_BYTES)
    };
    let rotten = data_offset + 4 * u64::from(SLOT_BYTES) + 9;
    rig.simulation
        .disk
        .flip_bit(&file, rotten, 3)
        .expect("flipped");
    rig.crash();
    assert_eq!(rig.units[1].scrub(segment(1)).expect("read"), [Slot(4)]);
    let states = [InSync, InSync];
    assert_eq!(
        rig.repair(&states, Depth::Compare),
        [0, 1].into(),
        "not seen"
    );
    assert_eq!(rig.repair(&states, Depth::Scrub), [0, 1].into());
    assert_eq!(rig.units[1].scrub(segment(1)).expect("read"), []);
    assert_eq!(rig.kept(1, 1), (0..10).collect::<Vec<_>>());
}

/// Rot is not copied, and where there is no other copy it stays, and is told.
#[test]
fn what_has_rotted_everywhere_is_told_and_stays() {
    let mut rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    let file = file_of(&rig, 0);
    let files = rig.simulation.disk.files_under(&path(0).join("segments"));
    let data_offset = files[0].1 - 10 * u64::from(SLOT_BYTES);
    rig.simulation
        .disk
        .flip_bit(&file, data_offset, 0)
        .expect("flipped");
    rig.crash();
    let found = rig.pass(&[InSync, Rebuilding], &all_committed(), Depth::Rebuild);
    assert_eq!((found.rotten, found.problems.len()), (1, 1));
    assert_eq!(found.in_sync, [UnitId::from_u128(0)]);
    assert_eq!(rig.kept(1, 1), [] as [u16; 0]);
    assert_eq!(
        rig.units[0].stat_segment(segment(1)).expect("there").slots,
        10
    );
}

/// A scrub found that nobody had it as it was put, told that once, and read all again and
/// again. Whoever has the rest of it is whole all the same.
#[test]
fn rot_without_another_copy_ends_a_scrub_and_is_counted() {
    let mut rig = Rig::new(2);
    for unit in 0..2 {
        rig.put(unit, 1, 0..10);
    }
    for unit in 0..2 {
        let file = file_of(&rig, unit);
        let files = rig
            .simulation
            .disk
            .files_under(&path(unit).join("segments"));
        let data_offset = files[0].1 - 10 * u64::from(SLOT_BYTES);
        let rotten = data_offset + 4 * u64::from(SLOT_BYTES);
        let disk = &rig.simulation.disk;
        disk.flip_bit(&file, rotten, 0).expect("flipped");
    }
    rig.crash();
    for (states, depth) in [
        ([InSync, InSync], Depth::Scrub),
        ([InSync, Rebuilding], Depth::Rebuild),
    ] {
        let found = rig.pass(&states, &all_committed(), depth);
        assert_eq!((found.rotten, found.is_complete), (1, true), "{found:?}");
        assert!(found.lacking.is_empty() && found.in_sync.len() == 2);
        assert!(!found.problems.is_empty(), "it is told");
    }
    // As long as somebody is away who may have it, it is not over.
    let away = InjectedFaults {
        is_missing: true,
        ..InjectedFaults::default()
    };
    rig.units[1].set(away);
    let found = rig.pass(&[InSync, InSync], &all_committed(), Depth::Scrub);
    assert!(!found.is_complete);
}

/// Nobody else keeps the rest of what has rotted in part: it is not given up for that.
#[test]
fn what_only_the_one_keeps_that_has_rotted_stays_when_it_is_put_anew() {
    let mut rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    rig.put(1, 1, 0..10);
    let file = file_of(&rig, 1);
    let files = rig.simulation.disk.files_under(&path(1).join("segments"));
    let data_offset = files[0].1 - 10 * u64::from(SLOT_BYTES);
    let rotten = data_offset + 4 * u64::from(SLOT_BYTES);
    let disk = &rig.simulation.disk;
    disk.flip_bit(&file, rotten, 0).expect("flipped");
    rig.crash();
    rig.free(0, 1, &[1, 2, 3, 9]);
    assert_eq!(
        rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
        [0, 1].into()
    );
    assert_eq!(rig.units[1].scrub(segment(1)).expect("read"), []);
    assert_eq!(rig.kept(1, 1), (0..10).collect::<Vec<_>>());
}

/// All that a unit holds was read each time it had been away for a moment.
#[test]
fn only_what_may_be_otherwise_than_it_was_put_is_read_of_a_filled_member() {
    let rig = Rig::new(2);
    for unit in 0..2 {
        for serial in 1..5 {
            rig.put(unit, serial, 0..8);
        }
    }
    for serial in [1, 3] {
        let name = segment(serial).to_string();
        let folder = path(1).join("segments");
        let files = rig.simulation.disk.files_under(&folder);
        let mut files = files.into_iter();
        let (file, end) = files.find(|(file, _)| file.ends_with(&name)).expect("it");
        let flipped = rig.simulation.disk.flip_bit(&file, end - 9, 3);
        flipped.expect("it is there");
    }
    let mut members = rig.members(&[InSync, Rebuilding]);
    members[1].suspect = SuspectUnit::Serials(vec![3..4, 9..u64::MAX]);
    let mut task = Task::new(copyset());
    let mut pass = |depth| {
        let passed = task.pass(None, &members, &all_committed(), depth, &Steps::endless());
        passed.expect("nobody stops it")
    };
    let found = pass(Depth::Rebuild);
    assert_eq!(found.lacking, [UnitId::from_u128(1)].into());
    let found = pass(Depth::Rebuild);
    assert_eq!(found.in_sync, [0, 1].map(UnitId::from_u128));
    let rotten = |serial| rig.units[1].scrub(segment(serial)).expect("read").len();
    assert_eq!([rotten(1), rotten(3)], [1, 0], "the first one was not read");
    let found = pass(Depth::Scrub);
    assert_eq!(found.lacking, [UnitId::from_u128(1)].into());
    assert_eq!(rotten(1), 0);
}
