//! Scenarios of reads whose copies are all unavailable.

use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, Extent, ExtentKind, IoError, Outcome, Request, Started,
    Token,
};
use catalog::{Catalog, Erasure};
use sim::machine::Machine;
use sim::setup::Setup;
use testkit::units::InjectedFaults;
use volume::{READS_WAIT_MAX, Volume};
use world::simulated::Fault;

use crate::bench::Bench;

/// The number of blocks that are written. Each is filled with its number plus one.
const BLOCKS: u64 = 24;

/// A volume that was written and opened again: only its tail is in memory.
fn written(bench: &mut Bench) -> Volume {
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for block in 0..BLOCKS {
        bench.write(&mut volume, block..block + 1, block as u8 + 1);
    }
    bench.close(volume);
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 40);
    volume
}

/// Sets the fault of all units, and probes them.
fn set_fault(machine: &Machine, fault: Option<Fault>) {
    for unit in 0..machine.units.len() {
        let (disk, path) = (&machine.simulation.disk, machine.unit_path(unit));
        match fault {
            Some(fault) => disk.inject(&path, fault),
            None => disk.heal(&path),
        }
    }
    machine.probe(true);
}

/// Starts to read a block that has to be fetched.
fn start_read(volume: &mut impl BlockDevice, token: Token, block: u64) {
    let started = volume.start(Request::read(token, block * 4096, &mut [0; 4096]));
    assert_eq!(started, Started::Pending);
}

/// Advances the clock in the steps of the device's timer, and returns its completions.
fn advance(bench: &Bench, device: &mut impl BlockDevice, time: Duration) -> Vec<Completion> {
    let (mut completions, mut left) = (Vec::new(), time);
    loop {
        device.poll(&mut completions);
        if bench.machine.simulation.pool.run_one(bench.random()) {
            continue;
        }
        // The last job may have reported an event.
        device.poll(&mut completions);
        if bench.machine.simulation.pool.waiting() > 0 {
            continue;
        }
        if left.is_zero() {
            return completions;
        }
        let step = device.next_timer().unwrap_or(left).min(left);
        assert!(!step.is_zero(), "the timer is always due");
        bench.machine.simulation.clock.advance(step);
        left -= step;
    }
}

fn data(completion: &Completion) -> u8 {
    match &completion.result {
        Ok(Outcome::Data(data)) => {
            assert!(data.iter().all(|byte| *byte == data[0]), "a mixture");
            data[0]
        }
        other => panic!("request {}: {other:?}", completion.token),
    }
}

/// A guest got I/O errors, and made its file system read-only, because a daemon was
/// restarted.
#[test]
fn a_read_waits_for_unavailable_units() {
    for fault in [Fault::Missing, Fault::Broken] {
        for (units, replicas, erasure) in [(1, 1, None), (2, 2, None), (3, 1, Erasure::new(2, 1))] {
            let mut setup = Setup::quiet(units, replicas);
            setup.erasure = erasure;
            let mut bench = Bench::with(setup);
            let mut volume = written(&mut bench);
            set_fault(&bench.machine, Some(fault));
            for block in 0..BLOCKS {
                start_read(&mut volume, block, block);
            }
            let answers = advance(&bench, &mut volume, READS_WAIT_MAX / 2);
            assert_eq!(answers, [], "{fault:?}");
            let status = volume.status();
            assert_eq!(status.reads_waiting, BLOCKS as usize);
            assert!(status.read_error.is_some(), "the status says why it waits");
            set_fault(&bench.machine, None);
            // All are completed, though only some are retried at once.
            let answers = advance(&bench, &mut volume, Duration::from_secs(2));
            assert_eq!(answers.len(), BLOCKS as usize);
            for answer in &answers {
                assert_eq!(data(answer), answer.token as u8 + 1, "{fault:?}");
            }
            let status = volume.status();
            assert_eq!((status.reads_waiting, status.read_error), (0, None));
            assert_eq!(volume.next_timer(), None, "nothing waits any more");
            bench.close(volume);
            bench.audit();
        }
    }
}

