//! Large writes that go to units first.

use base::{BlockDevice, Durability, Started, VolumeId};
use sim::setup::Setup;
use volume::catalog::Catalog;
use volume::{StreamConfig, Volume};
use world::Millis;
use world::simulated::Fault;

use crate::bench::Bench;

const BLOCKS: u64 = 8;

fn setup(units: usize, replicas: u8) -> Setup {
    Setup {
        stream: StreamConfig {
            write_bytes_min: 4 * 4096,
            after_bytes: 0,
            settle_bytes: 1 << 20,
            cut_bytes: 1 << 20,
        },
        ..Setup::quiet(units, replicas)
    }
}

fn attached(units: usize, replicas: u8) -> (Bench, VolumeId, Volume) {
    let mut bench = Bench::with(setup(units, replicas));
    let id = bench.create(None);
    let volume = bench.attach(id);
    (bench, id, volume)
}

/// Starts a large write; it is not done yet.
fn start(volume: &mut Volume, token: u64, first: u64, byte: u8) {
    let data = vec![byte; BLOCKS as usize * 4096];
    let started = volume.write(token, first * 4096, &data, Durability::Volatile);
    assert_eq!(started, Started::Pending, "it goes to units first");
    volume.commit().expect("the journal is well");
}

/// Writes, and waits until that is done.
fn stream(bench: &Bench, volume: &mut Volume, first: u64, byte: u8) {
    start(volume, 9, first, byte);
    let answers = bench.turn(volume, 20);
    let answer = answers.iter().find(|answer| answer.token == 9);
    assert!(answer.expect("an answer").result.is_ok());
}

fn free_what_is_due(bench: &Bench) {
    let due = bench.machine.catalog.due_frees(Millis(i64::MAX));
    for due in due.expect("listed") {
        bench.machine.cleaner().carry_out(&due).expect("freed");
    }
}

fn assert_holds(bench: &Bench, volume: &mut Volume, blocks: std::ops::Range<u64>, byte: u8) {
    for block in blocks {
        assert_eq!(bench.read(volume, block), Ok(byte), "block {block}");
    }
}

#[test]
fn a_stream_is_read_before_and_after_it_is_committed() {
    let (bench, id, mut volume) = attached(4, 2);
    stream(&bench, &mut volume, 0, 1);
    stream(&bench, &mut volume, 4, 2);
    assert_eq!(volume.status().counters.blocks_streamed, 2 * BLOCKS);
    assert_holds(&bench, &mut volume, 0..4, 1);
    assert_holds(&bench, &mut volume, 4..12, 2);
    bench.close(volume);
    // The four that were overwritten before a version named them are gone.
    free_what_is_due(&bench);
    bench.audit();
    let mut volume = bench.attach(id);
    assert_holds(&bench, &mut volume, 0..4, 1);
    assert_holds(&bench, &mut volume, 4..12, 2);
}

#[test]
fn what_was_flushed_survives_a_power_failure() {
    let (mut bench, id, mut volume) = attached(4, 2);
    stream(&bench, &mut volume, 0, 1);
    bench.write(&mut volume, 2..3, 7);
    bench.flush(&mut volume).expect("flushed");
    stream(&bench, &mut volume, 0, 3);
    drop(volume);
    bench.machine.crash();
    let mut volume = bench.attach(id);
    let newest = bench.read(&mut volume, 0).expect("there");
    assert!([1, 3].contains(&newest), "{newest}");
    if newest == 1 {
        assert_holds(&bench, &mut volume, 2..3, 7);
        assert_holds(&bench, &mut volume, 3..BLOCKS, 1);
    }
    bench
        .flush(&mut volume)
        .expect("what was found is placed anew");
    bench.close(volume);
    // What the power failure left is swept after the first commit, or later.
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 20);
    bench.close(volume);
    free_what_is_due(&bench);
    bench.audit();
}

#[test]
fn what_was_acknowledged_survives_the_process() {
    let (mut bench, id, mut volume) = attached(4, 1);
    stream(&bench, &mut volume, 0, 1);
    stream(&bench, &mut volume, 20, 2);
    drop(volume);
    bench.machine.kill();
    let mut volume = bench.attach(id);
    assert_holds(&bench, &mut volume, 0..BLOCKS, 1);
    assert_holds(&bench, &mut volume, 20..20 + BLOCKS, 2);
    // A flush now covers what was found, too.
    bench.flush(&mut volume).expect("placed anew");
    drop(volume);
    bench.machine.crash();
    let mut volume = bench.attach(id);
    assert_holds(&bench, &mut volume, 0..BLOCKS, 1);
    assert_holds(&bench, &mut volume, 20..20 + BLOCKS, 2);
    bench.close(volume);
    bench.audit();
}

/// The unit takes the blocks and loses them when it is to make them durable:
/// they are journaled again, and the log must not end where it names the lost
/// slots.
#[test]
fn what_a_unit_loses_at_its_sync_is_journaled_and_survives() {
    let (mut bench, id, mut volume) = attached(4, 1);
    stream(&bench, &mut volume, 0, 1);
    for unit in 0..4 {
        let path = bench.machine.unit_path(unit);
        bench
            .machine
            .simulation
            .disk
            .inject(&path, Fault::SyncFails);
    }
    bench.flush(&mut volume).expect("the journal is well");
    drop(volume);
    bench.machine.crash();
    for unit in 0..4 {
        bench
            .machine
            .simulation
            .disk
            .heal(&bench.machine.unit_path(unit));
    }
    bench.machine.probe(true);
    let mut volume = bench.attach(id);
    assert_holds(&bench, &mut volume, 0..BLOCKS, 1);
    bench.close(volume);
    bench.audit();
}

#[test]
fn with_no_unit_left_a_stream_goes_through_the_journal() {
    let (bench, _, mut volume) = attached(2, 1);
    for unit in 0..2 {
        let path = bench.machine.unit_path(unit);
        bench.machine.simulation.disk.inject(&path, Fault::Full);
    }
    stream(&bench, &mut volume, 0, 1);
    assert_eq!(volume.status().counters.blocks_streamed, 0);
    assert_holds(&bench, &mut volume, 0..BLOCKS, 1);
}

/// A snapshot holds what was acknowledged when it was asked for, and not what
/// is done later, though streams are on their way.
#[test]
fn a_snapshot_waits_for_what_was_acknowledged_and_for_nothing_else() {
    let (mut bench, _, mut volume) = attached(4, 1);
    stream(&bench, &mut volume, 0, 1);
    start(&mut volume, 5, 4, 2);
    volume.snapshot(base::SnapshotId::from_random(1));
    let refused = volume.write(6, 0, &[3; 4096], Durability::Volatile);
    assert_eq!(refused, Started::Busy, "until the cut is made");
    let answers = bench.turn(&mut volume, 40);
    assert!(answers.iter().any(|answer| answer.token == 5));
    let name = base::SnapshotId::from_random(1);
    let snapshot = bench.machine.catalog.memory.snapshot(name);
    let snapshot = snapshot.expect("completed");
    assert_holds(&bench, &mut volume, 4..12, 2);
    bench.close(volume);
    let clone = bench.create(Some(snapshot));
    let mut clone = bench.attach(clone);
    assert_holds(&bench, &mut clone, 0..8, 1);
    assert_holds(&bench, &mut clone, 8..12, 0);
}
