//! The volume itself: its state, and how events and timers change it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use base::{ByteRange, Completion, IoError, Sequence, SnapshotId, with_causes};
use catalog::VersionKey;

use super::checkpoint::state::CheckpointState;
use super::destage::state::DestageState;
use super::env::Env;
use super::event::Event;
use super::flush::FlushState;
use super::lease::LeaseState;
use super::reader::Reader;
use super::request::{Change, FetchedEdges};
use super::status::{Counters, VolumeStatus};
use super::tail_pages::TailPages;
use crate::journal::Journal;
use crate::lease_term::LeaseStatus;
use crate::scatter::{CacheView, StopReason};

/// An attached volume: a [`base::BlockDevice`] whose blocks are on units.
pub struct Volume {
    pub(super) env: Arc<Env>,
    pub(super) reader: Reader,
    pub(super) journal: Journal,
    pub(super) inbox: Receiver<Event>,
    pub(super) lease: LeaseState,
    pub(super) flush: FlushState,
    pub(super) destage: DestageState,
    pub(super) checkpoint: CheckpointState,
    pub(super) tail: TailPages,
    /// The last journal sequence admitted.
    pub(super) last_sequence: Sequence,
    pub(super) head: Option<VersionKey>,
    pub(super) number_next: u64,
    /// Changes whose edges have been read; they wait for room or for the lease.
    pub(super) deferred: VecDeque<(Change, FetchedEdges)>,
    pub(super) stopped: Option<IoError>,
    pub(super) closing: bool,
    pub(super) counters: Counters,
}

impl Volume {
    /// Takes a snapshot: everything admitted by now, and nothing later. It is
    /// complete when the catalog has committed a version that pins it; the caller
    /// has recorded it there as pending.
    pub fn snapshot(&mut self, snapshot: SnapshotId) {
        self.freeze(vec![snapshot]);
        self.end_batch_or_stop();
    }

    /// Sets the size in bytes. Never shrinks the volume.
    pub fn grow(&mut self, size_bytes: u64) {
        if size_bytes > self.reader.size_bytes {
            self.reader.size_bytes = size_bytes;
            // The next version records it, even if nothing is written.
            self.destage.commit_requested = true;
        }
    }

    /// Starts to close: writes are refused, and everything is destaged.
    pub fn begin_close(&mut self) {
        self.closing = true;
        self.reader.fail_waiting();
        self.destage.retry_now();
        self.end_batch_or_stop();
    }

    /// The result of closing; `None` while the volume is open. Drive it with
    /// [`base::BlockDevice::poll`].
    #[must_use]
    pub fn close_state(&self) -> Option<Result<(), IoError>> {
        if let Some(error) = &self.stopped {
            return Some(Err(error.clone()));
        }
        let settled = self.closing
            && self.reader.layers.active.is_empty()
            && self.reader.layers.frozen.is_empty()
            && !self.destage.is_busy()
            && !self.checkpoint.is_running()
            && self.reader.parked.is_empty()
            && self.deferred.is_empty();
        settled.then_some(Ok(()))
    }

    /// The current status.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        let stalled = self.stopped.is_none() && self.lease_status() != LeaseStatus::Held;
        let waits = stalled.then(|| StopReason::LeaseExpired.to_string());
        let failed = self.destage.error().map(ToString::to_string);
        VolumeStatus {
            size_bytes: self.reader.size_bytes,
            journal_bytes: self.journal.ring_bytes(),
            journal_used_bytes: self.journal.used_bytes(),
            pieces_placed: self.env.progress.placed(),
            tail_entries: self.reader.layers.young.len()
                + self.reader.layers.old.as_ref().map_or(0, |old| old.len()),
            tail_pages: self.tail.len(),
            head: self.head,
            counters: self.counters,
            stalled,
            destage_error: waits.or(failed),
            stopped: self.stopped.as_ref().map(ToString::to_string),
            reads_waiting: self.reader.unavailable.count(),
            read_error: self.reader.unavailable.error().map(ToString::to_string),
            cache: self.env.view.as_ref().map(CacheView::counts),
        }
    }

    pub(super) fn check_range(&self, range: ByteRange) -> Result<(), IoError> {
        if let Some(error) = &self.stopped {
            return Err(error.clone());
        }
        self.reader.check_range(range)
    }

    /// Stops for good: a write or the lease was lost. All waiting and all new
    /// requests fail.
    pub(super) fn stop(&mut self, error: IoError) {
        if self.stopped.is_some() {
            return;
        }
        tracing::error!(volume = %self.env.volume, %error, "volume stopped");
        let mut fail = |token| {
            self.reader.ready.push(Completion {
                token,
                result: Err(error.clone()),
            });
        };
        for (_, token) in self.flush.waiters.drain(..) {
            fail(token);
        }
        let parked = self.reader.parked.drain().map(|(_, parked)| parked.waiting);
        let waiting = parked.chain(self.reader.readahead.end());
        waiting
            .filter_map(|waiting| waiting.token())
            .for_each(&mut fail);
        self.reader.unwritten.clear();
        self.reader.unavailable.drain().for_each(&mut fail);
        for (change, _) in self.deferred.drain(..) {
            fail(change.token);
        }
        self.lease.drain().for_each(fail);
        self.stopped = Some(error);
    }

    /// Ends the batch, starts what is due, and stops the volume if the journal
    /// cannot be written.
    pub(super) fn end_batch_or_stop(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        if let Err(error) = self.journal.write_batch() {
            self.stop(IoError::Stopped(with_causes(&error)));
            return;
        }
        self.reader.start_unwritten();
        self.start_sync();
        self.start_destage_if_due();
        self.start_checkpoint_if_due();
    }

    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Fetched { request, fetched } => {
                let change = self.reader.on_fetched(request, fetched);
                self.deferred.extend(change);
            }
            Event::Pages { request, pages } => self.reader.on_pages(request, pages),
            Event::Synced { position, result } => self.on_synced(position, result),
            Event::Destaged(end) => self.on_destaged(*end),
            Event::Checkpointed(end) => self.on_checkpointed(*end),
            Event::Swept(Ok(())) => {}
            Event::Swept(Err(reason)) => {
                tracing::warn!(volume = %self.env.volume, error = reason, "volume could not free leftovers of earlier leases; the next attach retries");
            }
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.env.world.clock.monotonic()
    }
}

impl Drop for Volume {
    /// Stops running jobs.
    fn drop(&mut self) {
        self.env.progress.cancel();
    }
}
