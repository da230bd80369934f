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
mod reads;
mod shares;
mod slots;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::VolumeId;
use world::{Clock, File, Pool, World};

pub use areas::{Area, Division};
use entry::Entry;
pub use entry::{AreaKind, Id};
pub use head::SLOT_BYTES;
use head::{DIRECTORY_AT, Head, PAGE_ENTRIES};
pub use maps::Protector;
use opening::Opening;
pub use reads::HANGS_AFTER;
use reads::Reads;
use slots::Slots;

/// So many blocks wait to be written at most, or are: 4 MiB.
const WRITES_MAX: usize = 1024;

/// A page of the directory is written so long after something in it has changed.
const WRITE_BEHIND: Duration = Duration::from_secs(1);

/// So many slots are looked through at once: others wait for that.
const SLOTS_AT_ONCE: usize = 1 << 10;

/// And so many blocks are changed at once.
const BLOCKS_AT_ONCE: usize = 256;

/// So many pages of the directory are read at once.
const PAGES_READ_AT_ONCE: usize = 256;

/// And so many are written, for whose making others wait.
const PAGES_WRITTEN_AT_ONCE: usize = 64;

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
}

struct State {
    slots: Slots,
    statistics: Statistics,
    /// What is to be written, and to which slot.
    queue: Vec<(u32, Vec<u8>)>,
    /// So many blocks are being written, or wait for it.
    writes: usize,
    /// A job writes what is in the queue.
    is_written: bool,
    /// The file is left alone until then.
    fails_until: Option<Duration>,
    reads: Reads,
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
                queue: Vec::new(),
                writes: 0,
                is_written: false,
                fails_until: None,
                reads: Reads::default(),
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
        let (slot, entry, number) = {
            let mut state = self.state();
            let (slot, entry) = self.find(&mut state, area, id)?;
            (slot, entry, state.reads.begin(self.clock.monotonic()))
        };
        let read = self.file.read_at(sealed, self.head.slot_at(slot));
        self.state().reads.end(number);
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

    /// Whether the file was asked for something a while ago, and has not answered.
    #[must_use]
    pub fn hangs(&self) -> bool {
        self.look_at_reads(&mut self.state())
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
            self.is_dirty(state);
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
                    self.is_dirty(&mut state);
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
            self.is_dirty(&mut state);
        }
    }

    /// Whether a block is there, as far as is known: that is not asking for it. Does not wait.
    #[must_use]
    pub fn has(&self, id: Id) -> bool {
        let mut state = self.state();
        !self.is_left_alone(&mut state) && state.slots.has(id)
    }

    /// Keeps a block, if its area's policy says so and there is time for it.
    pub fn offer(self: &Arc<Self>, area: Area, id: Id, tag: [u8; 16], sealed: &[u8]) {
        if sealed.len() != SLOT_BYTES {
            return;
        }
        let entry = Entry::of(id, tag, area.kind(), sealed);
        let mut state = self.state();
        // Who offers it may have what it is kept as changed.
        if self.is_left_alone(&mut state) || self.find_in(&mut state, area, id).is_some() {
            return;
        }
        if state.slots.has(id) {
            return;
        }
        if state.writes >= WRITES_MAX {
            state.statistics.refused += 1;
            return;
        }
        let slot = state.slots.insert(area, entry);
        self.is_dirty(&mut state);
        let Some(slot) = slot else {
            state.statistics.refused += 1;
            return;
        };
        state.writes += 1;
        state.queue.push((slot, sealed.to_vec()));
        if !std::mem::replace(&mut state.is_written, true) {
            drop(state);
            let cache = Arc::clone(self);
            self.pool.run(Box::new(move || cache.write()));
        }
    }

    /// Writes what is in the queue, until there is nothing.
    fn write(&self) {
        loop {
            let mut batch = {
                let mut state = self.state();
                if state.queue.is_empty() {
                    state.is_written = false;
                    break;
                }
                std::mem::take(&mut state.queue)
            };
            batch.sort_unstable_by_key(|(slot, _)| *slot);
            for run in batch.chunk_by(|one, next| one.0 + 1 == next.0) {
                let bytes = run.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>();
                let at = self.head.slot_at(run[0].0);
                let written = self.file.write_at(&bytes.concat(), at);
                let mut state = self.state();
                state.writes -= run.len();
                for (slot, _) in run {
                    state.slots.is_written(*slot, written.is_ok());
                }
                self.is_dirty(&mut state);
                if let Err(error) = written {
                    self.fails(&mut state, &error);
                }
            }
        }
        self.write_behind();
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
            cache.by_steps(|slots, first| slots.release_protected(protector, first, SLOTS_AT_ONCE));
        }));
    }

    /// Does something to all slots, some at a time: `step` is told from which one on, and says
    /// how many there are from that one on.
    fn by_steps(&self, step: impl Fn(&mut Slots, usize) -> usize) {
        let mut first = 0;
        while step(&mut self.state().slots, first) > SLOTS_AT_ONCE {
            first += SLOTS_AT_ONCE;
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
        self.is_dirty(&mut self.state());
        self.by_steps(|slots, first| slots.unpin(first, SLOTS_AT_ONCE));
        self.is_dirty(&mut self.state());
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
            self.is_dirty(&mut state);
        }
    }

    /// How many more blocks it would take now.
    #[must_use]
    pub fn takes(&self) -> usize {
        WRITES_MAX - self.state().writes
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

    /// Writes all of the directory that has changed, for whoever opens the cache next. Whether
    /// that was possible. Waits.
    pub fn flush(&self) -> bool {
        loop {
            let (first, bytes) = {
                let mut state = self.state();
                if self.is_left_alone(&mut state) {
                    return false;
                }
                match state.slots.take_dirty(PAGES_WRITTEN_AT_ONCE) {
                    Some(pages) => pages,
                    None => {
                        state.dirty_since = None;
                        return true;
                    }
                }
            };
            let at = DIRECTORY_AT + (first * SLOT_BYTES) as u64;
            if let Err(error) = self.file.write_at(&bytes, at) {
                let mut state = self.state();
                state.slots.is_unwritten(first, bytes.len() / SLOT_BYTES);
                self.fails(&mut state, &error);
                return false;
            }
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

    fn is_dirty(&self, state: &mut State) {
        state
            .dirty_since
            .get_or_insert_with(|| self.clock.monotonic());
    }

    /// Whether the file has failed a moment ago, or does not answer.
    fn is_left_alone(&self, state: &mut State) -> bool {
        if self.look_at_reads(state) {
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
    fn look_at_reads(&self, state: &mut State) -> bool {
        if state.reads.is_idle() {
            return false;
        }
        let (hangs, is_news) = state.reads.look(self.clock.monotonic());
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
