//! What every policy promises, and what each is for.

use std::collections::HashSet;

use proptest::prelude::*;

use super::lirs_reference::Reference;
use super::*;

#[derive(Debug, Clone)]
enum Act {
    Ask(u64),
    Remove(u64),
    Resize(usize),
}

/// Mostly asks, of few keys, so that they meet again; a cache of at most `capacity`.
fn acts(keys: u64, capacity: usize) -> impl Strategy<Value = Vec<Act>> {
    let one = prop_oneof![
        60 => (0..keys).prop_map(Act::Ask),
        20 => (0..keys / 4).prop_map(Act::Ask),
        4 => (0..keys).prop_map(Act::Remove),
        1 => (1..=capacity).prop_map(Act::Resize),
    ];
    prop::collection::vec(one, 0..400)
}

/// Does it, and compares what is told with what is resident.
fn check(policy: &mut dyn Policy<u64>, acts: &[Act]) {
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

proptest! {
    #[test]
    fn each_policy_says_what_is_resident(acts in acts(40, 20), capacity in 1_usize..20) {
        for kind in PolicyKind::ALL {
            check(&mut *kind.build(capacity), &acts);
        }
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

/// So many were hits.
fn hits(policy: &mut dyn Policy<u64>, keys: impl IntoIterator<Item = u64>) -> usize {
    let mut evicted = Vec::new();
    let mut hits = 0;
    for key in keys {
        hits += usize::from(policy.get(key));
        policy.insert(key, &mut evicted);
    }
    hits
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
fn a_scan_does_not_push_out_what_is_asked_for_again() {
    let of = |kind: PolicyKind| {
        let mut policy = kind.build(100);
        // Fifty keys are asked for again and again, and a scan passes by.
        for _ in 0..5 {
            hits(&mut *policy, 0..50);
        }
        hits(&mut *policy, 1000..2000);
        hits(&mut *policy, 0..50)
    };
    assert_eq!((of(PolicyKind::Lru), of(PolicyKind::Fifo)), (0, 0));
    for kind in [PolicyKind::Lirs, PolicyKind::S3Fifo, PolicyKind::Arc] {
        assert_eq!(of(kind), 50, "{kind}");
    }
}

/// LRU has none of a loop that is a little larger than it.
#[test]
fn lirs_keeps_most_of_a_loop_that_does_not_fit() {
    let of = |kind: PolicyKind| {
        let mut policy = kind.build(100);
        let rounds = (0..20).flat_map(|_| 0..120);
        hits(&mut *policy, rounds)
    };
    assert_eq!(of(PolicyKind::Lru), 0);
    assert!(of(PolicyKind::Lirs) > 19 * 90, "{}", of(PolicyKind::Lirs));
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

#[test]
fn a_policy_is_found_by_its_name() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert_eq!(kind.build::<u64>(0).capacity(), 1);
    }
    assert_eq!("s3fifo".parse(), Ok(PolicyKind::S3Fifo));
    assert!("mru".parse::<PolicyKind>().is_err());
}
