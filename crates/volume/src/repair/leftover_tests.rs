//! Leftovers of interrupted puts, syncs and passes.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Slot, UnitId};
use catalog::MemberState::{InSync, Rebuilding};
use testkit::units::FaultyUnit;
use unit::Put;
use unit::Unit as _;
use world::OpenMode;
use world::simulated::Fault;

use super::tests::{
    LINEAGE_TAG, Rig, SLOT_BYTES, Steps, all_committed, content, copyset, path, segment, tag,
};
use super::*;

/// A put was carried out and reported as failed, or its sync failed. So the member was
/// rebuilt, was missing nothing, and counted as in sync. Then the power failed.
#[test]
fn a_member_in_sync_is_durable() {
    for (sync_fails, again) in [(false, false), (true, false), (true, true)] {
        let mut rig = Rig::new(2);
        rig.put(0, 1, 0..10);
        let tags: Vec<_> = (0..10).map(|slot| tag(1, slot)).collect();
        let data: Vec<u8> = (0..10).flat_map(|slot| content(1, slot)).collect();
        let unit = &rig.units[1];
        unit.put(Put {
            lineage_tag: LINEAGE_TAG,
            segment: segment(1),
            slot_bytes: SLOT_BYTES,
            first: Slot(0),
            tags: &tags,
            data: &data,
        })
        .expect("put");
        if sync_fails {
            rig.simulation.disk.inject(&path(1), Fault::SyncFails);
            unit.sync(&[segment(1)]).expect_err("it fails");
            if again {
                // The sync of the repeated put fails, too.
                let found = rig.pass(&[InSync, Rebuilding], &all_committed(), Depth::Rebuild);
                assert_eq!(found.in_sync, [UnitId::from_u128(0)]);
            }
            rig.simulation.disk.heal(&path(1));
        }
        assert_eq!(
            rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
            [0, 1].into()
        );
        rig.crash();
        assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
    }
}

/// Segments that are not suspect are not read, unless a pass of the same repair failed to
/// put them.
#[test]
fn slots_that_a_pass_put_in_part_are_made_durable_by_the_next() {
    let mut rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    let mut members = rig.members(&[InSync, Rebuilding]);
    members[1].suspect = SuspectUnit::Serials(Vec::new());
    let mut repair = CopysetRepair::new(copyset());
    let mut pass = || {
        let pace = Steps::endless();
        let found = repair.pass(None, &members, &all_committed(), Depth::Rebuild, &pace);
        found.expect("nothing stops it")
    };
    rig.simulation.disk.inject(&path(1), Fault::SyncFails);
    assert!(!pass().problems.is_empty());
    rig.simulation.disk.heal(&path(1));
    assert!((0..4).any(|_| pass().in_sync.len() == 2));
    rig.crash();
    assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
}

/// An interrupted repair has put slots on a member that counts as in sync.
#[test]
fn compared_slots_are_durable() {
    let mut rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    let tags: Vec<_> = (0..10).map(|slot| tag(1, slot)).collect();
    let data: Vec<u8> = (0..10).flat_map(|slot| content(1, slot)).collect();
    rig.units[1]
        .put(Put {
            lineage_tag: LINEAGE_TAG,
            segment: segment(1),
            slot_bytes: SLOT_BYTES,
            first: Slot(0),
            tags: &tags,
            data: &data,
        })
        .expect("put");
    rig.restart();
    assert_eq!(rig.repair(&[InSync, InSync], Depth::Compare), [0, 1].into());
    rig.crash();
    assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
}

/// A sync failed and the unit was restarted: the lost slots were still read from the page
/// cache, the next sync succeeded, and a power failure lost them.
#[test]
fn a_member_in_sync_is_durable_also_after_a_restart_of_its_unit() {
    for seed in 0..50 {
        let mut rig = Rig::of_seed(2, seed);
        rig.put(0, 1, 0..10);
        let tags: Vec<_> = (0..10).map(|slot| tag(1, slot)).collect();
        let data: Vec<u8> = (0..10).flat_map(|slot| content(1, slot)).collect();
        rig.simulation.disk.inject(&path(1), Fault::SyncFails);
        let put = rig.units[1].put(Put {
            lineage_tag: LINEAGE_TAG,
            segment: segment(1),
            slot_bytes: SLOT_BYTES,
            first: Slot(0),
            tags: &tags,
            data: &data,
        });
        put.and_then(|()| rig.units[1].sync(&[segment(1)]))
            .expect_err("it fails");
        rig.simulation.disk.heal(&path(1));
        rig.restart();
        let passes =
            (0..4).map(|_| rig.pass(&[InSync, Rebuilding], &all_committed(), Depth::Rebuild));
        let in_sync = passes.filter(|found| found.in_sync.len() == 2).count();
        assert!(in_sync > 0, "seed {seed}");
        rig.crash();
        assert_eq!(rig.kept(1, 1), rig.kept(0, 1), "seed {seed}");
    }
}

/// A unit on which every put creates a whole segment has the beginning of one.
#[test]
fn a_segment_that_cannot_be_appended_to_is_rewritten() {
    let rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    rig.put(1, 1, 0..4);
    let mut members = rig.members(&[InSync, Rebuilding]);
    let whole = FaultyUnit::new(Arc::clone(&members[1].unit), 1).taking_whole_segments();
    members[1].unit = Arc::new(whole);
    for _ in 0..2 {
        let pace = Steps::endless();
        let found = CopysetRepair::new(copyset()).pass(
            None,
            &members,
            &all_committed(),
            Depth::Rebuild,
            &pace,
        );
        assert_eq!(found.expect("nothing stops it").problems, BTreeSet::new());
    }
    assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
}

/// An interrupted put has left an empty file, which is no segment but has the name of one.
#[test]
fn an_empty_file_does_not_block_repair() {
    let rig = Rig::new(2);
    rig.put(0, 1, 0..4);
    rig.put(1, 1, 0..4);
    let files = rig.simulation.disk.files_under(&path(1).join("segments"));
    let (file, _) = files.first().expect("one");
    rig.units[1].delete(segment(1)).expect("deleted");
    let disk = rig.simulation.world().disk;
    disk.open(file, OpenMode::CreateNew).expect("made");
    assert_eq!(
        rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
        [0, 1].into()
    );
    assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
}

/// The power failed between the put of a slot that no member keeps and its free.
#[test]
fn an_empty_slot_that_a_crash_left_is_freed() {
    let rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    rig.free(0, 1, &[3]);
    let unit = &rig.units[1];
    let put = |slot: u16| {
        let (tag, data) = match slot {
            3 => ([0; 16], vec![0; SLOT_BYTES as usize]),
            slot => (tag(1, slot), content(1, slot)),
        };
        unit.put(Put {
            lineage_tag: LINEAGE_TAG,
            segment: segment(1),
            slot_bytes: SLOT_BYTES,
            first: Slot(slot),
            tags: &[tag],
            data: &data,
        })
    };
    (0..10).try_for_each(put).expect("put");
    assert_eq!(
        rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
        [0, 1].into()
    );
    let freed = unit.segment_slots(segment(1)).expect("there").freed;
    assert_eq!(freed, [Slot(3)]);
}
