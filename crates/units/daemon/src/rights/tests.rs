//! Which capabilities allow which actions.

use base::{ClusterId, LineageTag};

use super::*;

const ENDS: Millis = Millis(1_000_000);
const OWN: LineageTag = LineageTag(7);
const OTHER: LineageTag = LineageTag(8);
const UNIT: UnitId = UnitId::from_u128(3);

fn segment(copyset: u16, serial: u64) -> SegmentId {
    let copyset = CopysetId::new(copyset).expect("under 4096");
    SegmentId::new(copyset, serial).expect("under 2^36")
}

fn until(ends: Millis, scope: Scope) -> Capability {
    Capability {
        cluster: ClusterId::from_u128(1),
        holder: [0; 32],
        made: Millis(0),
        ends,
        generation: 0,
        scope,
    }
}

fn lease(epoch: u32, serials: &[Range<u64>]) -> Scope {
    Scope::Lease {
        lineage_tag: OWN,
        fence: Fence(1),
        epoch,
        serials: serials.to_vec(),
    }
}

fn lease_of(epoch: u32, serials: Range<u64>) -> Scope {
    lease(epoch, &[serials])
}

fn rights_of(scopes: impl IntoIterator<Item = Scope>) -> Rights {
    let mut rights = Rights::default();
    for scope in scopes {
        rights
            .take(until(ENDS, scope), UNIT, Millis(0))
            .expect("room");
    }
    rights
}

/// Which of putting, reading, freeing, deleting and listing are allowed.
fn allowed(rights: &Rights, segment: SegmentId, lineage_tag: LineageTag) -> [bool; 5] {
    let serial = segment.serial();
    [
        Action::Put(segment),
        Action::Read(segment, lineage_tag),
        Action::Free(segment, lineage_tag),
        Action::Delete(segment, lineage_tag),
        Action::List(serial..serial + 1),
    ]
    .map(|action| rights.right(&action, ENDS).is_ok())
}

/// Daemons ignored the first lease of a volume.
#[test]
fn a_lease_counts_before_it_has_reserved_anything() {
    let mut rights = Rights::default();
    assert!(rights.leases(Millis(0)).is_empty());
    let lease = Scope::Lease {
        lineage_tag: OWN,
        fence: Fence(1),
        epoch: 1,
        serials: vec![],
    };
    rights
        .take(until(ENDS, lease), UNIT, Millis(0))
        .expect("there is room");
    assert_eq!(rights.leases(Millis(0)), [(Fence(1), 1)]);
    assert!(rights.leases(Millis(ENDS.0 + SLACK_MS + 1)).is_empty());
}

/// A host's next lease made the daemon refuse frees of segments of the lease before.
#[test]
fn another_right_to_free_or_read_takes_precedence_over_a_lease() {
    let mut rights = Rights::default();
    let (own, now) = (segment(3, 5), Millis(0));
    let lease = Scope::Lease {
        lineage_tag: OWN,
        fence: Fence(1),
        epoch: 2,
        serials: vec![0..10, 20..30],
    };
    rights
        .take(until(ENDS, lease), UNIT, now)
        .expect("there is room");
    let is_leased = |rights: &Rights, action: Action| {
        matches!(rights.right(&action, now), Ok(Right::Lease { .. }))
    };
    assert!(is_leased(&rights, Action::Free(own, OWN)));
    assert!(is_leased(&rights, Action::Read(own, OWN)));
    let segments = vec![own];
    let free = until(ENDS, Scope::Free { segments });
    rights.take(free, UNIT, now).expect("there is room");
    let read = until(
        ENDS,
        Scope::Read {
            lineage_tags: vec![OWN],
        },
    );
    rights.take(read, UNIT, now).expect("there is room");
    for action in [Action::Free(own, OWN), Action::Read(own, OWN)] {
        assert_eq!(rights.right(&action, now), Ok(Right::ReadOrFree));
    }
    let copysets = vec![own.copyset()];
    let repair = until(
        ENDS,
        Scope::Repair {
            copysets,
            units: vec![UNIT],
        },
    );
    rights.take(repair, UNIT, now).expect("there is room");
    assert!(is_leased(&rights, Action::Put(own)), "a put uses the lease");
}

