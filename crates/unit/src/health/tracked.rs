//! A unit that tells its health what comes of each call.
//!
//! Must not know what kind of unit it tracks, nor decide anything: that is
//! [`Health`]'s.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use world::Clock;

use super::{Health, HealthReport, Moment, UnitState, Verb};
use crate::{Unit, UnitError, pass_on};

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

    fn ask<T>(&self, call: impl FnOnce(&dyn Unit) -> Result<T, UnitError>) -> Result<T, UnitError> {
        call(&*self.unit)
    }

    /// Passes a call on, and notes what comes of it.
    fn record<T>(
        &self,
        verb: Verb,
        call: impl FnOnce(&dyn Unit) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        let result = call(&*self.unit);
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
    pass_on!(.unit: url can_append);
    pass_on!(record(Verb::Write): put sync);
    pass_on!(record(Verb::Read): read list stat_segment stat scrub);
    pass_on!(record(Verb::Release): free delete settle);
    pass_on!(record(Verb::Probe): probe);
    // What is in memory says nothing about the unit.
    pass_on!(ask(): read_now);
}
