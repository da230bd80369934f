//! An open segment file and its table in memory.
//!
//! Readers share a segment without a lock: an entry's state is stored after
//! its tag and loaded before it. Writers of one segment are kept apart by
//! their caller.
//!
//! What is in memory may be older than the file, because another process may
//! have appended to it or freed slots. So a "no" is looked up in the file
//! again before it is given, while a "yes" costs nothing: a slot that was
//! freed meanwhile reads as something that its tag does not fit.
//!
//! Must not know: names, folders, clusters, or what a slot means.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use base::Slot;
use world::File;

use super::format::{
    ENTRY_BYTES, Entry, FormatError, HEADER_BYTES, Header, SlotState, TABLE_OFFSET,
};
use crate::{SlotRun, Tag};

/// Why an open segment does not answer.
#[derive(Debug)]
pub(super) enum SegmentError {
    /// The operating system failed, or the file ends too early.
    Io(io::Error),
    /// The file has no bytes at all.
    Empty,
    /// The header is not one, or is another segment's.
    Format(FormatError),
    /// The slot was never put, or was freed.
    NoSlot(Slot),
    /// The slot's entry is damaged.
    UnknownSlot(Slot),
    /// Slots have another size.
    SlotBytes,
}

impl From<io::Error> for SegmentError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// One entry of the table in memory, 17 bytes with its state. The CRC stays in
/// the file: only a scrub asks for it.
#[derive(Default)]
struct Word {
    tag: [AtomicU64; 2],
}

/// A segment: about 34 KiB at 2048 slots.
pub(super) struct Segment {
    pub(super) header: Header,
    pub(super) file: Arc<dyn File>,
    tags: Box<[Word]>,
    states: Box<[AtomicU8]>,
    /// One more than the highest slot that was ever put.
    slots: AtomicU32,
    /// Whether `file` takes writes.
    is_writable: bool,
    /// Whether the file's name is known to be durable.
    is_name_durable: AtomicBool,
    /// A write or a sync has failed: nothing may be appended any more, and no
    /// later sync may say that all is well.
    is_broken: AtomicBool,
}

const STATES: [SlotState; 5] = [
    SlotState::Never,
    SlotState::Kept,
    SlotState::Freed,
    SlotState::Hole,
    SlotState::Unknown,
];

/// A header and its table, as they are in the file.
pub(super) struct Table {
    pub(super) header: Header,
    pub(super) entries: Vec<Entry>,
}

impl Table {
    /// Reads header and table: one read of 52 KiB at 2048 slots. A table that
    /// the file's end cuts off was never written there.
    pub(super) fn read(file: &dyn File) -> Result<Self, SegmentError> {
        let length = file.length()?;
        if length == 0 {
            return Err(SegmentError::Empty);
        }
        let mut head = [0; HEADER_BYTES];
        let head_bytes = length.min(HEADER_BYTES as u64) as usize;
        file.read_at(&mut head[..head_bytes], 0)?;
        let header = Header::parse(&head[..head_bytes]).map_err(SegmentError::Format)?;
        let there = length.saturating_sub(TABLE_OFFSET);
        let mut bytes = vec![0; header.table_bytes()];
        let count = bytes
            .len()
            .min(usize::try_from(there).unwrap_or(usize::MAX));
        file.read_at(&mut bytes[..count], TABLE_OFFSET)?;
        let entries = Entry::parse_all(&bytes).collect();
        Ok(Self { header, entries })
    }

    /// One more than the highest slot that was ever put.
    pub(super) fn slots(&self) -> u32 {
        let last = |entry: &Entry| entry.state != SlotState::Never;
        self.entries
            .iter()
            .rposition(last)
            .map_or(0, |at| at as u32 + 1)
    }

    pub(super) fn count(&self, is_counted: impl Fn(SlotState) -> bool) -> u32 {
        let entries = self.entries.iter();
        entries.filter(|entry| is_counted(entry.state)).count() as u32
    }
}

