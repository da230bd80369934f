//! [`HeldChanges`]: changes that were followed, and wait until the file has what they need.

use std::collections::VecDeque;

use base::{OwnedOp, Token};

use super::region_log::RegionLog;

/// The maximal number of changes that are held.
const HELD_MAX: usize = 128;

/// The maximal content of changes that are held, in bytes.
const HELD_BYTES_MAX: usize = 64 << 20;

/// A change that was followed, and is not dispatched. Its range is locked.
pub(super) struct HeldChange {
    /// The sequence of the map that has to be in the file before.
    pub needed: u64,
    pub token: Token,
    pub op: OwnedOp,
}

impl HeldChange {
    fn data_bytes(&self) -> usize {
        match &self.op {
            OwnedOp::Write { data, .. } => data.len(),
            _ => 0,
        }
    }
}

/// The held changes, in the order in which they were followed.
#[derive(Default)]
pub(super) struct HeldChanges {
    queue: VecDeque<HeldChange>,
}

impl HeldChanges {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether one more change may be held.
    pub fn have_room(&self) -> bool {
        let bytes: usize = self.queue.iter().map(HeldChange::data_bytes).sum();
        self.queue.len() < HELD_MAX && bytes < HELD_BYTES_MAX
    }

    pub fn push(&mut self, held: HeldChange) {
        self.queue.push_back(held);
    }

    /// Returns a change that could not be dispatched. It is still the next one.
    pub fn put_back(&mut self, held: HeldChange) {
        self.queue.push_front(held);
    }

    /// Takes the next change, if it may be dispatched or has to fail.
    pub fn take_due(&mut self, log: &RegionLog) -> Option<HeldChange> {
        let needed = self.queue.front()?.needed;
        let is_due = log.has_stored(needed) || log.failure().is_some();
        is_due.then(|| self.queue.pop_front()).flatten()
    }
}
