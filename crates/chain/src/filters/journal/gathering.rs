//! [`Gathering`]: acknowledged changes wait a moment before they are written back.
//!
//! Meanwhile their requesters get the answers and the processor, and changes in quick succession
//! go below together.

use std::time::Duration;

/// The maximal age of a change that waits.
const GATHER: Duration = Duration::from_micros(100);

/// The maximal length of the records that wait, in bytes.
const GATHER_BYTES: u64 = 128 << 10;

#[derive(Default)]
pub(super) struct Gathering {
    /// When the oldest change that waits was acknowledged.
    since: Option<Duration>,
    /// The position at which the records that wait begin.
    from: u64,
}

impl Gathering {
    /// A change was acknowledged at `now`.
    pub fn begin(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    /// What was written up to `written` need not wait any longer.
    pub fn end(&mut self, written: u64) {
        self.since = None;
        self.from = written;
    }

    pub fn cancel(&mut self) {
        self.since = None;
    }

    /// Whether the changes up to `written` may wait for more.
    pub fn is_open(&self, written: u64, now: Duration) -> bool {
        let is_young = self.since.is_some_and(|since| now < since + GATHER);
        is_young && written - self.from < GATHER_BYTES
    }

    /// `is_open`: the changes wait for more; otherwise they are due at once.
    pub fn timer(&self, is_open: bool, now: Duration) -> Option<Duration> {
        self.since.map(|since| match is_open {
            true => (since + GATHER).saturating_sub(now),
            false => Duration::ZERO,
        })
    }
}
