//! [`JournalFile`]: finding, creating and scanning the journal's file.

use std::io;
use std::path::Path;
use std::sync::Arc;

use world::{Disk, File, OpenMode};

use super::origin::Origin;
use super::record::{
    ALIGNMENT, HEADER_BYTES, LogPosition, PAGE_BYTES, PAYLOAD_BYTES_MAX, RING_OFFSET, RecordHeader,
    StartPage, parse, parse_later,
};

/// The length of the part of the ring behind the last valid record that is searched for a later
/// record, in bytes: four times the longest record.
const SEARCH_BYTES: u64 = 1 << 20;

/// The length of the records that are read at once when a journal is opened, in bytes. Tests read
/// few, to go through several reads.
const SCAN_BYTES: u64 = if cfg!(test) { 16 << 10 } else { 16 << 20 };

/// A journal's file with its valid start page.
#[derive(Clone)]
pub struct JournalFile {
    pub file: Arc<dyn File>,
    pub start: StartPage,
}

/// How a new journal is made.
#[derive(Debug, Clone, Copy)]
pub struct JournalSpec {
    /// The length of the ring, in bytes.
    pub ring_bytes: u64,
    /// The size of the disk, in bytes.
    pub disk_bytes: u64,
    pub origin: Origin,
}

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRecord {
    pub header: RecordHeader,
    pub payload: Vec<u8>,
}

/// The records of one scan.
pub struct Scan {
    pub records: Vec<FoundRecord>,
    /// Where the next scan begins; `None` if these are the last records.
    pub next: Option<StartPage>,
}

/// Opens the journal at `path`, or creates it.
///
/// # Errors
/// An error of the operating system, or `InvalidData` if the file is not a journal.
pub fn open(disk: &dyn Disk, path: &Path, spec: &JournalSpec) -> io::Result<JournalFile> {
    match find(disk, path, OpenMode::Write)? {
        Some(found) => Ok(found),
        None => recreate(disk, path, spec),
    }
}

