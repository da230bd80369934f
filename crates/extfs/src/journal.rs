//! jbd2, the journal of ext3 and ext4: blocks that were committed and are not at their final
//! position yet.
//!
//! ```text
//!  block 0        │ superblock: position and number of the first transaction            │
//!  then a ring of │ descriptor │ block … block │ descriptor │ block … │ revokes │ commit │
//! ```
//!
//! A transaction is valid if its commit block is there. A block that a transaction revokes is not
//! replayed from that transaction and earlier ones. A block whose first word is the journal's magic
//! number is stored with zeroes there and a flag in its descriptor. All numbers are big-endian.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

use base::IoError;

use super::Source;
use super::map::Run;
use super::view::ScanError;

const MAGIC: u32 = 0xC03B_3998;

const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCK_OLD: u32 = 3;
const SUPERBLOCK: u32 = 4;
const REVOKE: u32 = 5;

const INCOMPAT_64BIT: u32 = 0x2;
const INCOMPAT_CHECKSUM_2: u32 = 0x8;
const INCOMPAT_CHECKSUM_3: u32 = 0x10;
const INCOMPAT_FAST_COMMIT: u32 = 0x20;
/// The supported features, with revokes and asynchronous commits.
const INCOMPAT_KNOWN: u32 = 0x3F;

/// The default number of blocks for fast commits.
const FAST_BLOCKS: u32 = 256;

const TAG_ESCAPED: u32 = 0x1;
const TAG_SAME_UUID: u32 = 0x2;
const TAG_LAST: u32 = 0x8;

const HEADER_BYTES: usize = 12;

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The kind and the transaction number of a journal block; `None` for another block.
fn header(block: &[u8]) -> Option<(u32, u32)> {
    (be32(block, 0) == MAGIC).then(|| (be32(block, 4), be32(block, 8)))
}

/// The superblock of a journal: its format and the position of its first transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournalSuperblock {
    /// The first block of the ring.
    first: u32,
    /// The end of the ring, exclusive.
    end: u32,
    /// The number of the first transaction that may have to be replayed.
    sequence: u32,
    /// The first block of that transaction; 0 if there is none.
    start: u32,
    incompat: u32,
}

impl JournalSuperblock {
    /// Parses the first block of a journal; `None` if it is invalid.
    pub fn parse(block: &[u8], journal_blocks: u32) -> Option<Self> {
        let (kind, _) = header(block)?;
        let parsed = Self {
            first: be32(block, 20),
            end: 0,
            sequence: be32(block, 24),
            start: be32(block, 28),
            incompat: match kind {
                SUPERBLOCK => be32(block, 40),
                SUPERBLOCK_OLD => 0,
                _ => return None,
            },
        };
        if parsed.incompat & !INCOMPAT_KNOWN != 0 {
            return None;
        }
        // Fast commits have an area of their own at the end.
        let fast_blocks = match (parsed.incompat & INCOMPAT_FAST_COMMIT, be32(block, 84)) {
            (0, _) => 0,
            (_, 0) => FAST_BLOCKS,
            (_, blocks) => blocks,
        };
        let parsed = Self {
            end: be32(block, 16).checked_sub(fast_blocks)?,
            ..parsed
        };
        let is_ring = parsed.first > 0 && parsed.first < parsed.end;
        let is_there = parsed.end <= journal_blocks && parsed.start < parsed.end;
        let is_size = be32(block, 12) as usize == block.len();
        (is_ring && is_there && is_size).then_some(parsed)
    }

    fn is_64bit(&self) -> bool {
        self.incompat & INCOMPAT_64BIT != 0
    }

    fn has_checksum_3(&self) -> bool {
        self.incompat & INCOMPAT_CHECKSUM_3 != 0
    }

    fn has_checksum_2(&self) -> bool {
        self.incompat & INCOMPAT_CHECKSUM_2 != 0
    }

    fn tag_bytes(&self) -> usize {
        if self.has_checksum_3() {
            return 16;
        }
        let checksum = if self.has_checksum_2() { 2 } else { 0 };
        8 + checksum + if self.is_64bit() { 4 } else { 0 }
    }

    /// The block after `at`.
    fn after(&self, at: u32) -> u32 {
        if at + 1 >= self.end {
            self.first
        } else {
            at + 1
        }
    }

    /// The entries of a descriptor for the blocks that follow it: the final position of each, and
    /// whether its first word was replaced by zeroes.
    fn tags(&self, block: &[u8]) -> Vec<(u64, bool)> {
        let has_tail = self.has_checksum_2() || self.has_checksum_3();
        let end = block.len() - if has_tail { 4 } else { 0 };
        let mut tags = Vec::new();
        let mut at = HEADER_BYTES;
        while at + self.tag_bytes() <= end {
            let tag = &block[at..at + self.tag_bytes()];
            let flags = match self.has_checksum_3() {
                true => be32(tag, 4),
                false => be16(tag, 6).into(),
            };
            let high = match self.is_64bit() {
                true => be32(tag, 8),
                false => 0,
            };
            let home = u64::from(be32(tag, 0)) | u64::from(high) << 32;
            tags.push((home, flags & TAG_ESCAPED != 0));
            at += self.tag_bytes();
            if flags & TAG_SAME_UUID == 0 {
                at += 16;
            }
            if flags & TAG_LAST != 0 {
                break;
            }
        }
        tags
    }

