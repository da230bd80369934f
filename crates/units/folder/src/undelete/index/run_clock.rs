//! The run time of a unit: how long processes have had it open, in microseconds.
//!
//! Invariant: no two timestamps have the same run time, and run times only grow, across restarts
//! too.

use std::time::Duration;

use world::Clock;

use crate::undelete::name::Timestamp;

/// Computes the run time from what earlier processes saved and the monotonic clock.
pub(in crate::undelete) struct RunClock {
    /// Run time when the index was loaded, in microseconds.
    base: u64,
    /// When it was loaded, by the monotonic clock.
    loaded: Duration,
    /// The last run time that was used, in microseconds.
    last: u64,
}

impl RunClock {
    /// A clock that continues after `newest`, the highest run time in the folder.
    pub fn starting_at(newest: u64, loaded: Duration) -> Self {
        Self {
            base: newest,
            loaded,
            last: newest,
        }
    }

    /// The run time in microseconds.
    pub fn now(&self, clock: &dyn Clock) -> u64 {
        let since = clock.monotonic().saturating_sub(self.loaded);
        let since = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        self.base.saturating_add(since)
    }

    /// A timestamp with a run time that nothing else has.
    pub fn timestamp(&mut self, clock: &dyn Clock) -> Timestamp {
        self.last = self.now(clock).max(self.last + 1);
        Timestamp {
            run_time_us: self.last,
            wall: clock.wall(),
        }
    }
}
