//! Putting slots, and making them durable.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use base::SegmentId;
use parking_lot::MutexGuard;
use unit::{Put, Tag, UnitError};
use world::{File, OpenMode};

use super::format::{Entry, Header, TABLE_OFFSET};
use super::root::folder_of;
use super::segment::Segment;
use super::segments::{Segments, misplaced};
use super::table::write_entries;

pub(super) fn entries_of(slot_bytes: u32, tags: &[Tag], data: &[u8]) -> Vec<Entry> {
    let contents = data.chunks_exact(slot_bytes as usize);
    tags.iter()
        .zip(contents)
        .map(|(tag, content)| Entry::of(tag, content))
        .collect()
}

impl Segments {
    /// Creates a segment with its first slots.
    pub(super) fn put_first(&self, put: &Put<'_>) -> Result<(), UnitError> {
        let &Put {
            segment: id,
            lineage_tag,
            slot_bytes,
            tags,
            data,
            ..
        } = put;
        let cluster = self.root.marker.cluster;
        // Too many slots, an invalid slot size, or a name that is taken.
        let misplaced_new = || UnitError::Misplaced {
            segment: id,
            slots: 0,
            slot_bytes,
        };
        let header = Header::new(id, cluster, slot_bytes, self.data_bytes)
            .filter(|header| tags.len() <= header.capacity as usize)
            .ok_or_else(misplaced_new)?
            .with_lineage_tag(lineage_tag);
        self.root.verify()?;
        let file = match self.create_file(id) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(match self.newest_table(id) {
                    Ok(found) => misplaced(&found.stat()),
                    // A file of that name is no segment of this unit.
                    Err(why @ UnitError::Damaged { .. }) => why,
                    Err(_) => misplaced_new(),
                });
            }
            other => other.map_err(|error| self.root.unit_error("create a segment", error))?,
        };
        // An earlier segment of that name may have lost writes before its removal failed.
        self.unsynced.lock().deleted(id);
        let segment = Segment::new(header, file);
        let entries = entries_of(slot_bytes, tags, data);
        if let Err(error) = write_new(&segment, &entries, data) {
            // No version names it: remove it to reclaim its room.
            let _ = self.root.disk.remove(&self.root.file(id));
            return Err(self.root.unit_error(&format!("write segment {id}"), error));
        }
        self.remember_put(id, &Arc::new(segment), &entries, 0);
        Ok(())
    }

    fn create_file(&self, segment: SegmentId) -> io::Result<Arc<dyn File>> {
        self.create_at(segment, &self.root.file(segment))
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
            let why = self.root.segment_error(id, "append to", error);
            // A full unit is retried once there is room.
            if !matches!(why, UnitError::Full { .. }) {
                self.lose(id);
            }
            return Err(why);
        }
        self.remember_put(id, &segment, &entries, first);
        Ok(())
    }

    /// The segment with a file that is open for writing, unless it has lost a write. A file
    /// with unsynced puts is preferred: only its descriptor reports a lost write.
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
        self.root.verify()?;
        let open = || {
            let file = self.root.disk.open(&self.root.file(id), OpenMode::Write)?;
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

    /// Syncs segments early until no more wait than may be open. After a destage that failed
    /// no sync may ever be requested.
    fn sync_surplus(&self) {
        while let Some((id, _alone)) = self.surplus() {
            // If it fails, the segment is lost, and its next put or sync reports that.
            let _ = self.sync_segment(id);
        }
    }

    /// A segment to sync early, with its writer's lock. `None` if there is no need, or all that
    /// wait are being written: each of these makes room when its write ends.
    fn surplus(&self) -> Option<(SegmentId, MutexGuard<'_, ()>)> {
        let unsynced = self.unsynced.lock();
        let mut waiting = unsynced.waiting();
        if waiting.len() <= self.cache.share().segments_max() {
            return None;
        }
        waiting.find_map(|id| Some((id, self.try_writer(id)?)))
    }

    fn lost_write(&self, segment: SegmentId) -> UnitError {
        let lost = io::Error::other("an earlier write was lost");
        self.root
            .unit_error(&format!("append to segment {segment}"), lost)
    }

    /// Makes everything put into `segments` durable: their data, then their
    /// names, then the names of their sub-folders.
    pub(super) fn sync(&self, ids: &[SegmentId]) -> Result<(), UnitError> {
        let mut new_names = Vec::new();
        for id in ids {
            let _alone = self.writer(*id);
            let segment = self.sync_segment(*id)?;
            if !segment.is_name_durable() {
                // Not the open segment: there may be more than can be open at once.
                new_names.push(*id);
            }
        }
        let folders: BTreeSet<usize> = new_names.iter().map(|id| folder_of(*id)).collect();
        let failed = |error| self.root.unit_error("sync a folder", error);
        for folder in &folders {
            let path = self.root.folder(*folder);
            self.root.disk.sync_directory(&path).map_err(failed)?;
        }
        let (is_new, clears) = {
            let durable = self.durable_folders.lock();
            (!folders.is_subset(&durable.known), durable.clears)
        };
        if is_new {
            let path = self.root.segments();
            self.root.disk.sync_directory(&path).map_err(failed)?;
            let mut durable = self.durable_folders.lock();
            if durable.clears == clears {
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
        // The next put may be far off, or never come.
        segment.file.end_bulk();
        if let Err(error) = synced {
            self.lose(id);
            return Err(self.root.segment_error(id, "sync", error));
        }
        self.unsynced.lock().synced(id);
        self.measure(id, &*segment.file);
        Ok(segment)
    }
}

/// Writes the data first: a process that dies in between leaves a file that is no segment,
/// rather than a table that names slots whose content is missing.
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
