//! The database: names, order, leases and wrapped keys, in SQLite or PostgreSQL, with one text of
//! SQL for both.
//!
//! [`Database`] is a connection; what can be done with it is sorted by noun: `database.volumes()`,
//! `database.attachments()`, and so on return a handle that borrows it. Each noun is a folder or a
//! file here:
//!
//! * `tenancy`: parties, projects, grants, rights, the audit log
//! * `volumes`, `snapshots`, `images`, `chains`, `audits`
//! * `attach`: attachments, from the request to the host's report
//! * `catalog`: the engine's catalog: leases, versions, frees
//! * `keys`: wrapping keys, and the data keys of lineages
//! * `hosts`, `units`, `repair`, `cluster`
//! * `transaction`: how a change is made; `open`: connections and the schema
//!
//! Every promise is one transaction, and transactions are serializable. Readers see the last
//! committed state and wait for no writer. A transaction that returned `Ok` is on stable storage.
//!
//! It must not know: keys in the clear, content, the HTTP edge.
//!
//! Invariants:
//! * `volumes.epoch` only grows, and a version is committed only under it (invariant 5);
//! * the next segment serial only grows: none is handed out twice;
//! * a version is removed only while no head and no snapshot names it (invariant 6);
//! * a lineage's row outlives everything that was sealed under it.

#[macro_use]
mod rows;
#[macro_use]
mod catalog;
mod attach;
mod audits;
mod chains;
mod cluster;
mod counts;
mod error;
mod hosts;
mod images;
mod keys;
mod open;
mod pages;
mod postgres_url;
mod repair;
mod schema;
mod snapshots;
mod tenancy;
mod transaction;
mod units;
mod volumes;

pub use api::words::Right;
pub use attach::attachments::{
    AttachmentRow, Attachments, DesiredAttachment, ObservedAttachment, Successor,
};
pub use attach::requests::NewAttachment;
pub use audits::{AuditOfVolume, Audits, NewAudit};
pub use catalog::calls::{Answer, Catalog};
pub use catalog::capabilities::{FreeRights, LeaseRights};
pub use catalog::reach::{Reach, UNRESPONSIVE_FOR_MS};
pub use catalog::versions::VersionRow;
pub use chains::chain_volumes::ChainVolumes;
pub use chains::{ChainKey, ChainRow, Chains, NewChain};
pub use cluster::owner::{Cluster, FolderPlace, OwnerRow, PlaceRow, ServerPlace};
pub use counts::Counts;
pub use error::{DatabaseError, ObjectKind};
pub use hosts::jobs::Job;
pub use hosts::{HostReport, HostRow, Hosts};
pub use images::Images;
pub use images::preloads::PreloadRow;
pub use keys::wrapping_keys::{KeyRow, Keys};
pub use pages::{Filter, Page, SnapshotPage, VolumePage};
pub use postgres_url::{AddressError, PostgresUrl};
pub use repair::degraded::DegradedVolume;
pub use repair::jobs::{REPAIR_RIGHTS_MS, Repair};
pub use repair::list::RepairRow;
pub use rows::{SnapshotRow, SnapshotState, VolumeRow};
pub use snapshots::{NewSnapshot, Snapshots};
pub use tenancy::audit_log::{AuditRow, Origin};
pub use tenancy::grants::{GrantRow, Grants, NewGrant, Object};
pub use tenancy::parties::{Membership, Parties};
pub use tenancy::party_rows::PartyRow;
pub(crate) use tenancy::principal::why_gone;
pub use tenancy::principal::{Idempotency, Principal};
pub use tenancy::projects::{NewProject, ProjectRow, Projects, Quota};
pub use tenancy::rights::Need;
pub use units::decide::Removal;
pub use units::draining::DrainResult;
pub use units::{Claimed, ClusterRow, Heard, UnitRow, Units};
pub use volumes::create::NewVolume;
pub use volumes::settings::VolumeSettings;
pub use volumes::tags::Tags;
pub use volumes::{DamagedVolume, VolumeName, VolumeRows, Volumes};

use std::sync::{Arc, OnceLock};

use sqlx::AnyPool;
use tokio::sync::watch;
use tokio::task::JoinError;

/// The kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    Sqlite,
    Postgres,
}

/// An open database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    backend: Backend,
    /// Every change. For SQLite, one connection.
    writer: AnyPool,
    /// For SQLite, read-only connections.
    reader: AnyPool,
    /// Counts changes of the state of a volume, a snapshot or a host.
    changes: watch::Sender<u64>,
    /// The PostgreSQL server and database, once known: a connection to another one is not used.
    place: Arc<OnceLock<ServerPlace>>,
    _listener: Option<Arc<open::Listening>>,
}

/// The largest number of connections that are tried to begin a transaction.
const BEGINS_MAX: u32 = 16;

/// A transaction that has begun. Dropping it rolls it back.
type OpenTransaction = sqlx::Transaction<'static, sqlx::Any>;

