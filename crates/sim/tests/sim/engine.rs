//! Scenarios of the engine; most of them are bugs that the simulator found.

use std::collections::BTreeSet;

use base::{BlockDevice, BlockSize, Durability, IoError, Request, Started};
use catalog::{Catalog, VersionKey};
use volume::Volume;
use volume::clean::Removal;
use world::simulated::Fault;

use crate::bench::Bench;

/// The cleaner compared a version with its parent and its children. When the snapshot at
/// which a volume and its clone branched was removed, the two became unrelated roots:
/// removing a version of one freed slots that the other still read.
#[test]
fn a_version_at_which_several_branches_begin_is_kept() {
    let mut bench = Bench::new(2, 1);
    let one = bench.create(None);
    let mut volume = bench.attach(one);
    bench.write(&mut volume, 0..4, 1);
    bench.close(volume);
    let base = bench.head(one);
    let two = bench.create(Some(base));
    for id in [one, two] {
        let mut volume = bench.attach(id);
        bench.write(&mut volume, 3..4, 2);
        bench.close(volume);
    }
    assert_eq!(
        bench.remove(base),
        Removal::Needed,
        "two branches begin there"
    );
    let first = bench.head(one);
    bench.machine.catalog.memory.delete_volume(one);
    assert!(matches!(bench.remove(first), Removal::Removed { .. }));
    bench.audit();
    assert!(
        matches!(bench.remove(base), Removal::Removed { .. }),
        "one branch is left"
    );
    bench.audit();
    let mut volume = bench.attach(two);
    assert_eq!(bench.read(&mut volume, 0), Ok(1));
    assert_eq!(bench.read(&mut volume, 3), Ok(2));
}

/// A version was placed on draining units, and committed after they were removed. Now the
/// commit is refused, the blocks are placed again, and the first placement is freed.
#[test]
fn a_version_on_removed_members_is_placed_again() {
    let mut bench = Bench::new(3, 2);
    let id = bench.create(None);
    for refused in 1..4_u8 {
        let mut volume = bench.attach(id);
        bench.machine.catalog.change_members(refused.into());
        bench.write(&mut volume, 0..24, refused);
        bench.close(volume);
        let records = bench.machine.catalog.take_records();
        let placed: BTreeSet<VersionKey> = records.iter().map(|record| record.key).collect();
        assert_eq!(
            placed.len(),
            records.len(),
            "each commit has a new placement"
        );
        assert!(placed.len() > refused.into());
        bench.audit();
    }
    let mut volume = bench.attach(id);
    for block in 0..24 {
        assert_eq!(bench.read(&mut volume, block), Ok(3));
    }
}

/// After a failed put the placer forgot its segment, and with it the slots that an earlier
/// put of the same destage had filled. The version named them, the ledger did not, and the
/// next attach swept them.
#[test]
fn an_abandoned_segment_keeps_the_slots_that_a_version_names() {
    for operation in 0..60 {
        let mut bench = Bench::new(3, 1);
        let id = bench.create(None);
        let mut volume = bench.attach(id);
        bench.write(&mut volume, 0..24, 1);
        volume.begin_close();
        // In each round the unit breaks one operation later.
        let disk = &bench.machine.simulation.disk;
        let start = disk.operations();
        let mut broken = None;
        for _ in 0..400 {
            if broken.is_none() && disk.operations() >= start + operation {
                disk.inject(&bench.machine.unit_path(0), Fault::Broken);
                broken = Some(());
            }
            bench.turn(&mut volume, 1);
        }
        volume
            .close_state()
            .expect("closed")
            .expect("the other units took the writes");
        drop(volume);
        disk.heal(&bench.machine.unit_path(0));
        bench.machine.probe(true);
        let mut volume = bench.attach(id);
        bench.turn(&mut volume, 40);
        for block in 0..24 {
            assert_eq!(
                bench.read(&mut volume, block),
                Ok(1),
                "block {block}, operation {operation}"
            );
        }
        bench.close(volume);
        bench.audit();
    }
}

/// The slots of a failed destage were counted as committed by the next successful one: no
/// version named them, and they stayed for ever.
#[test]
fn a_failed_destage_leaves_no_leftovers() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for round in 1..6 {
        bench.write(&mut volume, 0..8, round);
        let disk = &bench.machine.simulation.disk;
        disk.inject(&bench.machine.unit_path(0), Fault::SyncFails);
        disk.inject(&bench.machine.unit_path(1), Fault::Full);
        volume.snapshot(base::SnapshotId::from_u128(u128::from(round)));
        bench.turn(&mut volume, 30);
        assert!(volume.status().destage_error.is_some(), "round {round}");
        for unit in 0..2 {
            disk.heal(&bench.machine.unit_path(unit));
        }
        bench.turn(&mut volume, 60);
        assert_eq!(volume.status().destage_error, None);
    }
    bench.close(volume);
    // Leftovers that could not be freed are swept by the next lease.
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 20);
    bench.close(volume);
    bench.audit();
}

