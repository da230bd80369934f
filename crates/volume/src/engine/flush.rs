//! Group commit: one sync of the journal for all requests that wait. A FLUSH syncs the
//! journal's file on the host. It never reaches a unit.

use std::collections::VecDeque;

use base::{Completion, IoError, Outcome, Token};

use super::event::Event;
use super::volume::Volume;

/// Requests that wait for parts of the journal to be durable.
#[derive(Debug, Default)]
pub struct FlushState {
    /// Everything before this log position is durable.
    pub synced: u64,
    /// Whether a sync is running.
    pub running: bool,
    /// Requests and the log position each waits for, in order.
    pub waiters: VecDeque<(u64, Token)>,
}

impl FlushState {
    /// Whether a request waits for a position that is durable.
    pub fn has_synced_waiters(&self) -> bool {
        let first = self.waiters.front();
        first.is_some_and(|(wanted, _)| *wanted <= self.synced)
    }

    /// Moves the requests whose changes are durable to `ready`. The caller,
    /// `Volume::acknowledge_written`, has checked that the lease holds.
    pub fn complete_synced(&mut self, ready: &mut Vec<Completion>) {
        while self.has_synced_waiters()
            && let Some((_, token)) = self.waiters.pop_front()
        {
            ready.push(Completion {
                token,
                result: Ok(Outcome::Done),
            });
        }
    }
}

impl Volume {
    /// Completes the request once everything admitted so far is durable.
    pub(super) fn wait_for_sync(&mut self, token: Token) {
        self.flush.waiters.push_back((self.journal.head(), token));
    }

    /// Starts a sync if a request waits and none is running. The journal's batch
    /// has been written: the sync covers all of it.
    pub(super) fn start_sync(&mut self) {
        let Some((wanted, _)) = self.flush.waiters.back() else {
            return;
        };
        if self.flush.running || *wanted <= self.flush.synced {
            return;
        }
        self.flush.running = true;
        let position = self.journal.head();
        let file = self.journal.file().clone();
        let reporter = self.reader.fetcher.reporter.clone();
        self.env.world.pool.run(Box::new(move || {
            reporter.report(Event::Synced {
                position,
                result: file.sync_data(),
            });
        }));
    }

    pub(super) fn on_synced(&mut self, position: u64, result: std::io::Result<()>) {
        self.flush.running = false;
        match result {
            Ok(()) => {
                self.flush.synced = self.flush.synced.max(position);
                self.journal.synced(position);
            }
            // After a failed sync the device's content is unknown, and a second
            // sync may claim success for what the first one lost.
            Err(error) => self.stop(IoError::Stopped(format!(
                "the journal cannot be synced: {error}"
            ))),
        }
    }
}
