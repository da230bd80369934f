//! Files: what Scree asks of a file system, and no more.

use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing. A block device is nobody else's
    /// then: one that is mounted, or open so already, is refused.
    Write,
    /// A file that must not exist yet, for reading and writing. On Unix it
    /// gets mode 0600.
    CreateNew,
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// The last part of its path. Names that are not UTF-8 are left out of
    /// listings: Scree writes none.
    pub name: String,
    /// Whether it is a folder.
    pub is_directory: bool,
}

/// Room on the file system that holds a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// What this process may still use, in bytes.
    pub free_bytes: u64,
}

/// A file system. All calls may wait, and all but [`File::read_now`] may wait
/// long; on an owner's thread only `write_at` into a preallocated file and
/// `read_now` are allowed.
///
/// What is assumed of it: `sync_data` returns after the file's data and size
/// are on stable storage; `sync_directory` returns after the names made and
/// removed in that folder are; `rename` is atomic; without a sync, any subset
/// of the writes since the last one may survive a power failure, in any order,
/// each torn at 512-byte boundaries.
pub trait Disk: Send + Sync {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// As the operating system says; `AlreadyExists` for
    /// [`OpenMode::CreateNew`] on a name that is taken.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// The names in a folder, sorted.
    ///
    /// # Errors
    /// As the operating system says; so for the others below.
    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>>;

    /// Makes a folder (mode 0700); its parent must exist. An existing folder
    /// is no error.
    ///
    /// # Errors
    /// As the operating system says.
    fn create_directory(&self, folder: &Path) -> io::Result<()>;

    /// Gives the file at `from` the name `to`, replacing what was there.
    ///
    /// # Errors
    /// As the operating system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the operating system says; `NotFound` if there is none.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in `folder` durable.
    ///
    /// # Errors
    /// As the operating system says.
    fn sync_directory(&self, folder: &Path) -> io::Result<()>;

    /// What lies below `folder`, for a folder that others may fill: paths are
    /// relative to it, the empty one is the folder itself, and no name in it
    /// leads out. No link below it is followed, only regular files are opened,
    /// and what is found instead is a [`WrongKind`]. The folder is looked up
    /// by each call, so it need not be there now, and may be behind a link.
    fn within(&self, folder: &Path) -> Arc<dyn Disk>;

    /// How many files this process may have open at once, sockets and all;
    /// `None` if nothing bounds it. More give an error that
    /// [`is_out_of_files`](crate::is_out_of_files) knows.
    fn open_files_max(&self) -> Option<u64> {
        None
    }

    /// Room on the file system that holds `folder`.
    ///
    /// # Errors
    /// As the operating system says.
    fn space(&self, folder: &Path) -> io::Result<Space>;
}

/// Something else than there should be: a link, a pipe, a folder in place of a
/// file.
#[derive(Debug, thiserror::Error)]
#[error("{path} is {found}, not {expected}", path = path.display())]
pub struct WrongKind {
    /// Where.
    pub path: PathBuf,
    /// What is there.
    pub found: &'static str,
    /// What should be.
    pub expected: &'static str,
}

impl WrongKind {
    /// What `error` says was found, if that is what it says.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<WrongKind> for io::Error {
    fn from(wrong: WrongKind) -> Self {
        Self::new(io::ErrorKind::InvalidData, wrong)
    }
}

/// A path below a folder, or an error if it leads elsewhere. The folder itself
/// is `.`.
pub(crate) fn within_folder(path: &Path) -> io::Result<&Path> {
    if path.as_os_str().is_empty() {
        return Ok(Path::new("."));
    }
    let leads_on = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if path.components().all(leads_on) {
        Ok(path)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// Whether an error says only that this process, or this machine, has as many
/// files open as it may: no fault of the file's, and over when others close.
#[must_use]
pub fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// An open file. Offsets and lengths are in bytes.
pub trait File: Send + Sync + fmt::Debug {
    /// Whether it is a block device: one is as long as it is.
    fn is_device(&self) -> bool {
        false
    }

    /// Whether it is a regular file: neither a device nor a pipe.
    fn is_regular(&self) -> bool {
        !self.is_device()
    }

    /// Locks the file against other processes that do so, until it is closed.
    /// Whether that was possible: `false` if another one has it locked.
    ///
    /// # Errors
    /// As the operating system says.
    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Fills `into` from `offset`.
    ///
    /// # Errors
    /// As the operating system says; `UnexpectedEof` if the file ends first.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `into` from `offset` if that can be done without waiting for a
    /// device. `Ok(false)`: it cannot, and `into` holds nothing of use.
    ///
    /// # Errors
    /// As [`File::read_at`].
    fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Writes all of `from` at `offset`.
    ///
    /// # Errors
    /// As the operating system says. Part of the bytes may have been written.
    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<()>;

    /// As [`File::write_at`], for bulk that will hardly be read soon: past the
    /// page cache where the file system can, which spares the processor a copy
    /// and the cache what was in it. Pays for whole pages from a
    /// [`crate::PageBuffer`]; anything else is written as by `write_at`. Not
    /// durable before a sync.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn write_bulk(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(from, offset)
    }

    /// Gives back what [`File::write_bulk`] keeps for the next call: a second
    /// descriptor. It may be called again after this.
    fn end_bulk(&self) {}

    /// Returns when the file's data and size are on stable storage.
    ///
    /// # Errors
    /// As the operating system says. After an error nothing may be assumed
    /// of any write since the last sync that returned `Ok`.
    fn sync_data(&self) -> io::Result<()>;

    /// Drops what memory holds of the file's content and does not wait to be written:
    /// the next reading asks the medium. What a sync that failed has lost is read until
    /// then, by other processes too, and a sync after it says nothing of it. Where the
    /// operating system cannot, nothing is dropped.
    fn forget_cached(&self);

    /// The file's length.
    ///
    /// # Errors
    /// As the operating system says.
    fn length(&self) -> io::Result<u64>;

    /// Makes the file `length` bytes long, with zeroes where it grows.
    ///
    /// # Errors
    /// As the operating system says.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Makes the file `length` bytes long and reserves the room for it. Where
    /// the file system cannot reserve, it only sets the length.
    ///
    /// # Errors
    /// `StorageFull` if there is no room.
    fn allocate(&self, length: u64) -> io::Result<()>;

    /// Gives the range's room back; it then reads as zeroes. Where the file
    /// system cannot punch holes, the range is overwritten with zeroes.
    ///
    /// # Errors
    /// As the operating system says.
    fn punch(&self, offset: u64, length: u64) -> io::Result<()>;

    /// How many bytes of room the file takes, holes not counted.
    ///
    /// # Errors
    /// As the operating system says.
    fn allocated(&self) -> io::Result<u64>;
}
