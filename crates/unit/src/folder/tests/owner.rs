//! Two copies of one database never change a unit both.

use std::path::Path;

use base::DatabaseId;
use world::World;
use world::simulated::Simulation;

use super::faults::{assert_all, change_everything};
use super::{PATH, cluster, unit_id};
use crate::conformance::{SLOT_BYTES, put, segment};
use crate::folder::Owner;
use crate::{FolderUnit, Unit as _, UnitError};

fn owner(database: u128, generation: u32) -> Owner {
    Owner {
        database: DatabaseId::from_random(database),
        generation,
        place: format!("/srv/{database} on vm1"),
    }
}

fn owned(world: &World, owner: Owner, takes_over: bool) -> FolderUnit {
    FolderUnit::open(world, Path::new(PATH), cluster(), unit_id()).with_owner(owner, takes_over)
}

fn is_held(error: &UnitError) -> bool {
    matches!(error, UnitError::Held { .. })
}

/// A folder was copied and both were served: each handed out the same segments
/// and freed what the other needed.
#[test]
fn a_unit_that_another_copy_uses_is_not_changed() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let first = owned(&world, owner(1, 1), false).made().expect("made");
    put(&first, segment(1), SLOT_BYTES, 0, 4).expect("put");
    let operations = simulation.disk.operations();
    let copy = owned(&world, owner(2, 1), false);
    assert_all(change_everything(&copy), is_held);
    let held = copy.probe().expect_err("held").to_string();
    assert!(held.contains("/srv/1 on vm1"), "{held}");
    assert_eq!(simulation.disk.operations(), operations);
    assert!(copy.made().is_err_and(|error| is_held(&error)));
    // Other processes that work with the same database are no others.
    let same = owned(&world, owner(1, 1), false);
    same.probe().expect("the same database");
    put(&same, segment(2), SLOT_BYTES, 0, 4).expect("put");
    put(&first, segment(3), SLOT_BYTES, 0, 4).expect("put");
}

#[test]
fn a_unit_is_claimed_from_nobody_from_the_replaced_and_by_order() {
    let world = Simulation::new(1).world();
    FolderUnit::create(&world, Path::new(PATH), cluster(), unit_id()).expect("made by nobody");
    let first = owned(&world, owner(1, 1), false);
    assert!(put(&first, segment(1), SLOT_BYTES, 0, 4).is_err());
    first.probe().expect("claimed");
    put(&first, segment(1), SLOT_BYTES, 0, 4).expect("put");

    let second = owned(&world, owner(2, 2), false);
    second.probe().expect("generation 1 has been replaced");
    assert!(first.probe().is_err_and(|error| is_held(&error)));
    assert_all(change_everything(&first), is_held);

    let third = owned(&world, owner(3, 2), true);
    third.probe().expect("the operator has said so");
    assert!(second.probe().is_err_and(|error| is_held(&error)));
    let fourth = owned(&world, owner(4, 2), true);
    fourth.probe().expect("and again");
    let again = third.probe();
    assert!(again.is_err_and(|error| is_held(&error)), "once is once");
}

#[test]
fn a_crash_while_a_unit_is_claimed_leaves_a_whole_marker() {
    let mut claims = 0;
    for after in 0..16 {
        let mut simulation = Simulation::new(after);
        let world = simulation.world();
        let first = owned(&world, owner(1, 1), false).made().expect("made");
        first.probe().expect("its own");
        let second = owned(&world, owner(2, 2), false);
        simulation
            .disk
            .arm_crash(simulation.disk.operations() + after);
        let claimed = second.probe().is_ok();
        claims += u32::from(claimed);
        simulation.crash();
        let found = FolderUnit::identify(&simulation.world(), Path::new(PATH)).expect("whole");
        let found = found.owner.expect("one of both").database;
        let second = owner(2, 2).database;
        assert!(found == second || (found == owner(1, 1).database && !claimed));
    }
    assert!(
        (1..16).contains(&claims),
        "{claims}: some came to their end"
    );
}
