//! Which host repairs a copyset, and when a member is in sync (docs/internals/repair.md).

use api::host::RepairOutcome;
use base::{CopysetId, Location, UnitId};
use catalog::{CatalogError, Copyset, FreePlan, MemberState, PendingFree};
use control::database::{Removal, UnitRow};
use serde_json::Value;
use world::Millis;

use crate::calls;
use crate::fresh::{on_postgres, on_sqlite};
use crate::postgres::Postgres;
use crate::repair_scene::{LATER, NOW, Scene, copyset, unit};

mod claims {
    use super::*;

    pub async fn a_copyset_stays_with_its_repairing_host_until_that_is_unresponsive(scene: Scene) {
        scene.suspicion(1, false).await;
        assert!(scene.take(0, NOW).await.is_some());
        assert_eq!(scene.take(1, NOW).await, None, "another has it");
        assert_eq!(scene.report_progress(1, NOW).await, None);
        let may = |host: usize, now| {
            scene
                .database
                .repair()
                .rights(scene.hosts[host], copyset(), now)
        };
        // The host may change the rebuilding member, and not the members it copies from.
        assert_eq!(may(0, NOW).await.expect("read"), Some(vec![unit(1)]));
        assert_eq!(may(1, NOW).await.expect("read"), None);
        let said = Millis(NOW.0 + 50_000);
        assert!(
            scene.report_progress(0, said).await.is_some(),
            "it says how far it is"
        );
        let shown = scene.database.repair().list(said).await.expect("read");
        assert_eq!(
            (shown[0].progress.done, shown[0].repairer.as_deref()),
            (1, Some("one"))
        );
        assert_eq!(scene.take(1, LATER).await, None);
        // The host is unresponsive, so another host continues.
        let unresponsive = Millis(said.0 + 60_001);
        assert!(
            scene.take(1, unresponsive).await.is_none(),
            "it may still put"
        );
        let unresponsive = Millis(unresponsive.0 + 30_000);
        let job = scene
            .take(1, unresponsive)
            .await
            .expect("no host repairs it");
        assert_eq!(may(0, unresponsive).await.expect("read"), None);
        assert_eq!(scene.report_progress(0, unresponsive).await, None);
        let end = RepairOutcome {
            in_sync: job.missed,
            ..RepairOutcome::default()
        };
        assert!(
            !scene.end(0, unresponsive, end.clone()).await,
            "it was too late"
        );
        assert!(scene.end(1, unresponsive, end).await);
        let whole = |(_, state): &(UnitId, MemberState)| *state == MemberState::InSync;
        assert!(scene.member_states().await.iter().all(whole));
    }

    /// A faulty host could once fill the database, and show texts of any length.
    pub async fn a_repair_report_names_a_limited_number_of_units(scene: Scene) {
        scene.suspicion(1, false).await;
        let job = scene.take(0, NOW).await.expect("a job");
        let call = |end| calls::EndRepair {
            copyset: copyset(),
            end,
        };
        let many: Vec<UnitId> = (0..2000).map(unit).collect();
        let long = RepairOutcome {
            copied_to: Some(many),
            ..RepairOutcome::default()
        };
        let refused = scene.call(0, NOW, call(long)).await;
        assert!(
            matches!(refused, Err(CatalogError::Refused { .. })),
            "{refused:?}"
        );
        assert!(
            scene.report_progress(0, NOW).await.is_some(),
            "it still has it"
        );
        let wordy = RepairOutcome {
            copied_to: Some(Vec::new()),
            problem: Some("ä".repeat(100_000)),
            ..RepairOutcome::default()
        };
        assert!(scene.end(0, NOW, wordy).await);
        let shown = scene.database.repair().list(NOW).await.expect("read");
        let shown = shown.iter().find(|row| row.copyset == job.copyset.id);
        let problem = shown.and_then(|row| row.problem.clone()).expect("shown");
        assert_eq!(problem.chars().count(), 2000);
    }

