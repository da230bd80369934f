//! [`Fault`]: the faults of a part of a simulated disk.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The classes of operations that faults distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Opening, reading, listing, measuring.
    Read,
    /// Writing, setting a length, reserving, creating a name: operations that may need space.
    Grow,
    /// Punching, removing, renaming: operations that need no space.
    Shrink,
    /// Making durable.
    Sync,
}

/// A fault of everything whose path begins with a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Every operation fails with EIO.
    Broken,
    /// Reading fails with EIO; writing works.
    Unreadable,
    /// These bytes of each file cannot be read (EIO), as with bad sectors.
    BadSectors {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Every sync fails with EIO. Part of what it should have made durable is lost for good, and
    /// the next sync does not report that.
    SyncFails,
    /// Operations that need space fail with ENOSPC.
    Full,
    /// Operations that change anything fail with EROFS.
    ReadOnly,
    /// Existing names cannot be removed or changed (EPERM), as in an append-only folder
    /// (`chattr +a`).
    Unremovable,
    /// The folder was moved away, or its file system is not mounted. Paths are not found, and
    /// open files answer ESTALE.
    Missing,
    /// Creating a file whose name is taken opens the existing file, as where `O_EXCL` is ignored.
    NotExclusive,
    /// A rename to a name that is taken fails with EEXIST.
    NoReplacing,
    /// Punching a hole writes zeroes, which take the same space.
    NoHoles,
    /// Every operation takes this long (see [`super::SimulatedDisk::take_waited`]).
    Slow(Duration),
    /// Operations on open files block until this fault is healed. They block the calling thread,
    /// so tests call them on a second thread.
    Hangs,
}

/// The threads that wait for a file that hangs.
#[derive(Debug, Default)]
pub(super) struct Gate {
    hanging: Mutex<usize>,
    one_hangs: Condvar,
    healed: Condvar,
}

impl Gate {
    fn hanging(&self) -> MutexGuard<'_, usize> {
        self.hanging.lock()
    }

    /// Waits as long as `hangs` returns true.
    pub(super) fn pass(&self, hangs: impl Fn() -> bool) {
        let mut hanging = self.hanging();
        while hangs() {
            *hanging += 1;
            self.one_hangs.notify_all();
            self.healed.wait(&mut hanging);
            *hanging -= 1;
        }
    }

    /// Wakes the threads after a fault was removed.
    pub(super) fn open(&self) {
        let _hanging = self.hanging();
        self.healed.notify_all();
    }

    /// Waits until a thread hangs.
    pub(super) fn wait_until_one_hangs(&self) {
        let none = |hanging: &mut usize| *hanging == 0;
        self.one_hangs.wait_while(&mut self.hanging(), none);
    }
}

/// The faults in force.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    list: Vec<(PathBuf, Fault)>,
    waited: Duration,
    gate: Arc<Gate>,
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Faults {
    pub(super) fn add(&mut self, prefix: &Path, fault: Fault) {
        self.list.push((prefix.to_owned(), fault));
    }

    pub(super) fn remove(&mut self, prefix: &Path) {
        self.list.retain(|(at, _)| at != prefix);
    }

    pub(super) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    pub(super) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// The error that stops the removal of the existing name `path`.
    pub(super) fn check_removal(&self, path: &Path) -> io::Result<()> {
        let stays = |(prefix, fault): &(PathBuf, Fault)| {
            *fault == Fault::Unremovable && path.starts_with(prefix)
        };
        if self.list.iter().any(stays) {
            return Err(errno(libc::EPERM));
        }
        Ok(())
    }

    /// The error that stops these bytes of the file at `path` from being read.
    pub(super) fn check_sectors(&self, path: &Path, bytes: Range<u64>) -> io::Result<()> {
        let is_bad = |(prefix, fault): &(PathBuf, Fault)| match *fault {
            Fault::BadSectors { offset, length } => {
                path.starts_with(prefix) && bytes.start < offset + length && offset < bytes.end
            }
            _ => false,
        };
        match self.list.iter().any(is_bad) {
            true => Err(errno(libc::EIO)),
            false => Ok(()),
        }
    }

    /// Whether `fault` is in force at `path`.
    pub(super) fn has(&self, path: &Path, fault: Fault) -> bool {
        let is_it =
            |(prefix, found): &(PathBuf, Fault)| *found == fault && path.starts_with(prefix);
        self.list.iter().any(is_it)
    }

    /// The error of `operation` at `path`; `is_open` says that it is one on an open file.
    pub(super) fn check(
        &mut self,
        path: &Path,
        operation: Operation,
        is_open: bool,
    ) -> io::Result<()> {
        for (prefix, fault) in &self.list {
            if !path.starts_with(prefix) {
                continue;
            }
            match (fault, operation) {
                (Fault::Slow(time), _) => self.waited += *time,
                (Fault::Missing, _) if is_open => return Err(errno(libc::ESTALE)),
                (Fault::Missing, _) => return Err(errno(libc::ENOENT)),
                (Fault::Broken, _)
                | (Fault::Unreadable, Operation::Read)
                | (Fault::SyncFails, Operation::Sync) => return Err(errno(libc::EIO)),
                (Fault::Full, Operation::Grow) => return Err(errno(libc::ENOSPC)),
                (Fault::ReadOnly, Operation::Grow | Operation::Shrink) => {
                    return Err(errno(libc::EROFS));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
