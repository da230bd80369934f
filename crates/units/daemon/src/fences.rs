//! Fences: the newest lease of each volume that was presented to this unit. Older leases are
//! refused from then on, after a restart too.
//!
//! ```text
//!  <unit>/fences       16 bytes each, appended: │ fence u64 │ epoch u32 │ CRC u32 │
//!                      fence 0 belongs to no volume: its epoch is the newest known
//!                      generation of the database
//!  <unit>/fences.new   the same, one for each volume, while the file is rewritten
//! ```
//!
//! Invariants:
//!
//! * A lease is recorded durably before older ones are refused, so no restart admits an older
//!   one again. The records that are read at a start may be in the page cache only, if a sync
//!   failed: they are rewritten before any lease that was presented counts.
//! * Once a newer lease was presented, no request under an older one runs or begins
//!   ([`Fences::enter`]).

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

/// The file is rewritten when it has more than this many records for each volume, and
/// [`RECORDS_MORE`] besides.
const RECORDS_FACTOR: u64 = 4;
const RECORDS_MORE: u64 = 1024;

/// Maximum length of the file that is read, in bytes.
const BYTES_MAX: u64 = 256 << 20;

/// The file and the offset of its next record.
struct OpenFile {
    file: Arc<dyn File>,
    end: u64,
}

/// The newest lease of each volume.
pub(crate) struct Fences {
    disk: Arc<dyn Disk>,
    /// The open file; `None` if it must be rewritten. Locked while a record is written, and
    /// before the state, which is never locked during I/O.
    file: Mutex<Option<OpenFile>>,
    state: Mutex<State>,
    /// Notified when the last request under a lease has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    newest: HashMap<Fence, u32>,
    /// Whether `newest` is durable.
    is_durable: bool,
    /// Requests under way by lease.
    running: Running<(Fence, u32)>,
}

/// Why a lease does not become the newest one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FenceError {
    /// A newer lease was presented before.
    #[error("lease {presented} was presented after lease {newest} of the same volume")]
    Older {
        /// Epoch of the lease.
        presented: u32,
        /// Epoch of the newest lease.
        newest: u32,
    },
    /// The lease cannot be recorded.
    #[error("the newest lease cannot be recorded")]
    NotRecorded(#[source] io::Error),
}

/// A request under way under a lease; ends when it is dropped. A newer lease waits for it.
pub(crate) struct LeasePassage<'a> {
    fences: &'a Fences,
    lease: (Fence, u32),
}

impl Drop for LeasePassage<'_> {
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

/// The lease of a record; `None` if it is damaged.
fn lease_of(record: &[u8]) -> Option<(Fence, u32)> {
    let mut reader = Reader::new(record);
    let lease = (Fence(reader.u64().ok()?), reader.u32().ok()?);
    let is_whole = reader.u32().ok()? == crc32c(&record[..RECORD_BYTES - 4]);
    is_whole.then_some(lease)
}

impl Fences {
    /// Loads the fences from the unit's folder, whose content is `disk`.
    ///
    /// # Errors
    /// An error of the operating system.
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

