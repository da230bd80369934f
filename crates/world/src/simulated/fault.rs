//! What can be wrong with a part of a simulated disk.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What an operation does, as far as faults tell operations apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Opening, reading, listing, measuring.
    Look,
    /// Writing, sizing, reserving, making a name: may need room.
    Add,
    /// Punching, removing, renaming: needs none.
    TakeAway,
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
    /// Of each file these bytes cannot be read (EIO): bad sectors.
    BadSectors {
        /// Where they begin, in bytes.
        offset: u64,
        /// How many they are, in bytes.
        length: u64,
    },
    /// Syncs fail with EIO, once each: what they should have made durable is
    /// in part lost for good, and a next sync knows nothing of it.
    SyncFails,
    /// What needs room fails with ENOSPC.
    Full,
    /// What changes anything fails with EROFS.
    ReadOnly,
    /// No name that is there can be removed or changed: EPERM, as in a folder
    /// that may only grow (`chattr +a`).
    Unremovable,
    /// Nothing is there: the folder was moved away, or its file system is not
    /// mounted. Paths are not found, and open files answer ESTALE.
    Missing,
    /// A file is made although there is one of that name: the old one is opened,
    /// as where O_EXCL is not heeded.
    NotExclusive,
    /// No file takes the name of another: EEXIST.
    NoReplacing,
    /// A hole is zeroes that take the same room.
    NoHoles,
    /// Every operation takes so long (see
    /// [`super::SimulatedDisk::take_waited`]).
    Slow(Duration),
    /// What an open file is asked is not answered until this is healed: the
    /// thread waits, so it is for those that a test has beside its own.
    Hangs,
}

/// Where threads wait whose file hangs.
#[derive(Debug, Default)]
pub(super) struct Gate {
    hanging: Mutex<usize>,
    one_hangs: Condvar,
    healed: Condvar,
}

impl Gate {
    fn hanging(&self) -> MutexGuard<'_, usize> {
        self.hanging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as `hangs`.
    pub(super) fn pass(&self, hangs: impl Fn() -> bool) {
        let mut hanging = self.hanging();
        while hangs() {
            *hanging += 1;
            self.one_hangs.notify_all();
            let woken = self.healed.wait(hanging);
            hanging = woken.unwrap_or_else(PoisonError::into_inner);
            *hanging -= 1;
        }
    }

    /// Faults were taken away.
    pub(super) fn open(&self) {
        let _hanging = self.hanging();
        self.healed.notify_all();
    }

    /// Waits until a thread waits.
    pub(super) fn wait_until_one_hangs(&self) {
        let none = |hanging: &mut usize| *hanging == 0;
        drop(self.one_hangs.wait_while(self.hanging(), none));
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

    /// What stops the name `path`, which is there, from going.
    pub(super) fn check_removal(&self, path: &Path) -> io::Result<()> {
        let stays = |(prefix, fault): &(PathBuf, Fault)| {
            *fault == Fault::Unremovable && path.starts_with(prefix)
        };
        if self.list.iter().any(stays) {
            return Err(errno(libc::EPERM));
        }
        Ok(())
    }

    /// What stops these bytes of the file at `path` from being read.
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

    /// Whether one of these is in force at `path`.
    pub(super) fn has(&self, path: &Path, fault: Fault) -> bool {
        let is_it =
            |(prefix, found): &(PathBuf, Fault)| *found == fault && path.starts_with(prefix);
        self.list.iter().any(is_it)
    }

    /// What stops `verb` at `path`; `is_open` if it is done to an open file.
    pub(super) fn check(&mut self, path: &Path, verb: Verb, is_open: bool) -> io::Result<()> {
        for (prefix, fault) in &self.list {
            if !path.starts_with(prefix) {
                continue;
            }
            match (fault, verb) {
                (Fault::Slow(time), _) => self.waited += *time,
                (Fault::Missing, _) if is_open => return Err(errno(libc::ESTALE)),
                (Fault::Missing, _) => return Err(errno(libc::ENOENT)),
                (Fault::Broken, _)
                | (Fault::Unreadable, Verb::Look)
                | (Fault::SyncFails, Verb::Sync) => return Err(errno(libc::EIO)),
                (Fault::Full, Verb::Add) => return Err(errno(libc::ENOSPC)),
                (Fault::ReadOnly, Verb::Add | Verb::TakeAway) => return Err(errno(libc::EROFS)),
                _ => {}
            }
        }
        Ok(())
    }
}
