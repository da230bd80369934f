//! What is claimed of attachments and of leases in time, on both databases.

use std::sync::atomic::{AtomicU64, Ordering};

use api::host::{
    Access, AttachmentReport, AttachmentState, CatalogCall, Fenced, HeldLease, Renewal, Seal,
};
use base::{AttachmentId, BlockSize, Lineage, PartyId, VolumeId};
use catalog::LeaseSalt;
use control::database::{
    Asker, AttachmentRow, Database, DatabaseError, NewAttachment, NewVolume, Reach, Tags,
};
use identity::Kind;
use tokio::runtime::Runtime;
use world::Millis;

use crate::askers::local;
use crate::postgres::Postgres;

const LEASE_MS: i64 = 10_000;

static NUMBERS: AtomicU64 = AtomicU64::new(1000);

fn number() -> u128 {
    NUMBERS.fetch_add(1, Ordering::Relaxed).into()
}

struct Rows {
    database: Database,
    asker: Asker,
    host: PartyId,
    volume: VolumeId,
}

impl Rows {
    async fn new(database: Database) -> Self {
        let host = database.local_party(Kind::Host, PartyId::from_random(number()), Millis(0));
        let host = host.await.expect("there");
        let volume = VolumeId::from_random(number());
        let new = NewVolume {
            id: volume,
            name: "disk".to_owned(),
            size_bytes: 1 << 20,
            block_size: BlockSize::DEFAULT,
            seal: Seal::Aes256Gcm,
            replicas: 1,
            project: None,
            tags: Tags::new(),
            lineage: Lineage::from_random(volume.as_u128()),
            origin: None,
            created: Millis(0),
        };
        let asker = local(&database).await;
        database.insert_volume(&asker, &new).await.expect("made");
        Self {
            database,
            asker,
            host,
            volume,
        }
    }

    async fn attach(
        &self,
        vm: Option<&str>,
        access: Access,
    ) -> Result<AttachmentRow, DatabaseError> {
        let new = NewAttachment {
            id: AttachmentId::from_random(number()),
            volume: self.volume,
            host: self.host,
            vm: vm.map(str::to_owned),
            access,
            created: Millis(0),
        };
        self.database.attach(&self.asker, &new).await
    }

    async fn acquire(&self) {
        let call = CatalogCall::Acquire {
            volume: self.volume,
            salt: LeaseSalt([3; 16]),
        };
        let reach = Reach::new(self.host, Millis(0));
        let lease = self.database.answer(&reach, call).await;
        lease.expect("a lease");
    }

    async fn report(&self, asked: &AttachmentRow, state: AttachmentState) -> bool {
        let report = AttachmentReport {
            generation: asked.generation,
            state,
            reason: None,
            note: None,
            device: None,
            size_bytes: None,
            uri: None,
            tcp_uri: None,
        };
        let kept = self
            .database
            .keep_attachment_report(self.host, asked.id, &report, Millis(0));
        kept.await.expect("asked")
    }
}

/// Runs a claim on a new SQLite database.
fn on_sqlite<F: Future<Output = ()>>(claim: impl Fn(Rows) -> F) {
    let runtime = Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    runtime.block_on(async {
        let database = Database::open(&folder.path().join("scree.db")).await;
        claim(Rows::new(database.expect("made")).await).await;
    });
}

/// Runs a claim on a new database of a PostgreSQL server.
fn on_postgres<F: Future<Output = ()>>(server: &Postgres, claim: impl Fn(Rows) -> F) {
    let runtime = Runtime::new().expect("a runtime");
    let url = server.database(&runtime);
    runtime.block_on(async {
        let database = Database::connect(&url.parse().expect("a URL")).await;
        claim(Rows::new(database.expect("made")).await).await;
    });
}

#[test]
fn vms_share_a_volume_read_only_and_one_that_writes_is_alone() {
    on_sqlite(claims::vms_share_a_volume_read_only_and_one_that_writes_is_alone);
}

#[test]
fn a_late_word_about_an_older_wish_changes_nothing() {
    on_sqlite(claims::a_late_word_about_an_older_wish_changes_nothing);
}

#[test]
fn a_lease_is_taken_by_force_only_after_its_end() {
    on_sqlite(claims::a_lease_is_taken_by_force_only_after_its_end);
}

#[test]
fn all_of_it_is_so_on_postgresql() {
    let server = Postgres::start();
    on_postgres(
        &server,
        claims::vms_share_a_volume_read_only_and_one_that_writes_is_alone,
    );
    on_postgres(
        &server,
        claims::a_late_word_about_an_older_wish_changes_nothing,
    );
    on_postgres(
        &server,
        claims::a_lease_is_taken_by_force_only_after_its_end,
    );
    on_postgres(&server, |rows| async move {
        let now = rows.database.now(Millis(5)).await.expect("asked");
        assert!(now.0 > 1_600_000_000_000, "by its own clock: {now:?}");
    });
}

#[test]
fn leases_on_sqlite_are_measured_by_this_machines_clock() {
    on_sqlite(|rows| async move {
        let now = rows.database.now(Millis(5)).await;
        assert_eq!(now.expect("asked"), Millis(5));
    });
}

/// What is claimed of both.
mod claims {
    use super::*;

