//! A volume's journal: its first page, its record headers, and its replay.

use std::path::Path;
use std::sync::Arc;

use base::checksum::crc32c;
use base::{BlockIndex, BlockSize, Sequence, VolumeId};
use volume::fixture::keyring;
use volume::journal::{self, Claim, Journal, JournalError, JournalSpec, ReplayedWrite};
use volume::seal::Keyring;
use world::OpenMode;

use crate::world;

/// The ranges of the volume and of the CRC-32C in a journal's first page
/// (docs/internals/formats.md).
const PAGE_VOLUME: std::ops::Range<usize> = 24..40;
const PAGE_CRC: std::ops::Range<usize> = 48..52;

/// The beginning of a journal's file. A file that is not the volume's journal is not changed.
pub fn journal_page(data: &[u8]) {
    let check = |bytes: &[u8]| {
        let world = world();
        let path = Path::new("/journal");
        let written = world.disk.open(path, OpenMode::CreateNew);
        let file = written.expect("a disk without faults");
        file.write_at(bytes, 0).expect("a disk without faults");
        file.set_length(bytes.len().max(256 << 10) as u64)
            .expect("a disk without faults");
        let volume = VolumeId::from_u128(5);
        match Journal::open(
            &world,
            path,
            JournalSpec::new(volume, BlockSize::DEFAULT, 0),
        ) {
            Ok(opened) => {
                let mut journal = opened.expect("there is a file");
                let file_bytes = journal.file().length().expect("a disk without faults");
                assert!(journal.ring_bytes() + 4096 <= file_bytes);
                assert!(journal.ring_bytes().is_multiple_of(4096));
                let replayed = journal::replay(&mut journal, &keyring(1), Sequence::ZERO, |_| {});
                assert!(matches!(
                    replayed,
                    Ok(_) | Err(JournalError::Damaged { .. })
                ));
            }
            Err(error) => {
                assert!(matches!(error, JournalError::Foreign { .. }), "{error}");
                let mut after = vec![0; bytes.len()];
                file.read_at(&mut after, 0).expect("a disk without faults");
                assert_eq!(after, bytes);
            }
        }
    };
    check(data);
    let mut repaired = data.to_vec();
    if repaired.len() >= PAGE_CRC.end {
        repaired[PAGE_VOLUME].copy_from_slice(&5_u128.to_le_bytes());
        let crc = crc32c(&repaired[..PAGE_CRC.start]);
        repaired[PAGE_CRC].copy_from_slice(&crc.to_le_bytes());
        check(&repaired);
    }
}

pub fn journal_page_seeds() -> Vec<Vec<u8>> {
    [4096, 64 << 10, 252 << 10]
        .map(|ring_bytes| {
            let (world, path) = (world(), Path::new("/journal"));
            let volume = VolumeId::from_u128(5);
            let mut journal = Journal::create(
                &world,
                path,
                JournalSpec::new(volume, BlockSize::DEFAULT, 0),
                ring_bytes,
                &Claim::sole(),
            )
            .expect("a disk without faults");
            if journal.has_room(1) {
                let _ = journal.append_zero(BlockIndex(1), 3, Sequence::new(1, 1).expect("small"));
                journal.write_batch().expect("a disk without faults");
            }
            let mut bytes = vec![0; 8192];
            let file = journal.file();
            file.read_at(&mut bytes, 0).expect("a disk without faults");
            bytes
        })
        .into()
}

/// The range of the CRC-32C in a record header (docs/internals/formats.md).
const RECORD_CRC: std::ops::Range<usize> = 60..64;

/// The header page of a journal record.
pub fn journal_record(data: &[u8]) {
    let mut page = [0; journal::HEADER_BYTES];
    let length = data.len().min(page.len());
    page[..length].copy_from_slice(&data[..length]);
    for _ in 0..2 {
        if let Ok(header) = journal::Header::decode(&page) {
            assert!(header.entries.len() <= journal::ENTRIES_MAX);
            let mut encoded = [0; journal::HEADER_BYTES];
            header.encode(&mut encoded);
            assert_eq!(journal::Header::decode(&encoded), Ok(header));
        }
        page[RECORD_CRC].fill(0);
        let crc = crc32c(&page);
        page[RECORD_CRC].copy_from_slice(&crc.to_le_bytes());
    }
}

