//! Requests whose blocks, or map pages, are only on unavailable units: they wait.
//!
//! A guest that gets an I/O error makes its file system read-only, and the restart
//! of a unit daemon must not cost that. So reads from unavailable units are retried:
//!
//! ```text
//!               first pages, then blocks
//!   read ────────────────────────────────────► completed
//!     │ all units that may have it                 ▲
//!     ▼ are unavailable                            │ success
//!   waiting ── a second later, some at a time ── retried
//!     │  ▲                                         │
//!     │  └─────────────────────────────────────────┘ still unavailable
//!     │ after two minutes, or when the device closes
//!     ▼
//!   failed
//! ```
//!
//! A waiting request keeps its parameters only: the NBD server's limits bound how
//! many there are, and a change carries its content as in any other queue. A retry
//! looks its blocks up again, for they may have been written since.
//!
//! Permanent failures are not waited for: damaged blocks, and slots that are missing
//! on available units. Nor are prefetches.
//!
//! Invariants: at most `retrying_max` waiting requests are being retried, and one more starts
//! whenever no retry has started for `EXTRA_RETRY_AFTER`, so that unresponsive units do not occupy
//! all threads of the pool; a waiting request never delays another; after
//! [`Reader::fail_waiting`] no request waits.

use std::time::Duration;

use super::Reader;
use super::unavailable_queue::{READS_WAIT_MAX, RETRY_AFTER, WaitingRead};
use crate::engine::event::ReadFailure;
use crate::engine::request::ParkedRequest;

impl Reader {
    /// Whether a request waits after this failure.
    pub fn can_wait(&self, parked: &ParkedRequest, unread: &ReadFailure) -> bool {
        let is_hint = parked.waiting.is_hint();
        let now = self.fetcher.clock.monotonic();
        unread.is_transient
            && !is_hint
            && !self.unavailable.is_closed()
            && now < parked.since() + READS_WAIT_MAX
    }

    /// Queues a request whose read has failed, or fails it.
    pub fn wait_or_fail(&mut self, parked: ParkedRequest, unread: ReadFailure) {
        if !self.can_wait(&parked, &unread) {
            return self.fail(&parked.waiting, unread.error);
        }
        let (since, error) = (parked.since(), unread.error);
        self.unavailable.push(WaitingRead {
            request: parked.waiting,
            since,
            retry_at: self.fetcher.clock.monotonic() + RETRY_AFTER,
            error,
        });
    }

    /// Retries waiting requests that are due, and fails those that are overdue.
    pub fn retry_unavailable(&mut self) {
        if self.unavailable.error().is_none() {
            return;
        }
        let now = self.fetcher.clock.monotonic();
        for waiting in self.unavailable.take_overdue(now) {
            self.fail(&waiting.request, waiting.error);
        }
        while let Some(waiting) = self.unavailable.take_due(now) {
            self.resume(waiting.request, 0, Some(waiting.since));
        }
        self.unavailable.finish_recovery();
    }

    /// The delay until [`Reader::retry_unavailable`] must be called.
    pub fn retry_timer(&self) -> Option<Duration> {
        let at = self.unavailable.next_at()?;
        Some(at.saturating_sub(self.fetcher.clock.monotonic()))
    }

    /// Fails all waiting requests; from here on no request waits.
    pub fn fail_waiting(&mut self) {
        for waiting in self.unavailable.close() {
            self.fail(&waiting.request, waiting.error);
        }
    }
}
