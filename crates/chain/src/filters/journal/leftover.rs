//! Journal files that no filter has open: whether they have acknowledged changes that may not be
//! below, and their quarantine (docs/internals/journal-filter.md).

use std::io;
use std::path::{Path, PathBuf};

use world::{Disk, OpenMode};

use super::file;

/// The suffix of a journal's file name.
pub const JOURNAL_SUFFIX: &str = ".journal";

/// The suffix, behind [`JOURNAL_SUFFIX`], of a new journal that will take another one's place.
pub const REPLACEMENT_SUFFIX: &str = ".new";

/// The part of a quarantined journal's file name between the filter and the lease.
pub const QUARANTINED_INFIX: &str = ".journal.quarantined-";

/// What is known of a journal that has records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalLeftover {
    /// The lease under which the records were acknowledged; `None` if unknown.
    pub lease: Option<u32>,
}

/// Returns whether the journal at `path` has acknowledged changes that may not be below.
///
/// # Errors
/// An error of the operating system, or `InvalidData` if the file is not a journal.
pub fn journal_leftover(disk: &dyn Disk, path: &Path) -> io::Result<Option<JournalLeftover>> {
    let Some(journal) = file::find(disk, path, OpenMode::Read)? else {
        return Ok(None);
    };
    let leftover = JournalLeftover {
        lease: journal.start.origin.lease,
    };
    Ok(journal.has_records()?.then_some(leftover))
}

/// Whether there is a journal at `path`, empty or not. A damaged one counts.
///
/// # Errors
/// An error of the operating system.
pub fn journal_exists(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match file::find(disk, path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(true),
        found => Ok(found?.is_some()),
    }
}

/// Renames a journal so that no filter reads it, and returns the new path. Journals that were
/// quarantined earlier stay.
///
/// # Errors
/// An error of the operating system.
pub fn quarantine_journal(disk: &dyn Disk, path: &Path, lease: Option<u32>) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(JOURNAL_SUFFIX).unwrap_or(&name);
    let lease = lease.map_or_else(|| "unknown".to_owned(), |lease| lease.to_string());
    let mut quarantined = path.with_file_name(format!("{name}{QUARANTINED_INFIX}{lease}"));
    let mut number = 1;
    loop {
        match disk.open(&quarantined, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            // An earlier one has this name.
            opened => drop(opened?),
        }
        number += 1;
        quarantined = path.with_file_name(format!("{name}{QUARANTINED_INFIX}{lease}-{number}"));
    }
    disk.rename(path, &quarantined)?;
    if let Some(folder) = path.parent() {
        disk.sync_directory(folder)?;
    }
    Ok(quarantined)
}
