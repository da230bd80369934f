//! [`PolicyKind`]: the policies by name.

use std::fmt;
use std::str::FromStr;

use cache::policy::{Key, Lirs, Lru, Policy, S3Fifo};

use super::{Arc, Fifo};

/// A policy that could run, by name.
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

    /// Its name.
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

    /// Creates an empty cache of `capacity` keys, at least 1.
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

/// The name is not that of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {0:?}; the policies are fifo, lru, lirs, s3-fifo and arc")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let mut all = Self::ALL.into_iter();
        // The authors of S3-FIFO write it with and without a hyphen.
        all.find(|kind| kind.name() == name || kind.name().replace('-', "") == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
