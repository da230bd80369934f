//! What a restore is about to do, noted in `freed/restore` before it does anything.

use std::io;
use std::path::Path;

use base::SegmentId;
use serde::{Deserialize, Serialize};
use unit::UnitError;
use world::{Millis, OpenMode};

use super::Restorable;
use crate::is_not_found;
use crate::place::{is_full, segment_of};
use crate::undelete::record::{AsideName, DRAFT, FOLDER, RESTORE, Record, When, log_name};
use crate::undelete::state::path_of;
use crate::undelete::{FolderUnit, Keep};

/// A longer note is none that was written here, in bytes.
const NOTE_BYTES_MAX: u64 = 64 << 20;

/// What is to be done, as it is noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    since: i64,
    until: i64,
    segment: Option<String>,
    replaced: bool,
    /// The moment of the restore: what is freed later is not meant, also where
    /// this is done to its end much later.
    moment: u64,
    /// Files in `freed/` that are moved back.
    files: Vec<String>,
}

impl Note {
    /// `files` are moved back, `now`.
    pub fn new(meant: &Restorable, now: When, files: Vec<String>) -> Self {
        Self {
            since: meant.since.0,
            until: meant.until.0,
            segment: meant.segment.map(|segment| segment.to_string()),
            replaced: meant.replaced,
            moment: now.moment,
            files,
        }
    }

    pub fn since(&self) -> i64 {
        self.since
    }

    pub fn moment(&self) -> u64 {
        self.moment
    }

    pub fn replaced(&self) -> bool {
        self.replaced
    }

    /// Whether what was freed then of the segment is to be brought back.
    pub fn means(&self, when: When, segment: SegmentId) -> bool {
        let meant = Restorable {
            since: Millis(self.since),
            until: Millis(self.until),
            segment: self.segment.as_deref().and_then(segment_of),
            replaced: self.replaced,
        };
        when.moment < self.moment && meant.has(when.wall, segment)
    }

    pub fn names(&self) -> impl Iterator<Item = AsideName> {
        self.files.iter().filter_map(|name| AsideName::parse(name))
    }

    /// Whether the slots of a record belong to the segment as it is there after the
    /// restore, and not to one that was set aside since and stays so.
    ///
    /// A record is of the segment that was set aside next after it, and if none was, of
    /// the one that is there. `after`: when that was, of those that still are aside.
    pub fn is_of_restored(&self, record: &Record, after: Option<u64>) -> bool {
        // One that is noted may have been moved already.
        let planned = self
            .names()
            .filter(|name| name.segment == record.segment)
            .map(|name| name.when.moment)
            .find(|moment| *moment >= record.when.moment);
        let moved = self.names().any(|name| name.segment == record.segment);
        match (planned, after) {
            (Some(planned), Some(after)) => planned <= after,
            (Some(_), None) => true,
            // Of the one that another one is put in place of.
            (None, None) => !moved,
            (None, Some(_)) => false,
        }
    }
}

/// What is noted.
pub(super) enum Noted {
    Nothing,
    Note(Note),
    /// It has rotted.
    Unreadable,
}

impl FolderUnit {
    pub(super) fn noted(&self) -> Result<Noted, UnitError> {
        let read = || {
            let file = self.place.disk.open(&path_of(RESTORE), OpenMode::Read)?;
            let mut text = vec![0; file.length()?.min(NOTE_BYTES_MAX) as usize];
            file.read_at(&mut text, 0)?;
            Ok(text)
        };
        let text = match read() {
            Ok(text) => text,
            Err(error) if is_not_found(&error) => return Ok(Noted::Nothing),
            // Another user, who made it, reads it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(self.place.meaning("end a restore", error));
            }
            Err(error) => match self.place.meaning("end a restore", error) {
                UnitError::Io { .. } => return Ok(Noted::Unreadable),
                why => return Err(why),
            },
        };
        let text = String::from_utf8(text).ok();
        let note = text.and_then(|text| toml::from_str(&text).ok());
        Ok(note.map_or(Noted::Unreadable, Noted::Note))
    }

    /// Removes the note, and before that all logs. Returns how many these were. What
    /// they named is found by the walk after the next start.
    pub(super) fn give_up_note(&self, keep: &Keep) -> Result<u32, UnitError> {
        let logs = self.with_kept(keep, |state| {
            for begun in state.logs().keys() {
                self.remove_if_there(&log_name(*begun))?;
            }
            self.remove_if_there(RESTORE)?;
            self.place.disk.sync_directory(Path::new(FOLDER))?;
            Ok(state.logs().len() as u32)
        })?;
        self.forget_kept();
        Ok(logs)
    }

    pub(super) fn write_restore(&self, keep: &Keep, note: &Note) -> Result<(), UnitError> {
        self.with_kept(keep, |state| {
            state.make_folder(&*self.place.disk)?;
            let text = toml::to_string(note).map_err(io::Error::other)?;
            match self.write_whole(RESTORE, text.as_bytes()) {
                // A unit that somebody has filled is to be restored, too.
                Err(error) if is_full(&error) => {
                    self.place.give_up_probe()?;
                    self.write_whole(RESTORE, text.as_bytes())
                }
                other => other,
            }
        })
    }

    /// Writes a file in `freed/` as a whole, durably.
    pub(super) fn write_whole(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let disk = &*self.place.disk;
        let draft = format!("{DRAFT}{name}");
        self.remove_if_there(&draft)?;
        let write = || {
            let file = disk.open(&path_of(&draft), OpenMode::CreateNew)?;
            file.write_at(content, 0)?;
            file.sync_data()?;
            disk.rename(&path_of(&draft), &path_of(name))?;
            disk.sync_directory(Path::new(FOLDER))
        };
        let written = write();
        if written.is_err() {
            // Else it goes at the next start.
            let _ = self.remove_if_there(&draft);
        }
        written
    }

    /// Removes a file in `freed/`.
    pub(super) fn remove_if_there(&self, name: &str) -> io::Result<()> {
        match self.place.disk.remove(&path_of(name)) {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }
}