/// A fenced owner that needed segment serials before it could commit took the refusal for a
/// transient error of the catalog: it kept admitting writes, and retried for ever.
#[test]
fn a_fenced_owner_stops_and_changes_nothing() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let mut old = bench.attach(id);
    bench.write(&mut old, 0..4, 1);
    bench.flush(&mut old).expect("durable");
    let lease = bench
        .machine
        .catalog
        .acquire(id, bench.machine.salt(), None)
        .expect("another host takes over");
    bench.turn(&mut old, 60);
    assert!(old.status().stopped.is_some());
    let refused = old.start(Request::write(1, 0, &[9; 4096], Durability::Volatile));
    assert!(
        matches!(refused, Started::Failed(IoError::Stopped(_))),
        "{refused:?}"
    );
    assert_eq!(
        bench.machine.catalog.memory.head(id),
        None,
        "it committed nothing"
    );
    drop(old);
    let mut new = bench.machine.open(lease).expect("it opens");
    for block in 0..4 {
        assert_eq!(
            bench.read(&mut new, block),
            Ok(1),
            "the journal has the acknowledged writes"
        );
    }
    bench.close(new);
    let mut new = bench.attach(id);
    bench.turn(&mut new, 20);
    bench.close(new);
    bench.audit();
}

/// A volume was dropped while a unit did not respond to a call of its job. The next lease
/// swept; then the unit responded, and the job put further slots, which no version named
/// and nothing freed.
#[test]
fn a_job_of_a_dropped_volume_leaves_no_leftovers() {
    let mut bench = Bench::new(2, 2);
    for _ in 0..20 {
        let id = bench.create(None);
        let mut old = bench.attach(id);
        bench.write(&mut old, 0..4, 1);
        bench.turn(&mut old, 40);
        assert!(old.status().head.is_some(), "its segments are open");
        bench.write(&mut old, 0..4, 2);
        old.begin_close();
        drop(old);
        let mut new = bench.attach(id);
        // The old job and the new sweep run in random order.
        bench.turn(&mut new, 40);
        for block in 0..4 {
            assert_eq!(bench.read(&mut new, block), Ok(2));
        }
        bench.close(new);
        bench.audit();
    }
}

/// After a failed sync, Linux considers the pages clean. A volume that was opened again
/// found its records in the page cache, and the sync of its next flush had nothing to
/// write. The power failed, and acknowledged blocks were lost.
#[test]
fn a_flush_after_a_failed_flush_makes_all_writes_durable() {
    for seed in 0..20 {
        let mut bench = Bench::new(2, 1);
        let id = bench.create(None);
        let mut volume = bench.attach(id);
        bench.write(&mut volume, 0..6, 1 + seed);
        bench
            .machine
            .simulation
            .disk
            .inject(&bench.machine.journal_folder(), Fault::SyncFails);
        bench.flush(&mut volume).expect_err("the sync fails");
        drop(volume);
        bench
            .machine
            .simulation
            .disk
            .heal(&bench.machine.journal_folder());
        let mut volume = bench.attach(id);
        for block in 0..6 {
            assert_eq!(
                bench.read(&mut volume, block),
                Ok(1 + seed),
                "it was acknowledged"
            );
        }
        bench.write(&mut volume, 6..7, 1 + seed);
        bench.flush(&mut volume).expect("the disk works again");
        drop(volume);
        bench.machine.crash();
        let mut volume = bench.attach(id);
        for block in 0..7 {
            assert_eq!(bench.read(&mut volume, block), Ok(1 + seed), "seed {seed}");
        }
    }
}

/// Writes until the journal is full. Returns the error if writes are refused; `None` if
/// they wait.
fn write_until_full(bench: &Bench, volume: &mut Volume) -> Option<IoError> {
    let mut waits = 0;
    for turn in 0..2000 {
        match volume.start(Request::write(
            1,
            turn % 60 * 4096,
            &[2; 4096],
            Durability::Volatile,
        )) {
            Started::Failed(error) => return Some(error),
            Started::Busy => waits += 1,
            _ => volume.end_batch().expect("the journal works"),
        }
        bench.turn(volume, 2);
    }
    assert!(waits > 1000, "it waited {waits} times");
    None
}

/// Fills a journal while all units have a fault, and continues after they were healed.
/// Returns the error of refused writes, and the result of a read while the journal is full.
fn fill_journal_with(fault: Fault) -> (Option<IoError>, Result<u8, IoError>) {
    let mut bench = Bench::new(2, 2);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    bench.write(&mut volume, 0..8, 1);
    let units = [0, 1].map(|unit| bench.machine.unit_path(unit));
    for unit in &units {
        bench.machine.simulation.disk.inject(unit, fault);
    }
    let refusal = write_until_full(&bench, &mut volume);
    let read = bench.read(&mut volume, 0);
    for unit in &units {
        bench.machine.simulation.disk.heal(unit);
    }
    bench.turn(&mut volume, 200);
    bench.write(&mut volume, 0..8, 3);
    bench.close(volume);
    bench.audit();
    let mut volume = bench.attach(id);
    assert_eq!(bench.read(&mut volume, 7), Ok(3));
    (refusal, read)
}

