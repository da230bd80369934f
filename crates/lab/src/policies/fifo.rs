//! [`Fifo`]: evicts the key that was inserted first, whether or not it was requested since.

use cache::policy::{Key, Lru, Policy};

/// A cache that evicts in the order of insertion.
#[derive(Debug)]
pub struct Fifo<K>(Lru<K>);

impl<K: Key> Fifo<K> {
    /// Creates an empty cache of `capacity` keys, at least 1.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Lru::new(capacity))
    }
}

impl<K: Key> Policy<K> for Fifo<K> {
    fn get(&mut self, key: K) -> bool {
        self.0.contains(key)
    }

    fn insert(&mut self, key: K, evicted: &mut Vec<K>) {
        self.0.insert(key, evicted);
    }

    fn remove(&mut self, key: K) -> bool {
        self.0.remove(key)
    }

    fn contains(&self, key: K) -> bool {
        self.0.contains(key)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn resize(&mut self, capacity: usize, evicted: &mut Vec<K>) {
        self.0.resize(capacity, evicted);
    }
}
