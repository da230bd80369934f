//! The slots that die with a version: the walk under test, compared with brute force over
//! random trees of versions.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;

use base::{CopysetId, Location, SegmentId, Sequence, Slot};
use volume::clean::{Side, View, dead};
use volume::map::{
    Entry, FetchPages, Found, Level, Overlay, PAGE_ENTRIES, Page, PageSink, Position, Root, merge,
};
use world::simulated::SimulatedRandom;

/// Pages in memory, shared by all versions.
#[derive(Default, Clone)]
struct Pages {
    pages: HashMap<Entry, Arc<Page>>,
    next: u64,
}

impl Pages {
    fn entry(&mut self) -> Entry {
        self.next += 1;
        let copyset = CopysetId::new(1).expect("12 bits");
        let segment = SegmentId::new(copyset, 1 + self.next / 7).expect("36 bits");
        Entry {
            location: Location::new(segment, Slot((self.next % 7) as u16)),
            sequence: Sequence::new(1, self.next).expect("small"),
        }
    }
}

impl FetchPages for Pages {
    type Error = Infallible;

    fn fetch(&mut self, pages: &[(Position, Entry)]) -> Result<Vec<Arc<Page>>, Infallible> {
        Ok(pages
            .iter()
            .map(|(_, entry)| Arc::clone(&self.pages[entry]))
            .collect())
    }
}

impl PageSink for Pages {
    fn put(&mut self, pages: Vec<(Position, Arc<Page>)>) -> Result<Vec<Entry>, Infallible> {
        let put = |(_, page)| {
            let entry = self.entry();
            self.pages.insert(entry, page);
            entry
        };
        Ok(pages.into_iter().map(put).collect())
    }
}

#[derive(Clone, Default)]
struct Version {
    parent: Option<usize>,
    root: Root,
    tail: Vec<Entry>,
    overlay: Overlay<Entry>,
}

impl Version {
    /// All slots that the version names, found by brute force.
    fn held(&self, pages: &Pages) -> BTreeSet<Location> {
        let mut held: BTreeSet<Location> = self.tail.iter().map(|entry| entry.location).collect();
        let mut level: Vec<(Position, Entry)> = Vec::new();
        for (index, entry) in (0..).zip(self.root.entries()) {
            level.extend(entry.map(|entry| {
                (
                    Position {
                        level: Level::Root,
                        index,
                    },
                    entry,
                )
            }));
        }
        while let Some((position, entry)) = level.pop() {
            held.insert(entry.location);
            for (index, below) in pages.pages[&entry].entries() {
                assert!(index < PAGE_ENTRIES);
                match position.child(index) {
                    Some(child) => level.push((child, below)),
                    None if self
                        .overlay
                        .get(position.blocks().start + index as u64)
                        .is_none() =>
                    {
                        held.insert(below.location);
                    }
                    None => {}
                }
            }
        }
        held.extend(
            self.overlay
                .blocks()
                .filter_map(|(block, _)| match self.overlay.get(block) {
                    Some(Found::Data(entry)) => Some(entry.location),
                    _ => None,
                }),
        );
        held
    }

    fn side(&self, pages: &Pages) -> Side<Pages> {
        Side {
            view: Arc::new(View::new(
                self.root.clone(),
                self.tail.clone(),
                &self.overlay,
            )),
            pages: pages.clone(),
        }
    }
}

/// A block in one of few leaves, of few index and root pages.
fn block(random: &SimulatedRandom) -> u64 {
    random.below(2) << 24 | random.below(2) << 16 | random.below(2) << 8 | random.below(4)
}

/// A child of a version: some writes, and sometimes a checkpoint.
fn child(random: &SimulatedRandom, pages: &mut Pages, below: &Version, parent: usize) -> Version {
    let mut version = Version {
        parent: Some(parent),
        ..below.clone()
    };
    for _ in 0..random.below(5) {
        if random.one_in(3) {
            let start = block(random);
            let length = [1, 3, 300, 70_000, 20_000_000][random.index(5)];
            version.overlay.zero(start..start + length);
        } else {
            let entry = pages.entry();
            version.overlay.insert(block(random), entry);
        }
    }
    version.tail.push(pages.entry());
    if random.one_in(3) {
        version.root = merge(pages, &version.root, &version.overlay).expect("infallible");
        version.overlay = Overlay::default();
        version.tail.clear();
    }
    version
}

#[test]
fn exactly_the_slots_that_no_other_version_names_die_with_a_version() {
    for seed in 0..300 {
        let random = SimulatedRandom::new(seed);
        let mut pages = Pages::default();
        let mut versions: Vec<Option<Version>> = vec![Some(Version::default())];
        for _ in 0..60 {
            let kept: Vec<usize> = (0..versions.len())
                .filter(|at| versions[*at].is_some())
                .collect();
            let chosen = match random.below(3) {
                0 => kept[kept.len() - 1],
                _ => kept[random.index(kept.len())],
            };
            if kept.len() < 2 || random.below(2) == 0 {
                let below = versions[chosen].clone().expect("kept");
                let version = child(&random, &mut pages, &below, chosen);
                versions.push(Some(version));
                continue;
            }
            let children: Vec<usize> = kept
                .iter()
                .copied()
                .filter(|at| {
                    versions[*at]
                        .as_ref()
                        .is_some_and(|one| one.parent == Some(chosen))
                })
                .collect();
            if children.len() > 1 {
                continue;
            }
            let version = versions[chosen].take().expect("kept");
            let neighbors = version.parent.into_iter().chain(children.iter().copied());
            let sides = neighbors.map(|at| versions[at].as_ref().expect("kept").side(&pages));
            let sides: Vec<_> = sides.collect();
            let plan = dead(version.side(&pages), sides).expect("infallible");
            let dying: BTreeSet<Location> = plan
                .segments()
                .flat_map(|(segment, slots)| {
                    slots
                        .into_iter()
                        .map(move |slot| Location::new(segment, slot))
                })
                .collect();
            let mut expected = version.held(&pages);
            for other in versions.iter().flatten() {
                for location in other.held(&pages) {
                    expected.remove(&location);
                }
            }
            assert_eq!(dying, expected, "seed {seed}");
            for at in children {
                versions[at].as_mut().expect("kept").parent = version.parent;
            }
        }
    }
}
