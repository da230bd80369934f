//! The journal, compared with a plain list: laps, torn tails, successive leases, and flips
//! of every byte of the file.

use std::path::Path;

use base::{BlockIndex, BlockSize, Sequence, VolumeId};
use volume::fixture::keyring;
use volume::journal::{Claim, Journal, JournalSpec, ReplayedWrite, replay};
use volume::seal::Keyring;
use world::simulated::{SimulatedRandom, Simulation};

const PATH: &str = "/journal";

/// A recorded write: its sequence, its block, and the number of zeroed blocks; 0 for data.
type Write = (Sequence, u64, u64);

fn volume() -> VolumeId {
    VolumeId::from_u128(1)
}

fn replayed(journal: &mut Journal, keyring: &Keyring, after: Sequence) -> Vec<Write> {
    let mut found = Vec::new();
    replay(journal, keyring, after, |write| {
        found.push(match write {
            ReplayedWrite::Data { block, placed } => (placed.sequence, block.0, 0),
            ReplayedWrite::Zero {
                block,
                count,
                sequence,
            } => (sequence, block.0, count),
        });
    })
    .expect("the file can be read");
    found
}

/// A journal in use, with its expected content.
struct Log {
    journal: Journal,
    epoch: u32,
    counter: u64,
    writes: Vec<Write>,
    /// The number of writes that are durable.
    durable: usize,
    /// Log position and newest sequence of the last release.
    released: (u64, Sequence),
}

impl Log {
    fn step(&mut self, random: &SimulatedRandom, keyring: &Keyring) {
        match random.below(10) {
            0..=5 => {
                for _ in 0..1 + random.below(9) {
                    // Jobs take sequences, too: gaps are allowed.
                    self.counter += 1 + u64::from(random.one_in(6));
                    let sequence = Sequence::new(self.epoch, self.counter).expect("small");
                    let block = random.below(1000);
                    if !self.journal.has_room(1) {
                        break;
                    }
                    let count = if random.one_in(4) {
                        1 + random.below(9)
                    } else {
                        0
                    };
                    if count > 0 {
                        self.journal
                            .append_zero(BlockIndex(block), count, sequence)
                            .expect("the disk works");
                    } else {
                        let plain = vec![block as u8; self.journal.block_size().bytes()];
                        let sealer = keyring.of_epoch(self.epoch);
                        self.journal
                            .append(sealer, BlockIndex(block), sequence, plain.as_slice().into())
                            .expect("the disk works");
                    }
                    self.writes.push((sequence, block, count));
                }
                self.journal.write_batch().expect("the disk works");
            }
            6 | 7 => {
                self.journal.file().sync_data().expect("the disk works");
                self.durable = self.writes.len();
            }
            _ => {
                // Everything is destaged.
                let newest = self.writes.last().map_or(self.released.1, |write| write.0);
                self.released = (self.journal.head(), newest);
                self.journal.release(self.journal.head());
                self.writes.clear();
                self.durable = 0;
            }
        }
    }
}

#[test]
fn recovery_finds_a_prefix_with_everything_that_was_synced() {
    let keyring = keyring(19);
    for seed in 0..150 {
        let random = SimulatedRandom::new(seed);
        let mut simulation = Simulation::new(seed);
        let block_size = BlockSize::new([4096, 8192][random.index(2)]).expect("a size");
        let ring_bytes = 4096 * (24 + random.below(20));
        let world = simulation.world();
        let journal = Journal::create(
            &world,
            Path::new(PATH),
            JournalSpec::new(volume(), block_size, 0),
            ring_bytes,
            &Claim::sole(),
        )
        .expect("made");
        let mut log = Log {
            journal,
            epoch: 1,
            counter: 0,
            writes: Vec::new(),
            durable: 0,
            released: (0, Sequence::ZERO),
        };
        for _ in 0..12 {
            for _ in 0..random.below(25) {
                log.step(&random, &keyring);
            }
            let is_power = random.below(3) > 0;
            if is_power {
                simulation.crash();
            } else {
                simulation.kill();
                log.durable = log.writes.len();
            }
            let world = simulation.world();
            let opened = Journal::open(
                &world,
                Path::new(PATH),
                JournalSpec::new(volume(), block_size, log.released.0),
            );
            log.journal = opened.expect("it is a journal").expect("it is there");
            let found = replayed(&mut log.journal, &keyring, log.released.1);
            assert!(
                found.len() >= log.durable,
                "seed {seed}: {} of {}",
                found.len(),
                log.durable
            );
            assert_eq!(
                found[..],
                log.writes[..found.len()],
                "seed {seed}: not a prefix"
            );
            log.writes.truncate(found.len());
            log.durable = if is_power { found.len() } else { 0 };
            log.epoch += 1;
            log.counter = 0;
        }
    }
}

