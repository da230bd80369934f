//! The pace of a pass, and whether it makes progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::host::RepairProgress;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use volume::repair::{Pace, Stopped};
use world::{Clock, host};

/// A limit in bytes per second.
struct Throttle {
    clock: Arc<dyn Clock>,
    bytes_per_second: u64,
    /// When all bytes so far fit into the limit, by the monotonic clock.
    paid: Mutex<Duration>,
}

impl Throttle {
    /// The time to wait before `bytes` more are moved. The unused allowance of the last second may
    /// still be used.
    fn spend(&self, bytes: u64) -> Duration {
        let now = self.clock.monotonic();
        let mut paid = self.paid.lock();
        let begin = (*paid).max(now.saturating_sub(Duration::from_secs(1)));
        let rate = self.bytes_per_second.max(1);
        *paid = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
        paid.saturating_sub(now)
    }
}

/// A pass without a step for this long waits for a unit that does not answer, perhaps forever, such
/// as a dead file server.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// The pace of a pass.
pub(super) struct Pacing {
    throttle: Throttle,
    runtime: Handle,
    is_stopped: AtomicBool,
    /// Counts the steps.
    steps: AtomicU64,
    done: AtomicU64,
    all: AtomicU64,
}

impl Pacing {
    pub fn new(clock: Arc<dyn Clock>, bytes_per_second: u64) -> Self {
        Self {
            throttle: Throttle {
                clock,
                bytes_per_second,
                paid: Mutex::default(),
            },
            runtime: Handle::current(),
            is_stopped: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            done: AtomicU64::new(0),
            all: AtomicU64::new(0),
        }
    }

    /// Stops the pass at its next step.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub fn progress(&self) -> RepairProgress {
        RepairProgress {
            done: self.done.load(Ordering::Relaxed),
            all: self.all.load(Ordering::Relaxed),
        }
    }
}

impl Pace for Pacing {
    fn step(&self, bytes: u64) -> Result<(), Stopped> {
        let mut wait = match bytes {
            0 => Duration::ZERO,
            bytes => self.throttle.spend(bytes),
        };
        loop {
            self.steps.fetch_add(1, Ordering::Relaxed);
            if self.is_stopped.load(Ordering::Relaxed) {
                return Err(Stopped);
            }
            if wait.is_zero() {
                return Ok(());
            }
            let part = wait.min(Duration::from_millis(200));
            self.runtime.block_on(host::sleep(part));
            wait -= part;
        }
    }

    fn report_progress(&self, done: u64, all: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }
}

/// Detects that a pass makes no steps.
pub(super) struct StepWatch {
    steps: u64,
    since: Duration,
}

impl StepWatch {
    pub fn new(now: Duration) -> Self {
        Self {
            steps: 0,
            since: now,
        }
    }

    /// Whether the pass, which has made `steps` at `now` by the monotonic clock, is stuck.
    pub fn is_stuck(&mut self, steps: u64, now: Duration) -> bool {
        if steps != self.steps {
            *self = Self { steps, since: now };
        }
        now.saturating_sub(self.since) >= STUCK_AFTER
    }
}

/// Stops a pass when it is dropped, even if the pass is not waited for any more.
pub(super) struct StopOnDrop(pub Arc<Pacing>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use world::simulated::Simulation;

    use super::*;

    /// Regression: a file server died for good while a pass read from it; the host held the copyset
    /// and repaired nothing else until it was restarted.
    #[test]
    fn a_pass_that_makes_no_step_for_long_is_aborted() {
        let at = Duration::from_secs;
        let mut progress = StepWatch::new(at(1000));
        assert!(!progress.is_stuck(3, at(1010)));
        assert!(!progress.is_stuck(3, at(1129)));
        assert!(!progress.is_stuck(4, at(1130)));
        assert!(!progress.is_stuck(4, at(1249)));
        assert!(progress.is_stuck(4, at(1250)));
    }

    #[test]
    fn a_pass_moves_no_more_bytes_a_second_than_the_limit() {
        let simulation = Simulation::new(1);
        let clock = simulation.world().clock;
        let throttle = Throttle {
            clock,
            bytes_per_second: 1000,
            paid: Mutex::default(),
        };
        // The allowance of the last second is unused so far.
        let begun = throttle.clock.monotonic();
        let spare = begun.min(Duration::from_secs(1));
        let mut waits = Duration::ZERO;
        for _ in 0..10 {
            waits = throttle.spend(500);
        }
        let elapsed = throttle.clock.monotonic().saturating_sub(begun);
        let all = Duration::from_secs(5);
        assert!(waits + elapsed + spare >= all, "{waits:?} {elapsed:?}");
        assert!(waits <= all, "{waits:?}");
    }
}
