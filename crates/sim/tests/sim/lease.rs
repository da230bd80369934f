//! Scenarios of leases that expire. `sim::hosts` runs them at random.

use std::path::PathBuf;
use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, IoError, Outcome, Request, Started, VolumeId, ZeroMode,
};
use sim::machine::Machine;
use volume::{LeaseTerm, Volume};
use world::Clock;

use crate::bench::Bench;

const SECOND: Duration = Duration::from_secs(1);

fn now(machine: &Machine) -> Duration {
    machine.simulation.clock.monotonic()
}

/// Attaches under a lease that ends in eight seconds.
fn attach(bench: &Bench, id: VolumeId) -> (Volume, LeaseTerm) {
    let term = LeaseTerm::until(now(&bench.machine) + 8 * SECOND);
    let volume = open(&bench.machine, id, &term, bench.machine.journal(id), false);
    (volume, term)
}

fn open(
    machine: &Machine,
    id: VolumeId,
    term: &LeaseTerm,
    journal: PathBuf,
    taken_over: bool,
) -> Volume {
    let lease = machine.acquire(id);
    let opened = machine.open_until(lease, term.clone(), journal, taken_over);
    opened.expect("it opens")
}

/// Runs all jobs, without advancing the clock, and returns the completions.
fn run_jobs(bench: &Bench, volume: &mut Volume) -> Vec<Completion> {
    let mut completions = Vec::new();
    for _ in 0..4 {
        volume.poll(&mut completions);
        bench.machine.simulation.pool.run_all(bench.random());
    }
    volume.poll(&mut completions);
    completions
}

fn tokens(completions: &[Completion]) -> Vec<u64> {
    let done = |completion: &Completion| completion.result == Ok(Outcome::Done);
    assert!(completions.iter().all(done), "{completions:?}");
    completions.iter().map(|done| done.token).collect()
}

fn expire(bench: &Bench) {
    bench.machine.simulation.clock.advance(8 * SECOND);
}

#[test]
fn an_expired_lease_answers_only_reads_and_a_renewal_continues_all_in_order() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let (mut volume, term) = attach(&bench, id);
    bench.write(&mut volume, 0..4, 1);
    expire(&bench);
    let zeroes = ZeroMode {
        durability: Durability::Volatile,
        may_punch: true,
        fast_only: false,
    };
    let block = [2; 4096];
    let started = [
        volume.start(Request::write(10, 0, &block, Durability::Volatile)),
        volume.start(Request::write(11, 4096, &block, Durability::Durable)),
        volume.start(Request::trim(12, 8192, 4096, Durability::Volatile)),
        volume.start(Request::write_zeroes(13, 12288, 4096, zeroes)),
        volume.start(Request::flush(14)),
        // The same block again, and a part of another one.
        volume.start(Request::write(15, 0, &[3; 4096], Durability::Volatile)),
        volume.start(Request::write(
            16,
            4096 + 100,
            &[3; 10],
            Durability::Volatile,
        )),
    ];
    assert!(started.iter().all(|one| *one == Started::Pending));
    volume.end_batch().expect("it has not stopped");
    assert_eq!(run_jobs(&bench, &mut volume), [], "nothing is acknowledged");
    assert!(volume.status().stalled);
    assert_eq!(volume.next_timer(), None, "the renewal wakes it");
    for block in 0..4 {
        assert_eq!(bench.read(&mut volume, block), Ok(1), "reads are answered");
    }
    assert_eq!(bench.machine.catalog.memory.head(id), None, "no destage");

    term.renew(now(&bench.machine) + 8 * SECOND);
    assert_eq!(volume.next_timer(), Some(Duration::ZERO));
    let mut answered = tokens(&run_jobs(&bench, &mut volume));
    assert!(!volume.status().stalled);
    answered.sort_unstable();
    assert_eq!(answered, [10, 11, 12, 13, 14, 15, 16]);
    assert_eq!(bench.read(&mut volume, 0), Ok(3), "the later write won");
    assert_eq!(bench.read(&mut volume, 2), Ok(0));
    assert_eq!(bench.read(&mut volume, 3), Ok(0));
    let mut edge = [0; 4096];
    assert_eq!(
        volume.start(Request::read(1, 4096, &mut edge)),
        Started::Done
    );
    assert_eq!((edge[99], edge[100], edge[110]), (2, 3, 2));
}

/// The sync was running when the lease expired: its writes are durable, but may not be
/// acknowledged.
#[test]
fn a_flush_that_ends_after_expiry_is_not_acknowledged_before_a_renewal() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let (mut volume, term) = attach(&bench, id);
    bench.write(&mut volume, 0..2, 1);
    assert_eq!(volume.start(Request::flush(20)), Started::Pending);
    let fua = volume.start(Request::write(21, 0, &[2; 4096], Durability::Durable));
    assert_eq!(fua, Started::Pending);
    volume.end_batch().expect("it has not stopped");
    expire(&bench);
    assert_eq!(run_jobs(&bench, &mut volume), []);
    // A flush with nothing to sync has to wait, too.
    assert_eq!(volume.start(Request::flush(22)), Started::Pending);
    assert_eq!(run_jobs(&bench, &mut volume), []);
    term.renew(now(&bench.machine) + SECOND);
    assert_eq!(tokens(&run_jobs(&bench, &mut volume)), [20, 21, 22]);
}

