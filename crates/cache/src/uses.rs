//! [`Uses`]: reference counts of what is in use.

use std::collections::BTreeMap;

/// A count of uses for each key.
pub struct Uses<K>(BTreeMap<K, u32>);

impl<K: Copy + Ord> Uses<K> {
    pub fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a use.
    pub fn begin(&mut self, key: K) {
        *self.0.entry(key).or_default() += 1;
    }

    /// Removes a use.
    pub fn end(&mut self, key: K) {
        if let Some(count) = self.0.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&key);
            }
        }
    }

    /// Whether a key is in use.
    pub fn has(&self, key: K) -> bool {
        self.0.contains_key(&key)
    }

    /// All keys, each as often as it is used.
    pub fn iter(&self) -> impl Iterator<Item = K> + '_ {
        let times = |(key, count): (&K, &u32)| std::iter::repeat_n(*key, *count as usize);
        self.0.iter().flat_map(times)
    }
}