    pub async fn vms_share_a_volume_read_only_and_one_that_writes_is_alone(rows: Rows) {
        let one = rows.attach(Some("libvirt:one"), Access::ReadOnly).await;
        let one = one.expect("asked");
        let two = rows.attach(Some("libvirt:two"), Access::ReadOnly).await;
        assert_ne!(two.expect("asked").id, one.id);
        let again = rows.attach(Some("libvirt:one"), Access::ReadOnly).await;
        assert_eq!(again.expect("the same").id, one.id);
        rows.attach(None, Access::ReadOnly).await.expect("exported");
        for vm in [None, Some("libvirt:one"), Some("libvirt:three")] {
            let refused = rows.attach(vm, Access::ReadWrite).await;
            assert!(matches!(refused, Err(DatabaseError::Refused { .. })));
        }
        for one in rows.database.attachments().await.expect("read") {
            let asked = rows
                .database
                .detach(&rows.asker, one.id, false)
                .await
                .expect("there");
            assert!(rows.report(&asked, AttachmentState::Detached).await);
        }
        let ended = rows.database.ended_attachments(10).await.expect("read");
        assert_eq!(ended.len(), 3);
        let writer = rows.attach(Some("libvirt:one"), Access::ReadWrite).await;
        writer.expect("alone");
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let refused = rows.attach(Some("libvirt:two"), access).await;
            let refused = refused.expect_err("one writes").to_string();
            assert!(refused.contains("--vm libvirt:one"), "{refused}");
        }
    }

    pub async fn a_late_word_about_an_older_wish_changes_nothing(rows: Rows) {
        let asked = rows.attach(Some("libvirt:one"), Access::ReadWrite).await;
        let asked = asked.expect("asked");
        let ended = rows
            .database
            .detach(&rows.asker, asked.id, false)
            .await
            .expect("there");
        assert!(!rows.report(&asked, AttachmentState::Attached).await);
        assert!(rows.report(&ended, AttachmentState::Busy).await);
        // Asked again, the guest is asked again; until then it is not busy.
        let again = rows
            .database
            .detach(&rows.asker, asked.id, false)
            .await
            .expect("there");
        assert_eq!(again.state, AttachmentState::Detaching);
        assert!(!rows.report(&ended, AttachmentState::Detached).await);
        // It may be wanted once more instead.
        let wanted = rows.attach(Some("libvirt:one"), Access::ReadWrite).await;
        let wanted = wanted.expect("the same");
        assert!(wanted.id == asked.id && wanted.is_wanted && !wanted.is_forced);
        assert!(!rows.report(&again, AttachmentState::Detached).await);
        assert!(rows.report(&wanted, AttachmentState::Attached).await);
    }

    pub async fn a_lease_is_taken_by_force_only_after_its_end(rows: Rows) {
        let database = &rows.database;
        let asked = rows.attach(None, Access::ReadWrite).await.expect("asked");
        let heard = Millis(1_000_000);
        database.heard_from(rows.host, heard).await.expect("heard");
        rows.acquire().await;
        let held = HeldLease {
            attachment: asked.id,
            epoch: 1,
        };
        let renewal = Renewal {
            leases: vec![held.clone()],
            journals: vec![rows.volume],
        };
        let renewed = database.renew(rows.host, &renewal, heard).await;
        let renewed = renewed.expect("heard");
        assert!(renewed.lost.is_empty() && renewed.fenced.is_empty());

        // Nobody asked for it: nothing is taken, however silent the host is.
        let late = Millis(heard.0 + 100 * LEASE_MS);
        let ended = database.end_forced(LEASE_MS, late).await;
        assert_eq!(ended.expect("looked"), []);
        let forced = database
            .detach(&rows.asker, asked.id, true)
            .await
            .expect("there");
        assert_eq!(forced.state, AttachmentState::Detaching);
        for (after, taken) in [(LEASE_MS - 1, vec![]), (LEASE_MS, vec![asked.id])] {
            let now = Millis(heard.0 + after);
            let ended = database.end_forced(LEASE_MS, now).await;
            assert_eq!(ended.expect("looked"), taken);
        }
        let row = database.attachment(asked.id).await.expect("there");
        assert_eq!(row.state, AttachmentState::Detached);
        let reason = row.reason.expect("a reason");
        assert!(reason.contains("the volume is empty"), "{reason}");
        assert!(!rows.report(&forced, AttachmentState::Attached).await);

        // Its host is back.
        let renewed = database.renew(rows.host, &renewal, late).await;
        let renewed = renewed.expect("heard");
        assert_eq!(renewed.lost, [held]);
        let fenced = Fenced {
            volume: rows.volume,
            epoch: 2,
        };
        assert_eq!(renewed.fenced, [fenced]);
        let call = CatalogCall::ReserveSerials {
            volume: rows.volume,
            epoch: 1,
            count: 1,
        };
        let reach = Reach::new(rows.host, late);
        let refused = database.answer(&reach, call).await;
        assert!(refused.expect_err("its epoch is over").is_fenced());

        // Whoever has it next is told what it opens with.
        let next = rows.attach(None, Access::ReadWrite).await.expect("asked");
        assert_eq!(next.note, Some(reason));
        assert_ne!(next.id, asked.id);
    }
}
