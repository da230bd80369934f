//! Replacing a whole segment by another.
//!
//! ```text
//!  1. draft   a file of another name beside it, in parts, then durably
//!  2. copy    the segment that is replaced, where there is an undelete window
//!
//!     with the segment's writer's lock:
//!  3. check   that the segment is the expected one
//!  4. finish  the draft: what is free in the segment is free in it
//!  5. store   the copy, with what has changed since 2
//!  6. rename  the draft, then the sub-folder is synced
//! ```
//!
//! A crash before 6 leaves a draft, which the walk after the next start removes. If another
//! process is writing that draft, its replacement fails and is retried. A reader that has the
//! old file open continues to read that one.

use std::path::PathBuf;

use base::SegmentId;
use unit::{ReplacementPart, Tag, UnitError};
use world::{DirectoryEntry, File, OpenMode};

use super::format::{Entry, Header, SlotState, TABLE_OFFSET};
use super::is_not_found;
use super::queue::PunchQueue;
use super::root::{Root, folder_of};
use super::segments::Segments;
use super::table::{Table, write_entries};
use super::undelete::{SegmentCopy, Undelete};
use super::write::entries_of;

/// Separates a segment's name from a draft's number in the name of a draft.
const DRAFT: &str = ".draft-";

/// Whether `name` is that of a draft of a segment.
pub(super) fn is_draft(name: &str) -> bool {
    name.contains(DRAFT)
}

/// Removes what interrupted replacements have left in a sub-folder.
pub(super) fn remove_drafts(root: &Root, folder: usize, names: &[DirectoryEntry]) {
    for entry in names.iter().filter(|entry| is_draft(&entry.name)) {
        let path = root.folder(folder).join(&entry.name);
        // If this fails, it takes some room until the walk after the next start.
        let _ = root.disk.remove(&path);
    }
}

/// Replaces segments.
pub(super) struct Replacer<'a> {
    pub(super) segments: &'a Segments,
    pub(super) punches: &'a PunchQueue,
    pub(super) undelete: Option<Undelete<'a>>,
}

