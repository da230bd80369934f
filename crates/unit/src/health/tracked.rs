//! A unit that tells its health what comes of each call, and counts what goes
//! in and out.
//!
//! Must not know what kind of unit it tracks, nor decide anything: that is
//! [`Health`]'s.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{SegmentId, Slot};
use world::Clock;

use super::{Health, HealthReport, Moment, UnitState, Verb};
use crate::{ReadDone, ReadSlots, SlotRun, Tag, Unit, UnitError, pass_on};

/// What went through a unit since it was mounted: slots' content, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Read, from the unit or from what the host has of it in memory.
    pub read_bytes: u64,
    /// Put.
    pub written_bytes: u64,
}

/// A unit that keeps track of its health by what comes of each call.
///
/// Cost: one atomic load for a call that succeeds on a healthy unit, and one
/// atomic addition if it moves content; a short mutex for every other.
pub struct TrackedUnit {
    unit: Arc<dyn Unit>,
    clock: Arc<dyn Clock>,
    health: Mutex<Health>,
    /// The state in `health`, for those who only ask for that.
    state: AtomicU8,
    /// Whether reads have failed since the last that succeeded.
    has_read_failures: AtomicU8,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
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
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
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

    /// What went through it.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether it is time for a [`Unit::probe`], which may wait.
    #[must_use]
    pub fn is_probe_due(&self) -> bool {
        self.state() != UnitState::Healthy && self.health().is_probe_due(moment(&*self.clock))
    }

    /// Passes a call on, and notes what comes of it.
    fn record<T>(
        &self,
        verb: Verb,
        call: impl FnOnce(&dyn Unit) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        let result = call(&*self.unit);
        self.note_outcome(verb, result.as_ref().map(|_| ()));
        result
    }

    fn note_outcome(&self, verb: Verb, outcome: Result<(), &UnitError>) {
        let is_news = outcome.is_err()
            || self.has_read_failures.load(Ordering::Relaxed) != 0
            || (verb != Verb::Read && self.state() != UnitState::Healthy);
        if is_news {
            let mut health = self.health();
            health.record(verb, outcome, moment(&*self.clock));
            self.state.store(health.state as u8, Ordering::Relaxed);
            let has_failures = u8::from(health.read_failures > 0);
            self.has_read_failures
                .store(has_failures, Ordering::Relaxed);
        }
    }

    /// As [`Unit::read_later`].
    pub fn read_later(self: &Arc<Self>, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let tracked = Arc::clone(self);
        let noted = move |read: Result<ReadSlots<'_>, UnitError>| {
            tracked.note_outcome(Verb::Read, read.as_ref().map(|_| ()));
            if let Ok(slots) = &read {
                count(&tracked.read_bytes, slots.data);
            }
            done(read);
        };
        self.unit.read_later(run, slot_bytes, Box::new(noted))
    }
}

fn count(counter: &AtomicU64, moved: &[u8]) {
    counter.fetch_add(moved.len() as u64, Ordering::Relaxed);
}

fn moment(clock: &dyn Clock) -> Moment {
    Moment {
        monotonic: clock.monotonic(),
        wall: clock.wall(),
    }
}

impl Unit for TrackedUnit {
    pass_on!(.unit: url can_append);
    pass_on!(record(Verb::Write): sync);
    pass_on!(record(Verb::Read): list list_serials stat_segment slots_of stat scrub note);
    pass_on!(record(Verb::Release): free delete settle note_down);
    pass_on!(record(Verb::Probe): probe);

    fn put_for(
        &self,
        line: u64,
        segment: SegmentId,
        slot_bytes: u32,
        first: Slot,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<(), UnitError> {
        self.record(Verb::Write, |unit| {
            unit.put_for(line, segment, slot_bytes, first, tags, data)
        })?;
        count(&self.written_bytes, data);
        Ok(())
    }

    fn read(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), UnitError> {
        self.record(Verb::Read, |unit| unit.read(run, slot_bytes, tags, data))?;
        count(&self.read_bytes, data);
        Ok(())
    }

    fn read_now(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<bool, UnitError> {
        // What is in memory says nothing about the unit's health.
        let is_read = self.unit.read_now(run, slot_bytes, tags, data)?;
        if is_read {
            count(&self.read_bytes, data);
        }
        Ok(is_read)
    }
}
