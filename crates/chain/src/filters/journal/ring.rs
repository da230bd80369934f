//! The journal's file: a ring of records, and what of it has to be kept.
//!
//! ```text
//!            tail            carried, flushed …     written   head
//!  …─────────┬───────────────┬──────────────────────┬─────────┬ ─ ─ ─
//!   free     │ below         │ not below            │ batch   │ free
//!  …─────────┴───────────────┴──────────────────────┴─────────┴ ─ ─ ─
//! ```
//!
//! Position `p` lies at byte `RING_OFFSET + p % ring_bytes`. A record never wraps: one that
//! does not fit before the ring's end begins at its start.
//!
//! Invariant: `tail <= synced <= written <= head <= tail + ring_bytes`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use world::{Disk, File, OpenMode};

use super::origin::Origin;
use super::record::{
    ALIGNMENT, HEADER_BYTES, Header, PAGE_BYTES, PAYLOAD_BYTES_MAX, RING_OFFSET, Start, parse,
    parse_later,
};

/// A record that was read.
pub type Found = (Header, Vec<u8>);

/// Behind the last record that is whole, so many bytes are searched for a later one: the
/// longest one is a quarter of that.
const LOOK_BYTES: u64 = 1 << 20;

/// So many bytes of records are read at once when a journal is opened. In tests these are few.
const SCAN_BYTES: u64 = if cfg!(test) { 16 << 10 } else { 16 << 20 };

/// A payload of so many bytes is written from where it is: another write costs less than its
/// copy. In tests some are.
const SHARED_BYTES_MIN: usize = if cfg!(test) { 1 << 10 } else { 32 << 10 };

/// What a journal is to be, if it is made.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The ring's length, in bytes.
    pub ring_bytes: u64,
    /// The size of the disk that it is of, in bytes.
    pub size_bytes: u64,
    /// Whose it is.
    pub origin: Origin,
}

/// Opens the journal at `path`, or makes one.
///
/// # Errors
/// As the operating system says; `InvalidData` if the file is no journal.
pub fn open(disk: &dyn Disk, path: &Path, shape: &Shape) -> io::Result<(Arc<dyn File>, Start)> {
    match find(disk, path, OpenMode::Write)? {
        Some(found) => Ok(found),
        None => make_anew(disk, path, shape),
    }
}

