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

use std::collections::HashMap;

use base::IoError;

use super::Source;
use super::map::Run;

const MAGIC: u32 = 0xC03B_3998;

const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCK_OLD: u32 = 3;
const SUPERBLOCK: u32 = 4;
const REVOKE: u32 = 5;

const INCOMPAT_64BIT: u32 = 0x2;
const INCOMPAT_CHECKSUM_2: u32 = 0x8;
const INCOMPAT_CHECKSUM_3: u32 = 0x10;

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
            end: be32(block, 16),
            sequence: be32(block, 24),
            start: be32(block, 28),
            incompat: match kind {
                SUPERBLOCK => be32(block, 40),
                SUPERBLOCK_OLD => 0,
                _ => return None,
            },
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

    /// Takes in all that the journal in these runs has committed, up to so many blocks.
    /// False: it has more.
    pub fn replay(&mut self, runs: &[Run], blocks_max: usize) -> Result<bool, IoError> {
        let home_of = |at: u32| {
            let run = runs
                .iter()
                .find(|run| (run.place..run.place + run.length).contains(&at));
            run.map(|run| run.block + u64::from(at - run.place))
        };
        let (source, block_bytes) = (self.source, self.block_bytes);
        let mut read = |at: u32| -> Result<Option<Vec<u8>>, IoError> {
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
        let Some(superblock) = superblock.filter(|superblock| superblock.start > 0) else {
            return Ok(true);
        };
        let (mut at, mut sequence) = (superblock.start, superblock.sequence);
        while let Some(found) = superblock.transaction(at, sequence, &mut read)? {
            for (home, content) in found.blocks {
                self.blocks.insert(home, content);
            }
            for home in found.revoked {
                self.blocks.remove(&home);
            }
            if self.blocks.len() > blocks_max {
                return Ok(false);
            }
            at = found.next;
            sequence = sequence.wrapping_add(1);
        }
        Ok(true)
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
