//! [`Leaves`]: all of a version's blocks, in order, a leaf at a time.

use std::ops::Range;

use super::entry::Entry;
use super::overlay::Overlay;
use super::page::PAGE_ENTRIES;
use super::tree::{FetchPages, Level, Position, Root};

/// What a leaf covers, and what was written over it since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The leaf itself; none if all that it covers was written since.
    pub page: Option<(Position, Entry)>,
    /// Blocks that are no holes, in order, and where each lies.
    pub blocks: Vec<(u64, Entry)>,
    /// The first block after those that it covers.
    pub end: u64,
}

/// A walk through a tree and the tail over it. It has no more pages in memory than there are
/// levels, but for what `F` keeps.
pub struct Leaves<F> {
    pages: F,
    root: Root,
    /// What the tail says, in order.
    blocks: Vec<(u64, Entry)>,
    zeroes: Vec<Range<u64>>,
    /// Pages that are still to be looked at; the next one is the last one.
    left: Vec<(Position, Option<Entry>)>,
    roots: Range<u64>,
}

impl<F: FetchPages> Leaves<F> {
    /// A walk through a version.
    pub fn new(pages: F, root: Root, tail: &Overlay<Entry>) -> Self {
        let mut blocks: Vec<_> = tail.blocks().collect();
        blocks.sort_unstable();
        let end = blocks.last().map_or(0, |(block, _)| block + 1);
        let roots = (root.entries().len() as u64).max(end.div_ceil(Root::BLOCKS_PER_ENTRY));
        Self {
            pages,
            root,
            blocks,
            zeroes: tail.zeroes().collect(),
            left: Vec::new(),
            roots: 0..roots,
        }
    }

    /// The next leaf that has any block, or is there; `None` after the last one. May wait.
    ///
    /// # Errors
    /// A page that cannot be had.
    pub fn next_leaf(&mut self) -> Result<Option<Leaf>, F::Error> {
        loop {
            let Some((position, entry)) = self.left.pop() else {
                let Some(index) = self.roots.next() else {
                    return Ok(None);
                };
                let level = Level::Root;
                let position = Position { level, index };
                self.push(position, self.root.get(index));
                continue;
            };
            let page = match entry {
                Some(entry) => self.pages.fetch(&[(position, entry)])?.pop(),
                None => None,
            };
            let entry_at = |index| page.as_ref().and_then(|page| page.get(index));
            if position.level == Level::Leaf {
                let blocks = position.blocks();
                let first = blocks.start;
                let below = |block: u64| entry_at((block - first) as usize);
                return Ok(Some(Leaf {
                    page: entry.map(|entry| (position, entry)),
                    end: blocks.end,
                    blocks: self.laid_over(blocks, below),
                }));
            }
            for index in (0..PAGE_ENTRIES).rev() {
                if let Some(child) = position.child(index) {
                    self.push(child, entry_at(index));
                }
            }
        }
    }

    /// A page is to be looked at, if there is anything in it.
    fn push(&mut self, position: Position, entry: Option<Entry>) {
        if entry.is_some() || !self.written(&position.blocks()).is_empty() {
            self.left.push((position, entry));
        }
    }

    fn written(&self, range: &Range<u64>) -> &[(u64, Entry)] {
        let at = |limit| self.blocks.partition_point(|(block, _)| *block < limit);
        &self.blocks[at(range.start)..at(range.end)]
    }

    /// What the tail and, below it, the leaf say of these blocks.
    fn laid_over(
        &self,
        range: Range<u64>,
        below: impl Fn(u64) -> Option<Entry>,
    ) -> Vec<(u64, Entry)> {
        let mut written = self.written(&range).iter().peekable();
        let mut zero = self.zeroes.partition_point(|zero| zero.end <= range.start);
        let mut found = Vec::new();
        for block in range {
            while self.zeroes.get(zero).is_some_and(|zero| zero.end <= block) {
                zero += 1;
            }
            let is_zero = self.zeroes.get(zero).is_some_and(|it| it.start <= block);
            let entry = match written.next_if(|(at, _)| *at == block) {
                Some((_, entry)) => Some(*entry),
                None if is_zero => None,
                None => below(block),
            };
            found.extend(entry.map(|entry| (block, entry)));
        }
        found
    }
}
