//! [`CacheView`]: a volume's view of the host's cache (docs/internals/cache.md).

use std::sync::Arc;

use base::{Lineage, VolumeId};
use cache::host::{AreaCounts, Hit, HostCache, Principal, Tally, UseGuard};
use cache::memory::ReadaheadCounts;
use cache::store::{Area, Id, Protector, SLOT_BYTES, Sharer};
use parking_lot::Mutex;
use unit::Tag;
use world::Pool;

use super::piece::{Piece, open_into};
use crate::map::Entry;
use crate::seal::{Address, Keyring};

/// A volume's view of the host's cache. Clones belong to the same volume.
#[derive(Clone)]
pub struct CacheView {
    cache: Arc<HostCache>,
    volume: VolumeId,
    principal: Arc<Principal>,
    /// The part of the volume that is a base image's; the guard marks it as used.
    image: Arc<Mutex<(ImagePart, Option<UseGuard>)>>,
    /// Marks the volume's own blocks as used while any clone exists.
    _used: Arc<UseGuard>,
    /// Why this clone reads.
    purpose: Purpose,
    /// Protects the map pages of the newest version while any such clone exists.
    newest: Option<Arc<Newest>>,
}

/// The part of a volume that is a base image's; nothing at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImagePart {
    /// The lineage that wrote the image.
    pub of: Option<Lineage>,
    /// Blocks written under epochs below this one belong to the image.
    pub below: u32,
    /// Whether they are pinned in the cache.
    pub is_pinned: bool,
}

/// Why something is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A request needs it: it is counted.
    Asked,
    /// It is read ahead: it is kept apart until a request needs it.
    Ahead,
    /// It is read to be in the cache.
    Filling,
}

/// Protects the map pages of a volume that is written on this host.
struct Newest {
    cache: Arc<HostCache>,
    protector: Protector,
}

impl Drop for Newest {
    fn drop(&mut self) {
        self.cache.release_all(self.protector);
    }
}

/// A volume's reads, by where the cache had them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// By [`cache::store::AreaKind`].
    pub areas: [AreaCounts; 3],
    /// Blocks that were read ahead.
    pub ahead: ReadaheadCounts,
}

/// The buffers of a read from the cache, both as long as the piece's slot.
pub(crate) struct Buffers<'a> {
    /// Receives the sealed piece.
    pub sealed: &'a mut [u8],
    /// Receives its content.
    pub plain: &'a mut [u8],
}

/// The ids, in the cache, of a piece in a slot of `slot_bytes`.
fn parts(entry: Entry, slot_bytes: usize) -> impl Iterator<Item = Id> {
    let location = entry.location;
    (0..)
        .map(move |part| Id { location, part })
        .take(slot_bytes / SLOT_BYTES)
}

impl CacheView {
    /// The view of `volume`.
    #[must_use]
    pub fn new(cache: Arc<HostCache>, volume: VolumeId) -> Self {
        let used = cache.begin_use(Sharer::Volume(volume));
        Self {
            cache,
            volume,
            _used: Arc::new(used),
            principal: Arc::default(),
            image: Arc::default(),
            purpose: Purpose::Asked,
            newest: None,
        }
    }

    /// The view of a volume that is written here: its map pages are protected until
    /// newer ones replace them, or until all such views are dropped.
    pub(crate) fn of_newest(self) -> Self {
        let newest = Newest {
            cache: Arc::clone(&self.cache),
            protector: Protector::another(),
        };
        Self {
            newest: Some(Arc::new(newest)),
            ..self
        }
    }

    /// Whether the cache has a file.
    pub(crate) fn has_file(&self) -> bool {
        self.cache.file().is_some()
    }

    /// Whether the cache's file has room for more protected map pages.
    pub(crate) fn has_room_for_maps(&self) -> bool {
        let file = self.cache.file();
        file.is_some_and(|file| !file.is_all_protected())
    }

    /// Marks a piece as used soon. Returns whether all of it is in the file.
    pub(crate) fn touch(&self, piece: &Piece) -> bool {
        let area = self.area(piece);
        let mut parts = parts(piece.entry, SLOT_BYTES);
        parts.all(|id| self.cache.touch(area, id))
    }

    /// Ends the protection of pages that are no longer of the newest version.
    pub(crate) fn release(&self, pages: &[Entry]) {
        let Some(newest) = &self.newest else { return };
        for entry in pages {
            let parts = parts(*entry, SLOT_BYTES);
            parts.for_each(|id| self.cache.release(newest.protector, id));
        }
    }

    /// The pool for reads that wait for the cache's file, if there is one.
    pub(super) fn pool(&self) -> Option<&Arc<dyn Pool>> {
        self.cache.file().map(|file| file.pool())
    }

