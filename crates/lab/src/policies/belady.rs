//! The offline optimum: of all keys the one goes that is asked for last, or never (Belady,
//! IBM Systems Journal 1966). What is brought may go at once: that is never worse, and no
//! policy can have more hits.

use std::collections::{BTreeSet, HashMap};

use super::{Counts, Step};

/// A key is not asked for any more.
const NEVER: usize = usize::MAX;

/// What a cache of so many keys has that knows all steps beforehand.
#[must_use]
pub fn belady(capacity: usize, steps: &[Step]) -> Counts {
    let next = next_uses(steps);
    let mut counts = Counts::default();
    // When each resident key is asked for next.
    let mut resident: HashMap<u64, usize> = HashMap::new();
    let mut by_use: BTreeSet<(usize, u64)> = BTreeSet::new();
    for (at, step) in steps.iter().enumerate() {
        let key = step.key();
        let was = resident.remove(&key);
        if let Some(was) = was {
            by_use.remove(&(was, key));
        }
        if let Step::Ask(_) = step {
            counts.asked += 1;
            counts.hits += u64::from(was.is_some());
        }
        // Nobody misses what is not asked for, or is forgotten before that.
        if next[at] == NEVER {
            continue;
        }
        resident.insert(key, next[at]);
        by_use.insert((next[at], key));
        if resident.len() > capacity
            && let Some((_, key)) = by_use.pop_last()
        {
            resident.remove(&key);
        }
    }
    counts
}

/// After each step, when its key is asked for next without having been forgotten before.
fn next_uses(steps: &[Step]) -> Vec<usize> {
    let mut next = vec![NEVER; steps.len()];
    let mut last: HashMap<u64, usize> = HashMap::new();
    for (at, step) in steps.iter().enumerate().rev() {
        let key = step.key();
        next[at] = match step {
            Step::Forget(_) => NEVER,
            Step::Ask(_) | Step::Bring(_) => last.get(&key).copied().unwrap_or(NEVER),
        };
        match step {
            Step::Ask(_) => drop(last.insert(key, at)),
            // What is brought once more need not have been kept.
            Step::Forget(_) | Step::Bring(_) => drop(last.remove(&key)),
        }
    }
    next
}
