//! [`Cache`]: sealed blocks in one file on the host's SSD (docs/cache.md).
//!
//! ```text
//!  get    index ─▶ slot ─▶ content ─▶ is it what its entry says? ─▶ the caller opens it
//!  offer  area's policy ─▶ those that go free their slots ─▶ entry ─▶ a job writes the content
//! ```
//!
//! Invariants:
//!
//! * What is given is what was offered under that name, bit for bit, or nothing.
//! * Nobody waits for a write, and no more than a bounded number are under way; what comes
//!   beyond that is not kept.
//! * A slot that is being written is given to nobody else before that has ended.
//! * A file that fails is left alone for a while, in which there is no cache.

mod areas;
mod entry;
mod head;
mod slots;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use world::{Clock, Disk, File, OpenMode, Pool, World};

pub use areas::{Area, Division};
use entry::Entry;
pub use entry::{AreaKind, Id};
pub use head::SLOT_BYTES;
use head::{DIRECTORY_AT, Head, PAGE_ENTRIES};
use slots::Slots;

/// So many blocks are being written at most.
const WRITES_MAX: usize = 256;

/// A page of the directory is written so long after something in it has changed.
const WRITE_BEHIND: Duration = Duration::from_secs(1);

/// So many pages of the directory are read or written at once.
const PAGES_AT_ONCE: usize = 256;

/// A file that has failed is tried again after so long.
const FAILS_FOR: Duration = Duration::from_secs(10);

/// What a cache is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// Its file; the folder is there.
    pub path: PathBuf,
    /// How long that is at most, in bytes; [`CacheConfig::BYTES_MIN`] at least.
    pub bytes: u64,
    /// How it is divided.
    pub division: Division,
    /// Whose blocks it has.
    pub cluster: [u8; 16],
}

impl CacheConfig {
    /// No cache is smaller, in bytes.
    pub const BYTES_MIN: u64 = 1 << 20;
}

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It would be too small to be of use.
    #[error("a cache has 1 MiB at least")]
    TooSmall,
    /// Its areas are not all of it.
    #[error("the areas of a cache have 1 % at least each, and 100 % together")]
    Division,
    /// The file cannot be made or used.
    #[error("the cache {path} cannot be {what}: {error}")]
    File {
        /// Which.
        path: String,
        /// What was tried.
        what: &'static str,
        /// As the operating system says.
        #[source]
        error: io::Error,
    },
}

/// What came of one area so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AreaStatistics {
    /// Blocks that were asked for and given.
    pub hits: u64,
    /// And those that were not there.
    pub misses: u64,
    /// Those that came.
    pub brought: u64,
    /// Those that went to make room.
    pub evicted: u64,
    /// How many there are.
    pub blocks: usize,
    /// And may be.
    pub capacity: usize,
}

/// What came of a cache so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// By [`AreaKind`].
    pub areas: [AreaStatistics; 3],
    /// Map pages that are protected.
    pub protected: usize,
    /// What was not what it should be: it counts as missed.
    pub damaged: u64,
    /// What was offered while too much was being written.
    pub refused: u64,
    /// How often the file has failed.
    pub failures: u64,
}

/// See the module's head.
pub struct Cache {
    path: PathBuf,
    file: Arc<dyn File>,
    head: Head,
    clock: Arc<dyn Clock>,
    pool: Arc<dyn Pool>,
    state: Mutex<State>,
}

struct State {
    slots: Slots,
    statistics: Statistics,
    writes: usize,
    /// The file is left alone until then.
    fails_until: Option<Duration>,
    /// Since when the directory in the file is not what it is here.
    dirty_since: Option<Duration>,
}

