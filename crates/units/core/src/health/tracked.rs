//! A unit that tells its health what comes of each call, and counts what goes
//! in and out.
//!
//! Must not know what kind of unit it tracks, nor decide anything: that is
//! [`Health`]'s.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{SegmentId, Slot};
use world::Clock;

use super::timing::{Calls, Pace};
use super::{Health, HealthReport, Moment, UnitState, Verb};
use crate::{ReadDone, ReadSlots, Replacement, SlotRun, Tag, Unit, UnitError, pass_on};

/// What went through a unit since it was mounted: slots' content, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Read, from the unit or from what the host has of it in memory.
    pub read_bytes: u64,
    /// Put.
    pub written_bytes: u64,
}

/// A unit that keeps track of its health by what comes of each call, and of how
/// long each takes.
///
/// Cost: two looks at the clock and some atomic additions for a call that
/// succeeds on a healthy unit; a short mutex for every other. Of what is answered
/// at once, only the content is counted.
pub struct TrackedUnit {
    unit: Arc<dyn Unit>,
    clock: Arc<dyn Clock>,
    health: Mutex<Health>,
    /// The state in `health`, for those who only ask for that.
    state: AtomicU8,
    /// Whether reads have failed since the last that succeeded.
    has_read_failures: AtomicU8,
    /// Nothing more is to be put there, however well it is.
    is_closed: AtomicBool,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    pace: Pace,
    calls: Calls,
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
            is_closed: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            pace: Pace::default(),
            calls: Calls::default(),
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
        self.state().can_write() && !self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether anything is put there, if it is well: not, if it is to be given up.
    pub fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Relaxed);
    }

    /// For status.
    #[must_use]
    pub fn report(&self) -> HealthReport {
        self.health().report()
    }

    /// See [`Health::take_return`].
    #[must_use]
    pub fn take_return(&self) -> bool {
        self.health().take_return()
    }

    /// What went through it.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }

    /// What calls have taken and come to.
    #[must_use]
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// How long a read is likely to take, in microseconds, by what reads have taken
    /// of late and how many wait; 0 if nothing is known. Of several copies, that
    /// with the lowest cost answers first.
    #[must_use]
    #[inline]
    pub fn read_cost_us(&self) -> u32 {
        self.pace.cost_us()
    }

    /// A read that has not ended after so long is *late*: one in twenty is. From
    /// 2 ms to 500 ms.
    #[must_use]
    pub fn late_after(&self) -> Duration {
        self.pace.late_after()
    }

    /// Somebody has waited so long for a read that has not ended: until it does,
    /// reads are likely to take as long.
    pub fn is_late(&self, waited: Duration) {
        self.pace.is_late(waited);
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
        let began = self.clock.monotonic();
        let result = call(&*self.unit);
        self.note_took(verb, began);
        self.note_outcome(verb, result.as_ref().map(|_| ()));
        result
    }

    fn note_took(&self, verb: Verb, began: Duration) -> Duration {
        let took = self.clock.monotonic().saturating_sub(began);
        self.calls.record(verb, took);
        took
    }

    /// A reading that had begun has ended.
    fn note_read(&self, began: Duration, outcome: Result<(), &UnitError>) {
        let took = self.note_took(Verb::Read, began);
        self.pace.end(outcome.is_ok().then_some(took));
        self.note_outcome(Verb::Read, outcome);
    }

    fn note_outcome(&self, verb: Verb, outcome: Result<(), &UnitError>) {
        match outcome {
            Err(error) => self.calls.failed(error),
            Ok(()) if verb == Verb::Probe => self.pace.forgive(),
            Ok(()) => {}
        }
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
        let began = self.clock.monotonic();
        self.pace.begin();
        let noted = move |read: Result<ReadSlots<'_>, UnitError>| {
            tracked.note_read(began, read.as_ref().map(|_| ()));
            if read.is_ok() {
                let bytes = u64::from(run.count) * u64::from(slot_bytes);
                tracked.read_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            done(read);
        };
        let is_begun = self.unit.read_later(run, slot_bytes, Box::new(noted));
        if !is_begun {
            self.pace.end(None);
        }
        is_begun
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
    pass_on!(record(Verb::Write): sync sync_found);
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

    fn replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        self.record(Verb::Write, |unit| unit.replace(segment, by))?;
        count(&self.written_bytes, by.data);
        Ok(())
    }

    fn read(
        &self,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> Result<(), UnitError> {
        let began = self.clock.monotonic();
        self.pace.begin();
        let read = self.unit.read(run, slot_bytes, tags, data);
        self.note_read(began, read.as_ref().copied());
        read?;
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
