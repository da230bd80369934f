//! [`Fetcher`]: reads that could not be completed at once, by units that call back
//! or on a pool thread that waits.

use std::sync::Arc;

use base::{BlockIndex, BlockSize, IoError, UnitId};
use world::{Clock, File};

use crate::engine::event::{Event, Fetched, ReadFailure, Reporter};
use crate::engine::layers::Source;
use crate::engine::request::{BlockSources, FetchTarget};
use crate::engine::stored_pages::{StoredPages, page_piece};
use crate::journal::JournalSlot;
use crate::map::{Entry, FetchPages, Position};
use crate::scatter::{CacheView, Piece, Store, data_piece, read_pieces_through, start_read_pieces};
use crate::seal::{Address, Keyring};

/// Reads blocks and map pages for parked requests. Shared with its jobs.
#[derive(Clone)]
pub struct Fetcher {
    pub store: Arc<Store>,
    pub keyring: Arc<Keyring>,
    /// `None` without a cache.
    pub view: Option<CacheView>,
    pub block_size: BlockSize,
    /// `None` for a volume that is open read-only.
    pub journal: Option<Arc<dyn File>>,
    pub reporter: Reporter,
    pub clock: Arc<dyn Clock>,
}

impl Fetcher {
    pub fn slot_bytes(&self) -> u32 {
        u32::try_from(self.block_size.bytes()).expect("at most 64 KiB")
    }

    /// A fetcher for readahead.
    pub fn ahead(&self) -> Arc<Self> {
        Arc::new(Self {
            view: self.view.as_ref().map(CacheView::ahead),
            ..self.clone()
        })
    }

    /// Starts to read `wanted` for a parked request, from units to `exclude` only if
    /// no others have it.
    pub fn start(self: &Arc<Self>, request: u64, wanted: BlockSources, exclude: &[UnitId]) {
        let pieces: Option<Vec<Piece>> = wanted.iter().map(block_piece).collect();
        let view = self.view_for(exclude);
        let is_started = pieces.is_some_and(|pieces| {
            let (fetcher, wanted) = (Arc::clone(self), Arc::clone(&wanted));
            let excluded = exclude.to_vec();
            let done = move |found| fetcher.found(request, wanted, found, excluded);
            let (store, keyring) = (&self.store, &self.keyring);
            start_read_pieces(
                view,
                store,
                keyring,
                self.slot_bytes(),
                pieces,
                exclude,
                done,
            )
        });
        if !is_started {
            self.start_job(request, wanted, exclude.to_vec());
        }
    }

    /// Reports what was read for a request. If a piece could not be read without
    /// waiting, a job reads all of them.
    fn found(
        self: &Arc<Self>,
        request: u64,
        wanted: BlockSources,
        found: Option<Vec<u8>>,
        exclude: Vec<UnitId>,
    ) {
        let Some(found) = found else {
            return self.start_job(request, wanted, exclude);
        };
        let fetched = Fetched::All(found);
        self.reporter.report(Event::Fetched { request, fetched });
    }

    /// The cache, unless this is a hedge: it may be the cache's file that does not
    /// respond.
    fn view_for(&self, exclude: &[UnitId]) -> Option<&CacheView> {
        self.view.as_ref().filter(|_| exclude.is_empty())
    }

    fn start_job(self: &Arc<Self>, request: u64, wanted: BlockSources, exclude: Vec<UnitId>) {
        let fetcher = Arc::clone(self);
        self.store.pool.run(Box::new(move || {
            let fetched = Fetched::Each(fetcher.read(&wanted, &exclude));
            fetcher.reporter.report(Event::Fetched { request, fetched });
        }));
    }

    /// Whether some of the target has to be read from the cache's file.
    pub fn is_in_cache_file(&self, wanted: &FetchTarget) -> bool {
        let Some(view) = self.view.as_ref().filter(|view| view.has_file()) else {
            return false;
        };
        let is_there = |piece: Piece| view.is_in_file(&piece);
        match wanted {
            FetchTarget::Blocks(blocks) | FetchTarget::Readahead(blocks) => {
                blocks.iter().filter_map(block_piece).any(is_there)
            }
            FetchTarget::Pages(pages) => pages.iter().map(page_piece).any(is_there),
        }
    }

    /// Starts a job that reads map pages for a parked request, as
    /// [`Fetcher::start`] reads blocks.
    pub fn start_pages(
        self: &Arc<Self>,
        request: u64,
        wanted: Vec<(Position, Entry)>,
        exclude: &[UnitId],
    ) {
        let fetcher = Arc::clone(self);
        let exclude = exclude.to_vec();
        self.store.pool.run(Box::new(move || {
            let (store, keyring) = (Arc::clone(&fetcher.store), Arc::clone(&fetcher.keyring));
            let view = fetcher.view_for(&exclude).cloned();
            let mut pages = StoredPages::new(store, keyring, 3)
                .through(view)
                .excluding(exclude);
            let pages = pages
                .fetch(&wanted)
                .map(|pages| wanted.iter().map(|(_, entry)| *entry).zip(pages).collect())
                .map_err(ReadFailure::from);
            fetcher.reporter.report(Event::Pages { request, pages });
        }));
    }

    fn read(
        &self,
        wanted: &[(BlockIndex, Source)],
        exclude: &[UnitId],
    ) -> Vec<Result<Vec<u8>, ReadFailure>> {
        let pieces: Vec<Piece> = wanted.iter().filter_map(block_piece).collect();
        let slot_bytes = self.slot_bytes();
        let (view, store, keyring) = (self.view_for(exclude), &self.store, &self.keyring);
        let read = read_pieces_through(view, store, keyring, slot_bytes, &pieces, exclude);
        let mut from_units = read.into_iter();
        wanted
            .iter()
            .map(|(block, source)| match source {
                Source::Zero => Ok(vec![0; self.block_size.bytes()]),
                Source::Journal(placed) => {
                    let read = self.read_journal(*block, placed);
                    read.map_err(ReadFailure::permanent)
                }
                Source::Slot(_) => from_units
                    .next()
                    .expect("a result for each piece")
                    .map_err(ReadFailure::from),
            })
            .collect()
    }

    fn read_journal(&self, block: BlockIndex, placed: &JournalSlot) -> Result<Vec<u8>, IoError> {
        let mut sealed = vec![0; self.block_size.bytes()];
        let journal = self.journal.as_ref();
        journal
            .expect("no layer of a volume without a journal names one")
            .read_at(&mut sealed, placed.offset)
            .map_err(|error| IoError::Unavailable(format!("cannot read the journal: {error}")))?;
        let mut plain = vec![0; sealed.len()];
        let sealer = self.keyring.of_epoch(placed.sequence.epoch());
        sealer
            .open(
                Address::data(block),
                placed.sequence,
                &placed.tag,
                &sealed,
                &mut plain,
            )
            .map_err(|mismatch| IoError::Damaged(format!("a block in the journal: {mismatch}")))?;
        Ok(plain)
    }
}

/// A block as a piece, if it is on units.
fn block_piece((block, source): &(BlockIndex, Source)) -> Option<Piece> {
    match source {
        Source::Slot(entry) => Some(data_piece(*block, *entry)),
        Source::Zero | Source::Journal(_) => None,
    }
}
