//! [`TwoStage`]: HVSTO's policy for maps (§III-C). Keys of the newest versions are protected;
//! the least recently used one that is not goes, and a protected one only if all are.

use super::{Key, Lru, Policy};

/// See the module's head.
#[derive(Debug)]
pub struct TwoStage<K> {
    capacity: usize,
    /// Each resident key is in one of these.
    kept: Lru<K>,
    others: Lru<K>,
}

impl<K: Key> TwoStage<K> {
    /// Of so many keys, 1 at least, of which none is protected.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            capacity,
            kept: Lru::new(capacity),
            others: Lru::new(capacity),
        }
    }

    /// A resident key is protected from now on.
    pub fn protect(&mut self, key: K) {
        if self.others.remove(key) {
            self.kept.insert(key, &mut Vec::new());
        }
    }

    /// A key is protected no more; it counts as just used.
    pub fn release(&mut self, key: K) {
        if self.kept.remove(key) {
            self.others.insert(key, &mut Vec::new());
        }
    }

    /// How many resident keys are protected.
    #[must_use]
    pub fn protected_len(&self) -> usize {
        self.kept.len()
    }

    fn shrink_to(&mut self, len: usize, evicted: &mut Vec<K>) {
        while self.len() > len {
            let from = match self.others.is_empty() {
                false => &mut self.others,
                true => &mut self.kept,
            };
            let Some(key) = from.oldest() else { return };
            from.remove(key);
            evicted.push(key);
        }
    }
}

impl<K: Key> Policy<K> for TwoStage<K> {
    fn get(&mut self, key: K) -> bool {
        self.kept.get(key) || self.others.get(key)
    }

    fn insert(&mut self, key: K, evicted: &mut Vec<K>) {
        if self.contains(key) {
            return;
        }
        self.shrink_to(self.capacity - 1, evicted);
        self.others.insert(key, evicted);
    }

    fn remove(&mut self, key: K) -> bool {
        self.kept.remove(key) || self.others.remove(key)
    }

    fn contains(&self, key: K) -> bool {
        self.kept.contains(key) || self.others.contains(key)
    }

    fn len(&self) -> usize {
        self.kept.len() + self.others.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn resize(&mut self, capacity: usize, evicted: &mut Vec<K>) {
        self.capacity = capacity.max(1);
        self.shrink_to(self.capacity, evicted);
        for part in [&mut self.kept, &mut self.others] {
            part.resize(self.capacity, evicted);
        }
    }
}
