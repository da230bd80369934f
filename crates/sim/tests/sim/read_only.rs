//! Scenarios of versions that are open for reading.

use base::{BlockDevice, Completion, Durability, Extent, ExtentKind, IoError, Outcome, Request};
use base::{SnapshotId, Started, ZeroMode};
use catalog::{Catalog, VersionKey};
use sim::setup::Setup;
use volume::ReadOnlyVolume;
use volume::clean::Removal;

use crate::bench::Bench;

const SIZE_BYTES: u64 = 1 << 30;

fn open(bench: &Bench, key: VersionKey) -> ReadOnlyVolume {
    let memory = &bench.machine.catalog.memory;
    let stored = memory.version(key).expect("it is kept");
    let keys = memory.keys(stored.lineage).expect("they are there");
    let block_size = bench.setup.block_size;
    let opened = bench
        .machine
        .open_read_only(Some(stored), &keys, SIZE_BYTES, block_size);
    opened.expect("it opens")
}

fn read(bench: &Bench, volume: &mut ReadOnlyVolume, block: u64) -> Result<u8, IoError> {
    let mut bytes = vec![0xee; 4096];
    match volume.start(Request::read(1, block * 4096, &mut bytes)) {
        Started::Done => {}
        Started::Pending => {
            let mut completions: Vec<Completion> = Vec::new();
            while completions.is_empty() {
                bench.machine.simulation.pool.run_one(bench.random());
                volume.poll(&mut completions);
            }
            match completions.remove(0).result? {
                Outcome::Data(data) => bytes = data,
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture");
    Ok(bytes[0])
}

/// A snapshot of a volume with 24 blocks of ones, some in the tree and some in the tail.
fn snapshot(bench: &Bench, volume: &mut volume::Volume) -> (SnapshotId, VersionKey) {
    for first in [0, 8, 16] {
        bench.write(volume, first..first + 8, 1);
        bench.turn(volume, 30);
    }
    let id = SnapshotId::from_u128(1);
    volume.snapshot(id);
    bench.turn(volume, 60);
    let pinned = bench.machine.catalog.memory.snapshot(id);
    (id, pinned.expect("it is complete"))
}

#[test]
fn many_readers_share_a_snapshot_while_its_volume_is_written() {
    for (is_sealed, read_misses_one_in) in [(true, 0), (true, 2), (false, 0), (false, 2)] {
        let mut setup = Setup::quiet(3, 2);
        setup.is_sealed = is_sealed;
        setup.read_misses_one_in = read_misses_one_in;
        let mut bench = Bench::with(setup);
        let id = bench.create(None);
        let mut volume = bench.attach(id);
        let (_, key) = snapshot(&bench, &mut volume);
        let mut readers = vec![open(&bench, key)];
        for round in 2..12 {
            bench.write(&mut volume, 0..20 + u64::from(round), round);
            bench.turn(&mut volume, 60);
            // Versions in between are removed, and their slots freed.
            for stored in bench.machine.catalog.memory.versions() {
                bench.remove(stored.key);
            }
            readers.push(open(&bench, key));
            for reader in &mut readers {
                for block in 0..24 {
                    assert_eq!(read(&bench, reader, block), Ok(1), "round {round}");
                }
                assert_eq!(read(&bench, reader, 25), Ok(0), "it was empty");
            }
        }
        bench.close(volume);
        bench.audit();
    }
}

#[test]
fn a_clone_and_a_restored_volume_are_read_with_inherited_keys() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    let (_, key) = snapshot(&bench, &mut volume);
    bench.close(volume);
    let clone = bench.create(Some(key));
    let mut volume = bench.attach(clone);
    bench.write(&mut volume, 0..4, 2);
    bench.close(volume);
    let mut reader = open(&bench, bench.head(clone));
    assert_eq!(read(&bench, &mut reader, 3), Ok(2));
    assert_eq!(read(&bench, &mut reader, 4), Ok(1));

    let mut volume = bench.attach(id);
    bench.write(&mut volume, 0..24, 3);
    bench.close(volume);
    let memory = &bench.machine.catalog.memory;
    memory.restore(id, key).expect("it is kept");
    let mut volume = bench.attach(id);
    bench.write(&mut volume, 0..2, 4);
    bench.close(volume);
    let mut reader = open(&bench, bench.head(id));
    assert_eq!(read(&bench, &mut reader, 1), Ok(4));
    assert_eq!(read(&bench, &mut reader, 2), Ok(1));
}

#[test]
fn a_read_only_volume_refuses_changes_and_does_not_call_the_catalog() {
    let mut bench = Bench::new(2, 1);
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    let (_, key) = snapshot(&bench, &mut volume);
    let mut reader = open(&bench, key);
    bench.machine.catalog.set_unavailable(1);
    let zeroes = ZeroMode {
        durability: Durability::Volatile,
        may_punch: true,
        fast_only: false,
    };
    let refused = Started::Failed(IoError::ReadOnly);
    let write = reader.start(Request::write(1, 0, &[2; 4096], Durability::Volatile));
    assert_eq!(write, refused);
    assert_eq!(
        reader.start(Request::trim(1, 0, 4096, Durability::Durable)),
        refused
    );
    assert_eq!(
        reader.start(Request::write_zeroes(1, 0, 4096, zeroes)),
        refused
    );
    assert_eq!(reader.start(Request::flush(1)), Started::Done);
    assert_eq!(reader.end_batch(), Ok(()));
    assert!(reader.capabilities().read_only);
    assert_eq!(reader.next_timer(), None);
    assert_eq!(reader.status().head, Some(key));
    let mut runs = Vec::new();
    let extents = reader.start(Request::extents(1, 0, SIZE_BYTES, &mut runs));
    assert_eq!(extents, Started::Done);
    let data = Extent {
        length: 24 * 4096,
        kind: ExtentKind::Data,
    };
    assert_eq!(runs[0], data);
    let beyond = reader.start(Request::read(1, SIZE_BYTES, &mut [0]));
    assert!(matches!(
        beyond,
        Started::Failed(IoError::OutOfRange { .. })
    ));
    assert_eq!(read(&bench, &mut reader, 23), Ok(1));
}

#[test]
fn a_volume_without_a_version_is_empty() {
    let bench = Bench::new(1, 1);
    let block_size = bench.setup.block_size;
    let opened = bench
        .machine
        .open_read_only(None, &[], SIZE_BYTES, block_size);
    let mut reader = opened.expect("nothing has to be read");
    assert_eq!(read(&bench, &mut reader, 7), Ok(0));
}

/// The version was removed while it was open: blocks that only it had are freed.
#[test]
fn a_removed_version_returns_errors_and_never_wrong_data() {
    for is_sealed in [true, false] {
        let mut setup = Setup::quiet(2, 1);
        setup.is_sealed = is_sealed;
        let mut bench = Bench::with(setup);
        let id = bench.create(None);
        let mut volume = bench.attach(id);
        let (snapshot, key) = snapshot(&bench, &mut volume);
        let mut reader = open(&bench, key);
        bench.write(&mut volume, 0..20, 2);
        bench.turn(&mut volume, 60);
        bench.machine.catalog.memory.delete_snapshot(snapshot);
        for stored in bench.machine.catalog.memory.versions() {
            let is_head = stored.key == bench.head(id);
            assert_eq!(bench.remove(stored.key) == Removal::Needed, is_head);
        }
        bench.write(&mut volume, 0..20, 3);
        bench.turn(&mut volume, 60);
        let mut failed = 0;
        for block in 0..24 {
            match read(&bench, &mut reader, block) {
                Ok(byte) => assert_eq!(byte, 1, "block {block}"),
                Err(IoError::Damaged(_) | IoError::Unavailable(_)) => failed += 1,
                Err(error) => panic!("block {block}: {error}"),
            }
        }
        assert!(failed > 0, "freed blocks cannot be read");
    }
}
