//! Audits of volumes, on both databases.

use api::host::AuditReport;
use api::types::{AuditPlacement, AuditResult};
use api::words::{AuditState, Right};
use base::{AuditId, GrantId, UnitId};
use catalog::VersionKey;
use control::database::{DatabaseError, Job, NewAudit, NewGrant, Object, Principal, Reach};
use world::Millis;

use crate::calls;
use crate::fresh::{add_user, number, on_postgres, on_sqlite};
use crate::images::{NOW, Rows};
use crate::postgres::Postgres;
use crate::principals;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn new(host: base::PartyId) -> NewAudit {
    NewAudit {
        id: AuditId::from_u128(number()),
        units: vec![UnitId::from_u128(7)],
        snapshot: None,
        files: true,
        placement: placement(),
        journal_bytes: Some(77),
        host: (host, true),
    }
}

fn placement() -> AuditPlacement {
    AuditPlacement {
        units: 5,
        compromised: 1,
        replicas: 2,
        erasure: None,
        scatter_width: 8,
        sets: 10,
        block_size: 4096,
    }
}

#[test]
fn a_host_reads_what_it_audits_until_it_reports_the_result() {
    on_sqlite(claims::a_host_reads_what_it_audits_until_it_reports_the_result);
}

#[test]
fn the_result_of_an_audit_expires_after_a_day() {
    on_sqlite(claims::the_result_of_an_audit_expires_after_a_day);
}

#[test]
fn a_running_audit_can_be_canceled_and_its_host_is_notified() {
    on_sqlite(claims::a_running_audit_can_be_canceled_and_its_host_is_notified);
}

#[test]
fn the_number_of_kept_results_of_a_volume_is_limited() {
    on_sqlite(claims::the_number_of_kept_results_of_a_volume_is_limited);
}

#[test]
fn a_clone_is_audited_by_its_parents_version() {
    on_sqlite(claims::a_clone_is_audited_by_its_parents_version);
}

#[test]
fn an_audit_ends_when_its_host_stops_reporting_it() {
    on_sqlite(claims::an_audit_ends_when_its_host_stops_reporting_it);
}

#[test]
fn running_audits_and_kept_results_of_an_owner_are_limited() {
    on_sqlite(claims::running_audits_and_kept_results_of_an_owner_are_limited);
}

#[test]
fn a_reader_deletes_their_own_audits_and_an_owner_all() {
    on_sqlite(claims::a_reader_deletes_their_own_audits_and_an_owner_all);
}

#[test]
fn a_user_without_the_right_to_read_cancels_an_audit_and_does_not_see_its_result() {
    on_sqlite(
        claims::a_user_without_the_right_to_read_cancels_an_audit_and_does_not_see_its_result,
    );
}

#[test]
fn audits_are_listed_with_their_requesters() {
    on_sqlite(claims::audits_are_listed_with_their_requesters);
}

#[test]
fn audits_of_a_reader_do_not_replace_results_of_the_owner() {
    on_sqlite(claims::audits_of_a_reader_do_not_replace_results_of_the_owner);
}

#[test]
fn all_of_this_holds_on_postgresql() {
    let server = Postgres::start();
    on_postgres(
        &server,
        claims::a_user_without_the_right_to_read_cancels_an_audit_and_does_not_see_its_result,
    );
    on_postgres(&server, claims::audits_are_listed_with_their_requesters);
    on_postgres(
        &server,
        claims::audits_of_a_reader_do_not_replace_results_of_the_owner,
    );
    on_postgres(
        &server,
        claims::a_host_reads_what_it_audits_until_it_reports_the_result,
    );
    on_postgres(&server, claims::the_result_of_an_audit_expires_after_a_day);
    on_postgres(
        &server,
        claims::a_running_audit_can_be_canceled_and_its_host_is_notified,
    );
    on_postgres(
        &server,
        claims::the_number_of_kept_results_of_a_volume_is_limited,
    );
    on_postgres(&server, claims::a_clone_is_audited_by_its_parents_version);
    on_postgres(
        &server,
        claims::an_audit_ends_when_its_host_stops_reporting_it,
    );
    on_postgres(
        &server,
        claims::running_audits_and_kept_results_of_an_owner_are_limited,
    );
    on_postgres(
        &server,
        claims::a_reader_deletes_their_own_audits_and_an_owner_all,
    );
}

