//! [`WriteBack`]: the changes that go below, the flush there, and what failed.
//!
//! A change is kept in memory until a flush below has covered it. If the flush fails, it is unknown
//! what the disk has, and a later successful flush does not tell. So everything is written again,
//! in order.

use base::{BlockDevice, Started};

use super::backlog::Backlog;
use super::flush_state::{FlushPhase, FlushState};
use super::pending::{PendingRequest, PendingRequests};
use super::record::LogPosition;
use super::retry::{FailedRequest, Retry};

/// A change that was not started, and the answer of the disk below.
pub(super) struct StoppedChange {
    pub sequence: u64,
    pub answer: Started,
}

/// What is not durable below, and how far that has come.
pub(super) struct WriteBack {
    pub backlog: Backlog,
    pub flush: FlushState,
    pub retry: Retry,
}

impl WriteBack {
    /// `memory_max` is the maximal memory for changes, in bytes.
    pub fn new(memory_max: u64) -> Self {
        Self {
            backlog: Backlog::new(memory_max),
            flush: FlushState::default(),
            retry: Retry::default(),
        }
    }

    /// Starts to write changes up to `written`. Returns the sequences of those that were done at
    /// once, and the change at which it stopped.
    pub fn start(
        &mut self,
        below: &mut dyn BlockDevice,
        pending: &mut PendingRequests,
        written: u64,
    ) -> (Vec<u64>, Option<StoppedChange>) {
        let mut done = Vec::new();
        let mut stopped = None;
        self.backlog.changes.start(written, |change| {
            let token = pending.next_token();
            match change.start(below, token) {
                Started::Done => done.push(change.sequence),
                Started::Pending => {
                    pending.insert(token, PendingRequest::WriteBack(change.sequence));
                }
                answer => {
                    let sequence = change.sequence;
                    stopped = Some(StoppedChange { sequence, answer });
                    return false;
                }
            }
            true
        });
        (done, stopped)
    }

    /// The disk below has a change.
    pub fn written_back(&mut self, sequence: u64) {
        self.retry.succeeded(FailedRequest::Change(sequence));
        let is_suspect = self.flush.phase == FlushPhase::Failed;
        self.backlog.written_back(sequence, is_suspect);
    }

    /// A flush below failed. A flush that succeeds later does not prove that the disk has what this
    /// one should have covered.
    pub fn flush_failed(&mut self) {
        self.flush.phase = FlushPhase::Failed;
        self.backlog.suspect_all();
    }

    /// Lets everything that no flush has covered be written again, after a flush failed. Returns
    /// whether that is so.
    pub fn redo_after_failed_flush(&mut self) -> bool {
        if self.flush.phase != FlushPhase::Failed || self.backlog.changes.pending() > 0 {
            return false;
        }
        self.flush.phase = FlushPhase::Idle;
        self.backlog.changes.redo();
        true
    }

    /// Everything before `position` is durable below.
    pub fn flushed(&mut self, position: LogPosition) {
        self.flush.flushed = position;
        self.retry.succeeded(FailedRequest::Flush);
        self.backlog.forget(position);
    }
}
