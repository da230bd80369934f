//! Volumes, as their owners see them.

use std::collections::{BTreeMap, BTreeSet};

use api::host::Seal;
use api::size::exact_bytes;
use base::{BlockSize, Lineage, PartyId, SnapshotId, VolumeId};
use catalog::{RESTORE_SKIPS_BYTES, VersionKey};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use super::projects::{More, account_of, check_membership, check_quota};
use super::rights::{check_snapshot, check_volume, refuse_if_deleting, volume_for};
use super::rows::{self, SnapshotState, VolumeRow};
use super::tags::{self, Tags};
use super::{Asker, Database, DatabaseError, Need, Reach, Right};

/// A volume to be made. Its names, sizes and key have been checked or made by
/// the caller.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// On whose account; on the asker's own, if none is named.
    pub project: Option<String>,
    /// Its tags.
    pub tags: Tags,
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

/// What a volume is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeName {
    /// Its name.
    pub name: String,
    /// What its owner is called.
    pub owner: Option<String>,
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
    /// [`DatabaseError::Taken`], [`DatabaseError::NotFound`] (the snapshot, the
    /// project), [`DatabaseError::Quota`], [`DatabaseError::Refused`] if the
    /// snapshot is not completed.
    pub async fn insert_volume(
        &self,
        asker: &Asker,
        new: &NewVolume,
    ) -> Result<VolumeRow, DatabaseError> {
        act!(self, asker, change, {
            if let Some(made) = asker.made_before(&mut *change).await? {
                let need = Need::See;
                let seen = volume_for(&mut *change, asker, &made, need).await;
                return seen.map_err(super::asker::gone_since);
            }
            let party = &asker.party;
            let account = account_of(&mut *change, party, new.project.as_deref()).await?;
            refuse_name(&mut *change, party.id, &new.name).await?;
            let more = More {
                volumes: 1,
                bytes: new.size_bytes,
                snapshots: 0,
            };
            check_quota(&mut *change, asker, Some(account), more).await?;
            if let Some(origin) = new.origin {
                let need = Need::Have(Right::Read);
                check_snapshot(&mut *change, asker, origin, need).await?;
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
             origin_number, owner, project) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $10, $11, $14, $15)",
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
            .bind(party.id.to_string())
            .bind(account.to_string())
            .execute(&mut *change)
            .await?;
            tags::set(&mut *change, &new.id.to_string(), &new.tags).await?;
            let target = format!("{} {}", new.id, new.name);
            asker.note(&mut *change, "create", target).await?;
            asker.note_made(&mut *change, new.id).await?;
            by_id(change, new.id).await
        })
    }

    /// The volume that `asker` means by this id, name or `owner/name`, if they
    /// may do what is needed.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], also if they may not see it;
    /// [`DatabaseError::Forbidden`].
    pub async fn volume_for(
        &self,
        asker: &Asker,
        text: &str,
        need: Need,
    ) -> Result<VolumeRow, DatabaseError> {
        volume_for(&mut *self.reader.acquire().await?, asker, text, need).await
    }

    /// The volume with this id.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn volume(&self, id: VolumeId) -> Result<VolumeRow, DatabaseError> {
        by_id(&mut *self.reader.acquire().await?, id).await
    }

    /// What all volumes would take if they were full, in bytes: every copy
    /// counts.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn promised_bytes(&self) -> Result<u64, DatabaseError> {
        // A sum of integers might be more than a database's integers hold.
        let promised: f64 = sqlx::query_scalar(
            "SELECT CAST(COALESCE(SUM(CAST(size_bytes AS DOUBLE PRECISION) * replicas), 0) \
             AS DOUBLE PRECISION) FROM volumes WHERE deleting = 0",
        )
        .fetch_one(&self.reader)
        .await?;
        Ok(promised as u64)
    }

    /// What some volumes are called, as far as they are there.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn volume_names(
        &self,
        ids: impl Iterator<Item = VolumeId>,
    ) -> Result<BTreeMap<VolumeId, VolumeName>, DatabaseError> {
        let ids: BTreeSet<VolumeId> = ids.collect();
        let mut moment = self.moment().await?;
        let mut names = BTreeMap::new();
        for id in ids {
            let found: Option<(String, Option<String>)> = sqlx::query_as(
                "SELECT v.name, o.name FROM volumes v LEFT JOIN parties o ON o.id = v.owner \
                 WHERE v.id = $1",
            )
            .bind(id.to_string())
            .fetch_optional(&mut *moment)
            .await?;
            names.extend(found.map(|(name, owner)| (id, VolumeName { name, owner })));
        }
        Ok(names)
    }

    /// All volumes. One that is damaged keeps no other from being used.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn volumes(&self) -> Result<Volumes, DatabaseError> {
        let found = sqlx::query(volumes!("ORDER BY v.name, v.id"))
            .fetch_all(&self.reader)
            .await?;
        Ok(volumes_of(&found))
    }

    /// The volumes on their way out that are a host's to clean.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn deleting(&self, reach: &Reach) -> Result<Vec<VolumeId>, DatabaseError> {
        let statement = concat!(
            "SELECT d.id FROM volumes d WHERE d.deleting = 1 AND ",
            cleans!("d.id"),
            " ORDER BY d.id"
        );
        reach
            .query(statement)
            .fetch_all(&self.reader)
            .await?
            .iter()
            .map(|row| rows::spelt(row, "id"))
            .collect()
    }

    /// Makes the volume larger.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if it is that large already.
    pub async fn set_size(
        &self,
        asker: &Asker,
        volume: VolumeId,
        size_bytes: u64,
    ) -> Result<VolumeRow, DatabaseError> {
        act!(self, asker, change, {
            let need = Need::Have(Right::Administer);
            let row = check_volume(&mut *change, asker, volume, need).await?;
            refuse_if_deleting(&row)?;
            check_membership(&mut *change, asker, &row).await?;
            let more = More {
                bytes: size_bytes.saturating_sub(row.size_bytes),
                ..More::default()
            };
            check_quota(&mut *change, asker, row.project, more).await?;
            let changed =
                sqlx::query("UPDATE volumes SET size_bytes = $1 WHERE id = $2 AND size_bytes < $1")
                    .bind(size_bytes.cast_signed())
                    .bind(volume.to_string())
                    .execute(&mut *change)
                    .await?;
            if changed.rows_affected() == 1 {
                if let Some(writer) = super::attachments::writer_of(&mut *change, volume).await? {
                    super::hosts::assign(&mut *change, writer).await?;
                }
                let target = format!("{volume} {} to {size_bytes}", row.name);
                asker.note(&mut *change, "grow", target).await?;
                return by_id(change, volume).await;
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
    pub async fn set_head(
        &self,
        asker: &Asker,
        volume: VolumeId,
        head: VersionKey,
    ) -> Result<(), DatabaseError> {
        act!(self, asker, change, {
            let need = Need::Have(Right::Administer);
            let row = check_volume(&mut *change, asker, volume, need).await?;
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
            // What a journal has follows a version that is not the head any more.
            super::journals::forget(&mut *change, volume).await?;
            let target = format!("{volume} {} to version {}", row.name, head.number);
            asker.note(change, "restore", target).await
        })
    }

    /// Puts a volume on its way out: its name is free, its head is let go, its
    /// owner is fenced, and what its journal still holds is given up. Its
    /// snapshots stay.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if it is in use, or gone.
    pub async fn begin_delete(
        &self,
        asker: &Asker,
        volume: VolumeId,
        now: Millis,
    ) -> Result<(), DatabaseError> {
        act!(self, asker, change, {
            let need = Need::Have(Right::Administer);
            let row = check_volume(&mut *change, asker, volume, need).await?;
            let changed = sqlx::query(
                "UPDATE volumes SET deleting = 1, head_volume = NULL, head_number = NULL, \
             epoch = epoch + 1 WHERE id = $1 AND deleting = 0 \
             AND NOT EXISTS (SELECT 1 FROM attachments \
                 WHERE volume = $1 AND (wanted = 1 OR next_id IS NOT NULL) \
                 AND state <> 'detached')",
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
            super::tags::forget(&mut *change, &volume.to_string()).await?;
            let target = format!("{volume} {}", row.name);
            asker.note(change, "delete", target).await
        })
    }

    /// Removes a volume that is on its way out, and its key if no version
    /// needs it.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub(super) async fn finish_delete(
        &self,
        reach: &Reach,
        volume: VolumeId,
    ) -> Result<(), DatabaseError> {
        let is_forgotten = change_and_tell!(self, change, {
            let deleting = sqlx::query("SELECT 1 FROM volumes WHERE id = $1 AND deleting = 1")
                .bind(volume.to_string())
                .fetch_optional(&mut *change)
                .await?;
            // It was done before, or is another host's.
            if deleting.is_none() || !reach.cleans(&mut *change, volume).await? {
                return Ok(false);
            }
            // Whoever cleans what is left of it.
            sqlx::query(
                "INSERT INTO departed (volume, last_host) VALUES ($1, $2) \
                 ON CONFLICT (volume) DO UPDATE SET last_host = excluded.last_host",
            )
            .bind(volume.to_string())
            .bind(reach.host.to_string())
            .execute(&mut *change)
            .await?;
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
            super::grants::forget_gone(&mut *change, volume).await?;
            forget_departed(&mut *change).await?;
            super::versions::forget_lineages(&mut *change).await
        })?;
        if is_forgotten {
            self.erase().await;
        }
        Ok(())
    }
}

/// Forgets who had volumes last of which nothing is left to clean.
pub(super) async fn forget_departed(change: &mut AnyConnection) -> Result<(), DatabaseError> {
    sqlx::query(
        "DELETE FROM departed WHERE \
         NOT EXISTS (SELECT 1 FROM versions v WHERE v.volume = departed.volume) \
         AND NOT EXISTS (SELECT 1 FROM pending_frees f WHERE f.volume = departed.volume) \
         AND NOT EXISTS (SELECT 1 FROM thin_segments t WHERE t.volume = departed.volume)",
    )
    .execute(change)
    .await?;
    Ok(())
}

/// The volumes of rows, as far as they can be read.
pub(super) fn volumes_of(found: &[AnyRow]) -> Volumes {
    let mut volumes = Volumes::default();
    for row in found {
        match rows::volume_row(row) {
            Ok(row) => volumes.rows.push(row),
            Err(error) => volumes.damaged.push(DamagedVolume {
                id: row.try_get("id").unwrap_or_default(),
                name: row.try_get("name").unwrap_or_default(),
                reason: error.to_string(),
            }),
        }
    }
    volumes
}

pub(super) async fn by_id(
    connection: &mut AnyConnection,
    id: VolumeId,
) -> Result<VolumeRow, DatabaseError> {
    let row = sqlx::query(volumes!("WHERE v.id = $1"))
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| DatabaseError::NotFound {
            what: format!("volume {id}"),
        })?;
    rows::volume_row(&row)
}

/// Refuses a name that another volume of this owner has.
pub(super) async fn refuse_name(
    change: &mut AnyConnection,
    owner: PartyId,
    name: &str,
) -> Result<(), DatabaseError> {
    let taken =
        sqlx::query("SELECT id FROM volumes WHERE owner = $1 AND name = $2 AND deleting = 0")
            .bind(owner.to_string())
            .bind(name)
            .fetch_optional(change)
            .await?;
    match taken {
        None => Ok(()),
        Some(_) => Err(DatabaseError::Taken {
            what: format!("a volume named {name:?}"),
        }),
    }
}

/// Where a clone of `snapshot` begins.
async fn start_of(
    connection: &mut AnyConnection,
    snapshot: SnapshotId,
) -> Result<Start, DatabaseError> {
    let row = sqlx::query(snapshots!("WHERE s.id = $1"))
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