/// The claims, which hold on both databases.
mod claims {
    use super::*;

    pub async fn running_audits_and_kept_results_of_an_owner_are_limited(mut rows: Rows) {
        for name in ["third", "fourth"] {
            rows.insert(name, rows.snapshot).await;
        }
        let (database, principal, host) = (&rows.database, &rows.principal, rows.hosts[0]);
        let begin = async |volume, at| {
            let asked = new(host);
            let begun = database
                .audits()
                .begin(principal, volume, &asked, Millis(at));
            begun.await.map(|audit| audit.id)
        };
        let end = async |id, at| {
            let report = AuditReport {
                done_bytes: 0,
                end: Some(Err(String::new())),
            };
            let kept = database
                .audits()
                .record_report(host, id, &report, Millis(at));
            assert!(kept.await.expect("heard"));
        };
        let mut under_way = Vec::new();
        for volume in ["base", "clone"] {
            for _ in 0..4 {
                under_way.push(begin(volume, NOW.0).await.expect("begun"));
            }
        }
        let Err(DatabaseError::Refused { reason }) = begin("second", NOW.0).await else {
            panic!("a ninth one has begun");
        };
        assert!(reason.contains("8 audits of volumes of its"), "{reason}");
        for id in under_way {
            end(id, NOW.0).await;
        }
        let mut at = NOW.0;
        for volume in ["base", "clone", "second", "third", "fourth"] {
            for _ in 0..16 {
                at += 1;
                end(begin(volume, at).await.expect("begun"), at).await;
            }
        }
        begin("fourth", at + 1).await.expect("begun");
        let much_later = Millis(at + 2 * DAY_MS);
        let gone = database.audits().forget_old(much_later).await;
        assert_eq!(gone.expect("gone"), 63, "with the one that is running");
    }

    pub async fn a_host_reads_what_it_audits_until_it_reports_the_result(rows: Rows) {
        let (database, host) = (&rows.database, rows.hosts[1]);
        let (volume, lineage) = rows.volumes[0];
        let key = VersionKey { volume, number: 1 };
        // The host that had it last still reports, so no other host cleans it.
        let report = api::host::Report::default();
        let kept = database.hosts().record_report(rows.hosts[2], &report, NOW);
        kept.await.expect("kept");
        let reads = async || {
            let reach = Reach::new(host, NOW);
            let version = calls::answer(database, &reach, calls::Version { key }).await;
            let keys = calls::answer(database, &reach, calls::Keys { lineage }).await;
            (version.is_ok(), keys.is_ok())
        };
        let before = reads().await;
        assert!(!before.0);
        let serial = rows.serial(1).await;
        let asked = new(host);
        let begun = database
            .audits()
            .begin(&rows.principal, "base", &asked, NOW);
        let begun = begun.await.expect("begun");
        assert_eq!((begun.state, begun.version), (AuditState::Waiting, key));
        assert!(rows.serial(1).await > serial, "the host is notified");
        assert_eq!(reads().await, (true, true));
        let wanted = database.audits().on_host(host).await.expect("read");
        assert_eq!((wanted[0].id, &wanted[0].units), (asked.id, &asked.units));
        assert!(wanted[0].files);
        let versions = database.catalog().versions_of(volume).await.expect("read");
        assert!(versions[0].is_read, "it is not removed meanwhile");

        let say = async |host, end, now| {
            let report = AuditReport {
                done_bytes: 4096,
                end,
            };
            let kept = database
                .audits()
                .record_report(host, asked.id, &report, now);
            kept.await.expect("heard")
        };
        assert!(
            !say(rows.hosts[0], None, NOW).await,
            "it is the audit of another host"
        );
        assert!(say(host, None, NOW).await);
        let show = async || {
            let shown = database
                .audits()
                .find(&rows.principal, "base", asked.id, NOW)
                .await;
            shown.map(|(_, audit)| audit)
        };
        let shown = show().await.expect("it exists");
        assert_eq!((shown.state, shown.done_bytes), (AuditState::Running, 4096));
        let mut found = AuditResult::default();
        found.blocks.total = 4096;
        assert!(say(host, Some(Ok(found.clone())), NOW).await);
        let shown = show().await.expect("it exists");
        assert_eq!((shown.state, shown.result), (AuditState::Done, Some(found)));
        assert_eq!(reads().await, before);
        assert!(
            database
                .audits()
                .on_host(host)
                .await
                .expect("read")
                .is_empty()
        );
        assert!(!say(host, Some(Err("late".to_owned())), NOW).await);
        // It is not an audit of another volume.
        let other = database
            .audits()
            .find(&rows.principal, "clone", asked.id, NOW)
            .await;
        assert!(matches!(other, Err(DatabaseError::NotFound { .. })));
    }

