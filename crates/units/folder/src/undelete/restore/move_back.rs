//! Moving stored segments back to where they were.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use base::SegmentId;
use unit::UnitError;
use world::OpenMode;

use super::{Restore, RestoredSegment, SegmentFate, concerns_one_segment};
use crate::is_not_found;
use crate::root::folder_of;
use crate::undelete::index::{FreedSegment, path_of};
use crate::undelete::name::{FOLDER, FreedSegmentName};
use crate::undelete::store::FileToStore;

impl Restore<'_> {
    /// Moves the planned segments to where they were, durably. Returns those that are there.
    pub(super) fn move_all(&mut self) -> Result<BTreeMap<SegmentId, FreedSegmentName>, UnitError> {
        let mut files = BTreeMap::new();
        for name in self.plan.names() {
            let fate = match self.move_one(&name) {
                Err(why) if concerns_one_segment(&why) => {
                    // If this fails too, the plan stays, by which it is done later.
                    self.undo_replacement(&name)?;
                    Some(SegmentFate::Failed)
                }
                moved => moved?,
            };
            if let Some(fate) = fate {
                let outcome = RestoredSegment::new(name.segment, fate);
                self.outcomes.insert(name.segment, outcome);
            }
            if !matches!(fate, Some(SegmentFate::Occupied | SegmentFate::Failed)) {
                files.insert(name.segment, name);
            }
        }
        if !self.dry_run {
            self.sync_moved(&files)
                .map_err(|error| self.restore_error(error))?;
        }
        Ok(files)
    }

    fn restore_error(&self, error: io::Error) -> UnitError {
        let root = &self.undelete.segments.root;
        root.unit_error("restore from freed/", error)
    }

    /// Moves one planned segment. `None` if it was moved before the restore was interrupted.
    fn move_one(&self, name: &FreedSegmentName) -> Result<Option<SegmentFate>, UnitError> {
        if !self.is_stored(name)? {
            return Ok(None);
        }
        let is_replacing = match self.undelete.is_present(name.segment)? {
            // It was created after the restore was interrupted.
            true if !self.plan.replaced() => return Ok(Some(SegmentFate::Occupied)),
            is_present => is_present,
        };
        if !self.dry_run {
            if is_replacing {
                self.store_current(name)?;
            }
            self.move_back(name)?;
        }
        Ok(Some(match is_replacing {
            true => SegmentFate::Reverted,
            false => SegmentFate::Restored,
        }))
    }

    fn is_stored(&self, name: &FreedSegmentName) -> Result<bool, UnitError> {
        let root = &self.undelete.segments.root;
        match root.disk.open(&path_of(&name.to_string()), OpenMode::Read) {
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => Err(root.unit_error("open a segment in freed/", error)),
            Ok(_) => Ok(true),
        }
    }

    /// Stores the current segment, for which no room is needed. A crash after that leaves no
    /// segment there, and the plan, by which `name` is moved there then.
    fn store_current(&self, name: &FreedSegmentName) -> Result<(), UnitError> {
        let id = name.segment;
        let root = &self.undelete.segments.root;
        let path = root.file(id);
        let current = root.disk.open(&path, OpenMode::Read);
        let current = current.map_err(|error| root.segment_error(id, "open", error))?;
        let bytes = current.allocated().unwrap_or(0);
        self.undelete.store_file(FileToStore {
            segment: id,
            path: &path,
            bytes,
            superseded: Some(name.freed_at.wall),
        })?;
        Ok(())
    }

    fn move_back(&self, name: &FreedSegmentName) -> Result<(), UnitError> {
        if self.plan.replaced() {
            self.supersede_later(name)?;
        }
        let id = name.segment;
        let segments = self.undelete.segments;
        let root = &segments.root;
        self.undelete.with_index(|index| {
            root.disk.create_directory(&root.folder(folder_of(id)))?;
            root.disk
                .rename(&path_of(&name.to_string()), &root.file(id))?;
            index.segments.remove(name);
            Ok(())
        })?;
        segments.cache.remove(id);
        Ok(())
    }

    /// Moves a segment back that this restore, or a later one, has stored to make place for
    /// `name`, if nothing is there now.
    fn undo_replacement(&self, name: &FreedSegmentName) -> Result<(), UnitError> {
        let id = name.segment;
        let root = &self.undelete.segments.root;
        let file = root.file(id);
        match root.disk.open(&file, OpenMode::Read) {
            Err(error) if is_not_found(&error) => {}
            _ => return Ok(()),
        }
        let is_moved = self.undelete.with_index(|index| {
            let is_replaced = |segment: &&FreedSegment| {
                let other = &segment.name;
                let is_later = other.freed_at.run_time_us > self.plan.run_time_us();
                other.segment == id && other.superseded.is_some() && is_later
            };
            let mut newest_first = index.segments.all().values().rev();
            let Some(other) = newest_first.find(is_replaced).map(|segment| segment.name) else {
                return Ok(false);
            };
            root.disk.rename(&path_of(&other.to_string()), &file)?;
            index.segments.remove(&other);
            Ok(true)
        })?;
        if is_moved {
            self.sync_moved(&BTreeMap::from([(id, *name)]))
                .map_err(|error| self.restore_error(error))?;
        }
        Ok(())
    }

    /// Marks the stored segments of that id that are newer than `name` as superseded, so that a
    /// repeated restore with the same filter does not restore them.
    fn supersede_later(&self, name: &FreedSegmentName) -> Result<(), UnitError> {
        self.undelete.with_index(|index| {
            let stored = index.segments.all().values();
            let later: Vec<_> = stored
                .filter(|segment| {
                    let other = &segment.name;
                    let is_later = other.freed_at.run_time_us > name.freed_at.run_time_us;
                    other.segment == name.segment && is_later
                })
                .copied()
                .collect();
            for segment in later {
                let superseded = FreedSegmentName {
                    superseded: Some(name.freed_at.wall),
                    ..segment.name
                };
                if superseded == segment.name {
                    continue;
                }
                let from = path_of(&segment.name.to_string());
                let to = path_of(&superseded.to_string());
                match self.undelete.segments.root.disk.rename(&from, &to) {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => {}
                }
                index.segments.remove(&segment.name);
                index.add_segment(superseded, segment.bytes);
            }
            Ok(())
        })
    }

    /// Makes the moves durable: the names where the files are now, then those where they were.
    fn sync_moved(&self, files: &BTreeMap<SegmentId, FreedSegmentName>) -> io::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let root = &self.undelete.segments.root;
        let folders: BTreeSet<usize> = files.keys().map(|id| folder_of(*id)).collect();
        for folder in folders {
            root.disk.sync_directory(&root.folder(folder))?;
        }
        root.disk.sync_directory(&root.segments())?;
        root.disk.sync_directory(Path::new(FOLDER))
    }
}
