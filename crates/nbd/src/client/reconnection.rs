//! [`Reconnection`]: whether and when a client connects again after it has lost its connection.

use std::time::Duration;

use super::{ConnectionError, Reconnect};

/// The policy of a client for lost connections, and the pause before its next attempt.
pub(super) struct Reconnection {
    policy: Reconnect,
    pause: Duration,
    /// The error that was logged last; `None` while there is a connection.
    logged_error: Option<String>,
}

impl Reconnection {
    pub fn new(policy: Reconnect) -> Self {
        Self {
            policy,
            pause: Duration::ZERO,
            logged_error: None,
        }
    }

    /// Whether the client, or its owner, connects again.
    pub fn is_on(&self) -> bool {
        self.policy != Reconnect::Never
    }

    pub fn stop(&mut self) {
        self.policy = Reconnect::Never;
    }

    /// Makes the next pause the shortest one.
    pub fn reset_pause(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// Logs that there is a connection again.
    pub fn connected(&mut self) {
        if self.logged_error.take().is_some() {
            tracing::info!("NBD client connected again");
        }
    }

    /// Logs a loss, and returns the pause before the next attempt; `None` if there is none.
    pub fn record_loss(&mut self, error: &ConnectionError) -> Option<Duration> {
        match self.policy {
            Reconnect::Never => {
                tracing::debug!(%error, "NBD client lost connection");
                None
            }
            Reconnect::Backoff { min, max } => {
                self.log_error(error);
                self.pause = (self.pause * 2).clamp(min, max);
                Some(self.pause)
            }
        }
    }

    /// Logs why requests wait. An error that was logged last is not repeated.
    fn log_error(&mut self, error: &ConnectionError) {
        let error = error.to_string();
        if self.logged_error.as_ref() != Some(&error) {
            tracing::warn!(
                error,
                "NBD client lost connection; requests wait until it reconnects"
            );
            self.logged_error = Some(error);
        }
    }
}
