//! The job of a checkpoint: merges the tail over the tree into new map pages. It knows no
//! volume: its result is a [`CheckpointEnd`].

use std::sync::Arc;

use crate::engine::env::Env;
use crate::engine::pages::place_pages;
use crate::engine::stored_pages::StoredPages;
use crate::map::{Entry, FetchPages, Overlay, Page, PageSink, Position, Root, merge};
use crate::scatter::{CacheView, PlaceError, Placer, ReadError, discard_unconfirmed};
use crate::seal::SequenceExhausted;

/// The most new pages that a checkpoint hands to the owner's cache.
const PAGES_HANDED_OVER_MAX: usize = 4096;
/// Old pages that a checkpoint keeps in memory.
const PAGES_KEPT: usize = 1024;

/// New pages and where they are.
pub type NewPages = Vec<(Entry, Arc<Page>)>;

/// A merged tree that waits to become the volume's.
pub struct Merged {
    pub root: Root,
    pub pages: MergePages,
}

/// The pages that a merge created, replaced and removed.
#[derive(Default)]
pub struct MergePages {
    pub created: Vec<Entry>,
    /// Pages with a newer one at the same position.
    pub replaced: Vec<Entry>,
    /// Pages without a successor; all pages below them are removed, too.
    pub removed: Vec<(Position, Entry)>,
}

/// The result of a checkpoint job.
pub struct CheckpointEnd {
    pub placer: Placer,
    pub result: Result<(Root, NewPages), CheckpointError>,
    pub pages: MergePages,
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

/// Merges `overlay` over the tree of `root`.
pub fn run(env: Arc<Env>, placer: Placer, root: &Root, overlay: &Overlay<Entry>) -> CheckpointEnd {
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
