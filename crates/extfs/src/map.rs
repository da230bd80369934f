//! The block map of a file: its tree of extents, or its indirect blocks.
//!
//! In a hostile map a node may occur twice, or in two files, so that the same blocks would be read
//! again and again. So every node is claimed with [`Nodes::claim`], which succeeds once for each
//! block, and [`Nodes::has_room`] checks the memory before a node is kept.

use std::ops::Range;

use super::Source;
use super::fields::{le16, le32};
use super::inode::{MAP_BYTES, Map};
use super::superblock::Superblock;
use super::view::ScanError;

const MAGIC: u16 = 0xF30A;
/// The maximal depth of a tree of extents.
const DEPTH_MAX: u16 = 5;
/// The offset in the length of an extent that marks it as unwritten. Such blocks read as zeroes.
const WRITTEN_MAX: u16 = 32_768;

/// The number of direct block numbers in an inode. One single, one double and one triple indirect
/// block follow.
const DIRECT: usize = 12;

/// A run of consecutive blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The position of the first block in the file, in blocks.
    pub place: u32,
    /// The number of blocks, at least one.
    pub length: u32,
    /// The first block on the disk.
    pub block: u64,
    /// Whether the blocks are reserved and read as zeroes.
    pub is_unwritten: bool,
}

/// The bookkeeping of map nodes.
pub(super) trait Nodes {
    /// Claims a block as a node of this file's map. Returns false if it cannot be one.
    fn claim(&mut self, block: u64) -> bool;

    /// Whether the content of nodes has to be kept.
    fn are_kept(&self) -> bool;

    /// Fails if `bytes` bytes of runs and nodes exceed the limit on memory.
    fn has_room(&self, bytes: u64) -> Result<(), ScanError>;
}

/// A map that was read.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// The runs in the order of their positions in the file.
    pub runs: Vec<Run>,
    /// The nodes of the map with their content, if that is kept.
    pub nodes: Vec<(u64, Box<[u8]>)>,
    /// The number of invalid parts.
    pub damaged: u64,
}

/// Reads the map of a file.
pub(super) fn walk(
    map: &Map,
    superblock: &Superblock,
    source: &dyn Source,
    nodes: &mut dyn Nodes,
) -> Result<Walked, ScanError> {
    let mut walk = Walk {
        superblock,
        source,
        nodes,
        walked: Walked::default(),
        bytes: 0,
    };
    match map {
        Map::Extents(root) => {
            let depth = le16(root, 6);
            walk.walk_extents(root, depth, 0..u64::from(u32::MAX))?;
        }
        Map::Indirect(numbers) => walk.walk_numbers(numbers)?,
        Map::Inline(_) | Map::InlineNames { .. } | Map::None => {}
    }
    Ok(walk.walked)
}

struct Walk<'a> {
    superblock: &'a Superblock,
    source: &'a dyn Source,
    nodes: &'a mut dyn Nodes,
    walked: Walked,
    /// The memory of runs and nodes, in bytes.
    bytes: u64,
}