#[test]
fn after_a_flip_of_any_byte_recovery_finds_a_prefix_or_refuses() {
    let keyring = keyring(19);
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let path = Path::new(PATH);
    let size = BlockSize::DEFAULT;
    let mut journal = Journal::create(
        &world,
        path,
        JournalSpec::new(volume(), size, 0),
        64 << 10,
        &Claim::sole(),
    )
    .expect("made");
    let mut writes: Vec<Write> = Vec::new();
    for record in 0..3_u64 {
        for entry in 0..2 {
            let sequence = Sequence::new(1, 1 + record * 10 + entry).expect("small");
            journal
                .append(
                    keyring.of_epoch(1),
                    BlockIndex(record),
                    sequence,
                    [7; 4096].as_slice().into(),
                )
                .expect("the disk works");
            writes.push((sequence, record, 0));
        }
        journal.write_batch().expect("the disk works");
    }
    let used = 4096 + journal.head();
    drop(journal);
    for at in 0..used {
        simulation
            .disk
            .flip_bit(path, at, (at % 8) as u8)
            .expect("there");
        match Journal::open(&world, path, JournalSpec::new(volume(), size, 0)) {
            Ok(Some(mut journal)) => {
                let found = replayed(&mut journal, &keyring, Sequence::ZERO);
                assert_eq!(found[..], writes[..found.len()], "byte {at}");
                // Records after a damaged one are not followed.
                let records_before = (at.saturating_sub(4096) / (3 * 4096)) as usize;
                let is_first_page = at < 4096;
                assert!(
                    is_first_page || found.len() <= records_before * 2 || at % (3 * 4096) < 4096,
                    "byte {at}: {} writes",
                    found.len()
                );
            }
            Ok(None) => panic!("byte {at}: the file is there"),
            Err(_) => assert!(at < 4096, "byte {at} is not in the first page"),
        }
        simulation
            .disk
            .flip_bit(path, at, (at % 8) as u8)
            .expect("there");
    }
}

/// A header is mostly zeroes. The power failed while one was written, and only its first
/// sector survived. A later lease wrote another record at the same offset, the power failed
/// again, and only the other sectors survived: together they were the first header, and a
/// write that had been lost reappeared.
#[test]
fn two_torn_headers_do_not_make_a_valid_one() {
    let keyring = keyring(19);
    let path = Path::new(PATH);
    let size = BlockSize::DEFAULT;
    for seed in 0..4000 {
        let mut simulation = Simulation::new(seed);
        let world = simulation.world();
        let mut journal = Journal::create(
            &world,
            path,
            JournalSpec::new(volume(), size, 0),
            64 << 10,
            &Claim::sole(),
        )
        .expect("made");
        // Leftovers of an earlier lap, so that a torn header alone is not valid.
        journal
            .file()
            .write_at(&[0xaa; 4096], 4096)
            .expect("the disk works");
        journal.file().sync_data().expect("the disk works");
        let mut is_lost = false;
        for epoch in 1..4 {
            let sequence = Sequence::new(epoch, 1).expect("small");
            journal
                .append_zero(BlockIndex(u64::from(epoch)), 1, sequence)
                .expect("the disk works");
            journal.write_batch().expect("the disk works");
            drop(journal);
            simulation.crash();
            let world = simulation.world();
            journal = Journal::open(&world, path, JournalSpec::new(volume(), size, 0))
                .expect("it is a journal")
                .expect("it is there");
            let found = replayed(&mut journal, &keyring, Sequence::ZERO);
            let is_first_there = found.first().is_some_and(|write| write.1 == 1);
            assert!(!(is_lost && is_first_there), "seed {seed}: it reappeared");
            is_lost = !is_first_there;
            if !found.is_empty() {
                break;
            }
        }
    }
}
