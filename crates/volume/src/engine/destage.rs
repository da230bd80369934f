//! Destage: journal → segments → version.
//!
//! ```text
//!   owner                         job on the pool
//!   1. freeze: active → frozen
//!   2. take the oldest point ───► 3. place its blocks in open segments: write
//!                                    every copy, sync
//!                                 4. the same for the tail pages, which say where
//!                                    the blocks are
//!                                 5. seal the record, commit the version
//!   6. add the entries to   ◄────    (compare-and-swap in the catalog)
//!      young, release the journal
//! ```
//!
//! A job that fails before 5 has written orphans: it frees them at once, or leaves
//! that to the next lease if it cannot. If the commit itself fails, the placement is
//! kept and only the commit is retried; unless some of its units are no longer
//! members: then all of it is freed, and placed again.

use std::sync::Arc;
use std::time::Duration;

use base::{IoError, with_causes};
use world::File;

use super::destage_error::DestageError;
use super::event::Event;
use super::layers::ConsistencyPoint;
use super::pages::place_pages;
use super::volume::{Env, Volume};
use crate::catalog::{StoredVersion, VersionCommit, VersionKey};
use crate::journal::JournalSlot;
use crate::map::{Entry, Overlay, Root};
use crate::scatter::{PlaceError, Placer, Source, discard_confirmed, discard_unconfirmed, place};
use crate::seal::Address;
use crate::version::{Record, encode_tail};

/// The state of destaging.
pub struct DestageState {
    /// Places blocks; a running job has it.
    placer: Option<Placer>,
    /// A placement that could not be committed yet.
    unfinished: Option<Box<Placement>>,
    /// When the oldest write of `active` was admitted.
    pub dirty_since: Duration,
    /// Whether to commit a version even if nothing was written.
    pub commit_requested: bool,
    failure: Option<Failure>,
}

/// A failed destage, until one succeeds.
struct Failure {
    /// When it failed; zero to retry at once.
    at: Duration,
    error: IoError,
    /// Whether a retry may succeed although nothing is repaired.
    is_transient: bool,
}

/// A consistency point whose blocks have been placed.
pub struct Placement {
    point: Arc<ConsistencyPoint>,
    delta: Overlay<Entry>,
    pages: Vec<Entry>,
    commit: VersionCommit,
    adopts_checkpoint: bool,
}

/// The result of a destage job.
pub struct DestageEnd {
    placer: Placer,
    placement: Option<Box<Placement>>,
    result: Result<(), DestageError>,
}

/// A destage job: what it needs of the volume.
struct Job {
    env: Arc<Env>,
    journal: Arc<dyn File>,
    placer: Placer,
    point: Arc<ConsistencyPoint>,
    key: VersionKey,
    parent: Option<VersionKey>,
    root: Root,
    tail: Vec<Entry>,
    adopts_checkpoint: bool,
}

impl DestageState {
    pub fn new(placer: Placer) -> Self {
        Self {
            placer: Some(placer),
            unfinished: None,
            dirty_since: Duration::ZERO,
            commit_requested: false,
            failure: None,
        }
    }

    /// Whether a job is running or something waits to be committed.
    pub fn is_busy(&self) -> bool {
        self.placer.is_none() || self.unfinished.is_some() || self.commit_requested
    }

    /// Why the last destage failed.
    pub fn error(&self) -> Option<&IoError> {
        self.failure.as_ref().map(|failure| &failure.error)
    }

    /// Why a write that needs room in the journal must fail rather than wait. While
    /// controllers or units are unavailable it waits: their restart must not cost a
    /// guest its file system.
    pub fn refusal(&self) -> Option<&IoError> {
        let permanent = self
            .failure
            .as_ref()
            .filter(|failure| !failure.is_transient);
        permanent.map(|failure| &failure.error)
    }

    /// Forgets a failure: the destage is retried at once.
    pub fn clear_failure(&mut self) {
        self.failure = None;
    }

    /// Ends the delay after a failure.
    pub fn retry_now(&mut self) {
        if let Some(failure) = &mut self.failure {
            failure.at = Duration::ZERO;
        }
    }
}

