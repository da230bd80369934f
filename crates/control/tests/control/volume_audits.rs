//! What is claimed of audits of volumes, on both databases.

use api::host::{AuditReport, CatalogCall};
use api::types::AuditFound;
use api::words::{AuditState, Right};
use base::{AuditId, GrantId, UnitId};
use catalog::VersionKey;
use control::database::{DatabaseError, Errand, NewAudit, NewGrant, Object, Reach};
use world::Millis;

use crate::askers;
use crate::fresh::{add_user, number, on_postgres, on_sqlite};
use crate::images::{NOW, Rows};
use crate::postgres::Postgres;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn new(host: base::PartyId) -> NewAudit {
    NewAudit {
        id: AuditId::from_random(number()),
        units: vec![UnitId::from_random(7)],
        snapshot: None,
        files: true,
        host: (host, true),
    }
}

#[test]
fn a_host_reads_what_it_audits_until_it_has_said_what_it_found() {
    on_sqlite(claims::a_host_reads_what_it_audits_until_it_has_said_what_it_found);
}

#[test]
fn an_audit_that_nobody_does_any_more_ends() {
    on_sqlite(claims::an_audit_that_nobody_does_any_more_ends);
}

#[test]
fn an_owner_has_so_many_under_way_and_so_many_kept() {
    on_sqlite(claims::an_owner_has_so_many_under_way_and_so_many_kept);
}

#[test]
fn a_reader_deletes_what_they_asked_for_and_an_owner_all() {
    on_sqlite(claims::a_reader_deletes_what_they_asked_for_and_an_owner_all);
}

#[test]
fn all_of_it_is_so_on_postgresql() {
    let server = Postgres::start();
    on_postgres(
        &server,
        claims::a_host_reads_what_it_audits_until_it_has_said_what_it_found,
    );
    on_postgres(&server, claims::an_audit_that_nobody_does_any_more_ends);
    on_postgres(
        &server,
        claims::an_owner_has_so_many_under_way_and_so_many_kept,
    );
    on_postgres(
        &server,
        claims::a_reader_deletes_what_they_asked_for_and_an_owner_all,
    );
}

/// What is claimed of both.
mod claims {
    use super::*;

