//! [`TwoStage`]: HVSTO's policy for maps (§III-C). Keys of the newest versions are protected;
//! it evicts the least recently used unprotected key, and a protected one only if all are.

use super::{Key, Lru, Policy};

/// The two-stage policy.
#[derive(Debug)]
pub struct TwoStage<K> {
    capacity: usize,
    /// Each resident key is in one of these.
    protected: Lru<K>,
    others: Lru<K>,
}

impl<K: Key> TwoStage<K> {
    /// A policy for `capacity` keys, at least 1; none is protected.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            capacity,
            protected: Lru::new(capacity),
            others: Lru::new(capacity),
        }
    }

    /// Protects a resident key.
    pub fn protect(&mut self, key: K) {
        if self.others.remove(key) {
            self.protected.insert(key, &mut Vec::new());
        }
    }

    /// Ends a key's protection; it counts as just used.
    pub fn release(&mut self, key: K) {
        if self.protected.remove(key) {
            self.others.insert(key, &mut Vec::new());
        }
    }

    /// The number of protected keys.
    #[must_use]
    pub fn protected_len(&self) -> usize {
        self.protected.len()
    }

    fn shrink_to(&mut self, len: usize, evicted: &mut Vec<K>) {
        while self.len() > len {
            let from = match self.others.is_empty() {
                false => &mut self.others,
                true => &mut self.protected,
            };
            let Some(key) = from.oldest() else { return };
            from.remove(key);
            evicted.push(key);
        }
    }
}

impl<K: Key> Policy<K> for TwoStage<K> {
    fn get(&mut self, key: K) -> bool {
        self.protected.get(key) || self.others.get(key)
    }

    fn insert(&mut self, key: K, evicted: &mut Vec<K>) {
        if self.contains(key) {
            return;
        }
        self.shrink_to(self.capacity - 1, evicted);
        self.others.insert(key, evicted);
    }

    fn remove(&mut self, key: K) -> bool {
        self.protected.remove(key) || self.others.remove(key)
    }

    fn contains(&self, key: K) -> bool {
        self.protected.contains(key) || self.others.contains(key)
    }

    fn len(&self) -> usize {
        self.protected.len() + self.others.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize, evicted: &mut Vec<K>) {
        self.capacity = capacity.max(1);
        self.shrink_to(self.capacity, evicted);
        for part in [&mut self.protected, &mut self.others] {
            part.resize(self.capacity, evicted);
        }
    }
}
