//! [`Progress`]: how far the placements of a lease are, and whether they may
//! continue.
//!
//! A volume that is closed while a unit does not answer leaves a job behind.
//! That job must stop when the unit answers after all: the next lease sweeps
//! what this one left, and sweeps once. For the same reason nothing is written
//! after the lease has expired: the next lease may be another host's, and its
//! sweep complete. So no put begins past the term; only a put that a unit has
//! not answered by then can leave slots that no version names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use world::Clock;

use crate::lease_term::{LeaseStatus, LeaseTerm};

/// Why a placement stops early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// The volume was closed.
    #[error("the volume was closed without it")]
    Closed,
    /// Nothing may be written until the lease is renewed.
    #[error("the lease has expired and has not been renewed")]
    LeaseExpired,
}

/// Shared by a volume and its jobs.
pub struct Progress {
    placed: AtomicU64,
    is_canceled: AtomicBool,
    term: LeaseTerm,
    clock: Arc<dyn Clock>,
}

impl Progress {
    /// The progress of a new lease with this term.
    pub fn new(term: LeaseTerm, clock: Arc<dyn Clock>) -> Self {
        Self {
            placed: AtomicU64::new(0),
            is_canceled: AtomicBool::new(false),
            term,
            clock,
        }
    }

    /// How many pieces have been written, including those written again.
    #[must_use]
    pub fn placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, pieces: usize) {
        self.placed.fetch_add(pieces as u64, Ordering::Relaxed);
    }

    /// The volume is closed: running jobs stop and free what they wrote.
    pub fn cancel(&self) {
        self.is_canceled.store(true, Ordering::Release);
    }

    /// Checks that the volume is open.
    ///
    /// # Errors
    /// [`StopReason::Closed`].
    pub fn check_awaited(&self) -> Result<(), StopReason> {
        match self.is_canceled.load(Ordering::Acquire) {
            true => Err(StopReason::Closed),
            false => Ok(()),
        }
    }

    /// Checks that something may be written.
    ///
    /// # Errors
    /// [`StopReason`].
    pub fn check(&self) -> Result<(), StopReason> {
        self.check_awaited()?;
        match self.term.status(&*self.clock) {
            LeaseStatus::Held => Ok(()),
            LeaseStatus::Expired | LeaseStatus::Lost => Err(StopReason::LeaseExpired),
        }
    }
}
