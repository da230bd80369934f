//! [`Audit`]: what some units alone reveal of a version, block by block
//! (docs/explanation, "Audit").
//!
//! ```text
//!  1. open    the version's record and tail, as to read it
//!  2. walk    all its blocks in order, one leaf at a time
//!  3. read    some of them as the volume's owner does: their content
//!  4. judge   the raw bytes at their locations on the compromised units by that
//! ```
//!
//! It trusts the version about where blocks are, and no one about what is there. Blocks in a
//! journal are on no unit, and freed slots are in no version: neither is judged. It has some
//! megabytes of blocks in memory at a time, whatever the volume's size.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use base::{BlockIndex, UnitId};
use catalog::StoredVersion;

use crate::engine::{OpenError, StoredPages, open_version};
use crate::map::{Entry, Leaves, PAGE_BYTES};
use crate::scatter::{
    CompromisedError, Exposure, KnownPiece, Piece, ReadError, Store, data_piece, exposure_of,
    read_pieces,
};
use crate::seal::{Address, Keyring};

/// Bytes of blocks and map pages read at once.
const BATCH_BYTES: usize = 4 << 20;

/// Map pages kept in memory: the walk visits none twice.
const PAGES_KEPT: usize = 3;

/// Why a version cannot be audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A block or page cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The compromised units cannot be judged.
    #[error(transparent)]
    Compromised(#[from] CompromisedError),
}

/// A block that is not a hole, and what the compromised units reveal of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockExposure {
    /// The block's index.
    pub block: u64,
    /// What they reveal.
    pub exposure: Exposure,
}

/// The blocks judged at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The next blocks, in order; empty for a stretch of map pages without blocks, as discarding
    /// leaves it.
    pub blocks: Vec<BlockExposure>,
    /// The first block that has not been judged.
    pub end: u64,
}

/// Counts of pieces by what the compromised units reveal of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// All pieces.
    pub all: u64,
    /// [`Exposure::Other`].
    pub other: u64,
    /// [`Exposure::Sealed`].
    pub sealed: u64,
    /// [`Exposure::Content`].
    pub content: u64,
}

impl Tally {
    /// Counts a piece.
    pub fn add(&mut self, exposure: Exposure) {
        self.all += 1;
        match exposure {
            Exposure::Nothing => {}
            Exposure::Other => self.other += 1,
            Exposure::Sealed => self.sealed += 1,
            Exposure::Content => self.content += 1,
        }
    }
}

/// A running audit of one version.
pub struct Audit {
    store: Arc<Store>,
    keyring: Arc<Keyring>,
    compromised: Vec<UnitId>,
    slot_bytes: u32,
    leaves: Leaves<StoredPages>,
    has_ended: bool,
    /// Blocks that were found and not judged yet; fewer than a batch and a leaf have.
    blocks: VecDeque<(u64, Entry)>,
    /// The end of the last leaf found, in blocks.
    end: u64,
    map: Tally,
}

impl Audit {
    /// Opens a version to audit what the `compromised` units reveal. May wait.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn open(
        store: &Arc<Store>,
        version: &StoredVersion,
        keyring: &Arc<Keyring>,
        compromised: &[UnitId],
    ) -> Result<Self, AuditError> {
        let (record, tail) = open_version(version, None, store, keyring)?;
        let slot_bytes = u32::try_from(record.block_size.bytes()).expect("at most 64 KiB");
        let pages = StoredPages::new(Arc::clone(store), Arc::clone(keyring), PAGES_KEPT);
        let mut audit = Self {
            store: Arc::clone(store),
            keyring: Arc::clone(keyring),
            compromised: compromised.to_vec(),
            slot_bytes,
            leaves: Leaves::new(pages, record.root, &tail),
            has_ended: false,
            blocks: VecDeque::new(),
            end: 0,
            map: Tally::default(),
        };
        // Some thousands at most, which are as long as blocks.
        for entries in record.tail.chunks(BATCH_BYTES / slot_bytes as usize) {
            let tail = entries.iter().map(|entry| Piece {
                entry: *entry,
                address: Address::TAIL,
            });
            for page in audit.judge(tail.collect(), slot_bytes)? {
                audit.map.add(page);
            }
        }
        Ok(audit)
    }

    /// Block size in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.slot_bytes.into()
    }

    /// The next blocks; `None` after the last ones. May wait.
    ///
    /// # Errors
    /// [`AuditError`]. Earlier batches stay valid; the audit cannot continue.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, AuditError> {
        let slot_bytes = self.slot_bytes as usize;
        let count_max = BATCH_BYTES / slot_bytes;
        let mut pages = Vec::new();
        let bytes = |blocks: usize, pages: usize| blocks * slot_bytes + pages * PAGE_BYTES;
        while bytes(self.blocks.len(), pages.len()) < BATCH_BYTES && !self.has_ended {
            match self.leaves.next_leaf()? {
                None => self.has_ended = true,
                Some(leaf) => {
                    pages.extend(leaf.page.map(|(position, entry)| Piece {
                        entry,
                        address: position.address(),
                    }));
                    self.blocks.extend(leaf.blocks);
                    self.end = leaf.end;
                }
            }
        }
        if self.has_ended && pages.is_empty() && self.blocks.is_empty() {
            return Ok(None);
        }
        for page in self.judge(pages, PAGE_BYTES as u32)? {
            self.map.add(page);
        }
        let count = self.blocks.len().min(count_max);
        let blocks: Vec<(u64, Entry)> = self.blocks.drain(..count).collect();
        let pieces = blocks.iter();
        let pieces = pieces.map(|(block, entry)| data_piece(BlockIndex(*block), *entry));
        let held = self.judge(pieces.collect(), self.slot_bytes)?;
        let judged = blocks.iter().zip(held);
        Ok(Some(Batch {
            blocks: judged
                .map(|((block, _), held)| BlockExposure {
                    block: *block,
                    exposure: held,
                })
                .collect(),
            end: match self.blocks.front() {
                Some((next, _)) => *next,
                None => self.end,
            },
        }))
    }

    /// The counts of map pages found so far: leaves, and the pages of the tail.
    #[must_use]
    pub fn map(&self) -> Tally {
        self.map
    }

    /// Steps 3 and 4.
    fn judge(&self, pieces: Vec<Piece>, slot_bytes: u32) -> Result<Vec<Exposure>, AuditError> {
        let (store, keyring) = (&self.store, &self.keyring);
        let mut truths = Vec::with_capacity(pieces.len());
        let read = read_pieces(store, keyring, slot_bytes, &pieces, &[]);
        for (piece, read) in pieces.into_iter().zip(read) {
            let content = match read {
                Ok(content) => Some(content),
                // Its content is lost on all units.
                Err(ReadError::Damaged { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            truths.push(KnownPiece { piece, content });
        }
        Ok(exposure_of(
            &self.compromised,
            store,
            keyring,
            slot_bytes,
            truths,
        )?)
    }
}
