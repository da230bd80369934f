//! Since when a controller has received all reports of hosts.
//!
//! Before that it is unknown which hosts were unresponsive: reports that were sent while the
//! controller or its database was unavailable are lost.

use std::time::Duration;

use parking_lot::Mutex;
use world::Millis;

/// If two clocks drift apart by more than this, in milliseconds, one has been set.
const JUMP_MS: u64 = 30_000;

/// Since when reports of hosts are received without a gap.
#[derive(Debug)]
pub(crate) struct Reception(Mutex<Start>);

#[derive(Debug, Clone, Copy)]
struct Start {
    /// When reception started, by the monotonic clock.
    at: Duration,
    /// How far the clock that ages of reports are measured with was ahead of the monotonic clock,
    /// in milliseconds; `None` before the first measurement.
    ahead_ms: Option<i64>,
}

impl Reception {
    /// Starts now, by the monotonic clock.
    pub fn new(monotonic: Duration) -> Self {
        Self(Mutex::new(Start {
            at: monotonic,
            ahead_ms: None,
        }))
    }

    /// Starts again: a report was or may have been lost.
    pub fn was_lost(&self, monotonic: Duration) {
        let mut start = self.0.lock();
        start.at = monotonic;
    }

    /// How long it has lasted. `now` is the time by the clock that reports are recorded with; if
    /// that was set, it starts again, since ages of reports are wrong then.
    pub fn lasts(&self, monotonic: Duration, now: Millis) -> Duration {
        let mut start = self.0.lock();
        let monotonic_ms = i64::try_from(monotonic.as_millis()).unwrap_or(i64::MAX);
        let ahead_ms = now.0.saturating_sub(monotonic_ms);
        let before = start.ahead_ms.replace(ahead_ms).unwrap_or(ahead_ms);
        if before.abs_diff(ahead_ms) > JUMP_MS {
            start.at = monotonic;
        }
        monotonic.saturating_sub(start.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first report after an outage once ended the jobs of all other hosts.
    #[test]
    fn no_host_counts_as_unresponsive_before_reports_are_received() {
        let seconds = Duration::from_secs;
        let now = |seconds: i64| Millis(1_000_000_000 + seconds * 1000);
        let reception = Reception::new(seconds(10));
        assert_eq!(reception.lasts(seconds(10), now(0)), seconds(0));
        assert_eq!(reception.lasts(seconds(310), now(300)), seconds(300));
        // A clock that runs ahead slowly is right.
        assert_eq!(reception.lasts(seconds(410), now(420)), seconds(400));
        // The machine slept for a day, or its clock was set.
        assert_eq!(reception.lasts(seconds(420), now(86_400)), seconds(0));
        assert_eq!(reception.lasts(seconds(720), now(86_700)), seconds(300));
        assert_eq!(reception.lasts(seconds(730), now(730)), seconds(0));
        reception.was_lost(seconds(900));
        assert_eq!(reception.lasts(seconds(910), now(910)), seconds(10));
    }
}
