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

use base::VolumeId;

use crate::memory::{AheadCounters, AheadCounts, Memory};
use crate::store::{Area, AreaKind, Cache, Id};

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

impl AreaCounts {
    /// What part of what was asked for was there, of 1; none, if nothing was asked for.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn hit_ratio(&self) -> Option<f64> {
        let had = self.memory + self.file;
        let all = had + self.missed;
        (all > 0).then(|| had as f64 / all as f64)
    }
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
pub struct Asker {
    /// How often it asked.
    pub counters: Counters,
    /// What it read ahead.
    pub ahead: Arc<AheadCounters>,
}

/// How a block is got from the file: waiting for it, or not.
type GetFrom = fn(&Cache, Area, Id, &mut [u8]) -> Option<[u8; 16]>;

/// See the module's head.
pub struct HostCache {
    memory: Option<Memory>,
    file: OnceLock<Arc<Cache>>,
    counters: Counters,
}

impl HostCache {
    /// With so many bytes of blocks in memory; 0 for none.
    #[must_use]
    pub fn new(memory_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            memory: (memory_bytes > 0).then(|| Memory::new(memory_bytes)),
            file: OnceLock::new(),
            counters: Counters::default(),
        })
    }

    /// From now on with this file, unless it has one.
    pub fn use_file(&self, file: Arc<Cache>) {
        let _ = self.file.set(file);
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
    /// and its tag, if that is to be had without waiting for a device. It may be what somebody
    /// has put there: whoever asks opens it.
    pub fn get_now(
        self: &Arc<Self>,
        asker: &Asker,
        area: Area,
        id: Id,
        sealed: &mut [u8],
    ) -> Option<[u8; 16]> {
        let (tag, _) = self.find(asker, area, id, sealed, Cache::get_now)?;
        Some(tag)
    }

    /// As [`HostCache::get_now`], but waits for the file.
    pub fn get(
        self: &Arc<Self>,
        asker: &Asker,
        area: Area,
        id: Id,
        sealed: &mut [u8],
    ) -> Option<[u8; 16]> {
        let (tag, is_from_file) = self.find(asker, area, id, sealed, Cache::get)?;
        if let Some(memory) = self.memory.as_ref().filter(|_| is_from_file) {
            memory.offer(id, tag, sealed);
        }
        Some(tag)
    }

    /// A block's tag, and whether the file had it, and not memory.
    fn find(
        self: &Arc<Self>,
        asker: &Asker,
        area: Area,
        id: Id,
        sealed: &mut [u8],
        in_file: GetFrom,
    ) -> Option<([u8; 16], bool)> {
        if let Some(tag) = self.remembered(asker, area, id, sealed) {
            return Some((tag, false));
        }
        let tag = in_file(self.file()?, area, id, sealed)?;
        self.count(asker, area, |area| &area.file);
        Some((tag, true))
    }

    fn remembered(
        self: &Arc<Self>,
        asker: &Asker,
        area: Area,
        id: Id,
        sealed: &mut [u8],
    ) -> Option<[u8; 16]> {
        let memory = self.memory.as_ref()?;
        let found = memory.get(id, sealed)?;
        match (found.was_ahead, self.file()) {
            (true, _) => self.keep(area, id, found.tag, sealed),
            // What is in memory is not to seem idle in the file.
            (false, Some(file)) => drop(file.touch(area, id)),
            (false, None) => {}
        }
        self.count(asker, area, |area| &area.memory);
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

    /// A map page is of no newest version any more.
    pub fn release(&self, id: Id) {
        if let Some(file) = self.file() {
            file.release(id);
        }
    }

    /// A volume is not attached any more: none of its map pages is protected for it.
    pub fn release_all(&self, volume: VolumeId) {
        if let Some(file) = self.file() {
            file.release_all(volume);
        }
    }

    /// Whether it is in the file.
    #[must_use]
    pub fn is_in_file(&self, id: Id) -> bool {
        self.file().is_some_and(|file| file.has(id))
    }

    /// A block that was asked for has come from units.
    pub fn missed(
        self: &Arc<Self>,
        asker: &Asker,
        area: Area,
        id: Id,
        tag: [u8; 16],
        sealed: &[u8],
    ) {
        self.count(asker, area, |area| &area.missed);
        self.keep(area, id, tag, sealed);
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
    pub fn keep_ahead(&self, asker: &Asker, id: Id, tag: [u8; 16], sealed: &[u8]) {
        if let Some(memory) = &self.memory {
            memory.offer_ahead(id, tag, sealed, &asker.ahead);
        }
    }

    fn count(&self, asker: &Asker, area: Area, of: fn(&AreaCounters) -> &AtomicU64) {
        for counters in [&self.counters, &asker.counters] {
            of(counters.area(area.kind())).fetch_add(1, Ordering::Relaxed);
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

impl Asker {
    /// What it read ahead so far.
    #[must_use]
    pub fn ahead_counts(&self) -> AheadCounts {
        self.ahead.counts()
    }
}
