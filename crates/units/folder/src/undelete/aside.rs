//! Setting a segment aside: its file is moved to `freed/`.

use std::path::Path;

use base::SegmentId;
use unit::UnitError;
use world::{Millis, OpenMode, WrongKind};

use super::record::{AsideName, FOLDER};
use super::state::path_of;
use super::{FolderUnit, Keep};
use crate::is_not_found;

impl FolderUnit {
    /// Moves a segment's file to what is kept. `false`: it is not kept, and is to
    /// be removed. Its absence is not durable yet.
    pub(crate) fn set_aside(&self, id: SegmentId) -> Result<bool, UnitError> {
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
        // Whoever comes meanwhile waits: also its names may be among those that are
        // being made durable.
        let _alone = keep.syncing_names.lock();
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
}