    pub async fn the_result_of_an_audit_expires_after_a_day(rows: Rows) {
        let (database, host) = (&rows.database, rows.hosts[1]);
        let asked = new(host);
        let audits = database.audits();
        let begun = audits.begin(&rows.principal, "base", &asked, NOW).await;
        begun.expect("begun");
        let report = AuditReport {
            done_bytes: 4096,
            end: Some(Ok(AuditResult::default())),
        };
        let kept = audits.record_report(host, asked.id, &report, NOW).await;
        assert!(kept.expect("heard"));
        let find = async |at| audits.find(&rows.principal, "base", asked.id, at).await;
        assert!(find(NOW).await.is_ok());
        let day_later = Millis(NOW.0 + DAY_MS);
        assert_eq!(audits.forget_old(day_later).await.expect("none"), 0);
        // It is not shown any more, and soon deleted.
        let later = Millis(NOW.0 + DAY_MS + 1);
        let shown = find(later).await;
        assert!(matches!(shown, Err(DatabaseError::NotFound { .. })));
        assert_eq!(audits.forget_old(later).await.expect("deleted"), 1);
        assert!(matches!(
            find(NOW).await,
            Err(DatabaseError::NotFound { .. })
        ));
    }

    pub async fn a_running_audit_can_be_canceled_and_its_host_is_notified(rows: Rows) {
        let (database, host) = (&rows.database, rows.hosts[1]);
        let asked = new(host);
        let audits = database.audits();
        let begun = audits.begin(&rows.principal, "base", &asked, NOW).await;
        begun.expect("begun");
        let serial = rows.serial(1).await;
        let canceled = audits.delete(&rows.principal, "base", asked.id, NOW).await;
        assert_eq!(canceled.expect("canceled").1.state, AuditState::Waiting);
        assert!(rows.serial(1).await > serial, "the host is notified");
        let report = AuditReport {
            done_bytes: 0,
            end: None,
        };
        let kept = audits.record_report(host, asked.id, &report, NOW).await;
        assert!(!kept.expect("heard"), "it is not desired any more");
    }

    pub async fn the_number_of_kept_results_of_a_volume_is_limited(rows: Rows) {
        let (database, host) = (&rows.database, rows.hosts[1]);
        for number in 0..20 {
            let asked = new(host);
            let at = Millis(NOW.0 + number);
            let begun = database.audits().begin(&rows.principal, "base", &asked, at);
            begun.await.expect("begun");
            let report = AuditReport {
                done_bytes: 0,
                end: Some(Err(String::new())),
            };
            let kept = database.audits().record_report(host, asked.id, &report, at);
            assert!(kept.await.expect("heard"));
        }
        let much_later = Millis(NOW.0 + 2 * DAY_MS);
        let deleted = database.audits().forget_old(much_later).await;
        assert_eq!(deleted.expect("deleted"), 16);
    }

