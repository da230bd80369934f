//! Checkpoint: merging the tail into new map pages, beside the destages.
//!
//! 1. begin: `young` becomes `old`, its tail pages become `tail_old`
//! 2. a job merges `old` over the tree into new pages
//! 3. done: the next destage commits a version with the new root and without
//!    `tail_old`
//! 4. adopted: `old` goes
//!
//! Until 4 every version still has the old root and the whole tail, so a crash
//! at any point loses only the work.

use std::sync::Arc;

use base::{IoError, with_causes};

use super::event::Event;
use super::fetch::StoredPages;
use super::pages::place_pages;
use super::volume::{Env, Volume};
use crate::map::{Entry, FetchPages, Overlay, Page, PageSink, Position, Root, merge};
use crate::scatter::{CacheView, PlaceError, Placer, ReadError, discard_unconfirmed};
use crate::seal::SequenceExhausted;

/// How many of the pages it made a checkpoint hands to the owner's cache.
const PAGES_HANDED_OVER_MAX: usize = 4096;
/// Old pages a checkpoint keeps in memory.
const PAGES_KEPT: usize = 1024;

/// Where the checkpoint stands.
pub struct CheckpointState {
    /// Deals pages; a running job has it.
    placer: Option<Placer>,
    /// The merged tree, until a version with it is committed.
    merged: Option<Merged>,
    /// A destage is about to commit it.
    adopting: bool,
    /// Not to be tried again until something was destaged.
    failed: bool,
    /// Pages in whose place the last one has put others. Who was reading them at that moment
    /// has protected them once more: they are let go of again with the next one.
    replaced: Vec<Entry>,
}

/// Pages and where they lie.
type MadePages = Vec<(Entry, Arc<Page>)>;

/// A tree that is to be the volume's.
pub struct Merged {
    root: Root,
    pages: MergePages,
}

/// Which pages of the map came and went by a merge.
#[derive(Default)]
struct MergePages {
    made: Vec<Entry>,
    /// In whose place others are.
    replaced: Vec<Entry>,
    /// And those that are gone, with all that is below them.
    gone: Vec<(Position, Entry)>,
}

/// How a checkpoint ended.
pub struct CheckpointEnd {
    placer: Placer,
    result: Result<(Root, MadePages), CheckpointError>,
    pages: MergePages,
}

/// Why a checkpoint failed. The tail stays; it is tried again.
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
            adopting: false,
            failed: false,
            replaced: Vec::new(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.placer.is_none() || self.merged.is_some()
    }

    /// The merged tree, for the version about to be committed.
    pub fn adopt(&mut self) -> Option<Root> {
        let root = self.merged.as_ref()?.root.clone();
        self.adopting = true;
        if let Some(placer) = &mut self.placer {
            placer.confirm();
        }
        Some(root)
    }

    /// The version was not committed; the next one adopts it.
    pub fn abort_adoption(&mut self) {
        self.adopting = false;
    }
}

impl Volume {
    pub(super) fn start_checkpoint_if_due(&mut self) {
        let config = self.env.config;
        let full = self.reader.layers.young.len() >= config.tail_entries_max
            || self.tail_young.len() >= config.tail_pages_max;
        let retry = self.reader.layers.old.is_some();
        if self.stopped.is_some()
            || self.checkpoint.is_running()
            || self.checkpoint.failed
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
                self.tail_old.append(&mut self.tail_young);
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
            Ok((root, made)) => {
                for (entry, page) in made {
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
                tracing::warn!(volume = %self.env.volume, error = with_causes(&error), "a checkpoint failed; the tail stays");
                self.checkpoint.failed = true;
            }
        }
    }

    /// A version with the merged tree was committed.
    pub(super) fn adopt_checkpoint(&mut self) {
        self.checkpoint.adopting = false;
        let merged = self.checkpoint.merged.take();
        let Merged { root, pages } = merged.expect("a version adopted it");
        self.reader.layers.root = root;
        self.reader.layers.old = None;
        self.tail_old.clear();
        self.counters.checkpoints += 1;
        if let Some(view) = &self.env.view {
            view.release(&self.checkpoint.replaced);
            view.release(&pages.replaced);
            self.checkpoint.replaced = pages.replaced;
        }
        self.map_has_changed(pages.gone);
    }

    /// The version never will be, and what it named was freed: it is merged anew.
    pub(super) fn discard_checkpoint(&mut self) {
        self.checkpoint.adopting = false;
        let merged = self.checkpoint.merged.take();
        if let (Some(view), Some(merged)) = (&self.env.view, merged) {
            view.release(&merged.pages.made);
        }
        if let Some(placer) = &mut self.checkpoint.placer {
            placer.close_segments();
        }
    }

    /// A destage went well: a checkpoint that failed may be tried again.
    pub(super) fn allow_checkpoint(&mut self) {
        self.checkpoint.failed = false;
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
            view.release(&merge_pages.made);
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
    handed_over: MadePages,
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
        let made = entries
            .iter()
            .copied()
            .zip(pages.into_iter().map(|(_, page)| page));
        self.handed_over.extend(made.take(room));
        self.merge_pages.made.extend(&entries);
        Ok(entries)
    }

    fn gone(&mut self, position: Position, entry: Entry) {
        self.merge_pages.gone.push((position, entry));
    }
}
