//! The conformance suite of [`Catalog`]: claims that are run against the database and against the
//! catalog in memory.
//!
//! Each claim gets a new, empty catalog behind a [`Fixture`], and panics if the catalog violates
//! it.

use crate::LeaseSalt;
use crate::{
    Catalog, CatalogError, FreePlan, Lease, NamedJournal, OpenSegment, PendingFree, StoredVersion,
    VersionCommit, VersionKey,
};
use base::{CopysetId, JournalFolderId, Lineage, Location, SegmentId, SnapshotId, VolumeId};
use world::Millis;

/// A catalog, with the changes that users and operators make.
pub trait Fixture {
    /// The catalog.
    fn catalog(&self) -> &dyn Catalog;
    /// A new, empty volume.
    fn create(&self) -> VolumeId;
    /// A pending snapshot of it.
    fn snapshot(&self, volume: VolumeId) -> SnapshotId;
    /// A volume that starts from a completed snapshot.
    fn clone_of(&self, snapshot: SnapshotId) -> VolumeId;
    /// Deletes a snapshot.
    fn delete_snapshot(&self, snapshot: SnapshotId);
    /// Takes the volume from its host, by force.
    fn detach_by_force(&self, volume: VolumeId);
}

/// A claim, by the name of its function.
pub type Claim = (&'static str, fn(&dyn Fixture));

/// The claims of these functions, by the functions' names.
macro_rules! claims {
    ($($claim:ident),* $(,)?) => {
        &[$((stringify!($claim), $claim)),*]
    };
}

/// All claims.
pub const CLAIMS: &[Claim] = claims![
    a_new_lease_has_a_higher_epoch_and_fences_the_old_one,
    a_commit_needs_the_head_it_was_made_for,
    a_refused_commit_changes_nothing,
    a_lease_returns_the_last_committed_version,
    no_serial_is_handed_out_twice,
    leftovers_are_kept_until_they_are_swept,
    a_clone_has_its_own_key_above_its_parents_epochs,
    removing_a_version_gives_its_children_to_its_parent,
    a_version_that_is_needed_is_not_removed,
    a_removal_planned_for_other_neighbors_is_refused,
    a_free_is_due_once_and_after_its_grace_period,
    dead_slots_are_gathered_until_they_are_forgotten,
    a_named_journal_goes_only_to_hosts_that_reach_it,
    a_journal_that_was_given_up_blocks_no_lease,
];

const SALT: LeaseSalt = LeaseSalt([3; 16]);

fn record(lease: &Lease, parent: Option<VersionKey>, number: u64) -> StoredVersion {
    StoredVersion {
        key: VersionKey {
            volume: lease.volume,
            number,
        },
        parent,
        lineage: lease.keys[0].lineage,
        epoch: lease.epoch,
        journal_next: 4096 * number,
        created: Millis(1_000 * number.cast_signed()),
        record: vec![number as u8; 100],
    }
}

fn commit(lease: &Lease, parent: Option<VersionKey>, number: u64) -> VersionCommit {
    VersionCommit {
        version: record(lease, parent, number),
        pins: Vec::new(),
        open_segments: Vec::new(),
        serial_next: 0,
        degraded: Vec::new(),
        joined: 0,
        joined_last: 0,
    }
}

/// Commits versions up to `count` on a new volume.
fn line(fixture: &dyn Fixture, count: u64) -> (Lease, Vec<VersionKey>) {
    let lease = fixture
        .catalog()
        .acquire(fixture.create(), SALT, None)
        .expect("a lease");
    let mut keys: Vec<VersionKey> = Vec::new();
    for number in 1..=count {
        let next = commit(&lease, keys.last().copied(), number);
        fixture.catalog().commit(&next).expect("commits");
        keys.push(next.version.key);
    }
    (lease, keys)
}

const FOLDER: JournalFolderId = JournalFolderId::from_u128(1);
const OTHER_FOLDER: JournalFolderId = JournalFolderId::from_u128(2);

fn a_named_journal_goes_only_to_hosts_that_reach_it(fixture: &dyn Fixture) {
    let catalog = fixture.catalog();
    let volume = fixture.create();
    let first = catalog
        .acquire(volume, SALT, Some(FOLDER))
        .expect("a lease");
    assert_eq!(first.journal, None);
    let named = catalog.name_journal(volume, first.epoch, Some(FOLDER));
    named.expect("its lease holds");
    let second = catalog
        .acquire(volume, SALT, Some(FOLDER))
        .expect("a lease");
    let journal = NamedJournal {
        epoch: first.epoch,
        folder: FOLDER,
    };
    assert_eq!(second.journal, Some(journal));
    assert!(is_fenced(catalog.name_journal(volume, first.epoch, None)));
    for elsewhere in [None, Some(OTHER_FOLDER)] {
        let refused = catalog.acquire(volume, SALT, elsewhere);
        assert!(matches!(
            refused,
            Err(CatalogError::JournalUnavailable { .. })
        ));
    }
    // No lease was granted by that.
    for _ in 0..2 {
        let named = catalog.name_journal(volume, second.epoch, Some(FOLDER));
        named.expect("its lease holds, and it may be asked twice");
    }
    let third = catalog
        .acquire(volume, SALT, Some(FOLDER))
        .expect("a lease");
    let epoch = second.epoch;
    assert_eq!(third.journal, Some(NamedJournal { epoch, ..journal }));
    let named = catalog.name_journal(volume, third.epoch, None);
    named.expect("its lease holds");
    let fourth = catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(fourth.journal, None);
}

fn a_journal_that_was_given_up_blocks_no_lease(fixture: &dyn Fixture) {
    let catalog = fixture.catalog();
    let volume = fixture.create();
    let first = catalog
        .acquire(volume, SALT, Some(FOLDER))
        .expect("a lease");
    let named = catalog.name_journal(volume, first.epoch, Some(FOLDER));
    named.expect("its lease holds");
    fixture.detach_by_force(volume);
    // Until a host has continued without the journal, a host that reaches it gets it.
    for folder in [None, Some(OTHER_FOLDER), Some(FOLDER)] {
        let lease = catalog.acquire(volume, SALT, folder).expect("a lease");
        let epoch = lease.journal.map(|named| named.epoch);
        assert_eq!(epoch, Some(first.epoch));
    }
    let last = catalog.acquire(volume, SALT, None).expect("a lease");
    let named = catalog.name_journal(volume, last.epoch, None);
    named.expect("its lease holds");
    let next = catalog
        .acquire(volume, SALT, Some(FOLDER))
        .expect("a lease");
    assert_eq!(next.journal, None);
    let named = catalog.name_journal(volume, next.epoch, Some(FOLDER));
    named.expect("its lease holds");
    let refused = catalog.acquire(volume, SALT, None);
    assert!(
        matches!(refused, Err(CatalogError::JournalUnavailable { .. })),
        "the journal that was given up was another one"
    );
}

fn segment(serial: u64) -> SegmentId {
    SegmentId::new(CopysetId::new(7).expect("12 bits"), serial).expect("36 bits")
}

fn is_fenced<T>(result: Result<T, CatalogError>) -> bool {
    matches!(result, Err(CatalogError::Fenced { .. }))
}

fn is_refused<T>(result: Result<T, CatalogError>) -> bool {
    matches!(result, Err(CatalogError::Refused { .. }))
}

fn is_not_found<T>(result: Result<T, CatalogError>) -> bool {
    matches!(result, Err(CatalogError::NotFound { .. }))
}

fn a_new_lease_has_a_higher_epoch_and_fences_the_old_one(fixture: &dyn Fixture) {
    let catalog = fixture.catalog();
    let volume = fixture.create();
    let old = catalog.acquire(volume, SALT, None).expect("a lease");
    let new = catalog.acquire(volume, SALT, None).expect("a lease");
    assert!(old.epoch >= old.keys[0].epoch_first && new.epoch > old.epoch);
    assert!(is_fenced(catalog.commit(&commit(&old, None, 1))));
    assert!(is_fenced(catalog.reserve_serials(volume, old.epoch, 1)));
    assert!(is_fenced(catalog.finish_sweep(volume, old.epoch)));
    catalog
        .commit(&commit(&new, None, 1))
        .expect("the holder commits");
    assert!(is_not_found(catalog.acquire(
        VolumeId::from_u128(99),
        SALT,
        None
    )));
}

fn a_commit_needs_the_head_it_was_made_for(fixture: &dyn Fixture) {
    let (lease, keys) = line(fixture, 2);
    let catalog = fixture.catalog();
    assert!(is_fenced(catalog.commit(&commit(&lease, None, 3))));
    assert!(is_fenced(catalog.commit(&commit(&lease, Some(keys[0]), 3))));
    catalog
        .commit(&commit(&lease, Some(keys[1]), 3))
        .expect("on the head");
}

fn a_refused_commit_changes_nothing(fixture: &dyn Fixture) {
    let (lease, keys) = line(fixture, 1);
    let catalog = fixture.catalog();
    let snapshot = fixture.snapshot(lease.volume);
    let mut stale = commit(&lease, None, 2);
    stale.pins = vec![snapshot];
    stale.open_segments = vec![OpenSegment {
        segment: segment(1),
        slots: 1,
    }];
    assert!(is_fenced(catalog.commit(&stale)));
    assert!(is_not_found(catalog.version(stale.version.key)));
    let next = catalog.acquire(lease.volume, SALT, None).expect("a lease");
    assert_eq!(next.head.expect("a head").key, keys[0]);
    assert_eq!(next.leftovers.open_segments, Vec::new());
    assert!(
        !catalog
            .neighbors(keys[0])
            .expect("there")
            .children
            .iter()
            .any(|_| true)
    );
}

fn a_lease_returns_the_last_committed_version(fixture: &dyn Fixture) {
    let catalog = fixture.catalog();
    let volume = fixture.create();
    let first = catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!((first.head.as_ref(), first.number_last), (None, 0));
    let last = commit(&first, None, 5);
    catalog.commit(&last).expect("commits");
    let second = catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(second.head, Some(last.version.clone()));
    assert_eq!(second.number_last, 5);
    assert_eq!(
        (first.journal_next, second.journal_next),
        (0, last.version.journal_next)
    );
    assert_eq!(
        catalog.version(last.version.key).expect("kept"),
        last.version
    );
}

fn no_serial_is_handed_out_twice(fixture: &dyn Fixture) {
    let catalog = fixture.catalog();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..3 {
        let volume = fixture.create();
        for _ in 0..2 {
            let lease = catalog.acquire(volume, SALT, None).expect("a lease");
            for count in [1, 16, 3] {
                let range = catalog
                    .reserve_serials(volume, lease.epoch, count)
                    .expect("many");
                assert_eq!(range.end - range.start, u64::from(count));
                assert!(range.start > 0, "location 0 is a hole in the map");
                assert!(range.clone().all(|serial| seen.insert(serial)), "{range:?}");
            }
            catalog.finish_sweep(volume, lease.epoch).expect("swept");
        }
    }
}

fn leftovers_are_kept_until_they_are_swept(fixture: &dyn Fixture) {
    let catalog = fixture.catalog();
    let volume = fixture.create();
    let first = catalog.acquire(volume, SALT, None).expect("a lease");
    let early = catalog
        .reserve_serials(volume, first.epoch, 4)
        .expect("many");
    let late = catalog
        .reserve_serials(volume, first.epoch, 4)
        .expect("many");
    let open = OpenSegment {
        segment: segment(early.start + 1),
        slots: 40,
    };
    let mut version = commit(&first, None, 1);
    version.open_segments = vec![open];
    version.serial_next = early.start + 2;
    catalog.commit(&version).expect("commits");

    let second = catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(second.leftovers.open_segments, vec![open]);
    let left: Vec<u64> = second.leftovers.serials.iter().cloned().flatten().collect();
    let expected: Vec<u64> = (early.start + 2..early.end).chain(late.clone()).collect();
    assert_eq!(left, expected);

    // The second lease's own segments are not leftovers; it sweeps those of earlier leases.
    let mut version = commit(&second, Some(version.version.key), 2);
    let own = catalog.reserve_serials(volume, second.epoch, 1);
    version.open_segments = vec![OpenSegment {
        segment: segment(own.expect("one").start),
        slots: 1,
    }];
    catalog.commit(&version).expect("commits");
    let third = catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(
        third.leftovers.open_segments.len(),
        2,
        "leftovers are kept until they are swept"
    );
    catalog.finish_sweep(volume, third.epoch).expect("swept");
    let fourth = catalog.acquire(volume, SALT, None).expect("a lease");
    assert_eq!(fourth.leftovers, Default::default());
}

fn a_clone_has_its_own_key_above_its_parents_epochs(fixture: &dyn Fixture) {
    let (lease, keys) = line(fixture, 1);
    let catalog = fixture.catalog();
    let snapshot = fixture.snapshot(lease.volume);
    let mut second = commit(&lease, Some(keys[0]), 2);
    second.pins = vec![snapshot];
    catalog.commit(&second).expect("commits");
    // The parent continues under later epochs, with its own key.
    catalog.acquire(lease.volume, SALT, None).expect("a lease");

    let clone = fixture.clone_of(snapshot);
    let cloned = catalog.acquire(clone, SALT, None).expect("a lease");
    assert_eq!(
        cloned.head.as_ref().map(|head| head.key),
        Some(second.version.key)
    );
    let lineages: Vec<Lineage> = cloned.keys.iter().map(|key| key.lineage).collect();
    assert_eq!(lineages.len(), 2);
    assert_eq!(lineages[1], lease.keys[0].lineage);
    assert!(cloned.keys[0].epoch_first > second.version.epoch);
    assert!(cloned.epoch >= cloned.keys[0].epoch_first);
    assert_eq!(cloned.journal_next, 0, "its journal is its own");

    // A clone of the clone, before it wrote anything, inherits from the parent.
    let again = commit(&cloned, Some(second.version.key), 3);
    catalog.commit(&again).expect("commits");
    let snapshot = fixture.snapshot(clone);
    let mut pinned = commit(&cloned, Some(again.version.key), 4);
    pinned.pins = vec![snapshot];
    catalog.commit(&pinned).expect("commits");
    let grandchild = catalog
        .acquire(fixture.clone_of(snapshot), SALT, None)
        .expect("a lease");
    assert_eq!(grandchild.keys[1..], cloned.keys[..]);
    assert_eq!(catalog.keys(lineages[0]).expect("kept"), cloned.keys);
}

fn removing_a_version_gives_its_children_to_its_parent(fixture: &dyn Fixture) {
    let (lease, keys) = line(fixture, 3);
    let catalog = fixture.catalog();
    let around = catalog.neighbors(keys[1]).expect("there");
    assert_eq!(
        around.parent.as_ref().map(|parent| parent.key),
        Some(keys[0])
    );
    assert_eq!(
        around
            .children
            .iter()
            .map(|child| child.key)
            .collect::<Vec<_>>(),
        [keys[2]]
    );
    assert!(!around.needed);
    catalog
        .remove_version(keys[1], &around, Millis(5), &plan())
        .expect("not needed");
    assert!(is_not_found(catalog.version(keys[1])));
    assert_eq!(
        catalog.version(keys[2]).expect("kept").parent,
        Some(keys[0])
    );
    let first = catalog.neighbors(keys[0]).expect("there");
    catalog
        .remove_version(keys[0], &first, Millis(5), &plan())
        .expect("not needed");
    assert_eq!(catalog.version(keys[2]).expect("kept").parent, None);
    // Commits continue, by the epoch and the head alone.
    catalog
        .commit(&commit(&lease, Some(keys[2]), 4))
        .expect("on the head");
}

/// A plan that frees one slot.
fn plan() -> Vec<u8> {
    plan_of(7)
}

fn plan_of(location: u64) -> Vec<u8> {
    let mut plan = FreePlan::default();
    plan.add(Location::from_bits(location));
    plan.encode()
}

fn a_version_that_is_needed_is_not_removed(fixture: &dyn Fixture) {
    let (lease, keys) = line(fixture, 2);
    let catalog = fixture.catalog();
    let around = catalog.neighbors(keys[1]).expect("there");
    assert!(around.needed, "it is the head");
    assert!(is_refused(catalog.remove_version(
        keys[1],
        &around,
        Millis(0),
        &plan()
    )));

    let snapshot = fixture.snapshot(lease.volume);
    let mut third = commit(&lease, Some(keys[1]), 3);
    third.pins = vec![snapshot];
    catalog.commit(&third).expect("commits");
    catalog
        .commit(&commit(&lease, Some(third.version.key), 4))
        .expect("commits");
    let around = catalog.neighbors(third.version.key).expect("there");
    assert!(around.needed, "a snapshot holds it");
    assert!(is_refused(catalog.remove_version(
        third.version.key,
        &around,
        Millis(0),
        &plan()
    )));

    let clone = fixture.clone_of(snapshot);
    fixture.delete_snapshot(snapshot);
    let around = catalog.neighbors(third.version.key).expect("there");
    assert!(around.needed, "it is the clone's head");
    let cloned = catalog.acquire(clone, SALT, None).expect("a lease");
    catalog
        .commit(&commit(&cloned, Some(third.version.key), 4))
        .expect("commits");
    let around = catalog.neighbors(third.version.key).expect("there");
    assert!(!around.needed, "the clone has moved on");
    assert_eq!(
        around.children.len(),
        2,
        "the volume's next version, and the clone's first"
    );
    catalog
        .remove_version(third.version.key, &around, Millis(0), &plan())
        .expect("goes");
    assert_eq!(all_due(catalog, 0).len(), 1);
}

fn all_due(catalog: &dyn Catalog, now: i64) -> Vec<PendingFree> {
    let due = catalog.due_frees(Millis(now), 0, u32::MAX);
    due.expect("answers")
}

fn a_removal_planned_for_other_neighbors_is_refused(fixture: &dyn Fixture) {
    let (lease, keys) = line(fixture, 4);
    let catalog = fixture.catalog();
    let second = catalog.neighbors(keys[1]).expect("there");
    let third = catalog.neighbors(keys[2]).expect("there");
    catalog
        .remove_version(keys[1], &second, Millis(0), &plan())
        .expect("not needed");
    assert!(
        is_refused(catalog.remove_version(keys[2], &third, Millis(0), &plan())),
        "its parent"
    );
    let gone = catalog.remove_version(keys[1], &second, Millis(0), &plan());
    assert!(is_refused(gone.clone()) || is_not_found(gone), "it is gone");
    assert_eq!(all_due(catalog, 0).len(), 1, "nothing was noted");
    let current = catalog.neighbors(keys[2]).expect("there");
    catalog
        .remove_version(keys[2], &current, Millis(0), &plan())
        .expect("planned with the current neighbors");
    let _ = lease;
}

fn dead_slots_are_gathered_until_they_are_forgotten(fixture: &dyn Fixture) {
    let (lease, keys) = line(fixture, 4);
    let catalog = fixture.catalog();
    let copyset = CopysetId::new(5).expect("12 bits");
    let serials = catalog.reserve_serials(lease.volume, lease.epoch, 3);
    let serials = serials.expect("handed out");
    let segment = |number| SegmentId::new(copyset, serials.start + number).expect("36 bits");
    let plan = |slots: &[(u64, u16)]| {
        let mut plan = FreePlan::default();
        for (number, slot) in slots {
            plan.add(Location::new(segment(*number), base::Slot(*slot)));
        }
        plan
    };
    let plans = [
        plan(&[(0, 1), (0, 2), (1, 7)]),
        plan(&[(0, 2), (0, 9), (2, 4)]),
    ];
    for (key, plan) in keys.iter().zip(&plans) {
        let around = catalog.neighbors(*key).expect("there");
        let removed = catalog.remove_version(*key, &around, Millis(1), &plan.encode());
        removed.expect("not needed");
    }
    let ids: Vec<i64> = all_due(catalog, 9).iter().map(|free| free.id).collect();
    let gather = |id, segments: &[SegmentId]| {
        let gathered = catalog.gather_dead_slots(id, segments).expect("gathered");
        FreePlan::decode(&gathered).expect("a plan")
    };
    let all = [segment(0), segment(1), segment(2)];
    // Slots of another free are not gathered by this one.
    assert_eq!(gather(ids[0], &all), plans[0]);
    for _ in 0..2 {
        let both = plan(&[(0, 1), (0, 2), (0, 9)]);
        assert_eq!(gather(ids[1], &[segment(0)]), both, "also of the other");
    }
    // Appended plans are kept even if none of their slots was gathered.
    let mut open = commit(&lease, keys.last().copied(), 5);
    open.open_segments = vec![OpenSegment {
        segment: segment(0),
        slots: 12,
    }];
    open.serial_next = serials.start + 1;
    catalog.commit(&open).expect("commits");
    assert_eq!(gather(ids[1], &all), plan(&[(2, 4)]));
    let mut closed = commit(&lease, Some(open.version.key), 6);
    closed.serial_next = serials.start + 1;
    let frees = || -> Vec<i64> { all_due(catalog, 9).iter().map(|free| free.id).collect() };
    assert_eq!(frees(), ids, "it is still open");
    catalog.commit(&closed).expect("commits");
    // When the segments are closed, a free is due for them.
    let due = frees();
    assert_eq!(due.len(), 3, "{due:?}");
    assert_eq!(gather(due[2], &all), plan(&[(0, 1), (0, 2), (0, 9)]));
    catalog.finish_free(due[2], 0).expect("forgets");
    assert_eq!(gather(ids[1], &[segment(0)]).slots(), 3);
    catalog.forget_dead(ids[0], &all).expect("forgotten");
    assert_eq!(gather(ids[1], &all), plans[1], "what it says itself");
    catalog.finish_free(ids[1], 0).expect("forgets");
    catalog
        .gather_dead_slots(ids[1], &all)
        .expect_err("carried out");
}

fn a_free_is_due_once_and_after_its_grace_period(fixture: &dyn Fixture) {
    let (_, keys) = line(fixture, 3);
    let catalog = fixture.catalog();
    let (one, two) = (plan_of(1), plan_of(2));
    for (key, at, plan) in [(keys[0], 20, &one), (keys[1], 10, &two)] {
        let around = catalog.neighbors(key).expect("there");
        catalog
            .remove_version(key, &around, Millis(at), plan)
            .expect("not needed");
    }
    let plans = |now| -> Vec<Vec<u8>> {
        let due = all_due(catalog, now);
        let mut plans: Vec<_> = due.into_iter().map(|free| free.plan).collect();
        plans.sort_unstable();
        plans
    };
    assert_eq!(plans(9), Vec::<Vec<u8>>::new());
    assert_eq!(plans(10), std::slice::from_ref(&two));
    assert_eq!(plans(20), [one.clone(), two]);
    let both = all_due(catalog, 20);
    let some = |after, count_max| {
        let due = catalog.due_frees(Millis(20), after, count_max);
        due.expect("answers")
    };
    assert_eq!(some(0, 1), both[..1], "in order, no more than asked for");
    assert_eq!(some(both[0].id, 9), both[1..], "behind one");
    assert_eq!(some(both[1].id, 9), [], "behind all");
    let due = all_due(catalog, 10);
    catalog.finish_free(due[0].id, 0).expect("forgets");
    catalog
        .finish_free(due[0].id, 0)
        .expect("forgetting twice is no error");
    assert_eq!(plans(20), [one]);
}
