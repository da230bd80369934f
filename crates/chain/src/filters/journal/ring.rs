//! [`Ring`]: the log of an open journal.
//!
//! ```text
//!            tail            written back, flushed …   written   head
//!  …─────────┬───────────────┬──────────────────────┬─────────┬ ─ ─ ─
//!   free     │ below         │ not below            │ batch   │ free
//!  …─────────┴───────────────┴──────────────────────┴─────────┴ ─ ─ ─
//! ```
//!
//! Position `p` is at byte `RING_OFFSET + p % ring_bytes` of the file. A record never wraps: if it
//! does not fit before the ring's end, it begins at the ring's beginning.
//!
//! Invariant: `tail <= synced <= written <= head <= tail + ring_bytes`.

use std::io;
use std::sync::Arc;

use base::ByteRange;
use world::File;

use super::file::JournalFile;
use super::record::{
    ALIGNMENT, ChangeKind, HEADER_BYTES, LogPosition, RING_OFFSET, RecordHeader, Recorded,
    StartPage,
};

/// The minimal length of a payload that is written from where it is, in bytes: another write costs
/// less than copying it. Tests have some of both.
const SHARED_BYTES_MIN: usize = if cfg!(test) { 1 << 10 } else { 32 << 10 };

/// A part of a batch.
enum Part {
    /// Whole records, or the header of one.
    Records(Vec<u8>),
    /// The payload of the record whose header is before it.
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
    start: StartPage,
    head: u64,
    written: u64,
    synced: u64,
    sequence: u64,
    /// The bytes that are not in the file yet, by position.
    batch: Vec<(u64, Part)>,
}

impl Ring {
    /// The empty ring that the start page describes.
    pub fn new(journal: JournalFile) -> Self {
        let JournalFile { file, start } = journal;
        let LogPosition { offset, sequence } = start.tail;
        Self {
            file,
            start,
            head: offset,
            written: offset,
            synced: offset,
            sequence,
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

    /// The position up to which the file is durable.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// The file is durable up to `synced`.
    pub fn set_synced(&mut self, synced: u64) {
        self.synced = self.synced.max(synced);
    }

    /// The position at which the log begins.
    pub fn tail(&self) -> u64 {
        self.start.tail.offset
    }

    /// The length of the part of the ring that is in use, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.head - self.tail()
    }

    /// The length of the ring, in bytes.
    pub fn ring_bytes(&self) -> u64 {
        self.start.ring_bytes
    }

    /// Whether records of `bytes` bytes together fit. The longest has `longest` bytes and may have
    /// to begin at the ring's beginning.
    pub fn has_room(&self, bytes: u64, longest: u64) -> bool {
        self.used_bytes() + bytes + longest <= self.start.ring_bytes
    }

    /// Adds a record to the batch. There must be room. `payload` is the content of a write.
    pub fn append(
        &mut self,
        kind: ChangeKind,
        range: ByteRange,
        payload: Option<&Arc<[u8]>>,
    ) -> Recorded {
        let mut header = RecordHeader {
            sequence: self.sequence,
            epoch: self.start.epoch,
            range,
            kind,
            durable_distance: 0,
        };
        let (ring, record) = (self.start.ring_bytes, header.record_bytes());
        if self.head % ring + record > ring {
            self.head = self.head.next_multiple_of(ring);
        }
        let distance = (self.head - self.synced) / ALIGNMENT + 1;
        header.durable_distance = u32::try_from(distance).unwrap_or_default();
        let is_long = |payload: &&Arc<[u8]>| {
            payload.len() >= SHARED_BYTES_MIN && payload.len().is_multiple_of(ALIGNMENT as usize)
        };
        if let Some(payload) = payload.filter(is_long) {
            header.encode_header(payload, self.records(HEADER_BYTES));
            let at = self.head + HEADER_BYTES;
            self.batch.push((at, Part::Payload(Arc::clone(payload))));
        } else {
            let payload = payload.map_or(&[][..], |payload| payload);
            header.encode(payload, self.records(record));
        }
        self.head += record;
        self.sequence += 1;
        debug_assert!(self.used_bytes() <= ring, "there is room");
        Recorded {
            end: self.head,
            sequence: header.sequence,
        }
    }

    /// The records of the batch that end at the head, to which `more` bytes will be added.
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
            _ => unreachable!("the last part has records"),
        }
    }

    /// Writes the batch to the file.
    ///
    /// # Errors
    /// An error of the operating system. Nothing may be acknowledged any more.
    pub fn write_batch(&mut self) -> io::Result<()> {
        for (position, part) in self.batch.drain(..) {
            let at = RING_OFFSET + position % self.start.ring_bytes;
            self.file.write_at(part.bytes(), at)?;
        }
        self.written = self.head;
        Ok(())
    }

    /// The start page that lets the log begin at `tail`.
    pub fn next_start(&self, tail: LogPosition) -> StartPage {
        StartPage {
            number: self.start.number + 1,
            tail,
            ..self.start
        }
    }

    /// The start page `start` is durable.
    pub fn set_start(&mut self, start: StartPage) {
        self.start = start;
    }
}