impl Walk<'_> {
    /// Reads a node of a tree of extents that covers this range of positions.
    fn walk_extents(
        &mut self,
        node: &[u8],
        depth: u16,
        places: Range<u64>,
    ) -> Result<(), ScanError> {
        let (magic, entries) = (le16(node, 0), usize::from(le16(node, 2)));
        let room = (node.len() - 12) / 12;
        if magic != MAGIC || entries > room || le16(node, 6) != depth || depth > DEPTH_MAX {
            self.walked.damaged += 1;
            return Ok(());
        }
        let entries: Vec<&[u8]> = node[12..].chunks_exact(12).take(entries).collect();
        let mut begin = places.start;
        for (at, entry) in entries.iter().enumerate() {
            let place = u64::from(le32(entry, 0));
            let next = entries.get(at + 1).map(|next| u64::from(le32(next, 0)));
            let end = next.unwrap_or(places.end).min(places.end);
            if place < begin || place >= end {
                self.walked.damaged += 1;
                continue;
            }
            begin = end;
            if depth == 0 {
                self.add_extent(entry, place..end)?;
                continue;
            }
            let below = u64::from(le32(entry, 4)) | u64::from(le16(entry, 8)) << 32;
            if let Some(node) = self.read_node(below)? {
                self.walk_extents(&node, depth - 1, place..end)?;
            }
        }
        Ok(())
    }

    /// Adds to the memory.
    fn grow(&mut self, bytes: usize) -> Result<(), ScanError> {
        self.bytes += bytes as u64;
        self.nodes.has_room(self.bytes)
    }

    fn push(&mut self, run: Run) -> Result<(), ScanError> {
        self.grow(size_of::<Run>())?;
        self.walked.runs.push(run);
        Ok(())
    }

    fn add_extent(&mut self, entry: &[u8], places: Range<u64>) -> Result<(), ScanError> {
        let length = le16(entry, 4);
        let block = u64::from(le32(entry, 8)) | u64::from(le16(entry, 6)) << 32;
        let run = Run {
            place: places.start as u32,
            length: match length > WRITTEN_MAX {
                true => u32::from(length - WRITTEN_MAX),
                false => u32::from(length),
            },
            block,
            is_unwritten: length > WRITTEN_MAX,
        };
        let fits = u64::from(run.length) <= places.end - places.start;
        if !fits || run.length == 0 || !self.is_there(block, run.length.into()) {
            self.walked.damaged += 1;
            return Ok(());
        }
        self.push(run)
    }

    fn is_there(&self, block: u64, length: u64) -> bool {
        let end = block.checked_add(length);
        block >= self.superblock.first_block && end.is_some_and(|end| end <= self.superblock.blocks)
    }

    /// Reads a node of the map; `None` if the block cannot be one.
    fn read_node(&mut self, block: u64) -> Result<Option<Vec<u8>>, ScanError> {
        if !self.is_there(block, 1) || !self.nodes.claim(block) {
            self.walked.damaged += 1;
            return Ok(None);
        }
        let mut node = vec![0; self.superblock.block_bytes as usize];
        let offset = block * u64::from(self.superblock.block_bytes);
        self.source.read(offset, &mut node)?;
        let is_kept = self.nodes.are_kept();
        let content = if is_kept { node.len() } else { 0 };
        self.grow(content + size_of::<(u64, Box<[u8]>)>())?;
        if is_kept {
            self.walked.nodes.push((block, node.clone().into()));
        }
        Ok(Some(node))
    }

    fn walk_numbers(&mut self, numbers: &[u8; MAP_BYTES]) -> Result<(), ScanError> {
        let mut place = 0;
        for at in 0..DIRECT {
            self.add_block(le32(numbers, at * 4), place)?;
            place += 1;
        }
        for (level, at) in (1..).zip(DIRECT..DIRECT + 3) {
            self.walk_indirect(le32(numbers, at * 4), level, &mut place)?;
        }
        Ok(())
    }

    /// Reads an indirect block. At `level` 1 it holds the numbers of content blocks, above that
    /// those of indirect blocks.
    fn walk_indirect(&mut self, block: u32, level: u32, place: &mut u64) -> Result<(), ScanError> {
        let in_block = u64::from(self.superblock.block_bytes / 4);
        let below = in_block.pow(level - 1);
        let node = match block {
            0 => None,
            block => self.read_node(block.into())?,
        };
        let Some(node) = node else {
            *place += below * in_block;
            return Ok(());
        };
        for number in node.chunks_exact(4).map(|number| le32(number, 0)) {
            match (level, number) {
                (1, _) => {
                    self.add_block(number, *place)?;
                    *place += 1;
                }
                (_, 0) => *place += below,
                _ => self.walk_indirect(number, level - 1, place)?,
            }
        }
        Ok(())
    }

    /// Adds a content block, unless it is a hole.
    fn add_block(&mut self, block: u32, place: u64) -> Result<(), ScanError> {
        let (block, place) = (u64::from(block), u32::try_from(place));
        let Some(place) = place.ok().filter(|place| block != 0 && *place < u32::MAX) else {
            return Ok(());
        };
        if !self.is_there(block, 1) {
            self.walked.damaged += 1;
            return Ok(());
        }
        if let Some(last) = self.walked.runs.last_mut() {
            let follows =
                last.block + u64::from(last.length) == block && last.place + last.length == place;
            if follows {
                last.length += 1;
                return Ok(());
            }
        }
        self.push(Run {
            place,
            length: 1,
            block,
            is_unwritten: false,
        })
    }
}
