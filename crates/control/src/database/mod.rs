//! The database: names, order, leases and wrapped keys, in SQLite.
//!
//! Every promise here is one transaction. Writers go through one connection,
//! so they are in order; readers see the last committed state and never wait
//! for a writer (WAL). A transaction that returned `Ok` is on stable storage
//! (`synchronous = FULL`).
//!
//! It must not know: keys in the clear, content, the HTTP edge.
//!
//! Invariants:
//! * `volumes.epoch` only grows, and a version is committed only under it
//!   (invariant 5);
//! * `cluster.serial_next` only grows: no segment serial is handed out twice;
//! * a version is removed only while no head and no snapshot names it
//!   (invariant 6);
//! * a lineage's row outlives everything that was sealed under it.

pub mod conformance;
mod engine;
mod error;
mod leases;
mod open;
mod owner;
mod rows;
mod snapshots;
mod thin;
mod units;
mod versions;
mod volumes;

pub use engine::EngineCatalog;
pub use error::DatabaseError;
pub use owner::{OwnerRow, PlaceRow};
pub use rows::{Access, Seal, SnapshotRow, SnapshotState, VolumeRow};
pub use thin::ThinVolume;
pub use units::{ClusterRow, KeySource, UnitRow};
pub use versions::VersionRow;
pub use volumes::{DamagedVolume, NewVolume, Volumes};

use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::sync::watch;

/// An open database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    /// One connection: every change.
    writer: SqlitePool,
    /// Read-only connections.
    reader: SqlitePool,
    /// Rings when a snapshot or a volume changed its state.
    changes: watch::Sender<u64>,
}

impl Database {
    /// Begins a change; nothing else can change until it ends.
    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, DatabaseError> {
        match self.writer.begin_with("BEGIN IMMEDIATE").await {
            // After some errors, a full disk among them, SQLite has rolled back
            // by itself: then sqlx counts a transaction that will never end.
            Err(sqlx::Error::InvalidSavePointStatement) => {
                self.writer.acquire().await?.close().await?;
                Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
            }
            begun => Ok(begun?),
        }
    }

    /// Ends a change that people may be waiting for.
    async fn commit_and_tell(
        &self,
        change: Transaction<'static, Sqlite>,
    ) -> Result<(), DatabaseError> {
        change.commit().await?;
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Rings whenever a snapshot or a volume has changed its state.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Writes the log back into the database file and closes it.
    pub async fn close(&self) {
        self.reader.close().await;
        // SQLite does so by itself as the last connection goes, unless that is
        // a reader whose thread ended late.
        let written = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(&self.writer)
            .await;
        if let Err(error) = written {
            tracing::warn!(%error, "scree.db-wal still holds a part of the database");
        }
        self.writer.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk made every later change fail until the process was killed.
    #[tokio::test]
    async fn a_rollback_by_sqlite_itself_does_not_stop_the_changes_after_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("scree.db");
        let database = Database::open(&path).await.expect("a new database");
        let mut change = database.begin().await.expect("begun");
        // What SQLite does by itself when it cannot write.
        sqlx::query("ROLLBACK")
            .execute(&mut *change)
            .await
            .expect("rolled back");
        drop(change);
        for _ in 0..2 {
            let mut change = database.begin().await.expect("begun again");
            sqlx::query("CREATE TABLE IF NOT EXISTS small (number INTEGER)")
                .execute(&mut *change)
                .await
                .expect("made");
            change.commit().await.expect("committed");
        }
    }
}
