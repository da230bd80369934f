//! [`Contact`]: when controllers last answered this host.

use std::time::Duration;

use parking_lot::Mutex;

/// The moments, by the monotonic clock, of the last answers of controllers.
#[derive(Debug)]
pub(crate) struct Contact {
    answered: Mutex<Duration>,
    renewed: Mutex<Duration>,
}

impl Contact {
    /// A contact whose last answer came at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            answered: Mutex::new(now),
            renewed: Mutex::new(now),
        }
    }

    /// Notes that a controller has answered at `now`.
    pub fn note_answer(&self, now: Duration) {
        let mut answered = self.answered.lock();
        *answered = (*answered).max(now);
    }

    /// Notes that leases were renewed by a call that began at `requested`, from which they are
    /// counted.
    pub fn note_renewal(&self, requested: Duration) {
        let mut renewed = self.renewed.lock();
        *renewed = (*renewed).max(requested);
    }

    /// The moment of the last answer.
    pub fn answered(&self) -> Duration {
        *self.answered.lock()
    }

    /// The moment from which the leases are counted.
    pub fn renewed(&self) -> Duration {
        *self.renewed.lock()
    }
}