    pub async fn a_clone_is_audited_by_its_parents_version(rows: Rows) {
        let (database, host) = (&rows.database, rows.hosts[1]);
        let asked = new(host);
        let begun = database
            .audits()
            .begin(&rows.principal, "second", &asked, NOW);
        let begun = begun.await.map(drop);
        assert!(begun.is_ok(), "its parent's version is its own: {begun:?}");
    }

    /// A user with this right on the first volume, and the grant.
    async fn given(rows: &Rows, name: &str, right: Right) -> (Principal, GrantId) {
        let (database, owner) = (&rows.database, &rows.principal);
        let user = principals::of(add_user(database, owner, name, NOW).await);
        let grant = NewGrant {
            id: GrantId::from_u128(number()),
            object: Object::Volume(rows.volumes[0].0),
            user: user.party.subject.clone(),
            right,
            vm: String::new(),
        };
        database
            .grants()
            .insert(owner, &grant)
            .await
            .expect("given");
        (user, grant.id)
    }

    /// Reports the end of the audit, with a result.
    async fn end(rows: &Rows, id: AuditId, at: Millis) {
        let report = AuditReport {
            done_bytes: 0,
            end: Some(Ok(AuditResult::default())),
        };
        let database = &rows.database;
        let kept = database
            .audits()
            .record_report(rows.hosts[0], id, &report, at);
        assert!(kept.await.expect("heard"));
    }

    pub async fn a_user_without_the_right_to_read_cancels_an_audit_and_does_not_see_its_result(
        rows: Rows,
    ) {
        let (database, owner) = (&rows.database, &rows.principal);
        let volume = rows.volumes[0].0.to_string();
        let (reader, right) = given(&rows, "reader", Right::Read).await;
        let mut root = principals::of(add_user(database, owner, "root", NOW).await);
        root.party.is_administrator = true;
        let asked = async |principal| {
            let asked = new(rows.hosts[0]);
            let begun = database
                .audits()
                .begin(principal, &volume, &asked, NOW)
                .await;
            end(&rows, begun.expect("begun").id, NOW).await;
            asked.id
        };
        let deleted = async |principal, audit| {
            let deleted = database
                .audits()
                .delete(principal, &volume, audit, NOW)
                .await;
            deleted.map(|(_, audit)| audit)
        };
        let [first, second, third] = [
            asked(owner).await,
            asked(&reader).await,
            asked(&reader).await,
        ];
        let shown = database.audits().find(&root, &volume, first, NOW).await;
        assert!(matches!(shown, Err(DatabaseError::Forbidden { .. })));
        assert_eq!(deleted(&root, first).await.expect("deleted").result, None);
        let own = deleted(&reader, second).await.expect("their own");
        assert!(own.result.is_some());
        // The right to read is revoked, and another right is left.
        let (snapshotter, _) = given(&rows, "other", Right::Snapshot).await;
        let refused = deleted(&snapshotter, third).await;
        assert!(matches!(refused, Err(DatabaseError::Forbidden { .. })));
        let grant = NewGrant {
            id: GrantId::from_u128(number()),
            object: Object::Volume(rows.volumes[0].0),
            user: reader.party.subject.clone(),
            right: Right::Snapshot,
            vm: String::new(),
        };
        database
            .grants()
            .insert(owner, &grant)
            .await
            .expect("given");
        let taken = database.grants().delete(owner, &right.to_string()).await;
        taken.expect("taken away");
        let own = deleted(&reader, third).await.expect("still their own");
        assert_eq!(own.result, None);
    }

