//! [`DestageState`]: what the owner keeps of destages.

use std::time::Duration;

use base::IoError;

use super::job::Placement;
use crate::scatter::Placer;

/// The state of destaging.
pub struct DestageState {
    /// Places blocks; a running job has it.
    pub placer: Option<Placer>,
    /// A placement that could not be committed yet.
    pub unfinished: Option<Box<Placement>>,
    /// When the oldest write of `active` was admitted.
    pub dirty_since: Duration,
    /// Whether to commit a version even if nothing was written.
    pub commit_requested: bool,
    pub failure: Option<Failure>,
}

/// A failed destage, until one succeeds.
pub struct Failure {
    /// When it failed; zero to retry at once.
    pub at: Duration,
    pub error: IoError,
    /// Whether a retry may succeed although nothing is repaired.
    pub is_transient: bool,
}

impl DestageState {
    pub fn new(placer: Placer) -> Self {
        Self {
            placer: Some(placer),
            unfinished: None,
            dirty_since: Duration::ZERO,
            commit_requested: false,
            failure: None,
        }
    }

    /// Whether a job is running or something waits to be committed.
    pub fn is_busy(&self) -> bool {
        self.placer.is_none() || self.unfinished.is_some() || self.commit_requested
    }

    /// Why the last destage failed.
    pub fn error(&self) -> Option<&IoError> {
        self.failure.as_ref().map(|failure| &failure.error)
    }

    /// Why a write that needs room in the journal must fail rather than wait. While
    /// controllers or units are unavailable it waits: their restart must not cost a
    /// guest its file system.
    pub fn refusal(&self) -> Option<&IoError> {
        let permanent = self
            .failure
            .as_ref()
            .filter(|failure| !failure.is_transient);
        permanent.map(|failure| &failure.error)
    }

    /// Forgets a failure: the destage is retried at once.
    pub fn clear_failure(&mut self) {
        self.failure = None;
    }

    /// Ends the delay after a failure.
    pub fn retry_now(&mut self) {
        if let Some(failure) = &mut self.failure {
            failure.at = Duration::ZERO;
        }
    }
}
