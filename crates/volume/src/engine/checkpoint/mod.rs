//! Checkpoint: merging the tail into new map pages, concurrently with destages.
//!
//! 1. begin: `young` becomes `old`, its tail pages become the tail's old pages
//! 2. a job merges `old` over the tree into new pages
//! 3. done: the next destage commits a version with the new root and without the old
//!    pages of the tail
//! 4. adopted: `old` is dropped
//!
//! Until 4 every version still has the old root and the whole tail, so a crash
//! at any point loses only this work.

pub mod job;
pub mod state;

use std::sync::Arc;

use base::{IoError, with_causes};

use self::job::{CheckpointEnd, CheckpointError, Merged, run};
use super::event::Event;
use super::volume::Volume;

impl Volume {
    pub(super) fn start_checkpoint_if_due(&mut self) {
        let config = self.env.config;
        let full = self.reader.layers.young.len() >= config.tail_entries_max
            || self.tail.young_len() >= config.tail_pages_max;
        let retry = self.reader.layers.old.is_some();
        if self.stopped.is_some()
            || self.checkpoint.is_running()
            || self.checkpoint.has_failed
            || !(full || retry)
            || !self.lease_holds()
        {
            return;
        }
        let Some(placer) = self.checkpoint.placer.take() else {
            return;
        };
        let old = match &self.reader.layers.old {
            // An earlier attempt failed: its overlay is still the one to merge.
            Some(old) => Arc::clone(old),
            None => {
                let old = Arc::new(std::mem::take(&mut self.reader.layers.young));
                self.reader.layers.old = Some(Arc::clone(&old));
                self.tail.begin_checkpoint();
                old
            }
        };
        let root = self.reader.layers.root.clone();
        let env = Arc::clone(&self.env);
        let reporter = self.reader.fetcher.reporter.clone();
        self.env.world.pool.run(Box::new(move || {
            let end = run(env, placer, &root, &old);
            reporter.report(Event::Checkpointed(Box::new(end)));
        }));
    }

    pub(super) fn on_checkpointed(&mut self, end: CheckpointEnd) {
        self.checkpoint.placer = Some(end.placer);
        match end.result {
            Ok((root, created)) => {
                for (entry, page) in created {
                    self.reader.layers.cache.insert(entry, page);
                }
                let pages = end.pages;
                self.checkpoint.merged = Some(Merged { root, pages });
                self.destage.commit_requested = true;
            }
            Err(CheckpointError::Place(error)) if error.is_fenced() => {
                self.stop(IoError::Stopped(with_causes(&error)));
            }
            Err(error) => {
                tracing::warn!(volume = %self.env.volume, error = with_causes(&error), "checkpoint failed; it will be retried after the next destage");
                self.checkpoint.has_failed = true;
            }
        }
    }

    /// A version with the merged tree was committed.
    pub(super) fn adopt_checkpoint(&mut self) {
        let merged = self.checkpoint.merged.take();
        let Merged { root, pages } = merged.expect("a version adopted it");
        self.reader.layers.root = root;
        self.reader.layers.old = None;
        self.tail.adopt_checkpoint();
        self.counters.checkpoints += 1;
        if let Some(view) = &self.env.view {
            view.release(&self.checkpoint.replaced);
            view.release(&pages.replaced);
            self.checkpoint.replaced = pages.replaced;
        }
        self.map_has_changed(pages.removed);
    }

    /// The version with the merged tree will never be committed, and its slots were
    /// freed: the tail is merged again.
    pub(super) fn discard_checkpoint(&mut self) {
        let merged = self.checkpoint.merged.take();
        if let (Some(view), Some(merged)) = (&self.env.view, merged) {
            view.release(&merged.pages.created);
        }
        if let Some(placer) = &mut self.checkpoint.placer {
            placer.close_segments();
        }
    }

    /// Allows a retry after a failed checkpoint: a destage has succeeded.
    pub(super) fn allow_checkpoint(&mut self) {
        self.checkpoint.has_failed = false;
    }
}
