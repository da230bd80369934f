//! Requests as steps of a cache: a key for each block of 4 KiB that one touches.

use std::collections::{BTreeMap, BTreeSet};

use trace::{Outcome, Record, Verb};

/// Keys are blocks of so many bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// A trace has no more steps: with all that is kept of blocks that are asked for once they take
/// 4 GiB.
const STEPS_MAX: u64 = 1 << 26;

/// A trace asks for more than there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it asks for more than 256 GiB, block by block, which is too much: give a part of it")]
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
    /// Of requests, in the order in which they were begun, each with the number of its disk:
    /// blocks of several are different ones. Those that failed count as well: they were asked for.
    ///
    /// # Errors
    /// [`ManySteps`].
    pub fn of<'a>(
        records: impl Iterator<Item = (u32, &'a Record)> + Clone,
        rule: WriteRule,
    ) -> Result<Self, ManySteps> {
        let first_of = disks(records.clone())?;
        let mut steps = Vec::new();
        // What was asked for or brought, and not forgotten since: nothing else is there to be
        // forgotten, though all of a disk may be trimmed.
        let (mut seen, mut asked) = (BTreeSet::new(), BTreeSet::new());
        for (disk, record) in records {
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
            let before = first_of.get(&disk).copied().unwrap_or(0);
            let (first, last) = blocks(record);
            let (first, last) = (before + first, before + last);
            if let Step::Forget(_) = step(first) {
                let gone: Vec<u64> = seen.range(first..=last).copied().collect();
                for key in gone {
                    seen.remove(&key);
                    steps.push(step(key));
                }
            } else if steps.len() as u64 + (last - first) < STEPS_MAX {
                if rule != WriteRule::Ignore {
                    seen.extend(first..=last);
                }
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

/// The first and the last block of a request for something.
fn blocks(record: &Record) -> (u64, u64) {
    let last = record.offset.saturating_add(record.length.max(1) - 1);
    (record.offset / BLOCK_BYTES, last / BLOCK_BYTES)
}

/// The key of each disk's first block: they follow each other, each as long as what is asked of it.
fn disks<'a>(
    records: impl Iterator<Item = (u32, &'a Record)>,
) -> Result<BTreeMap<u32, u64>, ManySteps> {
    let mut disks: BTreeMap<u32, u64> = BTreeMap::new();
    for (disk, record) in records {
        let end = disks.entry(disk).or_default();
        *end = (*end).max(blocks(record).1 + 1);
    }
    let mut next = 0_u64;
    for first in disks.values_mut() {
        let length = std::mem::replace(first, next);
        next = next.checked_add(length).ok_or(ManySteps)?;
    }
    Ok(disks)
}