#[test]
fn full_units_refuse_writes_until_there_is_room_again() {
    let (refusal, read) = fill_journal_with(Fault::Full);
    assert!(matches!(refusal, Some(IoError::NoSpace(_))), "{refusal:?}");
    assert_eq!(read, Ok(2), "reads are answered");
}

/// Units were restarted while a journal was full, and the guest got I/O errors.
#[test]
fn writes_wait_for_unavailable_units() {
    let (refusal, _) = fill_journal_with(Fault::Missing);
    assert_eq!(refusal, None);
}

/// A sweep skipped segments that it did not find. But a delete empties the file before it
/// removes it: if the power failed in between, the empty file stayed for ever.
#[test]
fn an_interrupted_sweep_is_completed_by_the_next_one() {
    for cut_destage in [3, 9, 14, 20, 27] {
        for cut_sweep in 0..12 {
            let mut bench = Bench::new(2, 1);
            let id = bench.create(None);
            let mut volume = bench.attach(id);
            bench.write(&mut volume, 0..12, 1);
            bench.flush(&mut volume).expect("durable");
            let disk = &bench.machine.simulation.disk;
            disk.arm_crash(disk.operations() + cut_destage);
            volume.begin_close();
            bench.turn(&mut volume, 30);
            drop(volume);
            bench.machine.crash();
            let disk = &bench.machine.simulation.disk;
            disk.arm_crash(disk.operations() + cut_sweep);
            let lease = bench.machine.acquire(id);
            if let Ok(mut volume) = bench.machine.open(lease) {
                bench.turn(&mut volume, 30);
            }
            bench.machine.crash();
            for _ in 0..2 {
                let mut volume = bench.attach(id);
                bench.turn(&mut volume, 30);
                for block in 0..12 {
                    assert_eq!(bench.read(&mut volume, block), Ok(1));
                }
                bench.close(volume);
            }
            bench.audit();
        }
    }
}

/// A write that had waited for the rest of its block was acknowledged before its batch was
/// written. The journal's disk failed just then: the volume stopped, and an acknowledged
/// write was lost.
#[test]
fn a_write_that_waited_is_not_acknowledged_if_the_journal_fails() {
    let mut setup = sim::setup::Setup::quiet(1, 1);
    setup.read_misses_one_in = 1;
    let mut bench = Bench::with(setup);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    bench.write(&mut volume, 0..1, 1);
    let started = volume.start(Request::write(7, 100, &[2; 100], Durability::Volatile));
    assert_eq!(
        started,
        Started::Pending,
        "the block's other bytes are read first"
    );
    volume.end_batch().expect("the journal works");
    let host = bench.machine.journal_folder();
    bench.machine.simulation.disk.inject(&host, Fault::ReadOnly);
    let answers = bench.turn(&mut volume, 10);
    let answer = answers
        .into_iter()
        .find(|answer| answer.token == 7)
        .expect("an answer");
    assert!(
        matches!(answer.result, Err(IoError::Stopped(_))),
        "{:?}",
        answer.result
    );
}

/// A request covered a block in the journal's batch and a block on units. Its job was quicker
/// than the owner: it read the journal's file before the batch was written, took the old
/// content for damage, and the guest got an I/O error.
#[test]
fn a_job_reads_blocks_only_after_they_are_in_the_journals_file() {
    let mut setup = sim::setup::Setup::quiet(1, 1);
    setup.read_misses_one_in = 1;
    setup.jobs_at_once_one_in = 1;
    let mut bench = Bench::with(setup);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    bench.write(&mut volume, 0..2, 1);
    bench.close(volume);
    let mut volume = bench.attach(id);
    let block = BlockSize::DEFAULT.bytes();
    let (mut out, half) = (vec![0; 2 * block], block as u64 / 2);
    let content = vec![2; block];
    let requests = [
        volume.start(Request::write(1, 0, &content, Durability::Volatile)),
        volume.start(Request::read(2, 0, &mut out)),
        volume.start(Request::write(3, half, &content, Durability::Volatile)),
        volume.start(Request::prefetch(4, 0, 2 * block as u64)),
    ];
    let waits = [false, true, true, true];
    for (started, waits) in requests.iter().zip(waits) {
        let expected = if waits {
            Started::Pending
        } else {
            Started::Done
        };
        assert_eq!(*started, expected);
    }
    volume.end_batch().expect("the journal works");
    let answers = bench.turn(&mut volume, 30);
    for token in [2, 3, 4] {
        let answer = answers.iter().find(|answer| answer.token == token);
        let result = &answer.expect("an answer").result;
        assert!(result.is_ok(), "{token}: {result:?}");
    }
}
