//! Repair of copysets with parity, checked against the blocks that were written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{LineageTag, Slot};
use catalog::MemberState::{self, Draining, InSync, Rebuilding};
use unit::{Put, Read, SlotRun, Unit};
use world::simulated::Fault;

use super::tests::{Steps, all_committed};
use super::*;
use crate::scatter::erasure::reclaim;
use crate::scatter::erasure::rig::{
    Rig, copyset, create, folder, most, open, rot, store_of, unit_id,
};
use crate::scatter::{Layout, Member, Piece};

/// The number of the new unit.
pub(super) const NEW: u8 = 50;

/// Full rows and padding. If there `are_dead` blocks, half of them are reclaimed.
pub(super) fn filled(data: u8, parity: u8, are_dead: bool) -> (Rig, BTreeSet<usize>) {
    let mut rig = Rig::new(data, parity);
    for count in [1, 37, 2, 64, 99] {
        rig.put(count);
    }
    let mut dead = BTreeSet::new();
    if are_dead {
        dead = most(203);
        for segment in rig.segments() {
            let (slots, table) = (rig.slots(segment, &dead), rig.store.table());
            let is_deleted = reclaim(table.members(copyset()), rig.erasure, segment, &slots);
            assert!(!is_deleted.expect("all are there"), "some blocks are alive");
        }
    }
    create(&rig.simulation, NEW);
    (rig, dead)
}

/// The members, given by unit, place and state.
fn members(rig: &Rig, of: &[(u8, u8, MemberState)]) -> Vec<RepairMember> {
    let member = |(unit, place, state): &(u8, u8, MemberState)| RepairMember {
        id: unit_id(*unit),
        place: *place,
        state: *state,
        unit: Arc::new(open(&rig.simulation, *unit)) as Arc<dyn Unit>,
        suspect: SuspectUnit::All,
    };
    of.iter().map(member).collect()
}

/// All units at their places, in sync unless `change` gives another state.
pub(super) fn standing(rig: &Rig, change: &[(u8, MemberState)]) -> Vec<(u8, u8, MemberState)> {
    let state = |unit: u8| {
        let changed = change.iter().find(|(other, _)| *other == unit);
        changed.map_or(InSync, |(_, state)| *state)
    };
    let units = (0..).zip(&rig.units);
    units
        .map(|(place, unit)| (*unit, place, state(*unit)))
        .collect()
}

/// Runs one pass.
pub(super) fn once(rig: &Rig, of: &[(u8, u8, MemberState)], depth: Depth) -> PassReport {
    let members = members(rig, of);
    let (erasure, pace) = (Some(rig.erasure), Steps::endless());
    let found =
        CopysetRepair::new(copyset()).pass(erasure, &members, &all_committed(), depth, &pace);
    found.expect("nothing stops it")
}

/// Runs passes until one finds nothing to restore, and returns its report.
pub(super) fn repair(rig: &Rig, of: &[(u8, u8, MemberState)], depth: Depth) -> PassReport {
    for _ in 0..4 {
        let found = once(rig, of, depth);
        assert_eq!(found.problems, BTreeSet::new());
        if found.incomplete.is_empty() {
            return found;
        }
    }
    panic!("every pass restores something");
}

/// The copyset as hosts see it, with the states of `change`.
fn seen(rig: &Rig, change: &[(u8, MemberState)]) -> Vec<Member> {
    let table = rig.store.table();
    let mut seen = table.members(copyset()).to_vec();
    for member in &mut seen {
        let changed = change.iter().find(|(unit, _)| unit_id(*unit) == member.id);
        member.state = changed.map_or(InSync, |(_, state)| *state);
    }
    seen
}

/// Reclaims the slots of all `dead` blocks, with members in these states. Returns whether
/// that succeeded for all segments.
fn reclaim_all(rig: &Rig, dead: &BTreeSet<usize>, change: &[(u8, MemberState)]) -> bool {
    let members = seen(rig, change);
    let reclaimed = |segment| reclaim(&members, rig.erasure, segment, &rig.slots(segment, dead));
    rig.segments()
        .into_iter()
        .all(|segment| reclaimed(segment).is_ok())
}

