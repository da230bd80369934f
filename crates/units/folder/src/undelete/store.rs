//! Storing a whole segment: its file is moved to `freed/`.

use std::path::Path;

use base::SegmentId;
use unit::UnitError;
use world::{Millis, OpenMode, WrongKind};

use super::Undelete;
use super::index::path_of;
use super::name::{FOLDER, FreedSegmentName};
use crate::is_not_found;

/// A file that is to be moved to `freed/`.
pub(super) struct FileToStore<'a> {
    pub segment: SegmentId,
    pub path: &'a Path,
    /// Room that it takes.
    pub bytes: u64,
    /// See [`FreedSegmentName::superseded`].
    pub superseded: Option<Millis>,
}

impl Undelete<'_> {
    /// Moves a segment's file to `freed/`. Returns `false` if there is nothing to store and the
    /// file is to be removed. Its absence is not durable yet.
    pub(crate) fn store_segment(&self, id: SegmentId) -> Result<bool, UnitError> {
        if !self.is_enabled() {
            return Ok(false);
        }
        let root = &self.segments.root;
        let path = root.file(id);
        let bytes = match root.disk.open(&path, OpenMode::Read) {
            Ok(file) => match (file.length(), file.allocated()) {
                // A delete that was interrupted when there was no undelete window.
                (Ok(0), _) => return Ok(false),
                (_, allocated) => allocated.unwrap_or(0),
            },
            // A call that failed later may have moved it.
            Err(error) if is_not_found(&error) => {
                self.sync_names()?;
                return Ok(false);
            }
            Err(error) if WrongKind::of(&error).is_some() => return Ok(false),
            Err(error) => return Err(root.segment_error(id, "open", error)),
        };
        // It is in `freed/` durably before its absence from the segments is durable.
        self.store_file(FileToStore {
            segment: id,
            path: &path,
            bytes,
            superseded: None,
        })?;
        Ok(true)
    }

    /// Moves a file to `freed/` durably, as one that is freed now.
    pub(super) fn store_file(&self, file: FileToStore<'_>) -> Result<FreedSegmentName, UnitError> {
        let disk = &*self.segments.root.disk;
        let name = self.with_index(|index| {
            index.create_folder(disk)?;
            let name = FreedSegmentName {
                segment: file.segment,
                freed_at: index.clock.timestamp(self.clock),
                superseded: file.superseded,
            };
            index.are_names_unsynced = true;
            disk.rename(file.path, &path_of(&name.to_string()))?;
            index.add_segment(name, file.bytes);
            Ok(name)
        })?;
        self.sync_names()?;
        Ok(name)
    }

    /// Makes the names in `freed/` durable, if they may not be.
    pub(super) fn sync_names(&self) -> Result<(), UnitError> {
        // A concurrent call waits: its names may be among those that are being synced.
        let _alone = self.store.syncing_names.lock();
        let is_unsynced =
            self.with_index(|index| Ok(std::mem::take(&mut index.are_names_unsynced)))?;
        if !is_unsynced {
            return Ok(());
        }
        let root = &self.segments.root;
        if let Err(error) = root.disk.sync_directory(Path::new(FOLDER)) {
            self.with_index(|index| {
                index.are_names_unsynced = true;
                Ok(())
            })?;
            return Err(root.unit_error("sync freed/", error));
        }
        Ok(())
    }
}
