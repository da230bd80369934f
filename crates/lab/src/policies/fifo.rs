//! [`Fifo`]: the key that came first goes first, whether or not it is asked for.

use cache::policy::{Key, Lru, Policy};

/// See the module's head.
#[derive(Debug)]
pub struct Fifo<K>(Lru<K>);

impl<K: Key> Fifo<K> {
    /// Of so many keys; 1 at least.
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
