//! [`Owners`]: the owner of each block, found in constant time.
//!
//! An owner is two numbers: the inode and the position in the file. A page holds the owners of 1024
//! blocks. A page within one long run stores only its first owner, so a disk full of long files
//! needs little memory; at worst a block needs 8 bytes.

use std::collections::HashMap;
use std::ops::Range;

const PAGE_BLOCKS: u64 = 1024;
const MIXED_BYTES: u64 = 8 * PAGE_BLOCKS;

// No inodes have these numbers.
const INODE_TABLE: u32 = u32::MAX;
const BLOCK_BITMAP: u32 = u32::MAX - 1;
const INODE_BITMAP: u32 = u32::MAX - 2;
const LAYOUT: u32 = u32::MAX - 3;

/// Inodes are below this.
pub(super) const INODES_MAX: u32 = u32::MAX - 16;

/// The position that stands for a block of a file's map.
const MAP_PLACE: u32 = u32::MAX;

/// The owner of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The block has no known owner.
    Unowned,
    /// The block holds a superblock, a copy of one, or group descriptors.
    Layout,
    /// The block is the block bitmap of this group.
    BlockBitmap(u32),
    /// The block is the inode bitmap of this group.
    InodeBitmap(u32),
    /// The block is part of an inode table. Table blocks are counted over all groups.
    InodeTable(u32),
    /// The block holds the content of a file or directory.
    Content {
        /// The inode number.
        inode: u32,
        /// The position of the block in the file, in blocks.
        place: u32,
    },
    /// The block is part of a file's map, or holds its extended attributes.
    Map {
        /// The inode number.
        inode: u32,
    },
}

impl Owner {
    fn pair(self) -> (u32, u32) {
        match self {
            Self::Unowned => (0, 0),
            Self::Layout => (LAYOUT, 0),
            Self::BlockBitmap(group) => (BLOCK_BITMAP, group),
            Self::InodeBitmap(group) => (INODE_BITMAP, group),
            Self::InodeTable(block) => (INODE_TABLE, block),
            Self::Content { inode, place } => (inode, place),
            Self::Map { inode } => (inode, MAP_PLACE),
        }
    }

    fn of((inode, place): (u32, u32)) -> Self {
        match (inode, place) {
            (0, _) => Self::Unowned,
            (LAYOUT, _) => Self::Layout,
            (BLOCK_BITMAP, group) => Self::BlockBitmap(group),
            (INODE_BITMAP, group) => Self::InodeBitmap(group),
            (INODE_TABLE, block) => Self::InodeTable(block),
            (inode, MAP_PLACE) => Self::Map { inode },
            (inode, place) => Self::Content { inode, place },
        }
    }

    /// The owner of the block `blocks` further in a run.
    fn after(self, blocks: u64) -> Self {
        let blocks = blocks as u32;
        match self {
            Self::Content { inode, place } => Self::Content {
                inode,
                place: place.wrapping_add(blocks),
            },
            Self::InodeTable(block) => Self::InodeTable(block.wrapping_add(blocks)),
            other => other,
        }
    }
}

enum Page {
    /// The blocks are one run that begins with this owner.
    Run(Owner),
    Mixed(Box<[(u32, u32); PAGE_BLOCKS as usize]>),
}

impl Page {
    fn of(&self, at: u64) -> Owner {
        match self {
            Self::Run(first) => first.after(at),
            Self::Mixed(owners) => Owner::of(owners[at as usize]),
        }
    }
}

/// The owners of all blocks.
#[derive(Default)]
pub(super) struct Owners {
    pages: HashMap<u64, Page>,
    mixed: u64,
}

impl Owners {
    /// The owner of `block`.
    pub fn of(&self, block: u64) -> Owner {
        let page = self.pages.get(&(block / PAGE_BLOCKS));
        page.map_or(Owner::Unowned, |page| page.of(block % PAGE_BLOCKS))
    }

    /// Calls `each` with the runs of `blocks` that belong to one file or have one purpose, and the
    /// owner of their first block. Runs end at the end of a page.
    pub fn each(&self, blocks: Range<u64>, mut each: impl FnMut(Range<u64>, Owner)) {
        let mut at = blocks.start;
        while at < blocks.end {
            let number = at / PAGE_BLOCKS;
            let end = blocks.end.min((number + 1) * PAGE_BLOCKS);
            match self.pages.get(&number) {
                None => each(at..end, Owner::Unowned),
                Some(page @ Page::Run(_)) => each(at..end, page.of(at % PAGE_BLOCKS)),
                Some(Page::Mixed(owners)) => {
                    let part = &owners[(at % PAGE_BLOCKS) as usize..];
                    let part = &part[..(end - at) as usize];
                    let is_one = |a: &(u32, u32), b: &(u32, u32)| {
                        a.0 == b.0 && (a.1 == MAP_PLACE) == (b.1 == MAP_PLACE)
                    };
                    let mut begin = at;
                    for run in part.chunk_by(is_one) {
                        let end = begin + run.len() as u64;
                        each(begin..end, Owner::of(run[0]));
                        begin = end;
                    }
                }
            }
            at = end;
        }
    }