    pub async fn audits_are_listed_with_their_requesters(rows: Rows) {
        let (database, owner) = (&rows.database, &rows.principal);
        let volume = rows.volumes[0].0.to_string();
        let (reader, _) = given(&rows, "reader", Right::Read).await;
        let mut ids = Vec::new();
        for (principal, at) in [(owner, 0), (&reader, 1), (owner, 2)] {
            let asked = new(rows.hosts[0]);
            let begun = database
                .audits()
                .begin(principal, &volume, &asked, Millis(NOW.0 + at));
            ids.push(begun.await.expect("begun").id);
        }
        end(&rows, ids[1], NOW).await;
        let list = async |principal, now| {
            let listed = database.audits().list(principal, &volume, now).await;
            listed.expect("listed").1
        };
        let listed = list(owner, NOW).await;
        let newest_first: Vec<AuditId> = listed.iter().map(|audit| audit.id).collect();
        assert_eq!(newest_first, [ids[2], ids[1], ids[0]]);
        assert_eq!(listed[1].state, AuditState::Done);
        assert_eq!(listed[1].result, None, "that is said when it is shown");
        // The placement and the journal are those at the time of the request.
        for audit in &listed {
            assert_eq!(audit.placement, Some(placement()));
            assert_eq!(audit.journal_bytes, Some(77));
        }
        let principals = |listed: &[control::database::AuditOfVolume]| {
            let names = listed.iter().map(|audit| audit.principal_name.clone());
            names.collect::<Vec<_>>()
        };
        let (own, theirs) = (owner.party.subject.name(), "reader");
        let all = [own, theirs, own].map(|name| Some(name.to_owned()));
        assert_eq!(principals(&listed), all);
        let seen = principals(&list(&reader, NOW).await);
        assert_eq!(seen, [None, Some(theirs.to_owned()), None]);
        // Results are kept for a day.
        let later = Millis(NOW.0 + DAY_MS + 1);
        assert_eq!(list(owner, later).await.len(), 2);
        let log = database
            .parties()
            .audit_log(i64::MAX, 10)
            .await
            .expect("read");
        let is_noted = |id: &AuditId| {
            let id = id.to_string();
            let mut lines = log.iter().filter(|line| line.action == "audit-volume");
            lines.any(|line| line.target.starts_with(&id))
        };
        assert!(ids.iter().all(is_noted), "{log:?}");
        let stranger = principals::of(add_user(database, owner, "stranger", NOW).await);
        let hidden = database.audits().list(&stranger, &volume, NOW).await;
        assert!(matches!(hidden, Err(DatabaseError::NotFound { .. })));
    }

    pub async fn audits_of_a_reader_do_not_replace_results_of_the_owner(rows: Rows) {
        let (database, owner) = (&rows.database, &rows.principal);
        let volume = rows.volumes[0].0.to_string();
        let (reader, _) = given(&rows, "reader", Right::Read).await;
        let mut at = NOW.0;
        let mut asked = async |principal| {
            at += 1;
            let asked = new(rows.hosts[0]);
            let begun = database
                .audits()
                .begin(principal, &volume, &asked, Millis(at));
            let id = begun.await.expect("begun").id;
            end(&rows, id, Millis(at)).await;
            id
        };
        let kept = asked(owner).await;
        let mut last = kept;
        for _ in 0..40 {
            last = asked(&reader).await;
        }
        let listed = database.audits().list(owner, &volume, NOW).await;
        let ids: Vec<AuditId> = listed
            .expect("listed")
            .1
            .iter()
            .map(|audit| audit.id)
            .collect();
        assert_eq!((ids.len(), ids[0]), (16, last));
        assert!(ids.contains(&kept));
        // For a user without results, those of others are deleted.
        for _ in 0..2 {
            let next = asked(owner).await;
            let shown = database.audits().find(owner, &volume, next, NOW).await;
            shown.expect("kept");
        }
    }

