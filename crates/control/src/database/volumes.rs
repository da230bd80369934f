//! Volumes, as their owners see them.

use api::host::Seal;
use api::size::exact_bytes;
use base::{BlockSize, Lineage, SnapshotId, VolumeId};
use catalog::{RESTORE_SKIPS_BYTES, VersionKey};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use super::rows::{self, SnapshotState, VolumeRow};
use super::{Database, DatabaseError};

/// A volume to be made. Its names, sizes and key have been checked or made by
/// the caller.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block size.
    pub block_size: BlockSize,
    /// How it is sealed.
    pub seal: Seal,
    /// Copies of each segment.
    pub replicas: u8,
    /// Under which lineage it will write. Its key is brought by the first host
    /// that opens it.
    pub lineage: Lineage,
    /// The snapshot it starts from.
    pub origin: Option<SnapshotId>,
    /// When.
    pub created: Millis,
}

/// All volumes, as far as they can be read.
#[derive(Debug, Clone, Default)]
pub struct Volumes {
    /// By name, those on their way out included.
    pub rows: Vec<VolumeRow>,
    /// Those whose rows say what no volume is like: somebody altered them.
    pub damaged: Vec<DamagedVolume>,
}

/// A volume whose row cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedVolume {
    /// Its id, as the row has it.
    pub id: String,
    /// Its name, as the row has it.
    pub name: String,
    /// What is wrong with the row.
    pub reason: String,
}

impl Volumes {
    /// The name of the volume `id`, if it is known.
    #[must_use]
    pub fn name_of(&self, id: VolumeId) -> Option<&str> {
        let row = self.rows.iter().find(|row| row.id == id);
        row.map(|row| row.name.as_str()).or_else(|| {
            let id = id.to_string();
            let damaged = self.damaged.iter().find(|volume| volume.id == id);
            damaged.map(|volume| volume.name.as_str())
        })
    }
}

/// Where a clone begins.
#[derive(Default)]
struct Start {
    head: Option<VersionKey>,
    epoch: u32,
    parent: Option<Lineage>,
}

