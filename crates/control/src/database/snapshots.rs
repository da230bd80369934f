//! Snapshots: names that hold versions.

use base::{PartyId, SnapshotId, VolumeId};
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

/// The moments that were taken of `volume` went with the process that took
/// them.
pub(super) async fn lose_cuts(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE snapshots SET state = 'error', reason = \
         'Scree ended before the snapshot was completed; take it again' \
         WHERE volume = $1 AND state = 'pending' AND cut = 1",
    )
    .bind(volume.to_string())
    .execute(connection)
    .await?;
    Ok(())
}

/// `volume` was closed: its head is its state, and that of all snapshots whose
/// moment was still to be taken.
pub(super) async fn settle(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE snapshots SET state = 'completed', \
         version_volume = (SELECT head_volume FROM volumes WHERE id = $1), \
         version_number = (SELECT head_number FROM volumes WHERE id = $1) \
         WHERE volume = $1 AND state = 'pending' AND cut = 0",
    )
    .bind(volume.to_string())
    .execute(&mut *connection)
    .await?;
    give_up(connection, volume, "the volume was closed before its cut").await
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
            let writer = super::attachments::writer_of(&mut *change, volume).await?;
            let row = sqlx::query(
            "INSERT INTO snapshots (id, name, volume, volume_name, size_bytes, block_bytes, seal, \
             version_volume, version_number, state, created_ms) \
             SELECT $1, $2, id, name, size_bytes, block_bytes, seal, \
             CASE $5 WHEN 0 THEN head_volume END, CASE $5 WHEN 0 THEN head_number END, \
             CASE $5 WHEN 0 THEN 'completed' ELSE 'pending' END, $3 \
             FROM volumes WHERE id = $4 AND deleting = 0 RETURNING *",
        )
        .bind(id.to_string())
        .bind(name)
        .bind(created.0)
        .bind(volume.to_string())
        .bind(i64::from(writer.is_some()))
        .fetch_optional(&mut *change)
        .await?
        .ok_or_else(|| DatabaseError::NotFound {
            what: format!("volume {volume}"),
        })?;
            if let Some(writer) = writer {
                super::hosts::assign(&mut *change, writer).await?;
            }
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

    /// The snapshots whose moment is still to be taken, and of what.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn pending_cuts(&self) -> Result<Vec<(SnapshotId, VolumeId)>, DatabaseError> {
        sqlx::query("SELECT id, volume FROM snapshots WHERE state = 'pending' AND cut = 0")
            .fetch_all(&self.reader)
            .await?
            .iter()
            .map(|row| Ok((rows::spelt(row, "id")?, rows::spelt(row, "volume")?)))
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

    /// Notes that the moment of a pending snapshot was taken.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn note_cut(&self, id: SnapshotId, host: PartyId) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            sqlx::query(
                "UPDATE snapshots SET cut = 1 WHERE id = $1 AND volume IN (SELECT volume \
                 FROM attachments WHERE host = $2 AND access = 'read-write' \
                 AND state <> 'detached')",
            )
            .bind(id.to_string())
            .bind(host.to_string())
            .execute(change)
            .await?;
            Ok(())
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
                super::hosts::clean(&mut *change).await?;
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
