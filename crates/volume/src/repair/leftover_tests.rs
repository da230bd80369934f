//! What puts, syncs and passes leave that were cut short.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Slot, UnitId};
use testkit::units::FaultyUnit;
use unit::Put;
use unit::Unit as _;
use world::OpenMode;
use world::simulated::Fault;

use super::tests::{
    LINEAGE_TAG, Rig, SLOT_BYTES, Steps, all_committed, content, copyset, path, segment, tag,
};
use super::*;
use crate::catalog::MemberState::{InSync, Rebuilding};

/// A put was carried out and said to have failed, or its sync failed: so the member was
/// filled, had all, and was whole. Then the power failed.
#[test]
fn what_is_whole_is_durable() {
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
                // And so does the sync of what is put in its place.
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

/// What a member is known to have as it was put is not read; what a pass of the same task
/// has failed to put there is.
#[test]
fn what_a_pass_has_put_in_part_is_made_durable_by_the_next() {
    let mut rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    let mut members = rig.members(&[InSync, Rebuilding]);
    members[1].suspect = SuspectUnit::Serials(Vec::new());
    let mut task = Task::new(copyset());
    let mut pass = || {
        let pace = Steps::endless();
        let found = task.pass(None, &members, &all_committed(), Depth::Rebuild, &pace);
        found.expect("nobody stops it")
    };
    rig.simulation.disk.inject(&path(1), Fault::SyncFails);
    assert!(!pass().problems.is_empty());
    rig.simulation.disk.heal(&path(1));
    assert!((0..4).any(|_| pass().in_sync.len() == 2));
    rig.crash();
    assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
}

/// So is what a task that was broken off has put on a member that goes on to count.
#[test]
fn what_is_compared_is_durable() {
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

/// A sync failed, and then the unit was started anew: what it had lost was still read from
/// memory, its next sync said that all was well, and with the power it was gone.
#[test]
fn what_is_whole_is_durable_also_if_the_unit_was_started_anew() {
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
        let whole = passes.filter(|found| found.in_sync.len() == 2).count();
        assert!(whole > 0, "seed {seed}");
        rig.crash();
        assert_eq!(rig.kept(1, 1), rig.kept(0, 1), "seed {seed}");
    }
}

/// A unit to which every put makes a whole segment has the beginning of one.
#[test]
fn what_cannot_be_appended_to_is_put_anew() {
    let rig = Rig::new(2);
    rig.put(0, 1, 0..10);
    rig.put(1, 1, 0..4);
    let mut members = rig.members(&[InSync, Rebuilding]);
    let whole = FaultyUnit::new(Arc::clone(&members[1].unit), 1).taking_whole_segments();
    members[1].unit = Arc::new(whole);
    for _ in 0..2 {
        let pace = Steps::endless();
        let found =
            Task::new(copyset()).pass(None, &members, &all_committed(), Depth::Rebuild, &pace);
        assert_eq!(found.expect("nobody stops it").problems, BTreeSet::new());
    }
    assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
}

/// A put that was cut short has left a file without bytes, which is no segment, and in
/// the way of one.
#[test]
fn an_empty_file_is_in_nobodys_way() {
    let rig = Rig::new(2);
    rig.put(0, 1, 0..4);
    rig.put(1, 1, 0..4);
    let files = rig.simulation.disk.files_under(&path(1).join("segments"));
    let (file, _) = files.first().expect("one");
    rig.units[1].delete(segment(1)).expect("gone");
    let disk = rig.simulation.world().disk;
    disk.open(file, OpenMode::CreateNew).expect("made");
    assert_eq!(
        rig.repair(&[InSync, Rebuilding], Depth::Rebuild),
        [0, 1].into()
    );
    assert_eq!(rig.kept(1, 1), rig.kept(0, 1));
}

/// The power failed between the put of a slot that nobody keeps and its free.
#[test]
fn an_empty_slot_that_a_crash_has_left_is_freed() {
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
