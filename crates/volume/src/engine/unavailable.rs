//! Requests whose blocks, or pages of the map, no unit can give now: they wait.
//!
//! A guest that gets an I/O error makes its file system read-only, and a unit daemon
//! that is restarted must not cost that. So what would be read from units that are
//! away is tried again:
//!
//! ```text
//!               first pages, then blocks
//!   asked ───────────────────────────────────► answered
//!     │ all that may have it are away              ▲
//!     ▼                                            │ it succeeds
//!   waits ── a second later, some at a time ── is tried
//!     │  ▲                                         │
//!     │  └─────────────────────────────────────────┘ they still are
//!     │ two minutes are over, or the device ends
//!     ▼
//!   fails
//! ```
//!
//! Nothing is kept of a request that waits but what it asked for: the frontend's limits
//! bound how many there are, and a change has its content with it as any other that
//! waits. What it finds when it is tried is looked up anew, for it may have been
//! written since.
//!
//! What will not pass is not waited for: what is damaged, or lacks on units that are
//! there; nor is a hint that something will be read.
//!
//! Invariants: of requests that wait at most `retrying_max` are being read, and one more for
//! every [`EXTRA_RETRY_AFTER`] in which none of those ended, so that units which hang do not
//! get all threads of the pool; one that waits keeps no other from being answered; once [`Reader::fail_waiting`] was called nothing waits any more.

use std::collections::VecDeque;
use std::time::Duration;

use base::{IoError, Token, VolumeId};

use super::reader::{ParkedRequest, PendingRequest, Reader};
use crate::scatter::ReadError;

/// How long a request waits after it has failed, until it is tried again. As long as a
/// destage does; to ask a unit that is away costs nothing.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long a request waits in all: as long as Linux lets a process wait for a disk
/// before it says so in the log (`hung_task_timeout_secs`), and as a machine takes that
/// is started anew. Drivers that have a limit of their own, of 30 s or 60 s, try again
/// themselves. It is not for ever, because a unit may be gone for good, and whoever
/// reads then is to hear of it.
pub const READS_WAIT_MAX: Duration = Duration::from_secs(120);

/// Of those that wait, so many are tried at once, until one succeeds.
const RETRIES_MIN: usize = 8;

/// If none was tried for so long, one more is, beside those: they may hang on a unit that
/// the others do not need.
const EXTRA_RETRY_AFTER: Duration = Duration::from_secs(10);

/// Why something was not read.
#[derive(Debug, Clone)]
pub struct ReadFailure {
    /// How the frontend is told.
    pub error: IoError,
    /// Whether the same may succeed later, although nobody repairs anything.
    pub is_transient: bool,
}

impl ReadFailure {
    /// A failure that stays.
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

/// A request that waits.
struct WaitingRead {
    request: PendingRequest,
    /// When it was first asked for.
    since: Duration,
    /// When it is tried again.
    again: Duration,
    error: IoError,
}

/// The requests that wait. See the module's head.
pub struct UnavailableReads {
    /// For the log.
    volume: Option<VolumeId>,
    /// In the order in which they are tried again.
    queue: VecDeque<WaitingRead>,
    /// How many more are being tried.
    retrying: usize,
    /// At most so many are, but for those that are tried beside them.
    retrying_max: usize,
    /// When the last one began to be.
    retried_at: Duration,
    /// When to look who has waited too long.
    check_at: Duration,
    /// Why the last one failed; as long as any waits.
    last_error: Option<IoError>,
    /// Nothing is to wait any more.
    is_closed: bool,
}

impl UnavailableReads {
    /// Nothing waits yet.
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

    /// How many requests wait, those included that are being tried.
    pub fn count(&self) -> usize {
        self.queue.len() + self.retrying
    }

    /// Why they do.
    pub fn error(&self) -> Option<&IoError> {
        self.last_error.as_ref()
    }

    /// Everything that nobody will read any more.
    pub fn drain(&mut self) -> impl Iterator<Item = Token> + '_ {
        self.is_closed = true;
        self.retrying = 0;
        self.last_error = None;
        let waits = self.queue.drain(..);
        waits.filter_map(|waits| waits.request.token())
    }

    /// A request that has waited is being read.
    pub fn retry_started(&mut self) {
        self.retrying += 1;
    }

    /// That has ended. If it went well, others are likely to, and twice as many may try.
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
                "reads wait for units that are away"
            );
        }
        self.last_error = Some(waits.error.clone());
        self.queue.push_back(waits);
    }

    /// Says so if nothing waits any more.
    fn report_recovery(&mut self) {
        if self.count() == 0 && self.last_error.take().is_some() {
            self.retrying_max = RETRIES_MIN;
            tracing::info!(
                volume = self.volume.map(tracing::field::display),
                "no read waits any more"
            );
        }
    }

    /// Takes out who has waited too long.
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

    /// When the first of them may be tried.
    fn due_at(&self) -> Option<Duration> {
        let again = self.queue.front()?.again;
        Some(match self.retrying < self.retrying_max {
            true => again,
            false => again.max(self.retried_at + EXTRA_RETRY_AFTER),
        })
    }

    /// Takes out who may be tried now.
    fn take_due(&mut self, now: Duration) -> Option<WaitingRead> {
        self.due_at().filter(|at| *at <= now)?;
        self.retried_at = now;
        self.queue.pop_front()
    }
}

impl Reader {
    /// Whether a request whose reading has failed so is to wait.
    pub fn can_wait(&self, parked: &ParkedRequest, unread: &ReadFailure) -> bool {
        let is_hint = parked.waiting.is_hint();
        let now = self.fetcher.clock.monotonic();
        unread.is_transient
            && !is_hint
            && !self.unavailable.is_closed
            && now < parked.since() + READS_WAIT_MAX
    }

    /// A request whose reading has failed waits, or is answered.
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

    /// Tries what waits, as far as its time has come.
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

    /// How soon [`Reader::retry_unavailable`] is to be called although nothing happened.
    pub fn retry_timer(&self) -> Option<Duration> {
        let at = self.unavailable.due_at()?.min(self.unavailable.check_at);
        Some(at.saturating_sub(self.fetcher.clock.monotonic()))
    }

    /// What waits fails, and from here on what would wait fails, too.
    pub fn fail_waiting(&mut self) {
        self.unavailable.is_closed = true;
        for waits in std::mem::take(&mut self.unavailable.queue) {
            self.fail(&waits.request, waits.error);
        }
    }
}
