//! Draining, removing and replacing units: the last complete copy stays
//! (docs/internals/repair.md).

use std::collections::HashSet;

use base::{CopysetId, UnitId};
use catalog::{CatalogError, Copyset, MemberState};
use control::database::{DatabaseError, Removal, UnitRow};
use world::Millis;

use crate::fresh::{on_postgres, on_sqlite, volume};
use crate::postgres::Postgres;
use crate::repair_scene::{NOW, Scene, unit};

mod claims {
    use super::*;

    pub async fn a_drained_unit_is_removed_when_its_replacements_are_in_sync(scene: Scene) {
        let usable = Scene::others(&[2, 3]);
        let moved = scene
            .database
            .units()
            .drain(&scene.principal, &[unit(0)], &usable)
            .await;
        let (_, moved) = moved.expect("there are others").remove(0);
        assert_eq!((moved.copysets, moved.is_removed), (1, false));
        let standing = scene.member_states().await;
        assert_eq!(
            standing,
            [
                (unit(2), MemberState::Rebuilding),
                (unit(1), MemberState::InSync),
                (unit(0), MemberState::Draining)
            ]
        );
        let table = scene.database.units().copysets().await.expect("read");
        assert_eq!((table[0].joined, table[0].draining[0].place), (1, 0));
        assert_eq!(scene.database.units().all().await.expect("read").len(), 4);
        let job = scene.take(0, NOW).await.expect("rebuilding");
        scene.ends_well(0, &job).await;
        assert_eq!(scene.member_states().await.len(), 2);
        let left = scene.database.units().all().await.expect("read");
        assert!(left.iter().all(|row| row.id != unit(0)), "it is removed");
        // A removed unit cannot be added again with its old segments.
        let again = [UnitRow::new(unit(0), "file:///0".to_owned())];
        let added = scene.database.units().plan(&again, |_, _| Vec::new(), NOW);
        assert!(matches!(added.await, Err(DatabaseError::Refused { .. })));
    }

