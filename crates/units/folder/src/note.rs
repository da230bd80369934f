//! The note that hosts keep beside the segments: one file of one sector, written
//! over in place, so that it is never torn.

use std::io;
use std::path::Path;

use unit::{NOTE_BYTES, UnitError};
use world::OpenMode;

use super::{FolderUnit, is_not_found};

/// Its name is from when it could only be the count of leases.
const NAME: &str = "leases";

impl FolderUnit {
    /// What was noted last; `None` if nothing was, or a crash came in between the
    /// first time.
    pub(super) fn load_note(&self) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
        self.place.look()?;
        let read = || {
            let file = match self.place.disk.open(Path::new(NAME), OpenMode::Read) {
                Err(error) if is_not_found(&error) => return Ok(None),
                opened => opened?,
            };
            if file.length()? < NOTE_BYTES as u64 {
                return Ok(None);
            }
            let mut note = [0; NOTE_BYTES];
            file.read_at(&mut note, 0)?;
            Ok(Some(note))
        };
        read().map_err(|error: io::Error| self.place.meaning("read its note", error))
    }

    /// Keeps a note in the place of the last. Durable on return.
    pub(super) fn put_note(&self, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
        // A folder without the unit's marker is never written to.
        self.place.verify()?;
        let write = || {
            let (disk, path) = (&self.place.disk, Path::new(NAME));
            let file = match disk.open(path, OpenMode::Write) {
                Err(error) if is_not_found(&error) => disk.open(path, OpenMode::CreateNew)?,
                opened => opened?,
            };
            file.write_at(note, 0)?;
            file.sync_data()?;
            disk.sync_directory(Path::new(""))
        };
        write().map_err(|error| self.place.meaning("write its note", error))
    }
}
