//! Copying a segment that is about to be replaced to what is kept.
//!
//! ```text
//!  1. copy    into a draft, while others write and free there
//!  2. follow  with the segment's writer's lock: what has changed since
//!  3. hold    under its name
//! ```

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::SegmentId;
use unit::UnitError;
use world::{File, OpenMode};

use super::FolderUnit;
use super::record::{AsideName, DRAFT};
use super::state::path_of;
use crate::format::{Entry, HEADER_BYTES, Header, SlotState, TABLE_OFFSET};
use crate::runs::runs;
use crate::table::Table;
use crate::{CHUNK_BYTES, OpenTable, is_not_found};

/// A copy of a segment as it was at some moment.
pub(crate) struct SegmentCopy {
    draft: PathBuf,
    file: Arc<dyn File>,
    table: Table,
}

impl FolderUnit {
    /// Makes room for a copy of a segment, as far as that can be done.
    fn room_for_copy(&self, file: &dyn File) {
        let needed = file.allocated().unwrap_or(0);
        let is_tight = || {
            let space = self.place.disk.space(Path::new(""));
            space.is_ok_and(|space| space.free_bytes < needed)
        };
        while is_tight() && matches!(self.make_room(), Ok(true)) {}
    }

    /// Copies a segment as it is now, durably; `number` is nobody else's. None if there
    /// is none, or no room: then it is not kept. No writer's lock is held.
    pub(crate) fn copy_segment(
        &self,
        id: SegmentId,
        number: u64,
    ) -> Result<Option<SegmentCopy>, UnitError> {
        let Some(keep) = self.keep.as_ref().filter(|_| self.is_keeping()) else {
            return Ok(None);
        };
        let OpenTable { file, table } = match self.read_table(id, OpenMode::Read) {
            Err(UnitError::NoSegment { .. }) => return Ok(None),
            other => other?,
        };
        self.room_for_copy(&*file);
        let disk = &*self.place.disk;
        let draft = path_of(&format!("{DRAFT}{id}-{number:016x}"));
        let copy = || {
            self.with_kept(keep, |state| state.make_folder(disk))?;
            let copied = || {
                match disk.remove(&draft) {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => {}
                }
                let copy = disk.open(&draft, OpenMode::CreateNew)?;
                copy_content(&*file, &table, None, &*copy)?;
                copy.sync_data()?;
                Ok(copy)
            };
            copied().map_err(|error| self.place.meaning_at(id, "keep", error))
        };
        let copied = copy();
        if copied.is_err() {
            self.remove_draft(&draft);
        }
        match copied {
            Err(UnitError::Full { .. }) => Ok(None),
            Err(why) => Err(why),
            Ok(file) => Ok(Some(SegmentCopy { draft, file, table })),
        }
    }

    /// Keeps the copy, with what has changed since. None if there is no room for that.
    /// The segment's writer's lock is held.
    pub(crate) fn keep_copy(
        &self,
        id: SegmentId,
        copy: &SegmentCopy,
    ) -> Result<Option<AsideName>, UnitError> {
        let Some(keep) = &self.keep else {
            return Ok(None);
        };
        let OpenTable { file, table } = self.read_table(id, OpenMode::Read)?;
        let follow = || {
            if table.header != copy.table.header || table.entries != copy.table.entries {
                copy_content(&*file, &table, Some(&copy.table), &*copy.file)?;
                copy.file.sync_data()?;
            }
            copy.file.allocated()
        };
        let bytes = match follow() {
            Ok(bytes) => bytes,
            Err(error) => match self.place.meaning_at(id, "keep", error) {
                UnitError::Full { .. } => return Ok(None),
                why => return Err(why),
            },
        };
        self.hold(keep, id, &copy.draft, bytes, None).map(Some)
    }

    /// The copy is not kept, or has its name.
    pub(crate) fn end_copy(&self, copy: &SegmentCopy) {
        self.remove_draft(&copy.draft);
    }

    /// A copy that was kept is of something that was not replaced.
    pub(crate) fn give_up_copy(&self, name: &AsideName) {
        let Some(keep) = &self.keep else { return };
        // Else it takes some room until its time is over.
        let _ = self.with_kept(keep, |state| {
            self.place.disk.remove(&path_of(&name.to_string()))?;
            state.remove_aside(name);
            Ok(())
        });
    }

    fn remove_draft(&self, draft: &Path) {
        // Else it takes some room until the next start.
        let _ = self.place.disk.remove(draft);
    }
}

/// Copies header, table, and the content of slots that have one, each to the same
/// place, but for what was copied `before`. Content that cannot be read becomes a hole,
/// which its checksum does not fit: what is being replaced is often just what has rotted.
fn copy_content(
    from: &dyn File,
    table: &Table,
    before: Option<&Table>,
    to: &dyn File,
) -> io::Result<()> {
    let length = from.length()?;
    let header = &table.header;
    let table_end = TABLE_OFFSET + header.table_bytes() as u64;
    for part in [0..HEADER_BYTES as u64, TABLE_OFFSET..table_end] {
        copy(from, to, part.start..part.end.min(length))?;
    }
    let is_copied = |slot: u32, entry: &Entry| {
        let before = before.and_then(|table| table.entries.get(slot as usize));
        before.is_some_and(|before| {
            has_content(before) && (before.tag, before.crc) == (entry.tag, entry.crc)
        })
    };
    let is_due = |(slot, entry): (u32, &Entry)| {
        (has_content(entry) && !is_copied(slot, entry)).then_some(slot)
    };
    let slots: Vec<u32> = (0..).zip(&table.entries).filter_map(is_due).collect();
    let chunk_slots = (CHUNK_BYTES as u32 / header.slot_bytes).max(1);
    for run in runs(&slots) {
        for first in run.clone().step_by(chunk_slots as usize) {
            let chunk = first..run.end.min(first.saturating_add(chunk_slots));
            copy_slots(from, header, to, chunk)?;
        }
    }
    // A hole at the end is one, too.
    to.set_length(length)
}

fn has_content(entry: &Entry) -> bool {
    let is = matches!(entry.state, SlotState::Kept | SlotState::Unknown);
    is || entry.is_freed_with_content()
}

/// Copies consecutive slots; if they cannot be read at once, those that can.
fn copy_slots(
    from: &dyn File,
    header: &Header,
    to: &dyn File,
    slots: Range<u32>,
) -> io::Result<()> {
    let start = header.slot_offset(slots.start);
    let mut bytes = vec![0; slots.len() * header.slot_bytes as usize];
    if from.read_at(&mut bytes, start).is_ok() {
        return to.write_at(&bytes, start);
    }
    for slot in slots {
        let content = &mut bytes[..header.slot_bytes as usize];
        if from.read_at(content, header.slot_offset(slot)).is_ok() {
            to.write_at(content, header.slot_offset(slot))?;
        }
    }
    Ok(())
}

fn copy(from: &dyn File, to: &dyn File, range: Range<u64>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let mut bytes = vec![0; (range.end - range.start) as usize];
    from.read_at(&mut bytes, range.start)?;
    to.write_at(&bytes, range.start)
}
