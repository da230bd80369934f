//! [`CacheView`]: a volume's way through the host's cache (docs/cache.md, "Its place in the
//! engine").

use std::sync::Arc;

use base::{Lineage, VolumeId};
use cache::host::{AreaCounts, Hit, HostCache, Principal, Tally, UseGuard};
use cache::memory::AheadCounts;
use cache::store::{Area, Id, Protector, SLOT_BYTES, Sharer};
use parking_lot::Mutex;
use unit::Tag;
use world::Pool;

use super::read::{Piece, open_into};
use crate::map::Entry;
use crate::seal::{Address, Keyring};

/// Which cache, and for whom. Clones are of the same volume.
#[derive(Clone)]
pub struct CacheView {
    cache: Arc<HostCache>,
    volume: VolumeId,
    principal: Arc<Principal>,
    /// What of it is a base image's, which is used as long as there is any such view.
    image: Arc<Mutex<(ImagePart, Option<UseGuard>)>>,
    /// As is what is kept for the volume.
    _used: Arc<UseGuard>,
    /// For whom it reads.
    purpose: Purpose,
    /// Its map pages are of the newest version, as long as there is any such view.
    newest: Option<Arc<Newest>>,
}

/// What of a volume is a base image's; nothing, at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImagePart {
    /// Which one's: whoever has written it.
    pub of: Option<Lineage>,
    /// Blocks written under epochs below this one.
    pub below: u32,
    /// And these stay.
    pub is_pinned: bool,
}

/// For whom something is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Somebody waits for it: that is counted.
    Asked,
    /// Nobody has asked for it yet: it is kept apart until somebody does.
    Ahead,
    /// It is to be in the cache.
    Filling,
}

/// A volume that is written here, as its map's protection has it.
struct Newest {
    cache: Arc<HostCache>,
    protector: Protector,
}

impl Drop for Newest {
    fn drop(&mut self) {
        self.cache.release_all(self.protector);
    }
}

/// What of a volume's reading went through the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// By [`cache::store::AreaKind`].
    pub areas: [AreaCounts; 3],
    /// What was read ahead.
    pub ahead: AheadCounts,
}

/// The parts of a piece that lies in a slot of so many bytes.
fn parts(entry: Entry, slot_bytes: usize) -> impl Iterator<Item = Id> {
    let location = entry.location;
    (0..)
        .map(move |part| Id { location, part })
        .take(slot_bytes / SLOT_BYTES)
}

impl CacheView {
    /// That of `volume`.
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

    /// The same of a volume that is written here: its map pages are protected, until others
    /// are newer or there is no such view any more.
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

    /// Whether what it brings is kept in a file.
    pub(crate) fn has_file(&self) -> bool {
        self.cache.file().is_some()
    }

    /// Whether there is room for more map pages that are protected.
    pub(crate) fn has_room_for_maps(&self) -> bool {
        let file = self.cache.file();
        file.is_some_and(|file| !file.is_all_protected())
    }

    /// A piece will be asked for. Whether all of it is in the file.
    pub(crate) fn touch(&self, piece: &Piece) -> bool {
        let area = self.area(piece);
        let mut parts = parts(piece.entry, SLOT_BYTES);
        parts.all(|id| self.cache.touch(area, id))
    }

    /// Pages are of the newest version no more.
    pub(crate) fn release(&self, pages: &[Entry]) {
        let Some(newest) = &self.newest else { return };
        for entry in pages {
            let parts = parts(*entry, SLOT_BYTES);
            parts.for_each(|id| self.cache.release(newest.protector, id));
        }
    }

    /// Where whoever waits for the cache's file does so, if there is one.
    pub(super) fn pool(&self) -> Option<&Arc<dyn Pool>> {
        self.cache.file().map(|file| file.pool())
    }

    /// From now on this part is content of a base image.
    pub fn set_image(&self, part: ImagePart) {
        let mut image = self.image.lock();
        if image.0.of != part.of {
            let sharer = part.of.map(Sharer::Image);
            image.1 = sharer.map(|sharer| self.cache.begin_use(sharer));
        }
        image.0 = part;
    }

