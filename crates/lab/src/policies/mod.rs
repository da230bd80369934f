//! Cache policies and their replay on traces (docs/explanation/caching.md).
//!
//! The policies that the host's cache uses come from `cache::policy`, so that the comparison covers
//! the code that runs; ARC, FIFO and the offline optimum exist only here. Must not know: files,
//! clocks.

mod arc;
mod belady;
#[cfg(test)]
#[path = "../../../cache/src/policy/conformance.rs"]
mod conformance;
mod fifo;
mod kind;
mod steps;
#[cfg(test)]
mod tests;

pub use arc::Arc;
pub use belady::belady;
pub use fifo::Fifo;
pub use kind::{PolicyKind, UnknownPolicy};
pub use steps::{BLOCK_BYTES, Step, Steps, TooManySteps, WriteRule};

use cache::policy::Policy;

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Blocks that were requested.
    pub requested: u64,
    /// Requested blocks that were resident.
    pub hits: u64,
}

impl Counts {
    /// Hits per request, from 0 to 1; 0 if there were no requests.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        match self.requested {
            0 => 0.0,
            requested => self.hits as f64 / requested as f64,
        }
    }
}

/// Replays steps against a policy, which keeps its content.
pub fn replay(policy: &mut dyn Policy<u64>, steps: &[Step]) -> Counts {
    let mut counts = Counts::default();
    let mut evicted = Vec::new();
    for step in steps {
        match *step {
            Step::Request(key) => {
                counts.requested += 1;
                match policy.get(key) {
                    true => counts.hits += 1,
                    false => policy.insert(key, &mut evicted),
                }
            }
            Step::Insert(key) => {
                if !policy.get(key) {
                    policy.insert(key, &mut evicted);
                }
            }
            Step::Forget(key) => drop(policy.remove(key)),
        }
        evicted.clear();
    }
    counts
}

/// A policy that can be compared with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contestant {
    /// A policy that could run.
    Policy(PolicyKind),
    /// The offline optimum ([`belady`]).
    Belady,
}

impl Contestant {
    /// Its name in tables and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy(kind) => kind.name(),
            Self::Belady => "belady",
        }
    }

    /// Replays steps against an initially empty cache of `capacity` blocks.
    #[must_use]
    pub fn counts(self, capacity: usize, steps: &[Step]) -> Counts {
        match self {
            Self::Policy(kind) => replay(&mut *kind.build(capacity), steps),
            Self::Belady => belady(capacity, steps),
        }
    }
}
