//! What some units alone have of a version, block by block (docs/models.md, "Audit").
//!
//! ```text
//!  1. open    the version's record and tail, as to read it
//!  2. walk    all its blocks in order, a leaf at a time
//!  3. read    some of them as whoever has the volume does: what they say
//!  4. judge   what lies in their places on the compromised units, read raw, by that
//! ```
//!
//! It takes the version's word for where blocks lie, and nobody's for what lies there. What is
//! in a journal is on no unit, and what was freed is in no version: neither is judged. It has
//! some megabytes of blocks in memory at a time, whatever the volume's size.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use base::{BlockIndex, UnitId};

use crate::catalog::StoredVersion;
use crate::engine::{OpenError, StoredPages, open_version};
use crate::map::{Entry, Leaves, PAGE_BYTES};
use crate::scatter::{
    CompromisedError, Held, Piece, ReadError, Store, data_piece, held_by, read_pieces,
};
use crate::seal::{Address, Keyring};

/// So much is read at once, in bytes: blocks, and pages that say where they lie.
const BATCH_BYTES: usize = 4 << 20;

/// Map pages that are kept: the walk looks at none twice.
const PAGES_KEPT: usize = 3;

/// Why a version cannot be audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What it says cannot be had.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What is compromised cannot be judged.
    #[error(transparent)]
    Compromised(#[from] CompromisedError),
}

/// A block that is no hole, and what the compromised units have of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judged {
    /// Which.
    pub block: u64,
    /// What they have.
    pub held: Held,
}

/// What was judged in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The next blocks, in order. A volume whose blocks were discarded has stretches with a map,
    /// and no blocks.
    pub blocks: Vec<Judged>,
    /// All blocks before this one are judged.
    pub end: u64,
}

/// How many pieces are how much in the hands of whoever compromised the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// All there are.
    pub all: u64,
    /// [`Held::Other`].
    pub other: u64,
    /// [`Held::Sealed`].
    pub sealed: u64,
    /// [`Held::Content`].
    pub content: u64,
}

impl Tally {
    /// One more.
    pub fn add(&mut self, held: Held) {
        self.all += 1;
        match held {
            Held::Nothing => {}
            Held::Other => self.other += 1,
            Held::Sealed => self.sealed += 1,
            Held::Content => self.content += 1,
        }
    }
}

/// An audit that is under way: see the module's head.
pub struct Audit {
    store: Arc<Store>,
    keyring: Arc<Keyring>,
    compromised: Vec<UnitId>,
    slot_bytes: u32,
    leaves: Leaves<StoredPages>,
    has_ended: bool,
    /// Blocks that were come across, and not judged yet; fewer than a batch and a leaf have.
    blocks: VecDeque<(u64, Entry)>,
    /// Where the last leaf that was come across ends, in blocks.
    end: u64,
    map: Tally,
}

impl Audit {
    /// Opens a version, of whose units these are compromised. May wait.
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

    /// How long a block is, in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.slot_bytes.into()
    }

    /// The next blocks; `None` after the last ones. May wait.
    ///
    /// # Errors
    /// [`AuditError`]. What was judged so far stays right; there is no going on.
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
                .map(|((block, _), held)| Judged {
                    block: *block,
                    held,
                })
                .collect(),
            end: match self.blocks.front() {
                Some((next, _)) => *next,
                None => self.end,
            },
        }))
    }

    /// Pages that say where blocks lie, as far as they were come across: leaves, and those of
    /// the tail, which were written since the last leaves were.
    #[must_use]
    pub fn map(&self) -> Tally {
        self.map
    }

    /// Steps 3 and 4.
    fn judge(&self, pieces: Vec<Piece>, slot_bytes: u32) -> Result<Vec<Held>, AuditError> {
        let (store, keyring) = (&self.store, &self.keyring);
        let mut truths = Vec::with_capacity(pieces.len());
        let read = read_pieces(store, keyring, slot_bytes, &pieces, &[]);
        for (piece, read) in pieces.into_iter().zip(read) {
            let content = match read {
                Ok(content) => Some(content),
                // It has no content any more, wherever it lies.
                Err(ReadError::Damaged { .. }) => None,
                Err(error) => return Err(error.into()),
            };
            truths.push((piece, content));
        }
        Ok(held_by(
            &self.compromised,
            store,
            keyring,
            slot_bytes,
            truths,
        )?)
    }
}
