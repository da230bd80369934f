//! File systems that somebody made to cost memory: maps that have more nodes than there is
//! room for, and names of files that are not there.

use std::cell::Cell;
use std::collections::BTreeMap;

use base::IoError;

use super::directory::Entry;
use super::names::ROOT;
use super::view::File;
use super::{FileKind, Live, ScanError, Source, View};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1 << 22;
const DISK_BYTES: u64 = BLOCK * BLOCKS;
const GROUPS: u32 = (BLOCKS / 32_768) as u32;
const INODES_PER_GROUP: u32 = 32;
/// Numbers in a block.
const NUMBERS: u64 = BLOCK / 4;
const TABLE: u64 = 300;
const ROOT_NAMES: u64 = 400;
/// The map: this block names 1024, each of which names 1024 more, which name none.
const TOP: u64 = 1000;
const MIDDLE: u64 = 2000;
const BOTTOM: u64 = 10_000;

const JOURNAL: u32 = 8;
pub(crate) const FILE: u32 = 12;

/// How many names [`FILE`] has in [`deep`].
const LINKS: u32 = 65_000;

/// An ext2 file system, or ext3 if it has a journal, that is made as it is read.
struct Made {
    /// Whose map has a million nodes, if anybody's.
    hostile: Option<u32>,
    has_journal: bool,
    reads: Cell<u64>,
}

fn put(block: &mut [u8], at: usize, number: u32) {
    block[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

impl Made {
    fn new(hostile: Option<u32>) -> Self {
        Self {
            hostile,
            has_journal: hostile == Some(JOURNAL),
            reads: Cell::new(0),
        }
    }

    fn superblock(&self, out: &mut [u8]) {
        put(out, 0, INODES_PER_GROUP * GROUPS);
        put(out, 4, BLOCKS as u32);
        put(out, 24, 2);
        put(out, 32, 32_768);
        put(out, 40, INODES_PER_GROUP);
        out[56..58].copy_from_slice(&0xEF53_u16.to_le_bytes());
        put(out, 76, 1);
        out[88..90].copy_from_slice(&128_u16.to_le_bytes());
        if self.has_journal {
            put(out, 92, 0x4);
            put(out, 224, JOURNAL);
        }
        put(out, 100, 0x1);
    }

    fn table(&self) -> Vec<u8> {
        let mut table = vec![0; BLOCK as usize];
        let mut inode = |number: u32, mode: u16, slot: usize, block: u64| {
            let begin = (number as usize - 1) * 128;
            let own = &mut table[begin..begin + 128];
            own[..2].copy_from_slice(&mode.to_le_bytes());
            own[26] = 1;
            put(own, 40 + slot * 4, block as u32);
        };
        inode(2, 0x41ED, 0, ROOT_NAMES);
        if let Some(number) = self.hostile {
            inode(number, 0x81A4, 14, TOP);
        }
        table
    }

    fn block(&self, number: u64) -> Vec<u8> {
        let mut block = vec![0; BLOCK as usize];
        let mut name = |first: u64| {
            for (at, number) in (first..first + NUMBERS).enumerate() {
                put(&mut block, at * 4, number as u32);
            }
        };
        match number {
            // A descriptor has 32 bytes; all groups have bitmaps and tables apart.
            1 => {
                for group in 0..GROUPS {
                    let at = group as usize * 32;
                    put(&mut block, at, 10 + group);
                    put(&mut block, at + 4, 150 + group);
                    put(&mut block, at + 8, TABLE as u32 + group * 100_000);
                }
            }
            TABLE => return self.table(),
            TOP => name(MIDDLE),
            MIDDLE..3024 => name(BOTTOM + (number - MIDDLE) * NUMBERS),
            _ => {}
        }
        block
    }
}

impl Source for Made {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        self.reads.set(self.reads.get() + 1);
        if offset == 1024 {
            out.fill(0);
            self.superblock(out);
            return Ok(());
        }
        let mut block = Vec::new();
        for (at, out) in out.chunks_mut(BLOCK as usize).enumerate() {
            let offset = offset + at as u64 * BLOCK;
            block.clear();
            block.extend(self.block(offset / BLOCK));
            let begin = (offset % BLOCK) as usize;
            out.copy_from_slice(&block[begin..begin + out.len()]);
        }
        Ok(())
    }
}

#[test]
fn a_map_of_a_million_nodes_is_given_up_before_it_is_read() {
    let bytes_max = 4 << 20;
    // A journal's nodes are not kept; a file's are, so of those there are fewer.
    for (inode, reads_max) in [
        (JOURNAL, bytes_max / 24 + 100),
        (FILE, bytes_max / BLOCK + 300),
    ] {
        let made = Made::new(Some(inode));
        let read = View::read(&made, DISK_BYTES, bytes_max);
        let large = matches!(read, Err(ScanError::Large(most)) if most == bytes_max);
        assert!(large, "inode {inode}");
        let reads = made.reads.get();
        assert!(reads <= reads_max, "inode {inode}: {reads} reads");
    }
    // Without either it is read.
    let made = Made::new(None);
    let view = View::read(&made, DISK_BYTES, bytes_max).expect("a file system");
    assert_eq!(view.inodes().count(), 1);
}

/// The blocks of a map come one after the other, and each is a reason to look for more.
#[test]
fn a_map_that_grows_beyond_all_bounds_is_not_followed() {
    let bytes_max = 4 << 20;
    let made = Made::new(None);
    let mut live = Live::read(&made, DISK_BYTES, bytes_max).expect("a file system");
    let grown = Made::new(Some(FILE));
    let mut events = Vec::new();
    live.was_written(TABLE * BLOCK, &grown.table(), &mut events);
    let mut told = 0;
    while live.is_within_bounds() {
        let wanted = live.take_wanted();
        assert!(!wanted.is_empty(), "there are a million");
        told += wanted.len();
        let found = wanted.into_iter().map(|block| (block, grown.block(block)));
        live.were_found(found.collect(), &mut events);
        let bytes = live.view().bytes();
        assert!(bytes <= bytes_max + 65_536, "{bytes}");
    }
    assert!(told <= 1025, "{told} blocks were told");
}

/// A directory's block with so many names of inodes from `first` on.
fn names(first: u32, count: u32) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    let mut at = 0;
    for number in first..first + count {
        let length = match number == first + count - 1 {
            true => BLOCK as usize - at,
            false => 16,
        };
        put(&mut block, at, number);
        block[at + 4..at + 6].copy_from_slice(&(length as u16).to_le_bytes());
        block[at + 6..at + 8].copy_from_slice(&[6, 0]);
        block[at + 8..at + 14].copy_from_slice(format!("{number:06}").as_bytes());
        at += length;
    }
    block
}

