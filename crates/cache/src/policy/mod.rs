//! [`Policy`]: decides which keys are resident in a cache.
//!
//! Invariants of every policy: at most as many keys are resident as its capacity; a key that was
//! inserted and not evicted since is resident; every eviction is reported once.

mod arc;
mod fifo;
mod links;
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
use std::str::FromStr;

pub use arc::Arc;
pub use fifo::Fifo;
pub use lirs::Lirs;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;
pub use two_stage::TwoStage;

/// The name of a content.
pub trait Key: Copy + Eq + Hash + fmt::Debug + Send + 'static {}

impl<T: Copy + Eq + Hash + fmt::Debug + Send + 'static> Key for T {}

/// A map of keys. Colliding keys would slow a cache down; tenants cannot choose keys, since the
/// numbers of segments are not theirs to choose.
type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

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

/// The policies that there are, but for the one that knows the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// [`Fifo`].
    Fifo,
    /// [`Lru`].
    Lru,
    /// [`Lirs`].
    Lirs,
    /// [`S3Fifo`].
    S3Fifo,
    /// [`Arc`].
    Arc,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Fifo, Self::Lru, Self::Lirs, Self::S3Fifo, Self::Arc];

    /// As it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Lru => "lru",
            Self::Lirs => "lirs",
            Self::S3Fifo => "s3-fifo",
            Self::Arc => "arc",
        }
    }

    /// An empty one, of so many keys; 1 at least.
    #[must_use]
    pub fn build<K: Key>(self, capacity: usize) -> Box<dyn Policy<K>> {
        match self {
            Self::Fifo => Box::new(Fifo::new(capacity)),
            Self::Lru => Box::new(Lru::new(capacity)),
            Self::Lirs => Box::new(Lirs::new(capacity)),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity)),
            Self::Arc => Box::new(Arc::new(capacity)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// There is no policy of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {0:?}; there are fifo, lru, lirs, s3-fifo and arc")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let mut all = Self::ALL.into_iter();
        // As its authors write it, too.
        all.find(|kind| kind.name() == name || kind.name().replace('-', "") == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
