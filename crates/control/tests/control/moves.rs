//! What is claimed of moving attachments, on both databases.

use std::sync::atomic::{AtomicU64, Ordering};

use api::host::{Access, AttachmentReport, AttachmentState, CatalogCall, Seal};
use base::{AttachmentId, BlockSize, Lineage, PartyId, VolumeId};
use catalog::{Lease, LeaseSalt};
use control::database::{
    Asker, AttachmentRow, Database, DatabaseError, Follower, Membership, NewAttachment, NewVolume,
    PartyRow, Reach, Tags,
};
use identity::{Kind, Subject};
use tokio::runtime::Runtime;
use world::Millis;

use crate::askers::local;
use crate::postgres::Postgres;

const NOW: Millis = Millis(1_000_000);

/// Who was not heard of since is moved to by nobody.
const HEARD_AFTER: Millis = Millis(NOW.0 - 10_000);
const LEASE_MS: i64 = 10_000;

static NUMBERS: AtomicU64 = AtomicU64::new(1000);

fn number() -> u128 {
    NUMBERS.fetch_add(1, Ordering::Relaxed).into()
}

/// A volume that the first of two hosts has attached, with a lease.
struct Rows {
    database: Database,
    asker: Asker,
    hosts: Vec<PartyId>,
    volume: VolumeId,
    attached: AttachmentRow,
}

impl Rows {
    async fn new(database: Database) -> Self {
        let asker = local(&database).await;
        let mut hosts = Vec::new();
        for name in ["h1", "h2", "h3"] {
            let party = PartyRow {
                id: PartyId::from_random(number()),
                subject: Subject::new(Kind::Host, name).expect("a name"),
                is_administrator: false,
                is_disabled: false,
                created: NOW,
            };
            let made = database.insert_party(&asker, &party, &Membership::None);
            made.await.expect("made");
            database.heard_from(party.id, NOW).await.expect("heard");
            hosts.push(party.id);
        }
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
            lineage: Lineage::from_random(number()),
            origin: None,
            created: NOW,
        };
        database.insert_volume(&asker, &new).await.expect("made");
        for host in &hosts {
            database.heard_from(*host, NOW).await.expect("kept");
        }
        let first = attachment(volume, hosts[0], Access::ReadWrite);
        let attached = database.attach(&asker, &first).await.expect("asked");
        let rows = Self {
            database,
            asker,
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

    async fn acquire(&self, host: usize) -> Lease {
        let call = CatalogCall::Acquire {
            volume: self.volume,
            salt: LeaseSalt([3; 16]),
            journals: None,
        };
        let reach = Reach::new(self.hosts[host], NOW);
        let lease = self.database.answer(&reach, call).await;
        serde_json::from_value(lease.expect("a lease")).expect("JSON")
    }

    async fn report(&self, host: usize, of: &AttachmentRow, state: AttachmentState) -> bool {
        let report = AttachmentReport {
            generation: of.generation,
            state,
            reason: None,
            note: None,
            device: None,
            size_bytes: None,
            uri: None,
            tcp_uri: None,
        };
        let database = &self.database;
        let kept = database.keep_attachment_report(self.hosts[host], of.id, &report, NOW);
        kept.await.expect("asked")
    }

    fn to(&self, host: usize) -> Follower {
        Follower {
            id: AttachmentId::from_random(number()),
            host: self.hosts[host],
            vm: None,
        }
    }

    async fn start(&self, to: &Follower) -> Result<AttachmentRow, DatabaseError> {
        let database = &self.database;
        let id = self.attached.id;
        database
            .move_attachment(&self.asker, id, to, HEARD_AFTER)
            .await
    }

    /// Those that have not ended.
    async fn there(&self) -> Vec<AttachmentRow> {
        let there = self.database.attachments_of(self.volume).await;
        there.expect("read")
    }

    async fn nobody_else_gets_it(&self) {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let new = attachment(self.volume, self.hosts[2], access);
            let refused = self.database.attach(&self.asker, &new).await;
            assert!(matches!(refused, Err(DatabaseError::Refused { .. })));
        }
    }
}

fn attachment(volume: VolumeId, host: PartyId, access: Access) -> NewAttachment {
    NewAttachment {
        id: AttachmentId::from_random(number()),
        volume,
        host,
        vm: None,
        access,
        created: NOW,
    }
}

fn on_sqlite<F: Future<Output = ()>>(claim: impl Fn(Rows) -> F) {
    let runtime = Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    runtime.block_on(async {
        let database = Database::open(&folder.path().join("scree.db")).await;
        claim(Rows::new(database.expect("made")).await).await;
    });
}

fn on_postgres<F: Future<Output = ()>>(server: &Postgres, claim: impl Fn(Rows) -> F) {
    let runtime = Runtime::new().expect("a runtime");
    let url = server.database(&runtime);
    runtime.block_on(async {
        let database = Database::connect(&url.parse().expect("a URL")).await;
        claim(Rows::new(database.expect("made")).await).await;
    });
}

#[test]
fn what_follows_is_there_as_soon_as_the_old_host_has_let_go_and_nobody_in_between() {
    on_sqlite(claims::follows);
}

#[test]
fn a_move_is_called_off_until_the_old_host_has_let_go() {
    on_sqlite(claims::is_called_off);
}

#[test]
fn a_detachment_of_what_is_moved_is_one_also_by_force() {
    on_sqlite(claims::is_detached);
}

#[test]
fn what_cannot_be_moved_stays() {
    on_sqlite(claims::stays);
}

#[test]
fn nothing_is_moved_to_a_host_that_is_not_heard_of() {
    on_sqlite(claims::stays_away_from_the_silent);
}

