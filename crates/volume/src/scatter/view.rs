//! [`CacheView`]: a volume's way through the host's cache (docs/cache.md, "Its place in the
//! engine").

use std::sync::Arc;

use base::VolumeId;
use cache::store::{Area, Cache, Id, SLOT_BYTES};
use unit::Tag;

use super::read::{Piece, open};
use crate::map::Entry;
use crate::seal::{Address, Keyring};

/// Which cache, and for whom.
#[derive(Clone)]
pub struct CacheView {
    cache: Arc<Cache>,
    volume: VolumeId,
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
    pub fn new(cache: Arc<Cache>, volume: VolumeId) -> Self {
        Self { cache, volume }
    }

    fn area(&self, address: Address) -> Area {
        match address.is_data() {
            true => Area::Active(self.volume),
            false => Area::Metadata,
        }
    }

    /// Whether the cache has something of a piece. Does not wait.
    pub(super) fn may_have(&self, piece: &Piece) -> bool {
        let mut first = parts(piece.entry, SLOT_BYTES);
        first.any(|id| self.cache.has(id))
    }

    /// What a piece says, if the cache has it. Waits.
    pub(super) fn read(
        &self,
        keyring: &Keyring,
        slot_bytes: u32,
        piece: &Piece,
    ) -> Option<Vec<u8>> {
        let mut sealed = vec![0; slot_bytes as usize];
        let area = self.area(piece.address);
        let mut tags: Vec<Tag> = Vec::new();
        let ids = parts(piece.entry, sealed.len());
        for (id, bytes) in ids.zip(sealed.chunks_exact_mut(SLOT_BYTES)) {
            tags.push(self.cache.get(area, id, bytes)?);
        }
        let tag = tags.first()?;
        let is_one = tags.iter().all(|other| other == tag);
        let opened = is_one.then(|| open(keyring, piece, tag, &sealed).ok());
        opened.flatten()
    }

    /// A piece was read, or written, as it is on units.
    pub(crate) fn offer(&self, piece: &Piece, tag: &Tag, sealed: &[u8]) {
        let area = self.area(piece.address);
        let ids = parts(piece.entry, sealed.len());
        for (id, bytes) in ids.zip(sealed.chunks_exact(SLOT_BYTES)) {
            self.cache.offer(area, id, *tag, bytes);
        }
    }
}
