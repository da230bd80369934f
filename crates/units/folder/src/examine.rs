//! Examines the file system below a folder when a unit is created there
//! (`docs/howto/use-a-cluster-file-system.md`).
//!
//! The files it creates have names of drafts, so the next claim removes them if a crash keeps
//! them from being removed here.
//!
//! Must not know: the marker, segments.

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use unit::Fact;
use world::{Disk, OpenMode};

use super::is_not_found;
use super::root::DRAFT;

/// Name of the file with the result, in the unit's folder.
pub(super) const NAME: &str = "file-system.toml";

/// Maximum length of such a file that is read, in bytes.
const BYTES_MAX: u64 = 4 << 10;

/// Length of the file in which a hole is punched, in bytes: half of it is larger than any file
/// system's blocks.
const HOLE_BYTES: u64 = 256 << 10;

/// Optional features of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileSystem {
    /// Whether room in the middle of a file can be reclaimed.
    pub(super) holes: bool,
}

impl FileSystem {
    /// The facts that operators are shown. No unit is created where one of the first three
    /// does not hold.
    pub(super) fn facts(self) -> Vec<Fact> {
        let needed = |what| Fact {
            what,
            holds: true,
            otherwise: "no unit can be created",
        };
        vec![
            needed("syncs files"),
            needed("makes names exclusively"),
            needed("renames over"),
            Fact {
                what: "holes",
                holds: self.holes,
                otherwise: "freed slots are overwritten with zeroes, and their room is reclaimed \
                            with the segment",
            },
        ]
    }
}

/// Why no unit can be created on a file system.
#[derive(Debug)]
pub(super) enum ExamineError {
    /// A required feature does not work.
    Unfit(Unfit),
    /// The examination failed.
    Io(io::Error),
}

/// The required feature that does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    Sync,
    Exclusive,
    Rename,
}

impl fmt::Display for Unfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sync => "a file that was synced does not read as it was written",
            Self::Exclusive => "a file is created although one of that name exists (O_EXCL)",
            Self::Rename => "renaming a file over another does not replace that one",
        })
    }
}

impl From<io::Error> for ExamineError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Tries what a unit needs, in the folder whose content is `disk`.
pub(super) fn examine(disk: &dyn Disk) -> Result<FileSystem, ExamineError> {
    let [one, other] = ["one", "other"].map(|name| format!("{DRAFT}-{name}"));
    let [one, other] = [Path::new(&one), Path::new(&other)];
    let remove = || {
        for path in [one, other] {
            match disk.remove(path) {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    };
    remove()?;
    let found = try_all(disk, one, other);
    // A folder in which nothing can be removed is unfit: report that.
    remove()?;
    found
}

fn try_all(disk: &dyn Disk, one: &Path, other: &Path) -> Result<FileSystem, ExamineError> {
    create(disk, one, b"one")?;
    match disk.open(one, OpenMode::CreateNew) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(ExamineError::Unfit(Unfit::Exclusive)),
    }
    create(disk, other, b"other")?;
    if content(disk, one)? != b"one" || content(disk, other)? != b"other" {
        return Err(ExamineError::Unfit(Unfit::Sync));
    }
    match disk.rename(one, other) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(ExamineError::Unfit(Unfit::Rename));
        }
        renamed => renamed?,
    }
    disk.sync_directory(Path::new(""))?;
    let is_removed = disk
        .open(one, OpenMode::Read)
        .is_err_and(|error| is_not_found(&error));
    if !is_removed || content(disk, other)? != b"one" {
        return Err(ExamineError::Unfit(Unfit::Rename));
    }
    let holes = has_holes(disk, other)?;
    Ok(FileSystem { holes })
}

/// Creates a file, durably.
fn create(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let file = disk.open(path, OpenMode::CreateNew)?;
    file.write_at(content, 0)?;
    file.sync_data()?;
    disk.sync_directory(Path::new(""))
}

fn content(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut content = vec![0; file.length()?.min(BYTES_MAX) as usize];
    file.read_at(&mut content, 0)?;
    Ok(content)
}

/// Whether the file takes less room with a hole in it than without.
fn has_holes(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    let file = disk.open(path, OpenMode::Write)?;
    // Bytes that no file system can compress.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(HOLE_BYTES as usize);
    while bytes.len() < HOLE_BYTES as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    file.write_at(&bytes, 0)?;
    file.sync_data()?;
    let before = file.allocated()?;
    file.punch(0, HOLE_BYTES / 2)?;
    file.sync_data()?;
    Ok(file.allocated()? < before)
}

/// Reads the result of the examination at creation; `None` if there is none or it cannot be
/// parsed. It is for display only.
pub(super) fn read(disk: &dyn Disk) -> io::Result<Option<FileSystem>> {
    match content(disk, Path::new(NAME)) {
        Ok(text) => Ok(std::str::from_utf8(&text)
            .ok()
            .and_then(|text| toml::from_str(text).ok())),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the result, in place of an earlier one.
pub(super) fn write(disk: &dyn Disk, found: FileSystem) -> io::Result<()> {
    let text = toml::to_string(&found).map_err(io::Error::other)?;
    let text =
        format!("# What this file system was found to do when the unit was created.\n{text}");
    match disk.remove(Path::new(NAME)) {
        Err(error) if !is_not_found(&error) => return Err(error),
        _ => {}
    }
    let file = disk.open(Path::new(NAME), OpenMode::CreateNew)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync_data()
}
