//! The offline optimum: it evicts the key whose next request is farthest in the future (Belady,
//! IBM Systems Journal 1966). A key may be evicted as soon as it was inserted, which is never
//! worse; no policy has more hits.

use std::collections::{BTreeSet, HashMap};

use super::{Counts, Step};

/// The next use of a key that is never requested again.
const NEVER: usize = usize::MAX;

/// Replays steps against a cache of `capacity` keys that knows all steps in advance.
#[must_use]
pub fn belady(capacity: usize, steps: &[Step]) -> Counts {
    let next = next_uses(steps);
    let mut counts = Counts::default();
    // The step at which each resident key is requested next.
    let mut resident: HashMap<u64, usize> = HashMap::new();
    let mut by_use: BTreeSet<(usize, u64)> = BTreeSet::new();
    for (at, step) in steps.iter().enumerate() {
        let key = step.key();
        let was = resident.remove(&key);
        if let Some(was) = was {
            by_use.remove(&(was, key));
        }
        if let Step::Request(_) = step {
            counts.requested += 1;
            counts.hits += u64::from(was.is_some());
        }
        // A key that is forgotten before its next request, or has none, need not stay.
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

/// For each step, the next request of its key, unless the key is forgotten before that.
fn next_uses(steps: &[Step]) -> Vec<usize> {
    let mut next = vec![NEVER; steps.len()];
    let mut last: HashMap<u64, usize> = HashMap::new();
    for (at, step) in steps.iter().enumerate().rev() {
        let key = step.key();
        next[at] = match step {
            Step::Forget(_) => NEVER,
            Step::Request(_) | Step::Insert(_) => last.get(&key).copied().unwrap_or(NEVER),
        };
        match step {
            Step::Request(_) => drop(last.insert(key, at)),
            // A key that is inserted again need not have stayed until then.
            Step::Forget(_) | Step::Insert(_) => drop(last.remove(&key)),
        }
    }
    next
}
