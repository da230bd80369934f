//! What a journal has that nobody may have carried out: asked, and put aside, where no filter has
//! the file (docs/internals/journal-filter.md).

use std::io;
use std::path::{Path, PathBuf};

use world::{Disk, OpenMode};

use super::ring;

/// How the name of a filter's journal ends in its folder.
pub const JOURNAL_SUFFIX: &str = ".journal";

/// How the name of one ends beside that, which is to take another one's place.
pub const BESIDE: &str = ".new";

/// What the name of one has in it that was put aside.
pub const ASIDE: &str = ".journal.aside-";

/// A journal that has something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalLeft {
    /// The lease under which that was acknowledged; none, if nobody said.
    pub lease: Option<u32>,
}

/// Whether the journal at `path` has anything that was acknowledged and may not be below.
///
/// # Errors
/// As the operating system says; `InvalidData` if it is no journal.
pub fn journal_left(disk: &dyn Disk, path: &Path) -> io::Result<Option<JournalLeft>> {
    let Some((file, start)) = ring::find(disk, path, OpenMode::Read)? else {
        return Ok(None);
    };
    let left = JournalLeft {
        lease: start.origin.lease,
    };
    Ok(ring::has_records(&*file, &start)?.then_some(left))
}

/// Whether there is a journal at `path`, with something in it or not: also one that makes no
/// sense.
///
/// # Errors
/// As the operating system says.
pub fn journal_is_there(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match ring::find(disk, path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(true),
        found => Ok(found?.is_some()),
    }
}

/// Gives a journal another name, under which no filter reads it; which one. One that was put
/// aside before stays as it is.
///
/// # Errors
/// As the operating system says.
pub fn put_journal_aside(disk: &dyn Disk, path: &Path, lease: Option<u32>) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(JOURNAL_SUFFIX).unwrap_or(&name);
    let lease = lease.map_or_else(|| "unknown".to_owned(), |lease| lease.to_string());
    let mut aside = path.with_file_name(format!("{name}{ASIDE}{lease}"));
    let mut number = 1;
    loop {
        match disk.open(&aside, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            // What was put aside before may not be lost.
            opened => drop(opened?),
        }
        number += 1;
        aside = path.with_file_name(format!("{name}{ASIDE}{lease}-{number}"));
    }
    disk.rename(path, &aside)?;
    if let Some(folder) = path.parent() {
        disk.sync_directory(folder)?;
    }
    Ok(aside)
}
