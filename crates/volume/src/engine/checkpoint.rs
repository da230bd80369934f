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

use std::sync::Arc;

use base::{IoError, with_causes};

use super::event::Event;
use super::fetch::StoredPages;
use super::pages::place_pages;
use super::volume::{Env, Volume};
use crate::map::{Entry, FetchPages, Overlay, Page, PageSink, Position, Root, merge};
use crate::scatter::{CacheView, PlaceError, Placer, ReadError, discard_unconfirmed};
use crate::seal::SequenceExhausted;

/// The most new pages that a checkpoint hands to the owner's cache.
const PAGES_HANDED_OVER_MAX: usize = 4096;
/// Old pages that a checkpoint keeps in memory.
const PAGES_KEPT: usize = 1024;

/// The state of checkpointing.
pub struct CheckpointState {
    /// Places pages; a running job has it.
    placer: Option<Placer>,
    /// The merged tree, until a version with it is committed.
    merged: Option<Merged>,
    /// Whether the last checkpoint failed: none starts before something was destaged.
    has_failed: bool,
    /// Pages that the last checkpoint replaced. A read that was running at that
    /// moment has protected them once more: the next checkpoint releases them again.
    replaced: Vec<Entry>,
}

/// New pages and where they are.
type NewPages = Vec<(Entry, Arc<Page>)>;

/// A merged tree that waits to become the volume's.
pub struct Merged {
    root: Root,
    pages: MergePages,
}

/// The pages that a merge created, replaced and removed.
#[derive(Default)]
struct MergePages {
    created: Vec<Entry>,
    /// Pages with a newer one at the same position.
    replaced: Vec<Entry>,
    /// Pages without a successor; all pages below them are removed, too.
    removed: Vec<(Position, Entry)>,
}

/// The result of a checkpoint job.
pub struct CheckpointEnd {
    placer: Placer,
    result: Result<(Root, NewPages), CheckpointError>,
    pages: MergePages,
}

/// Why a checkpoint failed. The tail stays, and the checkpoint is retried.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// An old page could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// New pages could not be placed.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The lease's sequences are used up.
    #[error(transparent)]
    Sequence(#[from] SequenceExhausted),
}

impl CheckpointState {
    pub fn new(placer: Placer) -> Self {
        Self {
            placer: Some(placer),
            merged: None,
            has_failed: false,
            replaced: Vec::new(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.placer.is_none() || self.merged.is_some()
    }

    /// The merged tree, for the version about to be committed.
    pub fn adopt(&mut self) -> Option<Root> {
        let root = self.merged.as_ref()?.root.clone();
        if let Some(placer) = &mut self.placer {
            placer.confirm();
        }
        Some(root)
    }
}

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

fn run(env: Arc<Env>, placer: Placer, root: &Root, overlay: &Overlay<Entry>) -> CheckpointEnd {
    let pages = StoredPages::new(Arc::clone(&env.store), Arc::clone(&env.keyring), PAGES_KEPT)
        .through(env.view.as_ref().map(CacheView::filling));
    let mut sink = Sink {
        env,
        placer,
        pages,
        handed_over: Vec::new(),
        merge_pages: MergePages::default(),
    };
    let result = merge(&mut sink, root, overlay);
    let Sink {
        env,
        mut placer,
        handed_over,
        merge_pages,
        ..
    } = sink;
    if result.is_err() {
        discard_unconfirmed(&env.store, &mut placer);
        if let Some(view) = &env.view {
            view.release(&merge_pages.created);
        }
    }
    CheckpointEnd {
        placer,
        result: result.map(|root| (root, handed_over)),
        pages: merge_pages,
    }
}

struct Sink {
    env: Arc<Env>,
    placer: Placer,
    pages: StoredPages,
    handed_over: NewPages,
    merge_pages: MergePages,
}

impl FetchPages for Sink {
    type Error = CheckpointError;

    fn fetch(&mut self, pages: &[(Position, Entry)]) -> Result<Vec<Arc<Page>>, CheckpointError> {
        let entries = pages.iter().map(|(_, entry)| *entry);
        self.merge_pages.replaced.extend(entries);
        Ok(self.pages.fetch(pages)?)
    }
}

impl PageSink for Sink {
    fn put(&mut self, pages: Vec<(Position, Arc<Page>)>) -> Result<Vec<Entry>, CheckpointError> {
        let bytes = pages
            .iter()
            .map(|(position, page)| (position.address(), page.bytes().to_vec()));
        let entries: Vec<Entry> =
            place_pages::<CheckpointError>(&self.env, &mut self.placer, bytes)?;
        let room = PAGES_HANDED_OVER_MAX - self.handed_over.len();
        let created = entries
            .iter()
            .copied()
            .zip(pages.into_iter().map(|(_, page)| page));
        self.handed_over.extend(created.take(room));
        self.merge_pages.created.extend(&entries);
        Ok(entries)
    }

    fn removed(&mut self, position: Position, entry: Entry) {
        self.merge_pages.removed.push((position, entry));
    }
}
