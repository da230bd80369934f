//! [`Store`]: the file of a [`RegionMap`]. It has two slots, and is read and written by jobs on the
//! pool.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use world::{Disk, OpenMode, Pool, Wake};

use super::region_map::RegionMap;
use super::slot::SLOT_BYTES_MAX;
use crate::{FilterContext, StateFolder};

/// The alignment of slots in the file, in bytes, so that a torn write of one spares the other.
const SLOT_ALIGNMENT: u64 = 64 << 10;

/// The result of a job.
pub(super) enum StoreResult {
    /// The newest valid slot; `None` if there is none.
    Loaded(io::Result<Option<RegionMap>>),
    /// The sequence of the map that is in the file.
    Written(io::Result<u64>),
}

/// The file of a map.
pub(super) struct Store {
    disk: Arc<dyn Disk>,
    pool: Arc<dyn Pool>,
    wake: Wake,
    path: PathBuf,
    sender: Sender<StoreResult>,
    receiver: Receiver<StoreResult>,
    is_writing: bool,
}

impl Store {
    pub fn new(context: &FilterContext, state: &StateFolder, path: &Path) -> Self {
        let (sender, receiver) = mpsc::channel();
        Self {
            disk: Arc::clone(&state.disk),
            pool: Arc::clone(&context.host.pool),
            wake: context.attachment.wake.clone(),
            path: path.to_owned(),
            sender,
            receiver,
            is_writing: false,
        }
    }

    fn run(&self, job: impl FnOnce(&dyn Disk, &Path) -> StoreResult + Send + 'static) {
        let (disk, path) = (Arc::clone(&self.disk), self.path.clone());
        let (sender, wake) = (self.sender.clone(), self.wake.clone());
        self.pool.run(Box::new(move || {
            // A filter that was dropped needs no result.
            let _ = sender.send(job(&*disk, &path));
            wake.wake();
        }));
    }

    /// Starts to read the map.
    pub fn load(&self) {
        self.run(|disk, path| StoreResult::Loaded(load(disk, path)));
    }

    /// Starts to write a map, unless one is being written.
    pub fn write(&mut self, map: &RegionMap) {
        if self.is_writing {
            return;
        }
        self.is_writing = true;
        let (bytes, sequence) = (map.encode(), map.sequence);
        self.run(move |disk, path| StoreResult::Written(write(disk, path, &bytes, sequence)));
    }

    /// The result of a job that has ended since the last call.
    pub fn next(&mut self) -> Option<StoreResult> {
        let next = self.receiver.try_recv().ok()?;
        if matches!(next, StoreResult::Written(_)) {
            self.is_writing = false;
        }
        Some(next)
    }
}

/// The suffix of the file's name.
pub const REPLICAS_SUFFIX: &str = ".replicas";

/// The path of the file of the filter `name`.
pub(super) fn path_in(state: &StateFolder, name: &str) -> PathBuf {
    state.path.join(format!("{name}{REPLICAS_SUFFIX}"))
}

/// The offset of the slot for a map, in bytes.
fn slot(sequence: u64) -> u64 {
    (sequence % 2) * (SLOT_BYTES_MAX as u64).next_multiple_of(SLOT_ALIGNMENT)
}

/// Reads the newest valid map.
pub(super) fn load(disk: &dyn Disk, path: &Path) -> io::Result<Option<RegionMap>> {
    let file = match disk.open(path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let length = file.length()?;
    let mut newest: Option<RegionMap> = None;
    for number in 0..2 {
        let at = slot(number);
        let there = length.saturating_sub(at).min(SLOT_BYTES_MAX as u64);
        let mut bytes = vec![0; there as usize];
        file.read_at(&mut bytes, at)?;
        let found = RegionMap::decode(&bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let is_newer = |found: &RegionMap| {
            let mut known = newest.iter();
            known.all(|known| known.sequence < found.sequence)
        };
        if found.as_ref().is_some_and(is_newer) {
            newest = found;
        }
    }
    Ok(newest)
}

fn write(disk: &dyn Disk, path: &Path, bytes: &[u8], sequence: u64) -> io::Result<u64> {
    let file = match disk.open(path, OpenMode::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let file = disk.open(path, OpenMode::CreateNew)?;
            if let Some(folder) = path.parent() {
                disk.sync_directory(folder)?;
            }
            file
        }
        file => file?,
    };
    file.write_at(bytes, slot(sequence))?;
    file.sync_data()?;
    Ok(sequence)
}
