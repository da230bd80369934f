//! Stories of journals in a folder that two hosts have: one lease after the
//! other, each with a file of its own. `sim::hosts` runs them by chance.

use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, JournalFolderId, Outcome, Request, Started, VolumeId,
};
use sim::machine::Machine;
use volume::catalog::{Catalog, CatalogError, Lease, NamedJournal};
use volume::journal::{JournalError, JournalLocation, SharedFolder};
use volume::{LeaseTerm, OpenError, Volume};
use world::{Clock, Disk};

use crate::bench::Bench;

/// No lease ends by itself in these.
const LONG: Duration = Duration::from_secs(3600);
const FOLDER: JournalFolderId = JournalFolderId::from_u128(1);

/// The folder, which is the first host's; the disk is one.
fn folder(bench: &Bench) -> SharedFolder {
    SharedFolder {
        path: bench.machine.host(),
        id: FOLDER,
    }
}

/// As a host that has the folder.
fn acquire(machine: &Machine, id: VolumeId) -> Lease {
    let catalog = &machine.catalog.memory;
    let lease = catalog.acquire(id, machine.salt(), Some(FOLDER));
    lease.expect("its journal is in reach")
}

fn open(machine: &Machine, lease: Lease, shared: &SharedFolder) -> Result<Volume, OpenError> {
    let term = LeaseTerm::until(machine.simulation.clock.monotonic() + LONG);
    let place = JournalLocation::of(&lease, &machine.journal(lease.volume), Some(shared));
    machine.open_at(lease, term, place, false)
}

fn attach(machine: &Machine, id: VolumeId, shared: &SharedFolder) -> Volume {
    open(machine, acquire(machine, id), shared).expect("it opens")
}

fn named(machine: &Machine, id: VolumeId) -> Option<NamedJournal> {
    acquire(machine, id).journal
}

/// The first byte of each block, as a host finds it.
fn content(
    bench: &Bench,
    machine: &Machine,
    volume: &mut Volume,
    blocks: std::ops::Range<u64>,
) -> Vec<u8> {
    let mut read = |block: u64| {
        let mut bytes = vec![0; 4096];
        if volume.start(Request::read(7, block * 4096, &mut bytes)) == Started::Done {
            return bytes[0];
        }
        let mut completions: Vec<Completion> = Vec::new();
        while completions.is_empty() {
            machine.simulation.pool.run_one(bench.random());
            volume.poll(&mut completions);
        }
        match completions.pop().map(|completion| completion.result) {
            Some(Ok(Outcome::Data(data))) => data[0],
            other => panic!("block {block}: {other:?}"),
        }
    };
    blocks.map(&mut read).collect()
}

/// Brings all into a version.
fn close(bench: &Bench, machine: &Machine, mut volume: Volume) {
    volume.begin_close();
    while volume.close_state().is_none() {
        machine.simulation.pool.run_all(bench.random());
        volume.poll(&mut Vec::new());
        volume.commit().expect("the journal is well");
    }
    assert_eq!(volume.close_state(), Some(Ok(())));
}

/// Flushes a volume, without time passing.
fn flush(bench: &Bench, other: &Machine, volume: &mut Volume) {
    assert_eq!(volume.start(Request::flush(8)), Started::Pending);
    volume.commit().expect("the journal is well");
    other.simulation.pool.run_all(bench.random());
    let mut completions = Vec::new();
    volume.poll(&mut completions);
    let done = |completion: &Completion| completion.token == 8 && completion.result.is_ok();
    assert!(completions.iter().any(done), "{completions:?}");
}

fn files(bench: &Bench) -> Vec<String> {
    let files = bench
        .machine
        .simulation
        .disk
        .files_under(&bench.machine.host());
    let name = |path: &std::path::PathBuf| path.file_name().map(|name| name.to_owned());
    files
        .iter()
        .filter_map(|(path, _)| name(path)?.into_string().ok())
        .collect()
}

