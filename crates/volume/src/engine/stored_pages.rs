//! [`StoredPages`]: map pages read from units. It knows no volume and no request.

use std::sync::Arc;

use base::UnitId;

use crate::map::{Entry, FetchPages, PAGE_BYTES, Page, PageCache, Position};
use crate::scatter::{CacheView, Piece, ReadError, Store, read_pieces_through};
use crate::seal::Keyring;

/// Reads map pages from units, with a small cache, for jobs.
pub struct StoredPages {
    store: Arc<Store>,
    keyring: Arc<Keyring>,
    cache: PageCache,
    view: Option<CacheView>,
    exclude: Vec<UnitId>,
}

impl StoredPages {
    /// A reader of the pages that `keyring` opens; it caches `pages_max` of them.
    pub fn new(store: Arc<Store>, keyring: Arc<Keyring>, pages_max: usize) -> Self {
        Self {
            store,
            keyring,
            cache: PageCache::new(pages_max),
            view: None,
            exclude: Vec::new(),
        }
    }

    /// Reads from units to `exclude` only if no others have a page.
    #[must_use]
    pub fn excluding(mut self, exclude: Vec<UnitId>) -> Self {
        self.exclude = exclude;
        self
    }

    /// Reads through a cache, too.
    #[must_use]
    pub fn through(mut self, view: Option<CacheView>) -> Self {
        self.view = view;
        self
    }
}

impl FetchPages for StoredPages {
    type Error = ReadError;

    fn fetch(&mut self, pages: &[(Position, Entry)]) -> Result<Vec<Arc<Page>>, ReadError> {
        let missing: Vec<Piece> = pages
            .iter()
            .filter(|(_, entry)| self.cache.get(*entry).is_none())
            .map(page_piece)
            .collect();
        let (view, store, keyring) = (self.view.as_ref(), &self.store, &self.keyring);
        let slot_bytes = PAGE_BYTES as u32;
        let read = read_pieces_through(view, store, keyring, slot_bytes, &missing, &self.exclude);
        let mut fetched = std::collections::HashMap::new();
        for (piece, bytes) in missing.iter().zip(read) {
            let bytes: Box<[u8; PAGE_BYTES]> = bytes?
                .into_boxed_slice()
                .try_into()
                .expect("a slot of PAGE_BYTES was read");
            let page = Arc::new(Page::from_bytes(bytes));
            self.cache.insert(piece.entry, Arc::clone(&page));
            fetched.insert(piece.entry, page);
        }
        let page = |(_, entry): &(Position, Entry)| match fetched.get(entry) {
            Some(page) => Arc::clone(page),
            None => Arc::clone(self.cache.get(*entry).expect("found there above")),
        };
        Ok(pages.iter().map(page).collect())
    }
}

/// A map page as a piece.
pub(super) fn page_piece((position, entry): &(Position, Entry)) -> Piece {
    Piece {
        entry: *entry,
        address: position.address(),
    }
}
