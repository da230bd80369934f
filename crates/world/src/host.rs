//! What is asked of a real machine only, by those who never run in a simulator
//! (`object`, `control`, `agent`, `measure`, `scree`): paths without links, modes, devices and
//! holes, the machine's name, files that a lock or SQLite is to have, waiting in a task, and
//! ports that tasks serve.
//!
//! Must not know: which files, and what is waited for.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam for what a simulator is never asked"
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

/// Listens at a TCP address, for tasks; at any free port if its port is 0. To be
/// called within a runtime.
///
/// # Errors
/// As [`Listener::bind`].
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = Listener::bind(&Endpoint::Tcp(address), 0)?;
    let listener = std::net::TcpListener::from(bound.as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Opens a file that only its owner may read, and makes it if there is none.
///
/// # Errors
/// As the operating system says; so for the others below.
pub fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
}

/// Makes a folder and its missing parents, durably.
///
/// # Errors
/// As the operating system says.
pub fn make_folders(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if is_folder(path) {
        return Ok(());
    }
    let parent = parent_of(path);
    make_folders(disk, parent)?;
    disk.create_directory(path)?;
    disk.sync_directory(parent)
}

/// Writes a file that only its owner may read, durably: it is whole or as it
/// was.
///
/// # Errors
/// As the operating system says.
pub fn write_whole(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    match disk.remove(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(&aside, OpenMode::CreateNew)?;
    let written = file
        .write_at(content, 0)
        .and_then(|_| file.sync_data())
        .and_then(|()| disk.rename(&aside, path));
    if let Err(error) = written {
        // What is there of it is of no use. Of what is wrong, the first thing is what is told.
        let _ = disk.remove(&aside);
        return Err(error);
    }
    disk.sync_directory(parent_of(path))
}

/// The folder that `path` lies in.
#[must_use]
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        // A name alone lies in the current folder.
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// The path of what exists, absolute and without links.
///
/// # Errors
/// As the operating system says.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}

/// Whether there is a folder, or a link to one. It need not be readable.
#[must_use]
pub fn is_folder(path: &Path) -> bool {
    path.is_dir()
}

/// The names in a folder, also those that are no text.
///
/// # Errors
/// As the operating system says.
pub fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

/// The content of a file that should be small; it is wiped when it is dropped,
/// for it may be a key.
///
/// # Errors
/// As the operating system says; [`io::ErrorKind::FileTooLarge`], if it has more
/// than `bytes_max` bytes.
pub fn read_small(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = disk.open(path, OpenMode::Read)?;
    let bytes = file.length()?;
    if bytes > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "it has {bytes} bytes, and should have {bytes_max} at most; is it the right file?"
            ),
        ));
    }
    let mut content = Zeroizing::new(vec![0; bytes as usize]);
    file.read_at(&mut content, 0)?;
    Ok(content)
}

/// The mode of a file that others than its owner may read, or write; `None` if
/// it is private.
///
/// # Errors
/// As the operating system says.
pub fn mode_for_others(path: &Path) -> io::Result<Option<u32>> {
    let mode = mode(path)?;
    Ok((mode & 0o077 != 0).then_some(mode))
}

/// Who may do what with a file: the nine bits of `chmod`.
///
/// # Errors
/// As the operating system says.
pub fn mode(path: &Path) -> io::Result<u32> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
}

/// Whose a file is: the user's number.
///
/// # Errors
/// As the operating system says.
pub fn user(path: &Path) -> io::Result<u32> {
    Ok(std::fs::metadata(path)?.uid())
}

/// As whom this process makes files: the user's number.
#[must_use]
pub fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A file that was found without following a link: whoever can make links on
/// the way there cannot have another file taken for it, neither now nor, as
/// long as this is kept, later.
#[derive(Debug)]
pub struct Unfollowed(OwnedFd);

impl Unfollowed {
    /// Finds the file at an absolute path.
    ///
    /// # Errors
    /// As the operating system says. Of a link there, or on the way, that is
    /// [`is_link`].
    pub fn find(path: &Path) -> io::Result<Self> {
        find_unfollowed(path).map(Self)
    }

    /// A path that leads to this file and no other, in this process and as
    /// long as this is kept.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// Whose it is: the user's number.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn user(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.0)?.st_uid)
    }
}

/// Whether something was not found because there is a link in its place, or on
/// the way to it.
#[must_use]
pub fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Gives a file to a user. Others' files only root gives away.
///
/// # Errors
/// As the operating system says.
pub fn give(path: &Path, user: u32) -> io::Result<()> {
    std::os::unix::fs::chown(path, Some(user), None)
}

/// Lets every user pass through a folder, and only its owner look into it: who
/// knows a name in it can use what that lets them use.
///
/// # Errors
/// As the operating system says. Others' folders only root changes.
pub fn let_pass(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711))
}

/// Which file system a folder lies on.
///
/// # Errors
/// As the operating system says.
pub fn device(folder: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(folder)?.dev())
}

/// Which inode of its file system a folder is.
///
/// # Errors
/// As the operating system says.
pub fn inode(folder: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(folder)?.ino())
}

/// Whether both are there and the same regular file, by whatever names.
#[must_use]
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path| {
        let data = std::fs::metadata(path).ok()?;
        data.is_file().then_some((data.dev(), data.ino()))
    };
    file(one).is_some_and(|one| file(other) == Some(one))
}

/// Whether there is something that is neither a file nor a folder, as a device or a pipe.
#[must_use]
pub fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir())
}

/// How much of a file is no hole, in bytes. Where its file system does not tell, all of it.
///
/// # Errors
/// As the operating system says.
pub fn content_bytes(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let end = file.metadata()?.len();
    let seek = |from| rustix::fs::seek(&file, from);
    let (mut at, mut content) = (0, 0);
    while at < end {
        let ends = seek(rustix::fs::SeekFrom::Data(at))
            .and_then(|from| Ok((from, seek(rustix::fs::SeekFrom::Hole(from))?)));
        let (from, until) = match ends {
            // Nothing but a hole is left, or it was cut meanwhile.
            Err(Errno::NXIO) => break,
            found => found?,
        };
        content += until.saturating_sub(from);
        at = until;
    }
    Ok(content)
}

/// When a folder was made; `None` where the file system does not know.
///
/// # Errors
/// As the operating system says.
pub fn born(folder: &Path) -> io::Result<Option<SystemTime>> {
    match std::fs::metadata(folder)?.created() {
        Ok(born) => Ok(Some(born)),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the system drew when the machine was started; `None` where it does not say.
#[must_use]
pub fn boot() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot.trim().to_owned())
}

/// The machine's name, for people.
#[must_use]
pub fn name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// Ticks at once, and then every `period`, later if a tick was late.
#[must_use]
pub fn ticks(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// What comes of `what`, if it comes within `wait`.
pub async fn within<T>(wait: Duration, what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(wait, what).await.ok()
}

/// Lets this task rest.
pub async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
