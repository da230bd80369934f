//! Requests under way, counted by the right under which they run.

use std::collections::HashMap;
use std::hash::Hash;

/// Number of requests under way by key.
#[derive(Debug)]
pub(crate) struct Running<K>(HashMap<K, usize>);

impl<K> Default for Running<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> Running<K> {
    /// Counts a request that begins.
    pub fn begin(&mut self, by: K) {
        *self.0.entry(by).or_default() += 1;
    }

    /// Counts a request that ends. Returns whether it was the last under `by`.
    pub fn end(&mut self, by: &K) -> bool {
        let Some(count) = self.0.get_mut(by) else {
            return false;
        };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.0.remove(by);
        }
        is_last
    }

    /// Whether any request runs under a key that is selected.
    pub fn any(&self, is_selected: impl Fn(&K) -> bool) -> bool {
        self.0.keys().any(is_selected)
    }
}
