//! Leases that are noted, over crashes and disks that fail.

use std::sync::atomic::{AtomicBool, Ordering};

use world::World;
use world::simulated::{Fault, Simulation};

use super::*;

const FENCE: Fence = Fence(5);

/// Of a new unit.
fn begin(world: &World) -> Fences {
    let unit = Path::new("/unit");
    world.disk.create_directory(unit).expect("a folder");
    let marker = unit.join(FolderUnit::MARKER);
    let made = world.disk.open(&marker, OpenMode::CreateNew);
    made.expect("a marker").sync_data().expect("synced");
    for folder in [unit, Path::new("/")] {
        world.disk.sync_directory(folder).expect("synced");
    }
    load(world)
}

fn load(world: &World) -> Fences {
    Fences::load(world.disk.within(Path::new("/unit"))).expect("loads")
}

fn is_older(shown: Result<(), FenceError>) -> bool {
    matches!(shown, Err(FenceError::Older { .. }))
}

#[test]
fn an_older_lease_is_refused_from_then_on_and_after_a_power_failure() {
    let mut simulation = Simulation::new(1);
    let fences = begin(&simulation.world());
    assert!(fences.enter(FENCE, 3).is_none(), "it was not shown");
    fences.show(FENCE, 3).expect("the first");
    fences.show(FENCE, 3).expect("the same");
    fences.show(Fence(6), 1).expect("another volume's");
    assert!(fences.enter(FENCE, 3).is_some());
    fences.show(FENCE, 7).expect("a newer one");
    assert!(is_older(fences.show(FENCE, 3)));
    assert!(fences.enter(FENCE, 3).is_none());
    simulation.crash();
    let fences = load(&simulation.world());
    assert!(is_older(fences.show(FENCE, 6)));
    assert!(fences.enter(FENCE, 7).is_some());
    assert!(fences.enter(Fence(6), 1).is_some());
}

/// A newer lease was noted in memory alone, and after the power failed an older one
/// counted again.
#[test]
fn what_a_failed_sync_left_in_memory_is_noted_anew_at_the_next_start() {
    let mut simulation = Simulation::new(6);
    let unit = Path::new("/unit");
    let fences = begin(&simulation.world());
    fences.show(FENCE, 3).expect("noted");
    simulation.disk.inject(unit, Fault::SyncFails);
    let unnoted = fences.show(FENCE, 4);
    assert!(
        matches!(unnoted, Err(FenceError::Unnoted(_))),
        "{unnoted:?}"
    );
    simulation.disk.heal(unit);
    simulation.kill();
    let fences = load(&simulation.world());
    fences.show(FENCE, 4).expect("shown again");
    simulation.crash();
    assert!(is_older(load(&simulation.world()).show(FENCE, 3)));
}

/// A daemon that was started before its disk was mounted took any lease for the
/// newest.
#[test]
fn what_was_noted_counts_also_if_the_unit_came_after_the_daemon() {
    let simulation = Simulation::new(7);
    let world = simulation.world();
    begin(&world).show(FENCE, 3).expect("noted");
    let unit = Path::new("/unit");
    simulation.disk.inject(unit, Fault::Missing);
    let fences = load(&world);
    let unnoted = fences.show(FENCE, 2);
    assert!(
        matches!(unnoted, Err(FenceError::Unnoted(_))),
        "{unnoted:?}"
    );
    simulation.disk.heal(unit);
    assert!(is_older(fences.show(FENCE, 2)));
    fences.show(FENCE, 3).expect("the newest");
}

/// It did not start at all.
#[test]
fn what_was_noted_is_known_where_nothing_can_be_written() {
    let simulation = Simulation::new(5);
    let world = simulation.world();
    begin(&world).show(FENCE, 3).expect("noted");
    let unit = Path::new("/unit");
    simulation.disk.inject(unit, Fault::ReadOnly);
    let fences = Fences::load(world.disk.within(unit)).expect("it can be read");
    assert!(fences.enter(FENCE, 3).is_some());
    assert!(is_older(fences.show(FENCE, 2)));
    let unnoted = fences.show(FENCE, 4);
    assert!(
        matches!(unnoted, Err(FenceError::Unnoted(_))),
        "{unnoted:?}"
    );
    assert!(fences.enter(FENCE, 3).is_some(), "no newer one counts");
    simulation.disk.heal(unit);
    fences.show(FENCE, 4).expect("it can be written again");
    assert!(fences.enter(FENCE, 3).is_none());
    assert!(is_older(load(&world).show(FENCE, 3)));
}

#[test]
fn many_leases_do_not_make_the_file_grow_for_ever() {
    let simulation = Simulation::new(2);
    let world = simulation.world();
    let fences = begin(&world);
    for epoch in 1..4000 {
        fences
            .show(Fence(u64::from(epoch % 3)), epoch)
            .expect("newer");
    }
    let file = world.disk.open(Path::new("/unit/fences"), OpenMode::Read);
    let length = file.expect("there").length().expect("a length");
    assert!(length <= 16 * (1024 + 4 * 3 + 1), "{length}");
    assert!(is_older(load(&world).show(Fence(0), 3998)));
}

#[test]
fn a_record_that_is_cut_costs_only_itself() {
    let simulation = Simulation::new(3);
    let world = simulation.world();
    begin(&world).show(FENCE, 3).expect("noted");
    let file = world.disk.open(Path::new("/unit/fences"), OpenMode::Write);
    let file = file.expect("there");
    file.write_at(&record(FENCE, 9)[..11], 16).expect("cut");
    let fences = load(&world);
    assert!(is_older(fences.show(FENCE, 2)));
    fences.show(FENCE, 4).expect("9 was never noted to its end");
    assert!(is_older(load(&world).show(FENCE, 3)));
}

#[test]
fn what_goes_on_under_an_older_lease_ends_before_a_newer_one_counts() {
    let simulation = Simulation::new(4);
    let fences = begin(&simulation.world());
    fences.show(FENCE, 1).expect("the first");
    let passage = fences.enter(FENCE, 1).expect("it is the newest");
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let newer = scope.spawn(|| {
            fences.show(FENCE, 2).expect("newer");
            has_ended.load(Ordering::SeqCst)
        });
        // No new one begins as soon as the newer is on its way.
        while fences.enter(FENCE, 1).is_some() {
            std::thread::yield_now();
        }
        has_ended.store(true, Ordering::SeqCst);
        drop(passage);
        assert!(newer.join().expect("no panic"), "it has waited");
    });
}