    /// What went through it so far.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            areas: self.principal.counters.counts(),
            ahead: self.principal.ahead_counts(),
        }
    }

    /// The same for what nobody has asked for yet: it is kept apart until somebody does.
    pub(crate) fn ahead(&self) -> Self {
        Self {
            purpose: Purpose::Ahead,
            ..self.clone()
        }
    }

    /// The same for map pages of versions that are not the newest any more.
    pub(crate) fn of_older(&self) -> Self {
        Self {
            newest: None,
            ..self.filling()
        }
    }

    /// The same for what is to be in the cache, whether it is asked for or not.
    #[must_use]
    pub fn filling(&self) -> Self {
        Self {
            purpose: Purpose::Filling,
            ..self.clone()
        }
    }

    /// How much may be read ahead of one stream, in bytes; none, if it cannot be kept.
    pub(crate) fn ahead_max_bytes(&self) -> Option<u64> {
        self.cache.ahead_max_bytes()
    }

    /// How many blocks that were read ahead went unread so far.
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

    /// Whether the cache has something of a piece. Does not wait.
    pub(crate) fn may_have(&self, piece: &Piece) -> bool {
        let mut first = parts(piece.entry, SLOT_BYTES);
        first.any(|id| self.cache.has(id))
    }

    /// Whether something of a piece is in the file, which has to be waited for.
    pub(crate) fn is_in_file(&self, piece: &Piece) -> bool {
        let mut first = parts(piece.entry, SLOT_BYTES);
        first.any(|id| self.cache.is_in_file(id))
    }

    /// What a piece says, into `plain`, through `sealed`, both as long as its slot: if the
    /// cache has it at hand; `tally` is told. Does not wait for a device.
    pub(crate) fn read_now(
        &self,
        keyring: &Keyring,
        piece: &Piece,
        (sealed, plain): (&mut [u8], &mut [u8]),
        tally: &mut Tally,
    ) -> bool {
        let get = |area, id, bytes: &mut [u8]| self.cache.get_now(area, id, bytes);
        self.read_by(keyring, piece, (sealed, plain), tally, get)
    }

    /// What a piece says, if the cache has it, which is counted. WaitingRead.
    pub(super) fn read(
        &self,
        keyring: &Keyring,
        slot_bytes: u32,
        piece: &Piece,
    ) -> Option<Vec<u8>> {
        let (mut sealed, mut plain) = (vec![0; slot_bytes as usize], vec![0; slot_bytes as usize]);
        let get = |area, id, bytes: &mut [u8]| self.cache.get(area, id, bytes);
        let mut tally = Tally::default();
        let is_read = self.read_by(keyring, piece, (&mut sealed, &mut plain), &mut tally, get);
        self.count(&tally);
        is_read.then_some(plain)
    }

    fn read_by(
        &self,
        keyring: &Keyring,
        piece: &Piece,
        (sealed, plain): (&mut [u8], &mut [u8]),
        tally: &mut Tally,
        get: impl Fn(Area, Id, &mut [u8]) -> Option<Hit>,
    ) -> bool {
        let area = self.area(piece);
        let ids = parts(piece.entry, sealed.len());
        let (mut tag, mut is_one, mut all_hits) = (None, true, *tally);
        for (id, bytes) in ids.zip(sealed.chunks_exact_mut(SLOT_BYTES)) {
            let Some(hit) = get(area, id, bytes) else {
                return false;
            };
            // Parts of different blocks are none.
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

    /// A reading got all of this from the cache.
    pub(crate) fn count(&self, tally: &Tally) {
        if self.purpose == Purpose::Asked {
            self.cache.count_hits(&self.principal, tally);
        }
    }

    /// A piece was read from units, as it is there: it was not in the cache, or nobody asked
    /// for it yet.
    pub(crate) fn bring(&self, piece: &Piece, tag: &Tag, sealed: &[u8]) {
        if self.purpose != Purpose::Ahead {
            self.keep(piece, tag, sealed);
        }
        let ids = parts(piece.entry, sealed.len());
        match self.purpose {
            Purpose::Asked => {
                let (kind, count) = (self.area(piece).kind(), ids.count() as u64);
                self.cache.count_misses(&self.principal, kind, count);
            }
            Purpose::Ahead => {
                for (id, bytes) in ids.zip(sealed.chunks_exact(SLOT_BYTES)) {
                    self.cache.keep_ahead(&self.principal, id, *tag, bytes);
                }
            }
            Purpose::Filling => {}
        }
    }

    /// A piece was written to units, and will be read soon.
    pub(crate) fn keep(&self, piece: &Piece, tag: &Tag, sealed: &[u8]) {
        let area = self.area(piece);
        let ids = parts(piece.entry, sealed.len());
        for (id, bytes) in ids.zip(sealed.chunks_exact(SLOT_BYTES)) {
            self.cache.keep(area, id, *tag, bytes);
        }
    }
}

/// Where a block lies, as a piece.
pub(crate) fn data_piece(block: base::BlockIndex, entry: Entry) -> Piece {
    Piece {
        entry,
        address: Address::data(block),
    }
}