impl Volume {
    /// Freezes `active` into a consistency point.
    pub(super) fn freeze(&mut self, pins: Vec<base::SnapshotId>) {
        if let Err(error) = self.journal.commit() {
            self.stop(IoError::Stopped(with_causes(&error)));
            return;
        }
        let point = ConsistencyPoint {
            writes: std::mem::take(&mut self.reader.layers.active),
            position: self.journal.head(),
            sequence: self.last_sequence,
            size_bytes: self.reader.size_bytes,
            pins,
        };
        self.reader.layers.frozen.push_back(Arc::new(point));
    }

    /// The delay until the owner must be called for the next destage.
    pub(super) fn destage_timer(&self) -> Option<Duration> {
        let now = self.now();
        if let Some(failure) = &self.destage.failure {
            return Some((failure.at + self.env.config.retry_after).saturating_sub(now));
        }
        if self.reader.layers.active.is_empty() || self.destage.placer.is_none() {
            return None;
        }
        let due = self.destage.dirty_since + self.env.config.destage_after;
        Some(due.saturating_sub(now))
    }

    fn destage_is_due(&self) -> bool {
        let state = &self.destage;
        if state.placer.is_none() {
            return false;
        }
        if let Some(failure) = &state.failure
            && self.now() < failure.at + self.env.config.retry_after
        {
            return false;
        }
        if state.unfinished.is_some()
            || state.commit_requested
            || !self.reader.layers.frozen.is_empty()
        {
            return true;
        }
        !self.reader.layers.active.is_empty()
            && (self.closing
                || self.journal.used_bytes() * 2 >= self.journal.ring_bytes()
                || self.now() >= state.dirty_since + self.env.config.destage_after)
    }

    pub(super) fn start_destage_if_due(&mut self) {
        if self.stopped.is_some() || !self.destage_is_due() || !self.lease_holds() {
            return;
        }
        let Some(placer) = self.destage.placer.take() else {
            return;
        };
        if let Some(placement) = self.destage.unfinished.take() {
            self.run_destage(move |env| finish(env, placer, placement));
            return;
        }
        if self.reader.layers.frozen.is_empty() {
            self.freeze(Vec::new());
        }
        let Some(point) = self.reader.layers.frozen.front().cloned() else {
            return;
        };
        self.destage.commit_requested = false;
        let checkpoint = self.checkpoint.adopt();
        let adopts_checkpoint = checkpoint.is_some();
        let job = Job {
            env: Arc::clone(&self.env),
            journal: self.journal.file().clone(),
            placer,
            point,
            key: VersionKey {
                volume: self.env.volume,
                number: self.number_next,
            },
            parent: self.head,
            root: checkpoint.unwrap_or_else(|| self.reader.layers.root.clone()),
            tail: self.tail.of_version(adopts_checkpoint),
            adopts_checkpoint,
        };
        self.number_next += 1;
        self.run_destage(move |_| job.run());
    }

    fn run_destage(&self, job: impl FnOnce(&Env) -> DestageEnd + Send + 'static) {
        let env = Arc::clone(&self.env);
        let reporter = self.reader.fetcher.reporter.clone();
        self.env.world.pool.run(Box::new(move || {
            let end = job(&env);
            reporter.report(Event::Destaged(Box::new(end)));
        }));
    }

    pub(super) fn on_destaged(&mut self, end: DestageEnd) {
        self.destage.placer = Some(end.placer);
        match end.result {
            Ok(()) => {
                self.destage.clear_failure();
                if let Some(placement) = end.placement {
                    self.adopt_version(*placement);
                }
                self.allow_checkpoint();
            }
            Err(error) if error.is_fenced() => {
                self.stop(IoError::Stopped(with_causes(&error)));
            }
            Err(error) => {
                tracing::warn!(volume = %self.env.volume, error = with_causes(&error), "destage failed; it will be retried");
                match end.placement {
                    Some(placement) if !error.have_members_changed() => {
                        self.destage.unfinished = Some(placement);
                    }
                    // The job has freed the placement: its blocks are placed again.
                    Some(placement) if placement.adopts_checkpoint => self.discard_checkpoint(),
                    _ => {}
                }
                self.destage.failure = Some(Failure {
                    at: self.now(),
                    error: error.to_io_error(),
                    is_transient: error.is_transient(),
                });
            }
        }
    }

