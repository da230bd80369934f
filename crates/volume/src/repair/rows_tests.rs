//! Repair of copysets with parity, against what should be read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{LineageTag, Slot};
use unit::{Put, Read, SlotRun, Unit};
use world::simulated::Fault;

use super::tests::{Steps, all_committed};
use super::*;
use crate::catalog::MemberState::{self, Draining, InSync, Rebuilding};
use crate::scatter::erasure::reclaim;
use crate::scatter::erasure::rig::{
    Rig, copyset, create, folder, most, open, rot, store_of, unit_id,
};
use crate::scatter::{Layout, Member};

/// The number of the unit that is new.
pub(super) const NEW: u8 = 50;

/// Full rows and padding; half of it given up, if there `are_dead`.
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
            let given = reclaim(table.members(copyset()), rig.erasure, segment, &slots);
            assert!(!given.expect("all are there"), "some of it lives");
        }
    }
    create(&rig.simulation, NEW);
    (rig, dead)
}

/// The members: unit, place and state.
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

/// All units at their places, and those that `change` says as it says.
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

/// One pass.
pub(super) fn once(rig: &Rig, of: &[(u8, u8, MemberState)], depth: Depth) -> PassReport {
    let members = members(rig, of);
    let (erasure, pace) = (Some(rig.erasure), Steps::endless());
    let found = Task::new(copyset()).pass(erasure, &members, &all_committed(), depth, &pace);
    found.expect("nobody stops it")
}

/// Passes until one finds nothing to bring. Who is whole then.
pub(super) fn repair(rig: &Rig, of: &[(u8, u8, MemberState)], depth: Depth) -> PassReport {
    for _ in 0..4 {
        let found = once(rig, of, depth);
        assert_eq!(found.problems, BTreeSet::new());
        if found.lacking.is_empty() {
            return found;
        }
    }
    panic!("it goes on bringing");
}

/// The copyset as hosts see it, with some members as `change` says.
fn seen(rig: &Rig, change: &[(u8, MemberState)]) -> Vec<Member> {
    let table = rig.store.table();
    let mut seen = table.members(copyset()).to_vec();
    for member in &mut seen {
        let changed = change.iter().find(|(unit, _)| unit_id(*unit) == member.id);
        member.state = changed.map_or(InSync, |(_, state)| *state);
    }
    seen
}

/// Gives all of `dead` back, as far as it goes, with members in these states.
fn give_all(rig: &Rig, dead: &BTreeSet<usize>, change: &[(u8, MemberState)]) -> bool {
    let members = seen(rig, change);
    let give = |segment| reclaim(&members, rig.erasure, segment, &rig.slots(segment, dead));
    rig.segments()
        .into_iter()
        .all(|segment| give(segment).is_ok())
}

/// Puts what a unit holds on another one; of each segment one part in so many.
pub(super) fn copy_unit(rig: &Rig, from: u8, to: u8, part: u16) {
    let (source, target) = (open(&rig.simulation, from), open(&rig.simulation, to));
    for segment in source.list().expect("listed") {
        let told = source.segment_slots(segment).expect("there");
        let stat = told.stat;
        let (mut tags, mut data) = (Vec::new(), Vec::new());
        for slot in 0..stat.slots as u16 / part {
            let run = SlotRun {
                segment,
                first: Slot(slot),
                count: 1,
            };
            let (mut tag, mut content) = ([[0; 16]], vec![0; stat.slot_bytes as usize]);
            if !told.freed.contains(&Slot(slot)) {
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
            lineage_tag: told.lineage_tag,
            segment,
            slot_bytes: stat.slot_bytes,
            first: Slot(0),
            tags: &tags,
            data: &data,
        });
        put.and_then(|()| target.sync(&[segment])).expect("put");
        if !told.freed.is_empty() {
            target
                .free(segment, &told.freed, false)
                .expect("as it was there");
        }
    }
}

/// Another unit is in the place of one from now on.
pub(super) fn replaced(rig: &mut Rig, place: u8) {
    rig.units[usize::from(place)] = NEW;
    rig.store = store_of(&rig.simulation, rig.erasure, &rig.units);
}

