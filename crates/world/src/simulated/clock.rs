//! Time that stands still until somebody moves it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::{Clock, Millis};

/// A clock that is moved by hand.
#[derive(Debug)]
pub struct SimulatedClock {
    monotonic_ns: AtomicU64,
    wall_ms: AtomicI64,
}

impl SimulatedClock {
    /// A clock whose wall stands at `wall`, and whose monotonic time at 1 s:
    /// code that takes zero for "never" should fail here and not once a year.
    #[must_use]
    pub fn new(wall: Millis) -> Self {
        Self {
            monotonic_ns: AtomicU64::new(1_000_000_000),
            wall_ms: AtomicI64::new(wall.0),
        }
    }

    /// Another clock that shows the same now.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            monotonic_ns: AtomicU64::new(self.monotonic_ns.load(Ordering::Relaxed)),
            wall_ms: AtomicI64::new(self.wall_ms.load(Ordering::Relaxed)),
        }
    }

    /// Lets `time` pass on both clocks.
    pub fn advance(&self, time: Duration) {
        let add = u64::try_from(time.as_nanos()).expect("under 584 years");
        let before = self.monotonic_ns.fetch_add(add, Ordering::Relaxed);
        let whole_ms = (before + add) / 1_000_000 - before / 1_000_000;
        self.jump(i64::try_from(whole_ms).expect("under 292 million years"));
    }

    /// Moves the wall clock alone, as an operator or NTP does.
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
    fn time_passes_only_by_hand_and_a_jump_moves_only_the_wall() {
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
