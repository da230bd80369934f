//! Segments with parity that were deleted while a unit was older than it is.

use unit::Unit;
use world::simulated::Fault;

use super::Depth;
use super::rows_tests::{NEW, copy_unit, filled, once, repair, replaced, standing};
use crate::catalog::MemberState::{Draining, Rebuilding};
use crate::scatter::erasure::rig::{folder, open, unit_id};

/// A data unit was put back to an earlier state. What it has of a segment that was
/// deleted since cannot be worked out, and need not be.
#[test]
fn a_segment_that_was_deleted_keeps_nobody_from_being_whole() {
    let (mut rig, _) = filled(4, 2, false);
    let gone = *rig.segments().first().expect("one");
    copy_unit(&rig, 0, NEW, 1);
    for place in 0..6 {
        let unit = open(&rig.simulation, place);
        unit.delete(gone).expect("deleted");
    }
    replaced(&mut rig, 0);
    let of = standing(&rig, &[(NEW, Rebuilding), (5, Rebuilding)]);
    assert_eq!(repair(&rig, &of, Depth::Rebuild).in_sync.len(), 6);
    // Nor when all are compared: nobody can have it, so nobody lacks it.
    let found = once(&rig, &standing(&rig, &[]), Depth::Compare);
    assert!(found.rotten > 0 && found.is_complete);
    assert_eq!((found.in_sync.len(), found.lacking.len()), (6, 0));
    let parity = open(&rig.simulation, 5);
    assert!(!parity.list().expect("listed").contains(&gone));
}

/// A unit was put back to an earlier state, with its part of a segment that was deleted
/// since, and was whole again. Then another unit died: whoever came in its place lacked
/// what could not be worked out, and was filled for ever.
#[test]
fn what_a_whole_member_has_of_a_deleted_segment_keeps_nobody_from_being_whole() {
    for (data, parity) in [(2, 1), (4, 2)] {
        let all = data + parity;
        for (older, lost) in [(0, 1), (1, data), (data, 0), (all - 1, 1)] {
            let (mut rig, _) = filled(data, parity, false);
            let gone = *rig.segments().first().expect("one");
            for place in (0..all).filter(|place| *place != older) {
                let unit = open(&rig.simulation, place);
                unit.delete(gone).expect("deleted");
            }
            rig.simulation.disk.inject(&folder(lost), Fault::Missing);
            replaced(&mut rig, lost);
            let of = standing(&rig, &[(NEW, Rebuilding)]);
            let brought = once(&rig, &of, Depth::Rebuild);
            let found = match brought.lacking.is_empty() {
                true => brought,
                false => once(&rig, &of, Depth::Rebuild),
            };
            assert_eq!((found.in_sync.len(), found.lacking.len()), (all.into(), 0));
            assert!(found.rotten > 0, "it is told");
            let listed = open(&rig.simulation, NEW).list().expect("listed");
            assert!(!listed.contains(&gone), "nothing was made up");
            // As long as one is away that may have it, it is not.
            let mut of = of;
            of.push((lost, lost, Draining));
            let found = once(&rig, &of, Depth::Rebuild);
            assert!(!found.in_sync.contains(&unit_id(NEW)), "{older} {lost}");
        }
    }
}