    /// Sets the part of the volume that is a base image's.
    pub fn set_image(&self, part: ImagePart) {
        let mut image = self.image.lock();
        if image.0.of != part.of {
            let sharer = part.of.map(Sharer::Image);
            image.1 = sharer.map(|sharer| self.cache.begin_use(sharer));
        }
        image.0 = part;
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            areas: self.principal.counters.counts(),
            ahead: self.principal.ahead_counts(),
        }
    }

    /// A view for readahead: what it reads is kept apart until it is requested.
    pub(crate) fn ahead(&self) -> Self {
        Self {
            purpose: Purpose::Ahead,
            ..self.clone()
        }
    }

    /// A view for map pages of versions that are no longer the newest.
    pub(crate) fn of_older(&self) -> Self {
        Self {
            newest: None,
            ..self.filling()
        }
    }

    /// A view for filling the cache: its reads are not counted.
    #[must_use]
    pub fn filling(&self) -> Self {
        Self {
            purpose: Purpose::Filling,
            ..self.clone()
        }
    }

    /// The most to read ahead of one stream, in bytes; `None` if it cannot be kept.
    pub(crate) fn ahead_max_bytes(&self) -> Option<u64> {
        self.cache.ahead_max_bytes()
    }

    /// Blocks that were read ahead and evicted unread so far.
    pub(crate) fn ahead_unread(&self) -> u64 {
        self.principal.ahead_counts().unread
    }

    fn area(&self, piece: &Piece) -> Area {
        if !piece.address.is_data() {
            let is_of_map = piece.address != Address::TAIL;
            let newest = self.newest.as_ref().filter(|_| is_of_map);
            return Area::Metadata {
                newest_of: newest.map(|newest| newest.protector),
            };
        }
        let image = self.image.lock();
        let (image, _) = &*image;
        match piece.entry.sequence.epoch() < image.below {
            true => Area::Image {
                of: image.of,
                pinned: image.is_pinned,
            },
            false => Area::Active(self.volume),
        }
    }

    /// Whether the cache has any part of a piece. Does not wait.
    pub(crate) fn may_have(&self, piece: &Piece) -> bool {
        let mut first = parts(piece.entry, SLOT_BYTES);
        first.any(|id| self.cache.has(id))
    }

    /// Whether any part of a piece is in the file, which has to be waited for.
    pub(crate) fn is_in_file(&self, piece: &Piece) -> bool {
        let mut first = parts(piece.entry, SLOT_BYTES);
        first.any(|id| self.cache.is_in_file(id))
    }

    /// Opens a piece into the buffers if the cache has it without waiting for a device;
    /// its hits are added to `tally`.
    pub(crate) fn read_now(
        &self,
        keyring: &Keyring,
        piece: &Piece,
        buffers: Buffers<'_>,
        tally: &mut Tally,
    ) -> bool {
        let get = |area, id, bytes: &mut [u8]| self.cache.get_now(area, id, bytes);
        self.read_by(keyring, piece, buffers, tally, get)
    }

    /// Opens a piece if the cache has it, and counts the hits. May wait.
    pub(super) fn read(
        &self,
        keyring: &Keyring,
        slot_bytes: u32,
        piece: &Piece,
    ) -> Option<Vec<u8>> {
        let (mut sealed, mut plain) = (vec![0; slot_bytes as usize], vec![0; slot_bytes as usize]);
        let get = |area, id, bytes: &mut [u8]| self.cache.get(area, id, bytes);
        let buffers = Buffers {
            sealed: &mut sealed,
            plain: &mut plain,
        };
        let mut tally = Tally::default();
        let is_read = self.read_by(keyring, piece, buffers, &mut tally, get);
        self.count(&tally);
        is_read.then_some(plain)
    }

    fn read_by(
        &self,
        keyring: &Keyring,
        piece: &Piece,
        buffers: Buffers<'_>,
        tally: &mut Tally,
        get: impl Fn(Area, Id, &mut [u8]) -> Option<Hit>,
    ) -> bool {
        let Buffers { sealed, plain } = buffers;
        let area = self.area(piece);
        let ids = parts(piece.entry, sealed.len());
        let (mut tag, mut is_one, mut all_hits) = (None, true, *tally);
        for (id, bytes) in ids.zip(sealed.chunks_exact_mut(SLOT_BYTES)) {
            let Some(hit) = get(area, id, bytes) else {
                return false;
            };
            // Parts of different blocks are not a piece.
            is_one &= *tag.get_or_insert(hit.tag) == hit.tag;
            all_hits.add(area, hit);
        }
        let opens = |tag: Tag| open_into(keyring, piece, &tag, sealed, plain).is_ok();
        let is_open = is_one && tag.is_some_and(opens);
        match is_open {
            true => *tally = all_hits,
            false => parts(piece.entry, sealed.len()).for_each(|id| self.cache.forget(id)),
        }
        is_open
    }

    /// Counts the hits of a finished read.
    pub(crate) fn count(&self, tally: &Tally) {
        if self.purpose == Purpose::Asked {
            self.cache.count_hits(&self.principal, tally);
        }
    }

    /// Offers the cache a sealed piece that was read from units, and counts the miss.
    pub(crate) fn offer(&self, piece: &Piece, tag: &Tag, sealed: &[u8]) {
        if self.purpose != Purpose::Ahead {
            self.keep(piece, tag, sealed);
        }
        let ids = parts(piece.entry, sealed.len());
        match self.purpose {
            Purpose::Asked => {
                let (kind, count) = (self.area(piece).kind(), ids.count() as u64);
                self.cache.count_units(&self.principal, kind, count);
            }
            Purpose::Ahead => {
                for (id, bytes) in ids.zip(sealed.chunks_exact(SLOT_BYTES)) {
                    self.cache.store_ahead(&self.principal, id, *tag, bytes);
                }
            }
            Purpose::Filling => {}
        }
    }

    /// Offers the cache a sealed piece that will be read soon.
    pub(crate) fn keep(&self, piece: &Piece, tag: &Tag, sealed: &[u8]) {
        let area = self.area(piece);
        let ids = parts(piece.entry, sealed.len());
        for (id, bytes) in ids.zip(sealed.chunks_exact(SLOT_BYTES)) {
            self.cache.store(area, id, *tag, bytes);
        }
    }
}