#[test]
fn all_of_it_is_so_on_postgresql() {
    let server = Postgres::start();
    on_postgres(&server, claims::follows);
    on_postgres(&server, claims::is_called_off);
    on_postgres(&server, claims::is_detached);
    on_postgres(&server, claims::stays);
    on_postgres(&server, claims::stays_away_from_the_silent);
}

/// What is claimed of both.
mod claims {
    use super::*;

    pub async fn follows(rows: Rows) {
        let next = rows.to(1);
        let moving = rows.start(&next).await.expect("asked");
        assert_eq!(moving.follower.as_ref(), Some(&next));
        assert!(!moving.is_wanted && moving.state == AttachmentState::Detaching);
        // The same again changes nothing, and has no other id.
        assert_eq!(rows.start(&rows.to(1)).await.expect("the same"), moving);
        rows.nobody_else_gets_it().await;
        let deleted = rows.database.begin_delete(&rows.asker, rows.volume, NOW);
        assert!(matches!(deleted.await, Err(DatabaseError::Refused { .. })));
        // Its agent is killed, and starts again; so is what is wanted.
        let begun = rows.database.nothing_open(rows.hosts[0]).await;
        begun.expect("noted");
        // What was said before the move was asked for, is heard of late.
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
        assert!(there[0].is_wanted && there[0].epoch.is_none());
        assert_eq!(there[0].asked_by, Some(rows.asker.party.id));
        rows.nobody_else_gets_it().await;
        // Said once more, nothing follows twice.
        assert!(!rows.report(0, &moving, AttachmentState::Detached).await);
        assert_eq!(rows.there().await.len(), 1);
        assert_eq!(rows.acquire(1).await.epoch, 2);
        let late = CatalogCall::ReserveSerials {
            volume: rows.volume,
            epoch: 2,
            count: 1,
        };
        let reach = Reach::new(rows.hosts[0], NOW);
        let late = rows.database.answer(&reach, late).await;
        assert!(late.expect_err("it has let go").is_fenced());
        let done = rows.start(&rows.to(1)).await.expect("it is done");
        assert_eq!(done.follower, Some(next));
    }

    pub async fn is_called_off(rows: Rows) {
        let database = &rows.database;
        let id = rows.attached.id;
        let early = database.call_off_move(&rows.asker, id).await;
        assert!(matches!(early, Err(DatabaseError::Refused { .. })));
        let moving = rows.start(&rows.to(1)).await.expect("asked");
        // To another one after all.
        let other = rows.start(&rows.to(2)).await.expect("asked");
        assert_eq!(
            other.follower.as_ref().map(|next| next.host),
            Some(rows.hosts[2])
        );
        assert!(!rows.report(0, &moving, AttachmentState::Detached).await);
        let stays = database
            .call_off_move(&rows.asker, id)
            .await
            .expect("in time");
        assert!(stays.is_wanted && stays.follower.is_none());
        assert!(!rows.report(0, &other, AttachmentState::Detached).await);
        assert!(rows.report(0, &stays, AttachmentState::Attached).await);

        let moving = rows.start(&rows.to(1)).await.expect("asked");
        assert!(rows.report(0, &moving, AttachmentState::Detached).await);
        let late = database.call_off_move(&rows.asker, id).await;
        let late = late.expect_err("it has let go").to_string();
        assert!(late.contains("follows it"), "{late}");
        assert_eq!(rows.there().await[0].host, rows.hosts[1]);
    }

    pub async fn is_detached(rows: Rows) {
        let (database, id) = (&rows.database, rows.attached.id);
        rows.start(&rows.to(1)).await.expect("asked");
        // Its host is dead, and it is taken from it.
        let forced = database.detach(&rows.asker, id, true).await;
        assert_eq!(forced.expect("asked").follower, None);
        let late = Millis(NOW.0 + LEASE_MS);
        let ended = database.end_forced(LEASE_MS, late).await.expect("looked");
        assert_eq!(ended, [id]);
        assert_eq!(rows.there().await, [], "nothing follows");
        let gone = rows.start(&rows.to(1)).await;
        assert!(matches!(gone, Err(DatabaseError::Refused { .. })));
    }

    /// Where it is, it is in use.
    pub async fn stays_away_from_the_silent(rows: Rows) {
        let (to, database) = (rows.to(1), &rows.database);
        let moved = database.move_attachment(&rows.asker, rows.attached.id, &to, NOW);
        let refused = moved.await.expect_err("silent").to_string();
        assert!(refused.contains("not heard of"), "{refused}");
        let [there] = &rows.there().await[..] else {
            panic!("one attachment");
        };
        assert!(there.is_wanted && there.follower.is_none());
    }

    pub async fn stays(rows: Rows) {
        let there = rows.start(&rows.to(0)).await.expect_err("there already");
        assert!(there.to_string().contains("there already"), "{there}");
        let detaching = rows.database.detach(&rows.asker, rows.attached.id, false);
        let detaching = detaching.await.expect("asked");
        let ending = rows.start(&rows.to(1)).await;
        assert!(matches!(ending, Err(DatabaseError::Refused { .. })));
        assert!(rows.report(0, &detaching, AttachmentState::Detached).await);
        let reader = attachment(rows.volume, rows.hosts[0], Access::ReadOnly);
        let reader = rows
            .database
            .attach(&rows.asker, &reader)
            .await
            .expect("asked");
        let to = rows.to(1);
        let shown = rows
            .database
            .move_attachment(&rows.asker, reader.id, &to, HEARD_AFTER)
            .await;
        let shown = shown.expect_err("read-only").to_string();
        assert!(shown.contains("read-only"), "{shown}");
    }
}
