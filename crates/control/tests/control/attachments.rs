//! Attachments, and the terms of their leases, on both databases.

use api::host::{
    Access, AttachmentReport, AttachmentState, CatalogCall, Fenced, HeldLease, Renewal, Report,
};
use api::types::Message;
use api::words::MessageCode;
use auth::Kind;
use base::{JournalFolderId, PartyId, VolumeId};
use catalog::{CatalogError, Lease, LeaseSalt};
use control::database::{AttachmentRow, Database, DatabaseError, NewAttachment, Principal, Reach};
use serde_json::Value;
use world::Millis;

use crate::calls;
use crate::fresh::{self, number, on_postgres, on_sqlite};
use crate::postgres::Postgres;
use crate::principals::local;

const LEASE_MS: i64 = 10_000;

const FOLDER: JournalFolderId = JournalFolderId::from_u128(1);
const OTHER_FOLDER: JournalFolderId = JournalFolderId::from_u128(2);

struct Rows {
    database: Database,
    principal: Principal,
    host: PartyId,
    volume: VolumeId,
}

impl fresh::Rows for Rows {
    async fn new(database: Database) -> Self {
        let host = database
            .parties()
            .local(Kind::Host, PartyId::from_u128(number()), Millis(0));
        let host = host.await.expect("it exists");
        let new = fresh::volume("disk", Millis(0));
        let volume = new.id;
        let principal = local(&database).await;
        database
            .volumes()
            .insert(&principal, &new)
            .await
            .expect("made");
        Self {
            database,
            principal,
            host,
            volume,
        }
    }
}

impl Rows {
    async fn attach(
        &self,
        vm: Option<&str>,
        access: Access,
    ) -> Result<AttachmentRow, DatabaseError> {
        let new = NewAttachment {
            vm: vm.map(str::to_owned),
            ..fresh::attachment(self.volume, self.host, access, Millis(0))
        };
        self.database
            .attachments()
            .attach(&self.principal, &new)
            .await
    }

    async fn call(&self, call: impl Into<CatalogCall>) -> Result<Value, CatalogError> {
        let reach = Reach::new(self.host, Millis(0));
        calls::answer(&self.database, &reach, call).await
    }

    async fn acquire(&self) {
        self.acquire_with(None).await.expect("a lease");
    }

    /// Acquires a lease, as a host that has these journals.
    async fn acquire_with(&self, journals: Option<JournalFolderId>) -> Result<Lease, CatalogError> {
        let call = calls::Acquire {
            volume: self.volume,
            salt: LeaseSalt([3; 16]),
            journals,
        };
        let lease = self.call(call).await?;
        Ok(serde_json::from_value(lease).expect("a lease"))
    }

    async fn name_journal(&self, epoch: u32, folder: Option<JournalFolderId>) {
        let call = calls::NameJournal {
            volume: self.volume,
            epoch,
            folder,
        };
        self.call(call).await.expect("the lease holds");
    }

    /// Takes the volume by force from a host that stopped reporting.
    async fn take(&self, asked: &AttachmentRow) -> String {
        let detached = self
            .database
            .attachments()
            .detach(&self.principal, asked.id, true);
        detached.await.expect("it exists");
        let ended = self
            .database
            .hosts()
            .end_forced(LEASE_MS, Millis(LEASE_MS))
            .await;
        assert_eq!(ended.expect("looked"), [asked.id]);
        let row = self
            .database
            .attachments()
            .get(asked.id)
            .await
            .expect("it exists");
        row.observed.problem.expect("a problem").text
    }

    async fn note(&self, asked: &AttachmentRow) -> Option<String> {
        let row = self
            .database
            .attachments()
            .get(asked.id)
            .await
            .expect("it exists");
        row.observed.notice.map(|notice| notice.text)
    }

    async fn report(&self, asked: &AttachmentRow, state: AttachmentState) -> bool {
        self.report_with(asked, state, None).await
    }

