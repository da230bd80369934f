//! Who waits until what was written is safe, and what the file is asked for because of that.

use std::sync::Arc;

use base::{Completion, IoError, Outcome, Token};

use super::active::Journal;
use super::opening::{Stage, Told};
use super::ring;

/// Somebody who waits until what he wrote is as safe as he asked for.
pub(super) struct Waiting {
    pub token: Token,
    /// The records end there.
    pub upto: u64,
    /// Carried out and flushed below, too.
    pub below: bool,
    /// He flushes: what fails below is told.
    pub is_flush: bool,
    /// And the ring begins behind it: nothing is to be carried out once more.
    pub empties: bool,
}

impl Journal {
    /// It carries out what it had: before that has ended it is not left.
    pub(super) fn begins(&self) -> bool {
        matches!(
            self.stage,
            Stage::Scanning(..)
                | Stage::Replaying(..)
                | Stage::Flushing(..)
                | Stage::Replacing(..)
                | Stage::Starting(..)
        )
    }

    /// Nobody flushes before it is left, as the disk below cannot: it has to become empty.
    pub(super) fn empties_alone(&self) -> bool {
        self.is_resting && !self.can_flush
    }

    /// Tells those whose changes are safe.
    pub(super) fn answer(&mut self) {
        if self.waiting.is_empty() || !self.may_acknowledge() {
            return;
        }
        let (synced, flushed, done) = (self.synced, self.flushed.0, self.carry.done().0);
        let tail = match &self.stage {
            Stage::Open(ring) => ring.tail(),
            _ => 0,
        };
        let completions = &mut self.completions;
        self.waiting.retain(|one| {
            let is_below = match (one.below, one.is_flush) {
                (false, _) => true,
                (true, true) => one.upto <= flushed,
                // Each was carried out as durable by itself.
                (true, false) => one.upto <= done,
            };
            let is_safe = one.upto <= synced && is_below && !(one.empties && one.upto > tail);
            if is_safe {
                let result = Ok(Outcome::Done);
                let token = one.token;
                completions.push(Completion { token, result });
            }
            !is_safe
        });
    }

    /// Begins a sync if somebody waits for one, or lets the ring begin later.
    pub(super) fn sync_or_trim(&mut self) {
        let Stage::Open(ring) = &self.stage else {
            return;
        };
        if self.job.is_some() {
            return;
        }
        let (file, written) = (Arc::clone(ring.file()), ring.written());
        let waits = self.waiting.iter().any(|one| one.upto > self.synced);
        if waits && written > self.synced {
            return self.run(move || file.sync_data().map(|()| Told::Synced(written)));
        }
        let empties = self.empties_alone() || self.waiting.iter().any(|one| one.empties);
        let is_full = empties || ring.used_bytes() > ring.ring_bytes() / 2;
        let start = ring.next_start(self.flushed.0, self.flushed.1);
        if is_full && ring.head() - self.flushed.0 < ring.used_bytes() {
            self.run(move || ring::write_start(&*file, &start).map(|()| Told::Started(start)));
        }
    }

    /// Something failed below: whoever flushes hears of it.
    pub(super) fn tell_who_flushes(&mut self, error: &IoError) {
        let completions = &mut self.completions;
        self.waiting.retain(|one| {
            let is_told = one.is_flush && one.below;
            if is_told {
                completions.push(Completion {
                    token: one.token,
                    result: Err(error.clone()),
                });
            }
            !is_told
        });
    }
}
