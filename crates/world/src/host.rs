//! Calls that are never simulated, for crates that run only on a real machine: canonical paths,
//! modes, owners, devices and holes of files, the machine's name, private files for locks and
//! SQLite, and timers and listeners for asynchronous tasks.
//!
//! Must not know: which files they are, and what a task waits for.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam for calls that are never simulated"
)]

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::real::{Listener, find_unfollowed};
use crate::{Disk, Endpoint, OpenMode};
use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio::time::{Interval, MissedTickBehavior};
use zeroize::Zeroizing;

/// Listens at a TCP address, for asynchronous tasks; at any free port if the port is 0. It has to
/// be called within a runtime.
///
/// # Errors
/// As [`Listener::bind`].
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = Listener::bind(&Endpoint::Tcp(address), 0)?;
    let listener = std::net::TcpListener::from(bound.as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Opens a file for writing, and creates it with mode 0600 if it is missing.
///
/// # Errors
/// The operating system's.
pub fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
}

/// Creates a folder and its missing parents, durably.
///
/// # Errors
/// The operating system's.
pub fn make_folders(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if is_folder(path) {
        return Ok(());
    }
    let parent = parent_of(path);
    make_folders(disk, parent)?;
    disk.create_directory(path)?;
    disk.sync_directory(parent)
}

/// Writes a file durably and atomically, with mode 0600: after a failure the file is as it was.
///
/// # Errors
/// The operating system's.
pub fn write_whole(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = PathBuf::from(draft);
    match disk.remove(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(&draft, OpenMode::CreateNew)?;
    let written = file
        .write_at(content, 0)
        .and_then(|_| file.sync_data())
        .and_then(|()| disk.rename(&draft, path));
    if let Err(error) = written {
        // The draft is useless. Of two errors the first is reported.
        let _ = disk.remove(&draft);
        return Err(error);
    }
    disk.sync_directory(parent_of(path))
}

/// The folder that holds `path`.
#[must_use]
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        // A name alone lies in the current folder.
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// The canonical path of an existing file: absolute and without links.
///
/// # Errors
/// The operating system's.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}

/// Whether `path` is a folder or a link to one. It need not be readable.
#[must_use]
pub fn is_folder(path: &Path) -> bool {
    path.is_dir()
}

/// The names in a folder, also those that are not UTF-8.
///
/// # Errors
/// The operating system's.
pub fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

/// The content of a small file. It may be a key, so it is wiped from memory when it is dropped.
///
/// # Errors
/// The operating system's; [`io::ErrorKind::FileTooLarge`] if the file has more than `bytes_max`
/// bytes.
pub fn read_small(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = disk.open(path, OpenMode::Read)?;
    let bytes = file.length()?;
    if bytes > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "the file has {bytes} bytes; at most {bytes_max} are expected. Is it the right file?"
            ),
        ));
    }
    let mut content = Zeroizing::new(vec![0; bytes as usize]);
    file.read_at(&mut content, 0)?;
    Ok(content)
}

/// The mode of a file if users other than its owner have access; `None` if it is private.
///
/// # Errors
/// The operating system's.
pub fn mode_for_others(path: &Path) -> io::Result<Option<u32>> {
    let mode = mode(path)?;
    Ok((mode & 0o077 != 0).then_some(mode))
}

/// The permissions of a file: the nine bits of `chmod`.
///
/// # Errors
/// The operating system's.
pub fn mode(path: &Path) -> io::Result<u32> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
}

/// The number of the user who owns a file.
///
/// # Errors
/// The operating system's.
pub fn user(path: &Path) -> io::Result<u32> {
    Ok(std::fs::metadata(path)?.uid())
}

/// The number of the user who owns the files that this process creates.
#[must_use]
pub fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A file that was found without following a link. A user who can create links in the path cannot
/// substitute another file, neither now nor as long as this is kept.
#[derive(Debug)]
pub struct Unfollowed(OwnedFd);

impl Unfollowed {
    /// Finds the file at an absolute path.
    ///
    /// # Errors
    /// The operating system's; [`is_link`] recognizes the error for a link in the path.
    pub fn find(path: &Path) -> io::Result<Self> {
        find_unfollowed(path).map(Self)
    }

    /// A path that leads to exactly this file, within this process and as long as this is kept.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// The number of the user who owns the file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn user(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.0)?.st_uid)
    }
}

/// Whether [`Unfollowed::find`] failed because of a link in the path.
#[must_use]
pub fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Changes the owner of a file. Only root may change the owner of other users' files.
///
/// # Errors
/// The operating system's.
pub fn change_owner(path: &Path, user: u32) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(user), None)
}

/// Lets every user enter a folder, and only its owner list it (mode 0711). A user who knows a name
/// in it can use that file as its own permissions allow.
///
/// # Errors
/// The operating system's. Only root may change other users' folders.
pub fn allow_entry(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711))
}

/// The number of the file system that holds a folder.
///
/// # Errors
/// The operating system's.
pub fn device(folder: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(folder)?.dev())
}

/// The inode number of a folder.
///
/// # Errors
/// The operating system's.
pub fn inode(folder: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(folder)?.ino())
}

/// Whether both paths lead to the same existing regular file.
#[must_use]
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path| {
        let data = std::fs::metadata(path).ok()?;
        data.is_file().then_some((data.dev(), data.ino()))
    };
    file(one).is_some_and(|one| file(other) == Some(one))
}

/// Whether `path` is neither a file nor a folder, but for instance a device or a pipe.
#[must_use]
pub fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

/// The length of a file without its holes, in bytes. Where the file system does not report holes,
/// it is the file's length.
///
/// # Errors
/// The operating system's.
pub fn content_bytes(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let end = file.metadata()?.len();
    let seek = |from| rustix::fs::seek(&file, from);
    let (mut at, mut content) = (0, 0);
    while at < end {
        let ends = seek(rustix::fs::SeekFrom::Data(at))
            .and_then(|from| Ok((from, seek(rustix::fs::SeekFrom::Hole(from))?)));
        let (from, until) = match ends {
            // Only a hole is left, or the file was truncated meanwhile.
            Err(Errno::NXIO) => break,
            found => found?,
        };
        content += until.saturating_sub(from);
        at = until;
    }
    Ok(content)
}

/// The time at which a folder was created; `None` where the file system does not record it.
///
/// # Errors
/// The operating system's.
pub fn born(folder: &Path) -> io::Result<Option<SystemTime>> {
    match std::fs::metadata(folder)?.created() {
        Ok(born) => Ok(Some(born)),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(error),
    }
}

/// The kernel's random id of the current boot; `None` where it has none.
#[must_use]
pub fn boot_id() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot.trim().to_owned())
}

/// The machine's host name, for display.
#[must_use]
pub fn machine_name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// A timer that ticks at once and then every `period`. After a late tick the next one is a full
/// period later.
#[must_use]
pub fn ticks(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The output of `future`; `None` if it takes longer than `limit`.
pub async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Suspends this task for `time`.
pub async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}
