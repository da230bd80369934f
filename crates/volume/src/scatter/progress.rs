//! How far the placements of a lease have come, and whether they may go on.
//!
//! A volume that is closed although a unit keeps a call to itself leaves a job
//! behind. That job must not go on when the unit answers after all: the next
//! lease sweeps what this one left, and sweeps once. For the same reason
//! nothing is put when the lease has run out: the next one may be another
//! host's, and its sweep over. So no put begins past the term; only one that a
//! unit has kept to itself for the rest of it can leave slots that nobody
//! names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use world::Clock;

use crate::lease_term::{LeaseStatus, LeaseTerm};

/// Why a placement ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// Nobody waits for it any more.
    #[error("the volume was closed without it")]
    Closed,
    /// Nothing may be put until the lease is renewed.
    #[error("the lease has run out, and has not been renewed")]
    LeaseExpired,
}

/// Shared by a volume and its jobs.
pub struct Progress {
    placed: AtomicU64,
    is_cancelled: AtomicBool,
    term: LeaseTerm,
    clock: Arc<dyn Clock>,
}

impl Progress {
    /// Nothing has been placed under the lease with this term.
    pub fn new(term: LeaseTerm, clock: Arc<dyn Clock>) -> Self {
        Self {
            placed: AtomicU64::new(0),
            is_cancelled: AtomicBool::new(false),
            term,
            clock,
        }
    }

    /// How many pieces have been put, those that are put again included.
    #[must_use]
    pub fn placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, pieces: usize) {
        self.placed.fetch_add(pieces as u64, Ordering::Relaxed);
    }

    /// Nobody waits any more: what is under way ends, and frees what it put.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    /// Whether somebody still waits.
    ///
    /// # Errors
    /// [`StopReason::Closed`] if not.
    pub fn check_awaited(&self) -> Result<(), StopReason> {
        match self.is_cancelled.load(Ordering::Acquire) {
            true => Err(StopReason::Closed),
            false => Ok(()),
        }
    }

    /// Whether anything may be put.
    ///
    /// # Errors
    /// [`StopReason`] if not.
    pub fn check(&self) -> Result<(), StopReason> {
        self.check_awaited()?;
        match self.term.status(&*self.clock) {
            LeaseStatus::Held => Ok(()),
            LeaseStatus::Expired | LeaseStatus::Lost => Err(StopReason::LeaseExpired),
        }
    }
}
