//! Which segments a lease has open, and how much of each is committed.
//!
//! After a crash the units may hold slots that no version names. The ledger
//! goes into every commit, so that the next lease knows exactly which: slots
//! beyond the committed count in the segments listed, and whole segments with
//! serials that were handed out but not reached.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use base::SegmentId;

use crate::catalog::OpenSegment;

/// The segments that some volume of this process may still append to. A
/// segment not among them may be deleted once all its slots are free.
#[derive(Debug, Default)]
pub struct OpenSegments(Mutex<HashSet<SegmentId>>);

impl OpenSegments {
    /// Whether something may still be appended to `segment`.
    #[must_use]
    pub fn contains(&self, segment: SegmentId) -> bool {
        self.lock().contains(&segment)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<SegmentId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shared by the dealers of one lease.
#[derive(Debug, Default)]
pub struct Ledger {
    segments: Mutex<BTreeMap<SegmentId, u32>>,
    open: Arc<OpenSegments>,
}

impl Ledger {
    /// An empty ledger that keeps `open` true.
    #[must_use]
    pub fn new(open: Arc<OpenSegments>) -> Self {
        Self {
            segments: Mutex::default(),
            open,
        }
    }

    /// A segment was begun; nothing in it is committed.
    pub fn begun(&self, segment: SegmentId) {
        self.open.lock().insert(segment);
        self.lock().insert(segment, 0);
    }

    /// The first `slots` slots of `segment` are in the version about to be
    /// committed. If it is `full`, nothing in it can become an orphan.
    pub fn committed(&self, segment: SegmentId, slots: u32, full: bool) {
        let mut segments = self.lock();
        if full {
            segments.remove(&segment);
            self.open.lock().remove(&segment);
        } else {
            segments.insert(segment, slots);
        }
    }

    /// What goes into a commit.
    #[must_use]
    pub fn open_segments(&self) -> Vec<OpenSegment> {
        let entry = |(segment, slots): (&SegmentId, &u32)| OpenSegment {
            segment: *segment,
            slots: *slots,
        };
        self.lock().iter().map(entry).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SegmentId, u32>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ledger {
    /// The lease is over: nothing more is appended.
    fn drop(&mut self) {
        let mut open = self.open.lock();
        for segment in self.lock().keys() {
            open.remove(segment);
        }
    }
}
