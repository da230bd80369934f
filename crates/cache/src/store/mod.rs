//! [`Cache`]: sealed blocks in one file on the host's SSD (docs/internals/cache.md).
//!
//! ```text
//!  get    index ─▶ slot ─▶ content ─▶ does its checksum match? ─▶ the caller opens it
//!  offer  area's policy ─▶ evicted blocks free their slots ─▶ entry ─▶ queue ─▶ one job writes
//!         the queue, adjacent slots at once
//! ```
//!
//! Invariants:
//!
//! * A returned block is bit for bit what was offered under that id.
//! * No caller waits for a write, and a bounded number of writes is queued; blocks offered
//!   beyond that are not kept.
//! * A slot that is being written is not reused before the write has ended.
//! * After an error the file is not used for a while, and while it does not respond it is not
//!   used: there is no cache then.
//! * The lock is never held for more than a few blocks at a time.

mod areas;
mod entry;
mod head;
mod images;
mod maps;
mod opener;
mod outstanding;
mod shares;
mod slots;
#[cfg(test)]
mod tests;
mod writes;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::VolumeId;
use parking_lot::{Mutex, MutexGuard};
use world::{Clock, File, Pool, World};

pub use areas::{Area, Division, Sharer};
use entry::Entry;
#[cfg(test)]
pub use entry::id;
pub use entry::{AreaKind, Id};
pub use head::SLOT_BYTES;
use head::{DIRECTORY_AT, Head, PAGE_ENTRIES};
pub use maps::Protector;
use opener::CacheOpener;
pub use outstanding::HANG_TIMEOUT;
use outstanding::OutstandingOperations;
use slots::Slots;
use writes::Queue;

/// Slots that are visited while the lock is held.
const SLOTS_AT_ONCE: usize = 1 << 10;

/// Blocks that are changed while the lock is held.
const BLOCKS_AT_ONCE: usize = 256;

/// Pages of the directory read at once.
const PAGES_READ_AT_ONCE: usize = 256;

/// How long a file is not used after an error.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// The configuration of a cache's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// The file, in an existing folder; or a block device.
    pub path: PathBuf,
    /// Size in bytes, at least [`CacheConfig::BYTES_MIN`]. `None` for all of a device.
    pub bytes: Option<u64>,
    /// Its division into areas.
    pub division: Division,
    /// The cluster whose blocks it holds.
    pub cluster: [u8; 16],
}

impl CacheConfig {
    /// The smallest cache, in bytes.
    pub const BYTES_MIN: u64 = 1 << 20;
}

/// Why a cache cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The size is too small.
    #[error("the cache is too small: its size must be at least 1 MiB")]
    TooSmall,
    /// The areas do not add up to 100 %.
    #[error("the areas of the cache must have at least 1 % each, and 100 % together")]
    Division,
    /// The size of a file must be given.
    #[error("{0} is not a block device: give the size of the cache")]
    NoSize(String),
    /// The file holds something else.
    #[error(
        "{0} is not a cache of this build, and is not overwritten: move it away, or clear it (`blkdiscard -z` clears a device)"
    )]
    NotACache(String),
    /// Another process has locked the file.
    #[error("another process uses the cache {0}")]
    InUse(String),
    /// The device is smaller than the configured size.
    #[error("the device {path} is too small: it has only {bytes} bytes")]
    ShortDevice {
        /// The path.
        path: String,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The file cannot be created or used.
    #[error("the cache {path} cannot be {what}: {error}")]
    File {
        /// The path.
        path: String,
        /// The participle of the failed operation.
        what: &'static str,
        /// The operating system's error.
        #[source]
        error: io::Error,
    },
}

/// Counts of one area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AreaStatistics {
    /// Blocks that were inserted.
    pub inserted: u64,
    /// Blocks that were evicted to make room.
    pub evicted: u64,
    /// Blocks at present.
    pub blocks: usize,
    /// The capacity in blocks.
    pub capacity: usize,
}

/// Counts of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// By [`AreaKind`].
    pub areas: [AreaStatistics; 3],
    /// The number of protected map pages.
    pub protected: usize,
    /// The number of pinned blocks of images.
    pub pinned: usize,
    /// The number of blocks that were damaged, which count as misses.
    pub damaged: u64,
    /// The number of blocks that were refused because too many were being written.
    pub refused: u64,
    /// The number of failures of the file.
    pub failures: u64,
    /// The number of times that the file did not respond.
    pub hangs: u64,
}

/// A cache of sealed blocks in a file.
pub struct Cache {
    path: PathBuf,
    file: Arc<dyn File>,
    head: Head,
    clock: Arc<dyn Clock>,
    pool: Arc<dyn Pool>,
    state: Mutex<State>,
    /// Held while the directory is written: two writers could overtake each other.
    flushing: Mutex<()>,
}

struct State {
    slots: Slots,
    statistics: Statistics,
    queue: Queue,
    /// The time until which the file is not used after a failure.
    fails_until: Option<Duration>,
    /// The last error.
    failure: Option<String>,
    outstanding: OutstandingOperations,
    /// Since when the directory in the file is out of date.
    dirty_since: Option<Duration>,
}