/// Copies a unit to another one: of each segment the first `1 / part` of its slots.
pub(super) fn copy_unit(rig: &Rig, from: u8, to: u8, part: u16) {
    let (source, target) = (open(&rig.simulation, from), open(&rig.simulation, to));
    for segment in source.list().expect("listed") {
        let report = source.segment_slots(segment).expect("there");
        let stat = report.stat;
        let (mut tags, mut data) = (Vec::new(), Vec::new());
        for slot in 0..stat.slots as u16 / part {
            let run = SlotRun {
                segment,
                first: Slot(slot),
                count: 1,
            };
            let (mut tag, mut content) = ([[0; 16]], vec![0; stat.slot_bytes as usize]);
            if !report.freed.contains(&Slot(slot)) {
                let read = source.read(Read {
                    run,
                    slot_bytes: stat.slot_bytes,
                    tags: &mut tag,
                    data: &mut content,
                });
                read.expect("it is kept");
            }
            tags.extend(tag);
            data.extend(content);
        }
        let put = target.put(Put {
            lineage_tag: report.lineage_tag,
            segment,
            slot_bytes: stat.slot_bytes,
            first: Slot(0),
            tags: &tags,
            data: &data,
        });
        put.and_then(|()| target.sync(&[segment])).expect("put");
        if !report.freed.is_empty() {
            target.free(segment, &report.freed, false).expect("freed");
        }
    }
}

/// Replaces the unit at `place` by [`NEW`].
pub(super) fn replaced(rig: &mut Rig, place: u8) {
    rig.units[usize::from(place)] = NEW;
    rig.store = store_of(&rig.simulation, rig.erasure, &rig.units);
}

#[test]
fn a_lost_member_is_rebuilt_from_the_others() {
    for (data, parity) in [(2, 1), (4, 2)] {
        for are_dead in [false, true] {
            for place in 0..data + parity {
                let (mut rig, dead) = filled(data, parity, are_dead);
                rig.simulation.disk.inject(&folder(place), Fault::Missing);
                replaced(&mut rig, place);
                let found = repair(&rig, &standing(&rig, &[(NEW, Rebuilding)]), Depth::Rebuild);
                assert_eq!(found.in_sync.len(), usize::from(data + parity));
                rig.check_with_losses(&dead);
            }
        }
    }
}

/// One member fewer is left than a row has data slots: too few to recover anything.
#[test]
fn slots_of_a_draining_member_are_copied() {
    for are_dead in [false, true] {
        for place in 0..6 {
            let (mut rig, dead) = filled(4, 2, false);
            // Rows that were never committed were swept.
            for (segment, unit) in rig
                .segments()
                .iter()
                .flat_map(|it| (0..6).map(move |n| (it, n)))
            {
                let unit = open(&rig.simulation, unit);
                let rows = unit.stat_segment(*segment).expect("there").slots as u16;
                let put = unit.put(Put {
                    lineage_tag: LineageTag::NONE,
                    segment: *segment,
                    slot_bytes: 4096,
                    first: Slot(rows),
                    tags: &[[7; 16]],
                    data: &[7; 4096],
                });
                put.and_then(|()| unit.free(*segment, &[Slot(rows)], false))
                    .expect("swept");
            }
            let dead = if are_dead { most(203) } else { dead };
            assert!(reclaim_all(&rig, &dead, &[]));
            replaced(&mut rig, place);
            let others: Vec<u8> = (0..6).filter(|other| *other != place).collect();
            let mut of = standing(&rig, &[(NEW, Rebuilding)]);
            of.push((place, place, Draining));
            // One in-sync member is needed to know which slots exist.
            of.retain(|(unit, ..)| [NEW, place, others[0]].contains(unit));
            assert_eq!(repair(&rig, &of, Depth::Rebuild).in_sync.len(), 2);
            rig.check_with_losses(&dead);
        }
    }
}

