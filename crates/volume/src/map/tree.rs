//! Finding a block in the tree.

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
