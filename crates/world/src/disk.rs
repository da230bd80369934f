//! [`Disk`] and [`File`]: what Scree needs from a file system.

use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Opens an existing file for reading.
    Read,
    /// Opens an existing file for reading and writing. A block device is opened exclusively: it
    /// is refused if it is mounted or opened so already.
    Write,
    /// Creates a file, which must not exist yet, for reading and writing. Its mode is 0600.
    CreateNew,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// The name. Listings leave out names that are not UTF-8, since Scree creates none.
    pub name: String,
    /// Whether the entry is a folder.
    pub is_directory: bool,
}

/// The space of the file system that holds a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The total space, in bytes.
    pub total_bytes: u64,
    /// The space that this process may still use, in bytes.
    pub free_bytes: u64,
}

/// A file system. Every call may wait, and all except [`File::read_now`] may wait long. So a
/// thread that owns a volume calls only `read_now`, and `write_at` into a preallocated file.
///
/// What Scree assumes of it: `sync_data` returns after the file's data and size are on stable
/// storage; `sync_directory` returns after the names that were added to and removed from the
/// folder are; `rename` is atomic; without a sync, any subset of the writes since the last sync
/// may survive a power failure, in any order, each torn at 512-byte boundaries.
pub trait Disk: Send + Sync {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// The operating system's; `AlreadyExists` if [`OpenMode::CreateNew`] finds the name taken.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// The entries of a folder, sorted by name.
    ///
    /// # Errors
    /// The operating system's.
    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>>;

    /// Creates a folder (mode 0700), whose parent must exist. An existing folder is no error.
    ///
    /// # Errors
    /// The operating system's.
    fn create_directory(&self, folder: &Path) -> io::Result<()>;

    /// Renames the file at `from` to `to`, and replaces a file that is there.
    ///
    /// # Errors
    /// The operating system's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's; `NotFound` if there is no such file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in `folder` durable.
    ///
    /// # Errors
    /// The operating system's.
    fn sync_directory(&self, folder: &Path) -> io::Result<()>;

    /// A disk of the files below `folder`, for a folder that others may write to. Paths are
    /// relative to the folder, the empty path is the folder itself, and no path leads out of it.
    /// No link below it is followed, only regular files are opened, and anything else gives a
    /// [`WrongKind`]. Every call looks the folder up again, so it need not exist now, and may be
    /// behind a link.
    fn within(&self, folder: &Path) -> Arc<dyn Disk>;

    /// The maximal number of files and sockets that this process may have open; `None` if there
    /// is no limit. Opening more fails with an error that
    /// [`is_out_of_files`](crate::is_out_of_files) recognizes.
    fn open_files_max(&self) -> Option<u64> {
        None
    }

    /// The space of the file system that holds `folder`.
    ///
    /// # Errors
    /// The operating system's.
    fn space(&self, folder: &Path) -> io::Result<Space>;
}

/// The error for a file of an unexpected kind, such as a link, a pipe or a folder in place of a
/// regular file.
#[derive(Debug, thiserror::Error)]
#[error("{path} is {found}, not {expected}", path = path.display())]
pub struct WrongKind {
    /// The path of the file.
    pub path: PathBuf,
    /// The kind of file that is there.
    pub found: &'static str,
    /// The kind of file that was expected.
    pub expected: &'static str,
}

impl WrongKind {
    /// The `WrongKind` within an I/O error, if it has one.
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

/// A path below a folder, or an error if it leads out of the folder. The folder itself is `.`.
pub(crate) fn within_folder(path: &Path) -> io::Result<&Path> {
    if path.as_os_str().is_empty() {
        return Ok(Path::new("."));
    }
    let stays_within = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if path.components().all(stays_within) {
        Ok(path)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// Whether an error means that this process or this machine has too many files open. The file is
/// not at fault, and the call succeeds when other files are closed.
#[must_use]
pub fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether an error means that a file system or a quota has no space left.
#[must_use]
pub fn is_out_of_space(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::StorageFull | Kind::QuotaExceeded)
}

/// An open file. Offsets and lengths are in bytes.
pub trait File: Send + Sync + fmt::Debug {
    /// Whether this is a block device, whose length is fixed.
    fn is_device(&self) -> bool {
        false
    }

    /// Whether this is a regular file, and neither a device nor a pipe.
    fn is_regular(&self) -> bool {
        !self.is_device()
    }

    /// Locks the file against other processes that lock it, until it is closed. Returns whether
    /// that succeeded: `false` if another process has locked it.
    ///
    /// # Errors
    /// The operating system's.
    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Fills `into` from `offset`.
    ///
    /// # Errors
    /// The operating system's; `UnexpectedEof` if the file ends first.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `into` from `offset` if that is possible without waiting for a device. Returns
    /// `Ok(false)` if it is not; the content of `into` is undefined then.
    ///
    /// # Errors
    /// As [`File::read_at`].
    fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Writes all of `from` at `offset`.
    ///
    /// # Errors
    /// The operating system's. Part of the bytes may have been written.
    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<()>;

    /// As [`File::write_at`], for bulk data that is not read soon. It bypasses the page cache
    /// where the file system can, which saves a copy and keeps other data cached. This works for
    /// whole pages of a [`crate::PageBuffer`]; anything else is written as by `write_at`. The data
    /// is not durable before a sync.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn write_bulk(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(from, offset)
    }

    /// Closes the second descriptor that [`File::write_bulk`] keeps for its next call, which may
    /// open it again.
    fn end_bulk(&self) {}

    /// Returns when the file's data and size are on stable storage.
    ///
    /// # Errors
    /// The operating system's. After an error nothing may be assumed of any write since the last
    /// sync that returned `Ok`.
    fn sync_data(&self) -> io::Result<()>;

    /// Drops the clean pages of the file from the page cache, so that the next read comes from
    /// the medium. Until then, data that a failed sync has lost is still read from memory, also
    /// by other processes, and a later sync does not report it. This is advice to the operating
    /// system, which may ignore it.
    fn forget_cached(&self);

    /// The file's length, in bytes.
    ///
    /// # Errors
    /// The operating system's.
    fn length(&self) -> io::Result<u64>;

    /// Sets the file's length, in bytes. Where the file grows it reads as zeroes.
    ///
    /// # Errors
    /// The operating system's.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Sets the file's length, in bytes, and reserves space for it. Where the file system cannot
    /// reserve space, this only sets the length.
    ///
    /// # Errors
    /// `StorageFull` if there is not enough space.
    fn allocate(&self, length: u64) -> io::Result<()>;

    /// Frees the space of a range, which then reads as zeroes. Where the file system cannot punch
    /// holes, the range is overwritten with zeroes.
    ///
    /// # Errors
    /// The operating system's.
    fn punch(&self, offset: u64, length: u64) -> io::Result<()>;

    /// The space that the file takes, without its holes, in bytes.
    ///
    /// # Errors
    /// The operating system's.
    fn allocated(&self) -> io::Result<u64>;
}
