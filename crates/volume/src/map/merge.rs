//! [`merge`]: a checkpoint's work, applying an overlay to the tree by writing new pages.
//!
//! For each root page that the overlay touches, and for its touched index pages, as many at
//! a time as their leaves fit in memory:
//!
//! 1. fetch the old index pages together, or begin empty ones
//! 2. fetch the old leaves of all of them together
//! 3. apply the changes to the leaves
//! 4. put all new leaves together, and enter their locations in the index pages
//!
//! and then the index pages together. Units may be far away, so pages are fetched and put in
//! batches. Untouched subtrees are shared with the old tree. An empty page is not written.

use std::ops::Range;
use std::sync::Arc;

use super::entry::Entry;
use super::overlay::Overlay;
use super::page::{PAGE_ENTRIES, Page};
use super::tree::{FetchPages, Level, Position, Root};

/// Stores the pages that a merge creates.
pub trait PageSink: FetchPages {
    /// Seals and stores `pages`, and returns their entries in order.
    ///
    /// # Errors
    /// If they cannot be stored.
    fn put(&mut self, pages: Vec<(Position, Arc<Page>)>) -> Result<Vec<Entry>, Self::Error>;

    /// The page at `entry` and all below it are not in the new tree; they were not fetched.
    fn removed(&mut self, position: Position, entry: Entry) {
        let _ = (position, entry);
    }
}

/// Leaves in memory at once, at most: 4 MiB.
const LEAVES_AT_ONCE: usize = 1024;

/// Why a merge failed: the sink's error.
pub type MergeError<S> = <S as FetchPages>::Error;

/// Applies `overlay` to the tree at `root` and returns the new tree's root.
///
/// # Errors
/// The sink's error. Pages that were put before it are leftovers.
pub fn merge<S: PageSink>(
    sink: &mut S,
    root: &Root,
    overlay: &Overlay<Entry>,
) -> Result<Root, MergeError<S>> {
    let mut blocks: Vec<(u64, Entry)> = overlay.blocks().collect();
    blocks.sort_unstable_by_key(|(block, _)| *block);
    let zeroes: Vec<Range<u64>> = overlay.zeroes().collect();
    let changes = Changes {
        blocks: &blocks,
        zeroes: &zeroes,
    };

    let mut entries = root.entries().to_vec();
    let data_end = blocks.last().map_or(0, |(block, _)| block + 1);
    let count = data_end.div_ceil(Root::BLOCKS_PER_ENTRY);
    entries.resize(entries.len().max(count as usize), None);
    for (index, entry) in entries.iter_mut().enumerate() {
        let position = Position {
            level: Level::Root,
            index: index as u64,
        };
        let within = changes.within(&position.blocks());
        *entry = match child_fate(&within, position, *entry) {
            Fate::Unchanged => continue,
            Fate::Removed(old) => {
                sink.removed(position, old);
                None
            }
            Fate::Changed => merge_root_page(sink, position, *entry, &within)?,
        };
    }
    Ok(Root::new(entries))
}

/// The part of an overlay that is in some range, sorted.
#[derive(Clone, Copy)]
struct Changes<'a> {
    blocks: &'a [(u64, Entry)],
    zeroes: &'a [Range<u64>],
}

impl<'a> Changes<'a> {
    fn within(&self, range: &Range<u64>) -> Changes<'a> {
        let first = self
            .blocks
            .partition_point(|(block, _)| *block < range.start);
        let last = self.blocks.partition_point(|(block, _)| *block < range.end);
        let zero_first = self.zeroes.partition_point(|zero| zero.end <= range.start);
        let zero_last = self.zeroes.partition_point(|zero| zero.start < range.end);
        Changes {
            blocks: &self.blocks[first..last],
            zeroes: &self.zeroes[zero_first..zero_last.max(zero_first)],
        }
    }
}

/// What becomes of a page.
enum Fate {
    Unchanged,
    Removed(Entry),
    Changed,
}

