//! Setting a segment aside: its file is moved to `freed/`, or, where another one
//! takes its place at the same moment, copied there.

use std::io;
use std::ops::Range;
use std::path::Path;

use base::SegmentId;
use world::{File, Millis, OpenMode, WrongKind};

use super::record::{AsideName, DRAFT, FOLDER};
use super::state::path_of;
use super::{FolderUnit, Keep};
use crate::UnitError;
use crate::folder::format::{Entry, HEADER_BYTES, Header, SlotState, TABLE_OFFSET};
use crate::folder::runs::runs;
use crate::folder::table::Table;
use crate::folder::{CHUNK_BYTES, OpenTable, is_not_found};

impl FolderUnit {
    /// Moves a segment's file to what is kept. `false`: it is not kept, and is to
    /// be removed. Its absence is not durable yet.
    pub(in crate::folder) fn set_aside(&self, id: SegmentId) -> Result<bool, UnitError> {
        let Some(keep) = self.keep.as_ref().filter(|_| self.is_keeping()) else {
            return Ok(false);
        };
        let disk = &*self.place.disk;
        let path = self.place.file(id);
        let bytes = match disk.open(&path, OpenMode::Read) {
            Ok(file) => match (file.length(), file.allocated()) {
                // A delete that was cut short, from before anything was kept.
                (Ok(0), _) => return Ok(false),
                (_, allocated) => allocated.unwrap_or(0),
            },
            // It may have been moved by a call that failed then.
            Err(error) if is_not_found(&error) => {
                self.sync_kept_names(keep)?;
                return Ok(false);
            }
            Err(error) if WrongKind::of(&error).is_some() => return Ok(false),
            Err(error) => return Err(self.place.meaning_at(id, "open", error)),
        };
        // It is here durably before it is durably gone from there.
        self.hold(keep, id, &path, bytes, None)?;
        Ok(true)
    }

    /// Moves the file at `from` to what is kept, as the segment's of this moment,
    /// durably. `passed`: see [`AsideName`].
    pub(super) fn hold(
        &self,
        keep: &Keep,
        segment: SegmentId,
        from: &Path,
        bytes: u64,
        passed: Option<Millis>,
    ) -> Result<AsideName, UnitError> {
        let disk = &*self.place.disk;
        let name = self.with_kept(keep, |state| {
            state.make_folder(disk)?;
            let name = AsideName {
                segment,
                when: state.moment(&*self.clock),
                passed,
            };
            state.are_names_unsynced = true;
            disk.rename(from, &path_of(&name.to_string()))?;
            state.add_aside(name, bytes);
            Ok(name)
        })?;
        self.sync_kept_names(keep)?;
        Ok(name)
    }

    /// Makes the names in `freed/` durable, if they may not be.
    pub(super) fn sync_kept_names(&self, keep: &Keep) -> Result<(), UnitError> {
        let is_unsynced = self.with_kept(keep, |state| {
            Ok(std::mem::take(&mut state.are_names_unsynced))
        })?;
        if !is_unsynced {
            return Ok(());
        }
        let synced = self.place.disk.sync_directory(Path::new(FOLDER));
        if let Err(error) = synced {
            self.with_kept(keep, |state| {
                state.are_names_unsynced = true;
                Ok(())
            })?;
            return Err(self.place.meaning("keep what was freed", error));
        }
        Ok(())
    }

    /// Makes room for a copy of a segment, as far as that can be done.
    pub(in crate::folder) fn room_for_copy(&self, id: SegmentId) -> Result<(), UnitError> {
        let Ok(file) = self.place.disk.open(&self.place.file(id), OpenMode::Read) else {
            return Ok(());
        };
        let needed = file.allocated().unwrap_or(0);
        let is_tight = || {
            let space = self.place.disk.space(Path::new(""));
            space.is_ok_and(|space| space.free_bytes < needed)
        };
        while is_tight() && self.make_room()? {}
        Ok(())
    }

    /// Copies a segment that is about to be replaced to what is kept, durably. If
    /// there is no room for that, it is not kept.
    pub(in crate::folder) fn keep_replaced(
        &self,
        id: SegmentId,
    ) -> Result<Option<AsideName>, UnitError> {
        match self.copy_aside(id) {
            Err(UnitError::Full { .. }) => Ok(None),
            other => other,
        }
    }

    /// A copy that was made is of something that was not replaced.
    pub(in crate::folder) fn give_up_copy(&self, name: &AsideName) {
        let Some(keep) = &self.keep else { return };
        // Else it takes some room until its time is over.
        let _ = self.with_kept(keep, |state| {
            self.place.disk.remove(&path_of(&name.to_string()))?;
            state.remove_aside(name);
            Ok(())
        });
    }

    fn copy_aside(&self, id: SegmentId) -> Result<Option<AsideName>, UnitError> {
        let Some(keep) = self.keep.as_ref().filter(|_| self.is_keeping()) else {
            return Ok(None);
        };
        let OpenTable { file, table } = self.read_table(id, OpenMode::Read)?;
        let disk = &*self.place.disk;
        let draft = path_of(&format!("{DRAFT}{id}"));
        self.with_kept(keep, |state| state.make_folder(disk))?;
        let copy = || {
            match disk.remove(&draft) {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
            let copy = disk.open(&draft, OpenMode::CreateNew)?;
            copy_content(&*file, &table, &*copy)?;
            copy.sync_data()?;
            copy.allocated()
        };
        let copied = copy();
        if copied.is_err() {
            // Else it takes some room until the next start.
            let _ = disk.remove(&draft);
        }
        let failed = |error| self.place.meaning_at(id, "keep", error);
        let bytes = copied.map_err(failed)?;
        self.hold(keep, id, &draft, bytes, None).map(Some)
    }
}

/// Copies header, table, and the content of slots that have one, each to the same
/// place. Content that cannot be read becomes a hole, which its checksum does not fit:
/// what is being replaced is often just what has rotted.
fn copy_content(from: &dyn File, table: &Table, to: &dyn File) -> io::Result<()> {
    let length = from.length()?;
    let header = &table.header;
    let table_end = TABLE_OFFSET + header.table_bytes() as u64;
    for part in [0..HEADER_BYTES as u64, TABLE_OFFSET..table_end] {
        copy(from, to, part.start..part.end.min(length))?;
    }
    let has_content = |(slot, entry): (u32, &Entry)| {
        let is = matches!(entry.state, SlotState::Kept | SlotState::Unknown);
        (is || entry.is_freed_with_content()).then_some(slot)
    };
    let slots: Vec<u32> = (0..).zip(&table.entries).filter_map(has_content).collect();
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
