//! [`Memory`]: sealed blocks in memory, for the whole host, including blocks that were read
//! ahead (docs/internals/cache.md).
//!
//! ```text
//!                          ┌ readahead: FIFO, half of the       ┐   read
//!  read ahead ──────────▶  │ capacity at most                   │ ──────────────┐
//!                          └─────────────┬──────────────────────┘               ▼
//!                                        └─▶ evicted unread         offered as if just read
//!
//!  read, or a map page   ┌ the rest: S3-FIFO ┐
//!  that was written ───▶ │                   │ ──▶ evicted
//!                        └───────────────────┘
//! ```
//!
//! Invariants: there are never more blocks than the capacity; unread readahead occupies at most
//! half of it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::{Policy, S3Fifo};
use crate::store::{Id, SLOT_BYTES};
use parking_lot::{Mutex, MutexGuard};

type Map<V> = HashMap<Id, V, foldhash::fast::FixedState>;

/// Counters of one reader's readahead.
#[derive(Debug, Default)]
pub struct ReadaheadCounters {
    read_ahead: AtomicU64,
    used: AtomicU64,
    unread: AtomicU64,
}

/// Counts of one reader's readahead, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadaheadCounts {
    /// Blocks that were read ahead.
    pub read_ahead: u64,
    /// Blocks among them that were read afterwards.
    pub used: u64,
    /// Blocks among them that were evicted unread.
    pub unread: u64,
}

impl ReadaheadCounters {
    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> ReadaheadCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ReadaheadCounts {
            read_ahead: of(&self.read_ahead),
            used: of(&self.used),
            unread: of(&self.unread),
        }
    }
}

/// A sealed block of [`SLOT_BYTES`].
#[derive(Debug)]
struct Block {
    tag: [u8; 16],
    sealed: Box<[u8]>,
}

/// A block that was read ahead.
struct ReadaheadBlock {
    block: Arc<Block>,
    /// Its number in the order. A block that is read ahead again gets a new one.
    number: u64,
    reader: Arc<ReadaheadCounters>,
}

struct State {
    policy: S3Fifo<Id>,
    blocks: Map<Arc<Block>>,
    ahead: Map<ReadaheadBlock>,
    /// Blocks that were read ahead, oldest first; some have been read since.
    order: VecDeque<(Id, u64)>,
    next: u64,
    evicted: Vec<Id>,
}

/// A block that was found in memory.
pub struct MemoryHit {
    /// The block's tag.
    pub tag: [u8; 16],
    /// Whether it was read ahead. Then it was removed, and the caller offers it again to store it.
    pub was_ahead: bool,
}

/// A cache of sealed blocks in memory.
pub struct Memory {
    /// The capacity in blocks.
    capacity: usize,
    state: Mutex<State>,
}

impl Memory {
    /// The smallest size, in bytes.
    pub const BYTES_MIN: u64 = 64 << 10;