impl Database {
    /// Makes a volume, empty or as a clone. The clone's epochs and version
    /// numbers lie above those of what it starts from: so an epoch names a
    /// key, and a number a version, along the whole line.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`], [`DatabaseError::NotFound`] (the snapshot),
    /// [`DatabaseError::Refused`] if the snapshot is not completed.
    pub async fn insert_volume(&self, new: &NewVolume) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            let taken: Option<String> =
                sqlx::query_scalar("SELECT id FROM volumes WHERE name = $1 AND deleting = 0")
                    .bind(&new.name)
                    .fetch_optional(&mut *change)
                    .await?;
            if taken.is_some() {
                return Err(DatabaseError::Taken {
                    what: format!("a volume named {:?}", new.name),
                });
            }
            let start = match new.origin {
                Some(origin) => start_of(&mut *change, origin).await?,
                None => Start::default(),
            };
            sqlx::query("INSERT INTO lineages (lineage, parent, epoch_first) VALUES ($1, $2, $3)")
                .bind(new.lineage.to_string())
                .bind(start.parent.map(|parent| parent.to_string()))
                .bind(i64::from(start.epoch + 1))
                .execute(&mut *change)
                .await?;
            sqlx::query(
                "INSERT INTO volumes (id, name, size_bytes, block_bytes, seal, replicas, lineage, \
             epoch, number_last, head_volume, head_number, origin, created_ms, origin_volume, \
             origin_number) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $10, $11)",
            )
            .bind(new.id.to_string())
            .bind(&new.name)
            .bind(new.size_bytes.cast_signed())
            .bind(new.block_size.bytes() as i64)
            .bind(new.seal.as_str())
            .bind(i64::from(new.replicas))
            .bind(new.lineage.to_string())
            .bind(i64::from(start.epoch))
            .bind(start.head.map_or(0, |head| head.number).cast_signed())
            .bind(start.head.map(|head| head.volume.to_string()))
            .bind(start.head.map(|head| head.number.cast_signed()))
            .bind(new.origin.map(|origin| origin.to_string()))
            .bind(new.created.0)
            .execute(&mut *change)
            .await?;
            Ok(())
        })
    }

    /// The volume with this id, or else this name.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn volume(&self, id_or_name: &str) -> Result<VolumeRow, DatabaseError> {
        let row = sqlx::query(
            "SELECT * FROM volumes WHERE id = $1 OR (name = $1 AND deleting = 0) \
             ORDER BY id = $1 DESC",
        )
        .bind(id_or_name)
        .fetch_optional(&self.reader)
        .await?
        .ok_or_else(|| DatabaseError::NotFound {
            what: format!("volume {id_or_name:?}"),
        })?;
        rows::volume_row(&row)
    }

    /// All volumes. One that is damaged keeps no other from being used.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn volumes(&self) -> Result<Volumes, DatabaseError> {
        let found = sqlx::query("SELECT * FROM volumes ORDER BY name, id")
            .fetch_all(&self.reader)
            .await?;
        let mut volumes = Volumes::default();
        for row in &found {
            match rows::volume_row(row) {
                Ok(row) => volumes.rows.push(row),
                Err(error) => volumes.damaged.push(DamagedVolume {
                    id: row.try_get("id").unwrap_or_default(),
                    name: row.try_get("name").unwrap_or_default(),
                    reason: error.to_string(),
                }),
            }
        }
        Ok(volumes)
    }

    /// Makes the volume larger.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if it is that large already.
    pub async fn set_size(&self, volume: VolumeId, size_bytes: u64) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            let changed =
                sqlx::query("UPDATE volumes SET size_bytes = $1 WHERE id = $2 AND size_bytes < $1")
                    .bind(size_bytes.cast_signed())
                    .bind(volume.to_string())
                    .execute(&mut *change)
                    .await?;
            if changed.rows_affected() == 1 {
                if let Some(writer) = super::attachments::writer_of(&mut *change, volume).await? {
                    super::hosts::assign(change, writer).await?;
                }
                return Ok(());
            }
            let size = exact_bytes(size_bytes);
            let reason = format!("{volume} is gone, or not smaller than {size}");
            Err(DatabaseError::Refused { reason })
        })
    }

    /// Makes a kept version the state of a detached volume. Whoever still
    /// holds a lease on it is fenced.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if the volume is attached;
    /// [`DatabaseError::NotFound`] if the version has gone.
    pub async fn set_head(&self, volume: VolumeId, head: VersionKey) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            super::versions::version_of(&mut *change, head).await?;
            let changed = sqlx::query(
                "UPDATE volumes SET head_volume = $1, head_number = $2, epoch = epoch + 1, \
             journal_next = journal_next + $4 \
             WHERE id = $3 AND deleting = 0 AND NOT EXISTS (SELECT 1 FROM attachments \
                 WHERE volume = $3 AND access = 'read-write' AND state <> 'detached')",
            )
            .bind(head.volume.to_string())
            .bind(head.number.cast_signed())
            .bind(volume.to_string())
            .bind(RESTORE_SKIPS_BYTES.cast_signed())
            .execute(&mut *change)
            .await?;
            if changed.rows_affected() == 0 {
                let reason = format!("{volume} is open, or being deleted");
                return Err(DatabaseError::Refused { reason });
            }
            Ok(())
        })
    }

    /// Puts a volume on its way out: its name is free, its head is let go, its
    /// owner is fenced, and what its journal still holds is given up. Its
    /// snapshots stay.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if it is in use, or gone.
    pub async fn begin_delete(&self, volume: VolumeId, now: Millis) -> Result<(), DatabaseError> {
        change_and_tell!(self, change, {
            let changed = sqlx::query(
                "UPDATE volumes SET deleting = 1, head_volume = NULL, head_number = NULL, \
             epoch = epoch + 1 WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM attachments \
                 WHERE volume = $1 AND wanted = 1 AND state <> 'detached')",
            )
            .bind(volume.to_string())
            .execute(&mut *change)
            .await?;
            if changed.rows_affected() == 0 {
                let reason = format!("{volume} is in use, or gone");
                return Err(DatabaseError::Refused { reason });
            }
            super::attachments::fence(&mut *change, volume, now, "its volume was deleted").await?;
            super::hosts::clean(&mut *change).await?;
            super::snapshots::give_up(&mut *change, volume, "its volume was deleted").await?;
            Ok(())
        })
    }

    /// Removes a volume that is on its way out, and its key if no version
    /// needs it.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn finish_delete(&self, volume: VolumeId) -> Result<(), DatabaseError> {
        let is_forgotten = change_and_tell!(self, change, {
            for statement in [
                "DELETE FROM open_segments WHERE volume = $1",
                "DELETE FROM serial_ranges WHERE volume = $1",
                "DELETE FROM volumes WHERE id = $1 AND deleting = 1",
            ] {
                sqlx::query(statement)
                    .bind(volume.to_string())
                    .execute(&mut *change)
                    .await?;
            }
            super::versions::forget_lineages(&mut *change).await
        })?;
        if is_forgotten {
            self.erase().await;
        }
        Ok(())
    }
}

/// Where a clone of `snapshot` begins.
async fn start_of(
    connection: &mut AnyConnection,
    snapshot: SnapshotId,
) -> Result<Start, DatabaseError> {
    let row = sqlx::query("SELECT * FROM snapshots WHERE id = $1")
        .bind(snapshot.to_string())
        .fetch_optional(&mut *connection)
        .await?
        .ok_or_else(|| DatabaseError::NotFound {
            what: format!("snapshot {snapshot}"),
        })?;
    let snapshot = rows::snapshot_row(&row)?;
    let refused = |reason| Err(DatabaseError::Refused { reason });
    match snapshot.state {
        SnapshotState::Completed(None) => Ok(Start::default()),
        SnapshotState::Completed(Some(key)) => {
            let version = super::versions::version_of(connection, key).await?;
            Ok(Start {
                head: Some(key),
                epoch: version.epoch,
                parent: Some(version.lineage),
            })
        }
        SnapshotState::Pending => refused(format!(
            "snapshot {:?} is still pending; wait until it is completed",
            snapshot.name
        )),
        SnapshotState::Error { reason } => refused(format!(
            "snapshot {:?} holds nothing: {reason}; take another",
            snapshot.name
        )),
    }
}