    /// The blocks that are revoked.
    fn revoked(&self, block: &[u8]) -> Vec<u64> {
        let end = (be32(block, 12) as usize).min(block.len());
        let length = if self.is_64bit() { 8 } else { 4 };
        let records = block.get(HEADER_BYTES + 4..end).unwrap_or_default();
        let record = |record: &[u8]| match length {
            8 => u64::from(be32(record, 0)) << 32 | u64::from(be32(record, 4)),
            _ => be32(record, 0).into(),
        };
        records.chunks_exact(length).map(record).collect()
    }
}

/// A committed transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Transaction {
    /// The final positions of blocks and their new content.
    pub blocks: Vec<(u64, Vec<u8>)>,
    /// The blocks that are no longer metadata.
    pub revoked: Vec<u64>,
    /// The first block of the next transaction.
    next: u32,
}

impl JournalSuperblock {
    /// The transaction `sequence` that begins at block `at` of the journal, if it is complete up
    /// to its commit block. `block` reads a block of the journal, if it is there.
    pub fn transaction<E>(
        &self,
        at: u32,
        sequence: u32,
        block: &mut dyn FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Transaction>, E> {
        let mut found = Transaction::default();
        let mut at = at;
        let mut left = self.end - self.first;
        while left > 0 {
            let Some(own) = block(at)? else {
                return Ok(None);
            };
            at = self.after(at);
            left -= 1;
            let kind = match header(&own) {
                Some((kind, number)) if number == sequence => kind,
                _ => return Ok(None),
            };
            match kind {
                DESCRIPTOR => {
                    for (home, is_escaped) in self.tags(&own) {
                        if left == 0 {
                            return Ok(None);
                        }
                        let Some(mut content) = block(at)? else {
                            return Ok(None);
                        };
                        if is_escaped {
                            content[..4].copy_from_slice(&MAGIC.to_be_bytes());
                        }
                        found.blocks.push((home, content));
                        at = self.after(at);
                        left -= 1;
                    }
                }
                REVOKE => found.revoked.extend(self.revoked(&own)),
                COMMIT => {
                    found.next = at;
                    return Ok(Some(found));
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}

/// A journal that is followed while it is written.
///
/// Blocks are written in any order. A transaction is valid when all its blocks up to the commit
/// block were written.
pub(super) struct Following {
    ring: JournalSuperblock,
    blocks: u32,
    /// The first block and the number of the next transaction; `None` while the file system is
    /// not mounted, so that writes to final positions take effect at once.
    next: Option<(u32, u32)>,
    /// Blocks that were written and belong to no complete transaction yet.
    pending: BTreeMap<u32, Vec<u8>>,
    /// Whether the commit block of the next transaction was written.
    is_ended: bool,
}

impl Following {
    /// A journal of `blocks` blocks, as it was read.
    pub fn new(ring: JournalSuperblock, blocks: u32, next: Option<(u32, u32)>) -> Self {
        Self {
            ring,
            blocks,
            next,
            pending: BTreeMap::new(),
            is_ended: false,
        }
    }

    /// Whether the file system is mounted, so that its changes go to the journal first.
    pub fn is_live(&self) -> bool {
        self.next.is_some()
    }

    /// The memory of blocks of incomplete transactions, in bytes.
    pub fn bytes(&self) -> u64 {
        let block_bytes = self.pending.values().next().map_or(0, Vec::len);
        self.pending.len() as u64 * block_bytes as u64
    }

    /// Handles a write to a block of the journal.
    pub fn written(&mut self, place: u32, content: &[u8]) {
        if place == 0 {
            return self.superblock_written(content);
        }
        if let (Some((COMMIT, number)), Some((_, next))) = (header(content), self.next) {
            self.is_ended |= number == next;
        }
        self.pending.insert(place, content.to_vec());
    }

    fn superblock_written(&mut self, content: &[u8]) {
        // A journal that is in use has a valid superblock.
        let Some(ring) = JournalSuperblock::parse(content, self.blocks) else {
            self.next = None;
            return;
        };
        match ring.start {
            0 => {
                self.next = None;
                self.pending.clear();
            }
            start if self.next.is_none() => self.next = Some((start, ring.sequence)),
            // A checkpoint does not affect the next transaction.
            _ => {}
        }
        self.is_ended = true;
        self.ring = ring;
    }

    /// Takes the next transaction, if it is complete.
    pub fn take(&mut self) -> Option<Transaction> {
        let (at, sequence) = self.next.filter(|_| self.is_ended)?;
        let mut block = |place: u32| Ok::<_, Infallible>(self.pending.get(&place).cloned());
        let Ok(found) = self.ring.transaction(at, sequence, &mut block);
        let Some(found) = found else {
            let is_end = |block: &Vec<u8>| header(block) == Some((COMMIT, sequence));
            self.is_ended = self.pending.values().any(is_end);
            return None;
        };
        let mut place = at;
        while place != found.next {
            self.pending.remove(&place);
            place = self.ring.after(place);
        }
        self.next = Some((found.next, sequence.wrapping_add(1)));
        Some(found)
    }
}

/// The file of a journal, as it is on the disk.
struct JournalFile<'a> {
    source: &'a dyn Source,
    block_bytes: u64,
    /// In the order of their positions in the file.
    runs: &'a [Run],
}

impl JournalFile<'_> {
    /// Whether a block of the disk occurs twice, which would let a hostile journal be endless.
    fn has_repeated_blocks(&self) -> bool {
        let runs = self.runs.iter();
        let mut blocks: Vec<(u64, u64)> = runs
            .map(|run| (run.block, run.block + u64::from(run.length)))
            .collect();
        blocks.sort_unstable();
        blocks.windows(2).any(|pair| pair[0].1 > pair[1].0)
    }

    /// The number of blocks.
    fn blocks(&self) -> u32 {
        let ends = self.runs.iter().map(|run| run.place + run.length);
        ends.max().unwrap_or(0)
    }

    /// The block of the disk that has block `at` of the file.
    fn home_of(&self, at: u32) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.place <= at);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let further = at - run.place;
        (further < run.length).then(|| run.block + u64::from(further))
    }

    /// Reads block `at` of the file; `None` if it is not there.
    fn read(&self, at: u32) -> Result<Option<Vec<u8>>, IoError> {
        let Some(home) = self.home_of(at) else {
            return Ok(None);
        };
        let mut block = vec![0; self.block_bytes as usize];
        self.source.read(home * self.block_bytes, &mut block)?;
        Ok(Some(block))
    }
}

/// A disk with the replayed blocks of its journal.
pub(super) struct Replayed<'a> {
    source: &'a dyn Source,
    block_bytes: u64,
    blocks: HashMap<u64, Vec<u8>>,
}

