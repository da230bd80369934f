//! [`S3Fifo`]: three queues that are never reordered (Yang et al., SOSP 2023).
//!
//! ```text
//!            ┌ small, a tenth ┐ used again        ┌──── main ────┐ not used since
//!  new ────▶ │                │ ────────────────▶ │              │ ────────▶ evicted
//!            └────────┬───────┘                   └──▲───────┬───┘
//!                     │ otherwise: evicted           │       │ used since
//!                     ▼                              └───────┘
//!                   ghost ── inserted again ──▶ main
//! ```

use super::links::{Arena, List};
use super::{Key, Map, Policy};

/// The most uses of a key that are counted.
const USES_MAX: u8 = 3;

/// The small queue has one key in this many.
const SMALL_ONE_IN: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
    Ghost,
}

#[derive(Debug, Clone, Copy)]
struct Node<K> {
    key: K,
    queue: Queue,
    /// Uses since it was inserted, or reinserted into the main queue.
    uses: u8,
}

/// The S3-FIFO policy.
#[derive(Debug)]
pub struct S3Fifo<K> {
    capacity: usize,
    keys: Map<K, u32>,
    nodes: Arena<Node<K>, 1>,
    small: List<0>,
    main: List<0>,
    ghost: List<0>,
}

impl<K: Key> S3Fifo<K> {
    /// A policy for `capacity` keys, at least 1.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            keys: Map::default(),
            nodes: Arena::new(),
            small: List::new(),
            main: List::new(),
            ghost: List::new(),
        }
    }

    fn small_max(&self) -> usize {
        (self.capacity / SMALL_ONE_IN).max(1)
    }

    fn put(&mut self, id: u32, queue: Queue) {
        let node = self.nodes.get_mut(id);
        (node.queue, node.uses) = (queue, 0);
        match queue {
            Queue::Small => self.small.push(&mut self.nodes, id),
            Queue::Main => self.main.push(&mut self.nodes, id),
            Queue::Ghost => self.ghost.push(&mut self.nodes, id),
        }
    }

    fn remove_one(&mut self, id: u32) {
        match self.nodes.get(id).queue {
            Queue::Small => self.small.remove(&mut self.nodes, id),
            Queue::Main => self.main.remove(&mut self.nodes, id),
            Queue::Ghost => self.ghost.remove(&mut self.nodes, id),
        }
    }

    fn forget(&mut self, id: u32) {
        let node = self.nodes.release(id);
        self.keys.remove(&node.key);
    }

    /// Evicts one key.
    fn evict(&mut self, evicted: &mut Vec<K>) {
        loop {
            let is_small = self.small.len() >= self.small_max() || self.main.is_empty();
            let popped = match is_small {
                true => self.small.pop(&mut self.nodes),
                false => self.main.pop(&mut self.nodes),
            };
            let Some(id) = popped else { return };
            let Node { key, uses, .. } = self.nodes.get(id);
            match (is_small, uses) {
                (true, 0) => {
                    evicted.push(key);
                    self.put(id, Queue::Ghost);
                    return self.bound_ghost();
                }
                (true, _) => self.put(id, Queue::Main),
                (false, 0) => {
                    evicted.push(key);
                    return self.forget(id);
                }
                (false, _) => {
                    self.put(id, Queue::Main);
                    self.nodes.get_mut(id).uses = uses - 1;
                }
            }
        }
    }

    fn bound_ghost(&mut self) {
        while self.ghost.len() > self.capacity - self.small_max().min(self.capacity - 1) {
            let Some(id) = self.ghost.pop(&mut self.nodes) else {
                return;
            };
            self.forget(id);
        }
    }
}

impl<K: Key> Policy<K> for S3Fifo<K> {
    fn get(&mut self, key: K) -> bool {
        let Some(&id) = self.keys.get(&key) else {
            return false;
        };
        let node = self.nodes.get_mut(id);
        node.uses = (node.uses + 1).min(USES_MAX);
        node.queue != Queue::Ghost
    }

    fn insert(&mut self, key: K, evicted: &mut Vec<K>) {
        if self.contains(key) {
            return;
        }
        // A ghost that is inserted again must not be evicted to make room for it.
        let ghost = self.keys.get(&key).copied();
        if let Some(id) = ghost {
            self.remove_one(id);
        }
        while self.len() >= self.capacity {
            self.evict(evicted);
        }
        match ghost {
            Some(id) => self.put(id, Queue::Main),
            None => {
                let id = self.nodes.add(Node {
                    key,
                    queue: Queue::Small,
                    uses: 0,
                });
                self.keys.insert(key, id);
                self.put(id, Queue::Small);
            }
        }
    }

    fn remove(&mut self, key: K) -> bool {
        let Some(&id) = self.keys.get(&key) else {
            return false;
        };
        let was_resident = self.nodes.get(id).queue != Queue::Ghost;
        self.remove_one(id);
        self.forget(id);
        was_resident
    }

    fn contains(&self, key: K) -> bool {
        let id = self.keys.get(&key);
        id.is_some_and(|id| self.nodes.get(*id).queue != Queue::Ghost)
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize, evicted: &mut Vec<K>) {
        self.capacity = capacity.max(1);
        while self.len() > self.capacity {
            self.evict(evicted);
        }
        self.bound_ghost();
    }
}
