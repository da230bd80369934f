//! The cache of segments' heads, so that a read costs one request.
//!
//! An entry may be stale: a read requests the cached object by its entity tag, and loads the head
//! again if that has changed.
//!
//! Invariant: `bytes` is the sum of the entries' sizes, and at most `bytes_max` or one entry.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base::SegmentId;
use parking_lot::Mutex;

use crate::bitmap::Bitmap;
use crate::format::Head;

/// A segment as it was loaded last.
pub(crate) struct CachedSegment {
    pub(crate) head: Head,
    /// Slots that were freed, whether or not the object still has them.
    pub(crate) freed: Bitmap,
    /// The object's entity tag.
    pub(crate) e_tag: Option<String>,
}

impl CachedSegment {
    pub(crate) fn is_live(&self, slot: u32) -> bool {
        self.head.present.contains(slot) && !self.freed.contains(slot)
    }

    /// Approximate size in memory, in bytes.
    fn bytes(&self) -> usize {
        let e_tag = self.e_tag.as_ref().map_or(0, String::len);
        256 + e_tag + 2 * Bitmap::bytes_of(self.head.slots())
    }
}

#[derive(Default)]
struct State {
    entries: HashMap<SegmentId, (u64, Arc<CachedSegment>)>,
    /// Entries in the order of their last use.
    by_use: BTreeMap<u64, SegmentId>,
    uses: u64,
    bytes: usize,
}

impl State {
    fn remove(&mut self, segment: SegmentId) {
        if let Some((used, known)) = self.entries.remove(&segment) {
            self.by_use.remove(&used);
            self.bytes -= known.bytes();
        }
    }

    fn insert(&mut self, segment: SegmentId, known: Arc<CachedSegment>) {
        self.uses += 1;
        self.bytes += known.bytes();
        self.by_use.insert(self.uses, segment);
        self.entries.insert(segment, (self.uses, known));
    }
}

/// The heads of the segments that were used last.
pub(crate) struct Heads {
    state: Mutex<State>,
    bytes_max: usize,
}

impl Heads {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            bytes_max,
        }
    }

    pub(crate) fn get(&self, segment: SegmentId) -> Option<Arc<CachedSegment>> {
        let state = &mut *self.state.lock();
        let (used, known) = state.entries.get_mut(&segment)?;
        state.uses += 1;
        state.by_use.remove(used);
        *used = state.uses;
        state.by_use.insert(state.uses, segment);
        Some(Arc::clone(known))
    }

    /// Inserts or replaces an entry. An object without a tag is not cached, because a later read
    /// could not check whether it has changed.
    pub(crate) fn insert(&self, segment: SegmentId, known: &Arc<CachedSegment>) {
        let mut state = self.state.lock();
        state.remove(segment);
        if known.e_tag.is_some() {
            state.insert(segment, Arc::clone(known));
        }
        while state.bytes > self.bytes_max && state.entries.len() > 1 {
            let Some((_, oldest)) = state.by_use.pop_first() else {
                return;
            };
            state.remove(oldest);
        }
    }

    pub(crate) fn remove(&self, segment: SegmentId) {
        self.state.lock().remove(segment);
    }

    pub(crate) fn clear(&self) {
        *self.state.lock() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use base::{ClusterId, LineageTag};

    use super::*;

    fn known(number: u64, e_tag: Option<&str>) -> (SegmentId, Arc<CachedSegment>) {
        let segment = SegmentId::from_bits(number).expect("48 bits");
        let cluster = ClusterId::from_u128(1);
        let head = Head::whole(segment, cluster, LineageTag::NONE, 4096, 2048).expect("a size");
        let known = CachedSegment {
            freed: Bitmap::none(2048),
            e_tag: e_tag.map(str::to_owned),
            head,
        };
        (segment, Arc::new(known))
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted() {
        let one = known(1, Some("1234")).1.bytes();
        let heads = Heads::new(one * 3);
        for number in 1..=3 {
            let (segment, known) = known(number, Some("1234"));
            heads.insert(segment, &known);
            heads.insert(segment, &known);
        }
        let at = |number| SegmentId::from_bits(number).expect("48 bits");
        assert!(heads.get(at(1)).is_some());
        let (segment, fourth) = known(4, Some("1234"));
        heads.insert(segment, &fourth);
        let kept: Vec<u64> = (1..=4).filter(|n| heads.get(at(*n)).is_some()).collect();
        assert_eq!(kept, [1, 3, 4]);
        assert_eq!(heads.state.lock().bytes, one * 3);
        heads.remove(at(1));
        assert_eq!(heads.state.lock().bytes, one * 2);
        assert_eq!(heads.state.lock().by_use.len(), 2);
    }

    #[test]
    fn an_object_without_a_tag_is_not_cached() {
        let heads = Heads::new(1 << 20);
        let (segment, tagged) = known(1, Some("1234"));
        heads.insert(segment, &tagged);
        heads.insert(segment, &known(1, None).1);
        assert!(heads.get(segment).is_none());
    }
}
