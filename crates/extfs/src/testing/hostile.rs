//! Hostile file systems: maps with more nodes, and a file with more names, than fit into memory.

use std::cell::Cell;

use base::IoError;

use crate::directory::Entry;
use crate::names::ROOT;
use crate::view::File;
use crate::{FileKind, Live, Source};

pub const BLOCK: u64 = 4096;
pub const BLOCKS: u64 = 1 << 22;
pub const DISK_BYTES: u64 = BLOCK * BLOCKS;
pub const GROUPS: u32 = (BLOCKS / 32_768) as u32;
pub const INODES_PER_GROUP: u32 = 32;
/// Numbers in a block.
pub const NUMBERS: u64 = BLOCK / 4;
pub const TABLE: u64 = 300;
pub const ROOT_NAMES: u64 = 400;
/// The root of the map. It names 1024 blocks, each of which names 1024 empty blocks.
pub const TOP: u64 = 1000;
pub const MIDDLE: u64 = 2000;
pub const BOTTOM: u64 = 10_000;

pub const JOURNAL: u32 = 8;
/// The inode number of the file that has the hostile map, or all names of [`deep`].
pub const FILE: u32 = 12;

/// The number of names of [`FILE`] in [`deep`].
pub const LINKS: u32 = 65_000;

/// An ext2 file system, or ext3 with a journal, that is generated while it is read.
pub struct Made {
    /// The inode whose map has a million nodes, if there is one.
    pub hostile: Option<u32>,
    pub has_journal: bool,
    pub reads: Cell<u64>,
}

pub fn put(block: &mut [u8], at: usize, number: u32) {
    block[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

impl Made {
    pub fn new(hostile: Option<u32>) -> Self {
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

    pub fn table(&self) -> Vec<u8> {
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

    pub fn block(&self, number: u64) -> Vec<u8> {
        let mut block = vec![0; BLOCK as usize];
        let mut name = |first: u64| {
            for (at, number) in (first..first + NUMBERS).enumerate() {
                put(&mut block, at * 4, number as u32);
            }
        };
        match number {
            // A descriptor has 32 bytes. Each group has bitmaps and a table of its own.
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

/// A file system with a file whose paths have 250 KB each and 16 GB in total: the file has 65,000
/// names in a directory that is nested 1000 deep.
pub fn deep() -> Live {
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
