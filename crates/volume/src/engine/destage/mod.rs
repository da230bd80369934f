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
//! A job that fails before 5 has written leftovers: it frees them at once, or leaves
//! that to the next lease if it cannot. If the commit itself fails, the placement is
//! kept and only the commit is retried; unless some of its units are no longer
//! members: then all of it is freed, and placed again.

mod error;
pub mod job;
pub mod state;

use std::sync::Arc;
use std::time::Duration;

use base::{IoError, with_causes};
use catalog::VersionKey;

use self::job::{DestageEnd, Job, Placement, finish};
use self::state::Failure;
use super::env::Env;
use super::event::Event;
use super::layers::ConsistencyPoint;
use super::volume::Volume;

impl Volume {
    /// Freezes `active` into a consistency point.
    pub(super) fn freeze(&mut self, pins: Vec<base::SnapshotId>) {
        if let Err(error) = self.journal.write_batch() {
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
