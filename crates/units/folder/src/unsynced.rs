//! Which segments have puts that no sync has covered, and which lost some.
//!
//! ```text
//!            put               sync
//!   (none) ──────► waiting ──────────► (none)
//!                     │ put, sync or free fails
//!                     ▼
//!                   lost ──delete──► (none)
//! ```
//!
//! A waiting segment keeps its file open: only that descriptor is told of a
//! write that was lost. A lost one keeps nothing but its number.
//!
//! Who moves a segment holds its writer's lock.

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

    /// Those that wait for a sync.
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

    /// What was put into the segment is durable.
    pub(super) fn synced(&mut self, id: SegmentId) {
        self.waiting.remove(&id);
    }

    /// The segment is gone.
    pub(super) fn deleted(&mut self, id: SegmentId) {
        self.waiting.remove(&id);
        self.lost.remove(&id);
    }
}
