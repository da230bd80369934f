//! How long a link that has failed tries nothing.

use std::io;
use std::time::Duration;

use super::has_broken;

/// At first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How often there is no pause after a connection that was of use.
const NO_PAUSE_EVERY: Duration = PAUSE_MAX;

/// The pauses of one link: each as long as two before it, until an answer comes. A
/// connection that broke after it was of use is replaced at once, now and then: a daemon
/// that is restarted, or a network that forgets connections, is to cost nobody a pause.
#[derive(Debug)]
pub struct Pauses {
    /// How long the next one is.
    next: Duration,
    /// Something has come on the connection that there is.
    is_of_use: bool,
    /// From when on there may be none once more.
    none_from: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            next: PAUSE_MIN,
            is_of_use: false,
            none_from: Duration::ZERO,
        }
    }
}

impl Pauses {
    /// A connection is made: it has brought nothing yet.
    pub fn connects(&mut self) {
        self.is_of_use = false;
    }

    /// Something has come on it.
    pub fn answered(&mut self) {
        self.next = PAUSE_MIN;
        self.is_of_use = true;
    }

    /// It has failed, or there is none: until when nothing is to be tried.
    pub fn failed(&mut self, now: Duration, why: &io::Error) -> Duration {
        let was_of_use = std::mem::take(&mut self.is_of_use);
        if was_of_use && has_broken(why) && now >= self.none_from {
            self.none_from = now + NO_PAUSE_EVERY;
            return now;
        }
        let until = now + self.next;
        self.next = (self.next * 2).min(PAUSE_MAX);
        until
    }
}
