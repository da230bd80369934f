//! [`Leaves`]: iterates over all of a version's blocks, in order, a leaf at a time.

use std::ops::Range;

use super::entry::Entry;
use super::overlay::Overlay;
use super::page::PAGE_ENTRIES;
use super::tree::{FetchPages, Level, Position, Root};

/// The blocks of one leaf, with what was written over it since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The leaf itself; `None` if all its blocks were written since.
    pub page: Option<(Position, Entry)>,
    /// Its blocks that are not holes, in order, and where each is.
    pub blocks: Vec<(u64, Entry)>,
    /// The first block after the leaf.
    pub end: u64,
}

/// A walk through a tree and the tail over it. It keeps one page per level in memory, beside
/// what `F` caches.
pub struct Leaves<F> {
    pages: F,
    root: Root,
    /// The tail's blocks, in order.
    blocks: Vec<(u64, Entry)>,
    zeroes: Vec<Range<u64>>,
    /// Pages still to be visited, the next one last.
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

    /// The next leaf that exists or has blocks in the tail; `None` after the last. May wait.
    ///
    /// # Errors
    /// The error of a page that cannot be read.
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

    /// Queues a page, if anything is in it.
    fn push(&mut self, position: Position, entry: Option<Entry>) {
        if entry.is_some() || !self.written(&position.blocks()).is_empty() {
            self.left.push((position, entry));
        }
    }

    fn written(&self, range: &Range<u64>) -> &[(u64, Entry)] {
        let at = |limit| self.blocks.partition_point(|(block, _)| *block < limit);
        &self.blocks[at(range.start)..at(range.end)]
    }

    /// The entries of these blocks in the tail or, below it, in the leaf.
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
