//! The segments in which holes are still to be punched, and how far the walk over all
//! sub-folders is.
//!
//! An earlier process may have left slots that are free and still take room, so a unit walks
//! over all its segments once after a start.

use std::collections::BTreeSet;

use base::SegmentId;
use parking_lot::Mutex;

use super::root::FOLDERS;

/// Work that is left for [`reclaim`](super::reclaim).
#[derive(Default)]
pub(super) struct PunchQueue(Mutex<State>);

#[derive(Default)]
struct State {
    /// Segments with slots that are free and still take room.
    pending: BTreeSet<SegmentId>,
    /// The sub-folder that the walk visits next.
    next_folder: usize,
}

impl PunchQueue {
    pub(super) fn push(&self, segment: SegmentId) {
        self.0.lock().pending.insert(segment);
    }

    pub(super) fn extend(&self, segments: impl IntoIterator<Item = SegmentId>) {
        self.0.lock().pending.extend(segments);
    }

    pub(super) fn pop(&self) -> Option<SegmentId> {
        self.0.lock().pending.pop_first()
    }

    pub(super) fn remove(&self, segment: SegmentId) {
        self.0.lock().pending.remove(&segment);
    }

    /// The sub-folder that the walk visits next; `None` once it has seen all of them.
    pub(super) fn next_folder(&self) -> Option<usize> {
        let folder = self.0.lock().next_folder;
        (folder < FOLDERS).then_some(folder)
    }

    /// Records that the walk has visited `folder`.
    pub(super) fn set_visited(&self, folder: usize) {
        self.0.lock().next_folder = folder + 1;
    }
}