    /// A host that reported units as incomplete was once given the right to change them. It could
    /// also go from copyset to copyset and keep its rights on each.
    pub async fn a_host_that_reported_a_suspicion_does_not_repair_and_none_repairs_two(
        scene: Scene,
    ) {
        let id = CopysetId::new(1).expect("12 bits");
        let plan =
            |_: &[UnitRow], _: &[Copyset]| vec![Copyset::of_copies(id, vec![unit(1), unit(2)])];
        let planned = scene.database.units().plan(&[], plan, NOW);
        planned.await.expect("planned");
        let job = scene.take(0, NOW).await.expect("it was never read");
        assert_eq!(job.copyset.id, id);
        let rights = scene
            .database
            .repair()
            .rights(scene.hosts[0], id, NOW)
            .await;
        assert_eq!(rights.expect("read"), Some(vec![unit(1), unit(2)]));
        assert!(scene.take(0, NOW).await.is_some_and(|same| same == job));
        let call = calls::EndRepair {
            copyset: id,
            end: RepairOutcome {
                compared: true,
                scrubbed: true,
                ..RepairOutcome::default()
            },
        };
        scene.call(0, NOW, call).await.expect("ended");
        // The first host reports two members as incomplete, so the other host repairs.
        scene.suspect_as(0, 1, true).await;
        let soon = Millis(NOW.0 + 30_001);
        assert_eq!(scene.take(0, soon).await, None, "it is who suspected");
        let first = scene.take(1, soon).await.expect("the other one repairs");
        let failed = |copyset| calls::EndRepair {
            copyset,
            end: RepairOutcome {
                problem: Some("a unit is unavailable".to_owned()),
                ..RepairOutcome::default()
            },
        };
        let ended = scene.call(1, soon, failed(first.copyset.id)).await;
        ended.expect("ended");
        assert_eq!(scene.take(1, soon).await, None, "its rights have not ended");
        let again = scene.take(1, Millis(soon.0 + 5_000)).await;
        let again = again.expect("it may try the same again");
        assert_eq!(again.copyset.id, first.copyset.id);
        let later = Millis(soon.0 + 5_000);
        let ended = scene.call(1, later, failed(first.copyset.id)).await;
        ended.expect("ended");
        assert_eq!(scene.take(1, Millis(later.0 + 9_999)).await, None);
        let next = scene.take(1, Millis(later.0 + 30_000)).await;
        let next = next.expect("those that have no problem come first");
        assert_ne!(next.copyset.id, first.copyset.id);
        // The other host is unresponsive.
        let unresponsive = Millis(NOW.0 + 200_000);
        assert!(
            scene.take(0, unresponsive).await.is_some(),
            "no other host reports"
        );
    }

    /// A host whose commit named members as incomplete was once given the right to change them.
    pub async fn a_host_does_not_repair_members_that_its_own_commit_reported(scene: Scene) {
        let segment = scene.attach().await;
        let all = (u64::MAX, u64::MAX);
        let incomplete = scene.commit(1, all, Some((segment, &[0, 1]))).await;
        assert!(
            matches!(incomplete, Err(CatalogError::MembersChanged { .. })),
            "some member must hold it: {incomplete:?}"
        );
        assert_eq!(scene.states().await, [MemberState::InSync; 2]);
        let (first, second) = (Some((segment, &[0][..])), Some((segment, &[1][..])));
        scene.commit(1, all, first).await.expect("the other has it");
        let later = Millis(NOW.0 + 30_001);
        assert_eq!(scene.take(1, later).await, None, "it is who committed");
        // It also loses a copyset that it is already repairing, since it would gain rights.
        scene.is_repaired().await;
        scene.suspicion(0, false).await;
        assert!(scene.take(1, later).await.is_some());
        scene
            .commit(2, all, second)
            .await
            .expect("the other has it");
        let may = |now| {
            scene
                .database
                .repair()
                .rights(scene.hosts[1], copyset(), now)
        };
        assert_eq!(may(later).await.expect("read"), None);
        assert_eq!(scene.report_progress(1, later).await, None);
        // If no other host is available, it continues.
        let alone = Millis(later.0 + 59_999);
        let both = Some(vec![unit(0), unit(1)]);
        assert_eq!(may(alone).await.expect("read"), both);
        let unresponsive = Millis(later.0 + 90_000);
        assert!(scene.take(1, unresponsive).await.is_some());
    }