#[test]
fn reads_of_map_pages_and_extents_wait_for_unavailable_units() {
    let mut setup = Setup::quiet(2, 2);
    // Nothing is left in the tail: only map pages have the locations of blocks.
    setup.volume.tail_entries_max = 1;
    let mut bench = Bench::with(setup);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for byte in 1..4 {
        bench.write(&mut volume, 0..8, byte);
        bench.turn(&mut volume, 60);
    }
    bench.close(volume);
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 40);
    assert_eq!(
        volume.status().tail_entries,
        0,
        "otherwise this test shows nothing"
    );
    set_fault(&bench.machine, Some(Fault::Missing));
    let mut runs: Vec<Extent> = Vec::new();
    assert_eq!(
        volume.start(Request::extents(1, 0, 8 * 4096, &mut runs)),
        Started::Pending
    );
    start_read(&mut volume, 2, 7);
    assert_eq!(advance(&bench, &mut volume, Duration::from_secs(20)), []);
    set_fault(&bench.machine, None);
    let mut answers = advance(&bench, &mut volume, Duration::from_secs(2));
    answers.sort_by_key(|answer| answer.token);
    let [extents, read] = &*answers else {
        panic!("{answers:?}");
    };
    let Ok(Outcome::Extents(runs)) = &extents.result else {
        panic!("{extents:?}");
    };
    assert_eq!(runs[0].kind, ExtentKind::Data);
    assert_eq!(data(read), 3);
    bench.close(volume);
}

#[test]
fn a_write_of_half_a_block_waits_for_the_other_half() {
    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    set_fault(&bench.machine, Some(Fault::Missing));
    let half = volume.start(Request::write(1, 4096, &[9; 2048], Durability::Volatile));
    assert_eq!(half, Started::Pending);
    volume.end_batch().expect("the journal works");
    assert_eq!(advance(&bench, &mut volume, Duration::from_secs(20)), []);
    set_fault(&bench.machine, None);
    let answers = advance(&bench, &mut volume, Duration::from_secs(2));
    assert!(
        matches!(&*answers, [done] if done.result == Ok(Outcome::Done)),
        "{answers:?}"
    );
    let mut bytes = [0; 4096];
    assert_eq!(
        volume.start(Request::read(2, 4096, &mut bytes)),
        Started::Done
    );
    assert_eq!(
        (&bytes[..2048], &bytes[2048..]),
        (&[9; 2048][..], &[2; 2048][..])
    );
    bench.close(volume);
}

/// While a read waits, other blocks are read and written. A write of the awaited block
/// completes the read.
#[test]
fn a_waiting_read_delays_no_other() {
    let mut bench = Bench::new(2, 1);
    let mut volume = written(&mut bench);
    let disk = &bench.machine.simulation.disk;
    disk.inject(&bench.machine.unit_path(0), Fault::Missing);
    bench.machine.probe(true);
    let mut waiting = Vec::new();
    for block in 0..BLOCKS {
        match volume.start(Request::read(block, block * 4096, &mut [0; 4096])) {
            Started::Done => {}
            Started::Pending => waiting.push(block),
            other => panic!("{other:?}"),
        }
    }
    for answer in advance(&bench, &mut volume, Duration::from_secs(5)) {
        assert_eq!(data(&answer), answer.token as u8 + 1);
        waiting.retain(|block| *block != answer.token);
    }
    assert!(
        !waiting.is_empty(),
        "some blocks are on the missing unit: otherwise this test shows nothing"
    );
    assert!(waiting.len() < BLOCKS as usize, "the other unit is read");
    let first = waiting[0];
    bench.write(&mut volume, first..first + 1, 99);
    let answers = advance(&bench, &mut volume, Duration::from_secs(2));
    let [answer] = &*answers else {
        panic!("{answers:?}");
    };
    assert_eq!((answer.token, data(answer)), (first, 99));
    assert_eq!(volume.status().reads_waiting, waiting.len() - 1);
    disk.heal(&bench.machine.unit_path(0));
    bench.machine.probe(true);
    let answers = advance(&bench, &mut volume, Duration::from_secs(2));
    assert_eq!(answers.len(), waiting.len() - 1);
    bench.close(volume);
}

#[test]
fn a_read_of_units_that_stay_unavailable_fails_after_two_minutes() {
    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    set_fault(&bench.machine, Some(Fault::Missing));
    start_read(&mut volume, 1, 0);
    let (first, second) = (
        Duration::from_secs(50),
        READS_WAIT_MAX - Duration::from_secs(50),
    );
    assert_eq!(advance(&bench, &mut volume, first), []);
    start_read(&mut volume, 2, 1);
    let answers = advance(&bench, &mut volume, second - Duration::from_secs(2));
    assert_eq!(answers, []);
    for token in [1, 2] {
        // Waiting requests are checked once a second.
        let answers = advance(&bench, &mut volume, Duration::from_secs(4));
        let [answer] = &*answers else {
            panic!("request {token}: {answers:?}");
        };
        assert_eq!(answer.token, token);
        let is_unavailable = matches!(answer.result, Err(IoError::Unavailable(_)));
        assert!(is_unavailable, "{answer:?}");
        let rest = first - Duration::from_secs(4);
        assert_eq!(advance(&bench, &mut volume, rest), []);
    }
    assert_eq!(volume.status().read_error, None);
    set_fault(&bench.machine, None);
    assert_eq!(bench.read(&mut volume, 0), Ok(1), "a new read succeeds");
    bench.close(volume);
}

