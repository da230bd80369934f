//! Requests as steps of a cache: a key for each block of 4 KiB that one touches.

use std::collections::BTreeSet;

use trace::{Outcome, Record, Verb};

/// Keys are blocks of so many bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// No more blocks are asked for in a trace: their steps are 2 GiB.
const STEPS_MAX: u64 = 1 << 27;

/// A trace asks for more than there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it asks for more than {STEPS_MAX} blocks of 4 KiB: give a part of it")]
pub struct ManySteps;

/// What happens to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is asked for, and brought if it is not resident.
    Ask(u64),
    /// It is brought without being asked for.
    Bring(u64),
    /// It names nothing any more.
    Forget(u64),
}

impl Step {
    /// Which key.
    #[must_use]
    pub const fn key(self) -> u64 {
        match self {
            Self::Ask(key) | Self::Bring(key) | Self::Forget(key) => key,
        }
    }
}

/// What a write does to the keys that it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteRule {
    /// They name nothing any more: what is written lies elsewhere, as Scree has it.
    #[default]
    Forget,
    /// They are brought: what is written is kept, as in a cache of a disk that is written in
    /// place.
    Keep,
    /// Nothing.
    Ignore,
}

/// What was asked of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Steps {
    /// In order.
    pub steps: Vec<Step>,
    /// So many keys are asked for at least once.
    pub footprint: usize,
}

impl Steps {
    /// Of requests, in the order in which they were begun. Those that failed count as well:
    /// they were asked for.
    ///
    /// # Errors
    /// [`ManySteps`].
    pub fn of(records: &[Record], rule: WriteRule) -> Result<Self, ManySteps> {
        let mut steps = Vec::new();
        // What was asked for or brought, and not forgotten since: nothing else is there to be
        // forgotten, though all of a disk may be trimmed.
        let (mut seen, mut asked) = (BTreeSet::new(), BTreeSet::new());
        for record in records {
            let step = match (record.verb, rule) {
                (Verb::Read, _) => Step::Ask,
                (Verb::Write | Verb::WriteZeroes | Verb::Trim, WriteRule::Ignore)
                | (Verb::Flush | Verb::Prefetch, _) => continue,
                (Verb::Write, WriteRule::Keep) => Step::Bring,
                (Verb::Write | Verb::WriteZeroes | Verb::Trim, _) => Step::Forget,
            };
            let changes = record.verb != Verb::Read;
            if record.length == 0 || changes && record.outcome == Outcome::Failed {
                continue;
            }
            let first = record.offset / BLOCK_BYTES;
            let last = record.offset.saturating_add(record.length - 1) / BLOCK_BYTES;
            if let Step::Forget(_) = step(first) {
                let gone: Vec<u64> = seen.range(first..=last).copied().collect();
                for key in gone {
                    seen.remove(&key);
                    steps.push(step(key));
                }
            } else if steps.len() as u64 + (last - first) < STEPS_MAX {
                seen.extend(first..=last);
                steps.extend((first..=last).map(step));
            } else {
                return Err(ManySteps);
            }
            if record.verb == Verb::Read {
                asked.extend(first..=last);
            }
        }
        Ok(Self {
            footprint: asked.len(),
            steps,
        })
    }
}
