//! What is being done, counted by whatever it is done under.

use std::collections::HashMap;
use std::hash::Hash;

/// How many of each have begun and not ended.
#[derive(Debug)]
pub(crate) struct Running<K>(HashMap<K, usize>);

impl<K> Default for Running<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> Running<K> {
    /// One more begins.
    pub fn begin(&mut self, by: K) {
        *self.0.entry(by).or_default() += 1;
    }

    /// One has ended. Returns whether it was the last by that: whoever waits may go on.
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

    /// Whether any goes on that is meant.
    pub fn any(&self, is_meant: impl Fn(&K) -> bool) -> bool {
        self.0.keys().any(is_meant)
    }
}
