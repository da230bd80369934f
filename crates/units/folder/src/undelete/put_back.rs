//! Moving segments that were set aside back to where they were.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use base::SegmentId;
use unit::UnitError;
use world::OpenMode;

use super::record::{AsideName, FOLDER};
use super::state::{Aside, path_of};
use super::{FolderUnit, Keep};
use crate::is_not_found;
use crate::place::folder_of;

impl FolderUnit {
    /// Whether it still is among what is kept.
    pub(super) fn is_aside(&self, name: &AsideName) -> Result<bool, UnitError> {
        match (self.place.disk).open(&path_of(&name.to_string()), OpenMode::Read) {
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => Err(self.place.meaning("open what was kept", error)),
            Ok(_) => Ok(true),
        }
    }

    /// Moves a segment back to where it was. What is there is set aside before, for
    /// which no room is needed: a crash in between leaves nothing there, and the note,
    /// by which it is moved then.
    pub(super) fn move_back(
        &self,
        keep: &Keep,
        name: &AsideName,
        was_there: bool,
        replaced: bool,
    ) -> Result<(), UnitError> {
        let id = name.segment;
        let (disk, file) = (&*self.place.disk, self.place.file(id));
        if was_there {
            let there = disk.open(&file, OpenMode::Read);
            let there = there.map_err(|error| self.place.meaning_at(id, "open", error))?;
            let bytes = there.allocated().unwrap_or(0);
            self.hold(keep, id, &file, bytes, Some(name.when.wall))?;
        }
        if replaced {
            self.pass_over_later(keep, name)?;
        }
        let folder = self.place.folder(folder_of(id));
        self.with_kept(keep, |state| {
            disk.create_directory(&folder)?;
            disk.rename(&path_of(&name.to_string()), &file)?;
            state.remove_aside(name);
            Ok(())
        })?;
        self.cache.remove(id);
        Ok(())
    }

    /// What a restore of that moment, or later, has set aside to make place for `name`
    /// is moved to where it was, if nothing is there now.
    pub(super) fn move_again(
        &self,
        keep: &Keep,
        name: &AsideName,
        moment: u64,
    ) -> Result<(), UnitError> {
        let id = name.segment;
        let (disk, file) = (&*self.place.disk, self.place.file(id));
        match disk.open(&file, OpenMode::Read) {
            Err(error) if is_not_found(&error) => {}
            _ => return Ok(()),
        }
        let is_moved = self.with_kept(keep, |state| {
            let mut asides = state.asides().values().rev();
            let is_its = |aside: &&Aside| {
                let other = &aside.name;
                other.segment == id && other.passed.is_some() && other.when.moment > moment
            };
            let Some(other) = asides.find(is_its).map(|aside| aside.name) else {
                return Ok(false);
            };
            disk.rename(&path_of(&other.to_string()), &file)?;
            state.remove_aside(&other);
            Ok(true)
        })?;
        if is_moved {
            let synced = self.sync_moved(&BTreeMap::from([(id, *name)]));
            synced.map_err(|error| self.place.meaning("restore what was freed", error))?;
        }
        Ok(())
    }

    /// What was set aside of the segment after that is not to be brought back by the
    /// same words, said once more.
    fn pass_over_later(&self, keep: &Keep, name: &AsideName) -> Result<(), UnitError> {
        self.with_kept(keep, |state| {
            let asides = state.asides().values();
            let later: Vec<_> = asides
                .filter(|aside| {
                    let other = &aside.name;
                    let is_later = other.when.moment > name.when.moment;
                    other.segment == name.segment && is_later
                })
                .copied()
                .collect();
            for aside in later {
                let past = AsideName {
                    passed: Some(name.when.wall),
                    ..aside.name
                };
                if past == aside.name {
                    continue;
                }
                let from = path_of(&aside.name.to_string());
                let renamed = self.place.disk.rename(&from, &path_of(&past.to_string()));
                match renamed {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => {}
                }
                state.remove_aside(&aside.name);
                state.add_aside(past, aside.bytes);
            }
            Ok(())
        })
    }

    /// Makes what was moved back durable: where it is now, then where it was.
    pub(super) fn sync_moved(&self, files: &BTreeMap<SegmentId, AsideName>) -> io::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let disk = &*self.place.disk;
        let folders: BTreeSet<usize> = files.keys().map(|id| folder_of(*id)).collect();
        for folder in folders {
            disk.sync_directory(&self.place.folder(folder))?;
        }
        disk.sync_directory(&self.place.segments())?;
        disk.sync_directory(Path::new(FOLDER))
    }
}