/// A write was parked to read the rest of its block, and the lease expired before the read
/// ended.
#[test]
fn a_change_whose_edges_are_read_after_expiry_is_not_admitted() {
    let mut setup = sim::setup::Setup::quiet(1, 1);
    setup.read_misses_one_in = 1;
    let mut bench = Bench::with(setup);
    let id = bench.create(None);
    let (mut volume, term) = attach(&bench, id);
    bench.write(&mut volume, 0..1, 1);
    let started = volume.start(Request::write(30, 5, &[2; 10], Durability::Volatile));
    assert_eq!(started, Started::Pending);
    expire(&bench);
    let written = volume.status().counters.blocks_written;
    assert_eq!(run_jobs(&bench, &mut volume), []);
    assert_eq!(volume.status().counters.blocks_written, written);
    term.renew(now(&bench.machine) + SECOND);
    assert_eq!(tokens(&run_jobs(&bench, &mut volume)), [30]);
}

#[test]
fn losing_the_lease_fails_all_waiting_requests() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let (mut volume, term) = attach(&bench, id);
    bench.write(&mut volume, 0..1, 1);
    expire(&bench);
    let started = volume.start(Request::write(40, 0, &[2; 4096], Durability::Volatile));
    assert_eq!(started, Started::Pending);
    assert_eq!(volume.start(Request::flush(41)), Started::Pending);
    term.lose();
    assert_eq!(volume.next_timer(), Some(Duration::ZERO));
    let mut completions = Vec::new();
    volume.poll(&mut completions);
    assert_eq!(completions.len(), 2);
    for completion in completions {
        assert!(matches!(completion.result, Err(IoError::Stopped(_))));
    }
    assert!(volume.status().stopped.is_some());
    assert!(matches!(
        volume.start(Request::flush(42)),
        Started::Failed(_)
    ));
}

#[test]
fn a_stalled_volume_reports_why_it_does_not_close_and_its_journal_keeps_the_writes() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let (mut volume, _term) = attach(&bench, id);
    bench.write(&mut volume, 0..4, 1);
    bench.flush(&mut volume).expect("in time");
    expire(&bench);
    volume.begin_close();
    bench.turn(&mut volume, 100);
    assert_eq!(volume.close_state(), None);
    let status = volume.status();
    assert!(
        status.destage_error.is_some(),
        "the closer gives up because of it"
    );
    assert_eq!(status.pieces_placed, 0);
    drop(volume);
    let (mut volume, _term) = attach(&bench, id);
    for block in 0..4 {
        assert_eq!(bench.read(&mut volume, block), Ok(1));
    }
    bench.close(volume);
}

/// The journal was full when the lease expired, and the last destage had failed because the
/// controller was unreachable. Writes that waited failed with that old error.
#[test]
fn waiting_writes_do_not_fail_with_an_error_from_before_the_renewal() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let (mut volume, term) = attach(&bench, id);
    bench.machine.catalog.set_unavailable(1);
    let mut block = 0;
    while volume.start(Request::write(
        1,
        block * 4096,
        &[1; 4096],
        Durability::Volatile,
    )) == Started::Done
    {
        volume.end_batch().expect("the journal works");
        block += 1;
    }
    run_jobs(&bench, &mut volume);
    assert!(volume.status().destage_error.is_some());
    expire(&bench);
    let started = volume.start(Request::write(50, 0, &[2; 4096], Durability::Durable));
    assert_eq!(started, Started::Pending);
    assert_eq!(run_jobs(&bench, &mut volume), []);
    bench.machine.catalog.set_unavailable(0);
    term.renew(now(&bench.machine) + 60 * SECOND);
    assert_eq!(tokens(&bench.turn(&mut volume, 40)), [50]);
    assert_eq!(bench.read(&mut volume, 0), Ok(2));
}

