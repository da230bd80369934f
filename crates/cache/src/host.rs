//! [`HostCache`]: one host's cache of blocks of units, in memory and in a file.
//!
//! ```text
//!  get_now    memory ─▶ the file, if that needs no waiting
//!  get        memory ─▶ the file
//!  offer      memory, the file
//! ```
//!
//! Each of the two is optional, and the file may be added later.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::memory::{Memory, ReadaheadCounters, ReadaheadCounts};
use crate::store::{Area, AreaKind, Cache, Id, Protector, Sharer};
use crate::uses::Uses;
use parking_lot::{Mutex, MutexGuard};

/// Reads of one area's blocks, by where they were found.
#[derive(Debug, Default)]
struct AreaCounters {
    memory: AtomicU64,
    file: AtomicU64,
    units: AtomicU64,
}

/// Reads of each area's blocks, by one volume or a whole host.
#[derive(Debug, Default)]
pub struct Counters([AreaCounters; 3]);

/// Counts of reads of one area's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AreaCounts {
    /// Blocks found in memory.
    pub memory: u64,
    /// Blocks found in the file.
    pub file: u64,
    /// Blocks read from units: misses.
    pub units: u64,
}

impl Counters {
    /// The counts so far, by [`AreaKind`].
    #[must_use]
    pub fn counts(&self) -> [AreaCounts; 3] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.0.each_ref().map(|area| AreaCounts {
            memory: of(&area.memory),
            file: of(&area.file),
            units: of(&area.units),
        })
    }

    fn area(&self, kind: AreaKind) -> &AreaCounters {
        &self.0[kind as usize]
    }
}

/// A user of the cache, such as a volume, whose reads are counted.
#[derive(Debug, Default)]
pub struct Principal {
    /// Its reads.
    pub counters: Counters,
    /// Its readahead.
    pub ahead: Arc<ReadaheadCounters>,
}

/// A block that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// The block's tag.
    pub tag: [u8; 16],
    /// Whether it was in the file rather than in memory.
    pub is_from_file: bool,
}

/// The hits of one read, which is counted once however often it is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    memory: [u64; 3],
    file: [u64; 3],
}

impl Tally {
    /// Adds a hit.
    pub fn add(&mut self, area: Area, hit: Hit) {
        let counts = match hit.is_from_file {
            true => &mut self.file,
            false => &mut self.memory,
        };
        counts[area.kind() as usize] += 1;
    }
}

/// A function that reads a block from the file, with or without waiting.
type GetFrom = fn(&Cache, Area, Id, &mut [u8]) -> Option<[u8; 16]>;

/// A host's cache: in memory, in a file, or both.
pub struct HostCache {
    memory: Option<Memory>,
    file: OnceLock<Arc<Cache>>,
    counters: Counters,
    /// The sharers in use, for a file that is added later.
    used: Mutex<Uses<Sharer>>,
}

/// Keeps a sharer's blocks in use until it is dropped.
pub struct UseGuard {
    cache: Arc<HostCache>,
    sharer: Sharer,
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        let mut used = self.cache.used();
        used.end(self.sharer);
        if let Some(file) = self.cache.file() {
            file.end_use(self.sharer);
        }
    }
}