impl Cache {
    /// Opens the cache, with what it had if it is the same cluster's and as large; or makes
    /// it anew. Whether it is new. Waits.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn open(world: &World, config: &CacheConfig) -> Result<(Arc<Self>, bool), CacheError> {
        if !config.division.is_whole() {
            return Err(CacheError::Division);
        }
        let head = Head::of_size(config.cluster, config.bytes)
            .filter(|_| config.bytes >= CacheConfig::BYTES_MIN)
            .ok_or(CacheError::TooSmall)?;
        let failed = |what| {
            let path = config.path.display().to_string();
            move |error| CacheError::File { path, what, error }
        };
        let mut slots = Slots::new(head.slots, &config.division);
        let there = find(&*world.disk, &config.path, &head).map_err(failed("read"))?;
        let is_new = there.is_none();
        let file = match there {
            Some(file) => {
                read_directory(&*file, &head, &mut slots).map_err(failed("read"))?;
                file
            }
            None => make(&*world.disk, &config.path, &head).map_err(failed("made"))?,
        };
        let cache = Self {
            path: config.path.clone(),
            file,
            head,
            clock: Arc::clone(&world.clock),
            pool: Arc::clone(&world.pool),
            state: Mutex::new(State {
                slots,
                statistics: Statistics::default(),
                writes: 0,
                fails_until: None,
                dirty_since: None,
            }),
        };
        Ok((Arc::new(cache), is_new))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block's sealed content, into `sealed` of [`SLOT_BYTES`], and its tag; or nothing. It
    /// may be what somebody has put there: whoever asks opens it. Waits for the file.
    pub fn get(&self, area: Area, id: Id, sealed: &mut [u8]) -> Option<[u8; 16]> {
        debug_assert_eq!(sealed.len(), SLOT_BYTES);
        let found = {
            let mut state = self.state();
            let found = match self.is_left_alone(&mut state) {
                true => None,
                false => state.slots.get(area, id),
            };
            if found.is_none() {
                state.statistics.areas[area.kind() as usize].misses += 1;
            }
            found
        };
        let (slot, entry) = found?;
        let read = self.file.read_at(sealed, self.head.slot_at(slot));
        let mut state = self.state();
        let is_right = read.is_ok() && entry.is_of(sealed);
        let statistics = &mut state.statistics;
        match is_right {
            true => statistics.areas[area.kind() as usize].hits += 1,
            false => statistics.areas[area.kind() as usize].misses += 1,
        }
        match read {
            Err(error) => self.fails(&mut state, &error),
            // Unless it has gone meanwhile, and another one has its slot.
            Ok(()) if !is_right && state.slots.drop_if(slot, &entry) => {
                state.statistics.damaged += 1;
                self.is_dirty(&mut state);
            }
            Ok(()) => {}
        }
        is_right.then_some(entry.tag)
    }

    /// Whether a block is there, as far as is known: that is not asking for it. Does not wait.
    #[must_use]
    pub fn has(&self, id: Id) -> bool {
        self.state().slots.has(id)
    }

    /// Keeps a block, if its area's policy says so and there is time for it.
    pub fn offer(self: &Arc<Self>, area: Area, id: Id, tag: [u8; 16], sealed: &[u8]) {
        if sealed.len() != SLOT_BYTES {
            return;
        }
        let entry = Entry::of(id, tag, area.kind(), sealed);
        let slot = {
            let mut state = self.state();
            if self.is_left_alone(&mut state) || state.slots.has(id) {
                return;
            }
            if state.writes >= WRITES_MAX {
                state.statistics.refused += 1;
                return;
            }
            let (slot, gone) = state.slots.insert(area, entry);
            for kind in gone {
                state.statistics.areas[kind as usize].evicted += 1;
            }
            self.is_dirty(&mut state);
            let Some(slot) = slot else {
                state.statistics.refused += 1;
                return;
            };
            state.statistics.areas[area.kind() as usize].brought += 1;
            state.writes += 1;
            slot
        };
        let (cache, sealed) = (Arc::clone(self), sealed.to_vec());
        self.pool.run(Box::new(move || {
            let written = cache.file.write_at(&sealed, cache.head.slot_at(slot));
            let mut state = cache.state();
            state.writes -= 1;
            state.slots.is_written(slot, written.is_ok());
            cache.is_dirty(&mut state);
            if let Err(error) = written {
                cache.fails(&mut state, &error);
            }
            drop(state);
            cache.write_behind();
        }));
    }