fn child_fate(within: &Changes<'_>, position: Position, old: Option<Entry>) -> Fate {
    if !within.blocks.is_empty() {
        return Fate::Changed;
    }
    let range = position.blocks();
    match (within.zeroes, old) {
        ([], _) | (_, None) => Fate::Unchanged,
        ([zero], Some(old)) if zero.start <= range.start && range.end <= zero.end => {
            Fate::Removed(old)
        }
        (_, Some(_)) => Fate::Changed,
    }
}

/// A page that the overlay changes.
struct Touched<'a> {
    position: Position,
    /// Its entry in the page above.
    index: usize,
    changes: Changes<'a>,
}

impl Touched<'_> {
    /// The most leaves below an index page that change.
    fn leaves_max(&self) -> usize {
        match self.changes.zeroes {
            [] => self.changes.blocks.len().min(PAGE_ENTRIES),
            _ => PAGE_ENTRIES,
        }
    }
}

/// The children of a page that change; removed ones are taken out of it.
fn touched<'a, S: PageSink>(
    sink: &mut S,
    page: &mut Page,
    position: Position,
    changes: &Changes<'a>,
) -> Vec<Touched<'a>> {
    let mut found = Vec::new();
    for index in 0..PAGE_ENTRIES {
        let Some(position) = position.child(index) else {
            continue;
        };
        let changes = changes.within(&position.blocks());
        match child_fate(&changes, position, page.get(index)) {
            Fate::Unchanged => {}
            Fate::Removed(old) => {
                page.set(index, None);
                sink.removed(position, old);
            }
            Fate::Changed => found.push(Touched {
                position,
                index,
                changes,
            }),
        }
    }
    found
}

/// Fetches the old pages at `entries`, in order; empty ones where there are none.
fn fetch<S: PageSink>(
    sink: &mut S,
    pages: &[(Position, Option<Entry>)],
) -> Result<Vec<Arc<Page>>, MergeError<S>> {
    let old: Vec<(Position, Entry)> = pages
        .iter()
        .filter_map(|(position, entry)| Some((*position, (*entry)?)))
        .collect();
    let mut fetched = match old.is_empty() {
        true => Vec::new(),
        false => sink.fetch(&old)?,
    }
    .into_iter();
    let page = |(_, entry): &(Position, Option<Entry>)| {
        let old = entry.and_then(|_| fetched.next());
        old.unwrap_or_default()
    };
    Ok(pages.iter().map(page).collect())
}

/// Stores the pages that are not empty. Returns the entry of each, in order.
fn put<S: PageSink>(
    sink: &mut S,
    pages: Vec<(Position, Arc<Page>)>,
) -> Result<Vec<Option<Entry>>, MergeError<S>> {
    let is_kept: Vec<bool> = pages.iter().map(|(_, page)| !page.is_empty()).collect();
    let kept: Vec<_> = pages
        .into_iter()
        .filter(|(_, page)| !page.is_empty())
        .collect();
    let mut entries = match kept.is_empty() {
        true => Vec::new(),
        false => sink.put(kept)?,
    }
    .into_iter();
    let entry = |is_kept: bool| is_kept.then(|| entries.next()).flatten();
    Ok(is_kept.into_iter().map(entry).collect())
}