#[test]
fn what_a_lost_member_held_is_worked_out_of_the_others() {
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

/// The members that are left besides, one fewer than there is data, do not suffice
/// for that.
#[test]
fn what_a_leaving_member_has_is_copied() {
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
            assert!(give_all(&rig, &dead, &[]));
            replaced(&mut rig, place);
            let others: Vec<u8> = (0..6).filter(|other| *other != place).collect();
            let mut of = standing(&rig, &[(NEW, Rebuilding)]);
            of.push((place, place, Draining));
            // All that it takes is one that is whole, to say what there is.
            of.retain(|(unit, ..)| [NEW, place, others[0]].contains(unit));
            assert_eq!(repair(&rig, &of, Depth::Rebuild).in_sync.len(), 2);
            rig.check_with_losses(&dead);
        }
    }
}

#[test]
fn who_was_away_while_something_was_put_gets_it() {
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
fn what_has_rotted_is_worked_out_and_put_in_its_place() {
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
                assert_eq!(left.expect("read"), [], "{bad} had rotted");
            }
            rig.check_with_losses(&dead);
        }
    }
}

#[test]
fn what_cannot_be_worked_out_is_told_and_makes_nobody_whole() {
    let (mut rig, _) = filled(4, 2, false);
    replaced(&mut rig, 1);
    let mut of = standing(&rig, &[(NEW, Rebuilding)]);
    // One more than there is parity.
    of.retain(|(unit, ..)| ![0, 5].contains(unit));
    let (members, pace) = (members(&rig, &of), Steps::endless());
    let erasure = Some(rig.erasure);
    let found =
        Task::new(copyset()).pass(erasure, &members, &all_committed(), Depth::Rebuild, &pace);
    let found = found.expect("nobody stops it");
    assert!(found.rotten > 0 && !found.problems.is_empty());
    assert!(!found.in_sync.contains(&unit_id(NEW)));
    let new = open(&rig.simulation, NEW);
    assert_eq!(new.list().expect("listed"), [], "nothing was made up");
}

