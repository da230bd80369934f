//! [`Live`]: a file system that is followed from what passes to its disk.
//!
//! Of a file system with a journal, what changes in inodes and directories is known when
//! its transaction commits, all of it together, before it lies where it belongs. Without
//! one each block that is written counts at once. Content is written before the inode
//! that it belongs to: blocks that are nobody's are remembered until somebody gets them.
//!
//! ```text
//!  written ─▶ of the journal ─▶ pending ── commit ─▶ changes ─▶ events
//!          ├▶ of a file: an event
//!          ├▶ of an inode table, a map or a directory, if nobody has it mounted ─▶ changes
//!          └▶ nobody's: remembered
//! ```
//!
//! Invariant: after all that was written passed, it is what [`View::read`] finds.
//!
//! What cannot be seen: what is read from, or changed in, the guest's memory and never
//! reaches the disk; a file that is made and removed within one transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::Source;
use super::change::Change;
use super::event::Event;
use super::fresh::Fresh;
use super::inode::FileKind;
use super::journal::{Following, Transaction};
use super::names::FIRST_FILE;
use super::owners::Owner;
use super::view::{ScanError, View};

/// What is counted for an inode that has a name and is not in use, and for a block that is
/// wanted, in bytes.
const NOTED_BYTES: u64 = 32;

/// Of so many files it is known that the block in which they end was written.
const ENDS_MAX: usize = 1 << 16;

/// See the module's head.
pub struct Live {
    pub(super) view: View,
    journal: Option<Following>,
    pub(super) fresh: Fresh,
    /// Names of inodes that are not in use yet: the blocks that have them.
    pub(super) unborn: HashMap<u32, u64>,
    /// Files that end within a block which was written since a commit has said how long they
    /// are: they may go on there.
    pub(super) ends: BTreeSet<u32>,
    pub(super) block_bytes: u64,
    pub(super) disk_bytes: u64,
    /// Blocks whose content is needed, and was not seen.
    pub(super) wanted: BTreeSet<u64>,
    /// Those that are being read, and were not told by what passed since.
    asked: BTreeSet<u64>,
    /// It would have taken more memory than it may, and is not followed to the end.
    pub(super) is_lost: bool,
    /// It cannot be kept true: the disk is to be read anew.
    pub(super) is_outdated: bool,
    /// Blocks that are the file system's own since what was told last, and were not before.
    pub(super) laid_out: Vec<Range<u64>>,
    /// What was told last has changed the blocks, the names or the kind of these.
    pub(super) changed: BTreeSet<u32>,
    /// It has given a directory another path that has names in it.
    pub(super) has_moved: bool,
}

impl Live {
    /// As [`View::read`]. What is written after this was begun is to be told in order.
    ///
    /// # Errors
    /// [`ScanError`].
    pub fn read(source: &dyn Source, disk_bytes: u64, bytes_max: u64) -> Result<Self, ScanError> {
        let (view, journal) = View::read_to_follow(source, disk_bytes, bytes_max)?;
        Ok(Self {
            block_bytes: view.superblock.block_bytes.into(),
            disk_bytes,
            view,
            journal,
            fresh: Fresh::default(),
            unborn: HashMap::new(),
            ends: BTreeSet::new(),
            wanted: BTreeSet::new(),
            asked: BTreeSet::new(),
            is_lost: false,
            is_outdated: false,
            laid_out: Vec::new(),
            changed: BTreeSet::new(),
            has_moved: false,
        })
    }

