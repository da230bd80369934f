//! Moving attachments, on both databases.

use api::host::{Access, AttachmentState};
use base::{AttachmentId, PartyId, VolumeId};
use catalog::{Lease, LeaseSalt};
use control::database::{AttachmentRow, Database, DatabaseError, Principal, Reach, Successor};
use world::Millis;

use crate::calls;
use crate::fresh::{self, add_host, attachment, number, on_postgres, on_sqlite};
use crate::postgres::Postgres;
use crate::principals::local;

const NOW: Millis = Millis(1_000_000);

/// A host that has not reported since cannot be the target of a move.
const HEARD_AFTER: Millis = Millis(NOW.0 - 10_000);
const LEASE_MS: i64 = 10_000;

/// A volume that is attached to the first of two hosts, with a lease.
struct Rows {
    database: Database,
    principal: Principal,
    hosts: Vec<PartyId>,
    volume: VolumeId,
    attached: AttachmentRow,
}

impl fresh::Rows for Rows {
    async fn new(database: Database) -> Self {
        let principal = local(&database).await;
        let mut hosts = Vec::new();
        for name in ["h1", "h2", "h3"] {
            hosts.push(add_host(&database, &principal, name, NOW).await);
        }
        let new = fresh::volume("disk", NOW);
        let volume = new.id;
        database
            .volumes()
            .insert(&principal, &new)
            .await
            .expect("made");
        let first = attachment(volume, hosts[0], Access::ReadWrite, NOW);
        let attached = database
            .attachments()
            .attach(&principal, &first)
            .await
            .expect("the request is accepted");
        let rows = Self {
            database,
            principal,
            hosts,
            volume,
            attached,
        };
        assert_eq!(rows.acquire(0).await.epoch, 1);
        assert!(
            rows.report(0, &rows.attached, AttachmentState::Attached)
                .await
        );
        rows
    }
}

impl Rows {
    async fn acquire(&self, host: usize) -> Lease {
        let call = calls::Acquire {
            volume: self.volume,
            salt: LeaseSalt([3; 16]),
            journals: None,
        };
        let reach = Reach::new(self.hosts[host], NOW);
        let lease = calls::answer(&self.database, &reach, call).await;
        serde_json::from_value(lease.expect("a lease")).expect("JSON")
    }

    async fn report(&self, host: usize, of: &AttachmentRow, state: AttachmentState) -> bool {
        let report = fresh::report(of, state);
        let database = &self.database;
        let kept = database
            .attachments()
            .record_report(self.hosts[host], of.id, &report, NOW);
        kept.await.expect("the request is accepted")
    }

    fn to(&self, host: usize) -> Successor {
        Successor {
            id: AttachmentId::from_u128(number()),
            host: self.hosts[host],
            vm: None,
        }
    }

    async fn start(&self, to: &Successor) -> Result<AttachmentRow, DatabaseError> {
        let database = &self.database;
        let id = self.attached.id;
        database
            .attachments()
            .move_to(&self.principal, id, to, HEARD_AFTER)
            .await
    }

    /// The attachments that have not ended.
    async fn there(&self) -> Vec<AttachmentRow> {
        let there = self.database.attachments().of_volume(self.volume).await;
        there.expect("read")
    }

    async fn no_other_host_gets_it(&self) {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let new = attachment(self.volume, self.hosts[2], access, NOW);
            let refused = self
                .database
                .attachments()
                .attach(&self.principal, &new)
                .await;
            assert!(matches!(refused, Err(DatabaseError::Refused { .. })));
        }
    }
}

#[test]
fn the_successor_exists_as_soon_as_the_old_host_detached_and_no_host_gets_in_between() {
    on_sqlite(claims::follows);
}

#[test]
fn a_move_can_be_canceled_until_the_old_host_has_detached() {
    on_sqlite(claims::is_called_off);
}

#[test]
fn detaching_cancels_a_move_also_by_force() {
    on_sqlite(claims::is_detached);
}

#[test]
fn what_cannot_be_moved_stays() {
    on_sqlite(claims::stays);
}

#[test]
fn a_move_to_an_unresponsive_host_is_refused() {
    on_sqlite(claims::a_move_to_an_unresponsive_host_is_refused);
}

#[test]
fn all_of_this_holds_on_postgresql() {
    let server = Postgres::start();
    on_postgres(&server, claims::follows);
    on_postgres(&server, claims::is_called_off);
    on_postgres(&server, claims::is_detached);
    on_postgres(&server, claims::stays);
    on_postgres(&server, claims::a_move_to_an_unresponsive_host_is_refused);
}

/// The claims, which hold on both databases.
mod claims {
    use super::*;

