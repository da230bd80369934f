//! Pauses of a link after failures.

use std::io;
use std::time::Duration;

use super::has_broken;

/// Length of the first pause, and of the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Minimum time between two failures without a pause.
const NO_PAUSE_EVERY: Duration = PAUSE_MAX;

/// The pauses of one link: each is twice as long as the one before, until an answer is received.
/// A connection that broke after it worked is replaced at once, at most every
/// `NO_PAUSE_EVERY`: a daemon that is restarted, or a network that drops idle connections,
/// should cost no pause.
#[derive(Debug)]
pub struct Pauses {
    /// Length of the next pause.
    next: Duration,
    /// Whether an answer was received on the current connection.
    has_worked: bool,
    /// From when on a pause may be skipped again.
    skip_from: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            next: PAUSE_MIN,
            has_worked: false,
            skip_from: Duration::ZERO,
        }
    }
}

impl Pauses {
    /// Records that a connection is being established.
    pub fn connects(&mut self) {
        self.has_worked = false;
    }

    /// Records that an answer was received.
    pub fn answered(&mut self) {
        self.next = PAUSE_MIN;
        self.has_worked = true;
    }

    /// Records that the connection, or the attempt, failed. Returns the end of the pause.
    pub fn failed(&mut self, now: Duration, why: &io::Error) -> Duration {
        let had_worked = std::mem::take(&mut self.has_worked);
        if had_worked && has_broken(why) && now >= self.skip_from {
            self.skip_from = now + NO_PAUSE_EVERY;
            return now;
        }
        let until = now + self.next;
        self.next = (self.next * 2).min(PAUSE_MAX);
        until
    }
}