    /// How it is now.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// About how much memory it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let pending = self.journal.as_ref().map_or(0, Following::bytes);
        let noted = self.unborn.len() + self.wanted.len() + self.asked.len() + self.ends.len();
        let noted = noted as u64 * NOTED_BYTES;
        self.view.bytes() + pending + noted
    }

    /// It may take so much from now on, in bytes.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.view.bytes_max = bytes_max;
    }

    /// Whether it takes no more memory than it may: if it does, it is to be given up.
    #[must_use]
    pub fn is_within_bounds(&self) -> bool {
        !self.is_lost && self.bytes() <= self.view.bytes_max
    }

    /// Whether the disk is to be read anew, since the file system is laid out otherwise by
    /// now, in a way that cannot be followed. It is said once.
    pub fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.is_outdated)
    }

    /// Blocks that are the file system's own since it has grown by what was written last, and
    /// were written before.
    #[must_use]
    pub fn laid_out(&self) -> &[Range<u64>] {
        &self.laid_out
    }

    /// Whose blocks, names or kind were changed by what was written or found last.
    #[must_use]
    pub fn changed(&self) -> &BTreeSet<u32> {
        &self.changed
    }

    /// Whether that gave, or took, the path of a directory that has names in it: the paths
    /// of whatever is below are others, too.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Something was read from the disk, in bytes from the file system's beginning.
    pub fn was_read(&self, offset: u64, length: u64, events: &mut Vec<Event>) {
        for block in self.whole_blocks(offset, length) {
            if let Owner::Content { inode, place } = self.view.owner(block) {
                let is_file = self.is_file(inode);
                if is_file {
                    let offset = u64::from(place) * self.block_bytes;
                    self.add(events, inode, offset, |inode, offset, length| Event::Read {
                        inode,
                        offset,
                        length,
                    });
                }
            }
        }
    }

    /// Something was written to the disk. Blocks that were written in part are told of
    /// files only.
    pub fn was_written(&mut self, offset: u64, data: &[u8], events: &mut Vec<Event>) {
        self.forget_changed();
        for block in self.whole_blocks(offset, data.len() as u64) {
            let begin = block * self.block_bytes;
            let part = begin.checked_sub(offset).and_then(|at| {
                let at = at as usize;
                data.get(at..at + self.block_bytes as usize)
            });
            self.block_written(block, part, events);
        }
    }

    /// A part of the disk was trimmed, which is told of files as if they were written; whether
    /// it met what is the file system's own, of which it is not known what it holds now.
    #[must_use]
    pub fn was_trimmed(&self, offset: u64, length: u64, events: &mut Vec<Event>) -> bool {
        let mut is_own = false;
        let blocks = self.whole_blocks(offset, length);
        self.view.owners(blocks, |run, owner| match owner {
            Owner::Content { inode, .. } if self.is_file(inode) => {
                // They are in any order.
                for block in run {
                    if let Owner::Content { inode, place } = self.view.owner(block) {
                        let offset = u64::from(place) * self.block_bytes;
                        self.add(events, inode, offset, |inode, offset, length| {
                            Event::Written {
                                inode,
                                offset,
                                length,
                            }
                        });
                    }
                }
            }
            Owner::Nobody | Owner::BlockBitmap(_) | Owner::InodeBitmap(_) => {}
            _ => is_own = true,
        });
        is_own
    }

    /// Blocks that are to be read, since what they hold was written before it was known
    /// what they are; they are told with [`Live::were_found`].
    pub fn take_wanted(&mut self) -> BTreeSet<u64> {
        let wanted = std::mem::take(&mut self.wanted);
        self.asked.extend(&wanted);
        wanted
    }

    /// Blocks that were wanted hold this now. To tell many at once costs little more than
    /// one: a map is read anew for all of them.
    pub fn were_found(&mut self, mut blocks: BTreeMap<u64, Vec<u8>>, events: &mut Vec<Event>) {
        self.forget_changed();
        // What a commit has said since is newer than what lies where it belongs.
        blocks.retain(|block, content| {
            self.asked.remove(block) && content.len() as u64 == self.block_bytes
        });
        if !blocks.is_empty() {
            self.change(blocks, false, events);
        }
    }

    fn forget_changed(&mut self) {
        self.changed.clear();
        self.has_moved = false;
        self.laid_out.clear();
    }

    /// The blocks that a range touches. They may lie behind the file system's end, which is
    /// elsewhere when what is to make it larger commits.
    fn whole_blocks(&self, offset: u64, length: u64) -> Range<u64> {
        let end = offset.saturating_add(length).div_ceil(self.block_bytes);
        offset / self.block_bytes..end
    }

    /// Whether an inode is somebody's regular file, not the file system's own.
    #[must_use]
    pub fn is_file(&self, inode: u32) -> bool {
        let inode = self.view.inode(inode).filter(|_| inode >= FIRST_FILE);
        inode.is_some_and(|inode| inode.kind == FileKind::File)
    }

    /// Adds a block to what is told of a file, if it follows.
    pub(super) fn add(
        &self,
        events: &mut Vec<Event>,
        inode: u32,
        offset: u64,
        event: impl Fn(u32, u64, u64) -> Event,
    ) {
        let size = self.view.inode(inode).map_or(0, |inode| inode.size);
        // What is written before the inode says so may be longer than it is said to be.
        let length = match size.checked_sub(offset) {
            None | Some(0) => self.block_bytes,
            Some(left) => left.min(self.block_bytes),
        };
        let new = event(inode, offset, length);
        if let Some(last) = events.last_mut() {
            match (last, &new) {
                (
                    Event::Written {
                        inode: of,
                        offset: begin,
                        length: before,
                    },
                    Event::Written { .. },
                )
                | (
                    Event::Read {
                        inode: of,
                        offset: begin,
                        length: before,
                    },
                    Event::Read { .. },
                ) if *of == inode && *begin + *before == offset => {
                    *before += length;
                    return;
                }
                _ => {}
            }
        }
        events.push(new);
    }

    /// Whether what changes in inodes and names is in a journal first.
    pub(super) fn is_live(&self) -> bool {
        self.journal.as_ref().is_some_and(Following::is_live)
    }

    /// `content` is that of the whole block, if all of it was written.
    fn block_written(&mut self, block: u64, content: Option<&[u8]>, events: &mut Vec<Event>) {
        let is_live = self.is_live();
        match self.view.owner(block) {
            Owner::Content { inode, place } => {
                if Some(inode) == self.view.superblock.journal_inode {
                    if let Some(content) = content {
                        self.journal_written(place, content, events);
                    }
                } else if self.is_file(inode) {
                    let offset = u64::from(place) * self.block_bytes;
                    self.end_written(inode, offset);
                    self.add(events, inode, offset, |inode, offset, length| {
                        Event::Written {
                            inode,
                            offset,
                            length,
                        }
                    });
                } else if let Some(content) = content.filter(|_| !is_live) {
                    self.change([(block, content.to_vec())].into(), false, events);
                }
            }
            Owner::InodeTable(_) | Owner::Map { .. } => {
                if let Some(content) = content.filter(|_| !is_live) {
                    self.change([(block, content.to_vec())].into(), false, events);
                }
            }
            Owner::Nobody => self.fresh.add(block),
            Owner::Layout => {
                if let Some(content) = content.filter(|_| !is_live) {
                    self.layout_written(block, content);
                }
            }
            Owner::BlockBitmap(_) | Owner::InodeBitmap(_) => {}
        }
    }

    /// A block of a file was written: it may be the one in which the file ends.
    fn end_written(&mut self, inode: u32, offset: u64) {
        let size = self.view.inode(inode).map_or(0, |inode| inode.size);
        let is_end = offset < size && size - offset < self.block_bytes;
        if is_end && self.is_live() && self.ends.len() < ENDS_MAX {
            self.ends.insert(inode);
        }
    }

    fn journal_written(&mut self, place: u32, content: &[u8], events: &mut Vec<Event>) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        journal.written(place, content);
        while let Some(found) = self.journal.as_mut().and_then(Following::take) {
            let Transaction { blocks, .. } = found;
            // Of a block that is there twice the last one counts.
            self.change(blocks.into_iter().collect(), true, events);
        }
    }

    /// Blocks of the file system's own hold this from now on, all at once; whether a
    /// transaction says so.
    fn change(
        &mut self,
        blocks: BTreeMap<u64, Vec<u8>>,
        is_committed: bool,
        events: &mut Vec<Event>,
    ) {
        for block in blocks.keys() {
            self.wanted.remove(block);
            self.asked.remove(block);
        }
        let mut change = Change::new(self, &blocks);
        if is_committed {
            change.take_layout();
        }
        change.take(events);
    }
}
