//! jbd2, the journal of ext3 and ext4: what was committed, and does not lie where it
//! belongs yet.
//!
//! ```text
//!  block 0        │ superblock: where the first transaction begins, and its number      │
//!  then a ring of │ descriptor │ block … block │ descriptor │ block … │ revokes │ commit │
//! ```
//!
//! A transaction counts when its commit block is there. What a transaction revokes is not
//! carried out of that one and those before it. A block whose first word is the journal's
//! magic number has zeroes there, and a mark in its descriptor. All numbers are big-endian.

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
/// With revokes, and commits that wait for nothing.
const INCOMPAT_KNOWN: u32 = 0x3F;

/// So many blocks are for fast commits, if nothing is said.
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

/// The kind and the number of a block of the journal's own; none of another block.
fn header(block: &[u8]) -> Option<(u32, u32)> {
    (be32(block, 0) == MAGIC).then(|| (be32(block, 4), be32(block, 8)))
}

/// How a journal is written, and where its first transaction is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournalSuperblock {
    /// The ring: from this block of the journal on,
    first: u32,
    /// up to this one, exclusive.
    end: u32,
    /// The number of the first transaction that may not lie where it belongs.
    sequence: u32,
    /// Where it begins; 0: there is none.
    start: u32,
    incompat: u32,
}

impl JournalSuperblock {
    /// Reads it from the journal's first block; none if it makes no sense.
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
        // Fast commits have a place of their own at the end.
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

    /// What a descriptor says of the blocks that follow it: where each belongs, and
    /// whether its first word was taken out.
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

/// What was committed together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Transaction {
    /// Blocks, where they belong, and what they hold from then on.
    pub blocks: Vec<(u64, Vec<u8>)>,
    /// Blocks that hold nothing of the file system's own any more.
    pub revoked: Vec<u64>,
    /// Where the next transaction begins.
    next: u32,
}

impl JournalSuperblock {
    /// The transaction `sequence` that begins at block `at` of the journal, if all of it
    /// is there up to its commit block. `block` brings a block of the journal, if it is
    /// there.
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

/// A journal that is followed as it is written.
///
/// Blocks come in any order. A transaction counts when all of it was written since, up to
/// its commit block.
pub(super) struct Following {
    ring: JournalSuperblock,
    blocks: u32,
    /// Where the next transaction begins, and its number; none while nobody writes: the
    /// file system is not mounted, and what is written elsewhere counts at once.
    next: Option<(u32, u32)>,
    /// What was written and belongs to no transaction yet.
    pending: BTreeMap<u32, Vec<u8>>,
    /// Its commit block was written, and something before that was not.
    is_ended: bool,
}

impl Following {
    /// As a journal was found that has so many blocks.
    pub fn new(ring: JournalSuperblock, blocks: u32, next: Option<(u32, u32)>) -> Self {
        Self {
            ring,
            blocks,
            next,
            pending: BTreeMap::new(),
            is_ended: false,
        }
    }

    /// Whether the file system is in use: what it changes is in the journal first.
    pub fn is_live(&self) -> bool {
        self.next.is_some()
    }

    /// How much memory waits for the end of a transaction, in bytes.
    pub fn bytes(&self) -> u64 {
        let block_bytes = self.pending.values().next().map_or(0, Vec::len);
        self.pending.len() as u64 * block_bytes as u64
    }

    /// A block of the journal was written.
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
        // One that makes no sense is none of a journal's that is in use.
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
            // What was checkpointed since is none of what comes.
            _ => {}
        }
        self.is_ended = true;
        self.ring = ring;
    }

    /// The next transaction, if all of it was written.
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

/// A disk, with what its journal has that does not lie where it belongs yet.
pub(super) struct Replayed<'a> {
    source: &'a dyn Source,
    block_bytes: u64,
    blocks: HashMap<u64, Vec<u8>>,
}

impl<'a> Replayed<'a> {
    /// One without a journal.
    pub fn new(source: &'a dyn Source, block_bytes: u32) -> Self {
        Self {
            source,
            block_bytes: block_bytes.into(),
            blocks: HashMap::new(),
        }
    }

    /// Takes in all that the journal in these runs has committed, up to so many blocks, if
    /// the file system says that it is in use, and returns how it goes on; none, if there is no journal that makes sense.
    pub fn replay(
        &mut self,
        runs: &[Run],
        blocks_max: usize,
        is_in_use: bool,
    ) -> Result<Option<Following>, ScanError> {
        // A block that is in it twice is none of a journal's: one could be made endless.
        let mut blocks: Vec<(u64, u64)> = runs
            .iter()
            .map(|run| (run.block, run.block + u64::from(run.length)))
            .collect();
        blocks.sort_unstable();
        if blocks.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Ok(None);
        }
        // Runs are in the order of their places.
        let home_of = |at: u32| {
            let after = runs.partition_point(|run| run.place <= at);
            let run = runs.get(after.checked_sub(1)?)?;
            let further = at - run.place;
            (further < run.length).then(|| run.block + u64::from(further))
        };
        let (source, block_bytes) = (self.source, self.block_bytes);
        let read = |at: u32| -> Result<Option<Vec<u8>>, IoError> {
            let Some(home) = home_of(at) else {
                return Ok(None);
            };
            let mut block = vec![0; block_bytes as usize];
            source.read(home * block_bytes, &mut block)?;
            Ok(Some(block))
        };
        let journal_blocks = runs
            .iter()
            .map(|run| run.place + run.length)
            .max()
            .unwrap_or(0);
        let superblock =
            read(0)?.and_then(|block| JournalSuperblock::parse(&block, journal_blocks));
        let Some(superblock) = superblock else {
            return Ok(None);
        };
        if superblock.start == 0 || !is_in_use {
            return Ok(Some(Following::new(superblock, journal_blocks, None)));
        }
        let (mut at, mut sequence) = (superblock.start, superblock.sequence);
        loop {
            let mut left = blocks_max.saturating_sub(self.blocks.len());
            let mut read_some = |at: u32| match left.checked_sub(1) {
                Some(less) => {
                    left = less;
                    read(at)
                }
                None => Ok(None),
            };
            let found = superblock.transaction(at, sequence, &mut read_some)?;
            if left == 0 {
                let bytes_max = blocks_max as u64 * self.block_bytes;
                return Err(ScanError::Large(bytes_max));
            }
            let Some(found) = found else {
                break;
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
        let next = Some((at, sequence));
        Ok(Some(Following::new(superblock, journal_blocks, next)))
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
