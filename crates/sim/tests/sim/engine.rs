//! Stories of the engine, most of them of bugs that the simulator found.

use std::collections::BTreeSet;

use base::{BlockDevice, BlockSize, Durability, IoError, Request, Started};
use volume::Volume;
use volume::catalog::{Catalog, VersionKey};
use volume::clean::Removal;
use world::simulated::Fault;

use crate::bench::Bench;

/// The cleaner compared a version with the one below and those above. When a
/// snapshot was removed that a volume and its clone both went on from, the two
/// became roots that did not know of each other: expiring a version of one
/// freed slots that the other still read.
#[test]
fn a_version_that_others_branch_off_from_stays() {
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

/// A version was placed while units were drained, and committed when they were members
/// no more. Now it is refused, and placed anew, and what was placed first is freed.
#[test]
fn what_members_have_left_from_is_placed_anew() {
    let mut bench = Bench::new(3, 2);
    let id = bench.create(None);
    for refused in 1..4_u8 {
        let mut volume = bench.attach(id);
        bench.machine.catalog.change_members(refused.into());
        bench.write(&mut volume, 0..24, refused);
        bench.close(volume);
        let records = bench.machine.catalog.take_records();
        let anew: BTreeSet<VersionKey> = records.iter().map(|record| record.key).collect();
        assert_eq!(anew.len(), records.len(), "each was placed anew");
        assert!(anew.len() > refused.into());
        bench.audit();
    }
    let mut volume = bench.attach(id);
    for block in 0..24 {
        assert_eq!(bench.read(&mut volume, block), Ok(3));
    }
}

/// A put that failed made the dealer forget its segment, and with it the slots
/// that an earlier put of the same destage had filled there. The version named
/// them, the ledger did not, and the next attach swept them away.
#[test]
fn a_segment_given_up_half_way_keeps_what_the_version_names() {
    for operation in 0..60 {
        let mut bench = Bench::new(3, 1);
        let id = bench.create(None);
        let mut volume = bench.attach(id);
        bench.write(&mut volume, 0..24, 1);
        volume.begin_close();
        // Operation by operation, one unit breaks a little later.
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
            .expect("the others took it");
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

/// What a destage had placed before it failed was counted as committed by the
/// next one that went well: slots that no version named, for ever.
#[test]
fn a_destage_that_fails_leaves_nothing_behind() {
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
    // What could not be freed then is swept by the next lease.
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 20);
    bench.close(volume);
    bench.audit();
}

/// An owner that had lost its lease and needed segment serials before it could
/// commit took the refusal for a bad day of the catalog: it went on admitting
/// writes, and tried again for ever.
#[test]
fn an_owner_that_was_fenced_stops_and_changes_nothing() {
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
            "the journal has what was acknowledged"
        );
    }
    bench.close(new);
    let mut new = bench.attach(id);
    bench.turn(&mut new, 20);
    bench.close(new);
    bench.audit();
}

/// A volume was closed although a unit kept a call to itself. The next lease
/// swept; then the unit answered after all, and the job went on putting what
/// nobody would ever name or free.
#[test]
fn a_job_that_nobody_waits_for_leaves_nothing_behind() {
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
        // The old job and the new sweep, in whichever order.
        bench.turn(&mut new, 40);
        for block in 0..4 {
            assert_eq!(bench.read(&mut new, block), Ok(2));
        }
        bench.close(new);
        bench.audit();
    }
}

/// After a sync that failed, Linux takes the pages for clean. A volume that
/// was opened again found its records in the page cache, and its next flush
/// returned at once from a sync that had nothing to write. The power failed,
/// and acknowledged blocks were gone.
#[test]
fn a_flush_after_a_failed_one_saves_what_the_failed_one_lost() {
    for seed in 0..20 {
        let mut bench = Bench::new(2, 1);
        let id = bench.create(None);
        let mut volume = bench.attach(id);
        bench.write(&mut volume, 0..6, 1 + seed);
        bench
            .machine
            .simulation
            .disk
            .inject(&bench.machine.host(), Fault::SyncFails);
        bench.flush(&mut volume).expect_err("the sync fails");
        drop(volume);
        bench.machine.simulation.disk.heal(&bench.machine.host());
        let mut volume = bench.attach(id);
        for block in 0..6 {
            assert_eq!(
                bench.read(&mut volume, block),
                Ok(1 + seed),
                "it was acknowledged"
            );
        }
        bench.write(&mut volume, 6..7, 1 + seed);
        bench.flush(&mut volume).expect("the disk is well again");
        drop(volume);
        bench.machine.crash();
        let mut volume = bench.attach(id);
        for block in 0..7 {
            assert_eq!(bench.read(&mut volume, block), Ok(1 + seed), "seed {seed}");
        }
    }
}

/// Writes until the journal takes no more; says what it refuses, if it is refused and
/// not made to wait.
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
            _ => volume.commit().expect("the journal is well"),
        }
        bench.turn(volume, 2);
    }
    assert!(waits > 1000, "it waited {waits} times");
    None
}

/// Fills a journal while all units have this fault, and goes on when they are well.
/// Returns what was refused, and what reads then.
fn while_units_have(fault: Fault) -> (Option<IoError>, Result<u8, IoError>) {
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
    let (refusal, read) = while_units_have(Fault::Full);
    assert!(matches!(refusal, Some(IoError::NoSpace(_))), "{refusal:?}");
    assert_eq!(read, Ok(2), "reading goes on");
}

/// Units were restarted while a journal was full, and the guest got I/O errors.
#[test]
fn writes_wait_for_units_that_are_away() {
    let (refusal, _) = while_units_have(Fault::Missing);
    assert_eq!(refusal, None);
}

/// A sweep that found no segment took it for done. But a delete empties the
/// file before it removes it: if the power failed between the two, the empty
/// file stayed for ever.
#[test]
fn a_sweep_that_was_cut_short_is_finished_by_the_next() {
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

/// A write that had to wait for the rest of its block was answered before its
/// batch was written. The journal's disk failed just then, the volume stopped,
/// and the client held an acknowledgement for nothing.
#[test]
fn a_write_that_waited_is_not_acknowledged_if_the_journal_does_not_take_it() {
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
    volume.commit().expect("the journal is well");
    let host = bench.machine.host();
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

/// A request for several blocks, one of them in the journal's batch and another on units,
/// was read by a job that was quicker than the owner: it found the journal's file as it
/// was before the batch, took that for damage, and the guest got an I/O error.
#[test]
fn what_is_read_in_a_job_is_in_the_journals_file_by_then() {
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
    volume.commit().expect("the journal is well");
    let answers = bench.turn(&mut volume, 30);
    for token in [2, 3, 4] {
        let answer = answers.iter().find(|answer| answer.token == token);
        let result = &answer.expect("an answer").result;
        assert!(result.is_ok(), "{token}: {result:?}");
    }
}
