//! File systems and partition tables, which the user of a disk can write in any form.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use base::IoError;
use extfs::partition::partitions;
use extfs::{Event, Live, Owner, Source, View};

use crate::images::{Image, images};

const BLOCK: usize = 1024;

/// The maximal number of changes to a disk.
const CHANGES_MAX: usize = 300;

/// The memory limit of a view in most runs, in bytes.
const BYTES_MAX: u64 = 4 << 20;

/// A disk with an image and later writes.
struct Disk {
    image: &'static Image,
    /// The blocks that were written.
    changed: BTreeMap<u64, Vec<u8>>,
    /// The number of bytes that were read.
    read: Cell<u64>,
}

impl Source for Disk {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        self.read.set(self.read.get() + out.len() as u64);
        let end = offset.saturating_add(out.len() as u64);
        let size = self.size();
        if end > size {
            let length = out.len() as u64;
            return Err(IoError::OutOfRange {
                offset,
                length,
                size,
            });
        }
        out.copy_from_slice(&self.image.before[offset as usize..end as usize]);
        let blocks = offset / BLOCK as u64..end.div_ceil(BLOCK as u64);
        for (block, content) in self.changed.range(blocks) {
            let begin = block * BLOCK as u64;
            let (from, to) = (offset.max(begin), end.min(begin + BLOCK as u64));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&content[(from - begin) as usize..(to - begin) as usize]);
        }
        Ok(())
    }
}

impl Disk {
    fn new(image: &'static Image) -> Self {
        Self {
            image,
            changed: BTreeMap::new(),
            read: Cell::new(0),
        }
    }

    fn size(&self) -> u64 {
        self.image.before.len() as u64
    }

    fn block(&self, block: u64) -> Vec<u8> {
        match self.changed.get(&block) {
            Some(content) => content.clone(),
            None => block_of(&self.image.before, block),
        }
    }
}

fn block_of(state: &[u8], block: u64) -> Vec<u8> {
    state[block as usize * BLOCK..][..BLOCK].to_vec()
}

/// A reader of the bytes of an input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn short(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn image(&mut self) -> Option<&'static Image> {
        let number = usize::from(self.byte()?);
        Some(&images()[number % images().len()])
    }

    fn block(&mut self, blocks: &[u64]) -> Option<u64> {
        Some(blocks[usize::from(self.short()?) % blocks.len()])
    }

    /// Changes a block: the offset (u16), the length (u8), and the bytes.
    fn patch(&mut self, content: &mut [u8]) -> Option<()> {
        let at = usize::from(self.short()?) % BLOCK;
        let length = usize::from(self.byte()? % 16) + 1;
        for (into, from) in content[at..].iter_mut().zip(self.bytes(length)) {
            *into = *from;
        }
        Some(())
    }
}

/// Checks that each block in the map of a file belongs to that file, at that position.
fn check(view: &View) {
    for inode in view.inodes() {
        let mut last = None;
        for run in view.runs(inode) {
            assert!(run.length > 0 && last.is_none_or(|end| run.place >= end));
            last = run.place.checked_add(run.length);
            assert!(run.block + u64::from(run.length) <= view.superblock().blocks);
            for at in [0, run.length - 1] {
                let place = run.place + at;
                let owner = view.owner(run.block + u64::from(at));
                assert_eq!(owner, Owner::Content { inode, place });
            }
        }
        let _ = view.path(inode);
        assert!(
            view.blocks_of(inode)
                .all(|range| range.end <= view.superblock().blocks)
        );
    }
}

/// Reads a file system with changed bytes.
///
/// `data`: the number of the image, the memory limit, and changes of blocks.
pub fn ext_view(data: &[u8]) {
    read_view(data);
}

fn read_view(data: &[u8]) -> Option<()> {
    let mut input = Input(data);
    let image = input.image()?;
    let bytes_max = match input.byte()? {
        few @ 1..32 => u64::from(few) << 12,
        _ => BYTES_MAX,
    };
    let mut disk = Disk::new(image);
    let blocks = &image.blocks;
    for _ in 0..CHANGES_MAX {
        let Some(block) = input.block(blocks) else {
            break;
        };
        let mut content = disk.block(block);
        if input.patch(&mut content).is_none() {
            break;
        }
        disk.changed.insert(block, content);
    }
    let read = View::read(&disk, disk.size(), bytes_max);
    // Each block is read a few times, and once more for each directory and map.
    let most = 8 * disk.size() + (64 << 10);
    assert!(disk.read.get() <= most, "{} bytes read", disk.read.get());
    let view = read.ok()?;
    assert!(view.bytes() <= bytes_max + (64 << 10), "{}", view.bytes());
    check(&view);
    Some(())
}