#[test]
fn names_of_files_that_are_never_made_are_forgotten_with_them() {
    let made = Made::new(None);
    let mut live = Live::read(&made, DISK_BYTES, 4 << 20).expect("a file system");
    let mut events = Vec::new();
    let mut noted = BTreeMap::new();
    for round in 0..15 {
        let block = names(20 + round * 200, 200);
        live.was_written(ROOT_NAMES * BLOCK, &block, &mut events);
        noted.insert(round, live.unborn.len());
    }
    assert!(noted.values().all(|count| *count == 200), "{noted:?}");
    live.was_written(ROOT_NAMES * BLOCK, &names(2, 1), &mut events);
    assert_eq!(live.unborn.len(), 0);
}

/// A file whose paths have 250 KB each, and 16 GB all together: it has 65,000 names, in a
/// directory that is a thousand below the root.
pub(crate) fn deep() -> Live {
    let mut live = Live::read(&Made::new(None), DISK_BYTES, 64 << 20).expect("a file system");
    let view = &mut live.view;
    let directory = view.inode(ROOT).expect("the root").clone();
    let mut file = directory.clone();
    file.kind = FileKind::File;
    let (mut above, mut block) = (ROOT, ROOT_NAMES);
    for below in 100..1100 {
        block += 1;
        let name = vec![b'd'; 255].into();
        let entry = Entry { inode: below, name };
        view.set_names(block, above, vec![entry]);
        view.files
            .insert(below, Box::new(File::new(directory.clone())));
        assert!(view.is_first_name(below, block));
        above = below;
    }
    view.files.insert(FILE, Box::new(File::new(file)));
    let named = |number: u32| Entry {
        inode: FILE,
        name: number.to_string().into_bytes().into(),
    };
    let numbers: Vec<u32> = (0..LINKS).collect();
    for numbers in numbers.chunks(250) {
        block += 1;
        let entries = numbers.iter().map(|number| named(*number)).collect();
        view.set_names(block, above, entries);
        for _ in numbers {
            view.is_first_name(FILE, block);
        }
    }
    live
}

/// Who wanted one had to have room for all.
#[test]
fn paths_are_made_one_at_a_time() {
    let live = deep();
    let mut paths = live.view().paths(FILE);
    let first = paths.next().expect("it has one");
    assert_eq!(first.len(), 1000 * 256 + 2);
    assert_eq!(live.view().path(FILE), Some(first));
    assert_eq!(paths.take(300).count(), 300);
}
