//! The table of a segment: in its file, and in memory for readers.
//!
//! Readers share the table in memory without a lock: an entry's state is stored after its tag
//! and loaded before it. A reader that races with a free gets a tag that matches nothing, as
//! for any freed slot.
//!
//! Must not know: names, caches, what a slot means.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use base::Slot;
use unit::{SegmentStat, SlotRun, Tag};
use world::File;

use super::format::{ENTRY_BYTES, Entry, HEADER_BYTES, Header, SlotState, TABLE_OFFSET};
use super::segment::SegmentError;

/// Number of entries read at a time from the file.
const ENTRIES_AT_ONCE: usize = 32;

const STATES: [SlotState; 5] = [
    SlotState::Never,
    SlotState::Kept,
    SlotState::Freed,
    SlotState::Hole,
    SlotState::Unknown,
];

/// The header and the table in a file.
pub(super) struct Table {
    pub(super) header: Header,
    pub(super) entries: Vec<Entry>,
}

impl Table {
    /// Reads header and table: one read of 52 KiB at 2048 slots. Entries beyond the end of the
    /// file were never written.
    pub(super) fn read(file: &dyn File) -> Result<Self, SegmentError> {
        let length = file.length()?;
        if length == 0 {
            return Err(SegmentError::Empty);
        }
        let mut head = [0; HEADER_BYTES];
        let head_bytes = length.min(HEADER_BYTES as u64) as usize;
        file.read_at(&mut head[..head_bytes], 0)?;
        let header = Header::parse(&head[..head_bytes]).map_err(SegmentError::Format)?;
        let available = length.saturating_sub(TABLE_OFFSET);
        let mut bytes = vec![0; header.table_bytes()];
        let count = bytes
            .len()
            .min(usize::try_from(available).unwrap_or(usize::MAX));
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

    /// The slots whose state is selected, in order.
    pub(super) fn slots_in(&self, is_selected: impl Fn(SlotState) -> bool) -> Vec<u32> {
        let slots = (0..).zip(&self.entries);
        let selected = slots.filter(|(_, entry)| is_selected(entry.state));
        selected.map(|(slot, _)| slot).collect()
    }

    /// Those of `slots` that are free and still have their content.
    pub(super) fn with_content(&self, slots: &[u32]) -> Vec<u32> {
        let has_content = |slot: &&u32| {
            let entry = self.entries.get(**slot as usize);
            entry.is_some_and(Entry::is_freed_with_content)
        };
        slots.iter().filter(has_content).copied().collect()
    }

    /// All slots that are free and still have their content.
    pub(super) fn freed_with_content(&self) -> Vec<u32> {
        self.with_content(&self.slots_in(|state| state == SlotState::Freed))
    }

    pub(super) fn stat(&self) -> SegmentStat {
        SegmentStat {
            generation: self.header.generation,
            segment: self.header.segment,
            slot_bytes: self.header.slot_bytes,
            slots: self.slots(),
            freed: self.count(SlotState::is_free),
        }
    }

    pub(super) fn count(&self, is_counted: impl Fn(SlotState) -> bool) -> u32 {
        let entries = self.entries.iter();
        entries.filter(|entry| is_counted(entry.state)).count() as u32
    }
}

/// Tags and states in memory: 17 bytes a slot. The CRCs stay in the file: only a scrub needs
/// them.
pub(super) struct TagTable {
    tags: Box<[[AtomicU64; 2]]>,
    states: Box<[AtomicU8]>,
}

fn halves(tag: &Tag) -> [u64; 2] {
    let bits = u128::from_le_bytes(*tag);
    [bits as u64, (bits >> 64) as u64]
}

impl TagTable {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            tags: (0..capacity).map(|_| Default::default()).collect(),
            states: (0..capacity).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// Sets the entries of `first` and the slots after it.
    pub(super) fn set(&self, first: u32, entries: &[Entry]) {
        let slots = self.tags.iter().zip(&self.states).skip(first as usize);
        for ((tag, state), entry) in slots.zip(entries) {
            for (word, half) in tag.iter().zip(halves(&entry.tag)) {
                word.store(half, Ordering::Relaxed);
            }
            state.store(entry.state as u8, Ordering::Release);
        }
    }

    /// Checks that all of `run` was put, and copies its tags out.
    pub(super) fn tags(&self, run: SlotRun, tags: &mut [Tag]) -> Result<(), SegmentError> {
        // A run may reach past the last number that a slot can have.
        for (index, tag) in (usize::from(run.first.0)..).zip(tags.iter_mut()) {
            let state = self.states.get(index);
            let state = state.map(|state| STATES[usize::from(state.load(Ordering::Acquire))]);
            check_kept(index, state.unwrap_or(SlotState::Never))?;
            for (half, word) in tag.chunks_exact_mut(8).zip(&self.tags[index]) {
                half.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
        }
        Ok(())
    }
}

fn check_kept(index: usize, state: SlotState) -> Result<(), SegmentError> {
    let slot = Slot(u16::try_from(index).unwrap_or(u16::MAX));
    match state {
        SlotState::Kept => Ok(()),
        SlotState::Unknown => Err(SegmentError::UnknownSlot(slot)),
        _ => Err(SegmentError::NoSlot(slot)),
    }
}

/// As [`TagTable::tags`], from the file, through `read`. Returns `Ok(false)` if `read` does,
/// which says that it would have to wait. Allocates nothing.
pub(super) fn tags_in_file(
    header: &Header,
    run: SlotRun,
    tags: &mut [Tag],
    read: impl Fn(&mut [u8], u64) -> io::Result<bool>,
) -> Result<bool, SegmentError> {
    let mut buffer = [0; ENTRY_BYTES * ENTRIES_AT_ONCE];
    let starts = (usize::from(run.first.0)..).step_by(ENTRIES_AT_ONCE);
    for (first, tags) in starts.zip(tags.chunks_mut(ENTRIES_AT_ONCE)) {
        if first + tags.len() > header.capacity as usize {
            check_kept(header.capacity as usize, SlotState::Never)?;
        }
        let bytes = &mut buffer[..tags.len() * ENTRY_BYTES];
        match read(bytes, Header::entry_offset(first as u32)) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            // The file ends before the entry, so it was never written.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                check_kept(first, SlotState::Never)?;
            }
            Err(error) => return Err(error.into()),
        }
        for ((index, tag), entry) in (first..).zip(tags).zip(Entry::parse_all(bytes)) {
            check_kept(index, entry.state)?;
            *tag = entry.tag;
        }
    }
    Ok(true)
}

/// Writes `entries` for consecutive slots and not a byte beside them: another process may be
/// writing its own entries.
pub(super) fn write_entries(file: &dyn File, first: u32, entries: &[Entry]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        entry.encode(&mut bytes);
    }
    file.write_at(&bytes, Header::entry_offset(first))
}