pub fn ext_view_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for number in 0..images().len() as u8 {
        seeds.push(vec![number, 0]);
        // The superblock's features, a group's descriptor, and an inode's map.
        seeds.push(vec![number, 0, 0, 0, 96, 0, 3, 0x46, 2, 0, 0]);
        seeds.push(vec![number, 9, 1, 0, 8, 0, 3, 9, 0, 0, 0]);
        seeds.push(vec![
            number, 0, 5, 0, 0x28, 1, 7, 0x0a, 0xf3, 1, 0, 4, 0, 0, 0,
        ]);
    }
    seeds
}

/// Follows a file system while any blocks are written.
///
/// `data`: the number of the image, and operations: a byte for the kind, and a block.
pub fn ext_live(data: &[u8]) {
    follow(data);
}

fn follow(data: &[u8]) -> Option<()> {
    let mut input = Input(data);
    let image = input.image()?;
    let blocks = &image.blocks;
    let mut disk = Disk::new(image);
    let read = Live::read(&disk, disk.size(), BYTES_MAX);
    let mut live = read.unwrap_or_else(|error| panic!("{}: {error}", image.name));
    let mut events = Vec::new();
    let mut layout_changed = false;
    for _ in 0..CHANGES_MAX {
        let (Some(how), Some(block)) = (input.byte(), input.block(blocks)) else {
            break;
        };
        let mut content = disk.block(block);
        match how % 8 {
            0 | 1 => content = block_of(&image.after, block),
            2 => content = block_of(&image.journaled, block),
            3 | 4 => input.patch(&mut content)?,
            5 => content = disk.block(input.block(blocks)?),
            6 => {
                live.was_read(block * BLOCK as u64, u64::from(how) << 8, &mut events);
                continue;
            }
            _ => {
                find(&mut live, &disk, &mut events);
                continue;
            }
        }
        layout_changed |= live.view().owner(block) == Owner::Layout || block == 1;
        disk.changed.insert(block, content.clone());
        live.was_written(block * BLOCK as u64, &content, &mut events);
        if !live.is_within_bounds() {
            return None;
        }
    }
    find(&mut live, &disk, &mut events);
    if !live.is_within_bounds() {
        return None;
    }
    check(live.view());
    // Without a journal all writes are effective at once. If the file system is valid, the
    // followed view equals one that is read now.
    let has_journal = live.view().superblock().journal_inode.is_some();
    if has_journal || layout_changed || live.view().damaged() > 0 {
        return None;
    }
    let now = View::read(&disk, disk.size(), BYTES_MAX).ok()?;
    if now.damaged() == 0 {
        check(&now);
        assert_alike(live.view(), &now);
    }
    Some(())
}

/// Reads the wanted blocks until none is wanted.
fn find(live: &mut Live, disk: &Disk, events: &mut Vec<Event>) {
    for _ in 0..disk.size() as usize / BLOCK {
        let wanted = live.take_wanted();
        if wanted.is_empty() || !live.is_within_bounds() {
            return;
        }
        let there = disk.size() / BLOCK as u64;
        let found = wanted.into_iter().filter(|block| *block < there);
        let found = found.map(|block| (block, disk.block(block)));
        live.were_found(found.collect(), events);
    }
    panic!("the wanted blocks never end");
}

fn assert_alike(live: &View, now: &View) {
    let inodes = |view: &View| view.inodes().collect::<BTreeSet<u32>>();
    assert_eq!(inodes(live), inodes(now));
    for inode in now.inodes() {
        assert_eq!(live.inode(inode), now.inode(inode), "inode {inode}");
        assert_eq!(live.runs(inode), now.runs(inode), "inode {inode}");
        let is_named = |view: &View| view.path(inode).is_some();
        assert_eq!(is_named(live), is_named(now), "inode {inode}");
    }
    for block in 0..now.superblock().blocks {
        assert_eq!(live.owner(block), now.owner(block), "block {block}");
    }
}

