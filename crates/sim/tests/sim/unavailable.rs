//! Stories of reads whose copies are all away.

use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, Extent, ExtentKind, IoError, Outcome, Request, Started,
    Token,
};
use sim::machine::Machine;
use sim::setup::Setup;
use testkit::units::InjectedFaults;
use volume::catalog::{Catalog, Erasure};
use volume::{READS_WAIT_MAX, Volume};
use world::simulated::Fault;

use crate::bench::Bench;

/// Blocks that are written, each with its number and one.
const BLOCKS: u64 = 24;

/// A volume that was written and opened again, so that it has nothing but its tail in
/// memory.
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

fn all_are(machine: &Machine, fault: Option<Fault>) {
    for unit in 0..machine.units.len() {
        let (disk, path) = (&machine.simulation.disk, machine.unit_path(unit));
        match fault {
            Some(fault) => disk.inject(&path, fault),
            None => disk.heal(&path),
        }
    }
    machine.probe(true);
}

/// Asks for a block that has to be fetched.
fn ask(volume: &mut impl BlockDevice, token: Token, block: u64) {
    let asked = volume.start(Request::read(token, block * 4096, &mut [0; 4096]));
    assert_eq!(asked, Started::Pending);
}

/// Lets time pass, in the steps that the device asks for, and returns what it answers.
fn pass(bench: &Bench, device: &mut impl BlockDevice, time: Duration) -> Vec<Completion> {
    let (mut completions, mut left) = (Vec::new(), time);
    loop {
        device.poll(&mut completions);
        if bench.machine.simulation.pool.run_one(bench.random()) {
            continue;
        }
        // What ran last may have told something.
        device.poll(&mut completions);
        if bench.machine.simulation.pool.waiting() > 0 {
            continue;
        }
        if left.is_zero() {
            return completions;
        }
        let step = device.next_timer().unwrap_or(left).min(left);
        assert!(!step.is_zero(), "it asks to be called again and again");
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
fn a_read_waits_for_units_that_are_away() {
    for fault in [Fault::Missing, Fault::Broken] {
        for (units, replicas, erasure) in [(1, 1, None), (2, 2, None), (3, 1, Erasure::new(2, 1))] {
            let mut setup = Setup::quiet(units, replicas);
            setup.erasure = erasure;
            let mut bench = Bench::with(setup);
            let mut volume = written(&mut bench);
            all_are(&bench.machine, Some(fault));
            for block in 0..BLOCKS {
                ask(&mut volume, block, block);
            }
            let answers = pass(&bench, &mut volume, READS_WAIT_MAX / 2);
            assert_eq!(answers, [], "{fault:?}");
            let status = volume.status();
            assert_eq!(status.reads_waiting, BLOCKS as usize);
            assert!(status.read_error.is_some(), "nobody can see why it waits");
            all_are(&bench.machine, None);
            // All, though only some are tried at once.
            let answers = pass(&bench, &mut volume, Duration::from_secs(2));
            assert_eq!(answers.len(), BLOCKS as usize);
            for answer in &answers {
                assert_eq!(data(answer), answer.token as u8 + 1, "{fault:?}");
            }
            let status = volume.status();
            assert_eq!((status.reads_waiting, status.read_error), (0, None));
            assert_eq!(
                volume.next_timer(),
                None,
                "nothing is left to be waited for"
            );
            bench.close(volume);
            bench.audit();
        }
    }
}

/// Of what waits for pages of the map, too, and of what waits for extents.
#[test]
fn pages_and_extents_are_waited_for() {
    let mut setup = Setup::quiet(2, 2);
    // Nothing is left in the tail: where blocks are only pages say.
    setup.tail_entries_max = 1;
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
    assert_eq!(volume.status().tail_entries, 0, "this test shows nothing");
    all_are(&bench.machine, Some(Fault::Missing));
    let mut runs: Vec<Extent> = Vec::new();
    assert_eq!(
        volume.start(Request::extents(1, 0, 8 * 4096, &mut runs)),
        Started::Pending
    );
    ask(&mut volume, 2, 7);
    assert_eq!(pass(&bench, &mut volume, Duration::from_secs(20)), []);
    all_are(&bench.machine, None);
    let mut answers = pass(&bench, &mut volume, Duration::from_secs(2));
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
    all_are(&bench.machine, Some(Fault::Missing));
    let half = volume.start(Request::write(1, 4096, &[9; 2048], Durability::Volatile));
    assert_eq!(half, Started::Pending);
    volume.commit().expect("the journal is well");
    assert_eq!(pass(&bench, &mut volume, Duration::from_secs(20)), []);
    all_are(&bench.machine, None);
    let answers = pass(&bench, &mut volume, Duration::from_secs(2));
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

/// What one waits for keeps nothing from others: what is in the journal is read, and what
/// is written meanwhile is what the one gets that waits.
#[test]
fn a_read_that_waits_holds_up_no_other() {
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
    for answer in pass(&bench, &mut volume, Duration::from_secs(5)) {
        assert_eq!(data(&answer), answer.token as u8 + 1);
        waiting.retain(|block| *block != answer.token);
    }
    assert!(
        !waiting.is_empty(),
        "all is on the other unit: this test shows nothing"
    );
    assert!(waiting.len() < BLOCKS as usize, "the other unit is read");
    let first = waiting[0];
    bench.write(&mut volume, first..first + 1, 99);
    let answers = pass(&bench, &mut volume, Duration::from_secs(2));
    let [answer] = &*answers else {
        panic!("{answers:?}");
    };
    assert_eq!((answer.token, data(answer)), (first, 99));
    assert_eq!(volume.status().reads_waiting, waiting.len() - 1);
    disk.heal(&bench.machine.unit_path(0));
    bench.machine.probe(true);
    let answers = pass(&bench, &mut volume, Duration::from_secs(2));
    assert_eq!(answers.len(), waiting.len() - 1);
    bench.close(volume);
}

#[test]
fn what_stays_away_for_long_is_an_error() {
    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    all_are(&bench.machine, Some(Fault::Missing));
    ask(&mut volume, 1, 0);
    let (first, second) = (
        Duration::from_secs(50),
        READS_WAIT_MAX - Duration::from_secs(50),
    );
    assert_eq!(pass(&bench, &mut volume, first), []);
    ask(&mut volume, 2, 1);
    let answers = pass(&bench, &mut volume, second - Duration::from_secs(2));
    assert_eq!(answers, []);
    for token in [1, 2] {
        // It is looked each second who has waited too long.
        let answers = pass(&bench, &mut volume, Duration::from_secs(4));
        let [answer] = &*answers else {
            panic!("request {token}: {answers:?}");
        };
        assert_eq!(answer.token, token);
        let is_away = matches!(answer.result, Err(IoError::Unavailable(_)));
        assert!(is_away, "{answer:?}");
        let rest = first - Duration::from_secs(4);
        assert_eq!(pass(&bench, &mut volume, rest), []);
    }
    assert_eq!(volume.status().read_error, None);
    all_are(&bench.machine, None);
    assert_eq!(bench.read(&mut volume, 0), Ok(1), "it is asked anew");
    bench.close(volume);
}

/// Flips a bit in each slot of a unit.
fn rot(machine: &Machine, unit: usize) {
    let disk = &machine.simulation.disk;
    let files = disk.files_under(&machine.unit_path(unit).join("segments"));
    for (path, length) in files {
        // Of slots, and nothing before them.
        for offset in (8192..length).step_by(512) {
            disk.flip_bit(&path, offset, 0).expect("it is there");
        }
    }
}

/// The copy that was there was damaged, and a read failed at once.
#[test]
fn a_sound_copy_is_waited_for_also_if_another_is_damaged() {
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
            let asked = volume.start(Request::read(block, block * 4096, &mut [0; 4096]));
            assert!(matches!(asked, Started::Done | Started::Pending));
        }
        for answer in pass(&bench, &mut volume, Duration::from_secs(10)) {
            assert_eq!(data(&answer), answer.token as u8 + 1);
        }
        assert!(volume.status().reads_waiting > 0);
        for unit in 1..units {
            disk.heal(&bench.machine.unit_path(unit));
        }
        bench.machine.probe(true);
        for answer in pass(&bench, &mut volume, Duration::from_secs(2)) {
            assert_eq!(data(&answer), answer.token as u8 + 1);
        }
        assert_eq!(volume.status().reads_waiting, 0);
        bench.close(volume);
    }
}

/// Nobody brings back what is damaged, or what no unit has that is there.
#[test]
fn what_is_lost_for_good_is_not_waited_for() {
    let at_once = |bench: &Bench, volume: &mut Volume| {
        ask(volume, 1, 0);
        let mut answers = pass(bench, volume, Duration::ZERO);
        let answer = answers.pop().expect("it waits");
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

/// Units that hang keep threads of the pool, so only some of what waits is tried at once,
/// and one more now and then, for it may need another unit; what is not tried has its
/// answer in time all the same.
#[test]
fn a_few_are_tried_and_the_rest_does_not_wait_longer_for_that() {
    let mut bench = Bench::new(1, 1);
    let mut volume = written(&mut bench);
    all_are(&bench.machine, Some(Fault::Missing));
    for block in 0..BLOCKS {
        ask(&mut volume, block, block);
    }
    assert_eq!(pass(&bench, &mut volume, Duration::from_secs(10)), []);
    all_are(&bench.machine, None);
    bench.machine.lie(
        0,
        InjectedFaults {
            async_reads_one_in: 1,
            holds_reads: true,
            ..InjectedFaults::default()
        },
    );
    assert_eq!(pass(&bench, &mut volume, Duration::from_secs(5)), []);
    let at_first = bench.machine.kept_reads(0);
    assert!(at_first > 0 && at_first < 10, "{at_first}");
    assert_eq!(pass(&bench, &mut volume, Duration::from_secs(10)), []);
    assert_eq!(bench.machine.kept_reads(0), at_first + 1);
    let answers = pass(&bench, &mut volume, READS_WAIT_MAX);
    let kept = bench.machine.kept_reads(0);
    assert!(kept < BLOCKS as usize, "{kept}");
    assert_eq!(answers.len(), BLOCKS as usize - kept);
    assert!(answers.iter().all(|answer| answer.result.is_err()));
    // Those fail now: they have waited as long.
    bench.machine.lie(0, InjectedFaults::default());
    let answers = pass(&bench, &mut volume, Duration::from_secs(2));
    assert_eq!(answers.len(), kept);
    assert_eq!(volume.status().reads_waiting, 0);
    bench.close(volume);
}

/// A detach that waits for reads which wait for units would go on for minutes.
#[test]
fn a_device_that_ends_waits_for_nobody() {
    let mut bench = Bench::new(2, 2);
    let mut volume = written(&mut bench);
    all_are(&bench.machine, Some(Fault::Missing));
    ask(&mut volume, 1, 0);
    let half = volume.start(Request::write(2, 4096, &[9; 2048], Durability::Volatile));
    assert_eq!(half, Started::Pending);
    assert_eq!(pass(&bench, &mut volume, Duration::from_secs(10)), []);
    volume.stop_waiting();
    // Now being tried, or asked for now: it makes no difference.
    ask(&mut volume, 3, 2);
    let mut answers = pass(&bench, &mut volume, Duration::ZERO);
    answers.sort_by_key(|answer| answer.token);
    let tokens: Vec<Token> = answers.iter().map(|answer| answer.token).collect();
    assert_eq!(tokens, [1, 2, 3]);
    for answer in answers {
        let is_away = matches!(answer.result, Err(IoError::Unavailable(_)));
        assert!(is_away, "{answer:?}");
    }
    volume.begin_close();
    pass(&bench, &mut volume, Duration::ZERO);
    assert_eq!(volume.close_state(), Some(Ok(())), "nothing was written");
}

/// So it is when nobody says so before: closing, or losing the lease, ends all waits.
#[test]
fn closing_or_stopping_answers_what_waits() {
    for is_fenced in [false, true] {
        let mut bench = Bench::new(2, 2);
        let id = bench.create(None);
        let mut volume = bench.attach(id);
        bench.write(&mut volume, 0..8, 1);
        bench.close(volume);
        let mut volume = bench.attach(id);
        bench.turn(&mut volume, 40);
        all_are(&bench.machine, Some(Fault::Missing));
        ask(&mut volume, 1, 0);
        assert_eq!(pass(&bench, &mut volume, Duration::from_secs(10)), []);
        if is_fenced {
            let _ = bench.machine.acquire(id);
            // The next version shows it.
            volume.snapshot(base::SnapshotId::from_u128(1));
        } else {
            volume.begin_close();
        }
        let answers = pass(&bench, &mut volume, Duration::from_secs(3));
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
fn a_version_that_is_only_read_waits_as_well() {
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
    all_are(&bench.machine, Some(Fault::Missing));
    ask(&mut reader, 1, 3);
    assert_eq!(pass(&bench, &mut reader, Duration::from_secs(10)), []);
    assert_eq!(reader.status().reads_waiting, 1);
    all_are(&bench.machine, None);
    let answers = pass(&bench, &mut reader, Duration::from_secs(2));
    assert_eq!(answers.iter().map(data).collect::<Vec<_>>(), [4]);
    all_are(&bench.machine, Some(Fault::Missing));
    ask(&mut reader, 2, 4);
    assert_eq!(pass(&bench, &mut reader, Duration::from_secs(10)), []);
    reader.stop_waiting();
    let answers = pass(&bench, &mut reader, Duration::ZERO);
    assert!(
        matches!(&*answers, [failed] if failed.result.is_err()),
        "{answers:?}"
    );
}