#[test]
fn each_capability_allows_its_own_actions_only() {
    let leased = rights_of([lease(3, &[10..20, 40..41])]);
    for lineage_tag in [OWN, LineageTag::NONE] {
        assert_eq!(allowed(&leased, segment(5, 10), lineage_tag), [true; 5]);
        assert_eq!(allowed(&leased, segment(0, 40), lineage_tag), [true; 5]);
    }
    // A lease gives no right to segments of another lineage.
    let not_own = [true, false, false, false, true];
    assert_eq!(allowed(&leased, segment(5, 10), OTHER), not_own);
    for beyond in [9, 20, 39, 41] {
        assert_eq!(allowed(&leased, segment(5, beyond), OWN), [false; 5]);
    }
    let lists = |range| leased.right(&Action::List(range), ENDS).is_ok();
    assert!(lists(10..20) && lists(15..15));
    assert!(!lists(9..20) && !lists(10..21) && !lists(10..41) && !lists(0..u64::MAX));

    let read = rights_of([Scope::Read {
        lineage_tags: vec![OWN, LineageTag(9)],
    }]);
    let read_only = [false, true, false, false, false];
    assert_eq!(allowed(&read, segment(5, 10), OWN), read_only);
    assert_eq!(allowed(&read, segment(5, 10), LineageTag::NONE), read_only);
    assert_eq!(allowed(&read, segment(5, 10), OTHER), [false; 5]);

    let segments = vec![segment(1, 10), segment(2, 3)];
    let scope = Scope::Free { segments };
    let free = rights_of([scope.clone()]);
    let free_only = [false, false, true, false, false];
    assert_eq!(allowed(&free, segment(1, 10), LineageTag::NONE), free_only);
    assert_eq!(allowed(&free, segment(1, 10), OWN), [false; 5], "of whom");
    assert_eq!(allowed(&free, segment(2, 10), LineageTag::NONE), [false; 5]);
    let free = rights_of([
        scope,
        Scope::Read {
            lineage_tags: vec![OWN],
        },
    ]);
    let free_and_read = [false, true, true, false, false];
    assert_eq!(allowed(&free, segment(1, 10), OWN), free_and_read);
    assert_eq!(allowed(&free, segment(1, 10), OTHER), [false; 5]);
    assert_eq!(allowed(&free, segment(2, 10), OWN), read_only);

    let repair = rights_of([Scope::Repair {
        copysets: vec![CopysetId::new(4).expect("one")],
        units: vec![UnitId::from_u128(2), UNIT],
    }]);
    assert_eq!(allowed(&repair, segment(4, 10), OTHER), [true; 5]);
    // A repair of one unit could change the copyset on all units.
    let elsewhere = rights_of([Scope::Repair {
        copysets: vec![CopysetId::new(4).expect("one")],
        units: vec![UnitId::from_u128(2)],
    }]);
    let look_only = [false, true, false, false, true];
    assert_eq!(allowed(&elsewhere, segment(4, 10), OTHER), look_only);
    let replaces = Action::Replace(segment(4, 10), OTHER);
    assert!(repair.right(&replaces, ENDS).is_ok());
    assert!(elsewhere.right(&replaces, ENDS).is_err());
    // A list, of nothing but its own copysets.
    let list_only = [false, false, false, false, true];
    assert_eq!(allowed(&repair, segment(5, 10), OTHER), list_only);
    let (own, other) = (segment(4, 1).copyset(), segment(5, 1).copyset());
    assert!(repair.repairs(own, ENDS) && !repair.repairs(other, ENDS));
    assert!(!repair.repairs(own, Millis(ENDS.0 + SLACK_MS + 1)));
    assert_eq!(
        allowed(&rights_of([]), segment(5, 10), LineageTag::NONE),
        [false; 5]
    );
}