    /// The same for a commit by an old copyset table, which does not have the new member.
    pub async fn a_host_that_did_not_know_a_new_member_does_not_repair(scene: Scene) {
        scene.attach().await;
        scene.drain(0, &Scene::others(&[2])).await;
        scene.is_repaired().await;
        assert_eq!(scene.states().await, [MemberState::InSync; 2]);
        scene.commit(1, (0, 0), None).await.expect("one has it");
        let later = Millis(NOW.0 + 30_001);
        assert_eq!(scene.take(1, later).await, None, "it is who committed");
        assert!(scene.take(0, later).await.is_some());
    }

    /// A host that rebuilt one member once reported the others as incomplete, and got them.
    pub async fn a_repair_report_on_other_members_is_ignored(scene: Scene) {
        scene.suspicion(0, false).await;
        scene.take(0, NOW).await.expect("rebuilding");
        let end = RepairOutcome {
            out_of_sync: vec![unit(0), unit(1)],
            ..RepairOutcome::default()
        };
        assert!(scene.end(0, NOW, end.clone()).await);
        let (rebuilding, in_sync) = (MemberState::Rebuilding, MemberState::InSync);
        assert_eq!(scene.states().await, [rebuilding, in_sync]);
        scene.is_repaired().await;
        // A comparison examines all members.
        let wanted = scene
            .database
            .units()
            .request_comparison(&scene.principal)
            .await;
        assert_eq!(wanted.expect("wanted"), 1);
        scene.take(0, NOW).await.expect("to be compared");
        assert!(scene.end(0, NOW, end).await);
        assert_eq!(scene.states().await, [rebuilding; 2]);
    }

    pub async fn a_member_is_in_sync_only_if_it_has_missed_nothing_since(scene: Scene) {
        scene.suspicion(1, false).await;
        let job = scene.take(0, NOW).await.expect("rebuilding");
        // The member has missed a write during the last pass.
        scene.suspect_as(1, 1, false).await;
        scene.ends_well(0, &job).await;
        assert_eq!(
            scene.member_states().await[1],
            (unit(1), MemberState::Rebuilding)
        );
        let job = scene.take(0, NOW).await.expect("still rebuilding");
        scene.ends_well(0, &job).await;
        assert_eq!(
            scene.member_states().await[1],
            (unit(1), MemberState::InSync)
        );
    }

    /// If both members were unavailable, one of them keeps counting as a copy. A member that was
    /// restored to an earlier state does not.
    pub async fn one_of_two_rejoined_units_keeps_counting_as_a_copy(scene: Scene) {
        scene.suspicion(0, false).await;
        scene.suspicion(1, false).await;
        let (rebuilding, in_sync) = (MemberState::Rebuilding, MemberState::InSync);
        assert_eq!(scene.states().await, [rebuilding, in_sync]);
        scene.suspicion(1, true).await;
        assert_eq!(scene.states().await, [rebuilding, rebuilding]);
    }