impl Cache {
    /// Opens the cache with its content, if it belongs to the same cluster and has the same
    /// size; otherwise creates it. Returns whether it is new. Waits. Its jobs run in the
    /// world's pool, which should be its own, so that others do not wait for a file that does
    /// not respond.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn open(world: &World, config: &CacheConfig) -> Result<(Arc<Self>, bool), CacheError> {
        if !config.division.is_whole() {
            return Err(CacheError::Division);
        }
        let opener = CacheOpener {
            disk: &*world.disk,
            config,
        };
        let (file, head, is_new) = opener.open()?;
        let mut slots = Slots::new(head.slots, &config.division);
        if !is_new {
            let read = read_directory(&*file, &head, &mut slots);
            read.map_err(opener.failed("read"))?;
        }
        let cache = Self {
            path: config.path.clone(),
            file,
            head,
            clock: Arc::clone(&world.clock),
            pool: Arc::clone(&world.pool),
            state: Mutex::new(State {
                slots,
                statistics: Statistics::default(),
                queue: Queue::default(),
                fails_until: None,
                failure: None,
                outstanding: OutstandingOperations::default(),
                dirty_since: None,
            }),
            flushing: Mutex::default(),
        };
        Ok((Arc::new(cache), is_new))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Reads a block's sealed content into `sealed` of [`SLOT_BYTES`] and returns its tag, if it
    /// is here. The content is not verified: the caller opens it. Waits for the file.
    pub fn get(&self, area: Area, id: Id, sealed: &mut [u8]) -> Option<[u8; 16]> {
        let (slot, entry, number) = {
            let mut state = self.lock();
            let (slot, entry) = self.find(&mut state, area, id)?;
            (slot, entry, state.outstanding.begin(self.clock.monotonic()))
        };
        let read = self.file.read_at(sealed, self.head.slot_at(slot));
        self.lock().outstanding.end(number);
        self.verified_tag(slot, &entry, sealed, read.map(|()| true))
    }

    /// As [`Cache::get`], if that needs no waiting for a device.
    pub fn get_now(&self, area: Area, id: Id, sealed: &mut [u8]) -> Option<[u8; 16]> {
        let (slot, entry) = self.find(&mut self.lock(), area, id)?;
        let read = self.file.read_now(sealed, self.head.slot_at(slot));
        self.verified_tag(slot, &entry, sealed, read)
    }

    /// Marks a block as used without reading it. Returns whether it is here.
    pub fn touch(&self, area: Area, id: Id) -> bool {
        self.find_in(&mut self.lock(), area, id).is_some()
    }

    /// The pool for work that waits for the file, which may not respond.
    #[must_use]
    pub fn pool(&self) -> &Arc<dyn Pool> {
        &self.pool
    }

    /// Whether the file is not used because it failed recently or does not respond: until it
    /// recovers, the cache is empty and keeps nothing.
    #[must_use]
    pub fn is_unusable(&self) -> bool {
        self.is_suspended(&mut self.lock())
    }

