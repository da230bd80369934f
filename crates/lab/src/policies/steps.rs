//! [`Steps`]: the requests of a trace as operations of a cache, one key for each block of 4 KiB.

use std::collections::{BTreeMap, BTreeSet};

use trace::{OpKind, Outcome, Record};

/// Size of the block that a key stands for, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// The most steps of a trace. With the state of blocks that are requested once, they take 4 GiB.
const STEPS_MAX: u64 = 1 << 26;

/// A trace has more than the allowed number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the trace requests more than 256 GiB of blocks; use a part of it")]
pub struct TooManySteps;

/// An operation on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The key is requested, and inserted if it is not resident.
    Request(u64),
    /// The key is inserted without being requested.
    Insert(u64),
    /// The key is removed: its content is obsolete.
    Forget(u64),
}

impl Step {
    /// The key.
    #[must_use]
    pub const fn key(self) -> u64 {
        match self {
            Self::Request(key) | Self::Insert(key) | Self::Forget(key) => key,
        }
    }
}

/// What a write does to the keys of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteRule {
    /// They are removed, because new data is written to other slots, as in Scree.
    #[default]
    Forget,
    /// They are inserted, as in the cache of a disk that is written in place.
    Keep,
    /// Nothing happens to them.
    Ignore,
}

/// The steps of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Steps {
    /// The steps in the order of their requests.
    pub steps: Vec<Step>,
    /// Number of distinct keys that are requested.
    pub footprint: usize,
}

impl Steps {
    /// Converts requests, in the order of their start, each with the number of its disk. Equal
    /// blocks of different disks have different keys. Failed reads count, since they were
    /// requested.
    ///
    /// # Errors
    /// [`TooManySteps`] if the trace is too long.
    pub fn of<'a>(
        records: impl Iterator<Item = (u32, &'a Record)> + Clone,
        rule: WriteRule,
    ) -> Result<Self, TooManySteps> {
        let first_of = disks(records.clone())?;
        let mut steps = Vec::new();
        // Keys that may be forgotten: a trim may cover a whole disk.
        let (mut seen, mut asked) = (BTreeSet::new(), BTreeSet::new());
        for (disk, record) in records {
            let step = match (record.kind, rule) {
                (OpKind::Read, _) => Step::Request,
                (OpKind::Write | OpKind::WriteZeroes | OpKind::Trim, WriteRule::Ignore)
                | (OpKind::Flush | OpKind::Prefetch | OpKind::Extents, _) => continue,
                (OpKind::Write, WriteRule::Keep) => Step::Insert,
                (OpKind::Write | OpKind::WriteZeroes | OpKind::Trim, _) => Step::Forget,
            };
            let changes = record.kind != OpKind::Read;
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
                return Err(TooManySteps);
            }
            if record.kind == OpKind::Read {
                asked.extend(first..=last);
            }
        }
        Ok(Self {
            footprint: asked.len(),
            steps,
        })
    }
}

/// The first and the last block of a request that has a length.
fn blocks(record: &Record) -> (u64, u64) {
    let last = record.offset.saturating_add(record.length.max(1) - 1);
    (record.offset / BLOCK_BYTES, last / BLOCK_BYTES)
}

/// The first key of each disk: the disks follow each other, each with the length of its used range.
fn disks<'a>(
    records: impl Iterator<Item = (u32, &'a Record)>,
) -> Result<BTreeMap<u32, u64>, TooManySteps> {
    let mut disks: BTreeMap<u32, u64> = BTreeMap::new();
    for (disk, record) in records {
        let end = disks.entry(disk).or_default();
        *end = (*end).max(blocks(record).1 + 1);
    }
    let mut next = 0_u64;
    for first in disks.values_mut() {
        let length = std::mem::replace(first, next);
        next = next.checked_add(length).ok_or(TooManySteps)?;
    }
    Ok(disks)
}