impl Segment {
    /// A new segment, in which nothing was put.
    pub(super) fn new(header: Header, file: Arc<dyn File>, is_writable: bool) -> Self {
        let capacity = header.capacity as usize;
        Self {
            header,
            file,
            tags: (0..capacity).map(|_| Word::default()).collect(),
            states: (0..capacity).map(|_| AtomicU8::new(0)).collect(),
            slots: AtomicU32::new(0),
            is_writable,
            is_name_durable: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        }
    }

    /// A segment that lies in `file`.
    pub(super) fn load(file: Arc<dyn File>, is_writable: bool) -> Result<Self, SegmentError> {
        let table = Table::read(&*file)?;
        let segment = Self::new(table.header, file, is_writable);
        segment.set(0, &table.entries);
        Ok(segment)
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots.load(Ordering::Acquire)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub(super) fn is_name_durable(&self) -> bool {
        self.is_name_durable.load(Ordering::Acquire)
    }

    pub(super) fn set_name_durable(&self) {
        self.is_name_durable.store(true, Ordering::Release);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    pub(super) fn set_broken(&self) {
        self.is_broken.store(true, Ordering::Release);
    }

    /// Takes over entries that are in the file, or are about to be.
    pub(super) fn set(&self, first: u32, entries: &[Entry]) {
        let at = first as usize;
        let words = self.tags.iter().zip(self.states.iter()).skip(at);
        let mut slots = 0;
        for (index, ((word, state), entry)) in words.zip(entries).enumerate() {
            let (low, high) = entry.tag.split_at(8);
            let half = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of 16"));
            word.tag[0].store(half(low), Ordering::Relaxed);
            word.tag[1].store(half(high), Ordering::Relaxed);
            state.store(entry.state as u8, Ordering::Release);
            if entry.state != SlotState::Never {
                slots = first + index as u32 + 1;
            }
        }
        self.slots.fetch_max(slots, Ordering::AcqRel);
    }

    /// Checks that all of `run` was put, and copies its tags out.
    fn tags(&self, run: SlotRun, slot_bytes: u32, tags: &mut [Tag]) -> Result<(), SegmentError> {
        if slot_bytes != self.header.slot_bytes {
            return Err(SegmentError::SlotBytes);
        }
        // A run may reach past the last number that a slot can have.
        for (index, tag) in (usize::from(run.first.0)..).zip(tags.iter_mut()) {
            let slot = Slot(u16::try_from(index).unwrap_or(u16::MAX));
            let state = self.states.get(index);
            match state.map(|state| STATES[usize::from(state.load(Ordering::Acquire))]) {
                Some(SlotState::Kept) => {}
                Some(SlotState::Unknown) => return Err(SegmentError::UnknownSlot(slot)),
                _ => return Err(SegmentError::NoSlot(slot)),
            }
            for (half, word) in tag.chunks_exact_mut(8).zip(&self.tags[index].tag) {
                half.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
        }
        Ok(())
    }

    /// Reads a run: one system call.
    pub(super) fn read(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), SegmentError> {
        self.tags(run, slot_bytes, tags)?;
        let offset = self.header.slot_offset(u32::from(run.first.0));
        Ok(self.file.read_at(data, offset)?)
    }

    /// Reads a run if it lies in the page cache: one system call, no
    /// allocation, no lock.
    pub(super) fn read_now(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<bool, SegmentError> {
        self.tags(run, slot_bytes, tags)?;
        let offset = self.header.slot_offset(u32::from(run.first.0));
        Ok(self.file.read_now(data, offset)?)
    }
}

/// Writes `entries` for consecutive slots, and not a byte beside them: another
/// process may be writing its own.
pub(super) fn write_entries(file: &dyn File, first: u32, entries: &[Entry]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        entry.encode(&mut bytes);
    }
    file.write_at(&bytes, Header::entry_offset(first))
}