    /// While a host wrote a version by an old copyset table, both units were replaced. The version
    /// was committed, and no member had its slots.
    pub async fn a_version_without_enough_members_is_refused(scene: Scene) {
        let segment = scene.attach().await;
        let refused = |done: Result<(), CatalogError>| {
            assert!(
                matches!(done, Err(CatalogError::MembersChanged { .. })),
                "{done:?}"
            );
        };
        scene.commit(1, (0, 0), None).await.expect("members");
        let usable = Scene::others(&[2, 3]);
        let (principal, database) = (&scene.principal, &scene.database);
        scene.drain(0, &usable).await;
        let job = scene.take(0, NOW).await.expect("rebuilding");
        // The draining member has the slots that were put before the drain.
        let lacking = Some((segment, &[1][..]));
        scene.commit(2, (0, 0), lacking).await.expect("it exists");
        scene.ends_well(0, &job).await;
        assert_eq!(scene.member_states().await.len(), 3, "it has missed that");
        // It has none that were put later.
        refused(scene.commit(3, (0, 1), lacking).await);
        scene.is_repaired().await;
        assert_eq!(scene.member_states().await.len(), 2);
        refused(scene.commit(3, (0, 0), lacking).await);
        scene.commit(3, (0, 0), None).await.expect("the other one");
        scene.is_repaired().await;
        let all = Scene::others(&[0, 1, 2, 3]);
        let lost = database
            .units()
            .remove(principal, unit(1), Removal::Lost, &usable, &all);
        lost.await.expect("the other one is whole");
        for _ in 0..2 {
            refused(scene.commit(4, (0, 0), None).await);
            refused(scene.commit(4, (0, 2), None).await);
        }
        scene.commit(4, (1, 1), None).await.expect("one is there");
        // A host that repeats its puts uses the current members.
        let table = database.units().copysets().await.expect("read");
        let newest = table[0].joined;
        scene.commit(5, (newest, newest), None).await.expect("both");
        // The version names no new slots.
        let nothing = (u64::MAX, u64::MAX);
        scene.commit(6, nothing, None).await.expect("nothing");
    }

    pub async fn a_free_is_done_only_by_a_host_that_knew_all_members(scene: Scene) {
        let database = &scene.database;
        let mut plan = FreePlan::default();
        plan.add(Location::from_bits(1));
        database
            .catalog()
            .record_free_now(&plan.encode())
            .await
            .expect("noted");
        let usable = Scene::others(&[2]);
        scene.drain(0, &usable).await;
        let due = calls::DueFrees {
            now: NOW,
            after: 0,
            count_max: 1,
        };
        let due = scene.call(0, NOW, due).await.expect("one");
        let due: Vec<PendingFree> = serde_json::from_value(due).expect("one");
        let freed = |joined| {
            let id = due[0].id;
            scene.call(0, NOW, calls::Freed { id, joined })
        };
        for _ in 0..2 {
            let known = scene.call(0, NOW, calls::Joined {}).await;
            assert_eq!(known.expect("known"), Value::from(1));
            assert!(matches!(
                freed(0).await,
                Err(CatalogError::MembersChanged { .. })
            ));
            assert_eq!(
                database.catalog().pending_free_count().await.expect("read"),
                1
            );
        }
        freed(1).await.expect("forgotten");
        assert_eq!(
            database.catalog().pending_free_count().await.expect("read"),
            0
        );
    }

    /// A unit was in sync when a pass began, and was then found to be in an earlier state. Members
    /// rebuilt from it became in sync, and the draining member was removed.
    pub async fn a_member_rebuilt_from_an_older_unit_is_not_in_sync(scene: Scene) {
        let usable = Scene::others(&[2]);
        scene.drain(0, &usable).await;
        for (host, is_older) in [(2, true), (1, false)] {
            let job = scene.take(0, NOW).await.expect("rebuilding");
            scene.suspect_as(host, 1, is_older).await;
            scene.ends_well(0, &job).await;
            let standing = scene.member_states().await;
            assert_eq!(standing[0], (unit(2), MemberState::Rebuilding));
            assert_eq!(standing.last(), Some(&(unit(0), MemberState::Draining)));
        }
        scene.is_repaired().await;
        assert_eq!(scene.states().await, [MemberState::InSync; 2]);
    }

    /// A database was restored to a state before a drain. A host that still used the lost copyset
    /// table wrote to units that were no members any more.
    pub async fn a_restored_database_accepts_no_writes_by_an_older_table(scene: Scene) {
        scene.drain(0, &Scene::others(&[2])).await;
        let before = scene.database.units().copysets().await.expect("read");
        let moved = scene.database.catalog().move_ahead(9, scene.hosts[0], NOW);
        moved.await.expect("moved");
        let after = scene.database.units().copysets().await.expect("read");
        assert!(after[0].joined > before[0].joined + (1 << 31));
        let known = scene.call(0, NOW, calls::Joined {}).await;
        assert_eq!(known.expect("known"), Value::from(after[0].joined));
        let same = |copyset: &Copyset| Copyset {
            joined: 0,
            ..copyset.clone()
        };
        assert_eq!(same(&after[0]), same(&before[0]));
        scene.is_repaired().await;
        assert_eq!(scene.states().await, [MemberState::InSync; 2]);
    }
}