    async fn report_with(
        &self,
        asked: &AttachmentRow,
        state: AttachmentState,
        reason: Option<&str>,
    ) -> bool {
        let report = AttachmentReport {
            problem: reason.map(|why| Message::new(MessageCode::CloseFailed, why)),
            ..fresh::report(asked, state)
        };
        let kept =
            self.database
                .attachments()
                .record_report(self.host, asked.id, &report, Millis(0));
        kept.await.expect("the request is accepted")
    }
}

#[test]
fn readers_share_a_volume_and_a_writer_excludes_them() {
    on_sqlite(claims::readers_share_a_volume_and_a_writer_excludes_them);
}

#[test]
fn a_report_on_an_older_generation_changes_nothing() {
    on_sqlite(claims::a_report_on_an_older_generation_changes_nothing);
}

#[test]
fn a_lease_is_taken_by_force_only_after_its_end() {
    on_sqlite(claims::a_lease_is_taken_by_force_only_after_its_end);
}

#[test]
fn a_journal_is_out_of_reach_until_its_lease_is_ended_by_force() {
    on_sqlite(claims::a_journal_is_out_of_reach_until_its_lease_is_ended_by_force);
}

#[test]
fn a_closed_volume_has_no_named_journal() {
    on_sqlite(claims::a_closed_volume_has_no_named_journal);
}

#[test]
fn a_host_that_gives_up_a_journal_reports_what_was_lost() {
    on_sqlite(claims::a_host_that_gives_up_a_journal_reports_what_was_lost);
}

#[test]
fn a_forced_detachment_does_not_outlast_the_next_restore() {
    on_sqlite(claims::a_forced_detachment_does_not_outlast_the_next_restore);
}

#[test]
fn the_free_space_of_a_host_is_stored_beside_its_report() {
    on_sqlite(claims::the_free_space_of_a_host_is_stored_beside_its_report);
}

#[test]
fn all_of_this_holds_on_postgresql() {
    let server = Postgres::start();
    on_postgres(
        &server,
        claims::readers_share_a_volume_and_a_writer_excludes_them,
    );
    on_postgres(
        &server,
        claims::a_report_on_an_older_generation_changes_nothing,
    );
    on_postgres(
        &server,
        claims::a_lease_is_taken_by_force_only_after_its_end,
    );
    on_postgres(
        &server,
        claims::a_journal_is_out_of_reach_until_its_lease_is_ended_by_force,
    );
    on_postgres(&server, claims::a_closed_volume_has_no_named_journal);
    on_postgres(
        &server,
        claims::a_host_that_gives_up_a_journal_reports_what_was_lost,
    );
    on_postgres(
        &server,
        claims::a_forced_detachment_does_not_outlast_the_next_restore,
    );
    on_postgres(
        &server,
        claims::the_free_space_of_a_host_is_stored_beside_its_report,
    );
    on_postgres(&server, |rows: Rows| async move {
        let now = rows
            .database
            .now(Millis(5))
            .await
            .expect("the request is accepted");
        assert!(now.0 > 1_600_000_000_000, "by its own clock: {now:?}");
    });
}

#[test]
fn leases_on_sqlite_are_measured_by_this_machines_clock() {
    on_sqlite(|rows: Rows| async move {
        let now = rows.database.now(Millis(5)).await;
        assert_eq!(now.expect("the request is accepted"), Millis(5));
    });
}

/// The claims, which hold on both databases.
mod claims {
    use super::*;