    /// When two units were drained one after the other, the second one replaced the first, and
    /// everything was copied twice.
    pub async fn a_draining_unit_replaces_no_member(scene: Scene) {
        let (principal, database) = (&scene.principal, &scene.database);
        // The usable units were determined before the second unit was drained.
        let usable = Scene::others(&[1, 2, 3]);
        let none = Scene::others(&[]);
        let refused = database
            .units()
            .drain(principal, &[unit(2), unit(0)], &none)
            .await;
        match refused {
            Err(DatabaseError::Refused { reason }) => {
                assert!(reason.contains("file:///0 (unit-"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        let rows = database.units().all().await.expect("read");
        assert!(rows.iter().all(|row| !row.is_draining), "all or none");
        // One draining unit is a member, and the other one would be the first choice to replace it.
        let id = CopysetId::new(1).expect("12 bits");
        let plan =
            |_: &[UnitRow], _: &[Copyset]| vec![Copyset::of_copies(id, vec![unit(1), unit(2)])];
        let planned = database.units().plan(&[], plan, NOW).await;
        planned.expect("planned");
        scene.drain(2, &usable).await;
        scene.drain(0, &usable).await;
        for copyset in database.units().copysets().await.expect("read") {
            let members: HashSet<UnitId> = copyset.members.into_iter().collect();
            assert_eq!(members, Scene::others(&[1, 3]));
        }
    }

    /// A drain could once not be canceled.
    pub async fn a_canceled_drain_restores_the_members(scene: Scene) {
        let segment = scene.attach().await;
        let (principal, database) = (&scene.principal, &scene.database);
        let cancel = async |number: u128| {
            database
                .units()
                .cancel_drain(principal, &[unit(number)])
                .await
        };
        let refused = cancel(0).await;
        assert!(matches!(refused, Err(DatabaseError::Refused { .. })));
        let usable = Scene::others(&[2]);
        scene.drain(0, &usable).await;
        scene.commit(1, (1, 1), None).await.expect("on the new one");
        let kept = cancel(0).await.expect("it leaves a place");
        assert_eq!((kept[0].1.copysets, kept[0].1.is_removed), (1, false));
        assert_eq!(
            scene.member_states().await,
            [
                (unit(0), MemberState::Rebuilding),
                (unit(1), MemberState::InSync),
                (unit(2), MemberState::Draining)
            ]
        );
        let copysets = database.units().copysets().await.expect("read");
        assert_eq!((copysets[0].joined, copysets[0].draining[0].place), (2, 0));
        // Slots that were put during the drain are on the other members, so a version may name
        // them.
        let lacking = Some((segment, &[1][..]));
        scene
            .commit(2, (1, 1), lacking)
            .await
            .expect("on the other");
        let before = scene.commit(3, (0, 0), lacking).await;
        assert!(matches!(before, Err(CatalogError::MembersChanged { .. })));
        let mut again = scene.take(0, NOW).await.expect("it has missed that");
        again.missed.retain(|(member, _)| *member != unit(2));
        scene.ends_well(0, &again).await;
        assert_eq!(scene.states().await, [MemberState::InSync; 2]);
        let rows = database.units().all().await.expect("read");
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| !row.is_draining));
    }

    pub async fn the_last_complete_copy_is_never_removed(scene: Scene) {
        let remove = async |number: u128, how, others: &[u128]| {
            let (usable, there) = (Scene::others(others), Scene::others(&[0, 1, 2, 3]));
            let removed =
                scene
                    .database
                    .units()
                    .remove(&scene.principal, unit(number), how, &usable, &there);
            match removed.await {
                Err(DatabaseError::Refused { reason }) => reason,
                other => format!("{other:?}"),
            }
        };
        assert!(remove(0, Removal::Empty, &[2, 3]).await.contains("drain"));
        assert!(
            remove(0, Removal::Lost, &[])
                .await
                .contains("scree unit add")
        );
        scene.suspicion(1, false).await;
        // Unit 1 may be missing slots that only unit 0 has.
        assert!(
            remove(0, Removal::Lost, &[2, 3])
                .await
                .contains("last complete copy")
        );
        assert_eq!(scene.member_states().await.len(), 2, "nothing has changed");
        let job = scene.take(0, NOW).await.expect("rebuilding");
        scene.ends_well(0, &job).await;
        assert!(remove(0, Removal::Lost, &[2, 3]).await.starts_with("Ok"));
        let standing = scene.member_states().await;
        assert_eq!(standing[0], (unit(2), MemberState::Rebuilding));
        // Until the replacement is in sync, the other member has the last copy.
        assert!(
            remove(1, Removal::Lost, &[3])
                .await
                .contains("last complete copy")
        );
        // The replacement is lost as well, and is replaced.
        assert!(remove(2, Removal::Lost, &[3]).await.starts_with("Ok"));
        let job = scene.take(0, NOW).await.expect("rebuilding");
        scene.ends_well(0, &job).await;
        assert!(
            remove(1, Removal::Lost, &[])
                .await
                .contains("scree unit add")
        );
        // A unit that is a member of no copyset is removed at once.
        let moved = scene
            .database
            .units()
            .drain(&scene.principal, &[unit(3)], &HashSet::new())
            .await;
        assert!(matches!(moved, Err(DatabaseError::Refused { .. })));
    }

    /// A healthy unit was once removed because a dead one counted as a complete copy. Without
    /// another member in sync, the operator has to accept the data loss.
    pub async fn an_unreachable_unit_does_not_count_as_a_copy(scene: Scene) {
        let usable = Scene::others(&[2, 3]);
        let remove = async |number: u128, how, there: &[u128]| {
            let (principal, there) = (&scene.principal, Scene::others(there));
            let removed =
                scene
                    .database
                    .units()
                    .remove(principal, unit(number), how, &usable, &there);
            match removed.await {
                Err(DatabaseError::Refused { reason }) => reason,
                other => format!("{other:?}"),
            }
        };
        let said = remove(0, Removal::Lost, &[2, 3]).await;
        assert!(
            said.contains("file:///0 (unit-") && said.contains("last complete copy"),
            "{said}"
        );
        assert!(said.contains("file:///1 (unit-"), "{said}");
        assert!(said.contains("is not reached by any host"), "{said}");
        assert_eq!(scene.states().await, [MemberState::InSync; 2]);

        // The replacement of a draining unit is lost before it is in sync.
        scene.drain(0, &Scene::others(&[2])).await;
        scene.suspicion(1, true).await;
        let said = remove(2, Removal::Lost, &[0, 1, 3]).await;
        assert!(said.contains("file:///1 (unit-"), "{said}");
        assert!(said.contains("may be incomplete"), "{said}");
        assert!(said.contains("since its drain began"), "{said}");
        let said = remove(2, Removal::DataLossAccepted, &[0, 1, 3]).await;
        assert!(said.starts_with("Ok"), "{said}");
        assert!(said.contains("copysets_lost: 1"), "{said}");
        let standing = scene.member_states().await;
        assert_eq!(standing[0], (unit(3), MemberState::Rebuilding));
        scene.is_repaired().await;
        assert_eq!(scene.states().await, [MemberState::InSync; 2]);
    }

    /// A cluster that began with one unit has copysets of one member. A lost unit could not be
    /// removed because of such a copyset, though nothing was ever stored there.
    pub async fn in_an_empty_copyset_a_member_is_replaced_at_once(scene: Scene) {
        let id = CopysetId::new(1).expect("12 bits");
        let plan = |_: &[UnitRow], _: &[Copyset]| vec![Copyset::of_copies(id, vec![unit(0)])];
        let added = scene.database.units().plan(&[], plan, NOW);
        added.await.expect("planned");
        let of_one = async || {
            let copysets = scene.database.units().copysets().await.expect("read");
            let found = copysets.into_iter().find(|copyset| copyset.id == id);
            found
                .expect("it exists")
                .member_states()
                .collect::<Vec<_>>()
        };
        let (principal, usable) = (&scene.principal, Scene::others(&[2]));
        let all = Scene::others(&[0, 1, 2, 3]);
        let removed =
            scene
                .database
                .units()
                .remove(principal, unit(0), Removal::Lost, &usable, &all);
        assert_eq!(removed.await.expect("removed").copysets, 2);
        assert_eq!(of_one().await, [(unit(2), MemberState::InSync)]);
        assert_eq!(
            scene.member_states().await[0],
            (unit(2), MemberState::Rebuilding)
        );

        // From now on the copyset may hold data.
        let new = volume("single", NOW);
        let inserted = scene.database.volumes().insert(principal, &new);
        inserted.await.expect("made");
        let usable = Scene::others(&[3]);
        let refused =
            scene
                .database
                .units()
                .remove(principal, unit(2), Removal::Lost, &usable, &all);
        assert!(matches!(refused.await, Err(DatabaseError::Refused { .. })));
        assert_eq!(of_one().await, [(unit(2), MemberState::InSync)]);
    }

    pub async fn a_unit_that_has_been_missing_for_too_long_is_replaced(scene: Scene) {
        let missing = Scene::others(&[0]);
        let note = |now: i64| {
            let unresponsive_before = Millis(now - 10_000);
            let (now, since) = (Millis(now), Millis(now - 1000));
            scene
                .database
                .units()
                .record_missing(&missing, now, since, unresponsive_before)
        };
        assert_eq!(note(5000).await.expect("noted"), []);
        assert_eq!(note(5999).await.expect("noted"), []);
        assert_eq!(note(6000).await.expect("noted"), [unit(0)]);
        // During a power failure no host was running that could have reached the unit.
        assert_eq!(note(16_001).await.expect("noted"), []);
        assert_eq!(note(17_000).await.expect("noted"), []);
        assert_eq!(note(17_001).await.expect("noted"), [unit(0)]);
        let usable = Scene::others(&[3]);
        // The other member is missing as well, so it does not count as a copy.
        let none = HashSet::new();
        let replaced = scene
            .database
            .units()
            .replace_missing(unit(0), &usable, &none, NOW);
        assert_eq!(replaced.await.expect("looked at"), 0);
        let there = Scene::others(&[1, 2, 3]);
        let replaced = scene
            .database
            .units()
            .replace_missing(unit(0), &usable, &there, NOW)
            .await;
        assert_eq!(replaced.expect("replaced"), 1);
        assert_eq!(
            scene.member_states().await[0],
            (unit(3), MemberState::Rebuilding)
        );
        let replaced = scene
            .database
            .units()
            .replace_missing(unit(0), &usable, &there, NOW)
            .await;
        assert_eq!(replaced.expect("it was before"), 0);
        // The unit rejoins before its replacement is in sync.
        let back = scene
            .database
            .units()
            .record_missing(&HashSet::new(), NOW, NOW, NOW)
            .await;
        assert_eq!(back.expect("noted"), []);
    }
}

#[test]
fn a_drained_unit_is_removed_when_its_replacements_are_in_sync() {
    on_sqlite(claims::a_drained_unit_is_removed_when_its_replacements_are_in_sync);
}

#[test]
fn a_draining_unit_replaces_no_member() {
    on_sqlite(claims::a_draining_unit_replaces_no_member);
}

#[test]
fn a_canceled_drain_restores_the_members() {
    on_sqlite(claims::a_canceled_drain_restores_the_members);
}

#[test]
fn the_last_complete_copy_is_never_removed() {
    on_sqlite(claims::the_last_complete_copy_is_never_removed);
}

#[test]
fn an_unreachable_unit_does_not_count_as_a_copy() {
    on_sqlite(claims::an_unreachable_unit_does_not_count_as_a_copy);
}

#[test]
fn in_an_empty_copyset_a_member_is_replaced_at_once() {
    on_sqlite(claims::in_an_empty_copyset_a_member_is_replaced_at_once);
}

#[test]
fn a_unit_that_has_been_missing_for_too_long_is_replaced() {
    on_sqlite(claims::a_unit_that_has_been_missing_for_too_long_is_replaced);
}

#[test]
fn all_of_this_holds_on_postgresql() {
    let server = Postgres::start();
    on_postgres(
        &server,
        claims::a_drained_unit_is_removed_when_its_replacements_are_in_sync,
    );
    on_postgres(&server, claims::a_draining_unit_replaces_no_member);
    on_postgres(&server, claims::a_canceled_drain_restores_the_members);
    on_postgres(&server, claims::the_last_complete_copy_is_never_removed);
    on_postgres(
        &server,
        claims::an_unreachable_unit_does_not_count_as_a_copy,
    );
    on_postgres(
        &server,
        claims::in_an_empty_copyset_a_member_is_replaced_at_once,
    );
    on_postgres(
        &server,
        claims::a_unit_that_has_been_missing_for_too_long_is_replaced,
    );
}
