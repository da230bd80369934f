//! The segments with puts that are not synced yet, and those that lost a put.
//!
//! ```text
//!            put               sync
//!   (none) ──────► waiting ──────────► (none)
//!                     │ put, sync or free fails
//!                     ▼
//!                   lost ──delete──► (none)
//! ```
//!
//! A waiting segment keeps its file open: only that descriptor reports a lost write. Of a lost
//! segment only the id is kept.
//!
//! The segment's writer's lock is held for each transition.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::SegmentId;

use super::segment::Segment;

#[derive(Default)]
pub(super) struct Unsynced {
    waiting: BTreeMap<SegmentId, Arc<Segment>>,
    lost: BTreeSet<SegmentId>,
}

impl Unsynced {
    /// The segment, if it waits for a sync.
    pub(super) fn get(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.waiting.get(&id).cloned()
    }

    /// The segments that wait for a sync.
    pub(super) fn waiting(&self) -> impl ExactSizeIterator<Item = SegmentId> {
        self.waiting.keys().copied()
    }

    /// Whether a write to the segment was lost.
    pub(super) fn is_lost(&self, id: SegmentId) -> bool {
        self.lost.contains(&id)
    }

    pub(super) fn wait(&mut self, id: SegmentId, segment: &Arc<Segment>) {
        self.waiting.insert(id, Arc::clone(segment));
    }

    pub(super) fn lose(&mut self, id: SegmentId) {
        self.waiting.remove(&id);
        self.lost.insert(id);
    }

    /// Records that all puts into the segment are durable.
    pub(super) fn synced(&mut self, id: SegmentId) {
        self.waiting.remove(&id);
    }

    /// Records that the segment was deleted.
    pub(super) fn deleted(&mut self, id: SegmentId) {
        self.waiting.remove(&id);
        self.lost.remove(&id);
    }
}
