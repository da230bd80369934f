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

    /// A block of the descriptors was written where it belongs, and nothing in a journal.
    pub(super) fn descriptors_written(&mut self, block: u64, content: &[u8]) {
        let view = &self.view;
        if let Some(number) = descriptors_in(&view.superblock, block) {
            let are_elsewhere = view.groups.are_elsewhere(&view.superblock, number, content);
            self.is_outdated |= are_elsewhere;
        }
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
        let now = self.live.grown(self.blocks)?;
        let layout = now.as_ref().unwrap_or(&self.live.view.superblock);
        let are_touched = |block: &u64| descriptors_in(layout, *block).is_some();
        if now.is_none() && !self.blocks.keys().any(are_touched) {
            return Ok(());
        }
        let known = &self.live.view.groups;
        let groups = known.changed_by(layout, self.blocks).ok_or(Outdated)?;
        let mut pairs = known.iter().zip(groups.iter());
        if !pairs.all(|((_, before), (_, now))| now.lies_as(before)) {
            return Err(Outdated);
        }
        drop(pairs);
        let before = std::mem::replace(&mut self.live.view.groups, groups);
        let Some(now) = now else {
            return Ok(());
        };
        self.live.view.superblock = now;
        self.claim_layout();
        self.claim_groups(before.count())
    }

    /// What lies at the beginning of groups, and was nobody's, or kept free for descriptors
    /// by a file of the file system's own.
    fn claim_layout(&mut self) {
        let view = &self.live.view;
        let blocks = view.superblock.blocks;
        let mut taken = Vec::new();
        for range in view.superblock.layout() {
            let range = range.start.min(blocks)..range.end.min(blocks);
            view.owners(range, |run, owner| {
                if owner != Owner::Layout {
                    taken.push((run, owner));
                }
            });
        }
        for (_, owner) in &taken {
            match owner {
                Owner::Content { inode, .. } | Owner::Map { inode } => {
                    self.release(*inode);
                    self.remapped.insert(*inode);
                }
                Owner::Nobody | Owner::Layout => {}
                // Two things would lie there.
                Owner::BlockBitmap(_) | Owner::InodeBitmap(_) | Owner::InodeTable(_) => {
                    self.live.is_outdated = true;
                }
            }
        }
        for (run, _) in taken {
            self.laid_out(run, Owner::Layout);
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