/// The journal at `path`; none if there is none, or one that was being made: nothing was ever
/// acknowledged from that.
///
/// # Errors
/// As [`open`].
pub fn find(
    disk: &dyn Disk,
    path: &Path,
    mode: OpenMode,
) -> io::Result<Option<(Arc<dyn File>, Start)>> {
    let file = match disk.open(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if file.length()? < RING_OFFSET {
        return Ok(None);
    }
    let mut pages = vec![0; RING_OFFSET as usize];
    file.read_at(&mut pages, 0)?;
    let starts = pages.chunks(PAGE_BYTES as usize).filter_map(Start::decode);
    let Some(start) = starts.max_by_key(|start| start.number) else {
        let is_new = pages.iter().all(|byte| *byte == 0);
        return match is_new {
            true => Ok(None),
            false => Err(invalid("it is no journal of a relay")),
        };
    };
    if !start.is_sound() {
        return Err(invalid("its beginning makes no sense"));
    }
    if file.length()? < RING_OFFSET + start.ring_bytes {
        return Err(invalid("it is shorter than it says"));
    }
    Ok(Some((file, start)))
}

/// Makes a journal in the place of one that has nothing.
///
/// # Errors
/// As the operating system says.
pub fn make_anew(
    disk: &dyn Disk,
    path: &Path,
    shape: &Shape,
) -> io::Result<(Arc<dyn File>, Start)> {
    remove_if_there(disk, path)?;
    make(disk, path, shape)
}

/// Removes a journal that is of no use.
///
/// # Errors
/// As the operating system says.
pub fn remove_if_there(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn invalid(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

fn make(disk: &dyn Disk, path: &Path, shape: &Shape) -> io::Result<(Arc<dyn File>, Start)> {
    let file = disk.open(path, OpenMode::CreateNew)?;
    if let Err(error) = file.allocate(RING_OFFSET + shape.ring_bytes) {
        // What it has taken of a full disk is of use to others; the error is the first one.
        let _ = disk.remove(path);
        let size = shape.ring_bytes >> 20;
        let words = format!("its size is to be {size} MiB, which cannot be reserved: {error}");
        return Err(io::Error::new(error.kind(), words));
    }
    let start = Start {
        number: 1,
        epoch: 1,
        tail: 0,
        sequence: 1,
        ring_bytes: shape.ring_bytes,
        size_bytes: shape.size_bytes,
        origin: shape.origin,
    };
    write_start(&*file, &start)?;
    if let Some(folder) = path.parent() {
        disk.sync_directory(folder)?;
    }
    Ok((file, start))
}

/// Makes `start` count, durably.
///
/// # Errors
/// As the operating system says.
pub fn write_start(file: &dyn File, start: &Start) -> io::Result<()> {
    file.write_at(&start.encode(), start.number % 2 * PAGE_BYTES)?;
    file.sync_data()
}

/// Reads records from where `start` says, some megabytes of them. What follows then; nothing
/// if these were all.
///
/// # Errors
/// As the operating system says.
pub fn scan(file: &dyn File, start: &Start) -> io::Result<(Vec<Found>, Option<Start>)> {
    scan_bytes(file, start, SCAN_BYTES)
}

/// Whether it has any record: something that was acknowledged, and may not be below.
///
/// # Errors
/// As the operating system says.
pub fn has_records(file: &dyn File, start: &Start) -> io::Result<bool> {
    Ok(!scan_bytes(file, start, 1)?.0.is_empty())
}

fn scan_bytes(
    file: &dyn File,
    start: &Start,
    bytes_max: u64,
) -> io::Result<(Vec<Found>, Option<Start>)> {
    let mut found = Vec::new();
    let mut next = *start;
    let mut bytes = vec![0; (HEADER_BYTES + PAYLOAD_BYTES_MAX) as usize];
    let mut read = 0;
    while read < bytes_max {
        let Some((position, record)) = read_record(file, &next, &mut bytes)? else {
            check_end(file, &next)?;
            return Ok((found, None));
        };
        let record_bytes = record.0.record_bytes();
        read += record_bytes;
        next.tail = position + record_bytes;
        next.sequence += 1;
        found.push(record);
        if next.tail - start.tail >= start.ring_bytes {
            return Ok((found, None));
        }
    }
    Ok((found, Some(next)))
}

/// The record that `next` is of: where it should be, or at the ring's start behind that.
fn read_record(
    file: &dyn File,
    next: &Start,
    bytes: &mut [u8],
) -> io::Result<Option<(u64, Found)>> {
    let ring = next.ring_bytes;
    let lap = next.tail.next_multiple_of(ring);
    for position in [next.tail, lap] {
        let at = position % ring;
        let length = (ring - at).min(bytes.len() as u64) as usize;
        let bytes = &mut bytes[..length];
        file.read_at(bytes, RING_OFFSET + at)?;
        if let Some((header, payload)) = parse(bytes, next.sequence, next.epoch) {
            return Ok(Some((position, (header, payload.to_vec()))));
        }
        if position == lap {
            break;
        }
    }
    Ok(None)
}

/// Whether the record that `next` is of was never durable, as a later one may say: then it is
/// the end, and otherwise it is damaged.
fn check_end(file: &dyn File, next: &Start) -> io::Result<()> {
    let ring = next.ring_bytes;
    // To the ring's end, and from its start up to here.
    let before = next.tail % ring;
    let lap = next.tail - before + ring;
    for (from, length) in [(next.tail, ring - before), (lap, before)] {
        let mut bytes = vec![0; length.min(LOOK_BYTES) as usize];
        file.read_at(&mut bytes, RING_OFFSET + from % ring)?;
        for skipped in (0..bytes.len()).step_by(ALIGNMENT as usize) {
            let later = parse_later(&bytes[skipped..], next.sequence, next.epoch);
            let durable = later.and_then(|header| header.durable(from + skipped as u64));
            if durable.is_some_and(|durable| durable > next.tail) {
                let byte = RING_OFFSET + before;
                return Err(invalid(&format!(
                    "it is damaged at byte {byte}: what was acknowledged as durable, and not \
                     carried out, cannot be read back"
                )));
            }
        }
    }
    Ok(())
}

/// A part of a batch.
enum Part {
    /// Records, or the head of one.
    Records(Vec<u8>),
    /// The payload of a record whose head lies before it.
    Payload(Arc<[u8]>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Records(bytes) => bytes,
            Self::Payload(bytes) => bytes,
        }
    }
}

/// The ring of an open journal.
pub struct Ring {
    file: Arc<dyn File>,
    start: Start,
    head: u64,
    written: u64,
    /// What is durable ends there, or later.
    synced: u64,
    sequence: u64,
    /// What is not in the file: where, and the bytes.
    batch: Vec<(u64, Part)>,
}

impl Ring {
    /// An empty ring, which `start` says.
    pub fn new(file: Arc<dyn File>, start: Start) -> Self {
        Self {
            file,
            start,
            head: start.tail,
            written: start.tail,
            synced: start.tail,
            sequence: start.sequence,
            batch: Vec::new(),
        }
    }

    /// The file, for syncs on other threads.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// The end of the last record.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The end of the last record that is in the file.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// All before `upto` is durable.
    pub fn is_synced(&mut self, upto: u64) {
        self.synced = self.synced.max(upto);
    }

    /// Where the ring begins.
    pub fn tail(&self) -> u64 {
        self.start.tail
    }

    /// How much of the ring is in use.
    pub fn used_bytes(&self) -> u64 {
        self.head - self.start.tail
    }

    /// Its length.
    pub fn ring_bytes(&self) -> u64 {
        self.start.ring_bytes
    }

    /// Whether records of `bytes` in all fit, of which the longest has `longest` and may have
    /// to begin at the ring's start.
    pub fn has_room(&self, bytes: u64, longest: u64) -> bool {
        self.used_bytes() + bytes + longest <= self.start.ring_bytes
    }

    /// Adds a record to the batch; returns where it ends and its sequence. There is room.
    /// `payload` is that of a write.
    pub fn append(
        &mut self,
        kind: super::record::Kind,
        (offset, length): (u64, u64),
        payload: Option<&Arc<[u8]>>,
    ) -> (u64, u64) {
        let mut header = Header {
            sequence: self.sequence,
            epoch: self.start.epoch,
            offset,
            length,
            kind,
            behind: 0,
        };
        let (ring, record) = (self.start.ring_bytes, header.record_bytes());
        if self.head % ring + record > ring {
            self.head = self.head.next_multiple_of(ring);
        }
        let behind = (self.head - self.synced) / ALIGNMENT + 1;
        header.behind = u32::try_from(behind).unwrap_or_default();
        let is_long = |payload: &&Arc<[u8]>| {
            payload.len() >= SHARED_BYTES_MIN && payload.len().is_multiple_of(ALIGNMENT as usize)
        };
        if let Some(payload) = payload.filter(is_long) {
            header.encode_head(payload, self.records(HEADER_BYTES));
            let at = self.head + HEADER_BYTES;
            self.batch.push((at, Part::Payload(Arc::clone(payload))));
        } else {
            let payload = payload.map_or(&[][..], |payload| payload);
            header.encode(payload, self.records(record));
        }
        self.head += record;
        self.sequence += 1;
        debug_assert!(self.used_bytes() <= ring, "room was asked for");
        (self.head, header.sequence)
    }

    /// The records of the batch that end at the head, for `more` bytes there.
    fn records(&mut self, more: u64) -> &mut Vec<u8> {
        let head = self.head;
        let at_start = head.is_multiple_of(self.start.ring_bytes);
        let follows = self.batch.last().is_some_and(|(position, part)| {
            matches!(part, Part::Records(bytes) if *position + bytes.len() as u64 == head)
        });
        if !follows || at_start {
            let bytes = Vec::with_capacity(more as usize);
            self.batch.push((head, Part::Records(bytes)));
        }
        match self.batch.last_mut() {
            Some((_, Part::Records(bytes))) => bytes,
            _ => unreachable!("the last part is of records"),
        }
    }

    /// Writes the batch.
    ///
    /// # Errors
    /// As the operating system says. Nothing may be acknowledged any more.
    pub fn write_batch(&mut self) -> io::Result<()> {
        for (position, part) in self.batch.drain(..) {
            let at = RING_OFFSET + position % self.start.ring_bytes;
            self.file.write_at(part.bytes(), at)?;
        }
        self.written = self.head;
        Ok(())
    }

    /// The page that lets the ring begin at `tail`, with the record `sequence`.
    pub fn next_start(&self, tail: u64, sequence: u64) -> Start {
        Start {
            number: self.start.number + 1,
            tail,
            sequence,
            ..self.start
        }
    }

    /// That page is durable.
    pub fn started(&mut self, start: Start) {
        self.start = start;
    }
}
