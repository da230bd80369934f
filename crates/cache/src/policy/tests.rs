//! The conformance of all policies, and the purpose of each.

use proptest::prelude::*;

use super::conformance::{PolicyOp, check, ops};
use super::lirs_reference::Reference;
use super::*;

proptest! {
    #[test]
    fn each_policy_reports_its_residents(ops in ops(40, 20), capacity in 1_usize..20) {
        check(&mut Lru::new(capacity), &ops);
        check(&mut Lirs::new(capacity), &ops);
        check(&mut S3Fifo::new(capacity), &ops);
        check(&mut TwoStage::new(capacity), &ops);
    }

    #[test]
    fn lirs_behaves_as_its_paper_says(ops in ops(60, 30), capacity in 1_usize..30) {
        let mut lirs = Lirs::new(capacity);
        let mut reference = Reference::new(capacity);
        for act in ops {
            let mut evicted = Vec::new();
            match act {
                PolicyOp::Read(key) => {
                    prop_assert_eq!(lirs.get(key), reference.get(key));
                    lirs.insert(key, &mut evicted);
                    prop_assert_eq!(evicted, reference.insert(key));
                }
                PolicyOp::Remove(key) => prop_assert_eq!(lirs.remove(key), reference.remove(key)),
                PolicyOp::Resize(capacity) => {
                    lirs.resize(capacity, &mut evicted);
                    prop_assert_eq!(evicted, reference.resize(capacity));
                }
            }
            let resident = reference.resident();
            prop_assert_eq!(lirs.len(), resident.len());
            prop_assert!(resident.iter().all(|key| lirs.contains(*key)));
        }
    }
}

/// A large cache, whose HIR part has more than one key.
#[test]
fn a_large_lirs_behaves_as_its_paper_says() {
    let (mut lirs, mut reference) = (Lirs::new(250), Reference::new(250));
    let mut state = 7_u64;
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Small numbers are frequent.
        let (first, second) = (state >> 33 & 0x3ff, state >> 50 & 0x3ff);
        let key = first.min(second);
        assert_eq!(lirs.get(key), reference.get(key));
        let mut evicted = Vec::new();
        lirs.insert(key, &mut evicted);
        assert_eq!(evicted, reference.insert(key));
    }
}

#[test]
fn protected_keys_are_evicted_last() {
    let mut policy = TwoStage::new(4);
    let mut evicted = Vec::new();
    for key in 1..=4_u64 {
        policy.insert(key, &mut evicted);
    }
    policy.protect(1);
    policy.protect(3);
    policy.protect(100);
    assert_eq!((policy.protected_len(), policy.len()), (2, 4));
    // 2 was read after 4.
    assert!(policy.get(2));
    for key in 5..=6 {
        policy.insert(key, &mut evicted);
    }
    assert_eq!(evicted, [4, 2]);
    policy.release(1);
    evicted.clear();
    for key in 7..=9 {
        policy.insert(key, &mut evicted);
    }
    assert_eq!(evicted, [5, 6, 1]);
    assert!(policy.contains(3));
    // All other keys were evicted.
    evicted.clear();
    policy.resize(1, &mut evicted);
    assert_eq!((evicted, policy.contains(3)), (vec![7, 8, 9], true));
}
