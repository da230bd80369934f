//! Fences over crashes and failing disks.

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

/// Two records, byte by byte: what is written today must stay readable, or a restart would admit
/// older leases again. The bytes were computed without this code, from the head of `fences.rs`.
#[rustfmt::skip]
const FIXTURE: [u8; 32] = [
    0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,
    0x0c, 0x0b, 0x0a, 0x09, 0x5c, 0x62, 0xc0, 0x32,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x03, 0x00, 0x00, 0x00, 0x64, 0x3c, 0x42, 0x49,
];

#[test]
fn the_fixture_of_the_file_is_read_and_written() {
    let simulation = Simulation::new(8);
    let world = simulation.world();
    let fences = begin(&world);
    let (volume, database) = (Fence(0x0102_0304_0506_0708), Fence(0));
    fences.present(volume, 0x090a_0b0c).expect("recorded");
    fences.present(database, 3).expect("recorded");
    let path = Path::new("/unit/fences");
    let file = world.disk.open(path, OpenMode::Read).expect("there");
    assert_eq!(content_of(&*file).expect("read"), FIXTURE);

    let other = Simulation::new(9);
    let world = other.world();
    begin(&world);
    let file = world.disk.open(path, OpenMode::CreateNew).expect("new");
    append(&*file, 0, &FIXTURE).expect("written");
    let fences = load(&world);
    assert_eq!(fences.newest(volume), Some(0x090a_0b0c));
    assert_eq!(fences.newest(database), Some(3));
}

#[test]
fn every_flipped_bit_of_a_record_is_detected() {
    for bit in 0..RECORD_BYTES * 8 {
        let mut record = FIXTURE[..RECORD_BYTES].to_vec();
        record[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(lease_of(&record), None, "bit {bit}");
    }
}

fn is_older(presented: Result<(), FenceError>) -> bool {
    matches!(presented, Err(FenceError::Older { .. }))
}

#[test]
fn an_older_lease_is_refused_also_after_a_power_failure() {
    let mut simulation = Simulation::new(1);
    let fences = begin(&simulation.world());
    assert!(fences.enter(FENCE, 3).is_none(), "it was not presented");
    fences.present(FENCE, 3).expect("the first");
    fences.present(FENCE, 3).expect("the same");
    fences.present(Fence(6), 1).expect("another volume's");
    assert!(fences.enter(FENCE, 3).is_some());
    fences.present(FENCE, 7).expect("a newer one");
    assert!(is_older(fences.present(FENCE, 3)));
    assert!(fences.enter(FENCE, 3).is_none());
    simulation.crash();
    let fences = load(&simulation.world());
    assert!(is_older(fences.present(FENCE, 6)));
    assert!(fences.enter(FENCE, 7).is_some());
    assert!(fences.enter(Fence(6), 1).is_some());
}

/// A newer lease was recorded in the page cache only, and after a power failure an older one was
/// valid again.
#[test]
fn a_record_whose_sync_failed_is_rewritten_at_the_next_start() {
    let mut simulation = Simulation::new(6);
    let unit = Path::new("/unit");
    let fences = begin(&simulation.world());
    fences.present(FENCE, 3).expect("recorded");
    simulation.disk.inject(unit, Fault::SyncFails);
    let failed = fences.present(FENCE, 4);
    assert!(
        matches!(failed, Err(FenceError::NotRecorded(_))),
        "{failed:?}"
    );
    simulation.disk.heal(unit);
    simulation.kill();
    let fences = load(&simulation.world());
    fences.present(FENCE, 4).expect("presented again");
    simulation.crash();
    assert!(is_older(load(&simulation.world()).present(FENCE, 3)));
}

/// A daemon that was started before its disk was mounted accepted any lease as the newest.
#[test]
fn fences_count_although_the_unit_was_mounted_after_the_daemon_started() {
    let simulation = Simulation::new(7);
    let world = simulation.world();
    begin(&world).present(FENCE, 3).expect("recorded");
    let unit = Path::new("/unit");
    simulation.disk.inject(unit, Fault::Missing);
    let fences = load(&world);
    let failed = fences.present(FENCE, 2);
    assert!(
        matches!(failed, Err(FenceError::NotRecorded(_))),
        "{failed:?}"
    );
    simulation.disk.heal(unit);
    assert!(is_older(fences.present(FENCE, 2)));
    fences.present(FENCE, 3).expect("the newest");
}

/// The daemon did not start.
#[test]
fn fences_are_loaded_from_a_read_only_file_system() {
    let simulation = Simulation::new(5);
    let world = simulation.world();
    begin(&world).present(FENCE, 3).expect("recorded");
    let unit = Path::new("/unit");
    simulation.disk.inject(unit, Fault::ReadOnly);
    let fences = Fences::load(world.disk.within(unit)).expect("it can be read");
    assert!(fences.enter(FENCE, 3).is_some());
    assert!(is_older(fences.present(FENCE, 2)));
    let failed = fences.present(FENCE, 4);
    assert!(
        matches!(failed, Err(FenceError::NotRecorded(_))),
        "{failed:?}"
    );
    assert!(fences.enter(FENCE, 3).is_some(), "no newer one counts");
    simulation.disk.heal(unit);
    fences.present(FENCE, 4).expect("it can be written again");
    assert!(fences.enter(FENCE, 3).is_none());
    assert!(is_older(load(&world).present(FENCE, 3)));
}

#[test]
fn many_leases_do_not_make_the_file_grow_without_bound() {
    let simulation = Simulation::new(2);
    let world = simulation.world();
    let fences = begin(&world);
    for epoch in 1..4000 {
        fences
            .present(Fence(u64::from(epoch % 3)), epoch)
            .expect("newer");
    }
    let file = world.disk.open(Path::new("/unit/fences"), OpenMode::Read);
    let length = file.expect("there").length().expect("a length");
    assert!(length <= 16 * (1024 + 4 * 3 + 1), "{length}");
    assert!(is_older(load(&world).present(Fence(0), 3998)));
}

#[test]
fn a_torn_record_does_not_affect_others() {
    let simulation = Simulation::new(3);
    let world = simulation.world();
    begin(&world).present(FENCE, 3).expect("recorded");
    let file = world.disk.open(Path::new("/unit/fences"), OpenMode::Write);
    let file = file.expect("there");
    file.write_at(&record(FENCE, 9)[..11], 16).expect("cut");
    let fences = load(&world);
    assert!(is_older(fences.present(FENCE, 2)));
    fences
        .present(FENCE, 4)
        .expect("9 was never recorded completely");
    assert!(is_older(load(&world).present(FENCE, 3)));
}

#[test]
fn requests_under_an_older_lease_end_before_a_newer_one_counts() {
    let simulation = Simulation::new(4);
    let fences = begin(&simulation.world());
    fences.present(FENCE, 1).expect("the first");
    let passage = fences.enter(FENCE, 1).expect("it is the newest");
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let newer = scope.spawn(|| {
            fences.present(FENCE, 2).expect("newer");
            has_ended.load(Ordering::SeqCst)
        });
        // No request begins once the newer lease was presented.
        while fences.enter(FENCE, 1).is_some() {
            std::thread::yield_now();
        }
        has_ended.store(true, Ordering::SeqCst);
        drop(passage);
        assert!(newer.join().expect("no panic"), "it has waited");
    });
}
