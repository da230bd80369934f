//! A unit that tells its health what comes of each call.
//!
//! Must not know what kind of unit it tracks, nor decide anything: that is
//! [`Health`]'s.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{SegmentId, Slot};
use world::Clock;

use super::{Health, HealthReport, Moment, UnitState, Verb};
use crate::{SegmentStat, SlotRun, Tag, Unit, UnitError, UnitStat};

/// A unit that keeps track of its health by what comes of each call.
///
/// Cost: one atomic load for a call that succeeds on a healthy unit; a short
/// mutex for every other.
pub struct TrackedUnit {
    unit: Arc<dyn Unit>,
    clock: Arc<dyn Clock>,
    health: Mutex<Health>,
    /// The state in `health`, for those who only ask for that.
    state: AtomicU8,
    /// Whether reads have failed since the last that succeeded.
    has_read_failures: AtomicU8,
}

impl TrackedUnit {
    /// Tracks `unit`, of which nothing bad is known yet.
    #[must_use]
    pub fn new(unit: Arc<dyn Unit>, clock: Arc<dyn Clock>) -> Self {
        let now = moment(&*clock);
        Self {
            unit,
            clock,
            health: Mutex::new(Health::new(now)),
            state: AtomicU8::new(UnitState::Healthy as u8),
            has_read_failures: AtomicU8::new(0),
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is doing.
    #[must_use]
    pub fn state(&self) -> UnitState {
        UnitState::ALL[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Whether to put there, rather than elsewhere.
    #[must_use]
    pub fn can_write(&self) -> bool {
        self.state().can_write()
    }

    /// For status.
    #[must_use]
    pub fn report(&self) -> HealthReport {
        self.health().report()
    }

    /// Whether it is time for a [`Unit::probe`], which may wait.
    #[must_use]
    pub fn is_probe_due(&self) -> bool {
        self.state() != UnitState::Healthy && self.health().is_probe_due(moment(&*self.clock))
    }

    fn record<T>(&self, verb: Verb, result: Result<T, UnitError>) -> Result<T, UnitError> {
        let is_news = result.is_err()
            || self.has_read_failures.load(Ordering::Relaxed) != 0
            || (verb != Verb::Read && self.state() != UnitState::Healthy);
        if is_news {
            let mut health = self.health();
            let outcome = result.as_ref().map(|_| ());
            health.record(verb, outcome, moment(&*self.clock));
            self.state.store(health.state as u8, Ordering::Relaxed);
            let has_failures = u8::from(health.read_failures > 0);
            self.has_read_failures
                .store(has_failures, Ordering::Relaxed);
        }
        result
    }
}

fn moment(clock: &dyn Clock) -> Moment {
    Moment {
        monotonic: clock.monotonic(),
        wall: clock.wall(),
    }
}

impl Unit for TrackedUnit {
    fn url(&self) -> &str {
        self.unit.url()
    }

    fn can_append(&self) -> bool {
        self.unit.can_append()
    }

    fn put(
        &self,
        segment: SegmentId,
        slot_bytes: u32,
        first: Slot,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        let result = self.unit.put(segment, slot_bytes, first, tags, data);
        self.record(Verb::Write, result)
    }

    fn sync(&self, segments: &[SegmentId]) -> Result<(), UnitError> {
        self.record(Verb::Write, self.unit.sync(segments))
    }

    fn read(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), UnitError> {
        let result = self.unit.read(run, slot_bytes, tags, data);
        self.record(Verb::Read, result)
    }

    fn read_now(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<bool, UnitError> {
        // What is in memory says nothing about the unit.
        self.unit.read_now(run, slot_bytes, tags, data)
    }

    fn free(&self, segment: SegmentId, slots: &[Slot], closed: bool) -> Result<(), UnitError> {
        let result = self.unit.free(segment, slots, closed);
        self.record(Verb::Release, result)
    }

    fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        self.record(Verb::Release, self.unit.delete(segment))
    }

    fn settle(&self) -> Result<bool, UnitError> {
        self.record(Verb::Release, self.unit.settle())
    }

    fn list(&self) -> Result<Vec<SegmentId>, UnitError> {
        self.record(Verb::Read, self.unit.list())
    }

    fn stat_segment(&self, segment: SegmentId) -> Result<SegmentStat, UnitError> {
        self.record(Verb::Read, self.unit.stat_segment(segment))
    }

    fn stat(&self) -> Result<UnitStat, UnitError> {
        self.record(Verb::Read, self.unit.stat())
    }

    fn scrub(&self, segment: SegmentId) -> Result<Vec<Slot>, UnitError> {
        self.record(Verb::Read, self.unit.scrub(segment))
    }

    fn probe(&self) -> Result<(), UnitError> {
        self.record(Verb::Probe, self.unit.probe())
    }
}
