//! The newest lease of each volume that this unit was shown. Older ones are
//! refused from then on, after a restart too.
//!
//! ```text
//!  <unit>/fences       16 bytes each, appended: │ fence u64 │ epoch u32 │ CRC u32 │
//!                      fence 0 is no volume's: its epoch is the newest generation of
//!                      the database that was heard of
//!  <unit>/fences.new   the same, one for each volume, while it is written anew
//! ```
//!
//! Invariants:
//!
//! * What is refused was durably noted before: no restart lets an older lease
//!   in again. What is read at a start may come of a sync that failed, and be in memory
//!   alone: it is written anew before anything counts that was shown.
//! * When a newer lease has been shown, nothing that is done under an older one
//!   goes on or begins ([`Fences::enter`]).

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use auth::Fence;
use base::checksum::crc32c;
use base::codec::{Reader, Writer};
use parking_lot::{Condvar, Mutex, MutexGuard};
use unit_folder::FolderUnit;
use world::{Disk, File, OpenMode};

use crate::running::Running;

const NAME: &str = "fences";
const NEW: &str = "fences.new";

const RECORD_BYTES: usize = 16;

/// The file is written anew when it has so many records for each volume, and
/// some more.
const RECORDS_FACTOR: u64 = 4;
const RECORDS_MORE: u64 = 1024;

/// Longer is no file that was written here, in bytes.
const BYTES_MAX: u64 = 256 << 20;

/// The newest lease of each volume.
pub(crate) struct Fences {
    disk: Arc<dyn Disk>,
    /// Where the next record goes; none if the file is to be written anew. Held while
    /// one is written: locked before the state, which is never locked so long.
    file: Mutex<Option<(Arc<dyn File>, u64)>>,
    state: Mutex<State>,
    /// Rings when something that was done under a lease has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    newest: HashMap<Fence, u32>,
    /// Whether all that is known of them is on the disk.
    is_durable: bool,
    /// What is being done under each lease.
    running: Running<(Fence, u32)>,
}

/// Why a lease is not taken for the newest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FenceError {
    /// It is not.
    #[error("lease {shown} was shown after lease {newest} of the same volume")]
    Older {
        /// Which was shown.
        shown: u32,
        /// Which is the newest.
        newest: u32,
    },
    /// It cannot be noted.
    #[error("the newest lease cannot be noted")]
    Unnoted(#[source] io::Error),
}

/// While there is one, no newer lease counts.
pub(crate) struct Passage<'a> {
    fences: &'a Fences,
    lease: (Fence, u32),
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let mut state = self.fences.lock();
        if state.running.end(&self.lease) {
            self.fences.ended.notify_all();
        }
    }
}

fn record(fence: Fence, epoch: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_BYTES);
    bytes.put_u64(fence.0);
    bytes.put_u32(epoch);
    bytes.put_u32(crc32c(&bytes));
    bytes
}

/// The lease of a record; `None` if it is none.
fn lease_of(record: &[u8]) -> Option<(Fence, u32)> {
    let mut reader = Reader::new(record);
    let lease = (Fence(reader.u64().ok()?), reader.u32().ok()?);
    let is_whole = reader.u32().ok()? == crc32c(&record[..RECORD_BYTES - 4]);
    is_whole.then_some(lease)
}

impl Fences {
    /// Those that were noted in the unit's folder, which `disk` is.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn load(disk: Arc<dyn Disk>) -> io::Result<Self> {
        let fences = Self {
            disk,
            file: Mutex::default(),
            state: Mutex::default(),
            ended: Condvar::new(),
        };
        fences.read(&mut fences.file())?;
        Ok(fences)
    }

    /// Reads what was noted, and makes it durable: what a failed sync left in memory may
    /// not be.
    fn read(&self, file: &mut Option<(Arc<dyn File>, u64)>) -> io::Result<()> {
        let found = match self.disk.open(Path::new(NAME), OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let bytes = content_of(&*found)?;
        let is_whole = self.lock().take_in(&bytes);
        match write_again(&*self.disk, &bytes) {
            Ok(again) => {
                self.lock().is_durable = true;
                *file = is_whole.then_some((again, bytes.len() as u64));
            }
            // What is there is served.
            Err(error) if takes_no_more(&error) => {}
            Err(error) => tracing::warn!(%error, "the newest leases are not made durable"),
        }
        Ok(())
    }

    /// Reads it now, if it could not be read before: the unit's file system was not
    /// mounted yet, or takes no writes.
    fn read_unless_durable(&self, file: &mut Option<(Arc<dyn File>, u64)>) -> io::Result<()> {
        if self.lock().is_durable {
            return Ok(());
        }
        // Without its marker it is no unit that was never shown a lease, but away.
        self.disk
            .open(Path::new(FolderUnit::MARKER), OpenMode::Read)?;
        self.read(file)
    }

    fn file(&self) -> MutexGuard<'_, Option<(Arc<dyn File>, u64)>> {
        self.file.lock()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A lease of a volume was shown: no older one counts from now on. Waits
    /// until what is being done under older ones has ended.
    ///
    /// # Errors
    /// [`FenceError`].
    pub fn show(&self, fence: Fence, epoch: u32) -> Result<(), FenceError> {
        if !self.is_newest(fence, epoch)? {
            let mut file = self.file();
            self.read_unless_durable(&mut file)
                .map_err(FenceError::Unnoted)?;
            // Another one may just have been noted.
            if !self.is_newest(fence, epoch)? {
                match self.note(&mut file, fence, epoch) {
                    Ok(()) => {
                        let mut state = self.lock();
                        state.newest.insert(fence, epoch);
                        state.is_durable = true;
                    }
                    // Nothing is put there under it either; what is freed makes room.
                    Err(error) if takes_no_more(&error) && self.newest(fence) == Some(epoch) => {}
                    Err(error) => return Err(FenceError::Unnoted(error)),
                }
            }
        }
        let mut state = self.lock();
        while state.is_older_running(fence, epoch) {
            self.ended.wait(&mut state);
        }
        Ok(())
    }

    /// As [`Fences::show`], if there is nothing to note and nothing to wait for.
    pub fn show_now(&self, fence: Fence, epoch: u32) -> bool {
        let state = self.lock();
        state.is_noted(fence, epoch) && !state.is_older_running(fence, epoch)
    }

    /// Whether that lease is noted as the newest already.
    fn is_newest(&self, fence: Fence, epoch: u32) -> Result<bool, FenceError> {
        let state = self.lock();
        match state.newest.get(&fence) {
            Some(newest) if *newest > epoch => Err(FenceError::Older {
                shown: epoch,
                newest: *newest,
            }),
            _ => Ok(state.is_noted(fence, epoch)),
        }
    }

    /// Whether all that was noted is known, and durable.
    pub fn is_read(&self) -> bool {
        self.lock().is_durable
    }

    /// Reads what was noted, if it could not be read when the daemon began. What still
    /// cannot be read is tried again the next time; nothing is put there until then.
    pub fn read_if_late(&self) {
        if let Err(error) = self.read_unless_durable(&mut self.file()) {
            tracing::debug!(%error, "the newest leases are not known yet");
        }
    }

    /// The highest that was shown of `fence`.
    pub fn newest(&self, fence: Fence) -> Option<u32> {
        self.lock().newest.get(&fence).copied()
    }

    /// Begins what is done under a lease; `None` if a newer one was shown.
    pub fn enter(&self, fence: Fence, epoch: u32) -> Option<Passage<'_>> {
        let mut state = self.lock();
        if state.newest.get(&fence) != Some(&epoch) {
            return None;
        }
        let lease = (fence, epoch);
        state.running.begin(lease);
        Some(Passage {
            fences: self,
            lease,
        })
    }
}