/// Handles by noun.
impl Database {
    /// Attachments of volumes to hosts.
    #[must_use]
    pub fn attachments(&self) -> Attachments<'_> {
        Attachments { database: self }
    }

    /// Audits of volumes.
    #[must_use]
    pub fn audits(&self) -> Audits<'_> {
        Audits { database: self }
    }

    /// The engine's catalog.
    #[must_use]
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog { database: self }
    }

    /// Chains of filters.
    #[must_use]
    pub fn chains(&self) -> Chains<'_> {
        Chains { database: self }
    }

    /// The cluster itself: its id, owner and authority.
    #[must_use]
    pub fn cluster(&self) -> Cluster<'_> {
        Cluster { database: self }
    }

    /// Grants.
    #[must_use]
    pub fn grants(&self) -> Grants<'_> {
        Grants { database: self }
    }

    /// Hosts, their reports and their jobs.
    #[must_use]
    pub fn hosts(&self) -> Hosts<'_> {
        Hosts { database: self }
    }

    /// Base images, and preloads of them.
    #[must_use]
    pub fn images(&self) -> Images<'_> {
        Images { database: self }
    }

    /// Wrapping keys and data keys.
    #[must_use]
    pub fn keys(&self) -> Keys<'_> {
        Keys { database: self }
    }

    /// Users, hosts and unit daemons.
    #[must_use]
    pub fn parties(&self) -> Parties<'_> {
        Parties { database: self }
    }

    /// Projects and their quotas.
    #[must_use]
    pub fn projects(&self) -> Projects<'_> {
        Projects { database: self }
    }

    /// The repair of copysets.
    #[must_use]
    pub fn repair(&self) -> Repair<'_> {
        Repair { database: self }
    }

    /// Snapshots.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots<'_> {
        Snapshots { database: self }
    }

    /// Storage units and copysets.
    #[must_use]
    pub fn units(&self) -> Units<'_> {
        Units { database: self }
    }

    /// Volumes.
    #[must_use]
    pub fn volumes(&self) -> Volumes<'_> {
        Volumes { database: self }
    }
}

impl Database {
    /// Several reads of one and the same state.
    async fn moment(&self) -> Result<OpenTransaction, DatabaseError> {
        let begin = match self.backend {
            Backend::Sqlite => "BEGIN",
            Backend::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        };
        begun(&self.reader, begin).await
    }

    /// A receiver that is notified of every change of the state of a volume, a snapshot or a host.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Erases deleted rows from all of SQLite's files: `secure_delete` erases them from the
    /// database file, and the checkpoint from the log. A concurrent reader delays that until the
    /// next call.
    async fn erase(&self) {
        if self.backend == Backend::Sqlite {
            let written = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
                .execute(&self.writer)
                .await;
            if let Err(error) = written {
                tracing::warn!(%error, "controller could not truncate scree.db-wal, which still holds a part of the database");
            }
        }
    }

    /// Closes the database. SQLite's log is written back into its file.
    pub async fn close(&self) {
        if self.backend == Backend::Sqlite {
            self.reader.close().await;
            // SQLite does so by itself when the last connection closes, unless that is a reader
            // whose thread ended late.
            self.erase().await;
        }
        self.writer.close().await;
    }
}

/// Begins a transaction on some connection.
///
/// It runs in its own task, which completes even if the caller is canceled: sqlx would put a
/// connection in the middle of a transaction back into its pool.
///
/// SQLite rolls back by itself after some errors, a full disk among them; sqlx
/// then counts a transaction that will never end, and the connection is closed.
async fn begun(pool: &AnyPool, begin: &'static str) -> Result<OpenTransaction, DatabaseError> {
    let mut count = 0;
    loop {
        count += 1;
        let own = pool.clone();
        let beginning = tokio::spawn(async move { own.begin_with(begin).await });
        match joined(beginning.await)? {
            Err(sqlx::Error::InvalidSavePointStatement) if count < BEGINS_MAX => {
                pool.acquire().await?.close().await?;
            }
            begun => return Ok(begun?),
        }
    }
}

/// The result of a task that is canceled only when the process exits.
fn joined<T>(found: Result<T, JoinError>) -> Result<T, DatabaseError> {
    let ended = match found {
        Ok(found) => return Ok(found),
        Err(ended) => ended,
    };
    match ended.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(ended) => Err(sqlx::Error::Io(std::io::Error::other(ended)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::transaction::Turn;
    use super::*;

    /// It was once reported as a panic.
    #[tokio::test]
    async fn a_task_that_was_ended_early_is_an_error() {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        let ended = joined(task.await);
        assert!(matches!(ended, Err(DatabaseError::Away(_))), "{ended:?}");
        assert_eq!(joined(tokio::spawn(async { 7 }).await).ok(), Some(7));
    }

    /// A full disk made every later change fail until the process was killed.
    #[tokio::test]
    async fn a_rollback_by_sqlite_itself_does_not_stop_the_changes_after_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("scree.db");
        let database = Database::open(&path).await.expect("a new database");
        let mut change = database.begin(Turn::Shared).await.expect("begun");
        // SQLite does the same when it cannot write.
        sqlx::query("ROLLBACK")
            .execute(&mut *change)
            .await
            .expect("rolled back");
        drop(change);
        for _ in 0..2 {
            let mut change = database.begin(Turn::Shared).await.expect("begun again");
            sqlx::query("CREATE TABLE IF NOT EXISTS small (number INTEGER)")
                .execute(&mut *change)
                .await
                .expect("made");
            change.commit().await.expect("committed");
        }
    }
}