#[test]
fn a_member_that_was_unavailable_during_a_put_receives_its_slots() {
    for place in [0, 3, 4, 5] {
        let mut rig = Rig::new(4, 2);
        rig.put(41);
        rig.simulation.disk.inject(&folder(place), Fault::Missing);
        rig.put(41);
        rig.simulation.disk.heal(&folder(place));
        let found = repair(
            &rig,
            &standing(&rig, &[(place, Rebuilding)]),
            Depth::Rebuild,
        );
        assert_eq!(found.in_sync.len(), 6);
        rig.check_with_losses(&BTreeSet::new());
    }
}

#[test]
fn rotten_slots_are_recovered_and_rewritten() {
    for are_dead in [false, true] {
        for place in [0, 2, 4, 5] {
            let (rig, dead) = filled(4, 2, are_dead);
            let slot = rig.pieces[202].entry.location;
            let row = Layout::new(Some(rig.erasure)).home(slot.slot()).slot.0;
            rot(&rig.simulation.disk, place, slot.segment(), row);
            let bad = open(&rig.simulation, place).scrub(slot.segment());
            let bad = bad.expect("read").len();
            let found = repair(&rig, &standing(&rig, &[]), Depth::Scrub);
            assert_eq!((found.in_sync.len(), found.rotten), (6, 0));
            for segment in rig.segments() {
                let left = open(&rig.simulation, place).scrub(segment);
                assert_eq!(left.expect("read"), [], "{bad} slots had rotted");
            }
            rig.check_with_losses(&dead);
        }
    }
}

/// Each recovered row dropped one parity that had not been read yet: later rows that needed
/// it counted as lost.
#[test]
fn a_row_is_recovered_from_the_second_parity_if_the_first_has_rotted() {
    let (mut rig, dead) = filled(4, 2, false);
    let layout = Layout::new(Some(rig.erasure));
    let home = |piece: &Piece| layout.home(piece.entry.location.slot());
    let mut pieces = rig.pieces.iter();
    let piece = pieces.find(|piece| home(piece).slot == Slot(3));
    let segment = piece.expect("some").entry.location.segment();
    rot(&rig.simulation.disk, 4, segment, 3);
    rig.simulation.disk.inject(&folder(1), Fault::Missing);
    replaced(&mut rig, 1);
    let found = repair(&rig, &standing(&rig, &[(NEW, Rebuilding)]), Depth::Rebuild);
    assert_eq!((found.in_sync.len(), found.rotten), (6, 0));
    rig.check(&rig.store, &dead);
}

#[test]
fn slots_that_cannot_be_recovered_are_reported_and_put_no_member_in_sync() {
    let (mut rig, _) = filled(4, 2, false);
    replaced(&mut rig, 1);
    let mut of = standing(&rig, &[(NEW, Rebuilding)]);
    // One member more is missing than there is parity.
    of.retain(|(unit, ..)| ![0, 5].contains(unit));
    let (members, pace) = (members(&rig, &of), Steps::endless());
    let erasure = Some(rig.erasure);
    let found = CopysetRepair::new(copyset()).pass(
        erasure,
        &members,
        &all_committed(),
        Depth::Rebuild,
        &pace,
    );
    let found = found.expect("nothing stops it");
    assert!(found.rotten > 0 && !found.problems.is_empty());
    assert!(!found.in_sync.contains(&unit_id(NEW)));
    let new = open(&rig.simulation, NEW);
    assert_eq!(new.list().expect("listed"), [], "no content was invented");
}

#[test]
fn a_crash_at_any_step_of_a_rebuild_with_parity_loses_nothing() {
    for place in [1, 4] {
        let mut crashes = 0;
        for number in (1..).step_by(7) {
            let (mut rig, dead) = filled(2, 1 + place / 4, true);
            let place = place.min(rig.erasure.members() - 1);
            replaced(&mut rig, place);
            let of = standing(&rig, &[(NEW, Rebuilding)]);
            let units = members(&rig, &of);
            let before = rig.simulation.disk.operations();
            rig.simulation.disk.arm_crash(before + number);
            let (erasure, pace) = (Some(rig.erasure), Steps::endless());
            let _ = CopysetRepair::new(copyset()).pass(
                erasure,
                &units,
                &all_committed(),
                Depth::Rebuild,
                &pace,
            );
            drop(units);
            let is_off = rig.simulation.disk.is_off();
            rig.simulation.disk.arm_crash(u64::MAX);
            if is_off {
                crashes += 1;
                rig.simulation.crash();
            }
            repair(&rig, &of, Depth::Rebuild);
            rig.check_with_losses(&dead);
            if !is_off {
                break;
            }
        }
        assert!(crashes > 3, "{crashes}");
    }
}

