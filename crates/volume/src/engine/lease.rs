//! The owner while its lease is expired.
//!
//! ```text
//!               the end passes                        renewed
//!   attached ──────────────────► stalled ────────────────────────► attached
//!                                   │  lost, or a commit is fenced
//!                                   └────────────────────────────► stopped
//! ```
//!
//! A stalled volume answers reads and nothing else: a new change is not admitted
//! and waits in `deferred`, a flush waits among `flush.waiters`, and what was
//! admitted or synced before the end waits in `unacknowledged` and there. No job
//! is started. When the lease is renewed, all of it continues in order. Nothing is
//! written to the journal, so the file does not change while the next holder may
//! be reading it.
//!
//! The clock is checked before the first change or flush of a batch; before a
//! change that has waited is admitted; and before a pending request is completed,
//! after the sync or the write that it waited for.
//!
//! A change of zero bytes is completed at once.
//!
//! Invariant: the acknowledgment of a flush, or of any change, leaves the
//! volume at most one turn of its owner's loop after the clock was checked and
//! showed less than the end of the lease.

use base::{Completion, IoError, Op, Outcome, Started, Token};

use super::request::{Change, PendingRequest};
use super::volume::Volume;
use crate::lease_term::{LeaseStatus, LeaseTerm};

/// The state of the lease, as the owner last saw it.
pub struct LeaseState {
    pub term: LeaseTerm,
    /// Whether the clock was checked in this batch.
    is_checked: bool,
    /// Whether the lease was found expired. Only `poll` ends that, so that what has
    /// waited comes first.
    pub stalled: bool,
    /// Changes that were admitted after a stall and are in the journal's file.
    unacknowledged: Vec<Token>,
}

impl LeaseState {
    pub fn new(term: LeaseTerm) -> Self {
        Self {
            term,
            is_checked: false,
            stalled: false,
            unacknowledged: Vec::new(),
        }
    }

    /// Ends the batch; the next one checks the clock again.
    pub fn end_batch(&mut self) {
        self.is_checked = false;
    }

    /// Takes the requests that will never be acknowledged.
    pub fn drain(&mut self) -> impl Iterator<Item = Token> + '_ {
        self.unacknowledged.drain(..)
    }
}

impl Volume {
    /// Whether changes and flushes have to wait.
    #[inline]
    pub(super) fn is_held(&mut self) -> bool {
        if !self.lease.is_checked {
            self.lease.is_checked = true;
            self.lease_holds();
        }
        self.lease.stalled
    }

    pub(super) fn lease_status(&self) -> LeaseStatus {
        self.lease.term.status(&*self.env.world.clock)
    }

    /// Whether requests may be acknowledged now; if not, the volume stalls.
    pub(super) fn lease_holds(&mut self) -> bool {
        if self.lease.stalled {
            return false;
        }
        if self.lease_status() == LeaseStatus::Held {
            return true;
        }
        tracing::warn!(volume = %self.env.volume, "the lease has expired; the volume answers only reads until it is renewed");
        self.lease.stalled = true;
        self.lease.term.await_renewal();
        false
    }

    /// Reacts to a lease that was renewed or lost, or has expired.
    pub(super) fn apply_lease_status(&mut self) {
        match self.lease_status() {
            LeaseStatus::Held if self.lease.stalled => {
                tracing::info!(volume = %self.env.volume, "the lease was renewed");
                self.lease.stalled = false;
                // A destage that failed without the database may succeed now, and
                // its error must not fail requests that have waited.
                self.destage.clear_failure();
            }
            LeaseStatus::Held => {}
            LeaseStatus::Expired => {
                self.lease_holds();
                // A renewal that came and expired unseen has used up the request.
                self.lease.term.await_renewal();
            }
            LeaseStatus::Lost => self.stop(IoError::Stopped(
                "the lease is lost: another host took the volume, or this host released it"
                    .to_owned(),
            )),
        }
    }

    /// Takes a change without admitting it. It is the frontend's limits that
    /// bound how much comes to wait here.
    pub(super) fn hold(&mut self, token: Token, op: &Op<'_>) -> Started {
        let has_edges = !self.reader.edges_of(op.range()).is_empty();
        let op = op.to_owned();
        let change = Change { token, op };
        match has_edges {
            false => self.deferred.push_back((change, Vec::new())),
            true => self.reader.park(PendingRequest::Change(change)),
        }
        Started::Pending
    }

    /// Whether a request waits only for a check of the clock.
    pub(super) fn has_acknowledgments(&self) -> bool {
        !self.lease.unacknowledged.is_empty() || self.flush.has_synced_waiters()
    }

    /// Admits changes that have waited, if the lease holds.
    pub(super) fn admit_held(&mut self) {
        if self.stopped.is_none() && !self.deferred.is_empty() && self.lease_holds() {
            let admitted = self.admit_deferred();
            self.lease.unacknowledged.extend(admitted);
        }
    }

    /// Completes requests whose changes are written, and durable if that was
    /// requested, if the lease holds.
    pub(super) fn acknowledge_written(&mut self) {
        if self.stopped.is_some() || !self.has_acknowledgments() || !self.lease_holds() {
            return;
        }
        for token in self.lease.unacknowledged.drain(..) {
            self.reader.ready.push(Completion {
                token,
                result: Ok(Outcome::Done),
            });
        }
        self.flush.complete_synced(&mut self.reader.ready);
    }
}
