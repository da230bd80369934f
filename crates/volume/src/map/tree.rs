//! Finding a block in the tree.

use std::ops::Range;
use std::sync::Arc;

use super::entry::Entry;
use super::overlay::BlockMap;
use super::page::{PAGE_ENTRIES, Page};
use crate::seal::Address;

/// A level of the tree: an entry at level `n` covers `256^n` blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Entries name blocks.
    Leaf = 1,
    /// Entries name leaves.
    Index = 2,
    /// Entries name index pages.
    Root = 3,
}

/// A page's place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Its level.
    pub level: Level,
    /// Which page of that level, from the start of the volume.
    pub index: u64,
}

impl Position {
    /// The page of `level` that covers `block`.
    #[must_use]
    pub fn covering(level: Level, block: u64) -> Self {
        Self {
            level,
            index: block >> (8 * level as u32),
        }
    }

    /// The blocks it covers.
    #[must_use]
    pub fn blocks(self) -> Range<u64> {
        let shift = 8 * self.level as u32;
        self.index << shift..(self.index + 1) << shift
    }

    /// The page below it at `entry`; `None` below leaves.
    #[must_use]
    pub fn child(self, entry: usize) -> Option<Self> {
        let level = match self.level {
            Level::Leaf => return None,
            Level::Index => Level::Leaf,
            Level::Root => Level::Index,
        };
        Some(Self {
            level,
            index: self.index * PAGE_ENTRIES as u64 + entry as u64,
        })
    }

    /// What its seal is bound to.
    #[must_use]
    pub fn address(self) -> Address {
        Address::page(self.level as u8, self.index)
    }

    /// Which entry of this page leads to `block`.
    #[must_use]
    pub fn entry_for(self, block: u64) -> usize {
        (block >> (8 * (self.level as u32 - 1))) as usize % PAGE_ENTRIES
    }
}

/// The top of a tree: an entry for each root page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Root {
    entries: Vec<Option<Entry>>,
}

impl Root {
    /// How many blocks one of its entries covers.
    pub const BLOCKS_PER_ENTRY: u64 = 1 << 24;

    /// The root with these entries.
    #[must_use]
    pub fn new(mut entries: Vec<Option<Entry>>) -> Self {
        while entries.last() == Some(&None) {
            entries.pop();
        }
        Self { entries }
    }

    /// Its entries, without the holes at the end.
    #[must_use]
    pub fn entries(&self) -> &[Option<Entry>] {
        &self.entries
    }

    /// The root page `index`.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<Entry> {
        let index = usize::try_from(index).ok()?;
        self.entries.get(index).copied().flatten()
    }
}

/// What the tree says of a block, as far as its pages are at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The block lies there, or is a hole.
    Known(Option<Entry>),
    /// This page must be fetched first.
    Missing(Position, Entry),
}

/// Pages of any version and any volume by their location, which names one
/// content forever. Bounded; the pages not asked for longest go first (CLOCK).
#[derive(Debug)]
pub struct PageCache {
    slots: Vec<CacheSlot>,
    by_location: BlockMap<usize>,
    hand: usize,
    pages_max: usize,
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
        Self {
            slots: Vec::new(),
            by_location: BlockMap::default(),
            hand: 0,
            pages_max: pages_max.max(3),
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
        if self.slots.len() < self.pages_max {
            self.by_location.insert(location, self.slots.len());
            self.slots.push(slot);
            return;
        }
        while std::mem::take(&mut self.slots[self.hand].used) {
            self.hand = (self.hand + 1) % self.slots.len();
        }
        self.by_location.remove(&self.slots[self.hand].location);
        self.by_location.insert(location, self.hand);
        self.slots[self.hand] = slot;
        self.hand = (self.hand + 1) % self.slots.len();
    }

    /// Finds `block` under `root`.
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

/// Brings pages from wherever they lie, opened and checked.
pub trait FetchPages {
    /// What can go wrong.
    type Error;

    /// The pages at these entries, in order. May wait.
    ///
    /// # Errors
    /// The first page that cannot be had.
    fn fetch(&mut self, pages: &[(Position, Entry)]) -> Result<Vec<Arc<Page>>, Self::Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_nest() {
        let block = (3 << 24) | (4 << 16) | (5 << 8) | 6;
        let root = Position::covering(Level::Root, block);
        assert_eq!((root.index, root.entry_for(block)), (3, 4));
        let index = root.child(4).expect("an index page");
        assert_eq!(index, Position::covering(Level::Index, block));
        assert_eq!(index.entry_for(block), 5);
        let leaf = index.child(5).expect("a leaf");
        assert_eq!(leaf, Position::covering(Level::Leaf, block));
        assert_eq!(leaf.entry_for(block), 6);
        assert_eq!(leaf.child(6), None);
        assert!(leaf.blocks().contains(&block));
    }
}
