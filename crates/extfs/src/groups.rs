//! [`Groups`]: the block groups of a file system, with their bitmaps and inode tables.

use std::collections::BTreeMap;

use base::IoError;

use super::Source;
use super::fields::{le16, le32, split64};
use super::superblock::Superblock;

const INODES_UNINITIALIZED: u16 = 0x1;

/// A group, as its descriptor describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The block of the block bitmap.
    pub block_bitmap: u64,
    /// The block of the inode bitmap.
    pub inode_bitmap: u64,
    /// The first block of the inode table.
    pub inode_table: u64,
    /// The number of inodes at the end of the table that were never used. Their content is
    /// undefined.
    pub unused_inodes: u32,
}

/// The groups of a file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups(Vec<Group>);

impl Groups {
    /// Reads the group descriptors.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn read(superblock: &Superblock, source: &dyn Source) -> Result<Self, IoError> {
        let mut groups = Vec::new();
        let mut block = vec![0; superblock.block_bytes as usize];
        let in_block = superblock.descriptors_in_block();
        for number in 0..superblock.groups().div_ceil(in_block) {
            let at = descriptors_at(superblock, number, in_block);
            source.read(at * u64::from(superblock.block_bytes), &mut block)?;
            let left = superblock.groups() - number * in_block;
            let descriptors = block.chunks_exact(superblock.descriptor_bytes as usize);
            let descriptors = descriptors.take(left.min(in_block) as usize);
            groups.extend(descriptors.map(|bytes| parse(bytes, superblock)));
        }
        Ok(Self(groups))
    }

    /// The groups after a change of `blocks`; `None` if the descriptor of a new group is missing.
    pub(super) fn changed_by(
        &self,
        superblock: &Superblock,
        blocks: &BTreeMap<u64, Vec<u8>>,
    ) -> Option<Self> {
        let mut groups = self.0.clone();
        let in_block = superblock.descriptors_in_block();
        let mut known = self.0.len() as u64;
        for (number, content) in blocks.iter().filter_map(|(block, content)| {
            let number = descriptors_in(superblock, *block)?;
            Some((number, content))
        }) {
            let first = number * in_block;
            let left = superblock.groups().checked_sub(first)?.min(in_block);
            // Blocks are in the order of their numbers, and so are their groups.
            if first > known {
                return None;
            }
            let descriptors = content.chunks_exact(superblock.descriptor_bytes as usize);
            for (group, bytes) in (first..).zip(descriptors.take(left as usize)) {
                let now = parse(bytes, superblock);
                match groups.get_mut(group as usize) {
                    Some(group) => *group = now,
                    None => groups.push(now),
                }
            }
            known = known.max(first + left);
        }
        (known == superblock.groups()).then_some(Self(groups))
    }

    /// Whether the bitmaps or the inode table of a group in block `number` of the descriptors have
    /// moved.
    pub(super) fn are_elsewhere(
        &self,
        superblock: &Superblock,
        number: u64,
        content: &[u8],
    ) -> bool {
        let in_block = superblock.descriptors_in_block();
        let known = self.0.iter().skip((number * in_block) as usize);
        let descriptors = content.chunks_exact(superblock.descriptor_bytes as usize);
        let mut pairs = known.take(in_block as usize).zip(descriptors);
        pairs.any(|(known, bytes)| !parse(bytes, superblock).lies_as(known))
    }

    /// The number of groups.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The approximate memory, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }

    /// The groups with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        (0..).zip(&self.0)
    }
}

impl Group {
    /// Whether the bitmaps and the inode table have the same positions as in `other`.
    pub(super) fn lies_as(&self, other: &Self) -> bool {
        let place = |group: &Self| (group.block_bitmap, group.inode_bitmap, group.inode_table);
        place(self) == place(other)
    }
}

/// The number of a block among the blocks of descriptors; `None` for other blocks and copies.
pub(super) fn descriptors_in(superblock: &Superblock, block: u64) -> Option<u64> {
    let in_block = superblock.descriptors_in_block();
    let number = match block.checked_sub(superblock.group_begin(0) + 1) {
        Some(number) if number < superblock.descriptors_together() => number,
        _ => {
            let group = block.checked_sub(superblock.first_block)?;
            group / u64::from(superblock.blocks_per_group) / in_block
        }
    };
    let is_one = number < superblock.groups().div_ceil(in_block);
    (is_one && descriptors_at(superblock, number, in_block) == block).then_some(number)
}

/// The position of block `number` of the descriptors.
pub(super) fn descriptors_at(superblock: &Superblock, number: u64, in_block: u64) -> u64 {
    let is_apart = superblock
        .first_meta_group
        .is_some_and(|first| number >= u64::from(first));
    if !is_apart {
        return superblock.group_begin(0) + 1 + number;
    }
    let group = number * in_block;
    superblock.group_begin(group) + u64::from(superblock.has_copy(group))
}

fn parse(bytes: &[u8], superblock: &Superblock) -> Group {
    let is_long = bytes.len() >= 64;
    let unused_high = if is_long { le16(bytes, 50) } else { 0 };
    let unused = u32::from(le16(bytes, 28)) | u32::from(unused_high) << 16;
    let all = superblock.inodes_per_group;
    let place = |low: usize, high: usize| match is_long {
        true => split64(bytes, low, high),
        false => le32(bytes, low).into(),
    };
    Group {
        block_bitmap: place(0, 32),
        inode_bitmap: place(4, 36),
        inode_table: place(8, 40),
        // Without group checksums the kernel ignores the field.
        unused_inodes: match le16(bytes, 18) & INODES_UNINITIALIZED {
            _ if !superblock.has_group_checksums => 0,
            0 => unused.min(all),
            _ => all,
        },
    }
}
