//! Opens files below a folder without following links, with `openat2` or without it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Whether the kernel has no `openat2` (before Linux 5.6).
static HAS_NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// The flags for a folder within a path. They need no right to read the folder.
pub(super) const ON_THE_WAY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

pub(super) fn retry<T>(mut act: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match act() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Opens `path` below `root`, following no link.
pub(super) fn open_below(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    if !HAS_NO_OPENAT2.load(Ordering::Relaxed) {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = flags | OFlags::CLOEXEC;
        match retry(|| rustix::fs::openat2(root, path, flags, mode, resolve)) {
            Err(Errno::NOSYS) => HAS_NO_OPENAT2.store(true, Ordering::Relaxed),
            // The error is the file's, or that of a sandbox that forbids the call.
            Err(Errno::PERM) => {}
            other => return other,
        }
    }
    open_step_by_step(root, path, flags, mode)
}

/// As [`open_below`], one component of the path at a time.
pub(super) fn open_step_by_step(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let more = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let from = at.as_ref().map_or(root, OwnedFd::as_fd);
        let part = part.as_os_str();
        if parts.peek().is_none() {
            return retry(|| rustix::fs::openat(from, part, flags | more, mode));
        }
        at = Some(retry(|| {
            rustix::fs::openat(from, part, ON_THE_WAY | more, Mode::empty())
        })?);
    }
    Err(Errno::INVAL)
}

/// Opens a handle (`O_PATH`) of the file at an absolute path, without following any link in it.
pub(crate) fn find_unfollowed(path: &Path) -> io::Result<OwnedFd> {
    let flags = ON_THE_WAY | OFlags::CLOEXEC;
    let root = retry(|| rustix::fs::open("/", flags, Mode::empty()))?;
    let below = path.strip_prefix("/").map_err(|_| Errno::INVAL)?;
    let found = open_below(root.as_fd(), below, OFlags::PATH, Mode::empty())?;
    // Without `openat2`, the handle can be that of a link.
    match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP.into()),
        _ => Ok(found),
    }
}