    /// Reads the file and makes it durable: after a failed sync it may be in the page cache only.
    fn read(&self, file: &mut Option<OpenFile>) -> io::Result<()> {
        let found = match self.disk.open(Path::new(NAME), OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let bytes = content_of(&*found)?;
        let is_whole = self.lock().add_records(&bytes);
        match write_again(&*self.disk, &bytes) {
            Ok(again) => {
                self.lock().is_durable = true;
                *file = is_whole.then_some(OpenFile {
                    file: again,
                    end: bytes.len() as u64,
                });
            }
            // The unit is served read-only.
            Err(error) if is_unwritable(&error) => {}
            Err(error) => tracing::warn!(%error, "daemon failed to sync the fences"),
        }
        Ok(())
    }

    /// Reads the file if it could not be read before: the unit's file system was not mounted
    /// yet, or accepted no writes.
    fn read_unless_durable(&self, file: &mut Option<OpenFile>) -> io::Result<()> {
        if self.lock().is_durable {
            return Ok(());
        }
        // Without a marker the unit is unavailable, and not a new one without leases.
        self.disk
            .open(Path::new(FolderUnit::MARKER), OpenMode::Read)?;
        self.read(file)
    }

    fn file(&self) -> MutexGuard<'_, Option<OpenFile>> {
        self.file.lock()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Makes a lease the newest one of its volume. Waits until the requests under older ones
    /// have ended.
    ///
    /// # Errors
    /// [`FenceError`].
    pub fn present(&self, fence: Fence, epoch: u32) -> Result<(), FenceError> {
        if !self.is_newest(fence, epoch)? {
            let mut file = self.file();
            self.read_unless_durable(&mut file)
                .map_err(FenceError::NotRecorded)?;
            // Another thread may just have recorded it.
            if !self.is_newest(fence, epoch)? {
                match self.record(&mut file, fence, epoch) {
                    Ok(()) => {
                        let mut state = self.lock();
                        state.newest.insert(fence, epoch);
                        state.is_durable = true;
                    }
                    // No puts succeed on a full unit, but freeing makes room.
                    Err(error) if is_unwritable(&error) && self.newest(fence) == Some(epoch) => {}
                    Err(error) => return Err(FenceError::NotRecorded(error)),
                }
            }
        }
        let mut state = self.lock();
        while state.is_older_running(fence, epoch) {
            self.ended.wait(&mut state);
        }
        Ok(())
    }

    /// As [`Fences::present`], if there is nothing to record and nothing to wait for. Returns
    /// whether that was so.
    pub fn try_present(&self, fence: Fence, epoch: u32) -> bool {
        let state = self.lock();
        state.is_recorded(fence, epoch) && !state.is_older_running(fence, epoch)
    }

    /// Whether the lease is recorded as the newest already.
    fn is_newest(&self, fence: Fence, epoch: u32) -> Result<bool, FenceError> {
        let state = self.lock();
        match state.newest.get(&fence) {
            Some(newest) if *newest > epoch => Err(FenceError::Older {
                presented: epoch,
                newest: *newest,
            }),
            _ => Ok(state.is_recorded(fence, epoch)),
        }
    }

    /// Whether the file was read and is durable.
    pub fn is_loaded(&self) -> bool {
        self.lock().is_durable
    }

    /// Reads the file if it could not be read when the daemon started. If that fails again,
    /// nothing can be put until a later call succeeds.
    pub fn load_if_unread(&self) {
        if let Err(error) = self.read_unless_durable(&mut self.file()) {
            tracing::debug!(%error, "daemon failed to read the fences");
        }
    }

    /// The highest epoch that was presented for `fence`.
    pub fn newest(&self, fence: Fence) -> Option<u32> {
        self.lock().newest.get(&fence).copied()
    }

    /// Begins a request under a lease; `None` if a newer one was presented.
    pub fn enter(&self, fence: Fence, epoch: u32) -> Option<LeasePassage<'_>> {
        let mut state = self.lock();
        if state.newest.get(&fence) != Some(&epoch) {
            return None;
        }
        let lease = (fence, epoch);
        state.running.begin(lease);
        Some(LeasePassage {
            fences: self,
            lease,
        })
    }
}

impl Fences {
    /// Records a lease durably.
    fn record(&self, file: &mut Option<OpenFile>, fence: Fence, epoch: u32) -> io::Result<()> {
        let recorded = match file.take() {
            Some(OpenFile { file, end }) if end / (RECORD_BYTES as u64) < self.records_max() => {
                append(&*file, end, &record(fence, epoch)).map(|end| OpenFile { file, end })
            }
            // Also after a sync that failed: the state of the old file is unknown.
            _ => self.rewrite(fence, epoch),
        };
        *file = Some(recorded?);
        Ok(())
    }

    fn records_max(&self) -> u64 {
        RECORDS_FACTOR * self.lock().newest.len() as u64 + RECORDS_MORE
    }

    fn rewrite(&self, fence: Fence, epoch: u32) -> io::Result<OpenFile> {
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
        Ok(OpenFile { file, end })
    }
}

impl State {
    /// Adds the records of the file. Returns whether more can be appended to it.
    fn add_records(&mut self, bytes: &[u8]) -> bool {
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
            // A crash may tear the last one, which no lease relied on yet.
            tracing::warn!(damaged, "daemon ignored damaged records of fences");
        }
        damaged == 0
    }

    /// Whether the lease is the newest, durably.
    fn is_recorded(&self, fence: Fence, epoch: u32) -> bool {
        self.is_durable && self.newest.get(&fence) == Some(&epoch)
    }

    /// Whether a request runs under a lease older than this.
    fn is_older_running(&self, fence: Fence, epoch: u32) -> bool {
        self.running
            .any(|lease| lease.0 == fence && lease.1 < epoch)
    }
}

/// Reads the file. The state is not locked meanwhile.
fn content_of(file: &dyn File) -> io::Result<Vec<u8>> {
    let length = file.length()?;
    if length > BYTES_MAX {
        let reason = format!("{NAME} has {length} bytes, more than a daemon writes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    let mut bytes = vec![0; length as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes the same bytes again and makes them and the file's name durable.
fn write_again(disk: &dyn Disk, bytes: &[u8]) -> io::Result<Arc<dyn File>> {
    let file = disk.open(Path::new(NAME), OpenMode::Write)?;
    append(&*file, 0, bytes)?;
    disk.sync_directory(Path::new(""))?;
    Ok(file)
}

/// Whether a file system is read-only or full.
fn is_unwritable(error: &io::Error) -> bool {
    let is_read_only = matches!(
        error.kind(),
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
    );
    is_read_only || world::is_out_of_space(error)
}

fn append(file: &dyn File, end: u64, bytes: &[u8]) -> io::Result<u64> {
    file.write_at(bytes, end)?;
    file.sync_data()?;
    Ok(end + bytes.len() as u64)
}

#[cfg(test)]
mod tests;
