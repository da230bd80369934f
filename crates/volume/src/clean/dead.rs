//! [`dead`]: the slots that only one version holds.
//!
//! Versions form a tree, and the versions that hold a slot are connected in it: one
//! version is the first to hold the slot, and its descendants hold it until it is
//! overwritten. The neighbors of a version are its parent and its children, among kept
//! versions. A slot of the removed version is freed if no neighbor holds it at the same
//! location. This requires that a version with several children is never removed;
//! `Cleaner::remove_version` refuses that.
//!
//! The walk reads the maps of the removed version and of its neighbors page by page, from
//! the root to the leaves. Where a neighbor has the same page, and the same writes over
//! it, that neighbor holds all slots of this page too, and the page is skipped. The cost
//! is that of the difference, not of the volume.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use catalog::FreePlan;

use crate::map::{Entry, FetchPages, Level, Overlay, PAGE_ENTRIES, Page, Position, Root};

/// A version as the walk sees it: the tree, the entries of its tail pages, and the
/// changes in these pages as sorted lists.
pub struct View {
    root: Root,
    tail_pages: Vec<Entry>,
    blocks: Vec<(u64, Entry)>,
    zeroes: Vec<Range<u64>>,
}

impl View {
    /// The view of a version that has been opened.
    #[must_use]
    pub fn new(root: Root, tail_pages: Vec<Entry>, overlay: &Overlay<Entry>) -> Self {
        let mut blocks: Vec<_> = overlay.blocks().collect();
        blocks.sort_unstable();
        Self {
            root,
            tail_pages,
            blocks,
            zeroes: overlay.zeroes().collect(),
        }
    }

    fn blocks_in(&self, range: &Range<u64>) -> &[(u64, Entry)] {
        let first = self
            .blocks
            .partition_point(|(block, _)| *block < range.start);
        let last = self.blocks.partition_point(|(block, _)| *block < range.end);
        &self.blocks[first..last]
    }

    fn zeroes_in(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.zeroes.partition_point(|zero| zero.end <= range.start);
        let (start, end) = (range.start, range.end);
        self.zeroes[first..]
            .iter()
            .take_while(move |zero| zero.start < end)
            .map(move |zero| zero.start.max(start)..zero.end.min(end))
    }

    fn same_writes(&self, other: &Self, range: &Range<u64>) -> bool {
        self.blocks_in(range) == other.blocks_in(range)
            && self.zeroes_in(range).eq(other.zeroes_in(range))
    }

    /// The entry of `block` in the tail pages: `None` if there is none, `Some(None)` if it
    /// is a hole.
    fn written(&self, block: u64) -> Option<Option<Entry>> {
        if let Ok(index) = self
            .blocks
            .binary_search_by_key(&block, |(block, _)| *block)
        {
            return Some(Some(self.blocks[index].1));
        }
        self.zeroes_in(&(block..block + 1)).next().map(|_| None)
    }
}

/// Why the walk failed: a page could not be read.
pub type DeadError<F> = <F as FetchPages>::Error;

/// A version and the reader of its pages: each opens with its own volume's keys.
pub struct Side<F> {
    /// The version.
    pub view: Arc<View>,
    /// Its pages.
    pub pages: F,
}

impl<F: FetchPages> Side<F> {
    fn fetch(
        &mut self,
        position: Position,
        entry: Option<Entry>,
    ) -> Result<Option<Arc<Page>>, DeadError<F>> {
        match entry {
            Some(entry) => Ok(self.pages.fetch(&[(position, entry)])?.pop()),
            None => Ok(None),
        }
    }
}

/// The slots, of blocks and of map and tail pages, that `version` holds and
/// none of `neighbors` does.
///
/// # Errors
/// If a page cannot be read. Nothing may be freed then.
pub fn dead<F: FetchPages>(
    version: Side<F>,
    neighbors: Vec<Side<F>>,
) -> Result<FreePlan, DeadError<F>> {
    let mut walk = Walk {
        version,
        neighbors,
        plan: FreePlan::default(),
    };
    let held: HashSet<Entry> = walk
        .neighbors
        .iter()
        .flat_map(|side| side.view.tail_pages.iter().copied())
        .collect();
    for page in &walk.version.view.tail_pages {
        if !held.contains(page) {
            walk.plan.add(page.location);
        }
    }
    let view = &walk.version.view;
    let last_block = view.blocks.last().map_or(0, |(block, _)| block + 1);
    let count = (view.root.entries().len() as u64).max(last_block.div_ceil(Root::BLOCKS_PER_ENTRY));
    for index in 0..count {
        let position = Position {
            level: Level::Root,
            index,
        };
        let others = walk
            .neighbors
            .iter()
            .map(|side| side.view.root.get(index))
            .collect();
        walk.page(position, walk.version.view.root.get(index), others)?;
    }
    Ok(walk.plan)
}

struct Walk<F> {
    version: Side<F>,
    neighbors: Vec<Side<F>>,
    plan: FreePlan,
}

impl<F: FetchPages> Walk<F> {
    /// Walks the page at `position`: `own` leads to it in the version's tree,
    /// `others[i]` in neighbor `i`'s.
    fn page(
        &mut self,
        position: Position,
        own: Option<Entry>,
        others: Vec<Option<Entry>>,
    ) -> Result<(), DeadError<F>> {
        let range = position.blocks();
        let view = &self.version.view;
        if own.is_none() && view.blocks_in(&range).is_empty() {
            return Ok(());
        }
        let held_whole = self
            .neighbors
            .iter()
            .zip(&others)
            .any(|(neighbor, other)| *other == own && view.same_writes(&neighbor.view, &range));
        if held_whole {
            return Ok(());
        }
        if let Some(entry) = own
            && !others.contains(&own)
        {
            self.plan.add(entry.location);
        }
        let own_page = self.version.fetch(position, own)?;
        let mut other_pages: Vec<Option<Arc<Page>>> = Vec::with_capacity(others.len());
        for (neighbor, other) in self.neighbors.iter_mut().zip(&others) {
            other_pages.push(match *other == own {
                true => own_page.clone(),
                false => neighbor.fetch(position, *other)?,
            });
        }
        if position.level == Level::Leaf {
            self.leaf(position, own_page.as_deref(), &other_pages);
            return Ok(());
        }
        for index in 0..PAGE_ENTRIES {
            let Some(child) = position.child(index) else {
                continue;
            };
            let entry = |page: &Option<Arc<Page>>| page.as_ref().and_then(|page| page.get(index));
            self.page(
                child,
                entry(&own_page),
                other_pages.iter().map(entry).collect(),
            )?;
        }
        Ok(())
    }

    fn leaf(&mut self, position: Position, own: Option<&Page>, others: &[Option<Arc<Page>>]) {
        for block in position.blocks() {
            let index = position.entry_for(block);
            let in_tree = |page: Option<&Page>| page.and_then(|page| page.get(index));
            let Some(entry) = self
                .version
                .view
                .written(block)
                .unwrap_or_else(|| in_tree(own))
            else {
                continue;
            };
            let held = self.neighbors.iter().zip(others).any(|(neighbor, page)| {
                let found = neighbor
                    .view
                    .written(block)
                    .unwrap_or_else(|| in_tree(page.as_deref()));
                found == Some(entry)
            });
            if !held {
                self.plan.add(entry.location);
            }
        }
    }
}
