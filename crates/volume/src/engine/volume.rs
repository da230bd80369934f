//! The volume itself: its state, and how events and timers change it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use base::{
    BlockSize, ByteRange, Completion, IoError, Sequence, SnapshotId, VolumeId, with_causes,
};
use world::World;

use super::checkpoint::CheckpointState;
use super::config::VolumeConfig;
use super::destage::DestageState;
use super::event::Event;
use super::fetch::FetchedEdges;
use super::flush::FlushState;
use super::lease::LeaseState;
use super::map_preload::MapPreload;
use super::reader::Reader;
use super::write::Change;
use crate::catalog::{Catalog, VersionKey};
use crate::journal::Journal;
use crate::lease_term::LeaseStatus;
use crate::map::Entry;
use crate::scatter::{CacheCounts, CacheView, Ledger, Progress, Serials, StopReason, Store};
use crate::seal::{Keyring, SequenceSource};

/// What does not change while a volume is attached; shared with its jobs.
pub struct Env {
    pub world: World,
    pub store: Arc<Store>,
    pub catalog: Arc<dyn Catalog>,
    pub keyring: Arc<Keyring>,
    /// `None` without a cache.
    pub view: Option<CacheView>,
    pub volume: VolumeId,
    pub epoch: u32,
    pub block_size: BlockSize,
    pub config: VolumeConfig,
    pub sequences: SequenceSource,
    pub serials: Arc<Serials>,
    pub ledger: Arc<Ledger>,
    pub progress: Arc<Progress>,
    /// The progress of loading its map into the host's cache.
    pub preload: MapPreload,
}

impl Env {
    pub fn slot_bytes(&self) -> u32 {
        u32::try_from(self.block_size.bytes()).expect("at most 64 KiB")
    }
}

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

/// The pages of the tail, as the next version lists them.
#[derive(Default)]
pub struct TailPages {
    /// The pages that the running checkpoint will replace.
    old: Vec<Entry>,
    /// The pages written since it began.
    young: Vec<Entry>,
}

impl TailPages {
    /// The tail of the newest version, oldest page first.
    pub fn new(pages: Vec<Entry>) -> Self {
        Self {
            old: Vec::new(),
            young: pages,
        }
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.old.len() + self.young.len()
    }

    /// The number of pages that no running checkpoint replaces.
    pub fn young_len(&self) -> usize {
        self.young.len()
    }

    /// The pages of a version; without those that a checkpoint has replaced if the version
    /// adopts it.
    pub fn of_version(&self, adopts_checkpoint: bool) -> Vec<Entry> {
        match adopts_checkpoint {
            true => self.young.clone(),
            false => [&self.old[..], &self.young].concat(),
        }
    }

    /// Adds the pages of a destage.
    pub fn extend(&mut self, pages: Vec<Entry>) {
        self.young.extend(pages);
    }

    /// A checkpoint begins: it will replace all pages.
    pub fn begin_checkpoint(&mut self) {
        self.old.append(&mut self.young);
    }

    /// A version with the checkpoint was committed.
    pub fn adopt_checkpoint(&mut self) {
        self.old.clear();
    }
}

/// Counts since the volume was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Blocks admitted to the journal.
    pub blocks_written: u64,
    /// Blocks that destages have placed.
    pub blocks_destaged: u64,
    /// Versions committed.
    pub versions: u64,
    /// Checkpoints that were committed.
    pub checkpoints: u64,
}

/// The status of an attached volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of the journal's ring in bytes.
    pub journal_bytes: u64,
    /// Bytes of it that wait to be destaged.
    pub journal_used_bytes: u64,
    /// Blocks and pages that its jobs have written to units so far: shows the
    /// progress of a running destage.
    pub pieces_placed: u64,
    /// Entries of the tail.
    pub tail_entries: usize,
    /// Pages of the tail.
    pub tail_pages: usize,
    /// The newest version.
    pub head: Option<VersionKey>,
    /// Counts since the volume was attached.
    pub counters: Counters,
    /// Whether the lease is expired: reads are answered, everything else waits.
    pub stalled: bool,
    /// Why the last destage failed, if it did.
    pub destage_error: Option<String>,
    /// Why the volume has stopped, if it has.
    pub stopped: Option<String>,
    /// Requests that wait for unavailable units.
    pub reads_waiting: usize,
    /// Why they wait.
    pub read_error: Option<String>,
    /// Its reads through the host's cache, if there is one.
    pub cache: Option<CacheCounts>,
}

impl Volume {
    /// Takes a snapshot: everything admitted by now, and nothing later. It is
    /// complete when the catalog has committed a version that pins it; the caller
    /// has recorded it there as pending.
    pub fn snapshot(&mut self, snapshot: SnapshotId) {
        self.freeze(vec![snapshot]);
        self.commit_or_stop();
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
        self.commit_or_stop();
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
    pub(super) fn commit_or_stop(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        if let Err(error) = self.journal.commit() {
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
                tracing::warn!(volume = %self.env.volume, reason, "cannot free orphans of earlier leases; the next attach retries");
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