pub fn journal_record_seeds() -> Vec<Vec<u8>> {
    let data = |block| journal::Entry::Data {
        block: BlockIndex(block),
        tag: [7; 16],
    };
    let zero = |block, count| journal::Entry::Zero {
        block: BlockIndex(block),
        count,
    };
    [
        vec![data(1)],
        vec![data(5), zero(9, 100), data(6)],
        (0..126).map(data).collect(),
    ]
    .map(|entries| {
        let mut page = [0; journal::HEADER_BYTES];
        let header = journal::Header {
            position: 1 << 20,
            durable: 1 << 19,
            journal: 99,
            first: Sequence::new(3, 17).expect("small"),
            block_bytes: 4096,
            entries,
        };
        header.encode(&mut page);
        page.to_vec()
    })
    .into()
}

fn sequence(number: u64) -> Sequence {
    Sequence::new(1, number).expect("small")
}

/// Appends `count` writes, and returns them.
fn write_journal(journal: &mut Journal, keyring: &Keyring, count: u8) -> Vec<ReplayedWrite> {
    let mut written = Vec::new();
    for number in 1..=u64::from(count) {
        if number % 5 == 0 {
            let _ = journal.append_zero(BlockIndex(number), 3, sequence(number));
            written.push(ReplayedWrite::Zero {
                block: BlockIndex(number),
                count: 3,
                sequence: sequence(number),
            });
        } else {
            let plain = vec![number as u8; BlockSize::DEFAULT.bytes()];
            let block = BlockIndex(number % 7);
            let placed = journal
                .append(
                    keyring.own(),
                    block,
                    sequence(number),
                    plain.as_slice().into(),
                )
                .expect("there is room");
            written.push(ReplayedWrite::Data { block, placed });
        }
        if number % 3 == 0 {
            journal.write_batch().expect("a disk without faults");
        }
        if number % 6 == 0 {
            // As after a sync, whose loss has to be detected.
            let head = journal.head();
            journal.synced(head);
        }
    }
    journal.write_batch().expect("a disk without faults");
    written
}

/// A journal with changed bytes. Its replay has to find a prefix of the writes.
///
/// `data`: the number of blocks to write, then triples: page, half the offset in it, and byte.
pub fn journal_replay(data: &[u8]) {
    let Some((&count, changes)) = data.split_first() else {
        return;
    };
    let (world, keyring) = (world(), keyring(1));
    let (path, volume) = (Path::new("/journal"), VolumeId::from_u128(5));
    let block_size = BlockSize::DEFAULT;
    let mut journal = Journal::create(
        &world,
        path,
        JournalSpec::new(volume, block_size, 0),
        256 << 10,
        &Claim::sole(),
    )
    .expect("a disk without faults");
    let written = write_journal(&mut journal, &keyring, count % 40);
    let file = Arc::clone(journal.file());
    for change in changes.chunks_exact(3) {
        // The first bytes of pages matter most.
        let place = u64::from(change[0]) % 65 * 4096 + u64::from(change[1]) * 2;
        file.write_at(&change[2..], place)
            .expect("a disk without faults");
    }
    if let Ok(Some(mut journal)) =
        Journal::open(&world, path, JournalSpec::new(volume, block_size, 0))
    {
        let mut found = Vec::new();
        let replayed = journal::replay(&mut journal, &keyring, sequence(0), |write| {
            found.push(write);
        });
        assert!(matches!(
            replayed,
            Ok(_) | Err(JournalError::Damaged { .. })
        ));
        assert!(found.len() <= written.len());
        assert_eq!(found, written[..found.len()]);
    }
}

pub fn journal_replay_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![39],
        vec![12, 0, 9, 1],
        vec![39, 3, 0, 1, 9, 30, 255],
        vec![20, 1, 30, 0, 200, 2, 3],
    ]
}
