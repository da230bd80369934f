//! [`Retry`]: the error of the disk below, and when the failed request is tried again.

use std::time::Duration;

use base::IoError;

/// The interval between attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A kind of request below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedRequest {
    /// Writing back the change with this sequence.
    Change(u64),
    Flush,
}

struct Failure {
    error: IoError,
    request: FailedRequest,
}

#[derive(Default)]
pub(super) struct Retry {
    /// The error, until the request that failed succeeds.
    failure: Option<Failure>,
    /// Nothing is tried before this time.
    at: Option<Duration>,
}

impl Retry {
    /// A request failed at `now`. A failed flush replaces a failed change, since only a later
    /// flush proves that the disk works.
    pub fn failed(&mut self, error: IoError, request: FailedRequest, now: Duration) {
        self.at = Some(now + RETRY_INTERVAL);
        if self.failure.is_none() || request == FailedRequest::Flush {
            self.failure = Some(Failure { error, request });
        }
    }

    pub fn succeeded(&mut self, request: FailedRequest) {
        self.failure.take_if(|failure| failure.request == request);
    }

    pub fn error(&self) -> Option<&IoError> {
        self.failure.as_ref().map(|failure| &failure.error)
    }

    pub fn has_failed_flush(&self) -> bool {
        let failure = self.failure.as_ref();
        failure.is_some_and(|failure| failure.request == FailedRequest::Flush)
    }

    /// Whether requests have to wait.
    pub fn is_waiting(&self) -> bool {
        self.at.is_some()
    }

    /// Ends the wait if it is over. Returns whether requests may be made.
    pub fn may_try(&mut self, now: Duration) -> bool {
        self.at.take_if(|at| *at <= now);
        self.at.is_none()
    }

    pub fn timer(&self, now: Duration) -> Option<Duration> {
        self.at.map(|at| at.saturating_sub(now))
    }
}
