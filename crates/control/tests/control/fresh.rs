//! New databases on SQLite and PostgreSQL, and the rows with which most tests begin.

use std::sync::atomic::{AtomicU64, Ordering};

use api::host::{Access, AttachmentReport, AttachmentState, Encryption};
use auth::{Kind, Subject};
use base::{AttachmentId, BlockSize, Lineage, PartyId, VolumeId};
use control::database::{
    AttachmentRow, Database, Membership, NewAttachment, NewVolume, PartyRow, Principal, Tags,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use world::Millis;

use crate::postgres::Postgres;

static NUMBERS: AtomicU64 = AtomicU64::new(1000);

/// A number that no other id of this process has.
pub fn number() -> u128 {
    NUMBERS.fetch_add(1, Ordering::Relaxed).into()
}

/// A database with the rows that a claim needs.
pub trait Rows: Sized {
    /// Inserts the rows into a new database.
    fn new(database: Database) -> impl Future<Output = Self>;
}

/// A new SQLite database. Dropping the folder deletes it.
pub async fn sqlite() -> (Database, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let database = Database::open(&folder.path().join("scree.db")).await;
    (database.expect("made"), folder)
}

/// Runs a claim on a new SQLite database.
pub fn on_sqlite<R: Rows, F: Future<Output = ()>>(claim: impl Fn(R) -> F) {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (database, _folder) = sqlite().await;
        claim(R::new(database).await).await;
    });
}

/// Runs a claim on a new database of a PostgreSQL server.
pub fn on_postgres<R: Rows, F: Future<Output = ()>>(server: &Postgres, claim: impl Fn(R) -> F) {
    let runtime = Runtime::new().expect("a runtime");
    let url = server.database(&runtime);
    runtime.block_on(async {
        let database = Database::connect(&url.parse().expect("a URL")).await;
        claim(R::new(database.expect("made")).await).await;
    });
}

/// Adds a host that reports at `now`.
pub async fn add_host(
    database: &Database,
    principal: &Principal,
    name: &str,
    now: Millis,
) -> PartyId {
    let party = add_party(database, principal, (Kind::Host, name), now).await;
    let heard = database.hosts().record_heard(party.id, now);
    heard.await.expect("kept");
    party.id
}

/// Adds a user.
pub async fn add_user(
    database: &Database,
    principal: &Principal,
    name: &str,
    now: Millis,
) -> PartyRow {
    add_party(database, principal, (Kind::User, name), now).await
}

async fn add_party(
    database: &Database,
    principal: &Principal,
    (kind, name): (Kind, &str),
    now: Millis,
) -> PartyRow {
    let party = PartyRow {
        id: PartyId::from_u128(number()),
        subject: Subject::new(kind, name).expect("a name"),
        is_administrator: false,
        is_disabled: false,
        created: now,
    };
    let made = database
        .parties()
        .insert(principal, &party, &Membership::None);
    made.await.expect("made");
    party
}

/// A new, empty volume of 1 MiB.
pub fn volume(name: &str, created: Millis) -> NewVolume {
    NewVolume {
        id: VolumeId::from_u128(number()),
        name: name.to_owned(),
        size_bytes: 1 << 20,
        block_size: BlockSize::DEFAULT,
        encryption: Encryption::Aes256Gcm,
        replicas: 1,
        erasure: None,
        project: None,
        tags: Tags::new(),
        lineage: Lineage::from_u128(number()),
        settings: control::database::VolumeSettings::default(),
        origin: None,
        created,
    }
}

/// A new plain export.
pub fn attachment(
    volume: VolumeId,
    host: PartyId,
    access: Access,
    created: Millis,
) -> NewAttachment {
    NewAttachment {
        id: AttachmentId::from_u128(number()),
        volume,
        host,
        vm: None,
        access,
        created,
    }
}

/// The report of a host that has brought an attachment into this state.
pub fn report(asked: &AttachmentRow, state: AttachmentState) -> AttachmentReport {
    AttachmentReport {
        generation: asked.desired.generation,
        state,
        problem: None,
        notice: None,
        device: None,
        chain: None,
        chain_problem: None,
        size_bytes: None,
        uri: None,
        tcp_uri: None,
    }
}
