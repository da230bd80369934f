//! An open segment file.
//!
//! Its table is loaded into memory once the segment has been read often enough to pay for
//! that: until then a read costs one more system call, and opening costs two. So reading a
//! volume that is larger than all tables in memory costs reading its data, not its tables.
//!
//! The table in memory may be older than the file, because another process may have appended
//! or freed slots. So a negative answer is checked in the file, while a positive one is given
//! at once: a slot that was freed meanwhile reads as bytes that do not match its tag.
//!
//! The caller keeps writers of one segment apart.
//!
//! Must not know: names, folders, clusters, or what a slot means.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use base::Slot;
use unit::Read;
use unit::format::FormatError;
use world::File;

use super::format::{Entry, HEADER_BYTES, Header, SlotState};
use super::table::{Table, TagTable, tags_in_file};

/// Number of reads after which the table is loaded into memory: that costs as much as some
/// thirty reads of single entries.
const READS_BEFORE_TABLE: u32 = 32;

/// Why a segment cannot be opened or read.
#[derive(Debug)]
pub(super) enum SegmentError {
    /// An error of the operating system, or the file ends too early.
    Io(io::Error),
    /// The file is empty.
    Empty,
    /// The header is invalid.
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

/// An open segment: some 200 bytes of memory, and about 34 KiB more at 2048 slots once its
/// table is loaded.
pub(super) struct Segment {
    pub(super) header: Header,
    pub(super) file: Arc<dyn File>,
    table: OnceLock<TagTable>,
    /// Number of reads without the table in memory.
    reads: AtomicU32,
    /// One more than the highest slot that was ever put; too low until the table is loaded.
    slots: AtomicU32,
    /// Whether `file` is open for writing.
    is_writable: bool,
    /// Whether the file's name is known to be durable.
    is_name_durable: AtomicBool,
}

impl Segment {
    /// A new segment without slots.
    pub(super) fn new(header: Header, file: Arc<dyn File>) -> Self {
        let segment = Self::with_header(header, file, true);
        segment.table.get_or_init(|| TagTable::new(header.capacity));
        segment
    }

    /// Opens the segment in `file` for reading, without loading its table.
    pub(super) fn open(file: Arc<dyn File>) -> Result<Self, SegmentError> {
        let mut head = [0; HEADER_BYTES];
        match file.read_at(&mut head, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                // Finds out in which way it is too short.
                let table = Table::read(&*file)?;
                return Ok(Self::with_header(table.header, file, false));
            }
            other => other?,
        }
        let header = Header::parse(&head).map_err(SegmentError::Format)?;
        Ok(Self::with_header(header, file, false))
    }

    /// Opens the segment in `file` with its table; for writing if the file is.
    pub(super) fn load(file: Arc<dyn File>, is_writable: bool) -> Result<Self, SegmentError> {
        let table = Table::read(&*file)?;
        let segment = Self::with_header(table.header, file, is_writable);
        segment.set_table(&table);
        Ok(segment)
    }

    fn with_header(header: Header, file: Arc<dyn File>, is_writable: bool) -> Self {
        Self {
            header,
            file,
            table: OnceLock::new(),
            reads: AtomicU32::new(0),
            slots: AtomicU32::new(0),
            is_writable,
            is_name_durable: AtomicBool::new(false),
        }
    }

    fn set_table(&self, table: &Table) {
        self.table.get_or_init(|| {
            let tags = TagTable::new(self.header.capacity);
            tags.set(0, &table.entries);
            tags
        });
        self.slots.fetch_max(table.slots(), Ordering::AcqRel);
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

    /// Updates the table in memory, if it is loaded, with entries that were written.
    pub(super) fn set(&self, first: u32, entries: &[Entry]) {
        if let Some(table) = self.table.get() {
            table.set(first, entries);
        }
        let was_put = |entry: &Entry| entry.state != SlotState::Never;
        if let Some(last) = entries.iter().rposition(was_put) {
            self.slots
                .fetch_max(first + last as u32 + 1, Ordering::AcqRel);
        }
    }

    /// Reads a run: one system call, or two before the table is in memory.
    pub(super) fn read(&self, read: Read<'_>) -> Result<(), SegmentError> {
        let Read {
            run,
            slot_bytes,
            tags,
            data,
        } = read;
        self.check_slot_bytes(slot_bytes)?;
        if self.is_table_due() {
            self.set_table(&Table::read(&*self.file)?);
        }
        match self.table.get() {
            Some(table) => table.tags(run, tags)?,
            None => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                tags_in_file(&self.header, run, tags, |bytes, offset| {
                    self.file.read_at(bytes, offset).map(|()| true)
                })?;
            }
        }
        let offset = self.header.slot_offset(u32::from(run.first.0));
        Ok(self.file.read_at(data, offset)?)
    }

    /// Reads a run if it is in the page cache: one system call, or two before the table is in
    /// memory; no allocation, no lock. Returns `Ok(false)` if it is not, or if the table is due
    /// to be loaded, which [`Segment::read`] does.
    pub(super) fn read_now(&self, read: Read<'_>) -> Result<bool, SegmentError> {
        let Read {
            run,
            slot_bytes,
            tags,
            data,
        } = read;
        self.check_slot_bytes(slot_bytes)?;
        match self.table.get() {
            Some(table) => table.tags(run, tags)?,
            None if self.is_table_due() => return Ok(false),
            None => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                let read = |bytes: &mut [u8], offset| self.file.read_now(bytes, offset);
                if !tags_in_file(&self.header, run, tags, read)? {
                    return Ok(false);
                }
            }
        }
        let offset = self.header.slot_offset(u32::from(run.first.0));
        Ok(self.file.read_now(data, offset)?)
    }

    fn check_slot_bytes(&self, slot_bytes: u32) -> Result<(), SegmentError> {
        if slot_bytes == self.header.slot_bytes {
            Ok(())
        } else {
            Err(SegmentError::SlotBytes)
        }
    }

    fn is_table_due(&self) -> bool {
        self.table.get().is_none() && self.reads.load(Ordering::Relaxed) >= READS_BEFORE_TABLE
    }
}
