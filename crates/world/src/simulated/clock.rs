//! [`SimulatedClock`]: a clock that stands still until the driver advances it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::{Clock, Millis};

/// A clock that the driver advances.
#[derive(Debug)]
pub struct SimulatedClock {
    monotonic_ns: AtomicU64,
    wall_ms: AtomicI64,
}

impl SimulatedClock {
    /// A clock whose wall time is `wall` and whose monotonic time is 1 s. Code that uses zero for
    /// "never" works with it, and fails with a clock that starts at zero.
    #[must_use]
    pub fn new(wall: Millis) -> Self {
        Self {
            monotonic_ns: AtomicU64::new(1_000_000_000),
            wall_ms: AtomicI64::new(wall.0),
        }
    }

    /// Another clock that shows the same time.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            monotonic_ns: AtomicU64::new(self.monotonic_ns.load(Ordering::Relaxed)),
            wall_ms: AtomicI64::new(self.wall_ms.load(Ordering::Relaxed)),
        }
    }

    /// Advances both times.
    pub fn advance(&self, time: Duration) {
        let add = u64::try_from(time.as_nanos()).expect("under 584 years");
        let before = self.monotonic_ns.fetch_add(add, Ordering::Relaxed);
        let whole_ms = (before + add) / 1_000_000 - before / 1_000_000;
        self.jump(i64::try_from(whole_ms).expect("under 292 million years"));
    }

    /// Changes only the wall time, as an operator or NTP does.
    pub fn jump(&self, wall_ms: i64) {
        self.wall_ms.fetch_add(wall_ms, Ordering::Relaxed);
    }
}

impl Default for SimulatedClock {
    /// 2026-01-01 00:00 UTC.
    fn default() -> Self {
        Self::new(Millis(1_767_225_600_000))
    }
}

impl Clock for SimulatedClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Millis {
        Millis(self.wall_ms.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_advances_only_when_asked_and_a_jump_changes_only_the_wall_time() {
        let clock = SimulatedClock::new(Millis(5_000));
        let start = clock.monotonic();
        for _ in 0..10 {
            clock.advance(Duration::from_micros(150));
        }
        assert_eq!(clock.monotonic() - start, Duration::from_micros(1500));
        assert_eq!(clock.wall(), Millis(5_001));
        clock.jump(-2_000);
        assert_eq!(clock.wall(), Millis(3_001));
        assert_eq!(clock.monotonic() - start, Duration::from_micros(1500));
    }
}