    /// Whether none of `blocks` has an owner.
    pub fn are_free(&self, blocks: Range<u64>) -> bool {
        let mut at = blocks.start;
        while at < blocks.end {
            let number = at / PAGE_BLOCKS;
            let end = blocks.end.min((number + 1) * PAGE_BLOCKS);
            let is_free = match self.pages.get(&number) {
                None => true,
                Some(Page::Run(_)) => false,
                Some(Page::Mixed(owners)) => {
                    let owners = owners.iter().skip((at % PAGE_BLOCKS) as usize);
                    let mut owners = owners.take((end - at) as usize);
                    owners.all(|(inode, _)| *inode == 0)
                }
            };
            if !is_free {
                return false;
            }
            at = end;
        }
        true
    }

    /// Sets the owners of `blocks` to the run that begins with `first`.
    pub fn set(&mut self, blocks: Range<u64>, first: Owner) {
        let mut at = blocks.start;
        while at < blocks.end {
            let number = at / PAGE_BLOCKS;
            let end = blocks.end.min((number + 1) * PAGE_BLOCKS);
            self.set_in_page(number, at..end, first.after(at - blocks.start));
            at = end;
        }
    }

    /// As [`Owners::set`], for blocks of one page.
    fn set_in_page(&mut self, number: u64, blocks: Range<u64>, first: Owner) {
        let before = self.pages.remove(&number);
        if let Some(Page::Mixed(_)) = before {
            self.mixed -= 1;
        }
        if blocks.end - blocks.start == PAGE_BLOCKS {
            if first != Owner::Unowned {
                self.pages.insert(number, Page::Run(first));
            }
            return;
        }
        let mut owners = match before {
            Some(Page::Mixed(owners)) => owners,
            other => {
                let mut owners = Box::new([(0, 0); PAGE_BLOCKS as usize]);
                if let Some(page) = other {
                    for (at, owner) in (0..).zip(owners.iter_mut()) {
                        *owner = page.of(at).pair();
                    }
                }
                owners
            }
        };
        for (after, block) in (0..).zip(blocks) {
            owners[(block % PAGE_BLOCKS) as usize] = first.after(after).pair();
        }
        self.mixed += 1;
        self.pages.insert(number, Page::Mixed(owners));
    }

    /// The approximate memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.mixed * MIXED_BYTES + self.pages.len() as u64 * 48
    }
}

#[cfg(test)]
mod tests {
    use world::simulated::SimulatedRandom;

    use super::*;

    #[test]
    fn each_block_has_the_owner_that_it_was_given_last() {
        for seed in 0..40 {
            let random = SimulatedRandom::new(seed);
            let (mut owners, mut model) = (Owners::default(), vec![Owner::Unowned; 8000]);
            for inode in 1..60 {
                let begin = random.below(8000);
                let length = match random.below(3) {
                    0 => random.below(20),
                    _ => random.below(4000),
                };
                let end = (begin + length).min(8000);
                let first = match random.below(5) {
                    0 => Owner::Unowned,
                    1 => Owner::Map { inode },
                    2 => Owner::InodeTable(random.below(1 << 20) as u32),
                    _ => Owner::Content {
                        inode,
                        place: random.below(1 << 30) as u32,
                    },
                };
                let is_free = |block: &Owner| *block == Owner::Unowned;
                let are_free = model[begin as usize..end as usize].iter().all(is_free);
                assert_eq!(owners.are_free(begin..end), are_free, "seed {seed}");
                owners.set(begin..end, first);
                for block in begin..end {
                    model[block as usize] = first.after(block - begin);
                }
            }
            for (block, expected) in (0..).zip(&model) {
                assert_eq!(owners.of(block), *expected, "seed {seed}, block {block}");
            }
            let begin = random.below(8000);
            let (mut next, end) = (begin, begin + random.below(8000 - begin));
            owners.each(begin..end, |run, first| {
                assert!(run.start == next && run.end > next, "seed {seed}: {run:?}");
                next = run.end;
                let is_map = |owner: Owner| owner.pair().1 == MAP_PLACE;
                for owner in &model[run.start as usize..run.end as usize] {
                    assert_eq!(owner.pair().0, first.pair().0, "seed {seed}: {run:?}");
                    assert_eq!(is_map(*owner), is_map(first), "seed {seed}: {run:?}");
                }
            });
            assert_eq!(next, end, "seed {seed}");
            assert!(owners.bytes() <= 8 * (MIXED_BYTES + 48));
        }
    }

    #[test]
    fn a_long_file_needs_little_memory() {
        let mut owners = Owners::default();
        let first = Owner::Content {
            inode: 12,
            place: 0,
        };
        owners.set(5..5 + (1 << 20), first);
        assert_eq!(owners.of(5 + 77_777), first.after(77_777));
        assert_eq!(owners.of(4), Owner::Unowned);
        assert!(owners.bytes() < 100_000, "{}", owners.bytes());
    }
}
