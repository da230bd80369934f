//! Requests that wait until their changes are safe, and the file operations that they need.

use std::sync::Arc;

use base::{Completion, IoError, Outcome, Token};

use super::filter::Journal;
use super::jobs::JobResult;
use super::ring::Ring;
use super::stage::Stage;

/// When a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// The file is synced.
    Synced,
    /// And each change is written below, as durable by itself.
    WrittenBelow,
    /// And a flush below has covered the changes. The request is a flush, and fails if that fails.
    FlushedBelow,
    /// And the ring begins behind the changes, so that they are never written again.
    Emptied,
}

impl Condition {
    /// Whether changes have to be written below for it.
    pub fn needs_write_back(self) -> bool {
        self != Self::Synced
    }

    /// Whether a flush below is needed for it.
    pub fn needs_flush(self) -> bool {
        matches!(self, Self::FlushedBelow | Self::Emptied)
    }
}

/// A durable change or a flush that is not answered yet.
pub(super) struct Waiting {
    pub token: Token,
    /// The position at which its records end.
    pub end: u64,
    pub condition: Condition,
}

/// How far the journal has come: positions in the log.
pub(super) struct Progress {
    synced: u64,
    written_below: u64,
    flushed_below: u64,
    tail: u64,
}

impl Waiting {
    pub fn is_safe(&self, progress: &Progress) -> bool {
        let end = self.end;
        end <= progress.synced
            && match self.condition {
                Condition::Synced => true,
                Condition::WrittenBelow => end <= progress.written_below,
                Condition::FlushedBelow => end <= progress.flushed_below,
                Condition::Emptied => end <= progress.flushed_below && end <= progress.tail,
            }
    }
}

impl Journal {
    /// Whether the ring has to become empty though no request waits for that: the filter is about
    /// to be removed, and the disk below has no flushes.
    pub(super) fn must_empty_itself(&self) -> bool {
        self.is_quiesced && !self.write_back.flush.is_supported
    }

    pub(super) fn progress(&self, ring: &Ring) -> Progress {
        Progress {
            synced: ring.synced(),
            written_below: self.write_back.backlog.changes.written().offset,
            flushed_below: self.write_back.flush.flushed.offset,
            tail: ring.tail(),
        }
    }

    /// Answers the requests whose changes are safe.
    pub(super) fn answer(&mut self) {
        if self.waiting.is_empty() || !self.may_acknowledge() {
            return;
        }
        let Stage::Open(ring) = &self.lifecycle.stage else {
            return;
        };
        let progress = self.progress(ring);
        let completions = &mut self.completions;
        self.waiting.retain(|request| {
            let is_safe = request.is_safe(&progress);
            if is_safe {
                completions.push(Completion {
                    token: request.token,
                    result: Ok(Outcome::Done),
                });
            }
            !is_safe
        });
    }

    /// Starts a sync if a request waits for one; otherwise lets the ring begin later if it should.
    pub(super) fn sync_or_trim(&mut self) {
        let Stage::Open(ring) = &self.lifecycle.stage else {
            return;
        };
        if self.lifecycle.job.is_running() {
            return;
        }
        let (file, written, synced) = (Arc::clone(ring.file()), ring.written(), ring.synced());
        let waits = self.waiting.iter().any(|request| request.end > synced);
        if waits && written > synced {
            let sync = move || file.sync_data().map(|()| JobResult::Synced(written));
            return self.lifecycle.job.run(sync);
        }
        let must_empty = self.must_empty_itself()
            || self
                .waiting
                .iter()
                .any(|request| request.condition == Condition::Emptied);
        let is_full = must_empty || ring.used_bytes() > ring.ring_bytes() / 2;
        let flushed = self.write_back.flush.flushed;
        if is_full && flushed.offset > ring.tail() {
            let page = ring.next_start(flushed);
            self.lifecycle.write_start(&file, page);
        }
    }

    /// A request below failed: flushes that need it fail.
    pub(super) fn fail_flushes(&mut self, error: &IoError) {
        let completions = &mut self.completions;
        self.waiting.retain(|request| {
            let fails = request.condition.needs_flush();
            if fails {
                completions.push(Completion {
                    token: request.token,
                    result: Err(error.clone()),
                });
            }
            !fails
        });
    }
}
