//! [`Live`]: a file system that is followed by the writes to its disk.
//!
//! With a journal, the changes of inodes and directories take effect together when their
//! transaction commits, before they are at their final position. Without a journal, each written
//! block takes effect at once. Content is written before its inode, so written blocks without an
//! owner are remembered until a file gets them.
//!
//! ```text
//!  written ─▶ of the journal ─▶ pending ── commit ─▶ changes ─▶ events
//!          ├▶ of a file: an event
//!          ├▶ of an inode table, a map or a directory, without a journal ─▶ changes
//!          └▶ without an owner: remembered
//! ```
//!
//! Invariant: after all writes were passed, the state equals that of [`View::read`].
//!
//! Limits: accesses to the guest's page cache that never reach the disk are invisible, and so is a
//! file that is created and removed within one transaction.

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

/// The memory that is counted for the name of an unused inode and for a wanted block, in bytes.
const NOTED_BYTES: u64 = 32;

/// The maximal number of files whose last block is known to have been written.
const ENDS_MAX: usize = 1 << 16;

/// A file system that is followed by the writes to its disk.
pub struct Live {
    pub(super) view: View,
    journal: Option<Following>,
    pub(super) fresh: Fresh,
    /// The directory blocks that name inodes which are not in use yet, by inode.
    pub(super) unborn: HashMap<u32, u64>,
    /// Files whose last block was written after their length was committed. They may be longer by
    /// now.
    pub(super) ends: BTreeSet<u32>,
    pub(super) block_bytes: u64,
    pub(super) disk_bytes: u64,
    /// Blocks whose content is needed and unknown.
    pub(super) wanted: BTreeSet<u64>,
    /// Wanted blocks that are being read and were not written since.
    asked: BTreeSet<u64>,
    /// Whether the limit on memory was exceeded, so that the state is incomplete.
    pub(super) is_lost: bool,
    /// Whether the state cannot be updated, so that the disk has to be read again.
    pub(super) is_outdated: bool,
    /// Blocks that became metadata with the last write.
    pub(super) laid_out: Vec<Range<u64>>,
    /// Inodes whose blocks, names or kind changed with the last write.
    pub(super) changed: BTreeSet<u32>,
    /// Whether the path of a directory that is not empty has changed.
    pub(super) has_moved: bool,
}

impl Live {
    /// As [`View::read`]. All writes since the beginning of this call have to be passed in order.
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

    /// The current state.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The approximate memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let pending = self.journal.as_ref().map_or(0, Following::bytes);
        let noted = self.unborn.len() + self.wanted.len() + self.asked.len() + self.ends.len();
        let noted = noted as u64 * NOTED_BYTES;
        self.view.bytes() + pending + noted
    }

    /// Sets the limit on the memory, in bytes.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.view.bytes_max = bytes_max;
    }

    /// Whether the memory is within the limit. If it is not, the file system can no longer be
    /// followed.
    #[must_use]
    pub fn is_within_bounds(&self) -> bool {
        !self.is_lost && self.bytes() <= self.view.bytes_max
    }

    /// Whether the disk has to be read again, since the layout has changed in a way that cannot be
    /// followed. This returns true once.
    pub fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.is_outdated)
    }

    /// The blocks that became metadata because the last write enlarged the file system, and that
    /// were written before.
    #[must_use]
    pub fn laid_out(&self) -> &[Range<u64>] {
        &self.laid_out
    }

    /// The inodes whose blocks, names or kind changed with the last write or read.
    #[must_use]
    pub fn changed(&self) -> &BTreeSet<u32> {
        &self.changed
    }

    /// Whether the path of a directory that is not empty has changed, which changes all paths
    /// below it.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Handles a read of a range, in bytes from the beginning of the file system.
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

    /// Handles a write. Blocks that are written only in part count only as content of files.
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

    /// Handles a trim, which counts as a write of content. Returns whether it affected metadata,
    /// whose content is unknown then.
    #[must_use]
    pub fn was_trimmed(&self, offset: u64, length: u64, events: &mut Vec<Event>) -> bool {
        let mut is_own = false;
        let blocks = self.whole_blocks(offset, length);
        self.view.owners(blocks, |run, owner| match owner {
            Owner::Content { inode, .. } if self.is_file(inode) => {
                // Runs of the map are in any order on the disk.
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
            Owner::Unowned | Owner::BlockBitmap(_) | Owner::InodeBitmap(_) => {}
            _ => is_own = true,
        });
        is_own
    }

    /// Takes the blocks that have to be read, since they were written before their purpose was
    /// known. Their content is passed to [`Live::were_found`].
    pub fn take_wanted(&mut self) -> BTreeSet<u64> {
        let wanted = std::mem::take(&mut self.wanted);
        self.asked.extend(&wanted);
        wanted
    }

    /// Handles the content of wanted blocks. Many at once cost little more than one, since a map
    /// is read once for all of them.
    pub fn were_found(&mut self, mut blocks: BTreeMap<u64, Vec<u8>>, events: &mut Vec<Event>) {
        self.forget_changed();
        // Content that was committed since is newer than the content at the final position.
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

    /// The blocks that a range touches. They may be behind the end of the file system, which
    /// changes when a growth commits.
    fn whole_blocks(&self, offset: u64, length: u64) -> Range<u64> {
        let end = offset.saturating_add(length).div_ceil(self.block_bytes);
        offset / self.block_bytes..end
    }

    /// Whether an inode is a regular file of a user.
    #[must_use]
    pub fn is_file(&self, inode: u32) -> bool {
        let inode = self.view.inode(inode).filter(|_| inode >= FIRST_FILE);
        inode.is_some_and(|inode| inode.kind == FileKind::File)
    }

    /// Adds an access to a block of a file, merged with the event before if it follows that.
    pub(super) fn add(
        &self,
        events: &mut Vec<Event>,
        inode: u32,
        offset: u64,
        event: impl Fn(u32, u64, u64) -> Event,
    ) {
        let size = self.view.inode(inode).map_or(0, |inode| inode.size);
        // Content is written before the inode, so the file may be longer than its inode says.
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

    /// Whether changes of inodes and names are written to a journal first.
    pub(super) fn is_live(&self) -> bool {
        self.journal.as_ref().is_some_and(Following::is_live)
    }

    /// Handles a write to a block. `content` is `None` if only part of it was written.
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
            Owner::Unowned => self.fresh.add(block),
            Owner::Layout => {
                if let Some(content) = content.filter(|_| !is_live) {
                    self.layout_written(block, content);
                }
            }
            Owner::BlockBitmap(_) | Owner::InodeBitmap(_) => {}
        }
    }

    /// Remembers a written block of a file if the file ends in it.
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
            // Of two contents of a block the last one counts.
            self.change(blocks.into_iter().collect(), true, events);
        }
    }

    /// Applies new content of metadata blocks, all at once. `is_committed` says that it is a
    /// transaction of the journal.
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
            change.apply_layout();
        }
        change.apply(events);
    }
}
