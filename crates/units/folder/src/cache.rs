//! The cache of open segments: a bounded number, evicted by CLOCK.
//!
//! It is sharded by serial, so that threads seldom contend for a mutex. In each shard a hit
//! sets one bit; the hand clears bits and closes the first segment whose bit is clear.
//!
//! Cost of a hit: an uncontended mutex, a hash and a reference count, about 40 ns. Memory: the
//! tables of the segments that are read often, about 34 KiB each.

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
    indexes: HashMap<SegmentId, usize>,
    entries: Vec<Entry>,
    hand: usize,
}

pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    /// Limits the number of open segments. It may shrink at any time.
    share: Share,
}

impl Cache {
    /// A cache of about as many open segments as `share` allows; at least one in each shard.
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
        let index = *shard.indexes.get(&id)?;
        let entry = &mut shard.entries[index];
        entry.was_used = true;
        Some(Arc::clone(&entry.segment))
    }

    /// Inserts `segment`, in place of an earlier one of that id.
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

    /// Removes a segment, so that its file is closed and its room reclaimed.
    pub(super) fn remove(&self, id: SegmentId) {
        let mut shard = self.shard(id);
        let Some(index) = shard.indexes.get(&id).copied() else {
            return;
        };
        let removed = shard.remove(index);
        drop(shard);
        drop(removed);
    }

    /// Removes all segments.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let closed = std::mem::take(&mut *shard.lock());
            drop(closed);
        }
    }
}

impl Shard {
    /// Adds `entry` and returns the evicted ones.
    fn insert(&mut self, entry: Entry, entries_max: usize) -> Vec<Entry> {
        let mut closed = Vec::new();
        while self.entries.len() > entries_max {
            let index = self.victim();
            closed.push(self.remove(index));
        }
        let index = match self.indexes.get(&entry.id) {
            Some(index) => *index,
            None if self.entries.len() < entries_max => {
                self.indexes.insert(entry.id, self.entries.len());
                self.entries.push(entry);
                return closed;
            }
            None => {
                let index = self.victim();
                self.indexes.remove(&self.entries[index].id);
                self.indexes.insert(entry.id, index);
                index
            }
        };
        closed.push(std::mem::replace(&mut self.entries[index], entry));
        closed
    }

    fn remove(&mut self, index: usize) -> Entry {
        let removed = self.entries.swap_remove(index);
        self.indexes.remove(&removed.id);
        if let Some(moved) = self.entries.get(index) {
            self.indexes.insert(moved.id, index);
        }
        removed
    }

    fn victim(&mut self) -> usize {
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
        cache.share().set_segments_max(segments_max);
        cache
    }

    #[test]
    fn a_cache_whose_share_shrinks_closes_the_surplus() {
        let disk = SimulatedDisk::new(1);
        let cache = cache(20 * SHARDS);
        let id = |serial: u64| SegmentId::from_bits(serial * SHARDS as u64).expect("48 bits");
        for serial in 0..20 {
            cache.insert(id(serial), segment(&disk, id(serial)));
        }
        cache.share().set_segments_max(3 * SHARDS);
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
    fn the_cache_stays_bounded_and_keeps_used_segments() {
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
    fn a_removed_segment_is_closed_and_the_others_stay() {
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