/// The only parity was lost, and no mask said which slots its replacement is made of: dead
/// slots were freed during its rebuild.
#[test]
fn no_slot_is_freed_while_the_only_parity_is_rebuilt() {
    let (mut rig, _) = filled(2, 1, false);
    let dead = most(203);
    replaced(&mut rig, 2);
    let rebuilding = [(NEW, Rebuilding)];
    let before: Vec<_> = rig
        .segments()
        .into_iter()
        .map(|one| rig.live(one))
        .collect();
    assert!(!reclaim_all(&rig, &dead, &rebuilding), "it waits");
    let after: Vec<_> = rig
        .segments()
        .into_iter()
        .map(|one| rig.live(one))
        .collect();
    assert_eq!(before, after);
    // A segment whose slots are all dead is deleted all the same.
    let all: BTreeSet<usize> = (0..203).collect();
    assert!(reclaim_all(&rig, &all, &rebuilding));
    for place in 0..2 {
        assert_eq!(open(&rig.simulation, place).list().expect("listed"), []);
    }
}

/// A host with an outdated table frees slots as if all members were in sync.
#[test]
fn parity_is_recomputed_when_slots_are_freed_during_a_rebuild() {
    struct Freeing<'a> {
        rig: &'a Rig,
        dead: &'a BTreeSet<usize>,
        left: AtomicU64,
    }
    impl Pace for Freeing<'_> {
        fn step(&self, _: u64) -> Result<(), Stopped> {
            if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
                free_data(self.rig, self.dead);
            }
            Ok(())
        }
        fn report_progress(&self, _: u64, _: u64) {}
    }
    fn free_data(rig: &Rig, dead: &BTreeSet<usize>) {
        for segment in rig.segments() {
            for slot in rig.slots(segment, dead) {
                let home = Layout::new(Some(rig.erasure)).home(slot);
                let unit = open(&rig.simulation, home.member_index.expect("one member"));
                unit.free(segment, &[home.slot], false).expect("freed");
            }
        }
    }
    let dead = most(203);
    for steps in 0..400 {
        let (mut rig, _) = filled(2, 1, false);
        replaced(&mut rig, 2);
        let of = standing(&rig, &[(NEW, Rebuilding)]);
        let pace = Freeing {
            rig: &rig,
            dead: &dead,
            left: AtomicU64::new(steps),
        };
        let units = members(&rig, &of);
        let erasure = Some(rig.erasure);
        CopysetRepair::new(copyset())
            .pass(erasure, &units, &all_committed(), Depth::Rebuild, &pace)
            .expect("nothing stops it");
        let was_freed = pace.left.load(Ordering::Relaxed) > steps;
        if !was_freed {
            assert!(steps > 10, "a pass has more steps than that");
            free_data(&rig, &dead);
        }
        assert_eq!(repair(&rig, &of, Depth::Rebuild).in_sync.len(), 3);
        rig.check_with_losses(&dead);
        if !was_freed {
            return;
        }
    }
    panic!("a pass has more than 400 steps");
}

/// A unit with parity was rolled back to a state from before dead slots were reclaimed.
#[test]
fn parity_of_slots_that_were_freed_since_is_recomputed() {
    for (data, parity) in [(2, 1), (4, 2)] {
        for place in data..data + parity {
            let (mut rig, _) = filled(data, parity, false);
            let dead = most(203);
            copy_unit(&rig, place, NEW, 1);
            assert!(reclaim_all(&rig, &dead, &[]));
            replaced(&mut rig, place);
            let found = repair(&rig, &standing(&rig, &[(NEW, Rebuilding)]), Depth::Rebuild);
            assert_eq!(found.in_sync.len(), usize::from(data + parity));
            rig.check_with_losses(&dead);
        }
    }
}

