//! A file system that grows while it is followed: what its superblock and the descriptors of
//! its groups say by now.
//!
//! ```text
//!  resize2fs ─▶ new tables are zeroed where they are ─▶ descriptors, superblock: the journal
//!                                                          └ commit ─▶ groups are known
//! ```
//!
//! Both come through the journal, in one transaction. Whatever else becomes of them, or comes
//! without a journal, block by block, makes what is known outdated: the disk is to be read anew.

use std::collections::BTreeMap;
use std::ops::Range;

use super::change::Change;
use super::groups::descriptors_in;
use super::live::Live;
use super::owners::Owner;
use super::superblock::{self, Superblock};
use super::view::has_room_for_groups;

/// Tables that were not said to be unused have so many blocks at most; if more have to be
/// read, all of it may be.
const TABLE_BLOCKS_MAX: usize = 1 << 12;

impl Live {
    /// What changes is told by a transaction. How the file system is laid out by now, if that
    /// is otherwise than before.
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
        // What was left out before may make sense by now.
        let is_followed = now.has_grown_from(known)
            && now.fits(self.disk_bytes)
            && has_room_for_groups(&now, self.view.bytes_max).is_ok()
            && self.view.damaged == 0;
        is_followed.then_some(Some(now)).ok_or(Outdated)
    }

    /// A block was written where it belongs, and nothing in a journal.
    pub(super) fn layout_written(&mut self, block: u64, content: &[u8]) {
        self.is_outdated |= self.is_elsewhere(block, content);
    }

    /// Whether a block is one of descriptors, and a group's bitmaps or inodes are elsewhere by
    /// now.
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

/// What is known cannot be kept true.
struct Outdated;

impl Change<'_> {
    /// Superblock and descriptors, as a transaction says.
    pub fn take_layout(&mut self) {
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

    /// What lies at the beginning of groups, and was nobody's, or kept free for descriptors
    /// by a file of the file system's own.
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
                    Owner::Nobody | Owner::Layout => {}
                    // Two things would lie there.
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

    /// The bitmaps and inodes of groups from `first` on.
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
            // What lies in those that may be used was written before it was known.
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
