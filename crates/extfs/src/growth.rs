//! Growth of a file system while it is followed: new content of its superblock and group
//! descriptors.
//!
//! ```text
//!  resize2fs ─▶ new tables are zeroed where they are ─▶ descriptors, superblock: the journal
//!                                                          └ commit ─▶ groups are known
//! ```
//!
//! Both come through the journal, in one transaction. Any other change of them, or one without a
//! journal, makes the known state outdated, so that the disk has to be read again.

use std::collections::BTreeMap;
use std::ops::Range;

use super::change::Change;
use super::groups::descriptors_in;
use super::live::Live;
use super::owners::Owner;
use super::scan::has_room_for_groups;
use super::superblock::{self, Superblock};

/// The maximal number of inode table blocks that are read after a growth. If more are needed, the
/// whole disk is read again.
const TABLE_BLOCKS_MAX: usize = 1 << 12;

impl Live {
    /// The new superblock in a transaction, if its layout differs from the known one.
    fn grown(&self, blocks: &BTreeMap<u64, Vec<u8>>) -> Result<Option<Superblock>, Outdated> {
        let known = &self.view.superblock;
        let block = superblock::OFFSET / self.block_bytes;
        let Some(content) = blocks.get(&block) else {
            return Ok(None);
        };
        let bytes = superblock::bytes_in(block * self.block_bytes, content);
        let now = bytes.map(Superblock::parse).and_then(Result::ok);
        let now = now.ok_or(Outdated)?;
        if now.is_laid_out_as(known) {
            return Ok(None);
        }
        // With damage, parts that were left out before might be valid now.
        let is_followed = now.has_grown_from(known)
            && now.fits(self.disk_bytes)
            && has_room_for_groups(&now, self.view.bytes_max).is_ok()
            && self.view.damaged == 0;
        is_followed.then_some(Some(now)).ok_or(Outdated)
    }

    /// Handles a layout block that was written without a journal.
    pub(super) fn layout_written(&mut self, block: u64, content: &[u8]) {
        self.is_outdated |= self.is_elsewhere(block, content);
    }

    /// Whether a block holds descriptors in which the bitmaps or inodes of a group have moved.
    fn is_elsewhere(&self, block: u64, content: &[u8]) -> bool {
        let (superblock, groups) = (&self.view.superblock, &self.view.groups);
        let number = descriptors_in(superblock, block);
        number.is_some_and(|number| groups.are_elsewhere(superblock, number, content))
    }

    fn are_elsewhere(&self, blocks: &BTreeMap<u64, Vec<u8>>) -> bool {
        let mut blocks = blocks.iter();
        blocks.any(|(block, content)| self.is_elsewhere(*block, content))
    }
}

/// The known state cannot be updated.
struct Outdated;

impl Change<'_> {
    /// Applies the superblock and descriptors in a transaction.
    pub fn apply_layout(&mut self) {
        if self.grow().is_err() {
            self.live.is_outdated = true;
        }
    }

    fn grow(&mut self) -> Result<(), Outdated> {
        let Some(now) = self.live.grown(self.blocks)? else {
            return match self.live.are_elsewhere(self.blocks) {
                true => Err(Outdated),
                false => Ok(()),
            };
        };
        let known = &self.live.view.groups;
        let groups = known.changed_by(&now, self.blocks).ok_or(Outdated)?;
        let mut pairs = known.iter().zip(groups.iter());
        if !pairs.all(|((_, before), (_, now))| now.lies_as(before)) {
            return Err(Outdated);
        }
        drop(pairs);
        let before = std::mem::replace(&mut self.live.view.groups, groups);
        self.live.view.superblock = now;
        self.claim_layout();
        if self.live.is_lost {
            return Ok(());
        }
        self.claim_groups(before.count())
    }

    /// Claims the layout blocks at the beginning of groups, which were free or reserved for
    /// descriptors by a special file.
    fn claim_layout(&mut self) {
        let blocks = self.live.view.superblock.blocks;
        for range in self.live.view.superblock.layout() {
            let range = range.start.min(blocks)..range.end.min(blocks);
            let mut taken = Vec::new();
            self.live.view.owners(range, |run, owner| {
                if owner != Owner::Layout {
                    taken.push((run, owner));
                }
            });
            for (run, owner) in taken {
                match owner {
                    Owner::Content { inode, .. } | Owner::Map { inode } => {
                        self.release(inode);
                        self.remapped.insert(inode);
                    }
                    Owner::Unowned | Owner::Layout => {}
                    // Two structures would overlap.
                    Owner::BlockBitmap(_) | Owner::InodeBitmap(_) | Owner::InodeTable(_) => {
                        self.live.is_outdated = true;
                    }
                }
                self.laid_out(run, Owner::Layout);
            }
            if self.live.view.may_grow().is_err() {
                self.live.is_lost = true;
                return;
            }
        }
    }

    fn laid_out(&mut self, blocks: Range<u64>, owner: Owner) {
        self.live.view.owners.set(blocks.clone(), owner);
        self.live.laid_out.push(blocks);
    }

    /// Claims the bitmaps and inode tables of the groups from `first` on.
    fn claim_groups(&mut self, first: usize) -> Result<(), Outdated> {
        let live = &mut *self.live;
        let view = &mut live.view;
        let per_group = view.superblock.inodes_per_group;
        let per_block = view.superblock.inodes_per_block();
        let table_blocks = u64::from(view.superblock.table_blocks());
        let groups = view.groups.iter().skip(first);
        let groups: Vec<_> = groups.map(|(number, group)| (number, *group)).collect();
        for (number, group) in groups {
            if !view.claim_group(number, &group) {
                return Err(Outdated);
            }
            let table = group.inode_table;
            for (at, length) in [
                (group.block_bitmap, 1),
                (group.inode_bitmap, 1),
                (table, table_blocks),
            ] {
                live.laid_out.push(at..at + length);
            }
            if view.may_grow().is_err() {
                live.is_lost = true;
                return Ok(());
            }
            // The used part of the tables was written before it was known, so it has to be read.
            let used = (per_group - group.unused_inodes).div_ceil(per_block);
            let unknown = table..table + u64::from(used);
            let unknown = unknown.filter(|block| !self.blocks.contains_key(block));
            live.wanted.extend(unknown);
            if live.wanted.len() > TABLE_BLOCKS_MAX {
                return Err(Outdated);
            }
        }
        Ok(())
    }
}