impl HostCache {
    /// A cache with this many bytes of blocks in memory; 0 for none.
    #[must_use]
    pub fn new(memory_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            memory: (memory_bytes > 0).then(|| Memory::new(memory_bytes)),
            file: OnceLock::new(),
            counters: Counters::default(),
            used: Mutex::new(Uses::new()),
        })
    }

    /// Adds the file, unless there is one.
    pub fn use_file(&self, file: Arc<Cache>) {
        let used = self.used();
        if self.file.set(Arc::clone(&file)).is_ok() {
            used.iter().for_each(|sharer| file.begin_use(sharer));
        }
    }

    fn used(&self) -> MutexGuard<'_, Uses<Sharer>> {
        self.used.lock()
    }

    /// Marks the blocks of `sharer` as used until the guard is dropped.
    #[must_use]
    pub fn begin_use(self: &Arc<Self>, sharer: Sharer) -> UseGuard {
        let mut used = self.used();
        used.begin(sharer);
        if let Some(file) = self.file() {
            file.begin_use(sharer);
        }
        UseGuard {
            cache: Arc::clone(self),
            sharer,
        }
    }

    /// The cache's file, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Arc<Cache>> {
        self.file.get()
    }

    /// The maximal readahead of one reader, in bytes; `None` without a cache in memory.
    #[must_use]
    pub fn ahead_max_bytes(&self) -> Option<u64> {
        self.memory.as_ref().map(Memory::ahead_max_bytes)
    }

    /// Reads a block's sealed content into `sealed` of [`SLOT_BYTES`](crate::store::SLOT_BYTES),
    /// if no device has to be waited for. The content is not verified: the caller opens it.
    pub fn get_now(self: &Arc<Self>, area: Area, id: Id, sealed: &mut [u8]) -> Option<Hit> {
        self.find(area, id, sealed, Cache::get_now)
    }

    /// As [`HostCache::get_now`], but waits for the file.
    pub fn get(self: &Arc<Self>, area: Area, id: Id, sealed: &mut [u8]) -> Option<Hit> {
        let hit = self.find(area, id, sealed, Cache::get)?;
        if let Some(memory) = self.memory.as_ref().filter(|_| hit.is_from_file) {
            memory.offer(id, hit.tag, sealed);
        }
        Some(hit)
    }

    fn find(
        self: &Arc<Self>,
        area: Area,
        id: Id,
        sealed: &mut [u8],
        in_file: GetFrom,
    ) -> Option<Hit> {
        let (tag, is_from_file) = match self.find_in_memory(area, id, sealed) {
            Some(tag) => (tag, false),
            None => (in_file(self.file()?, area, id, sealed)?, true),
        };
        Some(Hit { tag, is_from_file })
    }

    fn find_in_memory(self: &Arc<Self>, area: Area, id: Id, sealed: &mut [u8]) -> Option<[u8; 16]> {
        let memory = self.memory.as_ref()?;
        let found = memory.get(id, sealed)?;
        match (found.was_ahead, self.file()) {
            (true, _) => self.store(area, id, found.tag, sealed),
            // A block that is read from memory must not seem idle in the file.
            (false, Some(file)) => {
                file.touch(area, id);
            }
            (false, None) => {}
        }
        Some(found.tag)
    }

    /// Removes a block that does not open.
    pub fn forget(&self, id: Id) {
        if let Some(memory) = &self.memory {
            memory.forget(id);
        }
        if let Some(file) = self.file() {
            file.forget(id);
        }
    }

    /// Whether the cache has a block. This is no use of it, and does not wait.
    #[must_use]
    pub fn has(&self, id: Id) -> bool {
        let is_in = |memory: &Memory| memory.has(id);
        self.memory.as_ref().is_some_and(is_in) || self.is_in_file(id)
    }

    /// Marks a block as used soon, for `area`. Returns whether it is in the file.
    pub fn touch(&self, area: Area, id: Id) -> bool {
        self.file().is_some_and(|file| file.touch(area, id))
    }

    /// Ends the protection of a map page for `protector`.
    pub fn release(&self, protector: Protector, id: Id) {
        if let Some(file) = self.file() {
            file.release(protector, id);
        }
    }

    /// Ends the protection of all map pages for `protector`.
    pub fn release_all(&self, protector: Protector) {
        if let Some(file) = self.file() {
            file.release_all(protector);
        }
    }

    /// Whether a block is in the file.
    #[must_use]
    pub fn is_in_file(&self, id: Id) -> bool {
        self.file().is_some_and(|file| file.has(id))
    }

    /// Offers a block that is likely to be read. It is stored if its area's policy accepts it and
    /// the file is not too busy.
    pub fn store(self: &Arc<Self>, area: Area, id: Id, tag: [u8; 16], sealed: &[u8]) {
        if let Some(memory) = &self.memory {
            memory.offer(id, tag, sealed);
        }
        if let Some(file) = self.file() {
            file.offer(area, id, tag, sealed);
        }
    }

    /// Stores a block that was read ahead.
    pub fn store_ahead(&self, principal: &Principal, id: Id, tag: [u8; 16], sealed: &[u8]) {
        if let Some(memory) = &self.memory {
            memory.offer_ahead(id, tag, sealed, &principal.ahead);
        }
    }

    /// Counts the hits of a read.
    pub fn count_hits(&self, principal: &Principal, tally: &Tally) {
        for kind in AreaKind::ALL {
            let (memory, file) = (tally.memory[kind as usize], tally.file[kind as usize]);
            self.count(principal, kind, |area| &area.memory, memory);
            self.count(principal, kind, |area| &area.file, file);
        }
    }

    /// Counts blocks that were read from units: misses.
    pub fn count_units(&self, principal: &Principal, kind: AreaKind, count: u64) {
        self.count(principal, kind, |area| &area.units, count);
    }

    fn count(
        &self,
        principal: &Principal,
        kind: AreaKind,
        of: fn(&AreaCounters) -> &AtomicU64,
        count: u64,
    ) {
        if count > 0 {
            for counters in [&self.counters, &principal.counters] {
                of(counters.area(kind)).fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// The counts of all users so far, by [`AreaKind`].
    #[must_use]
    pub fn counts(&self) -> [AreaCounts; 3] {
        self.counters.counts()
    }

    /// The number of blocks in memory, and the capacity.
    #[must_use]
    pub fn memory_sizes(&self) -> (usize, usize) {
        self.memory.as_ref().map_or((0, 0), Memory::sizes)
    }
}

impl Principal {
    /// The counts of its readahead so far.
    #[must_use]
    pub fn ahead_counts(&self) -> ReadaheadCounts {
        self.ahead.counts()
    }
}
