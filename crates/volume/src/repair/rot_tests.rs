//! Unreadable files, and content that has rotted.

use std::path::PathBuf;

use base::{Slot, UnitId};
use catalog::MemberState::{Draining, InSync, Rebuilding};
use testkit::units::InjectedFaults;
use unit::Unit as _;
use world::simulated::Fault;

use super::tests::{Rig, SLOT_BYTES, Steps, all_committed, copyset, path, segment};
use super::*;

/// One file of a member cannot be read or written: the pass continues with the others, and
/// also restores that segment if another member has it.
#[test]
fn one_bad_file_excludes_no_member_from_the_pass() {
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
            .expect("the segment is there");
        rig.simulation.disk.inject(&file, fault);
        (rig, file)
    };
    let all: Vec<u16> = (0..6).collect();
    // A bad file of the source.
    let (rig, file) = rig_with(Fault::Broken, 0);
    let members = |rig: &Rig| {
        let mut members = rig.members(&[InSync, Draining, Rebuilding]);
        members.remove(1);
        members
    };
    let repair = |rig: &Rig| {
        let pace = Steps::endless();
        let found = CopysetRepair::new(copyset()).pass(
            None,
            &members(rig),
            &all_committed(),
            Depth::Rebuild,
            &pace,
        );
        found.expect("nothing stops it")
    };
    let found = repair(&rig);
    assert_eq!(
        found.in_sync,
        [],
        "the target is missing slots of one segment"
    );
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
    // Another member has the segment.
    let (rig, _) = rig_with(Fault::Unreadable, 0);
    for _ in 0..2 {
        rig.pass(
            &[InSync, InSync, Rebuilding],
            &all_committed(),
            Depth::Rebuild,
        );
    }
    assert_eq!(rig.kept(2, 2), all);
    // A bad file of the target.
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
fn rotten_slots_are_restored_from_another_copy() {
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
        "rot is not seen without a scrub"
    );
    assert_eq!(rig.repair(&states, Depth::Scrub), [0, 1].into());
    assert_eq!(rig.units[1].scrub(segment(1)).expect("read"), []);
    assert_eq!(rig.kept(1, 1), (0..10).collect::<Vec<_>>());
}

/// Rotten slots are not copied. Without an intact copy they stay and are reported.
#[test]
fn slots_that_have_rotted_on_all_members_are_reported_and_stay() {
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

/// A scrub that found rot without an intact copy was repeated without end. A member with
/// all intact slots is in sync all the same.
#[test]
fn rot_without_an_intact_copy_ends_a_scrub_and_is_counted() {
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
        assert!(found.incomplete.is_empty() && found.in_sync.len() == 2);
        assert!(!found.problems.is_empty(), "it is reported");
    }
    // While a member that may have it is unavailable, the scrub is not complete.
    let unavailable = InjectedFaults {
        is_missing: true,
        ..InjectedFaults::default()
    };
    rig.units[1].set(unavailable);
    let found = rig.pass(&[InSync, InSync], &all_committed(), Depth::Scrub);
    assert!(!found.is_complete);
}

/// A segment has rotted in part on the only member that keeps its other slots.
#[test]
fn a_rewrite_of_a_rotten_segment_keeps_slots_that_only_this_member_has() {
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

/// A whole unit was read each time it had been unavailable for a moment.
#[test]
fn only_suspect_segments_of_a_rebuilding_member_are_read() {
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
    let mut repair = CopysetRepair::new(copyset());
    let mut pass = |depth| {
        let passed = repair.pass(None, &members, &all_committed(), depth, &Steps::endless());
        passed.expect("nothing stops it")
    };
    let found = pass(Depth::Rebuild);
    assert_eq!(found.incomplete, [UnitId::from_u128(1)].into());
    let found = pass(Depth::Rebuild);
    assert_eq!(found.in_sync, [0, 1].map(UnitId::from_u128));
    let rotten = |serial| rig.units[1].scrub(segment(serial)).expect("read").len();
    assert_eq!([rotten(1), rotten(3)], [1, 0], "segment 1 was not read");
    let found = pass(Depth::Scrub);
    assert_eq!(found.incomplete, [UnitId::from_u128(1)].into());
    assert_eq!(rotten(1), 0);
}
