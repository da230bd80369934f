//! [`Layers`]: where a block's newest state is.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{Sequence, SnapshotId};

use crate::journal::JournalSlot;
use crate::map::{Entry, Found, Lookup, Overlay, PageCache, Position, Root};

/// Where a block is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It reads as zeroes.
    Zero,
    /// Its ciphertext is in the journal.
    Journal(JournalSlot),
    /// It is on units.
    Slot(Entry),
}

/// All writes admitted after the previous consistency point, up to a moment. A
/// version that contains it is a state that the disk really had.
#[derive(Debug)]
pub struct ConsistencyPoint {
    /// The writes, by block.
    pub writes: Overlay<JournalSlot>,
    /// The journal's log position at that moment.
    pub position: u64,
    /// The last journal sequence up to that moment.
    pub sequence: Sequence,
    /// Volume size at that moment, in bytes.
    pub size_bytes: u64,
    /// Snapshots of that moment.
    pub pins: Vec<SnapshotId>,
}

/// All layers of an attached volume, newest first.
pub struct Layers {
    /// Writes admitted since the last consistency point.
    pub active: Overlay<JournalSlot>,
    /// Consistency points, oldest first.
    pub frozen: VecDeque<Arc<ConsistencyPoint>>,
    /// What was destaged since the running checkpoint began.
    pub young: Overlay<Entry>,
    /// What the running checkpoint merges.
    pub old: Option<Arc<Overlay<Entry>>>,
    /// The root of the map's tree.
    pub root: Root,
    /// Pages of the tree that are in memory.
    pub cache: PageCache,
}

impl Layers {
    /// Looks up `block` in the layers above the tree.
    #[inline]
    pub fn above_tree(&self, block: u64) -> Option<Source> {
        if let Some(found) = self.active.get(block) {
            return Some(in_journal(found));
        }
        for point in self.frozen.iter().rev() {
            if let Some(found) = point.writes.get(block) {
                return Some(in_journal(found));
            }
        }
        let on_units = self
            .young
            .get(block)
            .or_else(|| self.old.as_ref()?.get(block));
        on_units.map(|found| match found {
            Found::Data(entry) => Source::Slot(entry),
            Found::Zero => Source::Zero,
        })
    }

    /// Whether all layers above the tree are empty.
    pub fn is_quiet(&self) -> bool {
        self.active.is_empty()
            && self.frozen.is_empty()
            && self.young.is_empty()
            && self.old.as_ref().is_none_or(|old| old.is_empty())
    }

    /// Looks up `block` in all layers; an error names the map page to fetch first.
    #[inline]
    pub fn resolve(&mut self, block: u64) -> Result<Source, (Position, Entry)> {
        if let Some(source) = self.above_tree(block) {
            return Ok(source);
        }
        match self.cache.lookup(&self.root, block) {
            Lookup::Known(Some(entry)) => Ok(Source::Slot(entry)),
            Lookup::Known(None) => Ok(Source::Zero),
            Lookup::Missing(position, entry) => Err((position, entry)),
        }
    }
}

fn in_journal(found: Found<JournalSlot>) -> Source {
    match found {
        Found::Data(placed) => Source::Journal(placed),
        Found::Zero => Source::Zero,
    }
}
