//! Entry points for fuzzers: a journal's file as somebody, or a medium, has left it.

use std::path::Path;
use std::sync::Arc;

use base::checksum::crc32c;
use world::simulated::SimulatedDisk;
use world::{Disk, File, OpenMode};

use super::origin::Origin;
use super::record::{
    ALIGNMENT, HEADER_BYTES, Header, Kind, PAGE_BYTES, PAYLOAD_BYTES_MAX, RING_OFFSET, Start,
};
use super::ring::{self, Found, Ring, Shape};

const RING_BYTES: u64 = 64 << 10;
const SHAPE: Shape = Shape {
    ring_bytes: RING_BYTES,
    size_bytes: 1 << 30,
    origin: Origin {
        lease: None,
        restores: None,
        below: None,
        disk: None,
    },
};

/// The beginning of a journal's file: as it comes, and with its checksums put right.
pub fn fuzz_file(data: &[u8]) {
    let mut bytes = data.to_vec();
    let least = (RING_OFFSET + RING_BYTES) as usize;
    check(&bytes);
    bytes.resize(bytes.len().max(least), 0);
    for at in [0, PAGE_BYTES as usize] {
        let page = &mut bytes[at..at + PAGE_BYTES as usize];
        let (checked, rest) = page.split_at_mut(Start::checked_bytes(page));
        rest[..8].copy_from_slice(&u64::from(crc32c(checked)).to_le_bytes());
    }
    check(&bytes);
    // Records one after the other, from where the journal is said to begin.
    let pages = bytes[..RING_OFFSET as usize].chunks(PAGE_BYTES as usize);
    let start = pages.filter_map(Start::decode).max_by_key(|one| one.number);
    let Some(start) = start.filter(Start::is_sound) else {
        return;
    };
    let mut at = (RING_OFFSET + start.tail % start.ring_bytes) as usize;
    let mut sequence = start.sequence;
    while let Some(record) = bytes.get_mut(at..) {
        let Some(length) = seal(record, sequence, start.epoch) else {
            break;
        };
        at += length as usize;
        sequence = sequence.wrapping_add(1);
    }
    check(&bytes);
}

/// Puts the sequence, the epoch and the checksum of a record right; how long it is.
fn seal(record: &mut [u8], sequence: u64, epoch: u64) -> Option<u64> {
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
    let Ok((file, start)) = ring::open(&disk, path, &SHAPE) else {
        return;
    };
    let length = file.length().expect("a disk without faults");
    assert!(RING_OFFSET + start.ring_bytes <= length);
    let mut taken = 0;
    for (header, payload) in all(&*file, &start) {
        assert_eq!(header.epoch, start.epoch);
        assert_eq!(payload.len() as u64, header.payload_bytes());
        assert!(payload.len() as u64 <= PAYLOAD_BYTES_MAX);
        taken += header.record_bytes();
    }
    assert!(taken <= start.ring_bytes, "{taken} bytes of {start:?}");
}

/// All records, as they are read when a journal is opened.
fn all(file: &dyn File, start: &Start) -> Vec<Found> {
    let mut found = Vec::new();
    let mut next = Some(*start);
    while let Some(from) = next {
        let (some, more) = ring::scan(file, &from).expect("a disk without faults");
        found.extend(some);
        next = more;
    }
    for (number, (header, _)) in (0..).zip(&found) {
        assert_eq!(header.sequence, start.sequence.wrapping_add(number));
    }
    found
}

/// A journal that was written, and of which bytes were changed: what is found must be the
/// first records of those, each as it was.
///
/// `data`: how many records, then where a byte is changed (u16, in units of 16 and within
/// them), and what it becomes.
pub fn fuzz_damage(data: &[u8]) {
    let Some((&count, changes)) = data.split_first() else {
        return;
    };
    let disk = SimulatedDisk::new(1);
    let opened = ring::open(&disk, Path::new("/journal"), &SHAPE);
    let (file, start) = opened.expect("a disk without faults");
    let mut ring = Ring::new(Arc::clone(&file), start);
    let mut written = Vec::new();
    for number in 0..u64::from(count) {
        let (kind, length) = match number % 3 {
            0 => (Kind::Zeroes { may_punch: true }, 1 << 20),
            _ => (Kind::Write, number * 7 % 400 + 1),
        };
        let payload = match kind {
            Kind::Write => vec![number as u8; length as usize],
            Kind::Zeroes { .. } => Vec::new(),
        };
        let longest = HEADER_BYTES + length.next_multiple_of(ALIGNMENT);
        if !ring.has_room(longest, longest) {
            break;
        }
        let data: Arc<[u8]> = payload.clone().into();
        let data = (kind == Kind::Write).then_some(&data);
        let (end, sequence) = ring.append(kind, (number << 12, length), data);
        let mut header = Header {
            sequence,
            epoch: start.epoch,
            offset: number << 12,
            length,
            kind,
            behind: 0,
        };
        let behind = (end - header.record_bytes() - start.tail) / ALIGNMENT + 1;
        header.behind = behind as u32;
        written.push((header, payload));
    }
    ring.write_batch().expect("a disk without faults");
    for change in changes.chunks_exact(4) {
        let at = u64::from(u16::from_le_bytes([change[0], change[1]])) % (RING_BYTES / 16) * 16;
        let at = RING_OFFSET + at + u64::from(change[2] % 16);
        file.write_at(&change[3..], at)
            .expect("a disk without faults");
    }
    let found = all(&*file, &start);
    assert!(found.len() <= written.len());
    assert_eq!(found, written[..found.len()]);
}
