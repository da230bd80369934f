//! What an owner does whose lease has run out.
//!
//! ```text
//!               the end passes                        renewed
//!   attached ──────────────────► stalled ────────────────────────► attached
//!                                   │  lost, or a commit is fenced
//!                                   └────────────────────────────► stopped
//! ```
//!
//! Stalled, a volume reads, and answers nothing else: a change that comes is
//! not admitted and waits in `deferred`, a flush waits among `flush.waiters`,
//! and what was admitted or synced before the end waits in
//! `unacknowledged` and there. No job is begun. When the lease is renewed, all
//! of it goes on, in order. Of the journal nothing is written, so the file is
//! still while the next holder may be reading it.
//!
//! When the clock is looked at: before the first change or flush of a batch;
//! before a change that has waited is admitted; and when what was pending is
//! handed over, after the sync or the write it waited for.
//!
//! A change of no bytes is no change, and is not held back.
//!
//! Invariant: an acknowledgement of a flush, or of any change, leaves the
//! volume at most one turn of its owner's loop after a look at the clock that
//! showed less than the end of the lease.

use base::{Completion, Durability, IoError, Outcome, Started, Token};

use super::reader::PendingRequest;
use super::volume::Volume;
use super::write::{Change, Incoming};
use crate::lease_term::{LeaseStatus, LeaseTerm};

/// Where the lease stands, as the owner saw it last.
pub struct LeaseState {
    pub term: LeaseTerm,
    /// The clock was looked at in this batch.
    looked: bool,
    /// The lease had run out. Only `poll` ends that, so that what has waited
    /// goes first.
    pub stalled: bool,
    /// Changes that were admitted late and are in the journal's file.
    unacknowledged: Vec<Token>,
}

impl LeaseState {
    pub fn new(term: LeaseTerm) -> Self {
        Self {
            term,
            looked: false,
            stalled: false,
            unacknowledged: Vec::new(),
        }
    }

    /// The batch is over; the next one looks again.
    pub fn end_batch(&mut self) {
        self.looked = false;
    }

    /// Everything that nobody will acknowledge any more.
    pub fn drain(&mut self) -> impl Iterator<Item = Token> + '_ {
        self.unacknowledged.drain(..)
    }
}

impl Volume {
    /// Whether changes and flushes have to wait.
    #[inline]
    pub(super) fn is_held(&mut self) -> bool {
        if !self.lease.looked {
            self.lease.looked = true;
            self.lease_holds();
        }
        self.lease.stalled
    }

    pub(super) fn lease_status(&self) -> LeaseStatus {
        self.lease.term.status(&*self.env.world.clock)
    }

    /// Whether something may be acknowledged now; if not, the volume stalls.
    pub(super) fn lease_holds(&mut self) -> bool {
        if self.lease.stalled {
            return false;
        }
        if self.lease_status() == LeaseStatus::Held {
            return true;
        }
        tracing::warn!(volume = %self.env.volume, "the lease has run out; only reads are answered");
        self.lease.stalled = true;
        self.lease.term.await_renewal();
        false
    }

    /// Takes note of a lease that was renewed, or lost, or has run out.
    pub(super) fn look_at_lease(&mut self) {
        match self.lease_status() {
            LeaseStatus::Held if self.lease.stalled => {
                tracing::info!(volume = %self.env.volume, "the lease was renewed");
                self.lease.stalled = false;
                // What failed without the database need not fail again, and
                // must not fail what has waited.
                self.destage.clear_failure();
            }
            LeaseStatus::Held => {}
            LeaseStatus::Expired => {
                self.lease_holds();
                // A renewal that came and ended unseen has used up the wish.
                self.lease.term.await_renewal();
            }
            LeaseStatus::Lost => self.stop(IoError::Stopped(
                "the lease is gone: the volume was taken away, or is given up here".to_owned(),
            )),
        }
    }

    /// Takes a change without admitting it. It is the frontend's limits that
    /// bound how much comes to wait here.
    pub(super) fn hold(
        &mut self,
        token: Token,
        offset: u64,
        incoming: Incoming<'_>,
        durability: Durability,
    ) -> Started {
        let change = Change {
            token,
            offset,
            content: incoming.to_content(),
            durability,
        };
        if self.reader.edges_of(offset, incoming.length()).is_empty() {
            self.deferred.push_back((change, Vec::new()));
        } else {
            self.reader.park(PendingRequest::Change(change));
        }
        Started::Pending
    }

    /// Whether something waits only for a look at the clock.
    pub(super) fn has_acknowledgements(&self) -> bool {
        !self.lease.unacknowledged.is_empty() || self.has_synced_waiters()
    }

    /// Admits what has waited, if the lease holds.
    pub(super) fn admit_held(&mut self) {
        if self.stopped.is_none() && !self.deferred.is_empty() && self.lease_holds() {
            let admitted = self.admit_deferred();
            self.lease.unacknowledged.extend(admitted);
        }
    }

    /// Ends requests whose changes are written, and durable if they asked for
    /// that, if the lease holds.
    pub(super) fn acknowledge_written(&mut self) {
        if self.stopped.is_some() || !self.has_acknowledgements() || !self.lease_holds() {
            return;
        }
        for token in self.lease.unacknowledged.drain(..) {
            self.reader.ready.push(Completion {
                token,
                result: Ok(Outcome::Done),
            });
        }
        self.finish_synced();
    }
}
