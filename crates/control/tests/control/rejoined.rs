//! Reports of hosts on rejoined units: which are applied, and which slots of the units are suspect
//! (docs/internals/rejoined-units.md).

use std::ops::Range;

use api::host::{RepairJob, RepairOutcome, Suspicion};
use base::{SegmentId, UnitId};
use serde_json::Value;
use world::Millis;

use crate::calls;
use crate::fresh::{on_postgres, on_sqlite};
use crate::postgres::Postgres;
use crate::repair_scene::{LATER, NOW, Scene, copyset, unit};

/// When a set of in-flight slots has expired, and a host that stopped reporting does not have its
/// copyset any more.
const MUCH_LATER: Millis = Millis(NOW.0 + 11 * 60 * 1000);

impl Scene {
    async fn noted(&self) -> Vec<(UnitId, u64)> {
        let noted = self.call(0, NOW, calls::NotedLeases {}).await;
        serde_json::from_value(noted.expect("answered")).expect("counts")
    }

    async fn note(&self, number: u128, leases: u64) {
        let units = vec![(unit(number), leases)];
        let noted = self.call(0, NOW, calls::NoteLeases { units }).await;
        noted.expect("noted");
    }
}

/// The suspect serials of a rebuilding unit; `None` if all are suspect.
fn read_of(job: &RepairJob, number: u128) -> Option<&[Range<u64>]> {
    let known = job.suspect.iter().find(|(of, _)| *of == unit(number));
    known.map(|(_, serials)| serials.as_slice())
}

mod claims {
    use super::*;

    /// A compromised host repeated a suspicion without end, so that no pass brought any member in
    /// sync.
    pub async fn is_taken_once(scene: Scene) {
        assert!(scene.suspicion(1, false).await);
        let job = scene.take(0, NOW).await.expect("rebuilding");
        assert!(!scene.suspicion(1, false).await, "it is said again later");
        scene.ends_well(0, &job).await;
        assert!(scene.suspicion(1, false).await, "that was through");
        let job = scene.take(0, NOW).await.expect("rebuilding");
        assert!(scene.suspicion(1, true).await, "that it is older is more");
        assert!(!scene.suspicion(1, true).await);
        assert!(!scene.suspicion(1, false).await);
        assert!(scene.suspect_as(1, 1, false).await, "another host's word");
        scene.ends_well(0, &job).await;
        scene.is_repaired().await;
        assert_eq!(scene.take(0, NOW).await, None);
        let audit = scene.database.parties().audit_log(i64::MAX, 100).await;
        let audit = audit.expect("read");
        let said = audit.iter().filter(|row| row.action == "suspicion");
        let mut said: Vec<(&str, String)> = said
            .map(|row| (row.who.as_str(), row.target.clone()))
            .collect();
        said.sort();
        let of = |what: &str| format!("{} {what}", unit(1));
        assert_eq!(
            said,
            [
                ("scree://host/other", of("restarted")),
                ("scree://host/third", of("older")),
                ("scree://host/third", of("restarted")),
                ("scree://host/third", of("restarted")),
            ]
        );
    }

    /// A compromised host filled the audit log.
    pub async fn requests_without_a_change_are_not_logged(scene: Scene) {
        for _ in 0..3 {
            assert!(scene.suspicion(9999, true).await, "there is no such unit");
        }
        let audit = scene
            .database
            .parties()
            .audit_log(i64::MAX, 100)
            .await
            .expect("read");
        assert!(
            audit.iter().all(|row| row.action != "suspicion"),
            "{audit:?}"
        );
    }

    /// A unit that has lost nothing is not compared, but a failed repair is retried.
    pub async fn is_back_as_it_was(scene: Scene) {
        scene.suspicion(1, false).await;
        let job = scene.take(0, NOW).await.expect("rebuilding");
        let end = RepairOutcome {
            problem: Some("it is unavailable".to_owned()),
            ..RepairOutcome::default()
        };
        assert!(scene.end(0, NOW, end).await);
        assert_eq!(scene.take(0, NOW).await, None, "not at once");
        let call = calls::SuspectUnit {
            unit: unit(1),
            suspicion: Suspicion::NothingLost,
        };
        let taken = scene.call(2, NOW, call).await.expect("answered");
        assert_eq!(taken, Value::Bool(true));
        let repair = scene.database.repair().list(NOW).await.expect("read");
        let problem = repair.iter().find_map(|row| row.problem.as_deref());
        assert_eq!(problem, None, "its unavailability is no longer reported");
        let again = scene.take(0, NOW).await.expect("at once");
        assert_eq!(again.missed, job.missed, "it lacks no more");
    }

