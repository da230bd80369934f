//! What every policy promises, checked by random operations. The tests of the laboratory include
//! this file, too, since it has policies of its own.

use std::collections::HashSet;

use proptest::prelude::*;

use super::Policy;

#[derive(Debug, Clone)]
pub enum Act {
    Ask(u64),
    Remove(u64),
    Resize(usize),
}

/// Mostly asks, of few keys, so that they meet again; a cache of at most `capacity`.
pub fn acts(keys: u64, capacity: usize) -> impl Strategy<Value = Vec<Act>> {
    let one = prop_oneof![
        60 => (0..keys).prop_map(Act::Ask),
        20 => (0..keys / 4).prop_map(Act::Ask),
        4 => (0..keys).prop_map(Act::Remove),
        1 => (1..=capacity).prop_map(Act::Resize),
    ];
    prop::collection::vec(one, 0..400)
}

/// Does it, and compares what is told with what is resident.
pub fn check(policy: &mut dyn Policy<u64>, acts: &[Act]) {
    let mut resident = HashSet::new();
    let mut evicted = Vec::new();
    for act in acts {
        match *act {
            Act::Ask(key) => {
                assert_eq!(policy.get(key), resident.contains(&key), "{key}");
                policy.insert(key, &mut evicted);
                resident.insert(key);
            }
            Act::Remove(key) => assert_eq!(policy.remove(key), resident.remove(&key)),
            Act::Resize(capacity) => policy.resize(capacity, &mut evicted),
        }
        for key in evicted.drain(..) {
            assert!(resident.remove(&key), "{key} was not resident");
        }
        assert_eq!(policy.len(), resident.len());
        assert!(policy.len() <= policy.capacity());
        assert!(resident.iter().all(|key| policy.contains(*key)));
        if let Act::Ask(key) = act {
            assert!(policy.contains(*key), "what was just brought is there");
        }
    }
}
