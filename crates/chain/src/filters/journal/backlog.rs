//! [`Backlog`]: the changes that are not durable below, and how reads see them.

use super::changes::{Change, Changes};
use super::overlay::Overlay;
use super::record::LogPosition;

pub(super) struct Backlog {
    pub changes: Changes,
    /// The changes that the disk below may not have. Empty while the journal is replayed: nothing
    /// is read then.
    pub overlay: Overlay,
    /// In bytes.
    memory_max: u64,
    /// A change was refused because memory was full, and no flush has succeeded since.
    is_full: bool,
}

impl Backlog {
    pub fn new(memory_max: u64) -> Self {
        Self {
            changes: Changes::default(),
            overlay: Overlay::default(),
            memory_max,
            is_full: false,
        }
    }

    /// Starts without changes; the first one will be at `position`.
    pub fn restart(&mut self, position: LogPosition) {
        self.changes = Changes::new(position);
    }

    /// Whether there is memory for changes of `bytes` bytes. A change of any length is accepted
    /// while there are no others.
    pub fn admit(&mut self, bytes: u64) -> bool {
        let memory = self.changes.memory_bytes;
        let is_full = memory > 0 && memory + bytes > self.memory_max;
        self.is_full |= is_full;
        !is_full
    }

    /// Adds a change that reads have to see.
    pub fn push(&mut self, change: Change) {
        self.overlay
            .insert(change.range, change.sequence, change.data.clone());
        self.changes.push(change);
    }

    /// The disk below has a change. Reads need it no longer, unless `is_suspect`: a flush failed,
    /// so the disk may lose it.
    pub fn written_back(&mut self, sequence: u64, is_suspect: bool) {
        let range = self.changes.finish(sequence);
        if let (Some(range), false) = (range, is_suspect) {
            self.overlay.remove(range, sequence);
        }
    }

    /// A flush failed: the disk below may have lost any of the changes.
    pub fn suspect_all(&mut self) {
        self.overlay = Overlay::default();
        for change in self.changes.iter() {
            self.overlay
                .insert(change.range, change.sequence, change.data.clone());
        }
    }

    /// Everything before `position` is durable below.
    pub fn forget(&mut self, position: LogPosition) {
        self.is_full = false;
        self.changes.forget(position.sequence);
    }

    /// Whether a flush below is needed to free memory; `held_max` is the maximal data of changes
    /// that wait for one, in bytes, or less if memory is small.
    pub fn needs_flush(&self, held_max: u64) -> bool {
        self.is_full || self.changes.held_bytes() >= held_max.min(self.memory_max / 4)
    }
}