    /// All 10 TB of a unit were once read after each restart of its daemon.
    pub async fn in_flight_slots_are_suspect(scene: Scene) {
        let first = scene.attach().await.serial();
        scene.suspicion(1, false).await;
        let job = scene.take(0, NOW).await.expect("rebuilding");
        let read = read_of(&job, 1).expect("not all");
        for serial in [first, first + 1, job.serial_next, 1 << 35] {
            let is_read = read.iter().any(|range| range.contains(&serial));
            assert!(is_read, "{serial} in {read:?}");
        }
        // The suspect serials stay known as long as nothing was copied.
        let end = RepairOutcome {
            copied_to: Some(Vec::new()),
            problem: Some("it is unavailable".to_owned()),
            ..RepairOutcome::default()
        };
        assert!(scene.end(0, NOW, end).await);
        let job = scene.take(0, LATER).await.expect("still rebuilding");
        assert_eq!(read_of(&job, 1), Some(read));
        // Something was copied, and the member is not in sync.
        let end = RepairOutcome {
            copied_to: Some(vec![unit(1)]),
            problem: Some("it became unavailable".to_owned()),
            ..RepairOutcome::default()
        };
        assert!(scene.end(0, LATER, end).await);
        let job = scene.take(0, MUCH_LATER).await.expect("still rebuilding");
        assert_eq!(read_of(&job, 1), None);
    }

    /// Segments of a commit with missed writes were in flight just before it.
    pub async fn slots_put_long_ago_are_not_suspect(scene: Scene) {
        let first = scene.attach().await.serial();
        let used = scene.commit_using(1, (0, 0), None, first + 8).await;
        used.expect("committed");
        let lacked = SegmentId::new(copyset(), first + 9).expect("reserved");
        let degraded = Some((lacked, [1].as_slice()));
        let missed = scene.commit_using(2, (0, 0), degraded, first + 16).await;
        missed.expect("committed");
        let job = scene.take(0, NOW).await.expect("rebuilding");
        let read = read_of(&job, 1).expect("not all");
        let is_read = |serial: u64| read.iter().any(|range| range.contains(&serial));
        for serial in 0..8 {
            assert!(!is_read(first + serial), "{serial} in {read:?}");
        }
        for serial in 8..32 {
            assert!(is_read(first + serial), "{serial} in {read:?}");
        }
    }

    pub async fn every_slot_is_suspect_after_an_abandoned_repair(scene: Scene) {
        scene.suspicion(1, false).await;
        let job = scene.take(0, NOW).await.expect("rebuilding");
        assert!(read_of(&job, 1).is_some());
        // The host stopped reporting.
        let job = scene.take(1, MUCH_LATER).await.expect("still rebuilding");
        assert_eq!(read_of(&job, 1), None);
    }

    /// A comparison also writes to members in sync. They stayed in sync, and partial writes of an
    /// aborted comparison were not read when they rejoined.
    pub async fn slots_of_an_unfinished_comparison_are_suspect(scene: Scene) {
        let wanted = scene
            .database
            .units()
            .request_comparison(&scene.principal)
            .await;
        assert_eq!(wanted.expect("wanted"), 1);
        scene.take(0, NOW).await.expect("to be compared");
        // The host stopped reporting, and the unit is unavailable.
        let job = scene
            .take(1, MUCH_LATER)
            .await
            .expect("still to be compared");
        let end = RepairOutcome {
            compared: true,
            copied_to: Some(Vec::new()),
            ..RepairOutcome::default()
        };
        assert!(job.is_comparison && scene.end(1, MUCH_LATER, end).await);
        scene.suspicion(1, false).await;
        let later = Millis(MUCH_LATER.0 + 120_000);
        let job = scene.take(0, later).await.expect("rebuilding");
        assert_eq!(read_of(&job, 1), None);
        // Once the unit was read, its slots are not suspect any more.
        let end = RepairOutcome {
            in_sync: job.missed,
            ..RepairOutcome::default()
        };
        assert!(scene.end(0, later, end).await);
        scene.suspicion(1, false).await;
        let job = scene.take(0, later).await.expect("rebuilding");
        assert!(read_of(&job, 1).is_some());
    }

