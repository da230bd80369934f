//! A conformance suite for policies, with random operations. The tests of `lab` include this file,
//! since `lab` has policies of its own.

use std::collections::HashSet;

use proptest::prelude::*;

use super::Policy;

/// One operation on a policy.
#[derive(Debug, Clone)]
pub enum PolicyOp {
    /// A read of a key, which is inserted if it is not resident.
    Read(u64),
    Remove(u64),
    Resize(usize),
}

/// Operations, mostly reads of few keys, so that keys are read again. The capacity is at most
/// `capacity`.
pub fn ops(keys: u64, capacity: usize) -> impl Strategy<Value = Vec<PolicyOp>> {
    let one = prop_oneof![
        60 => (0..keys).prop_map(PolicyOp::Read),
        20 => (0..keys / 4).prop_map(PolicyOp::Read),
        4 => (0..keys).prop_map(PolicyOp::Remove),
        1 => (1..=capacity).prop_map(PolicyOp::Resize),
    ];
    prop::collection::vec(one, 0..400)
}

/// Applies the operations, and compares the reported residents with a model.
pub fn check(policy: &mut dyn Policy<u64>, ops: &[PolicyOp]) {
    let mut resident = HashSet::new();
    let mut evicted = Vec::new();
    for op in ops {
        match *op {
            PolicyOp::Read(key) => {
                assert_eq!(policy.get(key), resident.contains(&key), "{key}");
                policy.insert(key, &mut evicted);
                resident.insert(key);
            }
            PolicyOp::Remove(key) => assert_eq!(policy.remove(key), resident.remove(&key)),
            PolicyOp::Resize(capacity) => policy.resize(capacity, &mut evicted),
        }
        for key in evicted.drain(..) {
            assert!(resident.remove(&key), "{key} was not resident");
        }
        assert_eq!(policy.len(), resident.len());
        assert!(policy.len() <= policy.capacity());
        assert!(resident.iter().all(|key| policy.contains(*key)));
        if let PolicyOp::Read(key) = op {
            assert!(
                policy.contains(*key),
                "a key that was just inserted is resident"
            );
        }
    }
}
