//! A unit that records its own health and counts what goes in and out: [`TrackedUnit`].
//!
//! Must not know what kind of unit it wraps. It decides nothing: [`Health`] does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use base::SegmentId;
use parking_lot::Mutex;
use world::Clock;

use super::timing::{Calls, Pace};
use super::{Health, HealthReport, Moment, OpClass, UnitState};
use crate::{
    Put, Read, ReadDone, ReadSlots, Replacement, SlotRun, Unit, UnitError, UnitLayer, UnitOp,
};

/// What went through a unit since it was mounted: contents of slots, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes read, from the unit or from what this host has of it in memory.
    pub read_bytes: u64,
    /// Bytes put.
    pub written_bytes: u64,
}

/// A unit that records the outcome and the duration of each call.
///
/// Cost: two reads of the clock and some atomic additions for a call that succeeds on a
/// healthy unit; a short mutex for every other. For [`Unit::read_now`] only the bytes are
/// counted.
pub struct TrackedUnit {
    unit: Arc<dyn Unit>,
    clock: Arc<dyn Clock>,
    health: Mutex<Health>,
    /// The state in `health`, to be read without the lock.
    state: AtomicU8,
    /// Whether reads have failed since the last one that succeeded.
    has_read_failures: AtomicU8,
    /// Whether the unit accepts no puts, however healthy it is.
    is_closed: AtomicBool,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    pace: Pace,
    calls: Calls,
}

impl TrackedUnit {
    /// Tracks `unit`, which counts as healthy at first.
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

    /// The current state.
    #[must_use]
    pub fn state(&self) -> UnitState {
        UnitState::ALL[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Whether writers should put there.
    #[must_use]
    pub fn can_write(&self) -> bool {
        self.state().can_write() && !self.is_closed.load(Ordering::Relaxed)
    }

    /// Closes the unit for puts, or opens it again. A unit that is being drained is closed.
    pub fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Relaxed);
    }

    /// The health, for status.
    #[must_use]
    pub fn report(&self) -> HealthReport {
        self.health.lock().report()
    }

    /// Whether the unit was missing since this was last called, and is back.
    #[must_use]
    pub fn take_return(&self) -> bool {
        self.health.lock().take_return()
    }

    /// What went through the unit.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }

    /// The durations and errors of the calls.
    #[must_use]
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// How long a read is likely to take, in microseconds, by the duration of recent reads
    /// and the number under way; 0 before the first. Of several replicas, the one with the
    /// lowest cost is read first.
    #[must_use]
    #[inline]
    pub fn read_cost_us(&self) -> u32 {
        self.pace.cost_us()
    }

    /// The time after which a read is hedged on another replica: one in twenty takes longer.
    /// From 2 ms to 500 ms.
    #[must_use]
    pub fn hedge_after(&self) -> Duration {
        self.pace.hedge_after()
    }

    /// Records that a read has been under way for `waited` and has not ended: until one
    /// does, reads are likely to take as long.
    pub fn record_overdue(&self, waited: Duration) {
        self.pace.record_overdue(waited);
    }

    /// Whether it is time for a [`Unit::probe`], which may wait.
    #[must_use]
    pub fn is_probe_due(&self) -> bool {
        self.state() != UnitState::Healthy && self.health.lock().is_probe_due(moment(&*self.clock))
    }

    fn record_duration(&self, class: OpClass, began: Duration) -> Duration {
        let took = self.clock.monotonic().saturating_sub(began);
        self.calls.record(class, took);
        took
    }

    /// Records the end of a read that began at `began`.
    fn record_read(&self, began: Duration, outcome: Result<(), &UnitError>) {
        let took = self.record_duration(OpClass::Read, began);
        self.pace.end(outcome.is_ok().then_some(took));
        self.record_outcome(OpClass::Read, outcome);
    }

    fn record_outcome(&self, class: OpClass, outcome: Result<(), &UnitError>) {
        match outcome {
            Err(error) => self.calls.failed(error),
            Ok(()) if class == OpClass::Probe => self.pace.forgive(),
            Ok(()) => {}
        }
        let is_news = outcome.is_err()
            || self.has_read_failures.load(Ordering::Relaxed) != 0
            || (class != OpClass::Read && self.state() != UnitState::Healthy);
        if is_news {
            let mut health = self.health.lock();
            health.record(class, outcome, moment(&*self.clock));
            self.state.store(health.state as u8, Ordering::Relaxed);
            let has_failures = u8::from(health.read_failures > 0);
            self.has_read_failures
                .store(has_failures, Ordering::Relaxed);
        }
    }

    /// As [`Unit::read_async`].
    pub fn read_async(self: &Arc<Self>, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let tracked = Arc::clone(self);
        let began = self.clock.monotonic();
        self.pace.begin();
        let recorded = move |read: Result<ReadSlots<'_>, UnitError>| {
            tracked.record_read(began, read.as_ref().map(|_| ()));
            if read.is_ok() {
                let bytes = u64::from(run.count) * u64::from(slot_bytes);
                tracked.read_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            done(read);
        };
        let is_begun = self.unit.read_async(run, slot_bytes, Box::new(recorded));
        if !is_begun {
            self.pace.end(None);
        }
        is_begun
    }
}

fn count(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}

fn moment(clock: &dyn Clock) -> Moment {
    Moment {
        monotonic: clock.monotonic(),
        wall: clock.wall(),
    }
}

impl UnitLayer for TrackedUnit {
    fn inner(&self) -> &dyn Unit {
        &*self.unit
    }

    /// Records the duration and the outcome.
    fn around<T>(
        &self,
        op: UnitOp,
        call: impl FnOnce(&dyn Unit) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        let began = self.clock.monotonic();
        let result = call(&*self.unit);
        self.record_duration(op.class(), began);
        self.record_outcome(op.class(), result.as_ref().map(|_| ()));
        result
    }

    fn on_put(&self, put: Put<'_>) -> Result<(), UnitError> {
        self.around(UnitOp::Put, |unit| unit.put(put))?;
        count(&self.written_bytes, put.data.len());
        Ok(())
    }

    fn on_replace(&self, segment: SegmentId, by: Replacement<'_>) -> Result<(), UnitError> {
        self.around(UnitOp::Replace, |unit| unit.replace(segment, by))?;
        count(&self.written_bytes, by.data.len());
        Ok(())
    }

    fn on_read(&self, read: Read<'_>) -> Result<(), UnitError> {
        let bytes = read.data.len();
        let began = self.clock.monotonic();
        self.pace.begin();
        let result = self.unit.read(read);
        self.record_read(began, result.as_ref().copied());
        result?;
        count(&self.read_bytes, bytes);
        Ok(())
    }

    /// What is in memory says nothing about the health of the unit.
    fn on_read_now(&self, read: Read<'_>) -> Result<bool, UnitError> {
        let bytes = read.data.len();
        let is_read = self.unit.read_now(read)?;
        if is_read {
            count(&self.read_bytes, bytes);
        }
        Ok(is_read)
    }
}
