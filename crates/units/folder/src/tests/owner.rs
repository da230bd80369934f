//! Two copies of one database never change a unit both.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{DatabaseId, Slot};
use testkit::units::conformance::{SLOT_BYTES, put, segment};
use unit::Owner;
use unit::{TrackedUnit, Unit as _, UnitError, UnitState};
use world::simulated::{Fault, Simulation};
use world::{OpenMode, World};

use super::faults::{assert_all, change_everything, look_at_everything};
use super::{PATH, cluster, unit_id};
use crate::FolderUnit;

fn owner(database: u128, generation: u32) -> Owner {
    Owner {
        database: DatabaseId::from_u128(database),
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
    let first = owned(&world, owner(1, 1), false).created().expect("made");
    put(&first, segment(1), SLOT_BYTES, 0, 4).expect("put");
    let operations = simulation.disk.operations();
    let copy = owned(&world, owner(2, 1), false);
    assert_all(change_everything(&copy), is_held);
    let held = copy.probe().expect_err("held").to_string();
    assert!(held.contains("/srv/1 on vm1"), "{held}");
    assert_eq!(simulation.disk.operations(), operations);
    for result in look_at_everything(&copy) {
        result.expect("it can be read");
    }
    assert!(copy.created().is_err_and(|error| is_held(&error)));
    // Other processes that work with the same database are no others.
    let same = owned(&world, owner(1, 1), false);
    same.probe().expect("the same database");
    put(&same, segment(2), SLOT_BYTES, 0, 4).expect("put");
    put(&first, segment(3), SLOT_BYTES, 0, 4).expect("put");
}

#[test]
fn a_unit_without_an_owner_with_a_replaced_one_or_by_order_is_claimed() {
    let world = Simulation::new(1).world();
    FolderUnit::create(&world, Path::new(PATH), cluster(), unit_id())
        .expect("created without an owner");
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

/// A unit that was unavailable when an owner was told to take over was later claimed from the
/// owner that had been told so since.
#[test]
fn a_unit_that_is_seen_late_is_not_taken_from_a_newer_owner() {
    let world = Simulation::new(1).world();
    let first = owned(&world, owner(1, 1), false).created().expect("made");
    first.probe().expect("its own");
    let (old, new) = (
        owned(&world, owner(2, 20), true),
        owned(&world, owner(3, 30), true),
    );
    new.probe().expect("the operator has said so");
    for _ in 0..2 {
        assert!(old.probe().is_err_and(|error| is_held(&error)));
        assert_all(change_everything(&old), is_held);
    }
    new.probe().expect("still its own");
}

fn tracked(world: &World, owner: Owner, takes_over: bool) -> (Arc<FolderUnit>, TrackedUnit) {
    let unit = Arc::new(owned(world, owner, takes_over));
    let tracked = TrackedUnit::new(Arc::clone(&unit) as _, Arc::clone(&world.clock));
    (unit, tracked)
}

/// It was shown as missing, held or not claimed for any reason, and its content was not even
/// read.
#[test]
fn a_unit_that_cannot_be_claimed_says_why_and_can_be_read() {
    let is_full: fn(&UnitError) -> bool = |error| matches!(error, UnitError::Full { .. });
    let is_read_only: fn(&UnitError) -> bool = |error| matches!(error, UnitError::ReadOnly { .. });
    for (fault, state, is_meant) in [
        (Fault::Full, UnitState::Full, is_full),
        (Fault::ReadOnly, UnitState::ReadOnly, is_read_only),
    ] {
        for (holder, takes_over) in [
            (None, false),
            (Some(owner(1, 1)), false),
            (Some(owner(1, 2)), true),
        ] {
            let simulation = Simulation::new(1);
            let world = simulation.world();
            let first = match holder {
                None => FolderUnit::create(&world, Path::new(PATH), cluster(), unit_id()),
                Some(holder) => owned(&world, holder, false).created(),
            };
            let first = first.expect("made");
            first.probe().expect("well");
            put(&first, segment(1), SLOT_BYTES, 0, 4).expect("put");
            first.sync(&[segment(1)]).expect("synced");
            simulation.disk.inject(Path::new(PATH), fault);

            let (second, tracked) = tracked(&world, owner(2, 2), takes_over);
            assert!(tracked.probe().is_err_and(|error| is_meant(&error)));
            for result in look_at_everything(&second) {
                result.expect("it can be read");
            }
            tracked.stat().expect("asked");
            assert!(tracked.free(segment(1), &[Slot(0)], false).is_err());
            assert_eq!(tracked.state(), state);
            assert_all(change_everything(&second), is_meant);
            let found = FolderUnit::identify(&world, Path::new(PATH)).expect("a marker");
            assert_ne!(
                found.owner.map(|owner| owner.database),
                Some(owner(2, 2).database)
            );

            simulation.disk.heal(Path::new(PATH));
            tracked.probe().expect("claimed");
            assert_eq!(tracked.state(), UnitState::Healthy);
            put(&*second, segment(2), SLOT_BYTES, 0, 4).expect("put");
        }
    }
}

/// What makes room was refused for want of the claim, and the claim for want
/// of room.
#[test]
fn a_full_unit_is_claimed_with_the_room_of_its_probe() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let first = owned(&world, owner(1, 1), false).created().expect("made");
    first.probe().expect("well");
    put(&first, segment(1), SLOT_BYTES, 0, 64).expect("put");
    first.sync(&[segment(1)]).expect("synced");
    drop(first);
    let room = |(path, _): (PathBuf, u64)| {
        let file = world.disk.open(&path, OpenMode::Read).expect("there");
        file.allocated().expect("known")
    };
    let files = simulation.disk.files_under(Path::new(PATH));
    let taken = files.into_iter().map(room).sum();
    simulation.disk.set_capacity(Path::new(PATH), taken);
    let second = owned(&world, owner(2, 2), false);
    let full = second.probe().expect_err("no room at all");
    assert!(matches!(full, UnitError::Full { .. }), "{full}");
    second
        .free(segment(1), &[Slot(0)], false)
        .expect("freeing needs no room");
    simulation.disk.set_capacity(Path::new(PATH), 64 << 20);
    second.probe().expect("room again");
}

#[test]
fn a_crash_while_a_unit_is_claimed_leaves_a_whole_marker() {
    let mut claims = 0;
    for after in 0..16 {
        let mut simulation = Simulation::new(after);
        let world = simulation.world();
        let first = owned(&world, owner(1, 1), false).created().expect("made");
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

/// The next process found its own name in the marker and asked no more: after
/// a power failure the unit belonged to the one that had been replaced.
#[test]
fn a_claim_that_was_cut_short_is_durable_once_it_is_found() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(seed);
        let first = owned(&simulation.world(), owner(1, 1), false).created();
        first.expect("made").probe().expect("its own");
        let second = owned(&simulation.world(), owner(2, 2), true);
        second
            .segments
            .root
            .replace_marker()
            .expect("renamed, and not synced");
        drop(second);
        simulation.kill();
        let second = owned(&simulation.world(), owner(2, 2), false);
        second.probe().expect("its own");
        simulation.crash();
        let found = FolderUnit::identify(&simulation.world(), Path::new(PATH)).expect("whole");
        let found = found.owner.expect("claimed").database;
        assert_eq!(found, owner(2, 2).database, "seed {seed}");
    }
}

/// All claims used one draft name: the first one renamed the empty draft of the next, and the
/// folder was no unit any more.
#[test]
fn of_two_that_claim_a_unit_at_once_neither_takes_the_others_draft() {
    let world = Simulation::new(1).world();
    FolderUnit::create(&world, Path::new(PATH), cluster(), unit_id())
        .expect("created without an owner");
    let (one, other) = (
        owned(&world, owner(1, 1), false),
        owned(&world, owner(2, 1), false),
    );
    one.segments.root.write_draft().expect("written");
    drop(other.segments.root.begin_draft().expect("begun"));
    one.segments.root.rename_draft().expect("renamed");
    let found = FolderUnit::identify(&world, Path::new(PATH)).expect("whole");
    let found = found.owner.expect("claimed").database;
    assert_eq!(found, owner(1, 1).database);

    // What the other one has left goes with the next claim.
    let drafts = || {
        let names = world.disk.list(Path::new(PATH)).expect("listed");
        names
            .iter()
            .filter(|entry| entry.name.contains("draft"))
            .count()
    };
    assert_eq!(drafts(), 1);
    owned(&world, owner(3, 3), false).probe().expect("claimed");
    assert_eq!(drafts(), 0);
}

#[test]
fn a_unit_that_was_half_made_by_another_is_made() {
    let world = Simulation::new(1).world();
    world.disk.create_directory(Path::new(PATH)).expect("made");
    let one = owned(&world, owner(1, 1), false);
    one.segments.root.write_draft().expect("and no further");
    let other = owned(&world, owner(2, 1), false).created().expect("made");
    other.probe().expect("its own");
    let names = world.disk.list(Path::new(PATH)).expect("listed");
    assert!(
        names.iter().all(|entry| !entry.name.contains("draft")),
        "{names:?}"
    );
}