    pub async fn an_owner_has_so_many_under_way_and_so_many_kept(mut rows: Rows) {
        for name in ["third", "fourth"] {
            rows.insert(name, rows.snapshot).await;
        }
        let (database, asker, host) = (&rows.database, &rows.asker, rows.hosts[0]);
        let begin = async |volume, at| {
            let asked = new(host);
            let begun = database.begin_audit(asker, volume, &asked, Millis(at));
            begun.await.map(|audit| audit.id)
        };
        let end = async |id, at| {
            let report = AuditReport {
                done_bytes: 0,
                end: Some(Err(String::new())),
            };
            let kept = database.keep_audit_report(host, id, &report, Millis(at));
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
        let gone = database.forget_old_audits(much_later).await;
        assert_eq!(gone.expect("gone"), 63, "with the one that is under way");
    }

    pub async fn a_host_reads_what_it_audits_until_it_has_said_what_it_found(rows: Rows) {
        let (database, host) = (&rows.database, rows.hosts[1]);
        let (volume, lineage) = rows.volumes[0];
        let key = VersionKey { volume, number: 1 };
        // The one that had it last is heard of still, so others do not clean it.
        let report = api::host::Report::default();
        let kept = database.keep_report(rows.hosts[2], &report, NOW);
        kept.await.expect("kept");
        let reads = async || {
            let reach = Reach::new(host, NOW);
            let version = database.answer(&reach, CatalogCall::Version { key }).await;
            let keys = database.answer(&reach, CatalogCall::Keys { lineage }).await;
            (version.is_ok(), keys.is_ok())
        };
        let before = reads().await;
        assert!(!before.0);
        let serial = rows.serial(1).await;
        let asked = new(host);
        let begun = database.begin_audit(&rows.asker, "base", &asked, NOW);
        let begun = begun.await.expect("begun");
        assert_eq!((begun.state, begun.version), (AuditState::Waiting, key));
        assert!(rows.serial(1).await > serial, "the host is told");
        assert_eq!(reads().await, (true, true));
        let wanted = database.audits_on(host).await.expect("read");
        assert_eq!((wanted[0].id, &wanted[0].units), (asked.id, &asked.units));
        assert!(wanted[0].files);
        let versions = database.versions_of(volume).await.expect("read");
        assert!(versions[0].is_read, "it is not removed meanwhile");

        let say = async |host, end, now| {
            let report = AuditReport {
                done_bytes: 4096,
                end,
            };
            let kept = database.keep_audit_report(host, asked.id, &report, now);
            kept.await.expect("heard")
        };
        assert!(!say(rows.hosts[0], None, NOW).await, "it is another's");
        assert!(say(host, None, NOW).await);
        let show = async || {
            let shown = database.audit_for(&rows.asker, "base", asked.id, NOW).await;
            shown.map(|(_, audit)| audit)
        };
        let shown = show().await.expect("there");
        assert_eq!((shown.state, shown.done_bytes), (AuditState::Running, 4096));
        let mut found = AuditFound::default();
        found.blocks.all = 4096;
        assert!(say(host, Some(Ok(found.clone())), NOW).await);
        let shown = show().await.expect("there");
        assert_eq!((shown.state, shown.found), (AuditState::Done, Some(found)));
        assert_eq!(reads().await, before);
        assert!(database.audits_on(host).await.expect("read").is_empty());
        assert!(!say(host, Some(Err("late".to_owned())), NOW).await);
        // Of another volume it is none.
        let other = database
            .audit_for(&rows.asker, "clone", asked.id, NOW)
            .await;
        assert!(matches!(other, Err(DatabaseError::NotFound { .. })));

        // A day later it is not shown, and soon forgotten.
        assert_eq!(
            database
                .forget_old_audits(Millis(NOW.0 + DAY_MS))
                .await
                .expect("none"),
            0
        );
        let later = Millis(NOW.0 + DAY_MS + 1);
        let shown = database
            .audit_for(&rows.asker, "base", asked.id, later)
            .await;
        assert!(matches!(shown, Err(DatabaseError::NotFound { .. })));
        assert_eq!(database.forget_old_audits(later).await.expect("gone"), 1);
        assert!(matches!(show().await, Err(DatabaseError::NotFound { .. })));
        // One that is under way can be called off, and its host hears of it.
        let asked_next = new(host);
        let next = database.begin_audit(&rows.asker, "base", &asked_next, later);
        next.await.expect("begun");
        let serial = rows.serial(1).await;
        let gone = database.delete_audit(&rows.asker, "base", asked_next.id, later);
        assert_eq!(gone.await.expect("called off").1.state, AuditState::Waiting);
        assert!(rows.serial(1).await > serial, "the host is told");
        let report = AuditReport {
            done_bytes: 0,
            end: None,
        };
        let kept = database.keep_audit_report(host, asked_next.id, &report, later);
        assert!(!kept.await.expect("heard"), "it is not wanted any more");
        // No more are kept of a volume than so many.
        for number in 0..20 {
            let asked = new(host);
            let at = Millis(later.0 + number);
            let begun = database.begin_audit(&rows.asker, "base", &asked, at);
            begun.await.expect("begun");
            let report = AuditReport {
                done_bytes: 0,
                end: Some(Err(String::new())),
            };
            let kept = database.keep_audit_report(host, asked.id, &report, at);
            assert!(kept.await.expect("heard"));
        }
        let much_later = Millis(later.0 + 2 * DAY_MS);
        assert_eq!(
            database.forget_old_audits(much_later).await.expect("gone"),
            16
        );
        let asked = new(host);
        let nothing = database.begin_audit(&rows.asker, "second", &asked, NOW);
        let nothing = nothing.await.map(drop);
        assert!(
            nothing.is_ok(),
            "its parent's version is its own: {nothing:?}"
        );
    }

    pub async fn a_reader_deletes_what_they_asked_for_and_an_owner_all(rows: Rows) {
        let (database, owner, host) = (&rows.database, &rows.asker, rows.hosts[0]);
        let (id, _) = rows.volumes[0];
        let reader = askers::of(add_user(database, owner, "reader", NOW).await);
        let grant = NewGrant {
            id: GrantId::from_random(number()),
            object: Object::Volume(id),
            user: reader.party.subject.clone(),
            right: Right::Read,
            vm: String::new(),
        };
        database.insert_grant(owner, &grant).await.expect("given");
        let volume = id.to_string();
        let begin = async |asker| {
            let asked = new(host);
            let begun = database.begin_audit(asker, &volume, &asked, NOW).await;
            begun.expect("begun").id
        };
        let delete = async |asker, audit| {
            let deleted = database.delete_audit(asker, &volume, audit, NOW).await;
            deleted.map(drop)
        };
        let (of_owner, of_reader) = (begin(owner).await, begin(&reader).await);
        let refused = delete(&reader, of_owner).await;
        assert!(
            matches!(refused, Err(DatabaseError::Forbidden { .. })),
            "{refused:?}"
        );
        let shown = database.audit_for(&reader, &volume, of_owner, NOW).await;
        assert_eq!(shown.expect("still there").1.asker, Some(owner.party.id));
        delete(&reader, of_reader).await.expect("their own");
        let another = begin(&reader).await;
        for audit in [of_owner, another] {
            delete(owner, audit).await.expect("the owner's");
        }
    }

    pub async fn an_audit_that_nobody_does_any_more_ends(rows: Rows) {
        let (database, asker) = (&rows.database, &rows.asker);
        let [first, second, _] = rows.hosts;
        let mut ids = Vec::new();
        for host in [first, second, first, second] {
            let asked = new(host);
            ids.push(asked.id);
            let begun = database.begin_audit(asker, "base", &asked, NOW).await;
            begun.expect("begun");
        }
        let more = database.begin_audit(asker, "base", &new(first), NOW).await;
        assert!(
            matches!(more, Err(DatabaseError::Refused { .. })),
            "{more:?}"
        );
        let state = async |id| {
            let audit = database.audit_for(asker, "base", id, NOW).await;
            let (_, audit) = audit.expect("there");
            (audit.state, audit.reason)
        };
        let later = Millis(NOW.0 + 1000);
        // One host is heard of and says nothing of what it was asked for.
        let heard = database.note_heard(first, later).await;
        heard.expect("kept");
        for id in [ids[1], ids[3]] {
            let report = AuditReport {
                done_bytes: 0,
                end: None,
            };
            let kept = database.keep_audit_report(second, id, &report, later);
            assert!(kept.await.expect("heard"));
        }
        let silent = database
            .end_silent(Errand::Audit, NOW, "silent", later)
            .await;
        assert_eq!(silent.expect("ended"), 2);
        let ended = (AuditState::Error, Some("silent".to_owned()));
        assert_eq!(state(ids[0]).await, ended);
        assert_eq!(state(ids[1]).await.0, AuditState::Running);
        let subject = identity::Subject::new(identity::Kind::Host, "h2").expect("a name");
        let disabled = database.set_disabled(asker, &subject, true).await;
        disabled.expect("disabled");
        assert_eq!(state(ids[1]).await.0, AuditState::Error);
        assert!(database.audits_on(second).await.expect("read").is_empty());
        // With a volume its audits go.
        let (volume, _) = rows.volumes[0];
        let deleted = database.begin_delete(asker, volume, later).await;
        deleted.expect("on its way out");
        let gone = database
            .audit_for(asker, &volume.to_string(), ids[0], NOW)
            .await;
        assert!(matches!(gone, Err(DatabaseError::NotFound { .. })));
    }
}
