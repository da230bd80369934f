//! The laboratory: what was asked of a disk, replayed against policies (docs/cache.md, "The
//! laboratory").

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
pub use steps::{BLOCK_BYTES, ManySteps, Step, Steps, WriteRule};

use cache::policy::Policy;

/// What came of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Blocks that were asked for.
    pub asked: u64,
    /// Those that were resident.
    pub hits: u64,
}

impl Counts {
    /// Of those that were asked for; 0, if there were none.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        match self.asked {
            0 => 0.0,
            asked => self.hits as f64 / asked as f64,
        }
    }
}

/// What a policy makes of it.
pub fn replay(policy: &mut dyn Policy<u64>, steps: &[Step]) -> Counts {
    let mut counts = Counts::default();
    let mut evicted = Vec::new();
    for step in steps {
        match *step {
            Step::Ask(key) => {
                counts.asked += 1;
                match policy.get(key) {
                    true => counts.hits += 1,
                    false => policy.insert(key, &mut evicted),
                }
            }
            Step::Bring(key) => {
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

/// Who decides which keys are resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contestant {
    /// A policy.
    Policy(PolicyKind),
    /// Somebody who knows the future ([`belady`]).
    Belady,
}

impl Contestant {
    /// As it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy(kind) => kind.name(),
            Self::Belady => "belady",
        }
    }

    /// What comes of a cache of so many blocks, which is empty at first.
    #[must_use]
    pub fn counts(self, capacity: usize, steps: &[Step]) -> Counts {
        match self {
            Self::Policy(kind) => replay(&mut *kind.build(capacity), steps),
            Self::Belady => belady(capacity, steps),
        }
    }
}
