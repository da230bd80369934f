//! Members that say what is not so, beside others that do not.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{LineageTag, Slot};
use unit::Put;
use unit::Unit as _;

use super::tests::{LINEAGE_TAG, Rig, SLOT_BYTES, Steps, all_committed, copyset, segment, tag};
use super::*;
use crate::catalog::MemberState::{self, Draining, InSync, Rebuilding};

/// Puts slots with content that is not theirs, and checksums that are right.
fn falsify(rig: &Rig, unit: usize, serial: u64, lineage_tag: LineageTag, slots: Range<u16>) {
    let tags: Vec<_> = slots.clone().map(|slot| tag(serial, slot)).collect();
    let data = vec![0xaa; slots.len() * SLOT_BYTES as usize];
    let unit = &rig.units[unit];
    unit.put(Put {
        lineage_tag,
        segment: segment(serial),
        slot_bytes: SLOT_BYTES,
        first: Slot(slots.start),
        tags: &tags,
        data: &data,
    })
    .and_then(|()| unit.sync(&[segment(serial)]))
    .expect("put");
}

/// The units as members at these places, in these states.
fn members(rig: &Rig, of: &[(u8, MemberState)]) -> Vec<RepairMember> {
    let states: Vec<MemberState> = of.iter().map(|(_, state)| *state).collect();
    let mut members = rig.members(&states);
    for (member, (place, _)) in members.iter_mut().zip(of) {
        member.place = *place;
    }
    members
}

fn once(rig: &Rig, of: &[(u8, MemberState)], pace: &dyn Pace) -> PassReport {
    let members = members(rig, of);
    let found = Task::new(copyset()).pass(None, &members, &all_committed(), Depth::Rebuild, pace);
    found.expect("nobody stops it")
}

/// The good copy was drained, and its successor got what the other member had.
#[test]
fn a_drain_puts_what_was_at_the_place_and_not_what_another_has() {
    let rig = Rig::new(3);
    rig.put(0, 1, 0..10);
    falsify(&rig, 1, 1, LineageTag(u64::MAX), 0..10);
    let of = [(0, Draining), (1, InSync), (0, Rebuilding)];
    let found = once(&rig, &of, &Steps::endless());
    assert_eq!(found.problems, [].into());
    // With its line, too.
    assert_eq!(rig.kept(2, 1), (0..10).collect::<Vec<_>>());
}

#[test]
fn what_two_members_have_differently_is_told_and_makes_nobody_whole() {
    let rig = Rig::new(4);
    rig.put(0, 1, 0..10);
    rig.put(1, 1, 0..4);
    falsify(&rig, 1, 1, LINEAGE_TAG, 4..10);
    let of = [(0, InSync), (1, InSync), (2, Rebuilding)];
    let found = once(&rig, &of, &Steps::endless());
    assert!(!found.in_sync.contains(&members(&rig, &of)[2].id));
    assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
    assert_eq!(rig.kept(2, 1), [] as [u16; 0]);
    // Two have the same.
    rig.put(3, 1, 0..10);
    let of = [(0, InSync), (1, InSync), (2, Rebuilding), (3, InSync)];
    let found = once(&rig, &of, &Steps::endless());
    assert_eq!(found.problems, [].into());
    assert_eq!(rig.kept(2, 1), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_lineage_tag_that_two_copies_disagree_on_is_not_believed() {
    let rig = Rig::new(3);
    rig.put(0, 1, 0..4);
    falsify(&rig, 1, 1, LineageTag(LINEAGE_TAG.0 + 1), 0..4);
    let of = [(0, InSync), (1, InSync), (2, Rebuilding)];
    let found = once(&rig, &of, &Steps::endless());
    assert_eq!((found.problems.len(), found.copied_bytes), (1, 0));
    assert_eq!(rig.kept(2, 1), [] as [u16; 0]);
}

/// When it is looked again at where it was copied from, one has freed most, or has
/// nothing of it: what was brought of the other one stays.
#[test]
fn one_member_that_takes_back_what_it_had_costs_nobody_a_copy() {
    struct TakesBack<'a> {
        rig: &'a Rig,
        left: AtomicU64,
        deletes: bool,
    }
    impl Pace for TakesBack<'_> {
        fn step(&self, _: u64) -> Result<(), Stopped> {
            if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
                let most: Vec<Slot> = (0..9).map(Slot).collect();
                let unit = &self.rig.units[0];
                match self.deletes {
                    true => unit.delete(segment(1)),
                    false => unit.free(segment(1), &most, false),
                }
                .expect("gone");
            }
            Ok(())
        }
        fn compared(&self, _: u64, _: u64) {}
    }
    for case in 0..80 {
        let (deletes, steps) = (case % 2 == 0, case / 2);
        let rig = Rig::new(4);
        for unit in 0..2 {
            rig.put(unit, 1, 0..10);
        }
        let pace = TakesBack {
            rig: &rig,
            left: AtomicU64::new(steps),
            deletes,
        };
        let of = [(0, InSync), (1, Draining), (1, Rebuilding)];
        once(&rig, &of, &pace);
        for _ in 0..2 {
            once(&rig, &of, &Steps::endless());
        }
        assert_eq!(rig.kept(2, 1), (0..10).collect::<Vec<_>>(), "{steps}");
    }
}
