//! Creating a unit in a folder, writing its marker, and probing it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use unit::{Marker, UnitError};
use world::{File, OpenMode, WrongKind};

use super::{DRAFT, Root, SEGMENTS, folder_called, identify};
use crate::examine::{self, ExamineError};
use crate::is_not_found;

/// Name of the probe's file.
const PROBE: &str = "probe";

/// Every byte of the probe's file.
const PROBE_BYTE: u8 = 0x5a;

/// Length of the probe's file in bytes.
const PROBE_BYTES: u64 = 4096;

impl Root {
    /// Creates the unit in the folder.
    ///
    /// 1. check that the folder is not within another unit, and create it if it is missing
    /// 2. check that it is empty
    /// 3. check that the file system does what a unit needs
    /// 4. create `segments/`, and sync its name
    /// 5. write the marker under another name, sync it, rename it, sync the name
    ///
    /// A folder that is this unit already is only claimed.
    pub(crate) fn create(&self) -> Result<(), UnitError> {
        let failed = |error| self.unit_error("create the unit", error);
        if let Some((folder, marker)) = self.unit_above() {
            return Err(self.foreign(format!(
                "it is within {}, which is {} of {}; choose a folder outside it",
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
                "it is not empty: it contains {name:?}; choose an empty folder for a new unit"
            )));
        }
        let found = match examine::examine(&*self.disk) {
            Ok(found) => found,
            Err(ExamineError::Unfit(why)) => {
                return Err(self.foreign(format!("its file system cannot hold a unit: {why}")));
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

    /// The unit that the folder is within, if any. A parent that cannot be read counts as no
    /// unit: this process may have no right to it.
    fn unit_above(&self) -> Option<(PathBuf, Marker)> {
        self.path.ancestors().skip(1).find_map(|folder| {
            let marker = identify(&*self.outside.within(folder), "").ok()?;
            Some((folder.to_owned(), marker))
        })
    }

    /// Writes or replaces the marker. Durable on return, except for the unit's own name.
    pub(crate) fn write_marker(&self) -> io::Result<()> {
        self.replace_marker()?;
        self.disk.sync_directory(Path::new(""))
    }

    /// As [`Root::write_marker`], but a crash may bring the old marker back: at any time there
    /// is one of both.
    pub(crate) fn replace_marker(&self) -> io::Result<()> {
        self.write_draft()?;
        self.rename_draft()
    }

    pub(crate) fn rename_draft(&self) -> io::Result<()> {
        self.disk
            .rename(&self.draft(), Path::new(unit::MARKER_FILE))
    }

    /// The marker's name while this owner writes it. Of several concurrent claims, none renames
    /// a draft that another has not finished.
    fn draft(&self) -> PathBuf {
        match &self.marker.owner {
            None => PathBuf::from(DRAFT),
            Some(owner) => PathBuf::from(format!("{DRAFT}-{}", owner.database)),
        }
    }

    /// Creates an empty draft of this owner's marker.
    pub(crate) fn begin_draft(&self) -> io::Result<Arc<dyn File>> {
        let draft = self.draft();
        match self.disk.remove(&draft) {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => self.disk.open(&draft, OpenMode::CreateNew),
        }
    }

    pub(crate) fn write_draft(&self) -> io::Result<()> {
        let file = self.begin_draft()?;
        let written = file
            .write_at(self.marker.encode().as_bytes(), 0)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // If this fails, the draft stays until the next one.
            let _ = self.disk.remove(&self.draft());
            return Err(error);
        }
        Ok(())
    }

    /// Removes the drafts that interrupted claims have left. A concurrent claim whose draft is
    /// removed fails, as it is too late.
    pub(crate) fn remove_drafts(&self) {
        let entries = self.disk.list(Path::new("")).unwrap_or_default();
        let drafts = entries.iter().filter(|entry| entry.name.starts_with(DRAFT));
        for draft in drafts {
            // A draft that stays takes some room and does no other harm.
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

    /// Opens the probe's file. A file of that name that is no probe is left alone: it may be a
    /// hard link to another file.
    fn open_probe(&self, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let path = Path::new(PROBE);
        let file = self.disk.open(path, mode)?;
        let length = file.length()?;
        let mut found = vec![0; length.min(PROBE_BYTES + 1) as usize];
        file.read_at(&mut found, 0)?;
        // Zeroes if a crash preserved only its length.
        if length > PROBE_BYTES || found.iter().any(|byte| !matches!(*byte, 0 | PROBE_BYTE)) {
            return Err(WrongKind {
                path: self.path.join(path),
                found: "another file",
                expected: "a probe",
            }
            .into());
        }
        Ok(file)
    }

    /// Writes the probe's file, durably except for its name.
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

    /// Removes the probe's file, whose room is needed. The next probe writes it again.
    pub(crate) fn remove_probe(&self) -> io::Result<()> {
        match self.open_probe(OpenMode::Read) {
            Err(error) if is_not_found(&error) => return Ok(()),
            other => drop(other?),
        }
        self.disk.remove(Path::new(PROBE))?;
        // Some file systems reclaim its room only then.
        self.disk.sync_directory(Path::new(""))
    }

    /// Checks that the unit is available, accepts writes, and has room for one more segment of
    /// `segment_data_bytes`.
    pub(crate) fn probe(&self, segment_data_bytes: u64) -> Result<(), UnitError> {
        let failed = |error| self.unit_error("write a probe", error);
        self.claim()?;
        for entry in self.disk.list(&self.segments()).map_err(failed)? {
            if let Some(number) = folder_called(&entry.name)
                && !entry.is_directory
            {
                // Fails with an error that says what it is.
                self.disk.list(&self.folder(number)).map_err(failed)?;
            }
        }
        self.write_probe().map_err(failed)?;
        match self.disk.space(Path::new("")) {
            Ok(space) if space.free_bytes < segment_data_bytes => Err(UnitError::Full {
                url: self.url.clone(),
            }),
            // A file system that does not report its room may have some.
            _ => Ok(()),
        }
    }
}
