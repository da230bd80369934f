//! Replays, compared with results that are counted by hand or by trying all choices.

use proptest::prelude::*;
use trace::{OpKind, Record};

use super::conformance::{check, ops};
use super::*;

/// The most hits that any choice of evicted keys has.
fn best(capacity: usize, steps: &[Step], resident: &[u64]) -> u64 {
    let Some((step, rest)) = steps.split_first() else {
        return 0;
    };
    let key = step.key();
    let is_hit = resident.contains(&key);
    let mut with: Vec<u64> = resident.to_vec();
    match step {
        Step::Forget(_) => {
            with.retain(|other| *other != key);
            return best(capacity, rest, &with);
        }
        Step::Request(_) | Step::Insert(_) if !is_hit => with.push(key),
        Step::Request(_) | Step::Insert(_) => {}
    }
    let hit = u64::from(is_hit && matches!(step, Step::Request(_)));
    if with.len() <= capacity {
        return hit + best(capacity, rest, &with);
    }
    // Any of them may be evicted.
    let without = |at: usize| {
        let mut without = with.clone();
        without.remove(at);
        best(capacity, rest, &without)
    };
    hit + (0..with.len()).map(without).max().unwrap_or_default()
}

fn steps(keys: u64, longest: usize) -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        8 => (0..keys).prop_map(Step::Request),
        2 => (0..keys).prop_map(Step::Insert),
        1 => (0..keys).prop_map(Step::Forget),
    ];
    prop::collection::vec(one, 0..longest)
}

proptest! {
    #[test]
    fn belady_has_the_most_hits_of_all_choices(steps in steps(5, 11), capacity in 1_usize..4) {
        prop_assert_eq!(belady(capacity, &steps).hits, best(capacity, &steps, &[]));
    }

    #[test]
    fn no_policy_has_more_hits_than_belady(steps in steps(60, 600), capacity in 1_usize..40) {
        let most = belady(capacity, &steps);
        for kind in PolicyKind::ALL {
            let counts = Contestant::Policy(kind).counts(capacity, &steps);
            prop_assert_eq!(counts.requested, most.requested);
            prop_assert!(counts.hits <= most.hits, "{}: {} of {}", kind, counts.hits, most.hits);
        }
    }
}

fn record(kind: OpKind, offset: u64, length: u64) -> Record {
    Record::plain(kind, 0, base::ByteRange::new(offset, length))
}

#[test]
fn a_request_becomes_the_blocks_that_it_touches() {
    let records = [
        record(OpKind::Read, 4095, 2),
        record(OpKind::Write, 8192, 4096),
        record(OpKind::Flush, 0, 0),
        record(OpKind::Read, 8192, 1),
        record(OpKind::Write, 8192, 512),
        record(OpKind::Trim, 0, 4096),
        record(OpKind::Trim, 1 << 40, 1 << 60),
    ];
    let of = |rule| {
        let records = records.iter().map(|record| (0, record));
        Steps::of(records, rule).expect("few steps")
    };
    let asked = [Step::Request(0), Step::Request(1), Step::Request(2)];
    assert_eq!(of(WriteRule::Ignore).steps, asked);
    let (request, insert, forget) = (Step::Request, Step::Insert, Step::Forget);
    let kept = [
        request(0),
        request(1),
        insert(2),
        request(2),
        insert(2),
        forget(0),
    ];
    assert_eq!(of(WriteRule::Keep).steps, kept);
    // A key that was never inserted is not forgotten.
    let forgotten = [request(0), request(1), request(2), forget(2), forget(0)];
    assert_eq!(of(WriteRule::Forget).steps, forgotten);
    assert_eq!(of(WriteRule::Forget).footprint, 3);
    // A written block that was kept is a hit.
    let counts = |rule| {
        let steps = of(rule).steps;
        Contestant::Policy(PolicyKind::Lru).counts(10, &steps)
    };
    assert_eq!(
        (
            counts(WriteRule::Keep).hits,
            counts(WriteRule::Keep).requested
        ),
        (1, 3)
    );
    assert_eq!(counts(WriteRule::Forget).hits, 0);
}

#[test]
fn a_trace_without_requests_has_no_hits() {
    assert_eq!(Counts::default().hit_ratio(), 0.0);
    let huge = [record(OpKind::Read, u64::MAX - 4095, 4096)];
    let of = |records: &[Record]| {
        let records = records.iter().map(|record| (0, record));
        Steps::of(records, WriteRule::Forget)
    };
    assert_eq!(of(&huge).map(|steps| steps.footprint), Ok(1));
    let much = [record(OpKind::Read, 0, 1 << 62)];
    assert_eq!(of(&much), Err(TooManySteps));
    // Equal blocks of two disks are two keys.
    let one = record(OpKind::Read, 4096, 4096);
    let both = Steps::of([(7, &one), (3, &one)].into_iter(), WriteRule::Forget);
    let expected = vec![Step::Request(3), Step::Request(1)];
    assert_eq!(
        both.map(|steps| (steps.footprint, steps.steps)),
        Ok((2, expected))
    );
}

proptest! {
    #[test]
    fn each_policy_reports_its_residents(ops in ops(40, 20), capacity in 1_usize..20) {
        for kind in PolicyKind::ALL {
            check(&mut *kind.build(capacity), &ops);
        }
    }
}

/// The number of hits when `keys` are requested in turn.
fn hits(policy: &mut dyn Policy<u64>, keys: impl IntoIterator<Item = u64>) -> usize {
    let mut evicted = Vec::new();
    let mut hits = 0;
    for key in keys {
        hits += usize::from(policy.get(key));
        policy.insert(key, &mut evicted);
    }
    hits
}

#[test]
fn a_scan_does_not_evict_keys_that_are_requested_again() {
    let of = |kind: PolicyKind| {
        let mut policy = kind.build(100);
        // Fifty keys are requested repeatedly, then a scan follows.
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

/// LRU has no hits in a loop that is slightly larger than the cache.
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
fn a_policy_is_found_by_its_name() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert_eq!(kind.build::<u64>(0).capacity(), 1);
    }
    assert_eq!("s3fifo".parse(), Ok(PolicyKind::S3Fifo));
    assert!("mru".parse::<PolicyKind>().is_err());
}