    pub async fn every_slot_of_an_older_member_is_suspect(scene: Scene) {
        scene.suspicion(1, false).await;
        scene.suspect_as(1, 1, true).await;
        let job = scene.take(0, NOW).await.expect("rebuilding");
        assert_eq!(read_of(&job, 1), None);
        scene.ends_well(0, &job).await;
        // Nothing of the previous report is left.
        scene.suspicion(1, false).await;
        let job = scene.take(0, NOW).await.expect("rebuilding");
        assert!(read_of(&job, 1).is_some());
    }

    /// A compromised host recorded a lease count that no unit could ever reach. Part of it outlived
    /// the report that the unit was older, so that every host took the unit for older for ever.
    pub async fn a_unit_cannot_know_more_leases_than_were_granted(scene: Scene) {
        scene.attach().await;
        scene.note(0, 1).await;
        scene.note(1, u64::MAX).await;
        let of = |number, leases| (unit(number), leases);
        let mut noted = scene.noted().await;
        noted.truncate(3);
        assert_eq!(noted, [of(0, 1), of(1, 1), of(2, 0)], "no more were given");
        scene.note(0, 0).await;
        scene.suspicion(1, false).await;
        assert_eq!(scene.noted().await[..2], [of(0, 1), of(1, 1)]);
        scene.suspicion(1, true).await;
        assert_eq!(scene.noted().await[..2], [of(0, 1), of(1, 0)]);
    }
}

#[test]
fn a_suspicion_is_applied_once_until_all_members_are_in_sync_again() {
    on_sqlite(claims::is_taken_once);
}

#[test]
fn a_suspicion_of_an_unknown_unit_is_not_logged() {
    on_sqlite(claims::requests_without_a_change_are_not_logged);
}

#[test]
fn a_rejoined_unit_that_lost_nothing_is_not_compared() {
    on_sqlite(claims::is_back_as_it_was);
}

#[test]
fn in_flight_slots_are_suspect_until_something_was_copied() {
    on_sqlite(claims::in_flight_slots_are_suspect);
}

#[test]
fn slots_put_before_that_are_not_suspect() {
    on_sqlite(claims::slots_put_long_ago_are_not_suspect);
}

#[test]
fn no_slot_is_known_intact_after_an_abandoned_repair() {
    on_sqlite(claims::every_slot_is_suspect_after_an_abandoned_repair);
}

#[test]
fn slots_of_a_partial_comparison_are_suspect_when_the_unit_rejoins() {
    on_sqlite(claims::slots_of_an_unfinished_comparison_are_suspect);
}

#[test]
fn every_slot_of_an_older_unit_is_suspect() {
    on_sqlite(claims::every_slot_of_an_older_member_is_suspect);
}

#[test]
fn a_unit_cannot_have_more_leases_recorded_than_were_granted() {
    on_sqlite(claims::a_unit_cannot_know_more_leases_than_were_granted);
}

#[test]
fn all_of_this_holds_on_postgresql() {
    let server = Postgres::start();
    on_postgres(&server, claims::is_taken_once);
    on_postgres(&server, claims::requests_without_a_change_are_not_logged);
    on_postgres(&server, claims::is_back_as_it_was);
    on_postgres(&server, claims::in_flight_slots_are_suspect);
    on_postgres(&server, claims::slots_put_long_ago_are_not_suspect);
    on_postgres(
        &server,
        claims::every_slot_is_suspect_after_an_abandoned_repair,
    );
    on_postgres(
        &server,
        claims::slots_of_an_unfinished_comparison_are_suspect,
    );
    on_postgres(&server, claims::every_slot_of_an_older_member_is_suspect);
    on_postgres(
        &server,
        claims::a_unit_cannot_know_more_leases_than_were_granted,
    );
}
