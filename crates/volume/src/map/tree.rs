//! The tree's geometry: levels, positions, the root, and lookups.

use std::ops::Range;
use std::sync::Arc;

use super::entry::Entry;
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

/// The position of a page in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The page's level.
    pub level: Level,
    /// The page's number within its level, from the start of the volume.
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

    /// The blocks that the page covers.
    #[must_use]
    pub fn blocks(self) -> Range<u64> {
        let shift = 8 * self.level as u32;
        self.index << shift..(self.index + 1) << shift
    }

    /// The position of the page below at `entry`; `None` below leaves.
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

    /// The address that the page is sealed under.
    #[must_use]
    pub fn address(self) -> Address {
        Address::page(self.level as u8, self.index)
    }

    /// The index of the entry that leads to `block`.
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
    /// The number of blocks that one entry covers.
    pub const BLOCKS_PER_ENTRY: u64 = 1 << 24;

    /// The root with these entries.
    #[must_use]
    pub fn new(mut entries: Vec<Option<Entry>>) -> Self {
        while entries.last() == Some(&None) {
            entries.pop();
        }
        Self { entries }
    }

    /// The entries, without trailing holes.
    #[must_use]
    pub fn entries(&self) -> &[Option<Entry>] {
        &self.entries
    }

    /// The entry of root page `index`.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<Entry> {
        let index = usize::try_from(index).ok()?;
        self.entries.get(index).copied().flatten()
    }
}

/// The result of a lookup in the pages that are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Where the block is; `None` for a hole.
    Known(Option<Entry>),
    /// This page must be fetched first.
    Missing(Position, Entry),
}

/// Fetches map pages, opened and verified.
pub trait FetchPages {
    /// Why a page cannot be fetched.
    type Error;

    /// The pages at these entries, in order. May wait.
    ///
    /// # Errors
    /// That of the first page that cannot be fetched.
    fn fetch(&mut self, pages: &[(Position, Entry)]) -> Result<Vec<Arc<Page>>, Self::Error>;
}

impl<F: FetchPages> FetchPages for &mut F {
    type Error = F::Error;

    fn fetch(&mut self, pages: &[(Position, Entry)]) -> Result<Vec<Arc<Page>>, Self::Error> {
        (**self).fetch(pages)
    }
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
