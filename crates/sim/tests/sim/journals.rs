//! Scenarios of journals in a folder that two hosts share: each lease has a file of its
//! own. `sim::hosts` runs them at random.

use std::time::Duration;

use base::{
    BlockDevice, Completion, Durability, JournalFolderId, Outcome, Request, Started, VolumeId,
};
use catalog::{Catalog, CatalogError, Lease, NamedJournal};
use sim::machine::Machine;
use volume::journal::{JournalError, JournalLocation, SharedFolder};
use volume::{LeaseTerm, OpenError, Volume};
use world::{Clock, Disk};

use crate::bench::Bench;

/// A term that does not expire within a test.
const LONG: Duration = Duration::from_secs(3600);
const FOLDER: JournalFolderId = JournalFolderId::from_u128(1);

/// The shared folder: that of the first host.
fn folder(bench: &Bench) -> SharedFolder {
    SharedFolder {
        path: bench.machine.journal_folder(),
        id: FOLDER,
    }
}

/// Acquires the lease for a host that has the folder.
fn acquire(machine: &Machine, id: VolumeId) -> Lease {
    let catalog = &machine.catalog.memory;
    let lease = catalog.acquire(id, machine.salt(), Some(FOLDER));
    lease.expect("its journal is reachable")
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

/// The first byte of each block, read on `machine`.
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

/// Closes a volume: its head has everything then.
fn close(bench: &Bench, machine: &Machine, mut volume: Volume) {
    volume.begin_close();
    while volume.close_state().is_none() {
        machine.simulation.pool.run_all(bench.random());
        volume.poll(&mut Vec::new());
        volume.end_batch().expect("the journal works");
    }
    assert_eq!(volume.close_state(), Some(Ok(())));
}

/// Flushes a volume without advancing the clock.
fn flush(bench: &Bench, other: &Machine, volume: &mut Volume) {
    assert_eq!(volume.start(Request::flush(8)), Started::Pending);
    volume.end_batch().expect("the journal works");
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
        .files_under(&bench.machine.journal_folder());
    let name = |path: &std::path::PathBuf| path.file_name().map(|name| name.to_owned());
    files
        .iter()
        .filter_map(|(path, _)| name(path)?.into_string().ok())
        .collect()
}

/// The power fails in each operation while a journal is copied and named and older ones are
/// removed, and right after the last one.
#[test]
fn after_a_crash_at_any_step_the_catalog_names_a_complete_journal() {
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
            // It fails if the power has failed.
            let _ = shared.remove_before(&world, id, epoch);
            let started = volume.start(Request::write(
                9,
                4 * 4096,
                &[2; 4096],
                Durability::Volatile,
            ));
            assert_eq!(started, Started::Done);
            let _ = volume.end_batch();
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

/// It is unknown whether the call was carried out.
#[test]
fn opening_fails_and_can_be_repeated_if_the_answer_of_naming_the_journal_is_lost() {
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
            let unavailable = OpenError::Catalog(CatalogError::Unavailable {
                reason: "simulated".to_owned(),
            });
            assert_eq!(error.to_string(), unavailable.to_string());
            bench.machine.catalog.set_unavailable(0);
        }
        let mut volume = attach(&bench.machine, id, &shared);
        assert_eq!(content(&bench, &bench.machine, &mut volume, 0..4), [1; 4]);
    }
}

#[test]
fn only_journals_older_than_the_named_one_are_removed() {
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
    // A block of the first flushed record. The second record says that it was durable.
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

    let moved = path.with_extension("moved");
    disk.rename(&path, &moved).expect("renamed");
    let lease = acquire(&bench.machine, id);
    let error = failure(
        open(&bench.machine, lease, &shared)
            .map(|_| ())
            .expect_err("missing"),
    );
    assert!(matches!(error, JournalError::Missing { .. }), "{error}");
    assert!(error.is_loss());
    assert_eq!(bench.head(id), head, "nothing was committed without it");

    // The journal was not given up: it is replayed when it reappears.
    disk.rename(&moved, &path).expect("renamed");
    let mut volume = attach(&bench.machine, id, &shared);
    assert_eq!(bench.read(&mut volume, 0), Ok(3));
}

/// The data loss was accepted, and a host without the folder opened the volume: from then on
/// the journal is ignored, also by hosts that have the folder.
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

    let other = bench.machine.another_host("/other");
    let memory = &bench.machine.catalog.memory;
    let refused = memory.acquire(id, other.salt(), None);
    assert!(matches!(
        refused,
        Err(CatalogError::JournalUnavailable { .. })
    ));
    memory.detach_by_force(id).expect("there");
    let lease = memory.acquire(id, other.salt(), None).expect("given up");
    // A journal of the host's own would be older than the named one.
    let own = other.journal(id);
    let place = JournalLocation::of(&lease, &own, None);
    assert_eq!((&place.path, &place.former), (&own, &None));
    let mut volume = other
        .open_at(lease, LeaseTerm::unlimited(), place, true)
        .expect("it opens");
    bench.write(&mut volume, 3..4, 3);
    flush(&bench, &other, &mut volume);
    drop(volume);

    // The host restarts before the next version, and continues its own journal.
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

/// A host acquired a lease and was suspended for an hour. Its clock stands still, so that
/// its lease does not expire for it.
#[test]
fn a_late_host_cannot_name_its_journal() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let shared = folder(&bench);
    let mut volume = attach(&bench.machine, id, &shared);
    bench.write(&mut volume, 0..4, 1);
    bench.flush(&mut volume).expect("durable");
    drop(volume);
    let slow = acquire(&bench.machine, id);

    let other = bench.machine.another_host("/other");
    let mut new = attach(&other, id, &shared);
    bench.write(&mut new, 0..2, 2);
    flush(&bench, &other, &mut new);
    // First the journal that it copies exists, then it does not.
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

/// The former holder's lease does not expire for it, and it has its file open.
#[test]
fn a_former_holder_that_does_not_stop_writes_into_its_own_file() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let shared = folder(&bench);
    let mut old = attach(&bench.machine, id, &shared);
    bench.write(&mut old, 0..4, 1);
    bench.flush(&mut old).expect("durable");
    let other = bench.machine.another_host("/other");
    let mut new = attach(&other, id, &shared);
    bench.write(&mut old, 0..8, 9);
    bench
        .flush(&mut old)
        .expect("its lease holds by its own clock");
    bench.write(&mut new, 2..6, 2);
    flush(&bench, &other, &mut new);
    drop(new);
    let mut new = attach(&other, id, &shared);
    let content = content(&bench, &other, &mut new, 0..8);
    assert_eq!(content, [1, 1, 2, 2, 2, 2, 0, 0]);
}

/// A host's agent was restarted with a shared folder of journals.
#[test]
fn a_host_continues_its_own_journal_in_a_new_shared_folder() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    bench.write(&mut volume, 0..4, 1);
    bench.flush(&mut volume).expect("durable");
    drop(volume);
    let other = bench.machine.another_host("/shared");
    let shared = SharedFolder {
        path: other.journal_folder(),
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