    pub async fn follows(rows: Rows) {
        let next = rows.to(1);
        let moving = rows.start(&next).await.expect("the request is accepted");
        assert_eq!(moving.desired.successor.as_ref(), Some(&next));
        assert!(!moving.desired.is_attached && moving.observed.state == AttachmentState::Detaching);
        // Repeating the request changes nothing, and returns the same successor.
        assert_eq!(rows.start(&rows.to(1)).await.expect("the same"), moving);
        rows.no_other_host_gets_it().await;
        let deleted = rows
            .database
            .volumes()
            .begin_delete(&rows.principal, rows.volume, NOW);
        assert!(matches!(deleted.await, Err(DatabaseError::Refused { .. })));
        // The agent restarts: the desired state is the same.
        let begun = rows
            .database
            .attachments()
            .nothing_open(rows.hosts[0])
            .await;
        begun.expect("noted");
        // A late report on the desired state before the move.
        assert!(
            !rows
                .report(0, &rows.attached, AttachmentState::Detached)
                .await
        );
        assert!(!rows.report(1, &moving, AttachmentState::Detached).await);
        assert_eq!(rows.there().await.len(), 1);

        assert!(rows.report(0, &moving, AttachmentState::Detached).await);
        let there = rows.there().await;
        assert_eq!(there.len(), 1);
        assert_eq!((there[0].id, there[0].host), (next.id, rows.hosts[1]));
        assert!(there[0].desired.is_attached && there[0].epoch.is_none());
        assert_eq!(there[0].requested_by, Some(rows.principal.party.id));
        rows.no_other_host_gets_it().await;
        // Repeating the report creates no second successor.
        assert!(!rows.report(0, &moving, AttachmentState::Detached).await);
        assert_eq!(rows.there().await.len(), 1);
        assert_eq!(rows.acquire(1).await.epoch, 2);
        let late = calls::ReserveSerials {
            volume: rows.volume,
            epoch: 2,
            count: 1,
        };
        let reach = Reach::new(rows.hosts[0], NOW);
        let late = calls::answer(&rows.database, &reach, late).await;
        assert!(late.expect_err("it has let go").is_fenced());
        let done = rows.start(&rows.to(1)).await.expect("it is done");
        assert_eq!(done.desired.successor, Some(next));
    }

    pub async fn is_called_off(rows: Rows) {
        let database = &rows.database;
        let id = rows.attached.id;
        let early = database
            .attachments()
            .cancel_move(&rows.principal, id)
            .await;
        assert!(matches!(early, Err(DatabaseError::Refused { .. })));
        let moving = rows
            .start(&rows.to(1))
            .await
            .expect("the request is accepted");
        // The target is changed.
        let other = rows
            .start(&rows.to(2))
            .await
            .expect("the request is accepted");
        assert_eq!(
            other.desired.successor.as_ref().map(|next| next.host),
            Some(rows.hosts[2])
        );
        assert!(!rows.report(0, &moving, AttachmentState::Detached).await);
        let stays = database
            .attachments()
            .cancel_move(&rows.principal, id)
            .await
            .expect("in time");
        assert!(stays.desired.is_attached && stays.desired.successor.is_none());
        assert!(!rows.report(0, &other, AttachmentState::Detached).await);
        assert!(rows.report(0, &stays, AttachmentState::Attached).await);

        let moving = rows
            .start(&rows.to(1))
            .await
            .expect("the request is accepted");
        assert!(rows.report(0, &moving, AttachmentState::Detached).await);
        let late = database
            .attachments()
            .cancel_move(&rows.principal, id)
            .await;
        let late = late.expect_err("it has let go").to_string();
        assert!(late.contains("has replaced it"), "{late}");
        assert_eq!(rows.there().await[0].host, rows.hosts[1]);
    }

    pub async fn is_detached(rows: Rows) {
        let (database, id) = (&rows.database, rows.attached.id);
        rows.start(&rows.to(1))
            .await
            .expect("the request is accepted");
        // The host is unresponsive, and the volume is taken from it by force.
        let forced = database
            .attachments()
            .detach(&rows.principal, id, true)
            .await;
        assert_eq!(
            forced.expect("the request is accepted").desired.successor,
            None
        );
        let late = Millis(NOW.0 + LEASE_MS);
        let ended = database
            .hosts()
            .end_forced(LEASE_MS, late)
            .await
            .expect("looked");
        assert_eq!(ended, [id]);
        assert_eq!(rows.there().await, [], "nothing follows");
        let gone = rows.start(&rows.to(1)).await;
        assert!(matches!(gone, Err(DatabaseError::Refused { .. })));
    }

    /// The volume would become unusable.
    pub async fn a_move_to_an_unresponsive_host_is_refused(rows: Rows) {
        let (to, database) = (rows.to(1), &rows.database);
        let moved = database
            .attachments()
            .move_to(&rows.principal, rows.attached.id, &to, NOW);
        let refused = moved.await.expect_err("unresponsive").to_string();
        assert!(refused.contains("does not report"), "{refused}");
        let [there] = &rows.there().await[..] else {
            panic!("one attachment");
        };
        assert!(there.desired.is_attached && there.desired.successor.is_none());
    }

    pub async fn stays(rows: Rows) {
        let there = rows
            .start(&rows.to(0))
            .await
            .expect_err("it is attached there");
        assert!(
            there.to_string().contains("already attached there"),
            "{there}"
        );
        let detaching =
            rows.database
                .attachments()
                .detach(&rows.principal, rows.attached.id, false);
        let detaching = detaching.await.expect("the request is accepted");
        let ending = rows.start(&rows.to(1)).await;
        assert!(matches!(ending, Err(DatabaseError::Refused { .. })));
        assert!(rows.report(0, &detaching, AttachmentState::Detached).await);
        let reader = attachment(rows.volume, rows.hosts[0], Access::ReadOnly, NOW);
        let reader = rows
            .database
            .attachments()
            .attach(&rows.principal, &reader)
            .await
            .expect("the request is accepted");
        let to = rows.to(1);
        let shown = rows
            .database
            .attachments()
            .move_to(&rows.principal, reader.id, &to, HEARD_AFTER)
            .await;
        let shown = shown.expect_err("read-only").to_string();
        assert!(shown.contains("read-only"), "{shown}");
    }
}
