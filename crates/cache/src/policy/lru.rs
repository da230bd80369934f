//! [`Lru`]: evicts the least recently used key.

use super::links::{Arena, List};
use super::{Key, Map, Policy};

/// The LRU policy.
#[derive(Debug)]
pub struct Lru<K> {
    capacity: usize,
    keys: Map<K, u32>,
    nodes: Arena<K, 1>,
    used: List<0>,
}

impl<K: Key> Lru<K> {
    /// A policy for `capacity` keys, at least 1.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            keys: Map::default(),
            nodes: Arena::new(),
            used: List::new(),
        }
    }

    /// The key that is evicted next.
    #[must_use]
    pub fn oldest(&self) -> Option<K> {
        self.used.oldest().map(|id| self.nodes.get(id))
    }

    fn shrink_to(&mut self, len: usize, evicted: &mut Vec<K>) {
        while self.keys.len() > len {
            let Some(id) = self.used.pop(&mut self.nodes) else {
                return;
            };
            let key = self.nodes.release(id);
            self.keys.remove(&key);
            evicted.push(key);
        }
    }
}

impl<K: Key> Policy<K> for Lru<K> {
    fn get(&mut self, key: K) -> bool {
        let found = self.keys.get(&key).copied();
        if let Some(id) = found {
            self.used.renew(&mut self.nodes, id);
        }
        found.is_some()
    }

    fn insert(&mut self, key: K, evicted: &mut Vec<K>) {
        if self.keys.contains_key(&key) {
            return;
        }
        self.shrink_to(self.capacity - 1, evicted);
        let id = self.nodes.add(key);
        self.keys.insert(key, id);
        self.used.push(&mut self.nodes, id);
    }

    fn remove(&mut self, key: K) -> bool {
        let Some(id) = self.keys.remove(&key) else {
            return false;
        };
        self.used.remove(&mut self.nodes, id);
        self.nodes.release(id);
        true
    }

    fn contains(&self, key: K) -> bool {
        self.keys.contains_key(&key)
    }

    fn len(&self) -> usize {
        self.keys.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize, evicted: &mut Vec<K>) {
        self.capacity = capacity.max(1);
        self.shrink_to(self.capacity, evicted);
    }
}
