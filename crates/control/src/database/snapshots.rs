//! Snapshots: names that hold versions.

use base::{SnapshotId, VolumeId};
use sqlx::{AnyConnection, Row};
use world::Millis;

use super::rows::{self, SnapshotRow};
use super::{Database, DatabaseError};

/// Snapshots of `volume` that wait for a cut which will not come.
pub(super) async fn give_up(
    connection: &mut AnyConnection,
    volume: VolumeId,
    reason: &str,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE snapshots SET state = 'error', reason = $1 WHERE volume = $2 AND state = 'pending'",
    )
    .bind(reason)
    .bind(volume.to_string())
    .execute(connection)
    .await?;
    Ok(())
}

impl Database {
    /// Makes a snapshot of `volume`: completed at once with the head if the
    /// volume is detached, else pending until the engine pins it.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`], [`DatabaseError::NotFound`].
    pub async fn insert_snapshot(
        &self,
        id: SnapshotId,
        name: &str,
        volume: VolumeId,
        created: Millis,
    ) -> Result<SnapshotRow, DatabaseError> {
        change_and_tell!(self, change, {
            let taken: Option<String> =
                sqlx::query_scalar("SELECT id FROM snapshots WHERE name = $1")
                    .bind(name)
                    .fetch_optional(&mut *change)
                    .await?;
            if taken.is_some() {
                return Err(DatabaseError::Taken {
                    what: format!("a snapshot named {name:?}"),
                });
            }
            let row = sqlx::query(
            "INSERT INTO snapshots (id, name, volume, volume_name, size_bytes, block_bytes, seal, \
             version_volume, version_number, state, created_ms) \
             SELECT $1, $2, id, name, size_bytes, block_bytes, seal, \
             CASE attached WHEN 0 THEN head_volume END, CASE attached WHEN 0 THEN head_number END, \
             CASE attached WHEN 0 THEN 'completed' ELSE 'pending' END, $3 \
             FROM volumes WHERE id = $4 AND deleting = 0 RETURNING *",
        )
        .bind(id.to_string())
        .bind(name)
        .bind(created.0)
        .bind(volume.to_string())
        .fetch_optional(&mut *change)
        .await?
        .ok_or_else(|| DatabaseError::NotFound {
            what: format!("volume {volume}"),
        })?;
            let snapshot = rows::snapshot_row(&row)?;
            Ok(snapshot)
        })
    }

    /// The snapshot with this id, or else this name.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn snapshot(&self, id_or_name: &str) -> Result<SnapshotRow, DatabaseError> {
        let row =
            sqlx::query("SELECT * FROM snapshots WHERE id = $1 OR name = $1 ORDER BY id = $1 DESC")
                .bind(id_or_name)
                .fetch_optional(&self.reader)
                .await?
                .ok_or_else(|| DatabaseError::NotFound {
                    what: format!("snapshot {id_or_name:?}"),
                })?;
        rows::snapshot_row(&row)
    }

    /// All snapshots, oldest first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn snapshots(&self) -> Result<Vec<SnapshotRow>, DatabaseError> {
        sqlx::query("SELECT * FROM snapshots ORDER BY created_ms, id")
            .fetch_all(&self.reader)
            .await?
            .iter()
            .map(rows::snapshot_row)
            .collect()
    }

    /// How many snapshots there are.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn snapshot_count(&self) -> Result<u64, DatabaseError> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM snapshots")
            .fetch_one(&self.reader)
            .await?;
        Ok(count.cast_unsigned())
    }

    /// Notes that a pending snapshot will not complete.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn fail_snapshot(&self, id: SnapshotId, reason: &str) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            sqlx::query(
                "UPDATE snapshots SET state = 'error', reason = $1 \
             WHERE id = $2 AND state = 'pending'",
            )
            .bind(reason)
            .bind(id.to_string())
            .execute(&mut *change)
            .await?;
            Ok(())
        })
    }

    /// After a start: the cuts that pending snapshots wait for went with the
    /// process that took them. Returns how many there were.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn fail_lost_snapshots(&self) -> Result<u64, DatabaseError> {
        change_and_tell!(self, change, {
            let lost = sqlx::query(
                "UPDATE snapshots SET state = 'error', reason = \
             'Scree ended before the snapshot was completed; take it again' \
             WHERE state = 'pending'",
            )
            .execute(&mut *change)
            .await?
            .rows_affected();
            Ok(lost)
        })
    }

    /// Forgets a snapshot. The version it held may go now.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn delete_snapshot(&self, id: SnapshotId) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            let gone = sqlx::query("DELETE FROM snapshots WHERE id = $1 RETURNING name")
                .bind(id.to_string())
                .fetch_optional(&mut *change)
                .await?;
            if let Some(gone) = gone {
                let name: String = gone.try_get("name")?;
                tracing::info!(snapshot = %id, name, "snapshot deleted");
                return Ok(());
            }
            Err(DatabaseError::NotFound {
                what: format!("snapshot {id}"),
            })
        })
    }
}
