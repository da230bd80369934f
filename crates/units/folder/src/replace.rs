//! Putting a whole segment in the place of another one.
//!
//! ```text
//!  1. draft   a file of another name beside it, in parts, then durably
//!  2. copy    the one in whose place it comes, where what is freed is kept
//!
//!     with the segment's writer's lock:
//!  3. look    that it is the one expected
//!  4. finish  the draft: what is free in that one is free in it
//!  5. keep    the copy, with what has changed since 2
//!  6. rename  the draft, then the sub-folder is synced
//! ```
//!
//! A crash before 6 leaves a draft, which the walk of `settle` after the next
//! start removes. One that another process is just writing fails by that, and
//! is written again. Whoever has the old file open goes on reading that one.

use std::io;
use std::path::PathBuf;

use base::SegmentId;
use unit::{ReplacementPart, Tag, UnitError};
use world::{File, OpenMode};

use super::format::{Entry, Header, SlotState, TABLE_OFFSET};
use super::place::{Place, folder_of};
use super::table::{Table, write_entries};
use super::undelete::SegmentCopy;
use super::write::entries_of;
use super::{FolderUnit, is_not_found};

/// What comes between a segment's name and a draft's number in the name of a
/// draft.
const DRAFT: &str = ".draft-";

/// Whether a file is called as drafts of segments are.
pub(super) fn is_draft(name: &str) -> bool {
    name.contains(DRAFT)
}

impl Place {
    fn draft_of(&self, part: &ReplacementPart) -> PathBuf {
        let name = format!("{}{DRAFT}{:016x}", part.segment, part.draft);
        self.folder(folder_of(part.segment)).join(name)
    }
}

impl FolderUnit {
    /// As [`Unit::replace`](unit::Unit::replace), in parts that follow one another.
    ///
    /// # Errors
    /// As [`Unit::replace`](unit::Unit::replace); then the draft is gone.
    pub fn replace_part(
        &self,
        part: &ReplacementPart,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        part.assert_fit(tags, data);
        let result = self.with_room(|| self.take_part(part, tags, data));
        if result.is_err() {
            // If it cannot be removed now, it is after the next start.
            let _ = self.place.disk.remove(&self.place.draft_of(part));
        }
        result
    }

    fn take_part(
        &self,
        part: &ReplacementPart,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        let id = part.segment;
        let data_bytes = u64::from(part.slots) * u64::from(part.slot_bytes);
        let header = Header::new(
            id,
            self.place.marker.cluster,
            part.slot_bytes,
            data_bytes.max(self.segment_data_bytes),
        )
        .filter(|header| part.slots <= header.capacity)
        .ok_or(UnitError::Misplaced {
            segment: id,
            slots: 0,
            slot_bytes: part.slot_bytes,
        })?
        .with_lineage_tag(part.lineage_tag)
        .of_generation(part.generation);
        self.place.verify()?;
        let is_last = part.first + tags.len() as u32 == part.slots;
        if part.first == 0 || is_last {
            // What will not be put in place is not written either.
            self.replaced(part)?;
        }
        let draft = self.place.draft_of(part);
        let write = || {
            let file = if part.first == 0 {
                // Of a try that found no room.
                match self.place.disk.remove(&draft) {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => self.create_at(id, &draft)?,
                }
            } else {
                self.place.disk.open(&draft, OpenMode::Write)?
            };
            file.write_bulk(data, header.slot_offset(part.first))?;
            write_entries(&*file, part.first, &entries_of(part.slot_bytes, tags, data))?;
            Ok(file)
        };
        let failed = |error| {
            self.place
                .meaning(&format!("write segment {id} anew"), error)
        };
        let file = write().map_err(failed)?;
        if !is_last {
            return Ok(());
        }
        // What takes long, before anybody has to wait.
        file.sync_data().map_err(failed)?;
        let copy = match part.expected {
            Some(_) => self.copy_segment(id, part.draft)?,
            None => None,
        };
        let placed = self.put_in_place(part, &*file, header, copy.as_ref());
        if let Some(copy) = &copy {
            self.end_copy(copy);
        }
        placed
    }