impl<'a> Replayed<'a> {
    /// A disk without a journal.
    pub fn new(source: &'a dyn Source, block_bytes: u32) -> Self {
        Self {
            source,
            block_bytes: block_bytes.into(),
            blocks: HashMap::new(),
        }
    }

    /// Replays the committed transactions of the journal in these runs if the file system needs
    /// recovery (`is_in_use`), with at most `blocks_max` blocks. Returns the state of the journal;
    /// `None` if there is no valid journal.
    pub fn replay(
        &mut self,
        runs: &[Run],
        blocks_max: usize,
        is_in_use: bool,
    ) -> Result<Option<Following>, ScanError> {
        let (source, block_bytes) = (self.source, self.block_bytes);
        let file = JournalFile {
            source,
            block_bytes,
            runs,
        };
        if file.has_repeated_blocks() {
            return Ok(None);
        }
        let blocks = file.blocks();
        let superblock = file
            .read(0)?
            .and_then(|block| JournalSuperblock::parse(&block, blocks));
        let Some(superblock) = superblock else {
            return Ok(None);
        };
        let next = match superblock.start == 0 || !is_in_use {
            true => None,
            false => Some(self.replay_transactions(&superblock, &file, blocks_max)?),
        };
        Ok(Some(Following::new(superblock, blocks, next)))
    }

    /// Replays the committed transactions of a journal with this superblock. Returns the first
    /// block and the number of the next one.
    fn replay_transactions(
        &mut self,
        superblock: &JournalSuperblock,
        file: &JournalFile<'_>,
        blocks_max: usize,
    ) -> Result<(u32, u32), ScanError> {
        let (mut at, mut sequence) = (superblock.start, superblock.sequence);
        loop {
            let mut left = blocks_max.saturating_sub(self.blocks.len());
            let mut read_some = |at: u32| match left.checked_sub(1) {
                Some(less) => {
                    left = less;
                    file.read(at)
                }
                None => Ok(None),
            };
            let found = superblock.transaction(at, sequence, &mut read_some)?;
            if left == 0 {
                let bytes_max = blocks_max as u64 * self.block_bytes;
                return Err(ScanError::Large(bytes_max));
            }
            let Some(found) = found else {
                return Ok((at, sequence));
            };
            for (home, content) in found.blocks {
                self.blocks.insert(home, content);
            }
            for home in found.revoked {
                self.blocks.remove(&home);
            }
            at = found.next;
            sequence = sequence.wrapping_add(1);
        }
    }
}

impl Source for Replayed<'_> {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), IoError> {
        self.source.read(offset, out)?;
        if self.blocks.is_empty() || out.is_empty() {
            return Ok(());
        }
        let end = offset + out.len() as u64;
        for block in offset / self.block_bytes..end.div_ceil(self.block_bytes) {
            let Some(content) = self.blocks.get(&block) else {
                continue;
            };
            let begin = block * self.block_bytes;
            let (from, to) = (offset.max(begin), end.min(begin + self.block_bytes));
            let there = &mut out[(from - offset) as usize..(to - offset) as usize];
            there.copy_from_slice(&content[(from - begin) as usize..(to - begin) as usize]);
        }
        Ok(())
    }
}
