//! Entry points for fuzzers: a journal's file as an attacker, or a faulty medium, may leave it.

use std::path::Path;
use std::sync::Arc;

use base::ByteRange;
use base::checksum::crc32c;
use world::simulated::SimulatedDisk;
use world::{Disk, OpenMode};

use super::file::{self, FoundRecord, JournalFile, JournalSpec};
use super::origin::Origin;
use super::record::{
    ALIGNMENT, CHECKED_BYTES, ChangeKind, HEADER_BYTES, PAGE_BYTES, PAYLOAD_BYTES_MAX, RING_OFFSET,
    RecordHeader, StartPage,
};
use super::ring::Ring;

const RING_BYTES: u64 = 64 << 10;
const SPEC: JournalSpec = JournalSpec {
    ring_bytes: RING_BYTES,
    disk_bytes: 1 << 30,
    origin: Origin {
        lease: None,
        restores: None,
        below: None,
        disk: None,
    },
};

/// Opens the beginning of a journal's file: as it is, and with its checksums corrected.
pub fn fuzz_file(data: &[u8]) {
    let mut bytes = data.to_vec();
    let length_min = (RING_OFFSET + RING_BYTES) as usize;
    check(&bytes);
    bytes.resize(bytes.len().max(length_min), 0);
    for at in [0, PAGE_BYTES as usize] {
        let page = &mut bytes[at..at + PAGE_BYTES as usize];
        let (checked, rest) = page.split_at_mut(CHECKED_BYTES);
        rest[..8].copy_from_slice(&u64::from(crc32c(checked)).to_le_bytes());
    }
    check(&bytes);
    // Then the records, one after the other, from where the start page lets the log begin.
    let pages = bytes[..RING_OFFSET as usize].chunks(PAGE_BYTES as usize);
    let starts = pages.filter_map(|page| StartPage::decode(page).ok().flatten());
    let start = starts.max_by_key(|start| start.number);
    let Some(start) = start.filter(StartPage::is_sound) else {
        return;
    };
    let mut at = (RING_OFFSET + start.tail.offset % start.ring_bytes) as usize;
    let mut sequence = start.tail.sequence;
    while let Some(record) = bytes.get_mut(at..) {
        let Some(length) = correct_record(record, sequence, start.epoch) else {
            break;
        };
        at += length as usize;
        sequence = sequence.wrapping_add(1);
    }
    check(&bytes);
}

/// Corrects the sequence, the epoch and the checksum of a record. Returns its length in bytes.
fn correct_record(record: &mut [u8], sequence: u64, epoch: u64) -> Option<u64> {
    let head = record.get_mut(..HEADER_BYTES as usize)?;
    head[8..16].copy_from_slice(&sequence.to_le_bytes());
    head[16..24].copy_from_slice(&epoch.to_le_bytes());
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    let payload = match number(40) {
        0 => number(32),
        _ => 0,
    };
    let end = usize::try_from(payload.checked_add(HEADER_BYTES)?).ok()?;
    let crc = crc32c(record.get(8..end)?);
    record[4..8].copy_from_slice(&crc.to_le_bytes());
    Some((end as u64).next_multiple_of(ALIGNMENT))
}

fn check(bytes: &[u8]) {
    let disk = SimulatedDisk::new(1);
    let path = Path::new("/journal");
    let file = disk.open(path, OpenMode::CreateNew);
    let file = file.expect("a disk without faults");
    file.write_at(bytes, 0).expect("a disk without faults");
    drop(file);
    let Ok(journal) = file::open(&disk, path, &SPEC) else {
        return;
    };
    let start = journal.start;
    let length = journal.file.length().expect("a disk without faults");
    assert!(RING_OFFSET + start.ring_bytes <= length);
    let mut used = 0;
    for FoundRecord { header, payload } in all_records(journal) {
        assert_eq!(header.epoch, start.epoch);
        assert_eq!(payload.len() as u64, header.payload_bytes());
        assert!(payload.len() as u64 <= PAYLOAD_BYTES_MAX);
        used += header.record_bytes();
    }
    assert!(used <= start.ring_bytes, "{used} bytes of {start:?}");
}

/// All records, as an opening journal reads them.
fn all_records(mut journal: JournalFile) -> Vec<FoundRecord> {
    let mut found = Vec::new();
    let first = journal.start.tail.sequence;
    loop {
        let scan = journal.scan().expect("a disk without faults");
        found.extend(scan.records);
        match scan.next {
            Some(next) => journal.start = next,
            None => break,
        }
    }
    for (number, record) in (0..).zip(&found) {
        assert_eq!(record.header.sequence, first.wrapping_add(number));
    }
    found
}

/// Writes a journal and changes some of its bytes. The records that are found must be the first
/// ones that were written, unchanged.
///
/// `data`: the number of records; then for each changed byte its place (u16, in units of 16, and a
/// byte within them) and its new value.
pub fn fuzz_damage(data: &[u8]) {
    let Some((&count, changes)) = data.split_first() else {
        return;
    };
    let disk = SimulatedDisk::new(1);
    let opened = file::open(&disk, Path::new("/journal"), &SPEC);
    let journal = opened.expect("a disk without faults");
    let mut ring = Ring::new(journal.clone());
    let mut written = Vec::new();
    for number in 0..u64::from(count) {
        let (kind, length) = match number % 3 {
            0 => (ChangeKind::Zeroes { may_punch: true }, 1 << 20),
            _ => (ChangeKind::Write, number * 7 % 400 + 1),
        };
        let payload = match kind {
            ChangeKind::Write => vec![number as u8; length as usize],
            ChangeKind::Zeroes { .. } => Vec::new(),
        };
        let longest = HEADER_BYTES + length.next_multiple_of(ALIGNMENT);
        if !ring.has_room(longest, longest) {
            break;
        }
        let data: Arc<[u8]> = payload.clone().into();
        let data = (kind == ChangeKind::Write).then_some(&data);
        let range = ByteRange::new(number << 12, length);
        let recorded = ring.append(kind, range, data);
        let mut header = RecordHeader {
            sequence: recorded.sequence,
            epoch: journal.start.epoch,
            range,
            kind,
            durable_distance: 0,
        };
        let begin = recorded.end - header.record_bytes();
        let distance = (begin - journal.start.tail.offset) / ALIGNMENT + 1;
        header.durable_distance = distance as u32;
        written.push(FoundRecord { header, payload });
    }
    ring.write_batch().expect("a disk without faults");
    for change in changes.chunks_exact(4) {
        let at = u64::from(u16::from_le_bytes([change[0], change[1]])) % (RING_BYTES / 16) * 16;
        let at = RING_OFFSET + at + u64::from(change[2] % 16);
        let written = journal.file.write_at(&change[3..], at);
        written.expect("a disk without faults");
    }
    let found = all_records(journal);
    assert!(found.len() <= written.len());
    assert_eq!(found, written[..found.len()]);
}
