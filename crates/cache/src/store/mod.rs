//! [`Cache`]: sealed blocks in one file on the host's SSD (docs/cache.md).
//!
//! ```text
//!  get    index ─▶ slot ─▶ content ─▶ is it what its entry says? ─▶ the caller opens it
//!  offer  area's policy ─▶ those that go free their slots ─▶ entry ─▶ queue ─▶ one job writes
//!         what is in it, slots that lie side by side in one go
//! ```
//!
//! Invariants:
//!
//! * What is given is what was offered under that name, bit for bit, or nothing.
//! * Nobody waits for a write, and no more than a bounded number are under way; what comes
//!   beyond that is not kept.
//! * A slot that is being written is given to nobody else before that has ended.
//! * A file that fails is left alone for a while, and one that does not answer until it does:
//!   there is no cache then.
//! * Nothing is done to more than a few blocks while others wait for the lock.

mod areas;
mod entry;
mod head;
mod images;
mod maps;
mod opening;
mod shares;
mod slots;
#[cfg(test)]
mod tests;
mod under_way;
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
use opening::Opening;
use slots::Slots;
pub use under_way::HANGS_AFTER;
use under_way::UnderWay;
use writes::Queue;

/// So many slots are looked through at once: others wait for that.
const SLOTS_AT_ONCE: usize = 1 << 10;

/// And so many blocks are changed at once.
const BLOCKS_AT_ONCE: usize = 256;

/// So many pages of the directory are read at once.
const PAGES_READ_AT_ONCE: usize = 256;

/// A file that has failed is tried again after so long.
const FAILS_FOR: Duration = Duration::from_secs(10);

/// What a cache is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// Its file, in a folder that is there; or a block device.
    pub path: PathBuf,
    /// How long that is at most, in bytes; [`CacheConfig::BYTES_MIN`] at least. None: a device
    /// as a whole.
    pub bytes: Option<u64>,
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
    /// A file is as long as somebody says.
    #[error("{0} is no block device: say how long the cache is to be")]
    NoSize(String),
    /// There is something else.
    #[error(
        "{0} is something else than a cache, and is not overwritten; move it away, or clear it (`blkdiscard -z` clears a device)"
    )]
    NotACache(String),
    /// Another process has it.
    #[error("another process uses the cache {0}")]
    InUse(String),
    /// A device is as long as it is.
    #[error("the device {path} has {bytes} bytes only")]
    ShortDevice {
        /// Which.
        path: String,
        /// How many.
        bytes: u64,
    },
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
    /// Blocks that came.
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
    /// Blocks of images that stay.
    pub pinned: usize,
    /// What was not what it should be: it counts as missed.
    pub damaged: u64,
    /// What was offered while too much was being written.
    pub refused: u64,
    /// How often the file has failed.
    pub failures: u64,
    /// How often it did not answer for a while.
    pub hangs: u64,
}

/// See the module's head.
pub struct Cache {
    path: PathBuf,
    file: Arc<dyn File>,
    head: Head,
    clock: Arc<dyn Clock>,
    pool: Arc<dyn Pool>,
    state: Mutex<State>,
    /// Whoever writes the directory: of two at once the later one could be overtaken.
    flushing: Mutex<()>,
}

struct State {
    slots: Slots,
    statistics: Statistics,
    queue: Queue,
    /// The file is left alone until then.
    fails_until: Option<Duration>,
    /// What it has failed with last.
    failure: Option<String>,
    under_way: UnderWay,
    /// Since when the directory in the file is not what it is here.
    dirty_since: Option<Duration>,
}

