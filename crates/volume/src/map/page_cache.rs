//! [`PageCache`]: opened map pages in memory; bounded for a volume or for a whole host.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::entry::Entry;
use super::overlay::BlockMap;
use super::page::{PAGE_BYTES, Page};
use super::tree::{Level, Lookup, Position, Root};

/// A memory budget that several caches share.
#[derive(Debug)]
pub struct PageBudget {
    pages: usize,
    users: AtomicUsize,
}

impl PageBudget {
    /// The smallest share, in pages: 4 MiB. One request may need the pages of 32 MiB of
    /// data, and other requests are running.
    pub const SHARE_MIN: usize = 1024;

    /// A budget of `bytes` for all caches together.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Self> {
        let pages = bytes / PAGE_BYTES as u64;
        Arc::new(Self {
            pages: usize::try_from(pages).unwrap_or(usize::MAX),
            users: AtomicUsize::new(0),
        })
    }

    /// The share of each cache, in pages.
    fn share(&self) -> usize {
        let users = self.users.load(Ordering::Relaxed).max(1);
        (self.pages / users).max(Self::SHARE_MIN)
    }
}

/// Pages of any version and any volume, by location, which names one content for
/// ever. Bounded; the least recently used pages are evicted first (CLOCK).
#[derive(Debug)]
pub struct PageCache {
    slots: Vec<CacheSlot>,
    by_location: BlockMap<usize>,
    hand: usize,
    room: Room,
}

/// The capacity of a cache.
#[derive(Debug)]
enum Room {
    Own(usize),
    Shared(Arc<PageBudget>),
}

#[derive(Debug)]
struct CacheSlot {
    location: u64,
    page: Arc<Page>,
    used: bool,
}

impl PageCache {
    /// A cache of at most `pages_max` pages (at least three: a path).
    #[must_use]
    pub fn new(pages_max: usize) -> Self {
        Self::with(Room::Own(pages_max.max(3)))
    }

    /// A cache that shares a budget with others for as long as it exists.
    #[must_use]
    pub fn sharing(budget: Arc<PageBudget>) -> Self {
        budget.users.fetch_add(1, Ordering::Relaxed);
        Self::with(Room::Shared(budget))
    }

    fn with(room: Room) -> Self {
        Self {
            slots: Vec::new(),
            by_location: BlockMap::default(),
            hand: 0,
            room,
        }
    }

    fn pages_max(&self) -> usize {
        match &self.room {
            Room::Own(pages_max) => *pages_max,
            Room::Shared(budget) => budget.share(),
        }
    }

    /// The page at `entry`.
    #[inline]
    pub fn get(&mut self, entry: Entry) -> Option<&Arc<Page>> {
        let slot = &mut self.slots[*self.by_location.get(&entry.location.bits())?];
        slot.used = true;
        Some(&slot.page)
    }

    /// Keeps a page.
    pub fn insert(&mut self, entry: Entry, page: Arc<Page>) {
        let location = entry.location.bits();
        if self.by_location.contains_key(&location) {
            return;
        }
        let slot = CacheSlot {
            location,
            page,
            used: true,
        };
        let pages_max = self.pages_max();
        if self.slots.len() < pages_max {
            self.by_location.insert(location, self.slots.len());
            self.slots.push(slot);
            return;
        }
        // The share shrinks when other caches join the budget.
        while self.slots.len() > pages_max {
            self.turn_to_oldest();
            let gone = self.slots.swap_remove(self.hand);
            self.by_location.remove(&gone.location);
            if let Some(moved) = self.slots.get(self.hand) {
                self.by_location.insert(moved.location, self.hand);
            }
        }
        self.turn_to_oldest();
        self.by_location.remove(&self.slots[self.hand].location);
        self.by_location.insert(location, self.hand);
        self.slots[self.hand] = slot;
        self.hand += 1;
    }

    /// Turns the hand to the page that is evicted next.
    fn turn_to_oldest(&mut self) {
        self.hand %= self.slots.len();
        while std::mem::take(&mut self.slots[self.hand].used) {
            self.hand = (self.hand + 1) % self.slots.len();
        }
    }

    /// Looks up `block` under `root`.
    pub fn lookup(&mut self, root: &Root, block: u64) -> Lookup {
        let mut position = Position::covering(Level::Root, block);
        let mut next = root.get(position.index);
        loop {
            let Some(entry) = next else {
                return Lookup::Known(None);
            };
            let Some(page) = self.get(entry) else {
                return Lookup::Missing(position, entry);
            };
            let index = position.entry_for(block);
            next = page.get(index);
            match position.child(index) {
                Some(child) => position = child,
                None => return Lookup::Known(next),
            }
        }
    }

    /// As [`PageCache::lookup`], and if the block is a hole, up to which block
    /// (exclusive) everything is one for sure.
    pub fn lookup_run(&mut self, root: &Root, block: u64) -> (Lookup, u64) {
        let mut position = Position::covering(Level::Root, block);
        let mut next = root.get(position.index);
        let mut covers = position.blocks();
        loop {
            let Some(entry) = next else {
                return (Lookup::Known(None), covers.end);
            };
            let Some(page) = self.get(entry) else {
                return (Lookup::Missing(position, entry), block + 1);
            };
            let index = position.entry_for(block);
            next = page.get(index);
            match position.child(index) {
                Some(child) => {
                    covers = child.blocks();
                    position = child;
                }
                None => return (Lookup::Known(next), block + 1),
            }
        }
    }
}

impl Drop for PageCache {
    fn drop(&mut self) {
        if let Room::Shared(budget) = &self.room {
            budget.users.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Location, Sequence};

    use super::*;

    fn entry(number: u64) -> Entry {
        Entry {
            location: Location::from_bits(number + 1),
            sequence: Sequence::ZERO,
        }
    }

    fn fill(cache: &mut PageCache, numbers: std::ops::Range<u64>) {
        for number in numbers {
            cache.insert(entry(number), Arc::new(Page::default()));
        }
    }

    fn count(cache: &mut PageCache, numbers: std::ops::Range<u64>) -> usize {
        numbers
            .filter(|number| cache.get(entry(*number)).is_some())
            .count()
    }

    #[test]
    fn a_budget_is_shared_by_those_that_live() {
        let budget = PageBudget::new(10_000 * PAGE_BYTES as u64);
        let mut one = PageCache::sharing(Arc::clone(&budget));
        fill(&mut one, 0..20_000);
        assert_eq!(count(&mut one, 0..20_000), 10_000);
        let mut other = PageCache::sharing(Arc::clone(&budget));
        fill(&mut other, 0..20_000);
        assert_eq!(count(&mut other, 0..20_000), 5_000);
        // Which frees memory when it needs room next.
        fill(&mut one, 30_000..30_001);
        assert_eq!(count(&mut one, 0..30_001), 5_000);
        assert!(one.get(entry(30_000)).is_some());
        drop(other);
        fill(&mut one, 40_000..60_000);
        assert_eq!(count(&mut one, 0..60_000), 10_000);
        let many: Vec<_> = (0..100)
            .map(|_| PageCache::sharing(Arc::clone(&budget)))
            .collect();
        fill(&mut one, 60_000..60_001);
        assert_eq!(count(&mut one, 0..60_001), PageBudget::SHARE_MIN);
        drop(many);
    }
}
