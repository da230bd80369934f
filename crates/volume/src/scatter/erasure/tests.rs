//! Writes, losses, reads and reclaims, on folder units of a simulated disk.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{LineageTag, Slot, UnitId};
use catalog::{Copyset, DrainingMember, Leftovers, OpenSegment};
use unit::{Put, TrackedUnit, Unit as _, UnitError};
use world::simulated::Fault;

use super::rig::{
    Rig, SLOT_BYTES, copyset, create, folder, most, open, plain, rot, store, unit_id,
};
use super::{reclaim, reclaim_if};
use crate::clean::sweep;
use crate::scatter::{Layout, Piece, ReadError, Store, read_pieces};

#[test]
fn every_block_is_readable_with_as_many_units_missing_as_there_is_parity() {
    for (data, parity) in [(2, 1), (4, 2)] {
        let mut rig = Rig::new(data, parity);
        // Rows that are full, and some that are not.
        for count in [1, 37, 2, 64, 5, 300] {
            rig.put(count);
        }
        rig.check_with_losses(&BTreeSet::new());
    }
}

#[test]
fn padding_is_freed_before_it_is_committed() {
    let mut rig = Rig::new(4, 2);
    for count in [1, 6, 11] {
        rig.put(count);
    }
    let mut live = [0; 6];
    for segment in rig.segments() {
        let of_segment = rig.live(segment);
        live.iter_mut()
            .zip(of_segment)
            .for_each(|(all, own)| *all += own);
    }
    assert_eq!(
        live[..4].iter().sum::<u32>(),
        18,
        "the number of blocks put"
    );
    assert_eq!(live[4..], [6, 6], "one for each row");
}

