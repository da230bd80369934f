//! [`Policy`]: which keys are resident.
//!
//! Invariants, of each: as many keys are resident as its capacity at most; a key that was
//! brought and not let go of since is resident; what is let go of is told, once.

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

/// What names a content.
pub trait Key: Copy + Eq + Hash + fmt::Debug + Send + 'static {}

impl<T: Copy + Eq + Hash + fmt::Debug + Send + 'static> Key for T {}

/// By what keys are found. Who chooses keys that meet there makes a cache slow, and nothing
/// else: segments' numbers are not for tenants to choose.
pub type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// See the module's head.
pub trait Policy<K: Key>: Send {
    /// A key is asked for: whether it is resident.
    fn get(&mut self, key: K) -> bool;

    /// A key that is not resident was brought: it is resident now, and those are not that are
    /// appended to `evicted`. One that is resident stays so, and was not asked for.
    fn insert(&mut self, key: K, evicted: &mut Vec<K>);

    /// A key is gone; nothing is remembered of it. Whether it was resident.
    fn remove(&mut self, key: K) -> bool;

    /// Whether a key is resident; that is not asking for it.
    fn contains(&self, key: K) -> bool;

    /// How many keys are resident.
    fn len(&self) -> usize;

    /// Whether none is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys are resident at most, 1 or more.
    fn capacity(&self) -> usize;

    /// Another capacity, 1 at least: those go that are appended to `evicted`, as they would
    /// one by one.
    fn resize(&mut self, capacity: usize, evicted: &mut Vec<K>);
}
