//! Byzantine members: their reports or contents are false.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{LineageTag, Slot};
use catalog::MemberState::{self, Draining, InSync, Rebuilding};
use unit::Put;
use unit::Unit as _;

use super::tests::{LINEAGE_TAG, Rig, SLOT_BYTES, Steps, all_committed, copyset, segment, tag};
use super::*;

/// Puts slots with false content and valid checksums.
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
    let found =
        CopysetRepair::new(copyset()).pass(None, &members, &all_committed(), Depth::Rebuild, pace);
    found.expect("nothing stops it")
}

/// The good copy was drained, and its replacement received the content of the other
/// member.
#[test]
fn a_drain_copies_from_the_draining_member_and_not_from_another() {
    let rig = Rig::new(3);
    rig.put(0, 1, 0..10);
    falsify(&rig, 1, 1, LineageTag(u64::MAX), 0..10);
    let of = [(0, Draining), (1, InSync), (0, Rebuilding)];
    let found = once(&rig, &of, &Steps::endless());
    assert_eq!(found.problems, [].into());
    // The lineage tag is copied, too.
    assert_eq!(rig.kept(2, 1), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_disagreement_of_two_members_is_reported_and_puts_no_member_in_sync() {
    let rig = Rig::new(4);
    rig.put(0, 1, 0..10);
    rig.put(1, 1, 0..4);
    falsify(&rig, 1, 1, LINEAGE_TAG, 4..10);
    let of = [(0, InSync), (1, InSync), (2, Rebuilding)];
    let found = once(&rig, &of, &Steps::endless());
    assert!(!found.in_sync.contains(&members(&rig, &of)[2].id));
    assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
    assert_eq!(rig.kept(2, 1), [] as [u16; 0]);
    // Two of three agree.
    rig.put(3, 1, 0..10);
    let of = [(0, InSync), (1, InSync), (2, Rebuilding), (3, InSync)];
    let found = once(&rig, &of, &Steps::endless());
    assert_eq!(found.problems, [].into());
    assert_eq!(rig.kept(2, 1), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_lineage_tag_on_which_two_copies_disagree_is_not_trusted() {
    let rig = Rig::new(3);
    rig.put(0, 1, 0..4);
    falsify(&rig, 1, 1, LineageTag(LINEAGE_TAG.0 + 1), 0..4);
    let of = [(0, InSync), (1, InSync), (2, Rebuilding)];
    let found = once(&rig, &of, &Steps::endless());
    assert_eq!((found.problems.len(), found.copied_bytes), (1, 0));
    assert_eq!(rig.kept(2, 1), [] as [u16; 0]);
}

/// When the sources are verified after copying, one of them has freed most slots, or has
/// deleted the segment: the restored slots stay.
#[test]
fn a_source_that_frees_its_slots_during_a_copy_deletes_no_other_copy() {
    struct RevokingSource<'a> {
        rig: &'a Rig,
        left: AtomicU64,
        deletes: bool,
    }
    impl Pace for RevokingSource<'_> {
        fn step(&self, _: u64) -> Result<(), Stopped> {
            if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
                let most: Vec<Slot> = (0..9).map(Slot).collect();
                let unit = &self.rig.units[0];
                match self.deletes {
                    true => unit.delete(segment(1)),
                    false => unit.free(segment(1), &most, false),
                }
                .expect("deleted");
            }
            Ok(())
        }
        fn report_progress(&self, _: u64, _: u64) {}
    }
    for case in 0..80 {
        let (deletes, steps) = (case % 2 == 0, case / 2);
        let rig = Rig::new(4);
        for unit in 0..2 {
            rig.put(unit, 1, 0..10);
        }
        let pace = RevokingSource {
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
