//! Re-encryptions that crash ([`CrashDisk`]), or whose requests below fail.

use base::{Durability, Request};
use std::collections::BTreeMap;

use world::simulated::SimulatedRandom;

use super::crash_disk::CrashDisk;
use super::tests::{CHEAP, HEADER, Rig, decrypted};
use super::*;
use luks::{Header, Step};

const SECTOR: usize = 512;

/// Three zones and three blocks, in bytes.
const SIZE: usize = (3 << 20) + (12 << 10);

fn reencrypting(reencrypt: u64) -> EncryptConfig {
    EncryptConfig {
        reencrypt,
        ..EncryptConfig::new("disk")
    }
}

/// An encrypted disk with this content.
fn disk_of(content: &[u8], seed: u64) -> Vec<u8> {
    let random = SimulatedRandom::new(seed);
    let made = Header::format(512, 0, CHEAP, b"secret", &random);
    let (_, key, steps) = made.expect("made");
    let mut disk = vec![0; HEADER];
    for step in steps {
        if let Step::Write { offset, bytes } = step {
            disk[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }
    disk.extend_from_slice(content);
    luks::Xts::new(&key).encrypt(0, SECTOR, &mut disk[HEADER..]);
    disk
}

fn content_of(random: &SimulatedRandom) -> Vec<u8> {
    let words = (0..SIZE / 8).flat_map(|_| random.next().to_le_bytes());
    words.collect()
}

fn is_reencrypting(disk: &[u8]) -> bool {
    let (header, _) = Header::read(disk).expect("one copy is valid");
    header.layout().run.is_some()
}

/// The contents that each sector written since the last flush may have after a crash.
type Versions = BTreeMap<usize, Vec<Vec<u8>>>;

/// A guest, with what it expects of its disk.
struct Guest {
    content: Vec<u8>,
    unflushed: Versions,
    /// Its pending requests, with the expected content of reads.
    waiting: BTreeMap<Token, (Range<usize>, Option<Vec<u8>>)>,
    token: Token,
}

impl Guest {
    /// Starts one request or polls. Returns false after a crash.
    fn use_disk(&mut self, rig: &mut Rig<CrashDisk>, random: &SimulatedRandom) -> bool {
        self.token += 1;
        let sector = random.index(SIZE / SECTOR - 8);
        let range = sector * SECTOR..(sector + 1 + random.index(8)) * SECTOR;
        let meet = |(used, _): &(Range<usize>, _)| used.start < range.end && range.start < used.end;
        let is_free = !self.waiting.values().any(meet);
        match random.below(6) {
            0..=1 if is_free => self.write(rig, random, range),
            2 if is_free => {
                self.read(rig, range);
                true
            }
            3 if self.waiting.is_empty() => self.flush(rig),
            _ => {
                self.poll(rig, None);
                rig.chain.bottom().left > 0
            }
        }
    }

    /// Starts a write. Returns false after a crash.
    fn write(
        &mut self,
        rig: &mut Rig<CrashDisk>,
        random: &SimulatedRandom,
        range: Range<usize>,
    ) -> bool {
        let data: Vec<u8> = range.clone().map(|_| random.below(256) as u8).collect();
        let at = range.start as u64;
        let started = rig
            .chain
            .start(Request::write(self.token, at, &data, Durability::Volatile));
        match started {
            Started::Busy => return true,
            // It may have been carried out all the same.
            Started::Failed(_) => {}
            Started::Done | Started::Pending => {}
        }
        for at in range.clone().step_by(SECTOR) {
            let old = self.content[at..at + SECTOR].to_vec();
            let versions = self.unflushed.entry(at).or_insert_with(|| vec![old]);
            versions.push(data[at - range.start..][..SECTOR].to_vec());
        }
        self.content[range.clone()].copy_from_slice(&data);
        if started == Started::Pending {
            self.waiting.insert(self.token, (range, None));
        }
        !matches!(started, Started::Failed(_))
    }

    /// Starts a read.
    fn read(&mut self, rig: &mut Rig<CrashDisk>, range: Range<usize>) {
        let mut out = vec![0; range.len()];
        match rig
            .chain
            .start(Request::read(self.token, range.start as u64, &mut out))
        {
            Started::Done => assert!(out == self.content[range]),
            Started::Pending => {
                let expected = self.content[range.clone()].to_vec();
                self.waiting.insert(self.token, (range, Some(expected)));
            }
            Started::Busy | Started::Failed(_) => {}
        }
    }

    /// Flushes, while no request is pending. Returns false after a crash.
    fn flush(&mut self, rig: &mut Rig<CrashDisk>) -> bool {
        let token = self.token;
        for _ in 0..100 {
            match rig.chain.start(Request::flush(token)) {
                Started::Busy => self.poll(rig, None),
                Started::Failed(_) => return false,
                Started::Done => {
                    self.unflushed.clear();
                    break;
                }
                Started::Pending => {
                    self.poll(rig, Some(token));
                    self.unflushed.clear();
                    break;
                }
            }
        }
        true
    }

    /// Polls once, or until the request `wanted` has completed.
    fn poll(&mut self, rig: &mut Rig<CrashDisk>, wanted: Option<Token>) {
        for _ in 0..1000 {
            let mut is_answered = wanted.is_none();
            for completion in rig.poll() {
                is_answered |= Some(completion.token) == wanted;
                let pending = self.waiting.remove(&completion.token);
                if let Some((_, Some(expected))) = pending {
                    let read = completion.result.expect("it is read");
                    assert!(read == Outcome::Data(expected), "it reads other data");
                }
            }
            if is_answered {
                return;
            }
        }
        panic!("it never completes");
    }

    /// Reads the whole disk; `None` if it crashes meanwhile.
    fn try_to_read(rig: &mut Rig<CrashDisk>) -> Option<Vec<u8>> {
        let mut out = vec![0; SIZE];
        for _ in 0..5000 {
            match rig.chain.start(Request::read(1, 0, &mut out)) {
                Started::Done => return Some(out),
                Started::Failed(_) => return None,
                Started::Busy => drop(rig.poll()),
                Started::Pending => {
                    for _ in 0..100 {
                        if let Some(answer) = rig.poll().pop() {
                            return match answer.result {
                                Ok(Outcome::Data(data)) => Some(data),
                                _ => None,
                            };
                        }
                    }
                }
            }
        }
        None
    }

    /// Checks the content of the disk after a crash, and continues with it.
    fn check_after_crash(&mut self, there: &[u8], seed: u64) {
        for at in (0..SIZE).step_by(SECTOR) {
            let sector = &there[at..at + SECTOR];
            let may_be = match self.unflushed.get(&at) {
                Some(versions) => versions.iter().any(|version| version == sector),
                None => sector == &self.content[at..at + SECTOR],
            };
            assert!(may_be, "seed {seed}: byte {at} is lost");
        }
        self.content.copy_from_slice(there);
        self.unflushed.clear();
        self.waiting.clear();
    }
}

/// Checks that the key is another one than that of the disk `first`, and that nothing on the disk
/// opens the old one.
fn check_key_is_new(first: &[u8], disk: &[u8]) {
    let (header, _) = Header::read(disk).expect("read");
    let (old, _) = Header::read(first).expect("read");
    let key = header.unlock(disk, b"secret").expect("it opens");
    assert_ne!(old.unlock(first, b"secret").expect("it opens"), key);
    assert!(old.unlock(disk, b"secret").is_err());
    assert_eq!((header.layout().done, header.layout().slots.len()), (1, 1));
}

#[test]
fn a_crash_during_a_reencryption_loses_no_flushed_write() {
    for seed in 0..30 {
        let random = SimulatedRandom::new(seed);
        let content = content_of(&random);
        let mut disk = disk_of(&content, seed + 1_000_000);
        let first = disk.clone();
        let mut guest = Guest {
            content,
            unflushed: Versions::new(),
            waiting: BTreeMap::new(),
            token: 10,
        };
        let mut crashes = 0;
        for life in 0_u64.. {
            let late = [0, 2, 4][random.index(3)];
            let mut device = CrashDisk::new(disk, seed * 1000 + life, late);
            // The last life ends with the re-encryption.
            let is_last = life > 6 + seed % 5;
            if !is_last {
                device.left = random.below(70);
            }
            let mut rig = Rig::new(device, seed * 1000 + life);
            let attached = rig.attach(&reencrypting(1));
            assert!(!is_last || attached.is_ok(), "seed {seed}: {attached:?}");
            if attached.is_ok() {
                let there = match is_last {
                    true => rig.read(0, SIZE),
                    // It may crash while it is read.
                    false => match Guest::try_to_read(&mut rig) {
                        Some(there) => there,
                        None => {
                            disk = rig.chain.into_bottom().crashed();
                            continue;
                        }
                    },
                };
                guest.check_after_crash(&there, seed);
                while guest.use_disk(&mut rig, &random) {
                    let live = &rig.chain.bottom().live;
                    if is_last && guest.waiting.is_empty() && !is_reencrypting(live) {
                        break;
                    }
                }
                crashes += 1;
            }
            if is_last {
                // Wait until the old key slots are wiped.
                (0..200).for_each(|_| drop(rig.poll()));
                assert!(crashes > 2, "seed {seed}");
                assert!(rig.read(0, SIZE) == guest.content, "seed {seed}");
                rig.wait(1, |chain| chain.start(Request::flush(1)));
                disk = rig.chain.into_bottom().crashed();
                break;
            }
            disk = rig.chain.into_bottom().crashed();
        }
        assert!(decrypted(&disk) == guest.content, "seed {seed}");
        check_key_is_new(&first, &disk);
    }
}

#[test]
fn holes_are_not_reencrypted() {
    let random = SimulatedRandom::new(1);
    let mut content = content_of(&random);
    let mut disk = disk_of(&content, 1);
    disk[HEADER..][..2 << 20].fill(0);
    let mut device = CrashDisk::new(disk, 1, 0);
    let hole = HEADER / 4096..(HEADER + (2 << 20)) / 4096;
    device.holes[hole.clone()].fill(true);
    let mut rig = Rig::new(device, 1);
    rig.attach(&reencrypting(1)).expect("attached");
    rig.write(0, b"something");
    while is_reencrypting(&rig.chain.bottom().live) {
        rig.poll();
    }
    (0..20).for_each(|_| drop(rig.poll()));
    let device = rig.chain.into_bottom();
    assert!(!device.holes[hole.start], "it was written");
    let passed = device.holes[hole].iter().filter(|is_hole| **is_hole);
    assert_eq!(passed.count(), 256, "the second zone");
    let there = decrypted(&device.live);
    content[..9].copy_from_slice(b"something");
    assert_eq!(there[..9], content[..9]);
    assert!(there[2 << 20..] == content[2 << 20..]);
}

#[test]
fn filters_are_swapped_while_the_data_is_reencrypted() {
    let random = SimulatedRandom::new(2);
    let content = content_of(&random);
    let mut rig = Rig::new(CrashDisk::new(disk_of(&content, 2), 2, 2), 2);
    let mut swaps = 0;
    rig.attach(&reencrypting(3)).expect("attached");
    while is_reencrypting(&rig.chain.bottom().live) || swaps == 0 {
        (0..random.below(4)).for_each(|_| drop(rig.poll()));
        // The re-encryption continues, whatever the policy says now.
        rig.attach(&reencrypting(swaps % 4)).expect("attached");
        swaps += 1;
    }
    assert!(swaps > 2, "{swaps}");
    assert!(rig.read(0, SIZE) == content);
    // It is done, so the same number starts no other one.
    rig.attach(&reencrypting(3)).expect("attached");
    (0..50).for_each(|_| drop(rig.poll()));
    let disk = &rig.chain.bottom().live;
    assert!(decrypted(disk) == content);
    let (header, _) = Header::read(disk).expect("read");
    assert_eq!(header.layout().done, 3);
}

/// Polls until the filter retries a failed step.
fn wait_a_second(rig: &mut Rig<CrashDisk>) {
    (0..1100).for_each(|_| drop(rig.poll()));
}

#[test]
fn a_zone_that_cannot_be_read_stays_usable() {
    let random = SimulatedRandom::new(3);
    let mut content = content_of(&random);
    let mut rig = Rig::new(CrashDisk::new(disk_of(&content, 3), 3, 0), 3);
    let bad = HEADER as u64 + (1 << 20) + 700;
    rig.chain.bottom().damaged = bad..bad + 1;
    rig.attach(&reencrypting(1)).expect("attached");
    wait_a_second(&mut rig);
    assert!(is_reencrypting(&rig.chain.bottom().live));
    // Sectors that can be read are read, and the damaged one fails with its error.
    let at = 1 << 20;
    rig.write(at, &[5; 512]);
    content[at as usize..][..512].fill(5);
    assert_eq!(rig.read(at, 512), [5; 512]);
    let failed = rig.chain.start(Request::read(1, at + 512, &mut [0; 512]));
    assert!(matches!(failed, Started::Failed(IoError::Damaged(_))));
    rig.chain.bottom().damaged = 0..0;
    wait_a_second(&mut rig);
    assert!(decrypted(&rig.chain.bottom().live) == content);
}

#[test]
fn requests_to_a_zone_that_cannot_be_saved_fail_with_its_error() {
    let random = SimulatedRandom::new(4);
    let content = content_of(&random);
    let mut rig = Rig::new(CrashDisk::new(disk_of(&content, 4), 4, 0), 4);
    let end = HEADER as u64;
    rig.attach(&reencrypting(1)).expect("attached");
    rig.chain.bottom().damaged = end - 1..end;
    (0..20).for_each(|_| drop(rig.poll()));
    let failed = rig
        .chain
        .start(Request::write(1, 0, &[0; 512], Durability::Volatile));
    assert!(matches!(failed, Started::Failed(IoError::Damaged(_))));
    // Other zones can be used.
    let behind = rig.read(1 << 20, 512);
    assert!(behind == content[1 << 20..][..512]);
    rig.chain.bottom().damaged = 0..0;
    wait_a_second(&mut rig);
    assert!(decrypted(&rig.chain.bottom().live) == content);
}

/// A zone that was restored from the journal was released before it was re-encrypted. After another
/// crash its journal would have overwritten later writes.
#[test]
fn a_zone_restored_from_the_journal_is_held_until_it_is_reencrypted() {
    let random = SimulatedRandom::new(5);
    let content = content_of(&random);
    // Crash when the journal of the first zone is durable: a key slot and two copies of the header
    // come before it, each with a flush.
    let mut rig = Rig::new(CrashDisk::new(disk_of(&content, 5), 5, 0), 5);
    rig.attach(&reencrypting(1)).expect("attached");
    rig.chain.bottom().left = 8;
    (0..20).for_each(|_| drop(rig.poll()));
    let disk = rig.chain.into_bottom().crashed();
    let (header, _) = Header::read(&disk).expect("read");
    assert!(header.saved(&disk).is_some(), "the journal is valid");
    // The zone is restored, and then cannot be read.
    let mut rig = Rig::new(CrashDisk::new(disk, 6, 1), 6);
    rig.attach(&reencrypting(1)).expect("attached");
    let written = rig.chain.bottom().done + 2;
    while rig.chain.bottom().done < written {
        rig.poll();
    }
    rig.chain.bottom().damaged = HEADER as u64..HEADER as u64 + 1;
    (0..200).for_each(|_| drop(rig.poll()));
    assert_eq!(rig.chain.bottom().done, written, "and nothing more");
    let refused = rig
        .chain
        .start(Request::write(1, 512, &[0; 512], Durability::Volatile));
    assert!(
        matches!(refused, Started::Failed(IoError::Damaged(_))),
        "{refused:?}"
    );
    rig.chain.bottom().damaged = 0..0;
    while is_reencrypting(&rig.chain.bottom().live) {
        rig.poll();
    }
    wait_a_second(&mut rig);
    assert!(decrypted(&rig.chain.bottom().live) == content);
}