    pub async fn readers_share_a_volume_and_a_writer_excludes_them(rows: Rows) {
        let one = rows.attach(Some("libvirt:one"), Access::ReadOnly).await;
        let one = one.expect("the request is accepted");
        let two = rows.attach(Some("libvirt:two"), Access::ReadOnly).await;
        assert_ne!(two.expect("the request is accepted").id, one.id);
        let again = rows.attach(Some("libvirt:one"), Access::ReadOnly).await;
        assert_eq!(again.expect("the same").id, one.id);
        rows.attach(None, Access::ReadOnly).await.expect("exported");
        for vm in [None, Some("libvirt:one"), Some("libvirt:three")] {
            let refused = rows.attach(vm, Access::ReadWrite).await;
            assert!(matches!(refused, Err(DatabaseError::Refused { .. })));
        }
        for one in rows.database.attachments().all().await.expect("read") {
            let asked = rows
                .database
                .attachments()
                .detach(&rows.principal, one.id, false)
                .await
                .expect("it exists");
            assert!(rows.report(&asked, AttachmentState::Detached).await);
        }
        let ended = rows.database.attachments().ended(10).await.expect("read");
        assert_eq!(ended.len(), 3);
        let writer = rows.attach(Some("libvirt:one"), Access::ReadWrite).await;
        writer.expect("alone");
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let refused = rows.attach(Some("libvirt:two"), access).await;
            let refused = refused.expect_err("one writes").to_string();
            assert!(refused.contains("--vm libvirt:one"), "{refused}");
        }
    }

    pub async fn a_report_on_an_older_generation_changes_nothing(rows: Rows) {
        let asked = rows.attach(Some("libvirt:one"), Access::ReadWrite).await;
        let asked = asked.expect("the request is accepted");
        let ended = rows
            .database
            .attachments()
            .detach(&rows.principal, asked.id, false)
            .await
            .expect("it exists");
        assert!(!rows.report(&asked, AttachmentState::Attached).await);
        assert!(rows.report(&ended, AttachmentState::Busy).await);
        // After another detach request the guest is asked once more. Until then the volume is not
        // busy.
        let again = rows
            .database
            .attachments()
            .detach(&rows.principal, asked.id, false)
            .await
            .expect("it exists");
        assert_eq!(again.observed.state, AttachmentState::Detaching);
        assert!(!rows.report(&ended, AttachmentState::Detached).await);
        // It may also be attached again.
        let wanted = rows.attach(Some("libvirt:one"), Access::ReadWrite).await;
        let wanted = wanted.expect("the same");
        assert!(wanted.id == asked.id && wanted.desired.is_attached && !wanted.desired.is_forced);
        assert!(!rows.report(&again, AttachmentState::Detached).await);
        assert!(rows.report(&wanted, AttachmentState::Attached).await);
    }

    pub async fn a_lease_is_taken_by_force_only_after_its_end(rows: Rows) {
        let database = &rows.database;
        let asked = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let heard = Millis(1_000_000);
        database
            .hosts()
            .record_heard(rows.host, heard)
            .await
            .expect("heard");
        rows.acquire().await;
        let held = HeldLease {
            attachment: asked.id,
            epoch: 1,
        };
        let renewal = Renewal {
            leases: vec![held.clone()],
            journals: vec![rows.volume],
        };
        let renewed = database.hosts().renew(rows.host, &renewal, heard).await;
        let renewed = renewed.expect("heard");
        assert!(renewed.lost.is_empty() && renewed.fenced.is_empty());

        // Without a forced detach no lease is taken, however long the host has been unresponsive.
        let late = Millis(heard.0 + 100 * LEASE_MS);
        let ended = database.hosts().end_forced(LEASE_MS, late).await;
        assert_eq!(ended.expect("looked"), []);
        let forced = database
            .attachments()
            .detach(&rows.principal, asked.id, true)
            .await
            .expect("it exists");
        assert_eq!(forced.observed.state, AttachmentState::Detaching);
        for (after, taken) in [(LEASE_MS - 1, vec![]), (LEASE_MS, vec![asked.id])] {
            let now = Millis(heard.0 + after);
            let ended = database.hosts().end_forced(LEASE_MS, now).await;
            assert_eq!(ended.expect("looked"), taken);
        }
        let row = database
            .attachments()
            .get(asked.id)
            .await
            .expect("it exists");
        assert_eq!(row.observed.state, AttachmentState::Detached);
        let reason = row.observed.problem.expect("a problem").text;
        assert!(reason.contains("the volume is empty"), "{reason}");
        assert!(!rows.report(&forced, AttachmentState::Attached).await);

        // The host reports again.
        let renewed = database.hosts().renew(rows.host, &renewal, late).await;
        let renewed = renewed.expect("heard");
        assert_eq!(renewed.lost, [held]);
        let fenced = Fenced {
            volume: rows.volume,
            epoch: 2,
        };
        assert_eq!(renewed.fenced, [fenced]);
        let call = calls::ReserveSerials {
            volume: rows.volume,
            epoch: 1,
            count: 1,
        };
        let reach = Reach::new(rows.host, late);
        let refused = calls::answer(database, &reach, call).await;
        assert!(refused.expect_err("its epoch is over").is_fenced());

        // The next attachment reports with which version it opens.
        let next = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        assert_eq!(
            next.observed.notice.clone().map(|notice| notice.text),
            Some(reason)
        );
        assert_ne!(next.id, asked.id);
    }

    pub async fn the_free_space_of_a_host_is_stored_beside_its_report(rows: Rows) {
        let database = &rows.database;
        let host = async || {
            let of = database.hosts().all().await.expect("read").into_iter();
            let mut of = of.filter(|row| row.host == rows.host);
            of.next().expect("it exists")
        };
        assert_eq!((host().await.free_bytes, host().await.heard), (None, None));
        for (heard, free_bytes) in [(1, Some(u64::MAX)), (2, Some(0)), (3, None), (4, Some(7))] {
            let report = Report {
                report_number: 9,
                free_bytes,
                problems: vec!["one".to_owned()],
                ..Report::default()
            };
            let kept = database
                .hosts()
                .record_report(rows.host, &report, Millis(heard));
            kept.await.expect("kept");
            let row = host().await;
            assert_eq!((row.free_bytes, row.report_number), (free_bytes, 9));
            assert_eq!(row.heard, Some(Millis(heard)));
            let reports = database.hosts().reports().await.expect("read");
            let whole = reports.iter().find(|report| report.host == row);
            assert_eq!(whole.map(|one| &one.report), Some(&report));
            let own = database.hosts().report(rows.host).await.expect("read");
            assert_eq!(own.as_ref(), whole);
        }
        // A sign of life changes nothing else.
        let heard = database.hosts().record_heard(rows.host, Millis(5)).await;
        heard.expect("kept");
        assert_eq!(host().await.free_bytes, Some(7));
    }

    /// Both restores create a row with the same id. The second one once kept the forced detach of
    /// the first: a host that was unresponsive for ten seconds lost the volume again, and with it
    /// the content of its journal.
    pub async fn a_forced_detachment_does_not_outlast_the_next_restore(rows: Rows) {
        let database = &rows.database;
        let restore = async || {
            let moved = database.catalog().move_ahead(1, rows.host, Millis(7));
            moved.await.expect("moved");
            let of = database
                .attachments()
                .of_volume(rows.volume)
                .await
                .expect("read");
            assert_eq!(of.len(), 1);
            of[0].clone()
        };
        let first = restore().await;
        rows.take(&first).await;
        let taken = database
            .attachments()
            .get(first.id)
            .await
            .expect("it exists");
        assert!(taken.ended.is_some() && taken.desired.is_forced);

        let again = restore().await;
        assert_eq!(again.id, first.id);
        assert_eq!(again.observed.state, AttachmentState::Detaching);
        assert!(
            !again.desired.is_forced && again.ended.is_none() && again.observed.problem.is_none()
        );
        let late = Millis(100 * LEASE_MS);
        let ended = database.hosts().end_forced(LEASE_MS, late).await;
        assert_eq!(ended.expect("looked"), []);
        // Reports on earlier generations of the desired state are ignored.
        assert!(
            again.desired.generation > taken.desired.generation && again.observed.generation == 0
        );
        for late in [&first, &taken] {
            assert!(!rows.report(late, AttachmentState::Detached).await);
        }
        assert!(rows.report(&again, AttachmentState::Detached).await);
    }

    pub async fn a_journal_is_out_of_reach_until_its_lease_is_ended_by_force(rows: Rows) {
        let asked = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let lease = rows.acquire_with(Some(FOLDER)).await.expect("a lease");
        assert_eq!(lease.journal, None);
        rows.name_journal(lease.epoch, Some(FOLDER)).await;
        for (has, said) in [
            (None, "uses none"),
            (Some(OTHER_FOLDER), "jrnl-00000000000000002"),
        ] {
            let refused = rows.acquire_with(has).await.expect_err("out of reach");
            let text = refused.to_string();
            assert!(matches!(refused, CatalogError::JournalUnavailable { .. }));
            assert!(text.contains(said) && text.contains("jrnl-00000000000000001"));
        }
        assert_eq!(rows.note(&asked).await, None);
        let reason = rows.take(&asked).await;
        let end = "the writes that it flushed since are in the shared folder of journals \
                   jrnl-00000000000000001";
        assert!(
            reason.contains("taken by force") && reason.ends_with(end),
            "{reason}"
        );

        // What happens to the journal depends on the folder that the host has when it acquires the
        // lease, not before.
        let next = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let notice = next.observed.notice.clone().map(|notice| notice.text);
        assert_eq!(notice, Some(reason.clone()));
        let lease = rows.acquire_with(Some(FOLDER)).await.expect("a lease");
        assert_eq!(lease.journal.map(|named| named.epoch), Some(1));
        let note = Some(format!("{reason} and are replayed"));
        assert_eq!(rows.note(&next).await, note);
        rows.acquire_with(None).await.expect("a lease");
        let note = Some(format!("{reason} only, which this host does not use"));
        assert_eq!(rows.note(&next).await, note);

        // The host acquired no lease, so its attachment changed nothing.
        assert_eq!(rows.take(&next).await, reason);
        let last = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let lease = rows.acquire_with(None).await.expect("a lease");
        rows.name_journal(lease.epoch, None).await;
        let lease = rows.acquire_with(None).await.expect("a lease");
        assert_eq!(lease.journal, None, "given up for good");
        let reason = rows.take(&last).await;
        assert!(reason.contains("only in that host's journal"), "{reason}");
    }

    pub async fn a_closed_volume_has_no_named_journal(rows: Rows) {
        let asked = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let lease = rows.acquire_with(Some(FOLDER)).await.expect("a lease");
        rows.name_journal(lease.epoch, Some(FOLDER)).await;
        let detach = async |asked: &AttachmentRow, is_forced| {
            let database = &rows.database;
            let wish = database
                .attachments()
                .detach(&rows.principal, asked.id, is_forced)
                .await;
            wish.expect("it exists")
        };
        let wish = detach(&asked, false).await;
        assert!(rows.report(&wish, AttachmentState::Detached).await);
        let next = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let lease = rows
            .acquire_with(None)
            .await
            .expect("nothing is in the way");
        assert_eq!((lease.journal, &next.observed.notice), (None, &None));

        // An attachment that acquires no lease does not change the named journal.
        let lease = rows.acquire_with(Some(FOLDER)).await.expect("a lease");
        rows.name_journal(lease.epoch, Some(FOLDER)).await;
        rows.take(&next).await;
        let without = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let wish = detach(&without, false).await;
        assert!(rows.report(&wish, AttachmentState::Detached).await);
        rows.attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let lease = rows.acquire_with(Some(FOLDER)).await.expect("a lease");
        assert!(lease.journal.is_some());
    }

    pub async fn a_host_that_gives_up_a_journal_reports_what_was_lost(rows: Rows) {
        let asked = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let lease = rows.acquire_with(Some(FOLDER)).await.expect("a lease");
        rows.name_journal(lease.epoch, Some(FOLDER)).await;
        let wish = rows
            .database
            .attachments()
            .detach(&rows.principal, asked.id, true)
            .await;
        let wish = wish.expect("it exists");
        let kept = rows.report_with(&wish, AttachmentState::Detached, Some("it is gone"));
        assert!(kept.await);
        let next = rows
            .attach(None, Access::ReadWrite)
            .await
            .expect("the request is accepted");
        let note = "it is gone: the volume is empty, as it was created";
        assert_eq!(
            next.observed
                .notice
                .clone()
                .map(|notice| notice.text)
                .as_deref(),
            Some(note)
        );
        let lease = rows
            .acquire_with(None)
            .await
            .expect("nothing is in the way");
        assert_eq!(lease.journal, None);
    }
}