/// Any host with a right to read could read and free it.
#[test]
fn a_segment_without_a_readable_tag_needs_its_lease_or_a_repair() {
    let own = segment(4, 10);
    let lineage_tags = vec![OWN, UNREADABLE];
    let segments = vec![own];
    let others = rights_of([Scope::Read { lineage_tags }, Scope::Free { segments }]);
    assert_eq!(allowed(&others, own, UNREADABLE), [false; 5]);
    let leased = rights_of([lease_of(1, 10..11)]);
    assert_eq!(allowed(&leased, own, UNREADABLE), [true; 5]);
    let copysets = vec![own.copyset()];
    let repair = rights_of([Scope::Repair {
        copysets,
        units: vec![UNIT],
    }]);
    assert_eq!(
        allowed(&repair, own, UNREADABLE),
        [true; 5],
        "it may be put again"
    );
}

#[test]
fn capabilities_of_an_earlier_database_are_dropped() {
    let mut rights = rights_of([Scope::Read {
        lineage_tags: vec![OWN],
    }]);
    let newer = Capability {
        generation: 1,
        ..until(
            ENDS,
            Scope::Read {
                lineage_tags: vec![OTHER],
            },
        )
    };
    rights.take(newer, UNIT, Millis(0)).expect("room");
    let reads = |lineage_tag| allowed(&rights, segment(5, 10), lineage_tag)[1];
    assert_eq!((reads(OWN), reads(OTHER)), (false, true));
    assert_eq!(rights.generation(), 1);
}

#[test]
fn a_serial_belongs_to_the_lease_that_was_presented_last() {
    let rights = rights_of([
        lease_of(1, 10..20),
        lease_of(2, 15..17),
        lease_of(3, 19..30),
    ]);
    let epoch = |serial| match rights.right(&Action::Put(segment(0, serial)), ENDS) {
        Ok(Right::Lease { epoch, .. }) => Some(epoch),
        _ => None,
    };
    let epochs: Vec<_> = (9..31).map(epoch).collect();
    let mut expected = vec![None];
    expected.extend([Some(1); 5]);
    expected.extend([Some(2); 2]);
    expected.extend([Some(1); 2]);
    expected.extend([Some(3); 11]);
    expected.push(None);
    assert_eq!(epochs, expected);
}

#[test]
fn an_expired_capability_allows_nothing_and_is_reported() {
    let rights = rights_of([
        lease_of(1, 10..20),
        Scope::Read {
            lineage_tags: vec![OTHER],
        },
    ]);
    let late = Millis(ENDS.0 + SLACK_MS);
    let put = Action::Put(segment(0, 10));
    let read = Action::Read(segment(0, 50), OTHER);
    for action in [&put, &read] {
        assert!(rights.right(action, late).is_ok());
        let later = Millis(late.0 + 1);
        assert_eq!(rights.right(action, later), Err(NotAllowed::Ended));
    }
    let never = Action::Put(segment(0, 50));
    assert_eq!(rights.right(&never, late), Err(NotAllowed::Never));
}

#[test]
fn expiry_tolerates_differing_clocks() {
    assert!(!has_ended(Millis(60_000), Millis(60_000 + SLACK_MS)));
    assert!(has_ended(Millis(60_000), Millis(60_001 + SLACK_MS)));
    assert!(!has_ended(Millis(60_000), Millis(i64::MIN)));
}

#[test]
fn capabilities_of_a_connection_are_limited_until_some_expire() {
    let mut rights = Rights::default();
    let mut present = |first: u64, ends, now| {
        let lineage_tags = (first..first + 1000).map(LineageTag).collect();
        rights
            .take(until(ends, Scope::Read { lineage_tags }), UNIT, now)
            .is_ok()
    };
    let count = (0..1000)
        .filter(|at| present(at * 1000, ENDS, Millis(0)))
        .count();
    assert_eq!(count, ITEMS_MAX / 1000 + 1);
    assert!(present(0, Millis(i64::MAX), Millis(ENDS.0 + SLACK_MS + 1)));
}
