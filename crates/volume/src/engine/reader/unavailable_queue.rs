//! [`WaitingReads`]: the queue of requests that wait for unavailable units. It decides
//! when each is retried and how long it may wait; it reads nothing.

use std::collections::VecDeque;
use std::time::Duration;

use base::{IoError, Token, VolumeId};

use crate::engine::request::PendingRequest;

/// The delay before a failed read is retried. As long as that of a destage; asking an
/// unavailable unit costs nothing.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

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

/// A waiting request.
pub struct WaitingRead {
    pub request: PendingRequest,
    /// When it was first read.
    pub since: Duration,
    /// When it is retried.
    pub retry_at: Duration,
    pub error: IoError,
}

/// The queue of requests that wait for unavailable units.
pub struct WaitingReads {
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

impl WaitingReads {
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
        let waiting = self.queue.drain(..);
        waiting.filter_map(|waiting| waiting.request.token())
    }

    /// Whether the device is closing: no request may wait.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Closes the queue and takes the requests that are not being retried.
    pub fn close(&mut self) -> VecDeque<WaitingRead> {
        self.is_closed = true;
        std::mem::take(&mut self.queue)
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

    /// Queues a request whose read has failed.
    pub fn push(&mut self, waiting: WaitingRead) {
        if self.last_error.is_none() {
            tracing::warn!(
                volume = self.volume.map(tracing::field::display), error = %waiting.error,
                "reads wait for unavailable units"
            );
        }
        self.last_error = Some(waiting.error.clone());
        self.queue.push_back(waiting);
    }

    /// Once no request waits any more: forgets the error, resets the limit of retries, and logs it.
    pub fn finish_recovery(&mut self) {
        if self.count() == 0 && self.last_error.take().is_some() {
            self.retrying_max = RETRIES_MIN;
            tracing::info!(
                volume = self.volume.map(tracing::field::display),
                "no read waits for unavailable units any more"
            );
        }
    }

    /// Takes the requests that have waited too long.
    pub fn take_overdue(&mut self, now: Duration) -> Vec<WaitingRead> {
        if now < self.check_at {
            return Vec::new();
        }
        self.check_at = now + RETRY_AFTER;
        let waiting = std::mem::take(&mut self.queue);
        let (overdue, waiting) = waiting
            .into_iter()
            .partition(|waiting| now >= waiting.since + READS_WAIT_MAX);
        self.queue = waiting;
        Vec::from(overdue)
    }

    /// When the first request may be retried.
    fn due_at(&self) -> Option<Duration> {
        let retry_at = self.queue.front()?.retry_at;
        Some(match self.retrying < self.retrying_max {
            true => retry_at,
            false => retry_at.max(self.retried_at + EXTRA_RETRY_AFTER),
        })
    }

    /// Takes a request that may be retried now.
    pub fn take_due(&mut self, now: Duration) -> Option<WaitingRead> {
        self.due_at().filter(|at| *at <= now)?;
        self.retried_at = now;
        self.queue.pop_front()
    }

    /// When a request is to be retried or checked next; `None` while none waits.
    pub fn next_at(&self) -> Option<Duration> {
        Some(self.due_at()?.min(self.check_at))
    }
}