/// Applies the changes to a root page and all below it. Returns its new entry.
fn merge_root_page<S: PageSink>(
    sink: &mut S,
    position: Position,
    old: Option<Entry>,
    changes: &Changes<'_>,
) -> Result<Option<Entry>, MergeError<S>> {
    let mut page = fetch(sink, &[(position, old)])?.pop().unwrap_or_default();
    let page_mut = Arc::make_mut(&mut page);
    let indexes = touched(sink, page_mut, position, changes);
    let mut made = Vec::with_capacity(indexes.len());
    let mut left = &indexes[..];
    while !left.is_empty() {
        let mut leaves = 0;
        let fits = |index: &&Touched<'_>| {
            leaves += index.leaves_max();
            leaves <= LEAVES_AT_ONCE
        };
        let count = left.iter().take_while(fits).count().max(1);
        let (now, later) = left.split_at(count);
        made.extend(merge_indexes(sink, page_mut, now)?);
        left = later;
    }
    let positions = indexes.iter().map(|index| index.position);
    let entries = put(sink, positions.zip(made).collect())?;
    for (index, entry) in indexes.iter().zip(entries) {
        page_mut.set(index.index, entry);
    }
    Ok(put(sink, vec![(position, page)])?.pop().flatten())
}

/// The new content of index pages below `above`, whose leaves have been stored.
fn merge_indexes<S: PageSink>(
    sink: &mut S,
    above: &Page,
    indexes: &[Touched<'_>],
) -> Result<Vec<Arc<Page>>, MergeError<S>> {
    let old: Vec<_> = indexes
        .iter()
        .map(|index| (index.position, above.get(index.index)))
        .collect();
    let mut pages = fetch(sink, &old)?;
    // Each leaf with the number of its index page.
    let mut leaves = Vec::new();
    for (of, (index, page)) in indexes.iter().zip(&mut pages).enumerate() {
        let found = touched(sink, Arc::make_mut(page), index.position, &index.changes);
        leaves.extend(found.into_iter().map(|leaf| (of, leaf)));
    }
    let old: Vec<_> = leaves
        .iter()
        .map(|(of, leaf)| (leaf.position, pages[*of].get(leaf.index)))
        .collect();
    let mut made = Vec::with_capacity(leaves.len());
    for ((_, leaf), mut page) in leaves.iter().zip(fetch(sink, &old)?) {
        apply(Arc::make_mut(&mut page), leaf.position, &leaf.changes);
        made.push((leaf.position, page));
    }
    for ((of, leaf), entry) in leaves.iter().zip(put(sink, made)?) {
        Arc::make_mut(&mut pages[*of]).set(leaf.index, entry);
    }
    Ok(pages)
}

fn apply(leaf: &mut Page, position: Position, changes: &Changes<'_>) {
    let range = position.blocks();
    for zero in changes.zeroes {
        for block in zero.start.max(range.start)..zero.end.min(range.end) {
            leaf.set(position.entry_for(block), None);
        }
    }
    for (block, entry) in changes.blocks {
        leaf.set(position.entry_for(*block), Some(*entry));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::convert::Infallible;

    use base::{CopysetId, Location, SegmentId, Sequence, Slot};
    use proptest::prelude::*;

    use super::super::page_cache::PageCache;
    use super::super::tree::Lookup;
    use super::super::walk::Leaves;
    use super::*;

    /// Keeps pages in memory; location `n` is the `n`th page put.
    #[derive(Default)]
    struct Memory {
        pages: HashMap<Entry, (Position, Arc<Page>)>,
        next: u64,
    }

    impl Memory {
        fn entry(&mut self) -> Entry {
            self.next += 1;
            let segment = SegmentId::new(CopysetId::new(0).expect("12 bits"), self.next);
            Entry {
                location: Location::new(segment.expect("36 bits"), Slot(0)),
                sequence: Sequence::new(1, self.next).expect("small"),
            }
        }

        fn lookup(&self, root: &Root, block: u64) -> Option<Entry> {
            let mut cache = PageCache::new(3);
            loop {
                match cache.lookup(root, block) {
                    Lookup::Known(entry) => return entry,
                    Lookup::Missing(position, entry) => {
                        let (expected, page) = &self.pages[&entry];
                        assert_eq!(*expected, position);
                        cache.insert(entry, Arc::clone(page));
                    }
                }
            }
        }
    }

    impl FetchPages for Memory {
        type Error = Infallible;
        fn fetch(&mut self, pages: &[(Position, Entry)]) -> Result<Vec<Arc<Page>>, Infallible> {
            let page = |(position, entry): &(Position, Entry)| {
                let (expected, page) = &self.pages[entry];
                assert_eq!(expected, position);
                Arc::clone(page)
            };
            Ok(pages.iter().map(page).collect())
        }
    }

    impl PageSink for Memory {
        fn put(&mut self, pages: Vec<(Position, Arc<Page>)>) -> Result<Vec<Entry>, Infallible> {
            let mut entries = Vec::new();
            for (position, page) in pages {
                assert!(!page.is_empty(), "an empty page was put");
                let entry = self.entry();
                self.pages.insert(entry, (position, page));
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64),
        Zero(u64, u64),
        Merge,
    }

    /// Blocks that fall into few leaves of several index and root pages.
    fn block() -> impl Strategy<Value = u64> {
        (0..3_u64, 0..3_u64, 0..3_u64, 0..3_u64)
            .prop_map(|(root, index, leaf, block)| root << 24 | index << 16 | leaf << 8 | block)
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let length = prop_oneof![0..4_u64, Just(300), Just(70_000), Just(20_000_000)];
        let step = prop_oneof![
            6 => block().prop_map(Step::Write),
            2 => (block(), length).prop_map(|(start, length)| Step::Zero(start, length)),
            2 => Just(Step::Merge),
        ];
        proptest::collection::vec(step, 0..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_merged_tree_says_what_the_overlays_said(steps in steps()) {
            let mut plain = std::collections::BTreeMap::new();
            let mut memory = Memory::default();
            let mut overlay = Overlay::default();
            let mut roots = vec![(Root::default(), plain.clone())];
            // What was written over each.
            let mut tails = Vec::new();
            for step in steps.into_iter().chain([Step::Merge]) {
                match step {
                    Step::Write(block) => {
                        let entry = memory.entry();
                        overlay.insert(block, entry);
                        plain.insert(block, entry);
                    }
                    Step::Zero(start, length) => {
                        overlay.zero(start..start + length);
                        plain.retain(|block, _| !(start..start + length).contains(block));
                    }
                    Step::Merge => {
                        let (root, _) = roots.last().expect("never empty");
                        let root = merge(&mut memory, root, &overlay).expect("infallible");
                        tails.push((overlay, plain.clone()));
                        overlay = Overlay::default();
                        roots.push((root, plain.clone()));
                    }
                }
            }
            tails.push((overlay, plain.clone()));
            // Every version, not only the last: pages are never changed.
            for (root, plain) in &roots {
                for (block, entry) in plain {
                    prop_assert_eq!(memory.lookup(root, *block), Some(*entry));
                }
                for block in [0, 1, 255, 256, 65_536, 1 << 24, 3 << 24] {
                    prop_assert_eq!(memory.lookup(root, block), plain.get(&block).copied());
                }
            }
            // And walked through, under what was not merged into them.
            for (at, (root, _)) in roots.iter().enumerate() {
                let (tail, plain) = &tails[at];
                let mut leaves = Leaves::new(&mut memory, root.clone(), tail);
                let mut walked = Vec::new();
                while let Ok(Some(leaf)) = leaves.next_leaf() {
                    walked.extend(leaf.blocks);
                }
                prop_assert_eq!(walked, plain.clone().into_iter().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_tree_that_is_zeroed_is_empty_again() {
        let mut memory = Memory::default();
        let mut overlay = Overlay::default();
        for block in [0, 300, 70_000, 1 << 25] {
            let entry = memory.entry();
            overlay.insert(block, entry);
        }
        let root = merge(&mut memory, &Root::default(), &overlay).expect("infallible");
        assert_ne!(root, Root::default());
        let mut overlay = Overlay::default();
        overlay.zero(0..1 << 30);
        assert_eq!(
            merge(&mut memory, &root, &overlay).expect("infallible"),
            Root::default()
        );
    }
}
