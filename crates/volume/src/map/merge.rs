//! A checkpoint: laying an overlay into the tree, by making new pages.
//!
//! 1. go down to each page that the overlay touches
//! 2. fetch the old page, or begin an empty one
//! 3. lay the changes over it
//! 4. put all changed children of a page together
//! 5. enter where they lie into the page above
//!
//! Untouched subtrees are shared with the old tree. A page without entries is
//! not kept.

use std::ops::Range;
use std::sync::Arc;

use super::entry::Entry;
use super::overlay::Overlay;
use super::page::{PAGE_ENTRIES, Page};
use super::tree::{FetchPages, Level, Position, Root};

/// Takes the pages a merge makes.
pub trait PageSink: FetchPages {
    /// Seals `pages`, puts them somewhere, and says where, in order.
    ///
    /// # Errors
    /// If there is no place for them.
    fn put(&mut self, pages: Vec<(Position, Arc<Page>)>) -> Result<Vec<Entry>, Self::Error>;
}

/// A merge ended early.
pub type MergeError<S> = <S as FetchPages>::Error;

/// Lays `overlay` over the tree at `root` and returns the new tree's root.
///
/// # Errors
/// What the sink failed with. Pages that were put are then nobody's.
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
            Fate::Same => continue,
            Fate::Gone => None,
            Fate::Changed => {
                let page = content(sink, position, *entry, &within)?;
                put_page(sink, position, page)?
            }
        };
    }
    Ok(Root::new(entries))
}

/// The part of an overlay that lies in some range, sorted.
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

enum Fate {
    Same,
    Gone,
    Changed,
}

fn child_fate(within: &Changes<'_>, position: Position, old: Option<Entry>) -> Fate {
    if !within.blocks.is_empty() {
        return Fate::Changed;
    }
    let range = position.blocks();
    match (within.zeroes, old) {
        ([], _) | (_, None) => Fate::Same,
        ([zero], Some(_)) if zero.start <= range.start && range.end <= zero.end => Fate::Gone,
        (_, Some(_)) => Fate::Changed,
    }
}

fn put_page<S: PageSink>(
    sink: &mut S,
    position: Position,
    page: Arc<Page>,
) -> Result<Option<Entry>, MergeError<S>> {
    if page.is_empty() {
        return Ok(None);
    }
    Ok(sink.put(vec![(position, page)])?.first().copied())
}

/// The new content of a page that the overlay touches. Its children have been
/// put; it has not.
fn content<S: PageSink>(
    sink: &mut S,
    position: Position,
    old: Option<Entry>,
    changes: &Changes<'_>,
) -> Result<Arc<Page>, MergeError<S>> {
    let mut page = match old {
        Some(entry) => sink.fetch(&[(position, entry)])?.pop().unwrap_or_default(),
        None => Arc::default(),
    };
    if position.level == Level::Leaf {
        apply(Arc::make_mut(&mut page), position, changes);
        return Ok(page);
    }
    let page_mut = Arc::make_mut(&mut page);
    let mut changed = Vec::new();
    for index in 0..PAGE_ENTRIES {
        let Some(child) = position.child(index) else {
            continue;
        };
        let within = changes.within(&child.blocks());
        match child_fate(&within, child, page_mut.get(index)) {
            Fate::Same => {}
            Fate::Gone => page_mut.set(index, None),
            Fate::Changed => changed.push((index, child, within)),
        }
    }
    let contents = match position.level {
        Level::Index => leaves(sink, page_mut, &changed)?,
        _ => changed
            .iter()
            .map(|(index, child, within)| content(sink, *child, page_mut.get(*index), within))
            .collect::<Result<_, _>>()?,
    };
    let mut to_put = Vec::new();
    let mut indexes = Vec::new();
    for ((index, child, _), content) in changed.iter().zip(contents) {
        if content.is_empty() {
            page_mut.set(*index, None);
        } else {
            indexes.push(*index);
            to_put.push((*child, content));
        }
    }
    if !to_put.is_empty() {
        for (index, entry) in indexes.into_iter().zip(sink.put(to_put)?) {
            page_mut.set(index, Some(entry));
        }
    }
    Ok(page)
}

/// The new contents of leaves below one index page: their old pages are
/// fetched together.
fn leaves<S: PageSink>(
    sink: &mut S,
    above: &Page,
    changed: &[(usize, Position, Changes<'_>)],
) -> Result<Vec<Arc<Page>>, MergeError<S>> {
    let old: Vec<(Position, Entry)> = changed
        .iter()
        .filter_map(|(index, child, _)| Some((*child, above.get(*index)?)))
        .collect();
    let mut fetched = sink.fetch(&old)?.into_iter();
    let mut contents = Vec::with_capacity(changed.len());
    for (index, child, within) in changed {
        let mut page = match above.get(*index) {
            Some(_) => fetched.next().unwrap_or_default(),
            None => Arc::default(),
        };
        apply(Arc::make_mut(&mut page), *child, within);
        contents.push(page);
    }
    Ok(contents)
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
                        overlay = Overlay::default();
                        roots.push((root, plain.clone()));
                    }
                }
            }
            // Every version, not only the last: pages are never changed.
            for (root, plain) in &roots {
                for (block, entry) in plain {
                    prop_assert_eq!(memory.lookup(root, *block), Some(*entry));
                }
                for block in [0, 1, 255, 256, 65_536, 1 << 24, 3 << 24] {
                    prop_assert_eq!(memory.lookup(root, block), plain.get(&block).copied());
                }
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
