//! Where a [`Map`] is kept: a file of two slots, read and written by threads that may wait.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use world::{Disk, OpenMode, Pool, Wake};

use super::map::{Map, SLOT_BYTES_MAX};
use crate::{FilterContext, StateFolder};

/// Slots begin at a multiple of this: neither spoils the other.
const ALIGN: u64 = 64 << 10;

/// What a job has come to.
pub(super) enum Stored {
    /// What the file has; none, if there is nothing of use.
    Loaded(io::Result<Option<Map>>),
    /// Up to this sequence.
    Written(io::Result<u64>),
}

/// See the module's head.
pub(super) struct Store {
    disk: Arc<dyn Disk>,
    pool: Arc<dyn Pool>,
    wake: Wake,
    path: PathBuf,
    tell: Sender<Stored>,
    told: Receiver<Stored>,
    is_writing: bool,
}

impl Store {
    pub fn new(context: &FilterContext, state: &StateFolder, path: &Path) -> Self {
        let (tell, told) = mpsc::channel();
        Self {
            disk: Arc::clone(&state.disk),
            pool: Arc::clone(&context.host.pool),
            wake: context.attachment.wake.clone(),
            path: path.to_owned(),
            tell,
            told,
            is_writing: false,
        }
    }

    fn run(&self, job: impl FnOnce(&dyn Disk, &Path) -> Stored + Send + 'static) {
        let (disk, path) = (Arc::clone(&self.disk), self.path.clone());
        let (tell, wake) = (self.tell.clone(), self.wake.clone());
        self.pool.run(Box::new(move || {
            // Whoever has stopped waiting needs no answer.
            let _ = tell.send(job(&*disk, &path));
            wake.wake();
        }));
    }

    /// Begins to read what there is of a map.
    pub fn load(&self) {
        self.run(|disk, path| Stored::Loaded(load(disk, path)));
    }

    /// Begins to write a map, unless one is being written: then later.
    pub fn write(&mut self, map: &Map) {
        if self.is_writing {
            return;
        }
        self.is_writing = true;
        let (bytes, sequence) = (map.encode(), map.sequence);
        self.run(move |disk, path| Stored::Written(write(disk, path, &bytes, sequence)));
    }

    /// What has ended since this was asked last.
    pub fn next(&mut self) -> Option<Stored> {
        let next = self.told.try_recv().ok()?;
        if matches!(next, Stored::Written(_)) {
            self.is_writing = false;
        }
        Some(next)
    }
}

/// How the name of a filter's file ends in its folder.
pub const REPLICAS_SUFFIX: &str = ".replicas";

/// The file of the filter `name`.
pub(super) fn path_in(state: &StateFolder, name: &str) -> PathBuf {
    state.path.join(format!("{name}{REPLICAS_SUFFIX}"))
}

fn slot(sequence: u64) -> u64 {
    (sequence % 2) * (SLOT_BYTES_MAX as u64).next_multiple_of(ALIGN)
}

pub(super) fn load(disk: &dyn Disk, path: &Path) -> io::Result<Option<Map>> {
    let file = match disk.open(path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let length = file.length()?;
    let mut newest: Option<Map> = None;
    for number in 0..2 {
        let at = slot(number);
        let there = length.saturating_sub(at).min(SLOT_BYTES_MAX as u64);
        let mut bytes = vec![0; there as usize];
        file.read_at(&mut bytes, at)?;
        let found = Map::decode(&bytes);
        let is_newer = |found: &Map| {
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