/// The power fails at each change of the disk while a journal is copied, named
/// and those before it are removed, and right after the last one.
#[test]
fn a_crash_at_any_step_leaves_the_name_of_a_complete_journal() {
    let mut seen = std::collections::BTreeSet::new();
    for crash_at in 0..20 {
        let mut bench = Bench::new(2, 1);
        let id = bench.create(None);
        let shared = folder(&bench);
        let mut volume = attach(&bench.machine, id, &shared);
        bench.write(&mut volume, 0..4, 1);
        bench.flush(&mut volume).expect("durable");
        drop(volume);

        let lease = acquire(&bench.machine, id);
        let epoch = lease.epoch;
        let disk = &bench.machine.simulation.disk;
        disk.arm_crash(disk.operations() + crash_at);
        if let Ok(mut volume) = open(&bench.machine, lease, &shared) {
            let world = bench.machine.simulation.world();
            // It fails where the power has failed.
            let _ = shared.remove_before(&world, id, epoch);
            let started = volume.start(Request::write(
                9,
                4 * 4096,
                &[2; 4096],
                Durability::Volatile,
            ));
            assert_eq!(started, Started::Done);
            let _ = volume.commit();
        }
        let was_named = named(&bench.machine, id).expect("one is").epoch == epoch;
        bench.machine.crash();
        seen.insert(was_named);

        let mut volume = attach(&bench.machine, id, &shared);
        assert_eq!(
            content(&bench, &bench.machine, &mut volume, 0..4),
            [1; 4],
            "crash {crash_at}"
        );
        bench.close(volume);
    }
    assert_eq!(seen.len(), 2, "crashes before and after it was named");
}

/// The call was made, and nobody knows whether it was carried out.
#[test]
fn a_name_whose_answer_was_lost_counts_or_does_not() {
    for _ in 0..8 {
        let mut bench = Bench::new(2, 1);
        let id = bench.create(None);
        let shared = folder(&bench);
        let mut volume = attach(&bench.machine, id, &shared);
        bench.write(&mut volume, 0..4, 1);
        bench.flush(&mut volume).expect("durable");
        drop(volume);
        for _ in 0..6 {
            let lease = acquire(&bench.machine, id);
            bench.machine.catalog.set_unavailable(1);
            let opened = open(&bench.machine, lease, &shared).map(|_| ());
            let error = opened.expect_err("nothing is acknowledged before its answer");
            let away = OpenError::Catalog(CatalogError::Unavailable {
                reason: "simulated".to_owned(),
            });
            assert_eq!(error.to_string(), away.to_string());
            bench.machine.catalog.set_unavailable(0);
        }
        let mut volume = attach(&bench.machine, id, &shared);
        assert_eq!(content(&bench, &bench.machine, &mut volume, 0..4), [1; 4]);
    }
}

#[test]
fn what_is_older_goes_once_the_copy_is_named_and_nothing_newer_does() {
    let mut bench = Bench::new(2, 1);
    let (id, other) = (bench.create(None), bench.create(None));
    let shared = folder(&bench);
    let world = bench.machine.simulation.world();
    drop(attach(&bench.machine, other, &shared));
    for _ in 0..2 {
        drop(attach(&bench.machine, id, &shared));
    }
    shared.remove_before(&world, id, 2).expect("removed");
    assert_eq!(
        files(&bench),
        [format!("{id}.journal-2"), format!("{other}.journal-1")]
    );
}

#[test]
fn a_named_journal_that_is_missing_or_damaged_is_an_error_and_not_an_older_version() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let shared = folder(&bench);
    let mut volume = attach(&bench.machine, id, &shared);
    bench.write(&mut volume, 0..1, 1);
    bench.turn(&mut volume, 28);
    let head = bench.head(id);
    for byte in [2, 3] {
        bench.write(&mut volume, 0..1, byte);
        flush(&bench, &bench.machine, &mut volume);
    }
    drop(volume);
    let disk = bench.machine.simulation.disk.clone();
    let path = shared.journal(id, 1);

    let failure = |error: OpenError| match error {
        OpenError::Journal(error) => error,
        other => panic!("{other}"),
    };
    // A block of each of the two flushed records: of the first the second one
    // says that it was durable.
    let lease = acquire(&bench.machine, id);
    let first = 4096 + lease.journal_next;
    disk.flip_bit(&path, first + 4096, 0).expect("there");
    let error = failure(
        open(&bench.machine, lease, &shared)
            .map(|_| ())
            .expect_err("damaged"),
    );
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("journal-1"), "{error}");
    assert!(error.is_loss());
    disk.flip_bit(&path, first + 4096, 0).expect("there");

    let aside = path.with_extension("aside");
    disk.rename(&path, &aside).expect("moved");
    let lease = acquire(&bench.machine, id);
    let error = failure(
        open(&bench.machine, lease, &shared)
            .map(|_| ())
            .expect_err("missing"),
    );
    assert!(matches!(error, JournalError::Missing { .. }), "{error}");
    assert!(error.is_loss());
    assert_eq!(bench.head(id), head, "nothing was committed without it");

    // Nobody has given it up: it is replayed when it is back.
    disk.rename(&aside, &path).expect("moved");
    let mut volume = attach(&bench.machine, id, &shared);
    assert_eq!(bench.read(&mut volume, 0), Ok(3));
}

