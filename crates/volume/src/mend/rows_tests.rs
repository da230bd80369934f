//! Mending of copysets with parity, against what should be read.

use std::collections::BTreeSet;
use std::sync::Arc;

use unit::Unit;
use world::simulated::Fault;

use super::tests::{Steps, all_committed};
use super::*;
use crate::catalog::MemberState::{self, Filling, Leaving, Whole};
use crate::scatter::Layout;
use crate::scatter::erasure::give_back;
use crate::scatter::erasure::rig::{
    Rig, copyset, create, folder, most, open, rot, store_of, unit_id,
};

/// The number of the unit that is new.
const NEW: u8 = 50;

/// Full rows and padding; half of it given up, if there `are_dead`.
fn filled(data: u8, parity: u8, are_dead: bool) -> (Rig, BTreeSet<usize>) {
    let mut rig = Rig::new(data, parity);
    for count in [1, 37, 2, 64, 99] {
        rig.put(count);
    }
    let mut dead = BTreeSet::new();
    if are_dead {
        dead = most(203);
        for segment in rig.segments() {
            let (slots, table) = (rig.slots(segment, &dead), rig.store.table());
            let given = give_back(table.members(copyset()), rig.erasure, segment, &slots);
            assert!(!given.expect("all are there"), "some of it lives");
        }
    }
    create(&rig.simulation, NEW);
    (rig, dead)
}

/// The members: unit, place and state.
fn members(rig: &Rig, of: &[(u8, u8, MemberState)]) -> Vec<Mendable> {
    let member = |(unit, place, state): &(u8, u8, MemberState)| Mendable {
        id: unit_id(*unit),
        place: *place,
        state: *state,
        unit: Arc::new(open(&rig.simulation, *unit)) as Arc<dyn Unit>,
    };
    of.iter().map(member).collect()
}

/// All units at their places, and those that `change` says as it says.
fn standing(rig: &Rig, change: &[(u8, MemberState)]) -> Vec<(u8, u8, MemberState)> {
    let state = |unit: u8| {
        let changed = change.iter().find(|(other, _)| *other == unit);
        changed.map_or(Whole, |(_, state)| *state)
    };
    let units = (0..).zip(&rig.units);
    units
        .map(|(place, unit)| (*unit, place, state(*unit)))
        .collect()
}

/// Passes until one finds nothing to bring. Who is whole then.
fn mend(rig: &Rig, of: &[(u8, u8, MemberState)], depth: Depth) -> Found {
    for _ in 0..4 {
        let members = members(rig, of);
        let (erasure, pace) = (Some(rig.erasure), Steps::endless());
        let found = pass(copyset(), erasure, &members, &all_committed(), depth, &pace);
        let found = found.expect("nobody stops it");
        assert_eq!(found.problems, BTreeSet::new());
        if found.lacking.is_empty() {
            return found;
        }
    }
    panic!("it goes on bringing");
}

/// Another unit is in the place of one from now on.
fn replaced(rig: &mut Rig, place: u8) {
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
                let found = mend(&rig, &standing(&rig, &[(NEW, Filling)]), Depth::Fill);
                assert_eq!(found.whole.len(), usize::from(data + parity));
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
            let (mut rig, dead) = filled(4, 2, are_dead);
            replaced(&mut rig, place);
            let others: Vec<u8> = (0..6).filter(|other| *other != place).collect();
            let mut of = standing(&rig, &[(NEW, Filling)]);
            of.push((place, place, Leaving));
            // All that it takes is one that is whole, to say what there is.
            of.retain(|(unit, ..)| [NEW, place, others[0]].contains(unit));
            assert_eq!(mend(&rig, &of, Depth::Fill).whole.len(), 2);
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
        let found = mend(&rig, &standing(&rig, &[(place, Filling)]), Depth::Fill);
        assert_eq!(found.whole.len(), 6);
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
            let found = mend(&rig, &standing(&rig, &[]), Depth::Scrub);
            assert_eq!((found.whole.len(), found.rotten), (6, 0));
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
    let mut of = standing(&rig, &[(NEW, Filling)]);
    // One more than there is parity.
    of.retain(|(unit, ..)| ![0, 5].contains(unit));
    let (members, pace) = (members(&rig, &of), Steps::endless());
    let erasure = Some(rig.erasure);
    let found = pass(
        copyset(),
        erasure,
        &members,
        &all_committed(),
        Depth::Fill,
        &pace,
    );
    let found = found.expect("nobody stops it");
    assert!(found.rotten > 0 && !found.problems.is_empty());
    assert!(!found.whole.contains(&unit_id(NEW)));
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
            let of = standing(&rig, &[(NEW, Filling)]);
            let units = members(&rig, &of);
            let before = rig.simulation.disk.operations();
            rig.simulation.disk.arm_crash(before + number);
            let (erasure, pace) = (Some(rig.erasure), Steps::endless());
            let _ = pass(
                copyset(),
                erasure,
                &units,
                &all_committed(),
                Depth::Fill,
                &pace,
            );
            drop(units);
            let is_off = rig.simulation.disk.is_off();
            if is_off {
                crashes += 1;
                rig.simulation.crash();
            }
            mend(&rig, &of, Depth::Fill);
            rig.check_with_losses(&dead);
            if !is_off {
                break;
            }
        }
        assert!(crashes > 3, "{crashes}");
    }
}
