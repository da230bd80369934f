//! The segments that are open: a bounded number, the least useful closed
//! first.
//!
//! Sharded by serial, so that threads seldom meet at a mutex, and each shard a
//! CLOCK: a hit sets one bit, and the hand closes the first segment whose bit
//! it finds clear, clearing bits as it goes.
//!
//! Cost of a hit: an uncontended mutex, a hash and a reference count, about
//! 40 ns. Memory: the tables of those that are read often, about 34 KiB each.

use std::collections::HashMap;
use std::sync::Arc;

use base::SegmentId;
use parking_lot::{Mutex, MutexGuard};

use super::files::Share;
use super::segment::Segment;

const SHARDS: usize = 8;

struct Entry {
    id: SegmentId,
    segment: Arc<Segment>,
    was_used: bool,
}

#[derive(Default)]
struct Shard {
    places: HashMap<SegmentId, usize>,
    entries: Vec<Entry>,
    hand: usize,
}

pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    /// How many may be open. It may become less at any time.
    share: Share,
}

impl Cache {
    /// A cache of about as many open segments as `share` says; at least one
    /// in each shard.
    pub(super) fn new(share: Share) -> Self {
        Self {
            shards: Default::default(),
            share,
        }
    }

    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    fn shard(&self, id: SegmentId) -> MutexGuard<'_, Shard> {
        self.shards[id.serial() as usize % SHARDS].lock()
    }

    pub(super) fn get(&self, id: SegmentId) -> Option<Arc<Segment>> {
        let mut shard = self.shard(id);
        let place = *shard.places.get(&id)?;
        let entry = &mut shard.entries[place];
        entry.was_used = true;
        Some(Arc::clone(&entry.segment))
    }

    /// Keeps `segment`, instead of what was kept under its number.
    pub(super) fn insert(&self, id: SegmentId, segment: Arc<Segment>) {
        let entry = Entry {
            id,
            segment,
            was_used: false,
        };
        let mut shard = self.shard(id);
        let closed = shard.insert(entry, self.share.segments_max().div_ceil(SHARDS));
        drop(shard);
        // Outside the lock: closing a file may take a while.
        drop(closed);
    }

    /// Forgets a segment, so that its file is closed and gives up its room.
    pub(super) fn remove(&self, id: SegmentId) {
        let mut shard = self.shard(id);
        let Some(place) = shard.places.get(&id).copied() else {
            return;
        };
        let removed = shard.remove(place);
        drop(shard);
        drop(removed);
    }

    /// Forgets all segments.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let closed = std::mem::take(&mut *shard.lock());
            drop(closed);
        }
    }
}

impl Shard {
    /// Adds `entry` and returns those that had to go for it.
    fn insert(&mut self, entry: Entry, entries_max: usize) -> Vec<Entry> {
        let mut closed = Vec::new();
        while self.entries.len() > entries_max {
            let place = self.least_useful();
            closed.push(self.remove(place));
        }
        let place = match self.places.get(&entry.id) {
            Some(place) => *place,
            None if self.entries.len() < entries_max => {
                self.places.insert(entry.id, self.entries.len());
                self.entries.push(entry);
                return closed;
            }
            None => {
                let place = self.least_useful();
                self.places.remove(&self.entries[place].id);
                self.places.insert(entry.id, place);
                place
            }
        };
        closed.push(std::mem::replace(&mut self.entries[place], entry));
        closed
    }

    fn remove(&mut self, place: usize) -> Entry {
        let removed = self.entries.swap_remove(place);
        self.places.remove(&removed.id);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.id, place);
        }
        removed
    }

    fn least_useful(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &mut self.entries[self.hand];
            if !std::mem::take(&mut entry.was_used) {
                return self.hand;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::ClusterId;
    use world::simulated::SimulatedDisk;
    use world::{Disk, OpenMode};

    use super::*;
    use crate::format::Header;

    fn segment(disk: &SimulatedDisk, id: SegmentId) -> Arc<Segment> {
        let path = format!("/{id}");
        let file = disk.open(Path::new(&path), OpenMode::CreateNew);
        let header = Header::new(id, ClusterId::from_u128(1), 4096, 8192).expect("a size");
        Arc::new(Segment::new(header, file.expect("new")))
    }

    fn cache(segments_max: usize) -> Cache {
        let cache = Cache::new(Share::new(None));
        cache.share().tell(segments_max);
        cache
    }

    #[test]
    fn a_cache_whose_share_becomes_less_closes_what_is_too_much() {
        let disk = SimulatedDisk::new(1);
        let cache = cache(20 * SHARDS);
        let id = |serial: u64| SegmentId::from_bits(serial * SHARDS as u64).expect("48 bits");
        for serial in 0..20 {
            cache.insert(id(serial), segment(&disk, id(serial)));
        }
        cache.share().tell(3 * SHARDS);
        cache.insert(id(20), segment(&disk, id(20)));
        let open = |range: std::ops::RangeInclusive<u64>| {
            range
                .filter(|serial| cache.get(id(*serial)).is_some())
                .count()
        };
        assert_eq!((open(0..=20), open(20..=20)), (3, 1));
        cache.clear();
        assert_eq!(open(0..=20), 0);
    }

    #[test]
    fn the_cache_stays_bounded_and_keeps_what_is_used() {
        let disk = SimulatedDisk::new(1);
        let cache = cache(4 * SHARDS);
        let id = |serial: u64| SegmentId::from_bits(serial * SHARDS as u64).expect("48 bits");
        cache.insert(id(0), segment(&disk, id(0)));
        for serial in 1..100 {
            assert!(cache.get(id(0)).is_some(), "used each time");
            cache.insert(id(serial), segment(&disk, id(serial)));
        }
        let open = (0..100).filter(|serial| cache.get(id(*serial)).is_some());
        assert_eq!(open.count(), 4);
    }

    #[test]
    fn what_was_removed_is_closed_and_the_others_stay() {
        let disk = SimulatedDisk::new(1);
        let cache = cache(100);
        let ids = [0, 8, 16, 24].map(|bits| SegmentId::from_bits(bits).expect("48 bits"));
        for id in ids {
            cache.insert(id, segment(&disk, id));
        }
        let kept = cache.get(ids[1]).expect("cached");
        cache.remove(ids[1]);
        assert_eq!(Arc::strong_count(&kept), 1);
        cache.remove(ids[1]);
        for id in [ids[0], ids[2], ids[3]] {
            assert_eq!(cache.get(id).expect("cached").header.segment, id);
        }
    }
}