    /// Why the file is not used; `None` if it is used.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let mut state = self.lock();
        if self.check_file(&mut state) {
            return Some("its file does not respond".to_owned());
        }
        let is_suspended = self.is_suspended(&mut state);
        let error = state.failure.as_ref().filter(|_| is_suspended)?;
        Some(format!("its file has failed: {error}"))
    }

    fn find(&self, state: &mut State, area: Area, id: Id) -> Option<(u32, Entry)> {
        match self.is_suspended(state) {
            true => None,
            false => self.find_in(state, area, id),
        }
    }

    fn find_in(&self, state: &mut State, area: Area, id: Id) -> Option<(u32, Entry)> {
        let (slot, entry, is_moved) = state.slots.get(area, id)?;
        if is_moved {
            self.note_change(state);
        }
        Some((slot, entry))
    }

    /// The tag of a slot that was read, if its content matches its entry.
    fn verified_tag(
        &self,
        slot: u32,
        entry: &Entry,
        sealed: &[u8],
        read: io::Result<bool>,
    ) -> Option<[u8; 16]> {
        debug_assert_eq!(sealed.len(), SLOT_BYTES);
        match read {
            Ok(true) if entry.is_of(sealed) => return Some(entry.tag),
            Ok(true) => {
                let mut state = self.lock();
                // The block may have been evicted meanwhile, and the slot has another one.
                if state.slots.drop_if(slot, entry) {
                    state.statistics.damaged += 1;
                    self.note_change(&mut state);
                }
            }
            Ok(false) => {}
            Err(error) => self.record_failure(&mut self.lock(), &error),
        }
        None
    }

    /// Forgets a block that does not open although its checksum matches.
    pub fn forget(&self, id: Id) {
        let mut state = self.lock();
        if state.slots.forget(id) {
            state.statistics.damaged += 1;
            self.note_change(&mut state);
        }
    }

    /// Whether the cache has a block. Does not count as a use, and does not wait.
    #[must_use]
    pub fn has(&self, id: Id) -> bool {
        let mut state = self.lock();
        !self.is_suspended(&mut state) && state.slots.has(id)
    }

    /// Adds a use of `sharer`: blocks that are not in use make room for its blocks.
    pub fn begin_use(&self, sharer: Sharer) {
        self.lock().slots.areas.begin_use(sharer);
    }

    /// Removes a use of `sharer`.
    pub fn end_use(&self, sharer: Sharer) {
        self.lock().slots.areas.end_use(sharer);
    }

    /// Ends the protection of a map page for `protector`.
    pub fn release(&self, protector: Protector, id: Id) {
        self.lock().slots.areas.release(protector, id);
    }

    /// Ends the protection of all map pages for `protector`, for good. Does not wait: a job
    /// finds them.
    pub fn release_all(self: &Arc<Self>, protector: Protector) {
        let cache = Arc::clone(self);
        self.pool.run(Box::new(move || {
            cache.for_all_slots(SLOTS_AT_ONCE, |slots, first| {
                slots.release_protected(protector, first, SLOTS_AT_ONCE)
            });
        }));
    }

    /// Applies `step` to all slots, `count` at a time. `step` gets the first slot's number, and
    /// returns the number of slots from there on.
    fn for_all_slots(&self, count: usize, step: impl Fn(&mut Slots, usize) -> usize) {
        let mut first = 0;
        while step(&mut self.lock().slots, first) > count {
            first += count;
        }
    }

    /// Whether the area for map pages is full of protected ones.
    #[must_use]
    pub fn is_all_protected(&self) -> bool {
        self.lock().slots.areas.is_all_protected()
    }

    /// Unpins all blocks. A block that is still to be pinned is pinned again by its next read.
    pub fn unpin_all(&self) {
        self.note_change(&mut self.lock());
        self.for_all_slots(BLOCKS_AT_ONCE, |slots, first| {
            slots.unpin(first, BLOCKS_AT_ONCE)
        });
        self.note_change(&mut self.lock());
    }

    /// Limits a volume's part of the active area, in blocks; `None` for its fair share. Blocks
    /// beyond that are evicted.
    pub fn bound_share(&self, volume: VolumeId, blocks_max: Option<usize>) {
        self.lock().slots.areas.bound_share(volume, blocks_max);
        loop {
            let mut state = self.lock();
            if state.slots.shrink_share(volume, BLOCKS_AT_ONCE) == 0 {
                return;
            }
            self.note_change(&mut state);
        }
    }

    /// The counts so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let state = self.lock();
        let mut statistics = state.statistics;
        let sizes = state.slots.areas.sizes();
        for (kind, (blocks, capacity)) in sizes.into_iter().enumerate() {
            statistics.areas[kind] = AreaStatistics {
                inserted: state.slots.inserted[kind],
                evicted: state.slots.evicted_to_make_room[kind],
                blocks,
                capacity,
            };
        }
        statistics.protected = state.slots.areas.protected();
        statistics.pinned = state.slots.areas.pinned();
        statistics
    }

    /// Records that the directory in the file is out of date.
    fn note_change(&self, state: &mut State) {
        state
            .dirty_since
            .get_or_insert_with(|| self.clock.monotonic());
    }

    /// Whether the file is not used because it failed recently or does not respond.
    fn is_suspended(&self, state: &mut State) -> bool {
        if self.check_file(state) {
            return true;
        }
        let Some(until) = state.fails_until else {
            return false;
        };
        let is_over = self.clock.monotonic() >= until;
        if is_over {
            state.fails_until = None;
        }
        !is_over
    }

    /// Checks whether the file responds; returns `true` if it does not.
    fn check_file(&self, state: &mut State) -> bool {
        if state.outstanding.is_idle() {
            return false;
        }
        let (hangs, is_new) = state.outstanding.check(self.clock.monotonic());
        if is_new {
            let path = self.path.display();
            tracing::warn!(%path, "cache file does not respond; it is not used until it does");
            state.statistics.hangs += 1;
        }
        hangs
    }

    fn record_failure(&self, state: &mut State, error: &io::Error) {
        if state.fails_until.is_none() {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cache file failed; it is not used for a while");
            state.statistics.failures += 1;
        }
        state.fails_until = Some(self.clock.monotonic() + FAILURE_PAUSE);
        state.failure = Some(error.to_string());
    }
}

fn read_directory(file: &dyn File, head: &Head, slots: &mut Slots) -> io::Result<()> {
    let mut bytes = vec![0; PAGES_READ_AT_ONCE * SLOT_BYTES];
    for first in (0..head.directory_pages()).step_by(PAGES_READ_AT_ONCE) {
        let pages = (head.directory_pages() - first).min(PAGES_READ_AT_ONCE);
        let bytes = &mut bytes[..pages * SLOT_BYTES];
        file.read_at(bytes, DIRECTORY_AT + (first * SLOT_BYTES) as u64)?;
        slots.find(first * PAGE_ENTRIES, bytes);
    }
    slots.found();
    Ok(())
}
