//! Putting slots, and making them durable.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use base::SegmentId;
use parking_lot::MutexGuard;
use unit::{Put, Tag, Unit, UnitError};
use world::{File, OpenMode};

use super::format::{Entry, Header, TABLE_OFFSET};
use super::place::folder_of;
use super::segment::Segment;
use super::table::write_entries;
use super::{FolderUnit, is_not_found, misplaced};

pub(super) fn entries_of(slot_bytes: u32, tags: &[Tag], data: &[u8]) -> Vec<Entry> {
    let contents = data.chunks_exact(slot_bytes as usize);
    tags.iter()
        .zip(contents)
        .map(|(tag, content)| Entry::of(tag, content))
        .collect()
}

impl FolderUnit {
    /// Makes a segment of `lineage_tag` with its first slots.
    pub(super) fn put_first(&self, put: &Put<'_>) -> Result<(), UnitError> {
        let &Put {
            segment: id,
            lineage_tag,
            slot_bytes,
            tags,
            data,
            ..
        } = put;
        let cluster = self.place.marker.cluster;
        // Too many slots, a size that cannot be, or a name that is taken.
        let misplaced_new = || UnitError::Misplaced {
            segment: id,
            slots: 0,
            slot_bytes,
        };
        let header = Header::new(id, cluster, slot_bytes, self.segment_data_bytes)
            .filter(|header| tags.len() <= header.capacity as usize)
            .ok_or_else(misplaced_new)?
            .with_lineage_tag(lineage_tag);
        self.place.verify()?;
        let file = match self.create_file(id) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(match self.stat_segment(id) {
                    Ok(found) => misplaced(&found),
                    // What bears its name is no segment of ours.
                    Err(why @ UnitError::Damaged { .. }) => why,
                    Err(_) => misplaced_new(),
                });
            }
            other => other.map_err(|error| self.place.meaning("make a segment", error))?,
        };
        // One of that name may have lost writes before its removal failed half way.
        self.unsynced.lock().deleted(id);
        let segment = Segment::new(header, file);
        let entries = entries_of(slot_bytes, tags, data);
        if let Err(error) = write_new(&segment, &entries, data) {
            // Nobody names it; what it took so far is given back.
            let _ = self.place.disk.remove(&self.place.file(id));
            return Err(self.place.meaning(&format!("write segment {id}"), error));
        }
        self.remember_put(id, &Arc::new(segment), &entries, 0);
        Ok(())
    }

    fn create_file(&self, segment: SegmentId) -> io::Result<Arc<dyn File>> {
        self.create_at(segment, &self.place.file(segment))
    }

    /// Makes a file in the sub-folder of `segment`, and that if it is missing.
    pub(super) fn create_at(&self, segment: SegmentId, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.place.disk.open(path, OpenMode::CreateNew) {
            Err(error) if is_not_found(&error) => {
                let folder = self.place.folder(folder_of(segment));
                self.place.disk.create_directory(&folder)?;
                self.place.disk.open(path, OpenMode::CreateNew)
            }
            other => other,
        }
    }

    /// Appends slots to a segment.
    pub(super) fn put_next(&self, put: &Put<'_>) -> Result<(), UnitError> {
        let &Put {
            segment: id,
            slot_bytes,
            first,
            tags,
            data,
            ..
        } = put;
        let first = u32::from(first.0);
        let continues = |segment: &Segment| {
            segment.header.slot_bytes == slot_bytes
                && segment.slots() == first
                && first as usize + tags.len() <= segment.header.capacity as usize
        };
        let segment = self.writable(id)?;
        if !continues(&segment) {
            return Err(UnitError::Misplaced {
                segment: id,
                slots: segment.slots(),
                slot_bytes: segment.header.slot_bytes,
            });
        }
        let entries = entries_of(slot_bytes, tags, data);
        let written = segment
            .file
            .write_bulk(data, segment.header.slot_offset(first))
            .and_then(|()| write_entries(&*segment.file, first, &entries));
        if let Err(error) = written {
            let why = self.place.meaning_at(id, "append to", error);
            // Where there is only no room, it is tried again with more.
            if !matches!(why, UnitError::Full { .. }) {
                self.lose(id);
            }
            return Err(why);
        }
        self.remember_put(id, &segment, &entries, first);
        Ok(())
    }

    /// The segment with a file that takes writes, if it has lost none. The
    /// one that has unsynced puts goes first: only it is told of a loss.
    fn writable(&self, id: SegmentId) -> Result<Arc<Segment>, UnitError> {
        let unsynced = {
            let unsynced = self.unsynced.lock();
            if unsynced.is_lost(id) {
                return Err(self.lost_write(id));
            }
            unsynced.get(id)
        };
        let cached = || self.cache.get(id).filter(|segment| segment.is_writable());
        if let Some(segment) = unsynced.or_else(cached) {
            return Ok(segment);
        }
        self.place.verify()?;
        let open = || {
            let file = self
                .place
                .disk
                .open(&self.place.file(id), OpenMode::Write)?;
            Segment::load(file, true)
        };
        let segment = open().map_err(|error| self.explain(id, "open", error))?;
        self.check_owner(id, &segment.header)?;
        Ok(Arc::new(segment))
    }

    fn remember_put(&self, id: SegmentId, segment: &Arc<Segment>, entries: &[Entry], first: u32) {
        segment.set(first, entries);
        self.unsynced.lock().wait(id, segment);
        self.cache.insert(id, Arc::clone(segment));
        self.measure(id, &*segment.file);
        self.sync_surplus();
    }

    /// Syncs segments early that nobody may ever ask for, as after a destage
    /// that failed, until no more wait than may be open.
    fn sync_surplus(&self) {
        while let Some((id, _alone)) = self.surplus() {
            // If it fails, the segment is lost from now on, and whoever puts
            // or syncs it next is told.
            let _ = self.sync_segment(id);
        }
    }

    /// A segment to be synced early, with its writer's lock. None if there is
    /// no need, or all that wait are being written: each of those leaves room
    /// when it is through.
    fn surplus(&self) -> Option<(SegmentId, MutexGuard<'_, ()>)> {
        let unsynced = self.unsynced.lock();
        let mut waiting = unsynced.waiting();
        if waiting.len() <= self.cache.share().segments_max() {
            return None;
        }
        waiting.find_map(|id| Some((id, self.try_writer(id)?)))
    }

    /// No write to the segment can be trusted any more.
    pub(super) fn lose(&self, id: SegmentId) {
        self.unsynced.lock().lose(id);
        self.cache.remove(id);
    }

    /// As [`FolderUnit::lose`], if any of them is not yet durable.
    pub(super) fn lose_unsynced(&self, id: SegmentId) {
        if self.unsynced.lock().get(id).is_some() {
            self.lose(id);
        }
    }

    /// Tells the account how much room a segment takes. If that cannot be
    /// learnt now, the account will look itself, in time.
    pub(super) fn measure(&self, id: SegmentId, file: &dyn File) {
        if let Ok(bytes) = file.allocated() {
            self.account.set(id, bytes);
        }
    }

    fn lost_write(&self, segment: SegmentId) -> UnitError {
        let lost = io::Error::other("a write before this was lost");
        self.place
            .meaning(&format!("continue segment {segment}"), lost)
    }

    /// Makes everything put into `segments` durable: their data, then their
    /// names, then the names of the sub-folders they lie in.
    pub(super) fn sync_segments(&self, ids: &[SegmentId]) -> Result<(), UnitError> {
        let mut new_names = Vec::new();
        for id in ids {
            let _alone = self.writer(*id);
            let segment = self.sync_segment(*id)?;
            if !segment.is_name_durable() {
                // Not the segment: they may be more than may be open at once.
                new_names.push(*id);
            }
        }
        let folders: BTreeSet<usize> = new_names.iter().map(|id| folder_of(*id)).collect();
        let failed = |error| self.place.meaning("sync a folder", error);
        for folder in &folders {
            let path = self.place.folder(*folder);
            self.place.disk.sync_directory(&path).map_err(failed)?;
        }
        let (is_new, forgotten) = {
            let durable = self.durable_folders.lock();
            (!folders.is_subset(&durable.known), durable.forgotten)
        };
        if is_new {
            let path = self.place.segments();
            self.place.disk.sync_directory(&path).map_err(failed)?;
            let mut durable = self.durable_folders.lock();
            if durable.forgotten == forgotten {
                durable.known.extend(folders);
            }
        }
        for segment in new_names.into_iter().filter_map(|id| self.in_memory(id)) {
            segment.set_name_durable();
        }
        Ok(())
    }

    /// Makes a segment's data durable.
    fn sync_segment(&self, id: SegmentId) -> Result<Arc<Segment>, UnitError> {
        let segment = self.writable(id)?;
        let synced = segment.file.sync_data();
        // It may be long until the next put, if there is one.
        segment.file.end_bulk();
        if let Err(error) = synced {
            self.lose(id);
            return Err(self.place.meaning_at(id, "sync", error));
        }
        self.unsynced.lock().synced(id);
        self.measure(id, &*segment.file);
        Ok(segment)
    }
}

/// Data first: a process that dies between leaves a file that is no segment,
/// rather than a table that vouches for what is not there.
fn write_new(segment: &Segment, entries: &[Entry], data: &[u8]) -> io::Result<()> {
    let mut head = segment.header.encode();
    head.resize(TABLE_OFFSET as usize, 0);
    for entry in entries {
        entry.encode(&mut head);
    }
    segment
        .file
        .write_bulk(data, segment.header.slot_offset(0))?;
    segment.file.write_at(&head, 0)
}