impl Cache {
    /// Opens the cache, with what it had if it is the same cluster's and as large; or makes
    /// it anew. Whether it is new. Waits. Its jobs run in the world's pool: in one of its own,
    /// if others are not to wait for a file that hangs.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn open(world: &World, config: &CacheConfig) -> Result<(Arc<Self>, bool), CacheError> {
        if !config.division.is_whole() {
            return Err(CacheError::Division);
        }
        let opening = Opening {
            disk: &*world.disk,
            config,
        };
        let (file, head, is_new) = opening.open()?;
        let mut slots = Slots::new(head.slots, &config.division);
        if !is_new {
            let read = read_directory(&*file, &head, &mut slots);
            read.map_err(opening.failed("read"))?;
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
                under_way: UnderWay::default(),
                dirty_since: None,
            }),
            flushing: Mutex::default(),
        };
        Ok((Arc::new(cache), is_new))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A block's sealed content, into `sealed` of [`SLOT_BYTES`], and its tag; or nothing. It
    /// may be what somebody has put there: whoever asks opens it. Waits for the file.
    pub fn get(&self, area: Area, id: Id, sealed: &mut [u8]) -> Option<[u8; 16]> {
        let (slot, entry, number) = {
            let mut state = self.state();
            let (slot, entry) = self.find(&mut state, area, id)?;
            (slot, entry, state.under_way.begin(self.clock.monotonic()))
        };
        let read = self.file.read_at(sealed, self.head.slot_at(slot));
        self.state().under_way.end(number);
        self.given(slot, &entry, sealed, read.map(|()| true))
    }

    /// As [`Cache::get`], if that is to be had without waiting for a device.
    pub fn get_now(&self, area: Area, id: Id, sealed: &mut [u8]) -> Option<[u8; 16]> {
        let (slot, entry) = self.find(&mut self.state(), area, id)?;
        let read = self.file.read_now(sealed, self.head.slot_at(slot));
        self.given(slot, &entry, sealed, read)
    }

    /// A block was asked for, and need not be read. Whether it is here.
    pub fn touch(&self, area: Area, id: Id) -> bool {
        self.find_in(&mut self.state(), area, id).is_some()
    }

    /// Where whoever waits for the file does that: it may hang.
    #[must_use]
    pub fn pool(&self) -> &Arc<dyn Pool> {
        &self.pool
    }

    /// Whether the file has failed a moment ago, or does not answer: nothing is in it, and
    /// nothing is kept, until it is well again.
    #[must_use]
    pub fn is_ill(&self) -> bool {
        self.is_left_alone(&mut self.state())
    }

    /// What is wrong with it, if it is ill.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let mut state = self.state();
        if self.look_at_file(&mut state) {
            return Some("its file does not answer".to_owned());
        }
        let is_ill = self.is_left_alone(&mut state);
        let error = state.failure.as_ref().filter(|_| is_ill)?;
        Some(format!("its file has failed: {error}"))
    }

    fn find(&self, state: &mut State, area: Area, id: Id) -> Option<(u32, Entry)> {
        match self.is_left_alone(state) {
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

    /// What was read of a slot, if it was, and is what its entry says.
    fn given(
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
                let mut state = self.state();
                // Unless it has gone meanwhile, and another one has its slot.
                if state.slots.drop_if(slot, entry) {
                    state.statistics.damaged += 1;
                    self.note_change(&mut state);
                }
            }
            Ok(false) => {}
            Err(error) => self.fails(&mut self.state(), &error),
        }
        None
    }

    /// A block that was given is not what it should be, whatever its entry says.
    pub fn forget(&self, id: Id) {
        let mut state = self.state();
        if state.slots.forget(id) {
            state.statistics.damaged += 1;
            self.note_change(&mut state);
        }
    }

    /// Whether a block is there, as far as is known: that is not asking for it. Does not wait.
    #[must_use]
    pub fn has(&self, id: Id) -> bool {
        let mut state = self.state();
        !self.is_left_alone(&mut state) && state.slots.has(id)
    }

    /// `sharer` is used from now on, once more: what nobody uses makes room for it.
    pub fn begin_use(&self, sharer: Sharer) {
        self.state().slots.areas.begin_use(sharer);
    }

    /// And once less.
    pub fn end_use(&self, sharer: Sharer) {
        self.state().slots.areas.end_use(sharer);
    }

    /// A map page is of the newest version no more, for `protector`.
    pub fn release(&self, protector: Protector, id: Id) {
        self.state().slots.areas.release(protector, id);
    }

    /// No map page is protected for `protector` any more, nor will be. Does not wait: a job
    /// looks for them.
    pub fn release_all(self: &Arc<Self>, protector: Protector) {
        let cache = Arc::clone(self);
        self.pool.run(Box::new(move || {
            cache.by_steps(SLOTS_AT_ONCE, |slots, first| {
                slots.release_protected(protector, first, SLOTS_AT_ONCE)
            });
        }));
    }

    /// Does something to all slots, `count` at a time: `step` is told from which one on, and
    /// says how many there are from that one on.
    fn by_steps(&self, count: usize, step: impl Fn(&mut Slots, usize) -> usize) {
        let mut first = 0;
        while step(&mut self.state().slots, first) > count {
            first += count;
        }
    }

    /// Whether all map pages that there is room for are protected.
    #[must_use]
    pub fn is_all_protected(&self) -> bool {
        self.state().slots.areas.is_all_protected()
    }

    /// What stayed may go from now on. What is to stay still does so again when it is asked
    /// for.
    pub fn unpin_all(&self) {
        self.note_change(&mut self.state());
        self.by_steps(BLOCKS_AT_ONCE, |slots, first| {
            slots.unpin(first, BLOCKS_AT_ONCE)
        });
        self.note_change(&mut self.state());
    }

    /// What a volume may have of the active area, in blocks; none: its fair share. What it has
    /// beyond that goes.
    pub fn bound_share(&self, volume: VolumeId, blocks_max: Option<usize>) {
        self.state().slots.areas.bound_share(volume, blocks_max);
        loop {
            let mut state = self.state();
            if state.slots.shrink_share(volume, BLOCKS_AT_ONCE) == 0 {
                return;
            }
            self.note_change(&mut state);
        }
    }

    /// What came of it so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let state = self.state();
        let mut statistics = state.statistics;
        let sizes = state.slots.areas.sizes();
        for (kind, (blocks, capacity)) in sizes.into_iter().enumerate() {
            statistics.areas[kind] = AreaStatistics {
                brought: state.slots.brought[kind],
                evicted: state.slots.pushed_out[kind],
                blocks,
                capacity,
            };
        }
        statistics.protected = state.slots.areas.protected();
        statistics.pinned = state.slots.areas.pinned();
        statistics
    }

    /// The directory in the file is not what it is here.
    fn note_change(&self, state: &mut State) {
        state
            .dirty_since
            .get_or_insert_with(|| self.clock.monotonic());
    }

    /// Whether the file has failed a moment ago, or does not answer.
    fn is_left_alone(&self, state: &mut State) -> bool {
        if self.look_at_file(state) {
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

    /// Whether the file hangs.
    fn look_at_file(&self, state: &mut State) -> bool {
        if state.under_way.is_idle() {
            return false;
        }
        let (hangs, is_news) = state.under_way.look(self.clock.monotonic());
        if is_news {
            let path = self.path.display();
            tracing::warn!(%path, "the cache does not answer, and is not used until it does");
            state.statistics.hangs += 1;
        }
        hangs
    }

    fn fails(&self, state: &mut State, error: &io::Error) {
        if state.fails_until.is_none() {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the cache is not used for a while");
            state.statistics.failures += 1;
        }
        state.fails_until = Some(self.clock.monotonic() + FAILS_FOR);
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
