//! [`HostCache`]: what one host keeps of what lies on units, in memory and in a file.
//!
//! ```text
//!  get_now    memory ─▶ the file, if it has it at hand
//!  get        memory ─▶ the file
//!  offer      memory, the file
//! ```
//!
//! Either may be missing; the file may come later.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::memory::{AheadCounters, AheadCounts, Memory};
use crate::store::{Area, AreaKind, Cache, Id, Protector, Sharer};
use crate::uses::Uses;
use parking_lot::{Mutex, MutexGuard};

/// How often blocks of an area were asked for.
#[derive(Debug, Default)]
struct AreaCounters {
    memory: AtomicU64,
    file: AtomicU64,
    missed: AtomicU64,
}

/// How often blocks of each area were asked for, by one volume or a whole host.
#[derive(Debug, Default)]
pub struct Counters([AreaCounters; 3]);

/// How often blocks of an area were asked for so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AreaCounts {
    /// And were in memory.
    pub memory: u64,
    /// Or in the file.
    pub file: u64,
    /// Or were read from units.
    pub missed: u64,
}

impl Counters {
    /// So far, by [`AreaKind`].
    #[must_use]
    pub fn counts(&self) -> [AreaCounts; 3] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.0.each_ref().map(|area| AreaCounts {
            memory: of(&area.memory),
            file: of(&area.file),
            missed: of(&area.missed),
        })
    }

    fn area(&self, kind: AreaKind) -> &AreaCounters {
        &self.0[kind as usize]
    }
}

/// Who asks: for what it is counted.
#[derive(Debug, Default)]
pub struct Principal {
    /// How often it asked.
    pub counters: Counters,
    /// What it read ahead.
    pub ahead: Arc<AheadCounters>,
}

/// A block that was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// Its tag.
    pub tag: [u8; 16],
    /// The file had it, and not memory.
    pub is_from_file: bool,
}

/// Blocks that were there, for a reading that counts once however often it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    memory: [u64; 3],
    file: [u64; 3],
}

impl Tally {
    /// One more.
    pub fn add(&mut self, area: Area, hit: Hit) {
        let counts = match hit.is_from_file {
            true => &mut self.file,
            false => &mut self.memory,
        };
        counts[area.kind() as usize] += 1;
    }
}

/// How a block is got from the file: waiting for it, or not.
type GetFrom = fn(&Cache, Area, Id, &mut [u8]) -> Option<[u8; 16]>;

/// See the module's head.
pub struct HostCache {
    memory: Option<Memory>,
    file: OnceLock<Arc<Cache>>,
    counters: Counters,
    /// Who is used, and how often: the file may come later.
    used: Mutex<Uses<Sharer>>,
}

