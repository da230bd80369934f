//! The database: names, order, leases and wrapped keys, in SQLite or
//! PostgreSQL, with one text of SQL for both.
//!
//! Every promise here is one transaction, and transactions are as if they came
//! one after another: SQLite has one writer, PostgreSQL is told so
//! (`SERIALIZABLE`), and a change that came in between is made again. Readers
//! see the last committed state and wait for nobody. A transaction that
//! returned `Ok` is on stable storage.
//!
//! It must not know: keys in the clear, content, the HTTP edge.
//!
//! Invariants:
//! * `volumes.epoch` only grows, and a version is committed only under it
//!   (invariant 5);
//! * the next segment serial only grows: none is handed out twice;
//! * a version is removed only while no head and no snapshot names it
//!   (invariant 6);
//! * a lineage's row outlives everything that was sealed under it.

#[macro_use]
mod change;
#[macro_use]
mod rows;
#[macro_use]
mod reach;
mod accounts;
mod address;
mod attaching;
mod attachment_states;
mod attachments;
mod audit;
mod authority;
mod calls;
mod capabilities;
mod chain_addresses;
mod chain_volumes;
mod chains;
mod counters;
mod counts;
mod degraded;
mod deleting;
mod draining;
mod error;
mod frees;
mod grants;
mod hosts;
mod images;
mod in_flight;
mod jobs;
mod journals;
mod keys;
mod leases;
mod lineages;
mod making;
mod moves;
mod open;
mod owner;
mod pages;
mod parties;
mod places;
mod preloads;
mod principal;
mod projects;
mod repair;
mod repair_shown;
mod rights;
mod sizes;
mod snapshots;
mod suspicions;
mod tags;
mod terms;
mod transfers;
mod units;
mod versions;
mod volume_audits;
mod volumes;

pub use address::{AddressError, PostgresUrl};
pub use api::words::Right;
pub use attaching::NewAttachment;
pub use attachments::AttachmentRow;
pub use audit::{AuditRow, By};
pub use calls::Answer;
pub use capabilities::{FreeRights, LeaseRights};
pub use chain_volumes::ChainVolumes;
pub use chains::{ChainKey, ChainRow, NewChain};
pub use counts::Counts;
pub use degraded::DegradedVolume;
pub use draining::{Moved, Removal};
pub use error::{DatabaseError, Thing};
pub use grants::{GrantRow, NewGrant, Object};
pub use hosts::{HostReport, HostRow};
pub use jobs::Job;
pub use keys::KeyRow;
pub use making::NewVolume;
pub use moves::Follower;
pub use owner::{FolderPlace, OwnerRow, PlaceRow, ServerPlace};
pub use pages::{Filter, Page, SnapshotPage, VolumePage};
pub use parties::{Membership, PartyRow};
pub use preloads::PreloadRow;
pub(crate) use principal::why_gone;
pub use principal::{Idempotency, Principal};
pub use projects::{NewProject, ProjectRow, Quota};
pub use reach::{Reach, UNRESPONSIVE_FOR_MS};
pub use repair::REPAIR_RIGHTS_MS;
pub use repair_shown::RepairRow;
pub use rights::Need;
pub use rows::{SnapshotRow, SnapshotState, VolumeRow};
pub use sizes::VolumeSizes;
pub use snapshots::NewSnapshot;
pub use tags::Tags;
pub use units::{Claimed, ClusterRow, Heard, UnitRow};
pub use versions::VersionRow;
pub use volume_audits::{AuditOfVolume, NewAudit};
pub use volumes::{DamagedVolume, VolumeName, Volumes};

use std::sync::{Arc, OnceLock};

use sqlx::{AnyPool, Executor as _};
use tokio::sync::watch;
use tokio::task::JoinError;

use change::Turn;

/// Which kind of database it is.
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
    /// Rings when a snapshot or a volume changed its state.
    changes: watch::Sender<u64>,
    /// Where PostgreSQL has this database, once that was looked at: a connection
    /// that leads elsewhere is not used.
    place: Arc<OnceLock<ServerPlace>>,
    _listener: Option<Arc<open::Listening>>,
}

/// So many connections are tried for one that can begin.
const BEGINS_MAX: u32 = 16;

/// A transaction.
type Transaction = sqlx::Transaction<'static, sqlx::Any>;

impl Database {
    /// Ends a change as its work has ended.
    async fn end<T>(
        &self,
        change: Transaction,
        done: Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        // If not, it is rolled back as it is dropped.
        let done = done?;
        change.commit().await?;
        Ok(done)
    }

    /// As [`Database::end`], when people may be waiting for it.
    async fn end_and_tell<T>(
        &self,
        mut change: Transaction,
        done: Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        if self.backend == Backend::Postgres && done.is_ok() {
            // Heard when, and only if, the change is committed.
            sqlx::query(open::NOTIFY).execute(&mut *change).await?;
        }
        let done = self.end(change, done).await?;
        self.changes.send_modify(|count| *count += 1);
        Ok(done)
    }

    /// Begins a change.
    async fn begin(&self, turn: Turn) -> Result<Transaction, DatabaseError> {
        let (begin, lock) = match (self.backend, turn) {
            // Nothing else can change until it ends.
            (Backend::Sqlite, _) => ("BEGIN IMMEDIATE", None),
            (Backend::Postgres, Turn::Shared) => (
                "BEGIN ISOLATION LEVEL SERIALIZABLE",
                Some("LOCK TABLE turns IN ROW SHARE MODE"),
            ),
            (Backend::Postgres, Turn::Alone) => (
                "BEGIN ISOLATION LEVEL SERIALIZABLE",
                Some("LOCK TABLE turns IN EXCLUSIVE MODE"),
            ),
        };
        let mut change = begun(&self.writer, begin).await?;
        if let Some(lock) = lock {
            // Within the transaction: whoever gives up waiting rolls it back.
            change.execute(lock).await?;
        }
        Ok(change)
    }

    /// Several reads of one and the same state.
    async fn moment(&self) -> Result<Transaction, DatabaseError> {
        let begin = match self.backend {
            Backend::Sqlite => "BEGIN",
            Backend::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        };
        begun(&self.reader, begin).await
    }

    /// Rings whenever a snapshot or a volume has changed its state.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Makes sure that what was deleted from SQLite is in none of its files: the
    /// file itself forgets by `secure_delete`, its log by being written back. One
    /// who reads meanwhile puts that off, until the next time or the end.
    async fn erase(&self) {
        if self.backend == Backend::Sqlite {
            let written = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
                .execute(&self.writer)
                .await;
            if let Err(error) = written {
                tracing::warn!(%error, "scree.db-wal still holds a part of the database");
            }
        }
    }

    /// Closes it; SQLite's log is written back into its file.
    pub async fn close(&self) {
        if self.backend == Backend::Sqlite {
            self.reader.close().await;
            // SQLite does so by itself as the last connection goes, unless that
            // is a reader whose thread ended late.
            self.erase().await;
        }
        self.writer.close().await;
    }
}

/// Begins a transaction on some connection.
///
/// In a task of its own, which goes on to its end if nobody waits for it any
/// more: sqlx would put a connection that is half way into a transaction back
/// into its pool, for others to work in it.
///
/// SQLite rolls back by itself after some errors, a full disk among them; sqlx
/// then counts a transaction that will never end, and the connection is closed.
async fn begun(pool: &AnyPool, begin: &'static str) -> Result<Transaction, DatabaseError> {
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

/// What a task has found, which nobody ends early but a process that is ending.
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
    use super::*;

    /// It has not panicked, and was taken for one that had.
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
        // What SQLite does by itself when it cannot write.
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