    /// A cache of `bytes`, at least [`Memory::BYTES_MIN`].
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let blocks = bytes.max(Self::BYTES_MIN) / SLOT_BYTES as u64;
        let capacity = usize::try_from(blocks).unwrap_or(usize::MAX);
        Self {
            capacity,
            state: Mutex::new(State {
                policy: S3Fifo::new(capacity),
                blocks: Map::default(),
                ahead: Map::default(),
                order: VecDeque::new(),
                next: 0,
                evicted: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The maximal readahead of one reader, in bytes. It leaves space for other readers.
    #[must_use]
    pub fn ahead_max_bytes(&self) -> u64 {
        (self.capacity / 16 * SLOT_BYTES) as u64
    }

    /// Whether the cache has a block. This is no use of it.
    #[must_use]
    pub fn has(&self, id: Id) -> bool {
        let state = self.lock();
        state.blocks.contains_key(&id) || state.ahead.contains_key(&id)
    }

    /// Copies a block's content into `sealed`.
    pub fn get(&self, id: Id, sealed: &mut [u8]) -> Option<MemoryHit> {
        let (block, was_ahead) = {
            let mut state = self.lock();
            match state.ahead.remove(&id) {
                Some(ReadaheadBlock { block, reader, .. }) => {
                    reader.used.fetch_add(1, Ordering::Relaxed);
                    let room = self.capacity - state.ahead.len();
                    state.shrink(room);
                    (block, true)
                }
                None => {
                    state.policy.get(id);
                    (Arc::clone(state.blocks.get(&id)?), false)
                }
            }
        };
        sealed.copy_from_slice(&block.sealed);
        Some(MemoryHit {
            tag: block.tag,
            was_ahead,
        })
    }

    /// Removes a block that does not open.
    pub fn forget(&self, id: Id) {
        let mut state = self.lock();
        state.ahead.remove(&id);
        state.blocks.remove(&id);
        state.policy.remove(id);
    }

    /// Offers a block. It is stored if the policy accepts it.
    pub fn offer(&self, id: Id, tag: [u8; 16], sealed: &[u8]) {
        let mut state = self.lock();
        if state.blocks.contains_key(&id) || state.ahead.contains_key(&id) {
            return;
        }
        state.blocks.insert(id, block(tag, sealed));
        let State {
            policy, evicted, ..
        } = &mut *state;
        policy.insert(id, evicted);
        state.drop_evicted();
    }

    /// Stores a block that was read ahead for `reader`.
    pub fn offer_ahead(
        &self,
        id: Id,
        tag: [u8; 16],
        sealed: &[u8],
        reader: &Arc<ReadaheadCounters>,
    ) {
        let mut state = self.lock();
        if state.blocks.contains_key(&id) || state.ahead.contains_key(&id) {
            return;
        }
        reader.read_ahead.fetch_add(1, Ordering::Relaxed);
        while state.ahead.len() >= (self.capacity / 2).max(1) {
            state.evict_oldest_readahead();
        }
        let number = state.next;
        state.next += 1;
        let ahead = ReadaheadBlock {
            block: block(tag, sealed),
            number,
            reader: Arc::clone(reader),
        };
        state.ahead.insert(id, ahead);
        state.order.push_back((id, number));
        // Blocks that were read leave stale entries in the order.
        if state.order.len() > 2 * state.ahead.len() + 64 {
            let State { order, ahead, .. } = &mut *state;
            let is_current = |(id, number): &(Id, u64)| {
                let block = ahead.get(id);
                block.is_some_and(|ahead| ahead.number == *number)
            };
            order.retain(is_current);
        }
        let room = self.capacity - state.ahead.len();
        state.shrink(room);
    }

    /// The number of blocks, and the capacity.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        let state = self.lock();
        (state.blocks.len() + state.ahead.len(), self.capacity)
    }
}

fn block(tag: [u8; 16], sealed: &[u8]) -> Arc<Block> {
    Arc::new(Block {
        tag,
        sealed: sealed.into(),
    })
}

impl State {
    /// Evicts blocks that were not read ahead until at most `room` of them are left.
    fn shrink(&mut self, room: usize) {
        self.policy.resize(room, &mut self.evicted);
        self.drop_evicted();
    }

    fn drop_evicted(&mut self) {
        for id in self.evicted.drain(..) {
            self.blocks.remove(&id);
        }
    }

    fn evict_oldest_readahead(&mut self) {
        while let Some((id, number)) = self.order.pop_front() {
            let is_current = |ahead: &ReadaheadBlock| ahead.number == number;
            if self.ahead.get(&id).is_some_and(is_current) {
                let evicted = self.ahead.remove(&id);
                if let Some(evicted) = evicted {
                    evicted.reader.unread.fetch_add(1, Ordering::Relaxed);
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::id;

    fn content(number: u64) -> Vec<u8> {
        number.to_le_bytes().repeat(SLOT_BYTES / 8)
    }

    fn offer(memory: &Memory, number: u64) {
        memory.offer(id(number), [number as u8; 16], &content(number));
    }

    fn get(memory: &Memory, number: u64) -> Option<bool> {
        let mut sealed = vec![0; SLOT_BYTES];
        let found = memory.get(id(number), &mut sealed)?;
        assert_eq!((found.tag, &sealed), ([number as u8; 16], &content(number)));
        Some(found.was_ahead)
    }

    #[test]
    fn blocks_that_are_read_once_do_not_evict_blocks_that_are_read_again() {
        let memory = Memory::new(100 * SLOT_BYTES as u64);
        for number in 0..50 {
            offer(&memory, number);
            assert_eq!(get(&memory, number), Some(false));
        }
        for number in 1000..5000 {
            offer(&memory, number);
        }
        assert_eq!(memory.sizes(), (100, 100));
        let left = (0..50).filter(|number| memory.has(id(*number)));
        assert_eq!(left.count(), 50);
    }

    #[test]
    fn readahead_is_returned_once_and_uses_at_most_half_of_the_capacity() {
        let memory = Memory::new(100 * SLOT_BYTES as u64);
        let reader = Arc::new(ReadaheadCounters::default());
        let ahead = |number: u64| {
            memory.offer_ahead(id(number), [number as u8; 16], &content(number), &reader);
        };
        for number in 0..100 {
            offer(&memory, number);
        }
        for number in 1000..1070 {
            ahead(number);
        }
        assert_eq!(memory.sizes(), (100, 100));
        let kept = (0..100).filter(|number| memory.has(id(*number)));
        assert_eq!(kept.count(), 50);
        assert_eq!(
            get(&memory, 1000),
            None,
            "the first ones were evicted unread"
        );
        assert_eq!(get(&memory, 1069), Some(true));
        assert_eq!(get(&memory, 1069), None);
        ahead(1069);
        assert_eq!(
            get(&memory, 1069),
            Some(true),
            "a block that was read ahead again"
        );
        for number in 1020..1069 {
            assert_eq!(get(&memory, number), Some(true));
        }
        let counts = reader.counts();
        assert_eq!(
            (counts.read_ahead, counts.used, counts.unread),
            (71, 51, 20)
        );
        // Other blocks use its space.
        for number in 200..400 {
            offer(&memory, number);
        }
        assert_eq!(memory.sizes(), (100, 100));
    }
}