/// Somebody who uses what is kept for a volume or an image.
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
    /// With so many bytes of blocks in memory; 0 for none.
    #[must_use]
    pub fn new(memory_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            memory: (memory_bytes > 0).then(|| Memory::new(memory_bytes)),
            file: OnceLock::new(),
            counters: Counters::default(),
            used: Mutex::new(Uses::new()),
        })
    }

    /// From now on with this file, unless it has one.
    pub fn use_file(&self, file: Arc<Cache>) {
        let used = self.used();
        if self.file.set(Arc::clone(&file)).is_ok() {
            used.iter().for_each(|sharer| file.begin_use(sharer));
        }
    }

    fn used(&self) -> MutexGuard<'_, Uses<Sharer>> {
        self.used.lock()
    }

    /// What is kept for `sharer` is used as long as this is not dropped.
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

    /// The part in a file, if there is one by now.
    #[must_use]
    pub fn file(&self) -> Option<&Arc<Cache>> {
        self.file.get()
    }

    /// Whether what is read ahead has a place, and how much one reader may have there, in
    /// bytes.
    #[must_use]
    pub fn ahead_max_bytes(&self) -> Option<u64> {
        self.memory.as_ref().map(Memory::ahead_max_bytes)
    }

    /// A block's sealed content, into `sealed` of [`SLOT_BYTES`](crate::store::SLOT_BYTES),
    /// if that is to be had without waiting for a device. It may be what somebody has put
    /// there: whoever asks opens it.
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
        let (tag, is_from_file) = match self.remembered(area, id, sealed) {
            Some(tag) => (tag, false),
            None => (in_file(self.file()?, area, id, sealed)?, true),
        };
        Some(Hit { tag, is_from_file })
    }

    fn remembered(self: &Arc<Self>, area: Area, id: Id, sealed: &mut [u8]) -> Option<[u8; 16]> {
        let memory = self.memory.as_ref()?;
        let found = memory.get(id, sealed)?;
        match (found.was_ahead, self.file()) {
            (true, _) => self.keep(area, id, found.tag, sealed),
            // What is in memory is not to seem idle in the file.
            (false, Some(file)) => {
                file.touch(area, id);
            }
            (false, None) => {}
        }
        Some(found.tag)
    }

    /// A block does not open: it makes room for what units have.
    pub fn forget(&self, id: Id) {
        if let Some(memory) = &self.memory {
            memory.forget(id);
        }
        if let Some(file) = self.file() {
            file.forget(id);
        }
    }

    /// Whether a block is here, as far as is known: that is not asking for it. Does not wait.
    #[must_use]
    pub fn has(&self, id: Id) -> bool {
        let is_in = |memory: &Memory| memory.has(id);
        self.memory.as_ref().is_some_and(is_in) || self.is_in_file(id)
    }

    /// A block will be asked for, for `area`. Whether it is in the file.
    pub fn touch(&self, area: Area, id: Id) -> bool {
        self.file().is_some_and(|file| file.touch(area, id))
    }

    /// A map page is of the newest version no more, for `protector`.
    pub fn release(&self, protector: Protector, id: Id) {
        if let Some(file) = self.file() {
            file.release(protector, id);
        }
    }

    /// An attachment has ended: no map page is protected for it.
    pub fn release_all(&self, protector: Protector) {
        if let Some(file) = self.file() {
            file.release_all(protector);
        }
    }

    /// Whether it is in the file.
    #[must_use]
    pub fn is_in_file(&self, id: Id) -> bool {
        self.file().is_some_and(|file| file.has(id))
    }

    /// Keeps a block that is likely to be asked for: if its area's policy says so and there is
    /// time for it.
    pub fn keep(self: &Arc<Self>, area: Area, id: Id, tag: [u8; 16], sealed: &[u8]) {
        if let Some(memory) = &self.memory {
            memory.offer(id, tag, sealed);
        }
        if let Some(file) = self.file() {
            file.offer(area, id, tag, sealed);
        }
    }

    /// Keeps a block that was read ahead.
    pub fn keep_ahead(&self, principal: &Principal, id: Id, tag: [u8; 16], sealed: &[u8]) {
        if let Some(memory) = &self.memory {
            memory.offer_ahead(id, tag, sealed, &principal.ahead);
        }
    }

    /// Blocks were asked for, and had.
    pub fn count_hits(&self, principal: &Principal, tally: &Tally) {
        for kind in AreaKind::ALL {
            let (memory, file) = (tally.memory[kind as usize], tally.file[kind as usize]);
            self.count(principal, kind, |area| &area.memory, memory);
            self.count(principal, kind, |area| &area.file, file);
        }
    }

    /// So many blocks were asked for, and read from units.
    pub fn count_misses(&self, principal: &Principal, kind: AreaKind, count: u64) {
        self.count(principal, kind, |area| &area.missed, count);
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

    /// How often it was asked so far, by [`AreaKind`].
    #[must_use]
    pub fn counts(&self) -> [AreaCounts; 3] {
        self.counters.counts()
    }

    /// How many blocks are in memory, and may be.
    #[must_use]
    pub fn memory_sizes(&self) -> (usize, usize) {
        self.memory.as_ref().map_or((0, 0), Memory::sizes)
    }
}

impl Principal {
    /// What it read ahead so far.
    #[must_use]
    pub fn ahead_counts(&self) -> AheadCounts {
        self.ahead.counts()
    }
}