#[test]
fn a_crash_at_any_step_of_bringing_parity_loses_nothing() {
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
            let _ =
                Task::new(copyset()).pass(erasure, &units, &all_committed(), Depth::Rebuild, &pace);
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

/// The only parity was lost, and no mask said of what its successor would be made: the
/// dead slots were freed while it was.
#[test]
fn nothing_is_freed_while_parity_is_made_that_no_other_parity_is_beside() {
    let (mut rig, _) = filled(2, 1, false);
    let dead = most(203);
    replaced(&mut rig, 2);
    let filling = [(NEW, Rebuilding)];
    let before: Vec<_> = rig
        .segments()
        .into_iter()
        .map(|one| rig.live(one))
        .collect();
    assert!(!give_all(&rig, &dead, &filling), "it waits");
    let after: Vec<_> = rig
        .segments()
        .into_iter()
        .map(|one| rig.live(one))
        .collect();
    assert_eq!(before, after);
    // A segment of which all is dead goes all the same.
    let all: BTreeSet<usize> = (0..203).collect();
    assert!(give_all(&rig, &all, &filling));
    for place in 0..2 {
        assert_eq!(open(&rig.simulation, place).list().expect("listed"), []);
    }
}

/// A host that frees has an old table, and goes on as if all were whole.
#[test]
fn parity_is_made_again_of_what_is_left_when_something_was_freed_meanwhile() {
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
        fn compared(&self, _: u64, _: u64) {}
    }
    fn free_data(rig: &Rig, dead: &BTreeSet<usize>) {
        for segment in rig.segments() {
            for slot in rig.slots(segment, dead) {
                let home = Layout::new(Some(rig.erasure)).home(slot);
                let unit = open(&rig.simulation, home.place.expect("one member"));
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
        Task::new(copyset())
            .pass(erasure, &units, &all_committed(), Depth::Rebuild, &pace)
            .expect("nobody stops it");
        let was_freed = pace.left.load(Ordering::Relaxed) > steps;
        if !was_freed {
            assert!(steps > 10, "it was freed at each");
            free_data(&rig, &dead);
        }
        assert_eq!(repair(&rig, &of, Depth::Rebuild).in_sync.len(), 3);
        rig.check_with_losses(&dead);
        if !was_freed {
            return;
        }
    }
    panic!("it takes more steps than that");
}

/// A unit with parity was put back to an earlier state, from before dead slots were
/// given back.
#[test]
fn parity_of_what_was_freed_since_is_made_anew() {
    for (data, parity) in [(2, 1), (4, 2)] {
        for place in data..data + parity {
            let (mut rig, _) = filled(data, parity, false);
            let dead = most(203);
            copy_unit(&rig, place, NEW, 1);
            assert!(give_all(&rig, &dead, &[]));
            replaced(&mut rig, place);
            let found = repair(&rig, &standing(&rig, &[(NEW, Rebuilding)]), Depth::Rebuild);
            assert_eq!(found.in_sync.len(), usize::from(data + parity));
            rig.check_with_losses(&dead);
        }
    }
}

/// What was not put back is left as it is: padding counts as zeroes.
#[test]
fn parity_that_is_right_is_not_put_again() {
    let (rig, _) = filled(2, 1, false);
    let found = once(&rig, &standing(&rig, &[(2, Rebuilding)]), Depth::Rebuild);
    assert_eq!((found.copied_bytes, found.in_sync.len()), (0, 3));
}

/// One data member says that it has freed what lives. Of the parity that counts it can
/// still be read.
#[test]
fn what_one_member_says_it_has_freed_stays_in_the_parity() {
    for depth in [Depth::Rebuild, Depth::Compare, Depth::Scrub] {
        let (rig, _) = filled(2, 1, false);
        let liar = open(&rig.simulation, 0);
        for segment in rig.segments() {
            let rows = liar.stat_segment(segment).expect("there").slots as u16;
            let all: Vec<Slot> = (0..rows).map(Slot).collect();
            liar.free(segment, &all, false).expect("freed");
        }
        repair(&rig, &standing(&rig, &[(1, Rebuilding)]), depth);
        rig.check(
            &store_of(&rig.simulation, rig.erasure, &rig.units),
            &BTreeSet::new(),
        );
    }
}

/// All that one member had at the end of its segments is dead, and of the others none
/// is asked but those that are filled.
#[test]
fn one_whole_member_alone_makes_nobody_whole() {
    let (mut rig, _) = filled(4, 2, false);
    let first = open(&rig.simulation, 0);
    for segment in rig.segments() {
        let rows = first.stat_segment(segment).expect("there").slots as u16;
        let last: Vec<Slot> = (rows / 2..rows).map(Slot).collect();
        first.free(segment, &last, false).expect("freed");
    }
    // It was away when the rest was put.
    copy_unit(&rig, 1, NEW, 2);
    replaced(&mut rig, 1);
    for place in [2, 3, 4, 5] {
        rig.simulation.disk.inject(&folder(place), Fault::Missing);
    }
    let of = standing(&rig, &[(NEW, Rebuilding)]);
    let units = members(&rig, &of);
    let (erasure, pace) = (Some(rig.erasure), Steps::endless());
    let found = Task::new(copyset()).pass(erasure, &units, &all_committed(), Depth::Rebuild, &pace);
    let found = found.expect("nobody stops it");
    assert_eq!((found.in_sync, found.lacking.len()), (Vec::new(), 0));
    for place in [2, 3, 4, 5] {
        rig.simulation.disk.heal(&folder(place));
    }
    assert_eq!(repair(&rig, &of, Depth::Rebuild).in_sync.len(), 6);
    let dead: BTreeSet<usize> = (0..203)
        .filter(|block| rig.pieces[*block].entry.location.slot().0 % 4 == 0)
        .collect();
    rig.check(&store_of(&rig.simulation, rig.erasure, &rig.units), &dead);
}

/// Of a segment that is appended to padding was put where a member leaves, and stayed.
#[test]
fn padding_of_an_open_segment_is_not_kept_by_who_is_filled() {
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
            Task::new(copyset())
                .pass(Some(rig.erasure), &units, &open_now, Depth::Rebuild, &pace)
                .expect("nobody stops it");
        }
        let told = open(&rig.simulation, NEW)
            .segment_slots(segment)
            .expect("there");
        assert_eq!(told.stat.slots - told.stat.freed, 0, "{place}");
    }
}