/// Flips a bit in each slot of a unit.
fn rot(machine: &Machine, unit: usize) {
    let disk = &machine.simulation.disk;
    let files = disk.files_under(&machine.unit_path(unit).join("segments"));
    for (path, length) in files {
        // Only slots, not the header before them.
        for offset in (8192..length).step_by(512) {
            disk.flip_bit(&path, offset, 0).expect("it is there");
        }
    }
}

/// The only available copy was damaged, and a read failed at once.
#[test]
fn a_read_waits_for_an_intact_copy_also_if_another_one_is_damaged() {
    for (units, replicas, erasure) in [(2, 2, None), (4, 1, Erasure::new(2, 2))] {
        let mut setup = Setup::quiet(units, replicas);
        setup.erasure = erasure;
        let mut bench = Bench::with(setup);
        let mut volume = written(&mut bench);
        rot(&bench.machine, 0);
        let disk = Arc::clone(&bench.machine.simulation.disk);
        for unit in 1..units - 1 + usize::from(units == 2) {
            disk.inject(&bench.machine.unit_path(unit), Fault::Missing);
        }
        bench.machine.probe(true);
        for block in 0..BLOCKS {
            let started = volume.start(Request::read(block, block * 4096, &mut [0; 4096]));
            assert!(matches!(started, Started::Done | Started::Pending));
        }
        for answer in advance(&bench, &mut volume, Duration::from_secs(10)) {
            assert_eq!(data(&answer), answer.token as u8 + 1);
        }
        assert!(volume.status().reads_waiting > 0);
        for unit in 1..units {
            disk.heal(&bench.machine.unit_path(unit));
        }
        bench.machine.probe(true);
        for answer in advance(&bench, &mut volume, Duration::from_secs(2)) {
            assert_eq!(data(&answer), answer.token as u8 + 1);
        }
        assert_eq!(volume.status().reads_waiting, 0);
        bench.close(volume);
    }
}

/// Waiting does not help if all copies are damaged, or if available units have no copy.
#[test]
fn a_read_does_not_wait_for_permanently_lost_blocks() {
    let at_once = |bench: &Bench, volume: &mut Volume| {
        start_read(volume, 1, 0);
        let mut answers = advance(bench, volume, Duration::ZERO);
        let answer = answers.pop().expect("it does not wait");
        answer.result.expect_err("it is lost")
    };
    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    (0..2).for_each(|unit| rot(&bench.machine, unit));
    let error = at_once(&bench, &mut volume);
    assert!(matches!(error, IoError::Damaged(_)), "{error}");
    assert_eq!(volume.status().reads_waiting, 0);
    drop(volume);

    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    for (_, unit) in &bench.machine.units {
        for segment in unit.list().expect("it is there") {
            unit.delete(segment).expect("it is there");
        }
    }
    let error = at_once(&bench, &mut volume);
    assert!(matches!(error, IoError::Unavailable(_)), "{error}");
}

/// Unresponsive units occupy threads of the pool, so only some waiting reads are retried at
/// once, and one more now and then, which may need another unit. The others fail in time
/// all the same.
#[test]
fn few_waiting_reads_are_retried_at_once_and_the_others_fail_in_time() {
    let mut bench = Bench::new(1, 1);
    let mut volume = written(&mut bench);
    set_fault(&bench.machine, Some(Fault::Missing));
    for block in 0..BLOCKS {
        start_read(&mut volume, block, block);
    }
    assert_eq!(advance(&bench, &mut volume, Duration::from_secs(10)), []);
    set_fault(&bench.machine, None);
    bench.machine.inject(
        0,
        InjectedFaults {
            async_reads_one_in: 1,
            holds_reads: true,
            ..InjectedFaults::default()
        },
    );
    assert_eq!(advance(&bench, &mut volume, Duration::from_secs(5)), []);
    let at_first = bench.machine.held_reads(0);
    assert!(at_first > 0 && at_first < 10, "{at_first}");
    assert_eq!(advance(&bench, &mut volume, Duration::from_secs(10)), []);
    assert_eq!(bench.machine.held_reads(0), at_first + 1);
    let answers = advance(&bench, &mut volume, READS_WAIT_MAX);
    let held = bench.machine.held_reads(0);
    assert!(held < BLOCKS as usize, "{held}");
    assert_eq!(answers.len(), BLOCKS as usize - held);
    assert!(answers.iter().all(|answer| answer.result.is_err()));
    // The held reads fail now: they have waited as long.
    bench.machine.inject(0, InjectedFaults::default());
    let answers = advance(&bench, &mut volume, Duration::from_secs(2));
    assert_eq!(answers.len(), held);
    assert_eq!(volume.status().reads_waiting, 0);
    bench.close(volume);
}