    /// Says of a map page whether it is of a newest version of an attached volume.
    pub fn protect(&self, id: Id, is_protected: bool) {
        self.state().slots.areas.protect(id, is_protected);
    }

    /// Writes what of the directory has been changed for a while; nothing, if there is none.
    /// To be called now and then. Waits.
    pub fn write_behind(&self) {
        let now = self.clock.monotonic();
        let is_due = |since: Duration| now >= since + WRITE_BEHIND;
        if self.state().dirty_since.is_some_and(is_due) {
            self.flush();
        }
    }

    /// Writes all of the directory that has changed, for whoever opens the cache next. Waits.
    pub fn flush(&self) {
        loop {
            let (first, bytes) = {
                let mut state = self.state();
                if self.is_left_alone(&mut state) {
                    return;
                }
                match state.slots.take_dirty(PAGES_AT_ONCE) {
                    Some(pages) => pages,
                    None => {
                        state.dirty_since = None;
                        return;
                    }
                }
            };
            let at = DIRECTORY_AT + (first * SLOT_BYTES) as u64;
            if let Err(error) = self.file.write_at(&bytes, at) {
                return self.fails(&mut self.state(), &error);
            }
        }
    }

    /// What came of it so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let state = self.state();
        let mut statistics = state.statistics;
        let sizes = state.slots.areas.sizes();
        for (area, (blocks, capacity)) in statistics.areas.iter_mut().zip(sizes) {
            (area.blocks, area.capacity) = (blocks, capacity);
        }
        statistics.protected = state.slots.areas.protected();
        statistics
    }

    fn is_dirty(&self, state: &mut State) {
        state
            .dirty_since
            .get_or_insert_with(|| self.clock.monotonic());
    }

    /// Whether the file has failed a moment ago.
    fn is_left_alone(&self, state: &mut State) -> bool {
        let Some(until) = state.fails_until else {
            return false;
        };
        let is_over = self.clock.monotonic() >= until;
        if is_over {
            state.fails_until = None;
        }
        !is_over
    }

    fn fails(&self, state: &mut State, error: &io::Error) {
        if state.fails_until.is_none() {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the cache is not used for a while");
            state.statistics.failures += 1;
        }
        state.fails_until = Some(self.clock.monotonic() + FAILS_FOR);
    }
}

/// The file, if it is what it is to be.
fn find(disk: &dyn Disk, path: &Path, head: &Head) -> io::Result<Option<Arc<dyn File>>> {
    let file = match disk.open(path, OpenMode::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    if file.length()? < head.file_bytes() {
        return Ok(None);
    }
    let mut pages = vec![0; DIRECTORY_AT as usize];
    file.read_at(&mut pages, 0)?;
    Ok((Head::decode(&pages) == Some(*head)).then_some(file))
}

fn make(disk: &dyn Disk, path: &Path, head: &Head) -> io::Result<Arc<dyn File>> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(path, OpenMode::CreateNew)?;
    let filled = file
        .allocate(head.file_bytes())
        .and_then(|()| file.write_at(&head.encode(), 0));
    if let Err(error) = filled {
        // What it has taken of a full disk is of use to others.
        let _ = disk.remove(path);
        return Err(error);
    }
    Ok(file)
}

fn read_directory(file: &dyn File, head: &Head, slots: &mut Slots) -> io::Result<()> {
    let mut bytes = vec![0; PAGES_AT_ONCE * SLOT_BYTES];
    for first in (0..head.directory_pages()).step_by(PAGES_AT_ONCE) {
        let pages = (head.directory_pages() - first).min(PAGES_AT_ONCE);
        let bytes = &mut bytes[..pages * SLOT_BYTES];
        file.read_at(bytes, DIRECTORY_AT + (first * SLOT_BYTES) as u64)?;
        slots.find(first * PAGE_ENTRIES, bytes);
    }
    slots.found();
    Ok(())
}
