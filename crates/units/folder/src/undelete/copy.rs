//! Copying a segment that is about to be replaced to `freed/`.
//!
//! ```text
//!  1. copy    into a draft, while others write and free there
//!  2. update  with the segment's writer's lock: what has changed since
//!  3. store   under its name
//! ```

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::SegmentId;
use unit::UnitError;
use world::{File, OpenMode};

use super::Undelete;
use super::index::path_of;
use super::name::{DRAFT, FreedSegmentName};
use super::store::FileToStore;
use crate::format::{Entry, HEADER_BYTES, Header, SlotState, TABLE_OFFSET};
use crate::root::Root;
use crate::runs::runs;
use crate::segments::OpenTable;
use crate::table::Table;
use crate::{CHUNK_BYTES, is_not_found};

/// A copy of a segment as it was at some time.
pub(crate) struct SegmentCopy {
    draft: PathBuf,
    file: Arc<dyn File>,
    table: Table,
}

impl SegmentCopy {
    /// Removes the draft, unless the copy was stored under its name.
    pub(crate) fn remove_draft(&self, root: &Root) {
        // If this fails, it takes some room until the next start.
        let _ = root.disk.remove(&self.draft);
    }
}

impl Undelete<'_> {
    /// Makes room for a copy of a segment, as far as possible.
    fn make_room_for_copy(&self, file: &dyn File) {
        let needed = file.allocated().unwrap_or(0);
        let is_short = || {
            let space = self.segments.root.disk.space(Path::new(""));
            space.is_ok_and(|space| space.free_bytes < needed)
        };
        while is_short() && matches!(self.make_room(), Ok(true)) {}
    }

    /// Copies a segment durably; `number` distinguishes concurrent copies. `None` if there is
    /// no such segment or no room, and then it is not stored. No writer's lock is held.
    pub(crate) fn copy_segment(
        &self,
        id: SegmentId,
        number: u64,
    ) -> Result<Option<SegmentCopy>, UnitError> {
        if !self.is_enabled() {
            return Ok(None);
        }
        let OpenTable { file, table } = match self.segments.read_table(id, OpenMode::Read) {
            Err(UnitError::NoSegment { .. }) => return Ok(None),
            other => other?,
        };
        self.make_room_for_copy(&*file);
        let root = &self.segments.root;
        let draft = path_of(&format!("{DRAFT}{id}-{number:016x}"));
        let copy = || {
            match root.disk.remove(&draft) {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
            let copy = root.disk.open(&draft, OpenMode::CreateNew)?;
            copy_content(&*file, &table, None, &*copy)?;
            copy.sync_data()?;
            Ok(copy)
        };
        let copied = self
            .with_index(|index| index.create_folder(&*root.disk))
            .and_then(|()| copy().map_err(|error| root.segment_error(id, "copy", error)));
        match copied {
            Ok(file) => Ok(Some(SegmentCopy { draft, file, table })),
            Err(why) => {
                // If this fails, it takes some room until the next start.
                let _ = root.disk.remove(&draft);
                match why {
                    UnitError::Full { .. } => Ok(None),
                    why => Err(why),
                }
            }
        }
    }

    /// Stores the copy, with what has changed since. `None` if there is no room for that. The
    /// segment's writer's lock is held.
    pub(crate) fn store_copy(
        &self,
        id: SegmentId,
        copy: &SegmentCopy,
    ) -> Result<Option<FreedSegmentName>, UnitError> {
        let OpenTable { file, table } = self.segments.read_table(id, OpenMode::Read)?;
        let update = || {
            if table.header != copy.table.header || table.entries != copy.table.entries {
                copy_content(&*file, &table, Some(&copy.table), &*copy.file)?;
                copy.file.sync_data()?;
            }
            copy.file.allocated()
        };
        let bytes = match update() {
            Ok(bytes) => bytes,
            Err(error) => match self.segments.root.segment_error(id, "copy", error) {
                UnitError::Full { .. } => return Ok(None),
                why => return Err(why),
            },
        };
        let stored = self.store_file(FileToStore {
            segment: id,
            path: &copy.draft,
            bytes,
            superseded: None,
        });
        stored.map(Some)
    }

    /// Removes a stored copy of a segment that was not replaced.
    pub(crate) fn discard_copy(&self, name: &FreedSegmentName) {
        // If this fails, it takes some room until its window has passed.
        let _ = self.with_index(|index| {
            let disk = &self.segments.root.disk;
            disk.remove(&path_of(&name.to_string()))?;
            index.segments.remove(name);
            Ok(())
        });
    }
}

/// Copies header, table, and the content of slots that have one, each to the same offset,
/// except for what was copied `before`. Content that cannot be read becomes a hole, which does
/// not match its checksum: a segment is often replaced just because it is damaged.
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
    // Keeps a hole at the end.
    to.set_length(length)
}

fn has_content(entry: &Entry) -> bool {
    let is_put = matches!(entry.state, SlotState::Kept | SlotState::Unknown);
    is_put || entry.is_freed_with_content()
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