/// A detach would take minutes if it waited for reads that wait for units.
#[test]
fn a_closing_device_does_not_wait_for_units() {
    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    set_fault(&bench.machine, Some(Fault::Missing));
    start_read(&mut volume, 1, 0);
    let half = volume.start(Request::write(2, 4096, &[9; 2048], Durability::Volatile));
    assert_eq!(half, Started::Pending);
    assert_eq!(advance(&bench, &mut volume, Duration::from_secs(10)), []);
    volume.stop_waiting();
    // Neither reads that are being retried nor new ones wait.
    start_read(&mut volume, 3, 2);
    let mut answers = advance(&bench, &mut volume, Duration::ZERO);
    answers.sort_by_key(|answer| answer.token);
    let tokens: Vec<Token> = answers.iter().map(|answer| answer.token).collect();
    assert_eq!(tokens, [1, 2, 3]);
    for answer in answers {
        let is_unavailable = matches!(answer.result, Err(IoError::Unavailable(_)));
        assert!(is_unavailable, "{answer:?}");
    }
    volume.begin_close();
    advance(&bench, &mut volume, Duration::ZERO);
    assert_eq!(volume.close_state(), Some(Ok(())), "nothing was written");
}

/// Also without a call of `stop_waiting`.
#[test]
fn closing_or_losing_the_lease_fails_waiting_reads() {
    for is_fenced in [false, true] {
        let mut bench = Bench::new(2, 2);
        let id = bench.create(None);
        let mut volume = bench.attach(id);
        bench.write(&mut volume, 0..8, 1);
        bench.close(volume);
        let mut volume = bench.attach(id);
        bench.turn(&mut volume, 40);
        set_fault(&bench.machine, Some(Fault::Missing));
        start_read(&mut volume, 1, 0);
        assert_eq!(advance(&bench, &mut volume, Duration::from_secs(10)), []);
        if is_fenced {
            let _ = bench.machine.acquire(id);
            // The commit of the next version finds that the lease is lost.
            volume.snapshot(base::SnapshotId::from_u128(1));
        } else {
            volume.begin_close();
        }
        let answers = advance(&bench, &mut volume, Duration::from_secs(3));
        let [answer] = &*answers else {
            panic!("{answers:?}");
        };
        match &answer.result {
            Err(IoError::Stopped(_)) => assert!(is_fenced),
            Err(IoError::Unavailable(_)) => assert!(!is_fenced),
            other => panic!("{other:?}"),
        }
        let status = volume.status();
        assert_eq!((status.reads_waiting, status.read_error), (0, None));
        assert!(volume.close_state().is_some());
    }
}

#[test]
fn reads_of_a_read_only_version_wait_for_unavailable_units() {
    let mut bench = Bench::new(2, 2);
    let volume = written(&mut bench);
    bench.close(volume);
    let memory = &bench.machine.catalog.memory;
    let stored = memory.versions().pop().expect("one is kept");
    let keys = memory.keys(stored.lineage).expect("they are there");
    let (size_bytes, block_size) = (bench.setup.size_bytes, bench.setup.block_size);
    let opened = bench
        .machine
        .open_read_only(Some(stored), &keys, size_bytes, block_size);
    let mut reader = opened.expect("it opens");
    set_fault(&bench.machine, Some(Fault::Missing));
    start_read(&mut reader, 1, 3);
    assert_eq!(advance(&bench, &mut reader, Duration::from_secs(10)), []);
    assert_eq!(reader.status().reads_waiting, 1);
    set_fault(&bench.machine, None);
    let answers = advance(&bench, &mut reader, Duration::from_secs(2));
    assert_eq!(answers.iter().map(data).collect::<Vec<_>>(), [4]);
    set_fault(&bench.machine, Some(Fault::Missing));
    start_read(&mut reader, 2, 4);
    assert_eq!(advance(&bench, &mut reader, Duration::from_secs(10)), []);
    reader.stop_waiting();
    let answers = advance(&bench, &mut reader, Duration::ZERO);
    assert!(
        matches!(&*answers, [failed] if failed.result.is_err()),
        "{answers:?}"
    );
}
