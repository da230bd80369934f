//! Making a folder into a unit, writing its marker, and probing it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use unit::{Marker, UnitError};
use world::{File, OpenMode, WrongKind};

use super::examine::{self, ExamineError};
use super::is_not_found;
use super::place::{DRAFT, Place, SEGMENTS, folder_called, identify};

/// The probe's name.
const PROBE: &str = "probe";

/// What a probe consists of.
const PROBE_BYTE: u8 = 0x5a;

/// How long it is, in bytes.
const PROBE_BYTES: u64 = 4096;

impl Place {
    /// Makes the folder into the unit it should be.
    ///
    /// 1. look that it does not lie in another unit, and make it, if it is missing
    /// 2. look that nothing else is in it
    /// 3. look whether the file system does what it must
    /// 4. make `segments/`, and sync its name
    /// 5. write the marker under another name, sync it, rename it, sync that
    ///
    /// A folder that is that unit already is claimed.
    pub(super) fn create(&self) -> Result<(), UnitError> {
        let failed = |error| self.meaning("make the unit", error);
        if let Some((folder, marker)) = self.unit_above() {
            return Err(self.foreign(format!(
                "it lies in {}, which is {} of {}; a unit needs a folder of its own",
                folder.display(),
                marker.unit,
                marker.cluster
            )));
        }
        self.outside.create_directory(&self.path).map_err(failed)?;
        match identify(&*self.disk, &self.url) {
            Ok(_) => {
                self.claim()?;
                return self.sync_unit().map_err(failed);
            }
            Err(UnitError::Missing { .. }) => {}
            Err(why) => return Err(why),
        }
        let entries = self.disk.list(Path::new("")).map_err(failed)?;
        let is_ours = |name: &str| {
            [SEGMENTS, "lost+found", examine::NAME].contains(&name) || name.starts_with(DRAFT)
        };
        if let Some(other) = entries.iter().find(|entry| !is_ours(&entry.name)) {
            let name = &other.name;
            return Err(self.foreign(format!(
                "it holds {name:?}, and a new unit needs an empty folder"
            )));
        }
        let found = match examine::examine(&*self.disk) {
            Ok(found) => found,
            Err(ExamineError::Unfit(why)) => {
                return Err(self.foreign(format!("its file system cannot keep a unit: {why}")));
            }
            Err(ExamineError::Io(error)) => return Err(failed(error)),
        };
        let create = || {
            examine::write(&*self.disk, found)?;
            self.disk.create_directory(&self.segments())?;
            self.disk.sync_directory(Path::new(""))?;
            self.write_marker()?;
            self.remove_drafts();
            self.sync_unit()
        };
        create().map_err(failed)
    }

    /// The unit that the folder lies in, if it does. What cannot be looked at
    /// is taken for no unit: folders above may be nobody's business.
    fn unit_above(&self) -> Option<(PathBuf, Marker)> {
        self.path.ancestors().skip(1).find_map(|folder| {
            let marker = identify(&*self.outside.within(folder), "").ok()?;
            Some((folder.to_owned(), marker))
        })
    }

    /// Writes the marker, or writes it anew. Durable on return, but for the
    /// unit's own name.
    pub(super) fn write_marker(&self) -> io::Result<()> {
        self.replace_marker()?;
        self.disk.sync_directory(Path::new(""))
    }

    /// As [`Place::write_marker`], and after a crash it may be the old one: at
    /// every moment there is one of both.
    pub(super) fn replace_marker(&self) -> io::Result<()> {
        self.write_draft()?;
        self.rename_draft()
    }

    pub(super) fn rename_draft(&self) -> io::Result<()> {
        self.disk
            .rename(&self.draft(), Path::new(unit::MARKER_FILE))
    }

    /// The marker's name while this owner writes it. Of several that claim the
    /// unit at once, none renames what another one has not written to its end.
    fn draft(&self) -> PathBuf {
        match &self.marker.owner {
            None => PathBuf::from(DRAFT),
            Some(owner) => PathBuf::from(format!("{DRAFT}-{}", owner.database)),
        }
    }