#[test]
fn a_copyset_stays_with_its_repairing_host_until_that_is_unresponsive() {
    on_sqlite(claims::a_copyset_stays_with_its_repairing_host_until_that_is_unresponsive);
    on_sqlite(claims::a_repair_report_names_a_limited_number_of_units);
}

#[test]
fn a_host_that_reported_a_suspicion_does_not_repair_and_none_repairs_two() {
    on_sqlite(claims::a_host_that_reported_a_suspicion_does_not_repair_and_none_repairs_two);
}

#[test]
fn the_host_whose_commit_reported_members_does_not_repair_them() {
    on_sqlite(claims::a_host_does_not_repair_members_that_its_own_commit_reported);
    on_sqlite(claims::a_host_that_did_not_know_a_new_member_does_not_repair);
}

#[test]
fn a_host_cannot_report_members_as_incomplete_that_it_does_not_rebuild() {
    on_sqlite(claims::a_repair_report_on_other_members_is_ignored);
}

#[test]
fn a_member_is_in_sync_only_if_it_has_missed_nothing_since() {
    on_sqlite(claims::a_member_is_in_sync_only_if_it_has_missed_nothing_since);
}

#[test]
fn one_of_two_rejoined_units_keeps_counting_as_a_copy() {
    on_sqlite(claims::one_of_two_rejoined_units_keeps_counting_as_a_copy);
}

#[test]
fn a_version_without_enough_members_is_refused() {
    on_sqlite(claims::a_version_without_enough_members_is_refused);
}

#[test]
fn a_free_is_done_only_by_a_host_that_knew_all_members() {
    on_sqlite(claims::a_free_is_done_only_by_a_host_that_knew_all_members);
}

#[test]
fn a_member_filled_from_an_older_unit_is_not_in_sync() {
    on_sqlite(claims::a_member_rebuilt_from_an_older_unit_is_not_in_sync);
}

#[test]
fn a_restored_database_accepts_no_writes_by_an_older_table() {
    on_sqlite(claims::a_restored_database_accepts_no_writes_by_an_older_table);
}

#[test]
fn all_of_this_holds_on_postgresql() {
    let server = Postgres::start();
    on_postgres(
        &server,
        claims::a_copyset_stays_with_its_repairing_host_until_that_is_unresponsive,
    );
    on_postgres(
        &server,
        claims::a_repair_report_names_a_limited_number_of_units,
    );
    on_postgres(
        &server,
        claims::a_host_that_reported_a_suspicion_does_not_repair_and_none_repairs_two,
    );
    on_postgres(
        &server,
        claims::a_host_does_not_repair_members_that_its_own_commit_reported,
    );
    on_postgres(
        &server,
        claims::a_host_that_did_not_know_a_new_member_does_not_repair,
    );
    on_postgres(&server, claims::a_repair_report_on_other_members_is_ignored);
    on_postgres(
        &server,
        claims::a_member_is_in_sync_only_if_it_has_missed_nothing_since,
    );
    on_postgres(
        &server,
        claims::one_of_two_rejoined_units_keeps_counting_as_a_copy,
    );
    on_postgres(
        &server,
        claims::a_restored_database_accepts_no_writes_by_an_older_table,
    );
    on_postgres(
        &server,
        claims::a_member_rebuilt_from_an_older_unit_is_not_in_sync,
    );
    on_postgres(
        &server,
        claims::a_free_is_done_only_by_a_host_that_knew_all_members,
    );
    on_postgres(&server, claims::a_version_without_enough_members_is_refused);
}