impl Replacer<'_> {
    pub(super) fn replace_part(
        &self,
        part: &ReplacementPart,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        let write = || self.write_part(part, tags, data);
        let result = match &self.undelete {
            Some(undelete) => undelete.with_room(write),
            None => write(),
        };
        if result.is_err() {
            // If it cannot be removed now, it is after the next start.
            let _ = self.segments.root.disk.remove(&self.draft_of(part));
        }
        result
    }

    fn write_part(
        &self,
        part: &ReplacementPart,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        let header = self.header_of(part)?;
        self.segments.root.verify()?;
        let is_last = part.first + tags.len() as u32 == part.slots;
        if part.first == 0 || is_last {
            // A replacement that will be refused need not be written.
            self.check_replaced(part)?;
        }
        let file = self.append_to_draft(part, header, tags, data)?;
        if !is_last {
            return Ok(());
        }
        // The slow steps come before the lock, for which others wait.
        file.sync_data()
            .map_err(|error| self.write_error(part.segment, error))?;
        let copy = match (&self.undelete, part.expected) {
            (Some(undelete), Some(_)) => undelete.copy_segment(part.segment, part.draft)?,
            _ => None,
        };
        let replaced = self.swap(part, &*file, header, copy.as_ref());
        if let Some(copy) = &copy {
            copy.remove_draft(&self.segments.root);
        }
        replaced
    }

    fn header_of(&self, part: &ReplacementPart) -> Result<Header, UnitError> {
        let data_bytes = u64::from(part.slots) * u64::from(part.slot_bytes);
        let header = Header::new(
            part.segment,
            self.segments.root.marker.cluster,
            part.slot_bytes,
            data_bytes.max(self.segments.data_bytes),
        );
        let header = header
            .filter(|header| part.slots <= header.capacity)
            .ok_or(UnitError::Misplaced {
                segment: part.segment,
                slots: 0,
                slot_bytes: part.slot_bytes,
            })?;
        Ok(header
            .with_lineage_tag(part.lineage_tag)
            .of_generation(part.generation))
    }

    fn draft_of(&self, part: &ReplacementPart) -> PathBuf {
        let name = format!("{}{DRAFT}{:016x}", part.segment, part.draft);
        let root = &self.segments.root;
        root.folder(folder_of(part.segment)).join(name)
    }

    fn append_to_draft(
        &self,
        part: &ReplacementPart,
        header: Header,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<std::sync::Arc<dyn File>, UnitError> {
        let disk = &self.segments.root.disk;
        let draft = self.draft_of(part);
        let write = || {
            let file = if part.first == 0 {
                // An attempt that found no room may have left it.
                match disk.remove(&draft) {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => self.segments.create_at(part.segment, &draft)?,
                }
            } else {
                disk.open(&draft, OpenMode::Write)?
            };
            file.write_bulk(data, header.slot_offset(part.first))?;
            write_entries(&*file, part.first, &entries_of(part.slot_bytes, tags, data))?;
            Ok(file)
        };
        write().map_err(|error| self.write_error(part.segment, error))
    }

    fn write_error(&self, segment: SegmentId, error: std::io::Error) -> UnitError {
        let doing = format!("replace segment {segment}");
        self.segments.root.unit_error(&doing, error)
    }

    /// Renames the draft, which is complete but for its header, over the segment.
    fn swap(
        &self,
        part: &ReplacementPart,
        file: &dyn File,
        header: Header,
        copy: Option<&SegmentCopy>,
    ) -> Result<(), UnitError> {
        let id = part.segment;
        let root = &self.segments.root;
        let draft = self.draft_of(part);
        let _alone = self.segments.writer(id);
        let old = self.check_replaced(part)?;
        let freed = self.finish_draft(part, file, header, old.as_ref())?;
        let stored = match (&self.undelete, copy) {
            (Some(undelete), Some(copy)) => undelete.store_copy(id, copy)?,
            _ => None,
        };
        let renamed = root.disk.rename(&draft, &root.file(id));
        self.segments.cache.remove(id);
        if let Err(error) = renamed {
            // The old one may still be there, with the writes that it has lost.
            self.segments.lose_unsynced(id);
            if let (Some(undelete), Some(stored)) = (&self.undelete, stored)
                && root.disk.open(&draft, OpenMode::Read).is_ok()
            {
                // The segment that was copied is still there.
                undelete.discard_copy(&stored);
            }
            return Err(self.write_error(id, error));
        }
        self.segments.unsynced.lock().deleted(id);
        if !freed.is_empty() {
            self.punches.push(id);
        }
        self.segments.measure(id, file);
        let synced = self.segments.sync_name(id);
        if synced.is_err() {
            // A crash may bring the old one back.
            self.segments.lose(id);
        }
        synced
    }

    /// Writes the header of a draft and marks the slots free that are free in `old`, durably.
    /// Returns these slots.
    fn finish_draft(
        &self,
        part: &ReplacementPart,
        file: &dyn File,
        header: Header,
        old: Option<&Table>,
    ) -> Result<Vec<u32>, UnitError> {
        let mut freed = Vec::new();
        let mut lineage_tag = part.lineage_tag;
        if let Some(old) = old {
            let entries = (0..part.slots).zip(&old.entries);
            let free = entries.filter(|(_, entry)| entry.state.is_free());
            freed.extend(free.map(|(slot, _)| slot));
            lineage_tag = old.header.lineage_tag;
        }
        let finish = || {
            for slot in &freed {
                write_entries(file, *slot, &[Entry::free(SlotState::Freed)])?;
            }
            let mut head = header.with_lineage_tag(lineage_tag).encode();
            head.resize(TABLE_OFFSET as usize, 0);
            file.write_at(&head, 0)?;
            file.sync_data()?;
            file.end_bulk();
            Ok(())
        };
        finish().map_err(|error| self.write_error(part.segment, error))?;
        Ok(freed)
    }

    /// Reads the segment that `part` replaces, and checks that it is the expected one.
    fn check_replaced(&self, part: &ReplacementPart) -> Result<Option<Table>, UnitError> {
        let id = part.segment;
        let found = match self.segments.read_table(id, OpenMode::Read) {
            Err(UnitError::NoSegment { .. }) if part.expected.is_none() => return Ok(None),
            other => other?.table,
        };
        let generation = found.header.generation;
        if part.expected != Some(generation) || part.generation < generation {
            return Err(UnitError::Replaced {
                url: self.segments.root.url.clone(),
                segment: id,
                generation,
            });
        }
        Ok(Some(found))
    }
}
