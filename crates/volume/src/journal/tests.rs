//! The ring and its recovery, tested together.

use std::path::Path;

use base::{BlockIndex, BlockSize, Lineage, Sequence, VolumeId, with_causes};
use catalog::LineageKey;
use world::simulated::{Fault, Simulation};
use world::{Disk, World};

use super::{
    Claim, HEADER_BYTES, Journal, JournalError, JournalSlot, JournalSpec, ReplayedWrite, replay,
};
use crate::seal::{Keyring, WrappingKey};

const PAGE: u64 = HEADER_BYTES as u64;
const RING_BYTES: u64 = 16 * PAGE;
const VOLUME: VolumeId = VolumeId::from_u128(1);

fn keyring() -> Keyring {
    let lineage = Lineage::from_u128(1);
    let wrapping_key = WrappingKey::from_bytes(&[1; 32]);
    let random = world::simulated::SimulatedRandom::new(1);
    let key = LineageKey {
        lineage,
        epoch_first: 1,
        wrapped: Some(wrapping_key.wrap_none(lineage, &random)),
        wrapped_by: None,
        salts: Vec::new(),
    };
    Keyring::unwrap(&[key], &wrapping_key).expect("no key to open")
}

fn path() -> &'static Path {
    Path::new("/journal")
}

fn create(world: &World) -> Journal {
    Journal::create(
        world,
        path(),
        JournalSpec::new(VOLUME, BlockSize::DEFAULT, 0),
        RING_BYTES,
        &Claim::sole(),
    )
    .expect("room")
}

fn sequence(counter: u64) -> Sequence {
    Sequence::new(1, counter).expect("small")
}

/// Appends one block that is filled with its sequence.
fn append(journal: &mut Journal, keyring: &Keyring, counter: u64) -> JournalSlot {
    let plain = [counter as u8; 4096];
    journal
        .append(
            keyring.own(),
            BlockIndex(counter),
            sequence(counter),
            plain.as_slice().into(),
        )
        .expect("the disk works")
}

fn replayed(world: &World, from: u64) -> Result<Vec<u64>, JournalError> {
    let opened = Journal::open(
        world,
        path(),
        JournalSpec::new(VOLUME, BlockSize::DEFAULT, from),
    );
    let mut journal = opened?.expect("it exists");
    let mut blocks = Vec::new();
    replay(
        &mut journal,
        &keyring(),
        Sequence::ZERO,
        |write| match write {
            ReplayedWrite::Data { block, .. } | ReplayedWrite::Zero { block, .. } => {
                blocks.push(block.0)
            }
        },
    )?;
    Ok(blocks)
}

/// A record that filled the ring exactly to its end kept growing, and its next block was
/// written beyond the ring: reads then found what an earlier lap had left at the ring's
/// start.
#[test]
fn a_record_that_ends_exactly_at_the_rings_end_does_not_grow_beyond_it() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let keyring = keyring();
    for blocks_in_batch in 1..20 {
        let mut journal = create(&world);
        let mut counter = 0;
        while counter < 100 {
            let mut placed = Vec::new();
            for _ in 0..blocks_in_batch {
                if !journal.has_room(1) {
                    break;
                }
                counter += 1;
                placed.push((counter, append(&mut journal, &keyring, counter)));
            }
            journal.write_batch().expect("the disk works");
            for (counter, placed) in placed {
                let mut read = [0; 4096];
                journal
                    .file()
                    .read_at(&mut read, placed.offset)
                    .expect("it is there");
                assert_eq!(read, [counter as u8; 4096]);
                assert!(placed.offset + PAGE <= PAGE + RING_BYTES, "beyond the ring");
            }
            let head = journal.head();
            journal.release(head);
        }
    }
}

#[test]
fn a_rotten_durable_record_is_an_error_and_a_torn_tail_is_not() {
    let simulation = Simulation::new(2);
    let world = simulation.world();
    let keyring = keyring();
    let mut journal = create(&world);
    append(&mut journal, &keyring, 1);
    journal.write_batch().expect("the disk works");
    let first_end = journal.head();
    append(&mut journal, &keyring, 2);
    journal.write_batch().expect("the disk works");
    journal.file().sync_data().expect("the disk works");
    journal.synced(journal.head());
    let second_end = journal.head();
    append(&mut journal, &keyring, 3);
    journal.write_batch().expect("the disk works");
    assert_eq!(replayed(&world, 0).expect("it is whole"), [1, 2, 3]);

    let flip = |position: u64| {
        simulation
            .disk
            .flip_bit(path(), PAGE + position, 0)
            .expect("in the file");
    };
    // The third record says that the second was durable, so damage to its header or
    // payload is an error.
    for place in [first_end + 9, first_end + PAGE + 9] {
        flip(place);
        let error = replayed(&world, 0).expect_err("it has rotted");
        assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
        flip(place);
    }
    assert_eq!(replayed(&world, first_end).expect("from there on"), [2, 3]);
    // No record says that the last one was durable: it may be torn, and is then dropped
    // for good.
    flip(second_end + 100);
    assert_eq!(replayed(&world, 0).expect("a torn tail"), [1, 2]);
    flip(second_end + 100);
    assert_eq!(replayed(&world, 0).expect("a torn tail"), [1, 2]);
}

#[test]
fn a_full_disk_is_the_first_error_also_if_the_draft_cannot_be_removed() {
    let simulation = Simulation::new(3);
    let (world, disk) = (simulation.world(), &simulation.disk);
    let folder = Path::new("/host");
    disk.create_directory(folder).expect("made");
    disk.set_capacity(folder, RING_BYTES);
    let make = || {
        let path = folder.join("journal");
        let made = Journal::create(
            &world,
            &path,
            JournalSpec::new(VOLUME, BlockSize::DEFAULT, 0),
            RING_BYTES,
            &Claim::sole(),
        );
        let error = made.map(|_| ()).expect_err("no room for its first page");
        let left = disk.list(folder).expect("listed").len();
        (with_causes(&error), left)
    };
    let full = "cannot reserve room for the journal /host/journal: \
                No space left on device (os error 28)";
    assert_eq!(make(), (full.to_owned(), 0));
    disk.inject(folder, Fault::Unremovable);
    let stays = "; its draft /host/journal.new-0 cannot be removed: \
                 Operation not permitted (os error 1)";
    assert_eq!(make(), (format!("{full}{stays}"), 1));
    disk.heal(folder);
    assert_eq!(make(), (full.to_owned(), 0), "the draft was replaced");
}