    /// Puts the draft, of which all is there but the header, in the place of the segment
    /// that is there.
    fn put_in_place(
        &self,
        part: &ReplacementPart,
        file: &dyn File,
        header: Header,
        copy: Option<&SegmentCopy>,
    ) -> Result<(), UnitError> {
        let (id, draft) = (part.segment, self.place.draft_of(part));
        let failed = |error| {
            self.place
                .meaning(&format!("write segment {id} anew"), error)
        };
        let _alone = self.writer(id);
        let old = self.replaced(part)?;
        let mut freed = Vec::new();
        if let Some(old) = &old {
            let entries = (0..part.slots).zip(&old.entries);
            let free = entries.filter(|(_, entry)| entry.state.is_free());
            freed.extend(free.map(|(slot, _)| slot));
        }
        let finish = || {
            for slot in &freed {
                write_entries(file, *slot, &[Entry::free(SlotState::Freed)])?;
            }
            let lineage_tag = old
                .as_ref()
                .map_or(part.lineage_tag, |old| old.header.lineage_tag);
            let mut head = header.with_lineage_tag(lineage_tag).encode();
            head.resize(TABLE_OFFSET as usize, 0);
            file.write_at(&head, 0)?;
            file.sync_data()?;
            file.end_bulk();
            Ok(())
        };
        finish().map_err(failed)?;
        let held = match copy {
            Some(copy) => self.keep_copy(id, copy)?,
            None => None,
        };
        let renamed = self.place.disk.rename(&draft, &self.place.file(id));
        self.cache.remove(id);
        if let Err(error) = renamed {
            // The old one is there still, perhaps, with the writes that it has lost.
            self.lose_unsynced(id);
            if let Some(held) = held
                && self.place.disk.open(&draft, OpenMode::Read).is_ok()
            {
                // What it is a copy of is still there.
                self.give_up_copy(&held);
            }
            return Err(failed(error));
        }
        self.unsynced.lock().deleted(id);
        if !freed.is_empty() {
            self.settling.lock().pending.insert(id);
        }
        self.measure(id, file);
        let synced = self.sync_name(id);
        if synced.is_err() {
            // A crash may bring the old one back.
            self.lose(id);
        }
        synced
    }

    /// The segment in whose place `part` comes, if it is as was expected.
    fn replaced(&self, part: &ReplacementPart) -> Result<Option<Table>, UnitError> {
        let id = part.segment;
        let found = match self.read_table(id, OpenMode::Read) {
            Err(UnitError::NoSegment { .. }) if part.expected.is_none() => return Ok(None),
            other => other?.table,
        };
        let generation = found.header.generation;
        if part.expected != Some(generation) || part.generation < generation {
            return Err(UnitError::Replaced {
                url: self.place.url.clone(),
                segment: id,
                generation,
            });
        }
        Ok(Some(found))
    }

    /// Makes the name of a segment durable, and the sub-folder's it lies in.
    fn sync_name(&self, id: SegmentId) -> Result<(), UnitError> {
        let failed = |error: io::Error| self.place.meaning("sync a folder", error);
        let folder = self.place.folder(folder_of(id));
        self.place.disk.sync_directory(&folder).map_err(failed)?;
        let segments = self.place.segments();
        self.place.disk.sync_directory(&segments).map_err(failed)
    }

    /// Removes what replacements that were cut short have left in a sub-folder.
    pub(super) fn remove_drafts(&self, folder: usize, names: &[world::DirectoryEntry]) {
        for entry in names.iter().filter(|entry| is_draft(&entry.name)) {
            let path = self.place.folder(folder).join(&entry.name);
            // Else it takes some room until the walk after the next start.
            let _ = self.place.disk.remove(&path);
        }
    }
}
