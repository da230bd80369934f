//! What every policy promises, and what each is for.

use proptest::prelude::*;

use super::conformance::{Act, acts, check};
use super::lirs_reference::Reference;
use super::*;

proptest! {
    #[test]
    fn each_policy_says_what_is_resident(acts in acts(40, 20), capacity in 1_usize..20) {
        check(&mut Lru::new(capacity), &acts);
        check(&mut Lirs::new(capacity), &acts);
        check(&mut S3Fifo::new(capacity), &acts);
        check(&mut TwoStage::new(capacity), &acts);
    }

    #[test]
    fn lirs_does_what_its_paper_says(acts in acts(60, 30), capacity in 1_usize..30) {
        let mut lirs = Lirs::new(capacity);
        let mut reference = Reference::new(capacity);
        for act in acts {
            let mut evicted = Vec::new();
            match act {
                Act::Ask(key) => {
                    prop_assert_eq!(lirs.get(key), reference.get(key));
                    lirs.insert(key, &mut evicted);
                    prop_assert_eq!(evicted, reference.insert(key));
                }
                Act::Remove(key) => prop_assert_eq!(lirs.remove(key), reference.remove(key)),
                Act::Resize(capacity) => {
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

/// A large cache, over which its HIR part has more than one key.
#[test]
fn a_large_lirs_does_what_its_paper_says() {
    let (mut lirs, mut reference) = (Lirs::new(250), Reference::new(250));
    let mut state = 7_u64;
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Small numbers come often.
        let (first, second) = (state >> 33 & 0x3ff, state >> 50 & 0x3ff);
        let key = first.min(second);
        assert_eq!(lirs.get(key), reference.get(key));
        let mut evicted = Vec::new();
        lirs.insert(key, &mut evicted);
        assert_eq!(evicted, reference.insert(key));
    }
}

#[test]
fn what_is_protected_goes_last() {
    let mut policy = TwoStage::new(4);
    let mut evicted = Vec::new();
    for key in 1..=4_u64 {
        policy.insert(key, &mut evicted);
    }
    policy.protect(1);
    policy.protect(3);
    policy.protect(100);
    assert_eq!((policy.protected_len(), policy.len()), (2, 4));
    // 2 was asked for after 4.
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
    // Nothing else is left.
    evicted.clear();
    policy.resize(1, &mut evicted);
    assert_eq!((evicted, policy.contains(3)), (vec![7, 8, 9], true));
}