/// Given up by force, and opened by a host that does not reach it: from then on
/// it counts for nobody, also where it lies.
#[test]
fn a_journal_that_was_given_up_is_never_followed_again() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let shared = folder(&bench);
    let mut volume = attach(&bench.machine, id, &shared);
    bench.write(&mut volume, 0..4, 1);
    bench.turn(&mut volume, 28);
    bench.write(&mut volume, 0..4, 2);
    bench.flush(&mut volume).expect("durable");
    drop(volume);

    let other = bench.machine.beside("/other");
    let memory = &bench.machine.catalog.memory;
    let refused = memory.acquire(id, other.salt(), None);
    assert!(matches!(refused, Err(CatalogError::JournalAway { .. })));
    memory.take_away(id).expect("there");
    let lease = memory.acquire(id, other.salt(), None).expect("given up");
    // What it has there itself is older than that.
    let own = other.journal(id);
    let place = JournalLocation::of(&lease, &own, None);
    assert_eq!((&place.path, &place.former), (&own, &None));
    let mut volume = other
        .open_at(lease, LeaseTerm::unlimited(), place, true)
        .expect("it opens");
    bench.write(&mut volume, 3..4, 3);
    flush(&bench, &other, &mut volume);
    drop(volume);

    // It dies before anything is in a version, and goes on with its own.
    let lease = memory.acquire(id, other.salt(), None).expect("its own");
    assert_eq!(lease.journal, None);
    let place = JournalLocation::of(&lease, &own, None);
    let mut volume = other
        .open_at(lease, LeaseTerm::unlimited(), place, false)
        .expect("it opens");
    assert_eq!(content(&bench, &other, &mut volume, 0..4), [1, 1, 1, 3]);
    close(&bench, &other, volume);

    let mut volume = attach(&bench.machine, id, &shared);
    assert_eq!(
        content(&bench, &bench.machine, &mut volume, 0..4),
        [1, 1, 1, 3]
    );
}

/// A host took a lease and was stopped for an hour. Its clock stands still, so
/// it believes that the lease holds.
#[test]
fn a_late_host_finishes_a_file_that_nobody_reads() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let shared = folder(&bench);
    let mut volume = attach(&bench.machine, id, &shared);
    bench.write(&mut volume, 0..4, 1);
    bench.flush(&mut volume).expect("durable");
    drop(volume);
    let slow = acquire(&bench.machine, id);

    let other = bench.machine.beside("/other");
    let mut new = attach(&other, id, &shared);
    bench.write(&mut new, 0..2, 2);
    flush(&bench, &other, &mut new);
    // Twice: what it copies from is there still, and is not.
    for _ in 0..2 {
        let late = open(&bench.machine, slow.clone(), &shared).map(|_| ());
        match late.expect_err("another has the volume") {
            OpenError::Catalog(error) => assert!(error.is_fenced(), "{error}"),
            OpenError::Journal(JournalError::Missing { .. }) => {}
            error => panic!("{error}"),
        }
        let world = bench.machine.simulation.world();
        shared.remove_before(&world, id, 3).expect("removed");
    }
    drop(new);
    let mut volume = attach(&other, id, &shared);
    assert_eq!(content(&bench, &other, &mut volume, 0..4), [2, 2, 1, 1]);
}

/// The former holder goes on as if nothing had happened, with its file open.
#[test]
fn a_former_holder_that_does_not_stop_writes_into_its_own_file() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let shared = folder(&bench);
    let mut old = attach(&bench.machine, id, &shared);
    bench.write(&mut old, 0..4, 1);
    bench.flush(&mut old).expect("durable");
    let other = bench.machine.beside("/other");
    let mut new = attach(&other, id, &shared);
    bench.write(&mut old, 0..8, 9);
    bench.flush(&mut old).expect("it thinks so");
    bench.write(&mut new, 2..6, 2);
    flush(&bench, &other, &mut new);
    drop(new);
    let mut new = attach(&other, id, &shared);
    let content = content(&bench, &other, &mut new, 0..8);
    assert_eq!(content, [1, 1, 2, 2, 2, 2, 0, 0]);
}

/// Its agent was started again, with a shared folder this time.
#[test]
fn what_a_host_has_in_a_journal_of_its_own_it_takes_along() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    bench.write(&mut volume, 0..4, 1);
    bench.flush(&mut volume).expect("durable");
    drop(volume);
    let other = bench.machine.beside("/shared");
    let shared = SharedFolder {
        path: other.host(),
        id: FOLDER,
    };
    drop(attach(&bench.machine, id, &shared));
    let own = bench.machine.journal(id);
    bench
        .machine
        .simulation
        .disk
        .remove(&own)
        .expect("it is not needed");
    let mut volume = attach(&bench.machine, id, &shared);
    assert_eq!(content(&bench, &bench.machine, &mut volume, 0..4), [1; 4]);
}
