//! Which segments a lease has open, and how much of each is committed.
//!
//! After a crash the units may hold slots that no version names. The ledger
//! goes into every commit, so that the next lease knows exactly which: slots
//! beyond the committed count in the segments listed, and whole segments with
//! serials that were handed out but not reached.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use base::SegmentId;

use super::placer::Serials;
use crate::catalog::{DegradedShare, OpenSegment};

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

    /// An earlier lease appended to `segment`. It has ended, though some job of
    /// it may still hold on to its ledger.
    pub fn forget(&self, segment: SegmentId) {
        self.lock().remove(&segment);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<SegmentId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shared by the placers of one lease.
#[derive(Debug, Default)]
pub struct Ledger {
    segments: Mutex<BTreeMap<SegmentId, u32>>,
    /// Of these, segments into which puts may come that have failed: they stay until the
    /// next lease sweeps them.
    late: Mutex<HashSet<SegmentId>>,
    open: Arc<OpenSegments>,
    uncommitted: Mutex<Uncommitted>,
}

/// How what is about to be committed was dealt.
#[derive(Debug, Clone, Default)]
pub struct PlacementSummary {
    /// What some member lacks.
    pub degraded: Vec<DegradedShare>,
    /// Which members were known when it was dealt, by the oldest and by the newest
    /// table; `None` if nothing was.
    pub joined: Option<(u64, u64)>,
}

impl PlacementSummary {
    /// This and `other`, which was dealt beside it.
    pub fn add(&mut self, other: Self) {
        self.degraded.extend(other.degraded);
        let all = [self.joined, other.joined].into_iter().flatten();
        let least = |(a, b): (u64, u64), (c, d): (u64, u64)| (a.min(c), b.max(d));
        self.joined = all.reduce(least);
    }
}

/// What is settled, and in no version yet.
#[derive(Debug, Default)]
struct Uncommitted {
    dealt: PlacementSummary,
    /// From which slot to which of each segment.
    slots: BTreeMap<SegmentId, Range<u32>>,
}

/// What goes into a commit.
#[derive(Debug)]
pub struct LedgerSnapshot {
    /// The segments that are still being filled.
    pub open_segments: Vec<OpenSegment>,
    /// The first serial that was not used yet.
    pub serial_next: u64,
    /// How the rest was dealt.
    pub dealt: PlacementSummary,
}

impl Ledger {
    /// An empty ledger that keeps `open` true.
    #[must_use]
    pub fn new(open: Arc<OpenSegments>) -> Self {
        Self {
            segments: Mutex::default(),
            late: Mutex::default(),
            open,
            uncommitted: Mutex::default(),
        }
    }

    /// Begins the segment that `name` names; nothing in it is committed. No
    /// commit comes between naming and noting it.
    ///
    /// # Errors
    /// What `name` fails with.
    pub fn begin<E>(&self, name: impl FnOnce() -> Result<SegmentId, E>) -> Result<SegmentId, E> {
        let mut segments = self.lock();
        let segment = name()?;
        self.open.lock().insert(segment);
        segments.insert(segment, 0);
        Ok(segment)
    }

    /// How many slots of `segment` are committed.
    #[must_use]
    pub fn committed_slots(&self, segment: SegmentId) -> u32 {
        self.lock().get(&segment).copied().unwrap_or(0)
    }

    /// Nothing of `segment` beyond what is committed lies anywhere, or ever
    /// will, unless a put comes late. Nothing more is appended to it.
    pub fn closed(&self, segment: SegmentId) {
        if !self.is_unresolved(segment) {
            self.lock().remove(&segment);
        }
        self.open.lock().remove(&segment);
    }

    /// A put into `segment` that has failed may be carried out later.
    pub fn mark_unresolved(&self, segment: SegmentId) {
        self.lock_unresolved().insert(segment);
    }

    fn is_unresolved(&self, segment: SegmentId) -> bool {
        self.lock_unresolved().contains(&segment)
    }

    /// The first `slots` slots of `segment` are in the version about to be
    /// committed, which may lie up to slot `end`. If it is `full`, nothing in it can
    /// become an orphan.
    pub fn committed(&self, segment: SegmentId, slots: u32, end: u32, full: bool) {
        let before = self.committed_slots(segment);
        let mut uncommitted = self.lock_uncommitted();
        let its = uncommitted.slots.entry(segment).or_insert(before..end);
        its.end = its.end.max(end);
        drop(uncommitted);
        if full && !self.is_unresolved(segment) {
            self.closed(segment);
        } else {
            self.lock().insert(segment, slots);
        }
    }

    /// This is in the version about to be committed.
    pub fn dealt(&self, dealt: PlacementSummary) {
        self.lock_uncommitted().dealt.add(dealt);
    }

    /// What [`Ledger::for_commit`] told last has been committed.
    pub fn has_committed(&self) {
        *self.lock_uncommitted() = Uncommitted::default();
    }

    /// What [`Ledger::for_commit`] told last will never be committed. Returns where it
    /// lies: it is nobody's.
    pub fn retract(&self) -> Vec<(SegmentId, Range<u32>)> {
        let taken = std::mem::take(&mut *self.lock_uncommitted());
        let mut segments = self.lock();
        for (segment, slots) in &taken.slots {
            segments.insert(*segment, slots.start);
            self.open.lock().insert(*segment);
        }
        taken.slots.into_iter().collect()
    }

    /// What goes into a commit, whose serials are `serials`.
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
            dealt: self.lock_uncommitted().dealt.clone(),
        }
    }

    fn lock_unresolved(&self) -> std::sync::MutexGuard<'_, HashSet<SegmentId>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_uncommitted(&self) -> std::sync::MutexGuard<'_, Uncommitted> {
        let locked = self.uncommitted.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
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