/// The former holder's clock stands still, so its lease does not expire for it. It has the
/// journal's file open, and the next holder uses the same path.
#[test]
fn a_former_holder_that_does_not_stop_writes_into_a_file_that_is_never_read() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let journal = bench.machine.journal(id);
    let (mut old, _term) = attach(&bench, id);
    bench.write(&mut old, 0..4, 1);
    bench.flush(&mut old).expect("durable");

    let other = bench.machine.another_host("/other");
    let term = LeaseTerm::until(now(&other) + 8 * SECOND);
    let mut new = open(&other, id, &term, journal, true);
    for block in 0..4 {
        assert_eq!(
            bench.read(&mut new, block),
            Ok(1),
            "the journal was taken over"
        );
    }
    bench.write(&mut new, 2..6, 2);
    new.start(Request::flush(1));
    new.end_batch().expect("the disk works");
    bench.write(&mut old, 0..8, 9);
    bench
        .flush(&mut old)
        .expect("its lease holds by its own clock");
    // The new holder's process is killed and restarted.
    let mut other = other;
    drop(new);
    other.kill();
    let term = LeaseTerm::until(now(&other) + 8 * SECOND);
    let mut new = open(&other, id, &term, bench.machine.journal(id), false);
    let content: Vec<u8> = (0..8)
        .map(|block| bench.read(&mut new, block).expect("read"))
        .collect();
    assert_eq!(content, [1, 1, 2, 2, 2, 2, 0, 0]);
    // The old holder stops when it destages.
    bench.turn(&mut old, 60);
    assert!(old.status().stopped.is_some());
}

/// A host acquired the lease and was slow to open. When it continued, another host had the
/// volume, with a journal of the same name.
#[test]
fn a_host_that_opens_too_late_does_not_replace_the_holders_journal() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let journal = bench.machine.journal(id);
    let ends = now(&bench.machine) + 8 * SECOND;
    let slow = bench.machine.acquire(id);
    let other = bench.machine.another_host("/other");
    bench.machine.simulation.clock.advance(9 * SECOND);
    let term = LeaseTerm::until(now(&other) + 8 * SECOND);
    let mut volume = open(&other, id, &term, journal.clone(), true);
    bench.write(&mut volume, 0..4, 1);
    for taken_over in [false, true] {
        let late = slow.clone();
        let opened =
            bench
                .machine
                .open_until(late, LeaseTerm::until(ends), journal.clone(), taken_over);
        assert!(opened.is_err());
    }
    drop(volume);
    let files = bench
        .machine
        .simulation
        .disk
        .files_under(&bench.machine.journal_folder());
    assert_eq!(files.len(), 1, "no draft is left: {files:?}");
    let mut volume = open(&other, id, &term_of(&other), journal, false);
    for block in 0..4 {
        assert_eq!(bench.read(&mut volume, block), Ok(1));
    }
}

fn term_of(machine: &Machine) -> LeaseTerm {
    LeaseTerm::until(now(machine) + 8 * SECOND)
}

#[test]
fn the_draft_of_an_interrupted_takeover_is_removed() {
    for crash_at in 0..14 {
        let mut bench = Bench::new(2, 1);
        let id = bench.create(None);
        let journal = bench.machine.journal(id);
        let (mut volume, _term) = attach(&bench, id);
        bench.write(&mut volume, 0..4, 1);
        bench.flush(&mut volume).expect("durable");
        let disk = &bench.machine.simulation.disk;
        disk.arm_crash(disk.operations() + crash_at);
        let term = term_of(&bench.machine);
        let lease = bench.machine.acquire(id);
        let _ = bench.machine.open_until(lease, term, journal.clone(), true);
        drop(volume);
        bench.machine.crash();
        let term = term_of(&bench.machine);
        let mut volume = open(&bench.machine, id, &term, journal, true);
        for block in 0..4 {
            assert_eq!(bench.read(&mut volume, block), Ok(1), "crash {crash_at}");
        }
        let disk = &bench.machine.simulation.disk;
        let files = disk.files_under(&bench.machine.journal_folder());
        assert_eq!(files.len(), 1, "crash {crash_at}: {files:?}");
    }
}

/// The journal stayed on a lost host, and the volume was attached elsewhere from its newest
/// version, without any write. Then the host rejoined, and its journal continued at that
/// version's log position.
#[test]
fn a_journal_left_on_a_lost_host_is_never_followed_again() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let (mut old, _term) = attach(&bench, id);
    bench.write(&mut old, 0..4, 1);
    bench.turn(&mut old, 28);
    assert!(old.status().head.is_some(), "it was destaged");
    bench.write(&mut old, 0..4, 2);
    drop(old);

    let other = bench.machine.another_host("/other");
    let mut volume = open(&other, id, &term_of(&other), other.journal(id), true);
    volume.start(Request::prefetch(1, 0, 4096));
    let mut completions = Vec::new();
    for _ in 0..20 {
        volume.poll(&mut completions);
        other.simulation.pool.run_all(bench.random());
    }
    let mut block = [0; 4096];
    assert_eq!(volume.start(Request::read(2, 0, &mut block)), Started::Done);
    assert_eq!(block, [1; 4096], "the newest version");
    assert_eq!(volume.status().counters.versions, 1, "at once");
    drop(volume);

    let (mut old, _term) = attach(&bench, id);
    for block in 0..4 {
        assert_eq!(bench.read(&mut old, block), Ok(1), "never merged");
    }
}
