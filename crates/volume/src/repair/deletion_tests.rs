//! Segments with parity that reappear on a unit that was rolled back.

use catalog::MemberState::{Draining, Rebuilding};
use unit::Unit;
use world::simulated::Fault;

use super::Depth;
use super::rows_tests::{NEW, copy_unit, filled, once, repair, replaced, standing};
use crate::scatter::erasure::rig::{folder, open, unit_id};

/// A data unit was rolled back to an earlier state. Its part of a segment that was deleted
/// since cannot be recovered elsewhere, and need not be.
#[test]
fn a_deleted_segment_keeps_no_member_from_being_in_sync() {
    let (mut rig, _) = filled(4, 2, false);
    let deleted = *rig.segments().first().expect("one");
    copy_unit(&rig, 0, NEW, 1);
    for place in 0..6 {
        let unit = open(&rig.simulation, place);
        unit.delete(deleted).expect("deleted");
    }
    replaced(&mut rig, 0);
    let of = standing(&rig, &[(NEW, Rebuilding), (5, Rebuilding)]);
    assert_eq!(repair(&rig, &of, Depth::Rebuild).in_sync.len(), 6);
    // Nor does it in a comparison: no member can have it, so none is missing it.
    let found = once(&rig, &standing(&rig, &[]), Depth::Compare);
    assert!(found.rotten > 0 && found.is_complete);
    assert_eq!((found.in_sync.len(), found.incomplete.len()), (6, 0));
    let parity = open(&rig.simulation, 5);
    assert!(!parity.list().expect("listed").contains(&deleted));
}

/// A unit was rolled back to an earlier state, with its part of a segment that was deleted
/// since, and was in sync again. Then another unit died: its replacement was missing what
/// could not be recovered, and was rebuilt for ever.
#[test]
fn a_deleted_segment_on_an_in_sync_member_keeps_no_member_from_being_in_sync() {
    for (data, parity) in [(2, 1), (4, 2)] {
        let all = data + parity;
        for (older, lost) in [(0, 1), (1, data), (data, 0), (all - 1, 1)] {
            let (mut rig, _) = filled(data, parity, false);
            let deleted = *rig.segments().first().expect("one");
            for place in (0..all).filter(|place| *place != older) {
                let unit = open(&rig.simulation, place);
                unit.delete(deleted).expect("deleted");
            }
            rig.simulation.disk.inject(&folder(lost), Fault::Missing);
            replaced(&mut rig, lost);
            let of = standing(&rig, &[(NEW, Rebuilding)]);
            let first = once(&rig, &of, Depth::Rebuild);
            let found = match first.incomplete.is_empty() {
                true => first,
                false => once(&rig, &of, Depth::Rebuild),
            };
            assert_eq!(
                (found.in_sync.len(), found.incomplete.len()),
                (all.into(), 0)
            );
            assert!(found.rotten > 0, "it is reported");
            let listed = open(&rig.simulation, NEW).list().expect("listed");
            assert!(!listed.contains(&deleted), "no content was invented");
            // While a member that may have the segment is unavailable, it is not in sync.
            let mut of = of;
            of.push((lost, lost, Draining));
            let found = once(&rig, &of, Depth::Rebuild);
            assert!(!found.in_sync.contains(&unit_id(NEW)), "{older} {lost}");
        }
    }
}