/// Opens the journal at `path`. `None` if there is none, or one whose creation did not end:
/// nothing was acknowledged from that.
///
/// # Errors
/// As [`open`].
pub fn find(disk: &dyn Disk, path: &Path, mode: OpenMode) -> io::Result<Option<JournalFile>> {
    let file = match disk.open(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if file.length()? < RING_OFFSET {
        return Ok(None);
    }
    let mut pages = vec![0; RING_OFFSET as usize];
    file.read_at(&mut pages, 0)?;
    let mut newest: Option<StartPage> = None;
    for page in pages.chunks(PAGE_BYTES as usize) {
        let start = StartPage::decode(page).map_err(|error| invalid(&error.to_string()))?;
        newest = newest
            .into_iter()
            .chain(start)
            .max_by_key(|page| page.number);
    }
    let Some(start) = newest else {
        let is_new = pages.iter().all(|byte| *byte == 0);
        return match is_new {
            true => Ok(None),
            false => Err(invalid("it is not a journal")),
        };
    };
    if !start.is_sound() {
        return Err(invalid("its start page has impossible numbers"));
    }
    if file.length()? < RING_OFFSET + start.ring_bytes {
        return Err(invalid("it is shorter than its start page says"));
    }
    Ok(Some(JournalFile { file, start }))
}

/// Creates a journal in the place of one without records.
///
/// # Errors
/// An error of the operating system.
pub fn recreate(disk: &dyn Disk, path: &Path, spec: &JournalSpec) -> io::Result<JournalFile> {
    remove_if_exists(disk, path)?;
    create(disk, path, spec)
}

/// Removes a journal without records.
///
/// # Errors
/// An error of the operating system.
pub fn remove_if_exists(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn create(disk: &dyn Disk, path: &Path, spec: &JournalSpec) -> io::Result<JournalFile> {
    let file = disk.open(path, OpenMode::CreateNew)?;
    if let Err(error) = file.allocate(RING_OFFSET + spec.ring_bytes) {
        // Frees what was allocated on a full disk. The first error counts.
        let _ = disk.remove(path);
        let size = spec.ring_bytes >> 20;
        let reason = format!("its {size} MiB cannot be reserved: {error}");
        return Err(io::Error::new(error.kind(), reason));
    }
    let start = StartPage {
        number: 1,
        epoch: 1,
        tail: LogPosition {
            offset: 0,
            sequence: 1,
        },
        ring_bytes: spec.ring_bytes,
        disk_bytes: spec.disk_bytes,
        origin: spec.origin,
    };
    write_start(&*file, &start)?;
    if let Some(folder) = path.parent() {
        disk.sync_directory(folder)?;
    }
    Ok(JournalFile { file, start })
}

/// Makes `start` the journal's start page, durably. The other page keeps the one before.
///
/// # Errors
/// An error of the operating system.
pub fn write_start(file: &dyn File, start: &StartPage) -> io::Result<()> {
    file.write_at(&start.encode(), start.number % 2 * PAGE_BYTES)?;
    file.sync_data()
}

impl JournalFile {
    /// Reads records from the start page's tail, 16 MiB of them at most.
    ///
    /// # Errors
    /// An error of the operating system, or `InvalidData` if a durable record is damaged.
    pub fn scan(&self) -> io::Result<Scan> {
        self.scan_bytes(SCAN_BYTES)
    }

    /// Whether it has records: acknowledged changes that may not be below.
    ///
    /// # Errors
    /// As [`JournalFile::scan`].
    pub fn has_records(&self) -> io::Result<bool> {
        Ok(!self.scan_bytes(1)?.records.is_empty())
    }

    fn scan_bytes(&self, bytes_max: u64) -> io::Result<Scan> {
        let start = &self.start;
        let mut records = Vec::new();
        let mut next = *start;
        let mut buffer = vec![0; (HEADER_BYTES + PAYLOAD_BYTES_MAX) as usize];
        let mut read = 0;
        let mut has_more = true;
        while has_more && read < bytes_max {
            let Some((position, record)) = self.read_record(&next, &mut buffer)? else {
                self.check_end(&next)?;
                has_more = false;
                break;
            };
            let record_bytes = record.header.record_bytes();
            read += record_bytes;
            next.tail = LogPosition {
                offset: position + record_bytes,
                sequence: next.tail.sequence + 1,
            };
            records.push(record);
            has_more = next.tail.offset - start.tail.offset < start.ring_bytes;
        }
        Ok(Scan {
            records,
            next: has_more.then_some(next),
        })
    }

    /// The record at `next`, with its position: there, or at the beginning of the ring behind it.
    fn read_record(
        &self,
        next: &StartPage,
        buffer: &mut [u8],
    ) -> io::Result<Option<(u64, FoundRecord)>> {
        let LogPosition { offset, sequence } = next.tail;
        let ring = next.ring_bytes;
        let lap = offset.next_multiple_of(ring);
        for position in [offset, lap] {
            let at = position % ring;
            let length = (ring - at).min(buffer.len() as u64) as usize;
            let bytes = &mut buffer[..length];
            self.file.read_at(bytes, RING_OFFSET + at)?;
            if let Some((header, payload)) = parse(bytes, sequence, next.epoch) {
                let payload = payload.to_vec();
                return Ok(Some((position, FoundRecord { header, payload })));
            }
            if position == lap {
                break;
            }
        }
        Ok(None)
    }

    /// Checks that the log ends at `next`: that no later record says that the one there was
    /// durable. Otherwise that one is damaged.
    fn check_end(&self, next: &StartPage) -> io::Result<()> {
        let LogPosition { offset, sequence } = next.tail;
        let ring = next.ring_bytes;
        // To the end of the ring, and from its beginning up to here.
        let before = offset % ring;
        let lap = offset - before + ring;
        for (from, length) in [(offset, ring - before), (lap, before)] {
            let mut bytes = vec![0; length.min(SEARCH_BYTES) as usize];
            self.file.read_at(&mut bytes, RING_OFFSET + from % ring)?;
            for skipped in (0..bytes.len()).step_by(ALIGNMENT as usize) {
                let later = parse_later(&bytes[skipped..], sequence, next.epoch);
                let durable = later.and_then(|header| header.durable(from + skipped as u64));
                if durable.is_some_and(|durable| durable > offset) {
                    let byte = RING_OFFSET + before;
                    return Err(invalid(&format!(
                        "it is damaged at byte {byte}: writes that were acknowledged as durable, \
                         and are not written back, cannot be read"
                    )));
                }
            }
        }
        Ok(())
    }
}