/// Padding counts as zeroes.
#[test]
fn correct_parity_is_not_rewritten() {
    let (rig, _) = filled(2, 1, false);
    let found = once(&rig, &standing(&rig, &[(2, Rebuilding)]), Depth::Rebuild);
    assert_eq!((found.copied_bytes, found.in_sync.len()), (0, 3));
}

/// One data member frees live slots. They are still recovered from the parity.
#[test]
fn slots_that_only_one_member_freed_stay_in_the_parity() {
    for depth in [Depth::Rebuild, Depth::Compare, Depth::Scrub] {
        let (rig, _) = filled(2, 1, false);
        let faulty = open(&rig.simulation, 0);
        for segment in rig.segments() {
            let rows = faulty.stat_segment(segment).expect("there").slots as u16;
            let all: Vec<Slot> = (0..rows).map(Slot).collect();
            faulty.free(segment, &all, false).expect("freed");
        }
        repair(&rig, &standing(&rig, &[(1, Rebuilding)]), depth);
        rig.check(
            &store_of(&rig.simulation, rig.erasure, &rig.units),
            &BTreeSet::new(),
        );
    }
}

/// One member has freed the ends of its segments, and all other in-sync members are
/// unavailable.
#[test]
fn one_in_sync_member_alone_is_not_enough_with_parity() {
    let (mut rig, _) = filled(4, 2, false);
    let first = open(&rig.simulation, 0);
    for segment in rig.segments() {
        let rows = first.stat_segment(segment).expect("there").slots as u16;
        let last: Vec<Slot> = (rows / 2..rows).map(Slot).collect();
        first.free(segment, &last, false).expect("freed");
    }
    // It was unavailable when the rest was put.
    copy_unit(&rig, 1, NEW, 2);
    replaced(&mut rig, 1);
    for place in [2, 3, 4, 5] {
        rig.simulation.disk.inject(&folder(place), Fault::Missing);
    }
    let of = standing(&rig, &[(NEW, Rebuilding)]);
    let units = members(&rig, &of);
    let (erasure, pace) = (Some(rig.erasure), Steps::endless());
    let found = CopysetRepair::new(copyset()).pass(
        erasure,
        &units,
        &all_committed(),
        Depth::Rebuild,
        &pace,
    );
    let found = found.expect("nothing stops it");
    assert_eq!((found.in_sync, found.incomplete.len()), (Vec::new(), 0));
    for place in [2, 3, 4, 5] {
        rig.simulation.disk.heal(&folder(place));
    }
    assert_eq!(repair(&rig, &of, Depth::Rebuild).in_sync.len(), 6);
    let dead: BTreeSet<usize> = (0..203)
        .filter(|block| rig.pieces[*block].entry.location.slot().0 % 4 == 0)
        .collect();
    rig.check(&store_of(&rig.simulation, rig.erasure, &rig.units), &dead);
}

/// Padding of an open segment was copied from a draining member, and stayed.
#[test]
fn a_rebuilding_member_does_not_keep_padding_of_an_open_segment() {
    for place in [1, 3] {
        let mut rig = Rig::new(4, 2);
        rig.put(1);
        let segment = *rig.segments().first().expect("one");
        create(&rig.simulation, NEW);
        replaced(&mut rig, place);
        let mut of = standing(&rig, &[(NEW, Rebuilding)]);
        of.push((place, place, Draining));
        let (units, pace) = (members(&rig, &of), Steps::endless());
        let open_now = Uncommitted::new([(segment, 4)], Vec::new(), u64::MAX);
        for _ in 0..2 {
            CopysetRepair::new(copyset())
                .pass(Some(rig.erasure), &units, &open_now, Depth::Rebuild, &pace)
                .expect("nothing stops it");
        }
        let report = open(&rig.simulation, NEW)
            .segment_slots(segment)
            .expect("there");
        assert_eq!(report.stat.slots - report.stat.freed, 0, "{place}");
    }
}