impl Fences {
    /// Notes a lease durably.
    fn note(
        &self,
        file: &mut Option<(Arc<dyn File>, u64)>,
        fence: Fence,
        epoch: u32,
    ) -> io::Result<()> {
        let noted = match file.take() {
            Some((file, end)) if end / (RECORD_BYTES as u64) < self.records_max() => {
                append(&*file, end, &record(fence, epoch)).map(|end| (file, end))
            }
            // After a sync that failed, too: the old file cannot be counted on.
            _ => self.write_anew(fence, epoch),
        };
        *file = Some(noted?);
        Ok(())
    }

    fn records_max(&self) -> u64 {
        RECORDS_FACTOR * self.lock().newest.len() as u64 + RECORDS_MORE
    }

    fn write_anew(&self, fence: Fence, epoch: u32) -> io::Result<(Arc<dyn File>, u64)> {
        let disk = &*self.disk;
        match disk.remove(Path::new(NEW)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut bytes = Vec::new();
        for (known, newest) in &self.lock().newest {
            if *known != fence {
                bytes.extend(record(*known, *newest));
            }
        }
        bytes.extend(record(fence, epoch));
        let file = disk.open(Path::new(NEW), OpenMode::CreateNew)?;
        let end = append(&*file, 0, &bytes)?;
        disk.rename(Path::new(NEW), Path::new(NAME))?;
        disk.sync_directory(Path::new(""))?;
        Ok((file, end))
    }
}

impl State {
    /// Takes in what was noted; whether more can be appended to it.
    fn take_in(&mut self, bytes: &[u8]) -> bool {
        let mut damaged = 0;
        for record in bytes.chunks(RECORD_BYTES) {
            match lease_of(record) {
                Some((fence, epoch)) => {
                    let newest = self.newest.entry(fence).or_default();
                    *newest = epoch.max(*newest);
                }
                None => damaged += 1,
            }
        }
        if damaged > 0 {
            // The last one is cut by a crash; it was not counted on.
            tracing::warn!(damaged, "records of newest leases cannot be read");
        }
        damaged == 0
    }

    /// Whether that lease is the newest, durably.
    fn is_noted(&self, fence: Fence, epoch: u32) -> bool {
        self.is_durable && self.newest.get(&fence) == Some(&epoch)
    }

    /// Whether anything is being done under a lease that is older than this.
    fn is_older_running(&self, fence: Fence, epoch: u32) -> bool {
        self.running
            .any(|lease| lease.0 == fence && lease.1 < epoch)
    }
}

/// What was noted. Waits for the disk: the state is not locked meanwhile.
fn content_of(file: &dyn File) -> io::Result<Vec<u8>> {
    let length = file.length()?;
    if length > BYTES_MAX {
        let reason = format!("{NAME} has {length} bytes: no volumes are so many");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    let mut bytes = vec![0; length as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Makes what was read durable, with its name: it has the same length.
fn write_again(disk: &dyn Disk, bytes: &[u8]) -> io::Result<Arc<dyn File>> {
    let file = disk.open(Path::new(NAME), OpenMode::Write)?;
    append(&*file, 0, bytes)?;
    disk.sync_directory(Path::new(""))?;
    Ok(file)
}

/// Whether a file system is read-only, or full.
fn takes_no_more(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
    )
}

fn append(file: &dyn File, end: u64, bytes: &[u8]) -> io::Result<u64> {
    file.write_at(bytes, end)?;
    file.sync_data()?;
    Ok(end + bytes.len() as u64)
}

#[cfg(test)]
mod tests;
