//! The note that hosts store beside the segments: one file of one sector, overwritten in
//! place, so that it is never torn. Its content and its version are the hosts' own.

use std::io;
use std::path::Path;

use unit::{NOTE_BYTES, UnitError};
use world::OpenMode;

use super::is_not_found;
use super::root::Root;

const NAME: &str = "leases";

/// Reads the note; `None` if there is none, or a crash interrupted its first write.
pub(super) fn read(root: &Root) -> Result<Option<[u8; NOTE_BYTES]>, UnitError> {
    root.check()?;
    let read = || {
        let file = match root.disk.open(Path::new(NAME), OpenMode::Read) {
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
    read().map_err(|error: io::Error| root.unit_error("read its note", error))
}

/// Replaces the note. Durable on return.
pub(super) fn write(root: &Root, note: &[u8; NOTE_BYTES]) -> Result<(), UnitError> {
    // A folder without the unit's marker is never written to.
    root.verify()?;
    let write = || {
        let path = Path::new(NAME);
        let file = match root.disk.open(path, OpenMode::Write) {
            Err(error) if is_not_found(&error) => root.disk.open(path, OpenMode::CreateNew)?,
            opened => opened?,
        };
        file.write_at(note, 0)?;
        file.sync_data()?;
        root.disk.sync_directory(Path::new(""))
    };
    write().map_err(|error| root.unit_error("write its note", error))
}
