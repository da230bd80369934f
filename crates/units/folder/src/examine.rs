//! What the file system below a folder does, found out by trying when a unit is
//! made there (`docs/howto/use-a-cluster-file-system.md`).
//!
//! What is made for that has names of drafts, which go with the next claim if a
//! crash keeps them from going here.
//!
//! Must not know: the marker, segments.

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use unit::Fact;
use world::{Disk, OpenMode};

use super::is_not_found;
use super::place::DRAFT;

/// Where what was found out is kept, in the unit's folder.
pub(super) const NAME: &str = "file-system.toml";

/// The longest such file that is read, in bytes.
const BYTES_MAX: u64 = 4 << 10;

/// How long the file is in which a hole is made, in bytes: two of them are
/// larger than any file system's blocks.
const HOLE_BYTES: u64 = 256 << 10;

/// What a file system does that it need not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileSystem {
    /// Room in the middle of a file can be given back.
    pub(super) holes: bool,
}

impl FileSystem {
    /// As operators are shown it. No unit is made where the others do not hold.
    pub(super) fn facts(self) -> Vec<Fact> {
        let needed = |what| Fact {
            what,
            holds: true,
            otherwise: "it is refused",
        };
        vec![
            needed("syncs files"),
            needed("makes names exclusively"),
            needed("renames over"),
            Fact {
                what: "holes",
                holds: self.holes,
                otherwise: "freed slots are overwritten with zeroes, and their room comes back \
                            with the segment",
            },
        ]
    }
}

/// Why no unit can be made on a file system.
#[derive(Debug)]
pub(super) enum ExamineError {
    /// What must work does not.
    Unfit(Unfit),
    /// It could not be tried.
    Io(io::Error),
}

/// What does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    Sync,
    Exclusive,
    Rename,
}

impl fmt::Display for Unfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sync => "what was synced to a file is not what is read there then",
            Self::Exclusive => "a file is made although there is one of that name (O_EXCL)",
            Self::Rename => "a file that takes the name of another does not replace it",
        })
    }
}

impl From<io::Error> for ExamineError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Tries what a unit needs in the folder that `disk` is within.
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
    // Of a folder in which nothing can be removed that is what is wrong.
    remove()?;
    found
}

fn try_all(disk: &dyn Disk, one: &Path, other: &Path) -> Result<FileSystem, ExamineError> {
    make(disk, one, b"one")?;
    match disk.open(one, OpenMode::CreateNew) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(ExamineError::Unfit(Unfit::Exclusive)),
    }
    make(disk, other, b"other")?;
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
    let is_gone = disk
        .open(one, OpenMode::Read)
        .is_err_and(|error| is_not_found(&error));
    if !is_gone || content(disk, other)? != b"one" {
        return Err(ExamineError::Unfit(Unfit::Rename));
    }
    let holes = has_holes(disk, other)?;
    Ok(FileSystem { holes })
}

/// Makes a file, durably.
fn make(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
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
    // Bytes that no file system makes smaller.
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

/// What was found out when the unit was made; `None` if nothing was, or it cannot
/// be read: it is told, and nothing depends on it.
pub(super) fn read(disk: &dyn Disk) -> io::Result<Option<FileSystem>> {
    match content(disk, Path::new(NAME)) {
        Ok(text) => Ok(std::str::from_utf8(&text)
            .ok()
            .and_then(|text| toml::from_str(text).ok())),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps what was found out, in the place of what was before.
pub(super) fn write(disk: &dyn Disk, found: FileSystem) -> io::Result<()> {
    let text = toml::to_string(&found).map_err(io::Error::other)?;
    let text = format!("# What this file system was found to do when the unit was made.\n{text}");
    match disk.remove(Path::new(NAME)) {
        Err(error) if !is_not_found(&error) => return Err(error),
        _ => {}
    }
    let file = disk.open(Path::new(NAME), OpenMode::CreateNew)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync_data()
}