    /// An empty draft of this owner's.
    pub(super) fn begin_draft(&self) -> io::Result<Arc<dyn File>> {
        let draft = self.draft();
        match self.disk.remove(&draft) {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => self.disk.open(&draft, OpenMode::CreateNew),
        }
    }

    pub(super) fn write_draft(&self) -> io::Result<()> {
        let file = self.begin_draft()?;
        let written = file
            .write_at(self.marker.encode().as_bytes(), 0)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // Else it stays until the next one.
            let _ = self.disk.remove(&self.draft());
            return Err(error);
        }
        Ok(())
    }

    /// Removes the drafts that claims which were cut short have left. One that
    /// is just being written fails by that, and finds out that it is too late.
    pub(super) fn remove_drafts(&self) {
        let entries = self.disk.list(Path::new("")).unwrap_or_default();
        let drafts = entries.iter().filter(|entry| entry.name.starts_with(DRAFT));
        for draft in drafts {
            // It takes some room, and does no other harm.
            let _ = self.disk.remove(Path::new(&draft.name));
        }
    }

    /// Makes the names of the marker and of the unit itself durable.
    fn sync_unit(&self) -> io::Result<()> {
        self.disk.sync_directory(Path::new(""))?;
        match self.path.parent() {
            Some(parent) if parent != Path::new("") => self.outside.sync_directory(parent),
            _ => Ok(()),
        }
    }

    /// Opens the probe that is there. What bears its name and is none is left
    /// as it is: it may be some other file's second name.
    fn open_probe(&self, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let path = Path::new(PROBE);
        let file = self.disk.open(path, mode)?;
        let length = file.length()?;
        let mut found = vec![0; length.min(PROBE_BYTES + 1) as usize];
        file.read_at(&mut found, 0)?;
        // Zeroes, where a crash kept only its length.
        if length > PROBE_BYTES || found.iter().any(|byte| !matches!(*byte, 0 | PROBE_BYTE)) {
            return Err(WrongKind {
                path: self.path.join(path),
                found: "somebody else's file",
                expected: "a probe",
            }
            .into());
        }
        Ok(file)
    }

    /// Writes the probe anew, durably but for its name.
    fn write_probe(&self) -> io::Result<()> {
        let file = match self.open_probe(OpenMode::Write) {
            Err(error) if is_not_found(&error) => {
                self.disk.open(Path::new(PROBE), OpenMode::CreateNew)?
            }
            other => other?,
        };
        file.set_length(0)?;
        file.write_at(&[PROBE_BYTE; PROBE_BYTES as usize], 0)?;
        file.sync_data()
    }

    /// Gives back the probe's room, until it is next written.
    pub(super) fn give_up_probe(&self) -> io::Result<()> {
        match self.open_probe(OpenMode::Read) {
            Err(error) if is_not_found(&error) => return Ok(()),
            other => drop(other?),
        }
        self.disk.remove(Path::new(PROBE))?;
        // Some file systems give room back no sooner.
        self.disk.sync_directory(Path::new(""))
    }

    /// Looks whether the unit is there, takes writes, and has room for one
    /// more segment of `segment_data_bytes`.
    pub(super) fn probe(&self, segment_data_bytes: u64) -> Result<(), UnitError> {
        let failed = |error| self.meaning("write a probe", error);
        self.claim()?;
        for entry in self.disk.list(&self.segments()).map_err(failed)? {
            if let Some(number) = folder_called(&entry.name)
                && !entry.is_directory
            {
                // Says what it is instead.
                self.disk.list(&self.folder(number)).map_err(failed)?;
            }
        }
        self.write_probe().map_err(failed)?;
        match self.disk.space(Path::new("")) {
            Ok(space) if space.free_bytes < segment_data_bytes => Err(UnitError::Full {
                url: self.url.clone(),
            }),
            // A file system that does not know its room may still have some.
            _ => Ok(()),
        }
    }
}
