//! Groups of blocks, and where each has its bitmaps and its inodes.

use base::IoError;

use super::Source;
use super::fields::{le16, le32, split64};
use super::superblock::Superblock;

const INODES_UNINITIALIZED: u16 = 0x1;

/// A group, as its descriptor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Where it is noted which blocks are in use.
    pub block_bitmap: u64,
    /// And which inodes.
    pub inode_bitmap: u64,
    /// The first block of its inodes.
    pub inode_table: u64,
    /// None of its inodes was ever used: what lies in the table may be anything.
    pub is_untouched: bool,
}

/// All groups of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups(Vec<Group>);

impl Groups {
    /// Reads the descriptors.
    ///
    /// # Errors
    /// As the disk says.
    pub fn read(superblock: &Superblock, source: &dyn Source) -> Result<Self, IoError> {
        let mut groups = Vec::new();
        let mut block = vec![0; superblock.block_bytes as usize];
        let in_block = u64::from(superblock.block_bytes / superblock.descriptor_bytes);
        for number in 0..superblock.groups().div_ceil(in_block) {
            let at = descriptors_at(superblock, number, in_block);
            source.read(at * u64::from(superblock.block_bytes), &mut block)?;
            let left = superblock.groups() - number * in_block;
            let descriptors = block.chunks_exact(superblock.descriptor_bytes as usize);
            groups.extend(descriptors.take(left.min(in_block) as usize).map(parse));
        }
        Ok(Self(groups))
    }

    /// Each with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        (0..).zip(&self.0)
    }
}

/// Where block `number` of the descriptors lies.
pub(super) fn descriptors_at(superblock: &Superblock, number: u64, in_block: u64) -> u64 {
    let is_apart = superblock
        .first_meta_group
        .is_some_and(|first| number >= u64::from(first));
    if !is_apart {
        return superblock.first_block + 1 + number;
    }
    let group = number * in_block;
    let first = superblock.first_block + group * u64::from(superblock.blocks_per_group);
    first + u64::from(superblock.has_copy(group))
}

fn parse(bytes: &[u8]) -> Group {
    let place = |low: usize, high: usize| match bytes.len() >= 64 {
        true => split64(bytes, low, high),
        false => le32(bytes, low).into(),
    };
    Group {
        block_bitmap: place(0, 32),
        inode_bitmap: place(4, 36),
        inode_table: place(8, 40),
        is_untouched: le16(bytes, 18) & INODES_UNINITIALIZED != 0,
    }
}
