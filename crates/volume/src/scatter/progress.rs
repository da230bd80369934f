//! How far the placements of a lease have come, and whether anybody still
//! waits for them.
//!
//! A volume that is closed although a unit keeps a call to itself leaves a job
//! behind. That job must not go on when the unit answers after all: the next
//! lease sweeps what this one left, and sweeps once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shared by a volume and its jobs.
#[derive(Debug, Default)]
pub struct Progress {
    placed: AtomicU64,
    is_given_up: AtomicBool,
}

impl Progress {
    /// How many pieces have been put, those that are put again included.
    #[must_use]
    pub fn placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, pieces: usize) {
        self.placed.fetch_add(pieces as u64, Ordering::Relaxed);
    }

    /// Nobody waits any more: what is under way ends, and frees what it put.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Whether nobody waits any more.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }
}