pub fn ext_live_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, image) in images().iter().enumerate() {
        let blocks = &image.blocks;
        let written = |how: u8, state: &[u8]| {
            let mut seed = vec![number as u8];
            for (at, block) in (0_u16..).zip(blocks) {
                if block_of(state, *block) != block_of(&image.before, *block) {
                    seed.push(how);
                    seed.extend(at.to_le_bytes());
                }
            }
            seed
        };
        seeds.push(written(0, &image.after));
        seeds.push(written(2, &image.journaled));
        // The journal is committed, and then written in place.
        seeds.push(
            [
                written(2, &image.journaled),
                written(0, &image.after)[1..].to_vec(),
            ]
            .concat(),
        );
        // Block 5 gets the content of block 9, a byte of an inode changes, and wanted blocks are
        // read.
        let mixed = [&[5, 5, 0, 9, 0, 3, 6, 0, 0x80, 1, 0, 0, 7, 0, 0][..]];
        seeds.push(
            [
                &[number as u8][..],
                mixed[0],
                &written(0, &image.after)[1..],
            ]
            .concat(),
        );
    }
    seeds
}

/// The size of the disk with a partition table, in bytes.
const DISK_BYTES: u64 = 8 << 20;

/// A disk of zeroes after its first bytes.
struct PrefixDisk<'a> {
    bytes: &'a [u8],
    read: Cell<u64>,
}

impl Source for PrefixDisk<'_> {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        self.read.set(self.read.get() + 1);
        assert!(offset + out.len() as u64 <= DISK_BYTES);
        out.fill(0);
        let prefix = self.bytes.get(offset as usize..).unwrap_or_default();
        for (into, from) in out.iter_mut().zip(prefix) {
            *into = *from;
        }
        Ok(())
    }
}

/// A disk that begins with `data`.
pub fn partition_table(data: &[u8]) {
    let disk = PrefixDisk {
        bytes: data,
        read: Cell::new(0),
    };
    let found = partitions(&disk, DISK_BYTES).expect("a disk without faults");
    // Each of four extended partitions may be a chain over the whole disk.
    assert!(
        disk.read.get() <= 4 * 128 * 4 + 10,
        "{} reads",
        disk.read.get()
    );
    assert!(found.len() <= 4 * 128 + 4);
    for one in found {
        assert!(one.offset > 0 && one.length >= 512);
        assert!(one.offset + one.length <= DISK_BYTES);
    }
}

pub fn partition_table_seeds() -> Vec<Vec<u8>> {
    let entry = |kind: u8, first: u32, sectors: u32| {
        let mut entry = vec![0; 16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        entry
    };
    let table = |entries: &[Vec<u8>]| {
        let mut sector = vec![0; 446];
        sector.extend(entries.concat());
        sector.resize(510, 0);
        sector.extend([0x55, 0xAA]);
        sector
    };
    // Logical partitions in sectors 2 to 20.
    let mut logical = table(&[entry(0x83, 30, 10), entry(5, 2, 20)]);
    logical.resize(1024, 0);
    logical.extend(table(&[entry(0x83, 1, 1), entry(5, 2, 4)]));
    logical.resize(4 * 512, 0);
    logical.extend(table(&[entry(0x83, 1, 2), entry(5, 4, 4)]));
    logical.resize(6 * 512, 0);
    logical.extend(table(&[entry(0x83, 1, 2)]));
    let mut guid = table(&[entry(0xEE, 1, u32::MAX)]);
    guid.extend(b"EFI PART\0\0\x01\0\x5c\0\0\0");
    guid.resize(512 + 72, 0);
    guid.extend(2_u64.to_le_bytes());
    guid.extend([128, 0, 0, 0, 128, 0, 0, 0]);
    guid.resize(1024, 0);
    for first in [40_u64, 3000] {
        guid.extend([7; 32]);
        guid.extend(first.to_le_bytes());
        guid.extend((first + 1000).to_le_bytes());
        guid.resize(guid.len().next_multiple_of(128), 0);
    }
    // The same on sectors of 4096 bytes.
    let mut large = guid[..512].to_vec();
    large.resize(4096, 0);
    large.extend(&guid[512..1024]);
    large.resize(8192, 0);
    large.extend(&guid[1024..]);
    vec![logical, guid, large]
}