#[test]
fn slots_lost_beyond_parity_are_reported_as_unavailable() {
    let mut rig = Rig::new(4, 2);
    rig.put(16);
    for place in [0, 3, 5] {
        rig.simulation.disk.inject(&folder(place), Fault::Missing);
    }
    let store = store(&rig.simulation, rig.erasure);
    let read = read_pieces(&store, &rig.keyring, SLOT_BYTES, &rig.pieces, &[]);
    for (piece, read) in rig.pieces.iter().zip(read) {
        let is_there = [1, 2].contains(&(piece.entry.location.slot().0 % 4));
        match read {
            Ok(_) => assert!(is_there),
            Err(error) => {
                assert!(
                    !is_there && matches!(error, ReadError::Unavailable { .. }),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn as_many_units_may_be_unavailable_during_a_put_as_there_is_parity() {
    let mut rig = Rig::new(4, 2);
    rig.put(40);
    assert!(rig.degraded().is_empty());
    for place in [1, 4] {
        rig.simulation.disk.inject(&folder(place), Fault::Missing);
    }
    rig.put(40);
    let degraded = rig.degraded();
    assert!(!degraded.is_empty(), "the ledger lists them");
    for place in [1, 4] {
        rig.simulation.disk.heal(&folder(place));
    }
    rig.check(&store(&rig.simulation, rig.erasure), &BTreeSet::new());
    // Nothing is appended to degraded segments.
    let before: Vec<Vec<u32>> = degraded.iter().map(|segment| rig.live(*segment)).collect();
    rig.store = store(&rig.simulation, rig.erasure);
    rig.put(40);
    let after: Vec<Vec<u32>> = degraded.iter().map(|segment| rig.live(*segment)).collect();
    assert_eq!(before, after);
    rig.check(&rig.store, &BTreeSet::new());
}

/// The first read is sent to the unresponsive unit, its hedge is not.
#[test]
fn a_hedged_read_recovers_slots_without_the_excluded_units() {
    let mut rig = Rig::new(4, 2);
    for count in [1, 37, 64] {
        rig.put(count);
    }
    let right = |read: Vec<Result<Vec<u8>, ReadError>>| {
        for (block, read) in read.into_iter().enumerate() {
            assert!(
                read.is_ok_and(|found| found == plain(block as u64)),
                "block {block}"
            );
        }
    };
    for exclude in [vec![0], vec![3], vec![5], vec![1, 2], vec![0, 4]] {
        let store = store(&rig.simulation, rig.erasure);
        let exclude: Vec<UnitId> = exclude.into_iter().map(unit_id).collect();
        let table = store.table();
        for piece in &rig.pieces {
            assert!(table.has_alternative(piece.entry.location, &exclude));
        }
        right(read_pieces(
            &store,
            &rig.keyring,
            SLOT_BYTES,
            &rig.pieces,
            &exclude,
        ));
        for member in table.members(copyset()) {
            let was_asked = member.unit.traffic().read_bytes > 0;
            assert!(!(was_asked && exclude.contains(&member.id)), "{exclude:?}");
        }
    }
    // Slots that cannot be recovered without the excluded units are read from them.
    let exclude: Vec<UnitId> = (0..3).map(unit_id).collect();
    let store = store(&rig.simulation, rig.erasure);
    let first = rig.pieces[0].entry.location;
    assert!(!store.table().has_alternative(first, &exclude));
    right(read_pieces(
        &store,
        &rig.keyring,
        SLOT_BYTES,
        &rig.pieces,
        &exclude,
    ));
}

/// Slots that were put while a unit was draining were read only from it and not from its
/// replacement: with one more unit unavailable, they could not be read.
#[test]
fn slots_put_during_a_drain_are_read_from_the_replacement() {
    let mut rig = Rig::new(2, 1);
    create(&rig.simulation, 50);
    let drained = |rig: &Rig| {
        let world = rig.simulation.world();
        let units = [0, 50, 2, 1].map(|unit| {
            let opened = TrackedUnit::new(
                Arc::new(open(&rig.simulation, unit)),
                Arc::clone(&world.clock),
            );
            (unit_id(unit), Arc::new(opened))
        });
        let set = Copyset {
            data: 2,
            rebuilding: vec![unit_id(50)],
            draining: vec![DrainingMember {
                place: 1,
                unit: unit_id(1),
            }],
            ..Copyset::of_copies(copyset(), [0, 50, 2].map(unit_id).to_vec())
        };
        let store = Store::new(Arc::clone(&world.pool));
        store.set_table(units.to_vec(), &[set]);
        store
    };
    rig.put(9);
    rig.store = drained(&rig);
    rig.put(40);
    rig.simulation.disk.inject(&folder(2), Fault::Missing);
    rig.check(&drained(&rig), &BTreeSet::new());
}

#[test]
fn a_rotten_slot_is_recovered_from_intact_ones() {
    let mut rig = Rig::new(4, 2);
    rig.put(64);
    let location = rig.pieces[9].entry.location;
    let (segment, slot) = (location.segment(), location.slot().0);
    let disk = &rig.simulation.disk;
    rot(disk, (slot % 4) as u8, segment, slot / 4);
    rig.check(&store(&rig.simulation, rig.erasure), &BTreeSet::new());
    // The first parity has rotted, too.
    rot(disk, 4, segment, slot / 4);
    rig.check(&store(&rig.simulation, rig.erasure), &BTreeSet::new());
}

#[test]
fn dead_slots_are_reclaimed_and_the_others_keep_their_parity() {
    for (data, parity) in [(2, 1), (4, 2)] {
        let mut rig = Rig::new(data, parity);
        rig.put(203);
        let dead = most(203);
        for segment in rig.segments() {
            let (slots, before) = (rig.slots(segment, &dead), rig.live(segment));
            for _ in 0..2 {
                let table = rig.store.table();
                let is_deleted = reclaim(table.members(copyset()), rig.erasure, segment, &slots);
                assert!(!is_deleted.expect("all are there"), "some slots are alive");
            }
            let k = usize::from(data);
            let all = |live: &[u32]| live[..k].iter().sum::<u32>();
            let after = rig.live(segment);
            assert_eq!(all(&after), all(&before) - slots.len() as u32);
        }
        rig.check_with_losses(&dead);
    }
}

/// Two leases swept the same leftovers, one after the other. Between them the dead slots of
/// the segment were reclaimed, and the second sweep took the slot with the parity's masks
/// for an uncommitted one. From then on nothing was recovered from that parity, freed there
/// or repaired.
#[test]
fn a_second_sweep_keeps_the_masks_of_the_parity() {
    let mut rig = Rig::new(2, 2);
    rig.put(203);
    let dead = most(203);
    let all: BTreeSet<usize> = (0..203).collect();
    let rows = |segment| {
        let rows = rig.slots(segment, &all).into_iter().map(|slot| slot.0 / 2);
        u32::from(rows.max().expect("some") + 1)
    };
    let segments = rig.segments().into_iter();
    let leftovers = Leftovers {
        open_segments: segments
            .map(|segment| OpenSegment {
                segment,
                slots: rows(segment) * 2,
            })
            .collect(),
        serials: Vec::new(),
    };
    sweep(&rig.store, &leftovers).expect("all are there");
    let reclaim = |dead: &BTreeSet<usize>, is_deleted: bool| {
        for segment in rig.segments() {
            let (table, slots) = (rig.store.table(), rig.slots(segment, dead));
            let deleted = reclaim(table.members(copyset()), rig.erasure, segment, &slots);
            assert_eq!(deleted.expect("all are there"), is_deleted);
        }
    };
    reclaim(&dead, false);
    sweep(&rig.store, &leftovers).expect("all are there");
    rig.check_with_losses(&dead);
    reclaim(&all, true);
}

#[test]
fn a_few_dead_slots_wait_and_a_dead_segment_is_deleted() {
    let mut rig = Rig::new(4, 2);
    rig.put(101);
    let few: BTreeSet<usize> = (0..20).collect();
    let all: BTreeSet<usize> = (0..101).collect();
    for segment in rig.segments() {
        let table = rig.store.table();
        let members = table.members(copyset());
        let before = rig.live(segment);
        let slots = rig.slots(segment, &few);
        assert!(!reclaim(members, rig.erasure, segment, &slots).expect("all are there"));
        assert_eq!(rig.live(segment), before, "they wait");
        let slots = rig.slots(segment, &all);
        assert!(reclaim(members, rig.erasure, segment, &slots).expect("reclaimed"));
        for member in members {
            assert!(!member.unit.list().expect("there").contains(&segment));
        }
        assert!(reclaim(members, rig.erasure, segment, &slots).expect("nothing is left"));
    }
}

/// A repairer crashed between putting padding and freeing it.
#[test]
fn an_empty_slot_keeps_no_dead_segment_alive() {
    let mut rig = Rig::new(4, 2);
    rig.put(1);
    let segment = *rig.segments().first().expect("one");
    let home = Layout::new(Some(rig.erasure)).home(rig.pieces[0].entry.location.slot());
    let other = (home.member_index.expect("one member") + 1) % 4;
    let unit = open(&rig.simulation, other);
    unit.delete(segment).expect("deleted");
    let zeroes = [0; SLOT_BYTES as usize];
    let put = unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment,
        slot_bytes: SLOT_BYTES,
        first: Slot(0),
        tags: &[[0; 16]],
        data: &zeroes,
    });
    put.and_then(|()| unit.sync(&[segment])).expect("put");
    let table = rig.store.table();
    let slots = rig.slots(segment, &BTreeSet::from([0]));
    let is_deleted = reclaim(table.members(copyset()), rig.erasure, segment, &slots);
    assert!(is_deleted.expect("all are there"));
    assert_eq!(unit.list().expect("listed"), []);
}

/// A host freed slots with an outdated table: a unit that had become a member since, and
/// had been rebuilt, had parity that is made of them.
#[test]
fn nothing_is_freed_before_all_members_are_known() {
    for is_whole in [false, true] {
        let mut rig = Rig::new(2, 1);
        rig.put(64);
        let dead: BTreeSet<usize> = match is_whole {
            false => most(64),
            true => (0..64).collect(),
        };
        for segment in rig.segments() {
            let (slots, table) = (rig.slots(segment, &dead), rig.store.table());
            let (members, live) = (table.members(copyset()), rig.live(segment));
            let refused = reclaim_if(members, rig.erasure, segment, &slots, || false);
            assert!(
                matches!(refused, Err(UnitError::Missing { .. })),
                "{refused:?}"
            );
            assert_eq!(rig.live(segment)[..2], live[..2], "nothing was freed");
            reclaim(members, rig.erasure, segment, &slots).expect("all are known");
            assert!(rig.live(segment)[..2] < live[..2]);
        }
        rig.check_with_losses(&dead);
    }
}

/// A lease ended and left uncommitted rows. They were swept, and then the parity of the
/// other rows could not be recomputed.
#[test]
fn swept_rows_do_not_block_a_rewrite_of_the_parity() {
    let mut rig = Rig::new(2, 1);
    rig.put(40);
    let segment = *rig.segments().first().expect("one");
    let table = rig.store.table();
    for member in table.members(copyset()) {
        let rows = member.unit.stat_segment(segment).expect("there").slots as u16;
        let data = vec![7; 3 * SLOT_BYTES as usize];
        let put = member.unit.put(Put {
            lineage_tag: LineageTag::NONE,
            segment,
            slot_bytes: SLOT_BYTES,
            first: Slot(rows),
            tags: &[[7; 16]; 3],
            data: &data,
        });
        put.and_then(|()| member.unit.sync(&[segment]))
            .expect("put");
        let leftovers = [rows, rows + 1, rows + 2].map(Slot);
        member.unit.free(segment, &leftovers, false).expect("swept");
    }
    let dead = most(40);
    let slots = rig.slots(segment, &dead);
    for _ in 0..2 {
        reclaim(table.members(copyset()), rig.erasure, segment, &slots).expect("reclaimed");
    }
    assert_eq!(
        rig.live(segment)[..2].iter().sum::<u32>() as usize,
        40 - dead.len()
    );
    rig.check_with_losses(&dead);
}

/// A unit was unavailable when a segment was put, and all slots of the other data members
/// died: the segment was deleted, and with it slots that only parity had.
#[test]
fn slots_that_a_member_missed_stay_in_the_parity() {
    for (data, parity, missing) in [(2, 1, 1), (2, 2, 0), (4, 2, 2)] {
        let mut rig = Rig::new(data, parity);
        rig.simulation.disk.inject(&folder(missing), Fault::Missing);
        rig.put(2 * usize::from(data) * 5);
        rig.simulation.disk.heal(&folder(missing));
        let lives =
            |piece: &Piece| piece.entry.location.slot().0 % u16::from(data) == missing.into();
        let dead: BTreeSet<usize> = (0..rig.pieces.len())
            .filter(|block| !lives(&rig.pieces[*block]))
            .collect();
        let store = store(&rig.simulation, rig.erasure);
        let table = store.table();
        for segment in rig.segments() {
            let slots = rig.slots(segment, &dead);
            let is_deleted = reclaim(table.members(copyset()), rig.erasure, segment, &slots);
            assert!(!is_deleted.expect("all are there"), "some slots are alive");
        }
        rig.check(&store, &dead);
        let all: BTreeSet<usize> = (0..rig.pieces.len()).collect();
        for segment in rig.segments() {
            let slots = rig.slots(segment, &all);
            let is_deleted = reclaim(table.members(copyset()), rig.erasure, segment, &slots);
            assert!(is_deleted.expect("all are there"), "all slots are dead");
        }
    }
}

/// The power fails in every operation of deleting a dead segment; repeating it deletes the
/// rest.
#[test]
fn a_crash_during_the_deletion_of_a_dead_segment_leaves_nothing_for_ever() {
    let reclaim_all = |rig: &Rig, store: &Arc<Store>| {
        let all: BTreeSet<usize> = (0..rig.pieces.len()).collect();
        rig.segments().into_iter().try_for_each(|segment| {
            let slots = rig.slots(segment, &all);
            let table = store.table();
            reclaim(table.members(copyset()), rig.erasure, segment, &slots).map(drop)
        })
    };
    let filled = || {
        let mut rig = Rig::new(2, 1);
        rig.put(11);
        rig
    };
    let rig = filled();
    let before = rig.simulation.disk.operations();
    reclaim_all(&rig, &rig.store).expect("nothing fails");
    let operations = rig.simulation.disk.operations() - before;
    assert!(operations > 5, "{operations}");
    for number in 0..operations {
        let mut rig = filled();
        let disk = &rig.simulation.disk;
        disk.arm_crash(disk.operations() + number);
        reclaim_all(&rig, &rig.store).expect_err("the power fails");
        rig.simulation.crash();
        let store = store(&rig.simulation, rig.erasure);
        reclaim_all(&rig, &store).expect("again");
        for member in store.table().units() {
            let left = member.unit.list().expect("there");
            assert_eq!(left, [], "operation {number}");
        }
    }
}

/// The power fails in every operation of a reclaim. Live slots stay readable, also with as
/// many units missing as there is parity, and repeating the reclaim completes it.
#[test]
fn a_crash_during_a_reclaim_loses_nothing() {
    let dead = most(46);
    let filled = || {
        let mut rig = Rig::new(2, 1);
        rig.put(46);
        rig
    };
    let reclaim_all = |rig: &Rig, store: &Arc<Store>| {
        rig.segments().into_iter().try_for_each(|segment| {
            let slots = rig.slots(segment, &dead);
            reclaim(
                store.table().members(copyset()),
                rig.erasure,
                segment,
                &slots,
            )
            .map(|_| ())
        })
    };
    let operations = {
        let rig = filled();
        let before = rig.simulation.disk.operations();
        reclaim_all(&rig, &rig.store).expect("nothing fails");
        rig.simulation.disk.operations() - before
    };
    assert!(operations > 20, "{operations}");
    for number in 0..operations {
        let mut rig = filled();
        let disk = &rig.simulation.disk;
        disk.arm_crash(disk.operations() + number);
        reclaim_all(&rig, &rig.store).expect_err("the power fails");
        rig.simulation.crash();
        rig.check_with_losses(&dead);
        let store = store(&rig.simulation, rig.erasure);
        reclaim_all(&rig, &store).expect("again");
        rig.check_with_losses(&dead);
        let live: u32 = rig
            .segments()
            .into_iter()
            .map(|one| rig.live(one)[..2].iter().sum::<u32>())
            .sum();
        assert_eq!(live as usize, 46 - dead.len(), "operation {number}");
    }
}
