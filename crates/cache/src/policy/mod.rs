//! [`Policy`]: decides which keys are resident in a cache.
//!
//! Invariants of every policy: at most as many keys are resident as its capacity; a key that was
//! inserted and not evicted since is resident; every eviction is reported once.

#[cfg(test)]
mod conformance;
pub mod links;
mod lirs;
#[cfg(test)]
mod lirs_reference;
mod lru;
mod s3_fifo;
#[cfg(test)]
mod tests;
mod two_stage;

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

pub use lirs::Lirs;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;
pub use two_stage::TwoStage;

/// The name of a content.
pub trait Key: Copy + Eq + Hash + fmt::Debug + Send + 'static {}

impl<T: Copy + Eq + Hash + fmt::Debug + Send + 'static> Key for T {}

/// A map of keys. Colliding keys would slow a cache down; tenants cannot choose keys, since the
/// numbers of segments are not theirs to choose.
pub type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// A replacement policy.
pub trait Policy<K: Key>: Send {
    /// Records a use of a key. Returns whether it is resident.
    fn get(&mut self, key: K) -> bool;

    /// Makes a key resident; evicted keys are appended to `evicted`. For a resident key this
    /// does nothing, and is not a use.
    fn insert(&mut self, key: K, evicted: &mut Vec<K>);

    /// Removes a key and all memory of it. Returns whether it was resident.
    fn remove(&mut self, key: K) -> bool;

    /// Whether a key is resident. Not a use.
    fn contains(&self, key: K) -> bool;

    /// The number of resident keys.
    fn len(&self) -> usize;

    /// Whether no key is resident.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most resident keys, at least 1.
    fn capacity(&self) -> usize;

    /// Changes the capacity, at least 1; evicted keys are appended to `evicted`, in the usual
    /// order.
    fn resize(&mut self, capacity: usize, evicted: &mut Vec<K>);
}
