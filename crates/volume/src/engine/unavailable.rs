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
//! Invariants: at most `retrying_max` waiting requests are being retried, and one more
//! for every [`EXTRA_RETRY_AFTER`] in which none of those ended, so that unresponsive
//! units do not occupy all threads of the pool; a waiting request never delays another;
//! after [`Reader::fail_waiting`] no request waits.

use std::collections::VecDeque;
use std::time::Duration;

use base::{IoError, Token, VolumeId};

use super::reader::{ParkedRequest, PendingRequest, Reader};
use crate::scatter::ReadError;

/// The delay before a failed read is retried. As long as that of a destage; asking an
/// unavailable unit costs nothing.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long a request waits in all: as long as Linux lets a process wait for a disk
/// before it logs that (`hung_task_timeout_secs`), and as a machine takes to reboot.
/// Drivers with a limit of their own, of 30 s or 60 s, retry themselves. It is finite
/// because a unit may be lost for good, and then the reader must get an error.
pub const READS_WAIT_MAX: Duration = Duration::from_secs(120);

/// Waiting requests that are retried in parallel until one succeeds.
const RETRIES_MIN: usize = 8;

/// If no retry has started for this long, one more does: the running ones may depend
/// on an unresponsive unit that the others do not need.
const EXTRA_RETRY_AFTER: Duration = Duration::from_secs(10);

/// Why something was not read.
#[derive(Debug, Clone)]
pub struct ReadFailure {
    /// The error that the client gets.
    pub error: IoError,
    /// Whether a retry may succeed without any repair.
    pub is_transient: bool,
}

impl ReadFailure {
    /// A failure that no retry can change.
    pub fn permanent(error: IoError) -> Self {
        Self {
            error,
            is_transient: false,
        }
    }
}

impl From<ReadError> for ReadFailure {
    fn from(error: ReadError) -> Self {
        let text = error.to_string();
        match error {
            ReadError::Damaged { .. } => Self::permanent(IoError::Damaged(text)),
            ReadError::Unavailable { is_transient, .. } => Self {
                error: IoError::Unavailable(text),
                is_transient,
            },
        }
    }
}

/// A waiting request.
struct WaitingRead {
    request: PendingRequest,
    /// When it was first read.
    since: Duration,
    /// When it is retried.
    again: Duration,
    error: IoError,
}

/// The queue of requests that wait for unavailable units.
pub struct UnavailableReads {
    /// The volume's id, for the log.
    volume: Option<VolumeId>,
    /// Waiting requests, in the order of their retries.
    queue: VecDeque<WaitingRead>,
    /// Requests that are being retried; they are not in the queue.
    retrying: usize,
    /// The limit of `retrying`, extra retries aside.
    retrying_max: usize,
    /// When the last retry started.
    retried_at: Duration,
    /// When to check next for requests that have waited too long.
    check_at: Duration,
    /// The error of the last failed read, while any request waits.
    last_error: Option<IoError>,
    /// Whether the device is closing: no request may wait.
    is_closed: bool,
}

impl UnavailableReads {
    /// An empty queue.
    pub fn new(volume: Option<VolumeId>) -> Self {
        Self {
            volume,
            queue: VecDeque::new(),
            retrying: 0,
            retrying_max: RETRIES_MIN,
            retried_at: Duration::ZERO,
            check_at: Duration::ZERO,
            last_error: None,
            is_closed: false,
        }
    }

    /// Waiting requests, including those that are being retried.
    pub fn count(&self) -> usize {
        self.queue.len() + self.retrying
    }

    /// Why they wait.
    pub fn error(&self) -> Option<&IoError> {
        self.last_error.as_ref()
    }

    /// Closes the queue and takes its requests.
    pub fn drain(&mut self) -> impl Iterator<Item = Token> + '_ {
        self.is_closed = true;
        self.retrying = 0;
        self.last_error = None;
        let waits = self.queue.drain(..);
        waits.filter_map(|waits| waits.request.token())
    }

    /// Records that a retry has started.
    pub fn retry_started(&mut self) {
        self.retrying += 1;
    }

    /// Records that a retry has ended. After a success others are likely to succeed,
    /// and twice as many may be retried.
    pub fn retry_ended(&mut self, has_failed: bool) {
        self.retrying -= 1;
        self.retrying_max = match has_failed {
            true => RETRIES_MIN,
            false => self.retrying_max.saturating_mul(2),
        };
    }

    fn push(&mut self, waits: WaitingRead) {
        if self.last_error.is_none() {
            tracing::warn!(
                volume = self.volume.map(tracing::field::display), error = %waits.error,
                "reads wait for unavailable units"
            );
        }
        self.last_error = Some(waits.error.clone());
        self.queue.push_back(waits);
    }

    /// Logs that no request waits any more.
    fn report_recovery(&mut self) {
        if self.count() == 0 && self.last_error.take().is_some() {
            self.retrying_max = RETRIES_MIN;
            tracing::info!(
                volume = self.volume.map(tracing::field::display),
                "no read waits for unavailable units any more"
            );
        }
    }

    /// Takes the requests that have waited too long.
    fn take_overdue(&mut self, now: Duration) -> Vec<WaitingRead> {
        if now < self.check_at {
            return Vec::new();
        }
        self.check_at = now + RETRY_AFTER;
        let waiting = std::mem::take(&mut self.queue);
        let (overdue, waiting) = waiting
            .into_iter()
            .partition(|waits| now >= waits.since + READS_WAIT_MAX);
        self.queue = waiting;
        Vec::from(overdue)
    }

    /// When the first request may be retried.
    fn due_at(&self) -> Option<Duration> {
        let again = self.queue.front()?.again;
        Some(match self.retrying < self.retrying_max {
            true => again,
            false => again.max(self.retried_at + EXTRA_RETRY_AFTER),
        })
    }

    /// Takes a request that may be retried now.
    fn take_due(&mut self, now: Duration) -> Option<WaitingRead> {
        self.due_at().filter(|at| *at <= now)?;
        self.retried_at = now;
        self.queue.pop_front()
    }
}

impl Reader {
    /// Whether a request waits after this failure.
    pub fn can_wait(&self, parked: &ParkedRequest, unread: &ReadFailure) -> bool {
        let is_hint = parked.waiting.is_hint();
        let now = self.fetcher.clock.monotonic();
        unread.is_transient
            && !is_hint
            && !self.unavailable.is_closed
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
            again: self.fetcher.clock.monotonic() + RETRY_AFTER,
            error,
        });
    }

    /// Retries waiting requests that are due, and fails those that are overdue.
    pub fn retry_unavailable(&mut self) {
        if self.unavailable.last_error.is_none() {
            return;
        }
        let now = self.fetcher.clock.monotonic();
        for waits in self.unavailable.take_overdue(now) {
            self.fail(&waits.request, waits.error);
        }
        while let Some(waits) = self.unavailable.take_due(now) {
            self.resume(waits.request, 0, Some(waits.since));
        }
        self.unavailable.report_recovery();
    }

    /// The delay until [`Reader::retry_unavailable`] must be called.
    pub fn retry_timer(&self) -> Option<Duration> {
        let at = self.unavailable.due_at()?.min(self.unavailable.check_at);
        Some(at.saturating_sub(self.fetcher.clock.monotonic()))
    }

    /// Fails all waiting requests; from here on no request waits.
    pub fn fail_waiting(&mut self) {
        self.unavailable.is_closed = true;
        for waits in std::mem::take(&mut self.unavailable.queue) {
            self.fail(&waits.request, waits.error);
        }
    }
}
