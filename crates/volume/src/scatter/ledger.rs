//! [`Ledger`]: which segments a lease has open, and how much of each is committed.
//!
//! After a crash the units may hold slots that no version names. The ledger
//! goes into every commit, so that the next lease knows exactly which: slots
//! beyond the committed count in the segments listed, and whole segments with
//! serials that were reserved but not reached.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use base::SegmentId;
use catalog::{DegradedShare, OpenSegment};
use parking_lot::{Mutex, MutexGuard};

use super::serials::Serials;

/// The segments that some volume of this process may still append to. Any other
/// segment may be deleted once all its slots are free.
#[derive(Debug, Default)]
pub struct OpenSegments(Mutex<HashSet<SegmentId>>);

impl OpenSegments {
    /// Whether something may still be appended to `segment`.
    #[must_use]
    pub fn contains(&self, segment: SegmentId) -> bool {
        self.lock().contains(&segment)
    }

    /// Forgets `segment`, to which an earlier lease appended. The lease has ended,
    /// though one of its jobs may still hold its ledger.
    pub fn forget(&self, segment: SegmentId) {
        self.lock().remove(&segment);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<SegmentId>> {
        self.0.lock()
    }
}

/// Shared by the placers of one lease.
#[derive(Debug, Default)]
pub struct Ledger {
    segments: Mutex<BTreeMap<SegmentId, u32>>,
    /// Segments into which a failed put may still be carried out: they stay in
    /// the ledger until the next lease sweeps them.
    unresolved: Mutex<HashSet<SegmentId>>,
    open: Arc<OpenSegments>,
    uncommitted: Mutex<Uncommitted>,
}

/// How the slots of the next version were placed.
#[derive(Debug, Clone, Default)]
pub struct PlacementSummary {
    /// The slots that some member is missing.
    pub degraded: Vec<DegradedShare>,
    /// The tables that the slots were placed by; `None` if there are no slots.
    pub joined: Option<JoinedRange>,
}

/// The values of [`Table::joined`](super::Table::joined) that a placement used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinedRange {
    /// That of the oldest table.
    pub oldest: u64,
    /// That of the newest table.
    pub newest: u64,
}

impl JoinedRange {
    /// The range of a single table.
    #[must_use]
    pub fn of(joined: u64) -> Self {
        Self {
            oldest: joined,
            newest: joined,
        }
    }

    fn union(self, other: Self) -> Self {
        Self {
            oldest: self.oldest.min(other.oldest),
            newest: self.newest.max(other.newest),
        }
    }
}

impl PlacementSummary {
    /// [`PlacementSummary::joined`]; a version without slots excludes no member.
    #[must_use]
    pub fn joined_or_max(&self) -> JoinedRange {
        self.joined.unwrap_or(JoinedRange::of(u64::MAX))
    }

    /// Adds the slots of `other`, which go into the same version.
    pub fn add(&mut self, other: Self) {
        self.degraded.extend(other.degraded);
        let ranges = [self.joined, other.joined].into_iter().flatten();
        self.joined = ranges.reduce(JoinedRange::union);
    }
}

/// Slots that are confirmed and in no committed version yet.
#[derive(Debug, Default)]
struct Uncommitted {
    placement: PlacementSummary,
    /// The range of slots in each segment.
    slots: BTreeMap<SegmentId, Range<u32>>,
}

/// The ledger's part of a commit.
#[derive(Debug)]
pub struct LedgerSnapshot {
    /// The segments that are still being filled.
    pub open_segments: Vec<OpenSegment>,
    /// The first serial that was not used yet.
    pub serial_next: u64,
    /// How the version's slots were placed.
    pub placement: PlacementSummary,
}

impl Ledger {
    /// An empty ledger that keeps `open` up to date.
    #[must_use]
    pub fn new(open: Arc<OpenSegments>) -> Self {
        Self {
            segments: Mutex::default(),
            unresolved: Mutex::default(),
            open,
            uncommitted: Mutex::default(),
        }
    }

    /// Begins the segment that `name` returns; nothing in it is committed. No
    /// commit can come between naming and recording it.
    ///
    /// # Errors
    /// Those of `name`.
    pub fn begin<E>(&self, name: impl FnOnce() -> Result<SegmentId, E>) -> Result<SegmentId, E> {
        let mut segments = self.lock();
        let segment = name()?;
        self.open.lock().insert(segment);
        segments.insert(segment, 0);
        Ok(segment)
    }

    /// How many slots of `segment` are in a version that is committed or about to be.
    #[must_use]
    pub fn confirmed_slots(&self, segment: SegmentId) -> u32 {
        self.lock().get(&segment).copied().unwrap_or(0)
    }

    /// Closes `segment`: it has no slots beyond the committed ones and never will,
    /// unless a failed put is carried out after all.
    pub fn closed(&self, segment: SegmentId) {
        if !self.is_unresolved(segment) {
            self.lock().remove(&segment);
        }
        self.open.lock().remove(&segment);
    }

    /// A failed put into `segment` may still be carried out.
    pub fn mark_unresolved(&self, segment: SegmentId) {
        self.unresolved.lock().insert(segment);
    }

    fn is_unresolved(&self, segment: SegmentId) -> bool {
        self.unresolved.lock().contains(&segment)
    }

    /// Records that the first `slots` slots of `segment` are in the version about to
    /// be committed, until [`Ledger::has_committed`] or [`Ledger::retract`]; slots may
    /// be there up to `end`. If it is `full`, nothing in it can become a leftover.
    pub fn confirm(&self, segment: SegmentId, slots: u32, end: u32, full: bool) {
        let before = self.confirmed_slots(segment);
        let mut uncommitted = self.uncommitted.lock();
        let its = uncommitted.slots.entry(segment).or_insert(before..end);
        its.end = its.end.max(end);
        drop(uncommitted);
        if full && !self.is_unresolved(segment) {
            self.closed(segment);
        } else {
            self.lock().insert(segment, slots);
        }
    }

    /// Adds how the version about to be committed was placed.
    pub fn add_placement(&self, placement: PlacementSummary) {
        self.uncommitted.lock().placement.add(placement);
    }

    /// The last [`Ledger::for_commit`] has been committed.
    pub fn has_committed(&self) {
        *self.uncommitted.lock() = Uncommitted::default();
    }

    /// The last [`Ledger::for_commit`] will never be committed. Returns where its
    /// slots are: they are leftovers.
    pub fn retract(&self) -> Vec<(SegmentId, Range<u32>)> {
        let taken = std::mem::take(&mut *self.uncommitted.lock());
        let mut segments = self.lock();
        for (segment, slots) in &taken.slots {
            segments.insert(*segment, slots.start);
            self.open.lock().insert(*segment);
        }
        taken.slots.into_iter().collect()
    }

    /// The ledger's part of a commit; `serials` are those of the lease.
    #[must_use]
    pub fn for_commit(&self, serials: &Serials) -> LedgerSnapshot {
        let segments = self.lock();
        let entry = |(segment, slots): (&SegmentId, &u32)| OpenSegment {
            segment: *segment,
            slots: *slots,
        };
        LedgerSnapshot {
            open_segments: segments.iter().map(entry).collect(),
            serial_next: serials.next(),
            placement: self.uncommitted.lock().placement.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SegmentId, u32>> {
        self.segments.lock()
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