    pub async fn a_reader_deletes_their_own_audits_and_an_owner_all(rows: Rows) {
        let (database, owner, host) = (&rows.database, &rows.principal, rows.hosts[0]);
        let (id, _) = rows.volumes[0];
        let (reader, _) = given(&rows, "reader", Right::Read).await;
        let volume = id.to_string();
        let begin = async |principal| {
            let asked = new(host);
            let begun = database
                .audits()
                .begin(principal, &volume, &asked, NOW)
                .await;
            begun.expect("begun").id
        };
        let delete = async |principal, audit| {
            let deleted = database
                .audits()
                .delete(principal, &volume, audit, NOW)
                .await;
            deleted.map(drop)
        };
        let (of_owner, of_reader) = (begin(owner).await, begin(&reader).await);
        let refused = delete(&reader, of_owner).await;
        assert!(
            matches!(refused, Err(DatabaseError::Forbidden { .. })),
            "{refused:?}"
        );
        let shown = database
            .audits()
            .find(&reader, &volume, of_owner, NOW)
            .await;
        assert_eq!(
            shown.expect("still there").1.principal,
            Some(owner.party.id)
        );
        delete(&reader, of_reader).await.expect("their own");
        let another = begin(&reader).await;
        for audit in [of_owner, another] {
            delete(owner, audit).await.expect("the owner's");
        }
    }

    pub async fn an_audit_ends_when_its_host_stops_reporting_it(rows: Rows) {
        let (database, principal) = (&rows.database, &rows.principal);
        let [first, second, _] = rows.hosts;
        let mut ids = Vec::new();
        for host in [first, second, first, second] {
            let asked = new(host);
            ids.push(asked.id);
            let begun = database
                .audits()
                .begin(principal, "base", &asked, NOW)
                .await;
            begun.expect("begun");
        }
        let more = database
            .audits()
            .begin(principal, "base", &new(first), NOW)
            .await;
        assert!(
            matches!(more, Err(DatabaseError::Refused { .. })),
            "{more:?}"
        );
        let state = async |id| {
            let audit = database.audits().find(principal, "base", id, NOW).await;
            let (_, audit) = audit.expect("it exists");
            (audit.state, audit.message)
        };
        let later = Millis(NOW.0 + 1000);
        // One host reports, but not on its audit.
        let heard = database.hosts().record_heard(first, later).await;
        heard.expect("kept");
        for id in [ids[1], ids[3]] {
            let report = AuditReport {
                done_bytes: 0,
                end: None,
            };
            let kept = database.audits().record_report(second, id, &report, later);
            assert!(kept.await.expect("heard"));
        }
        let unresponsive = database
            .hosts()
            .end_unresponsive(Job::Audit, NOW, "unresponsive", later)
            .await;
        assert_eq!(unresponsive.expect("ended"), 2);
        let ended = (AuditState::Error, Some("unresponsive".to_owned()));
        assert_eq!(state(ids[0]).await, ended);
        assert_eq!(state(ids[1]).await.0, AuditState::Running);
        let subject = auth::Subject::new(auth::Kind::Host, "h2").expect("a name");
        let disabled = database
            .parties()
            .set_disabled(principal, &subject, true)
            .await;
        disabled.expect("disabled");
        assert_eq!(state(ids[1]).await.0, AuditState::Error);
        assert!(
            database
                .audits()
                .on_host(second)
                .await
                .expect("read")
                .is_empty()
        );
        // Deleting a volume deletes its audits.
        let (volume, _) = rows.volumes[0];
        let deleted = database
            .volumes()
            .begin_delete(principal, volume, later)
            .await;
        deleted.expect("being deleted");
        let gone = database
            .audits()
            .find(principal, &volume.to_string(), ids[0], NOW)
            .await;
        assert!(matches!(gone, Err(DatabaseError::NotFound { .. })));
    }
}