    fn adopt_version(&mut self, placement: Placement) {
        let Placement {
            point,
            delta,
            pages,
            commit,
            adopts_checkpoint,
        } = placement;
        if adopts_checkpoint {
            self.adopt_checkpoint();
        }
        self.env.ledger.has_committed();
        self.counters.versions += 1;
        self.counters.blocks_destaged += delta.data_len() as u64;
        self.reader.layers.young.extend(&delta, |_, entry| entry);
        self.tail.extend(pages);
        let front = self.reader.layers.frozen.pop_front();
        debug_assert!(front.is_some_and(|front| Arc::ptr_eq(&front, &point)));
        self.head = Some(commit.version.key);
        self.journal.release(point.position);
    }
}

impl Job {
    fn run(mut self) -> DestageEnd {
        match self.place() {
            Ok(placement) => {
                let Self { env, placer, .. } = self;
                finish(&env, placer, Box::new(placement))
            }
            Err(error) => {
                discard_unconfirmed(&self.env.store, &mut self.placer);
                DestageEnd {
                    placer: self.placer,
                    placement: None,
                    result: Err(error),
                }
            }
        }
    }

    fn place(&mut self) -> Result<Placement, DestageError> {
        let delta = self.place_blocks()?;
        let pages = self.place_tail(&delta)?;
        let env = &self.env;
        let mut tail = std::mem::take(&mut self.tail);
        tail.extend_from_slice(&pages);
        let record = Record {
            key: self.key,
            block_size: env.block_size,
            size_bytes: self.point.size_bytes,
            last_sequence: self.point.sequence,
            root: self.root.clone(),
            tail,
        };
        let sealed = record.seal(env.keyring.own(), env.sequences.take()?);
        // The next lease sweeps what is confirmed below, unless this commits: no
        // other lease can have been acquired yet.
        env.progress.check_awaited().map_err(PlaceError::from)?;
        self.placer.confirm();
        let ledger = env.ledger.for_commit(&env.serials);
        let joined = ledger.placement.joined_or_max();
        let commit = VersionCommit {
            version: StoredVersion {
                key: self.key,
                parent: self.parent,
                lineage: env.keyring.own().lineage(),
                epoch: env.epoch,
                journal_next: self.point.position,
                created: env.world.clock.wall(),
                record: sealed,
            },
            pins: self.point.pins.clone(),
            open_segments: ledger.open_segments,
            serial_next: ledger.serial_next,
            degraded: ledger.placement.degraded,
            joined: joined.oldest,
            joined_last: joined.newest,
        };
        let adopts_checkpoint = self.adopts_checkpoint;
        Ok(Placement {
            point: Arc::clone(&self.point),
            delta,
            pages,
            commit,
            adopts_checkpoint,
        })
    }

    fn place_blocks(&mut self) -> Result<Overlay<Entry>, DestageError> {
        let mut blocks: Vec<(u64, JournalSlot)> = self.point.writes.blocks().collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        let blocks = Arc::new(blocks);
        let source: Source = {
            let (journal, blocks) = (Arc::clone(&self.journal), Arc::clone(&blocks));
            Arc::new(move |index, slot| {
                let (_, placed) = blocks[index];
                journal.read_at(slot, placed.offset)?;
                Ok(placed.tag)
            })
        };
        let random = &*self.env.world.random;
        let locations = place(
            &self.env.store,
            &mut self.placer,
            random,
            blocks.len(),
            &source,
        )?;
        let mut delta = Overlay::default();
        for zero in self.point.writes.zeroes() {
            delta.zero(zero);
        }
        for ((block, placed), location) in blocks.iter().zip(locations) {
            delta.insert(
                *block,
                Entry {
                    location,
                    sequence: placed.sequence,
                },
            );
        }
        Ok(delta)
    }

    fn place_tail(&mut self, delta: &Overlay<Entry>) -> Result<Vec<Entry>, DestageError> {
        let pages = encode_tail(delta, self.env.block_size);
        let pages = pages.into_iter().map(|page| (Address::TAIL, page));
        place_pages(&self.env, &mut self.placer, pages)
    }
}

/// Commits a placement; frees it if it can never be committed.
fn finish(env: &Env, mut placer: Placer, placement: Box<Placement>) -> DestageEnd {
    let result = env
        .catalog
        .commit(&placement.commit)
        .map_err(DestageError::from);
    if let Err(error) = &result
        && error.have_members_changed()
    {
        discard_confirmed(&env.store, &env.ledger);
        placer.close_segments();
    }
    DestageEnd {
        placer,
        placement: Some(placement),
        result,
    }
}
