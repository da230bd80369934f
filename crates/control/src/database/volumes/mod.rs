//! Volumes: listing them, and changing their sizes and heads.

pub(in crate::database) mod create;
pub(in crate::database) mod delete;
pub(in crate::database) mod settings;
pub(in crate::database) mod tags;
pub(in crate::database) mod transfer;

use std::collections::{BTreeMap, BTreeSet};

use base::VolumeId;
use base::size::exact_bytes;
use catalog::{RESTORE_SKIPS_BYTES, VersionKey};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};

use crate::database::attach::{attachments, journals};
use crate::database::catalog::version_rows;
use crate::database::rows::{self, VolumeRow};
use crate::database::tenancy::quotas::{Addition, check_membership, check_quota};
use crate::database::tenancy::rights::{check_volume, refuse_if_deleting, volume_for};
use crate::database::{Database, DatabaseError, Need, ObjectKind, Principal, Right, hosts};

/// All volumes, those with damaged rows apart.
#[derive(Debug, Clone, Default)]
pub struct VolumeRows {
    /// The volumes by name, including those that are being deleted.
    pub rows: Vec<VolumeRow>,
    /// The volumes whose rows cannot be used because someone altered them.
    pub damaged: Vec<DamagedVolume>,
}

/// A volume whose row cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedVolume {
    /// The id in the row.
    pub id: String,
    /// The name in the row.
    pub name: String,
    /// What is wrong with the row.
    pub reason: String,
}

impl VolumeRows {
    /// The name of the volume with this id, if there is one.
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

/// The name of a volume and of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeName {
    /// The name.
    pub name: String,
    /// The owner's name.
    pub owner: Option<String>,
}

/// Volumes: names, sizes, owners, and the states that they can be restored to.
#[derive(Clone, Copy, Debug)]
pub struct Volumes<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Volumes<'_> {
    /// The volume with this id, name or `owner/name`, if `principal` has the needed right.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], also if the principal may not see it;
    /// [`DatabaseError::Forbidden`].
    pub async fn find(
        self,
        principal: &Principal,
        text: &str,
        need: Need,
    ) -> Result<VolumeRow, DatabaseError> {
        volume_for(
            &mut *self.database.reader.acquire().await?,
            principal,
            text,
            need,
        )
        .await
    }

    /// The volume with this id.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn get(self, id: VolumeId) -> Result<VolumeRow, DatabaseError> {
        by_id(&mut *self.database.reader.acquire().await?, id).await
    }

    /// The space that all volumes would take if they were full, in bytes, including copies.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn promised_bytes(self) -> Result<u64, DatabaseError> {
        // The sum may exceed the integers of the database.
        let promised: f64 = sqlx::query_scalar(
            "SELECT CAST(COALESCE(SUM(CAST(size_bytes AS DOUBLE PRECISION) * replicas * (data + parity) / data), 0) \
             AS DOUBLE PRECISION) FROM volumes WHERE deleting = 0",
        )
        .fetch_one(&self.database.reader)
        .await?;
        Ok(promised as u64)
    }

    /// The names of those of the given volumes that exist.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn names(
        self,
        ids: impl Iterator<Item = VolumeId>,
    ) -> Result<BTreeMap<VolumeId, VolumeName>, DatabaseError> {
        let ids: BTreeSet<VolumeId> = ids.collect();
        let mut moment = self.database.moment().await?;
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

    /// All volumes. A damaged row keeps no other volume from being used.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn all(self) -> Result<VolumeRows, DatabaseError> {
        let found = sqlx::query(volumes!("ORDER BY v.name, v.id"))
            .fetch_all(&self.database.reader)
            .await?;
        Ok(volumes_of(&found))
    }

    /// Grows a volume.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`], also if its owner has
    /// left its project; [`DatabaseError::Quota`]; [`DatabaseError::Refused`] if it is
    /// that large already, or being deleted.
    pub async fn set_size(
        self,
        principal: &Principal,
        volume: VolumeId,
        size_bytes: u64,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let need = Need::Have(Right::Administer);
                let row = check_volume(&mut change, principal, volume, need).await?;
                refuse_if_deleting(&row)?;
                check_membership(&mut change, principal, &row).await?;
                let more = Addition {
                    bytes: size_bytes.saturating_sub(row.size_bytes),
                    ..Addition::default()
                };
                check_quota(&mut change, principal, row.project, more).await?;
                let changed = sqlx::query(
                    "UPDATE volumes SET size_bytes = $1 WHERE id = $2 AND size_bytes < $1",
                )
                .bind(size_bytes.cast_signed())
                .bind(volume.to_string())
                .execute(&mut *change)
                .await?;
                if changed.rows_affected() == 1 {
                    if let Some(writer) = attachments::writer_of(&mut change, volume).await? {
                        hosts::assign(&mut change, writer).await?;
                    }
                    let target = format!("{volume} {} to {size_bytes}", row.name);
                    principal.note(&mut change, "grow", target).await?;
                    return by_id(&mut change, volume).await;
                }
                let size = exact_bytes(size_bytes);
                let reason = format!("{volume} was deleted, or is not smaller than {size}");
                Err(DatabaseError::Refused { reason })
            })
            .await
    }

    /// Makes a kept version the state of a detached volume. A host that still holds a lease is
    /// fenced.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`] (the volume, the version);
    /// [`DatabaseError::Forbidden`]; [`DatabaseError::Refused`] if the volume is attached,
    /// or being deleted.
    pub async fn set_head(
        self,
        principal: &Principal,
        volume: VolumeId,
        head: VersionKey,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let need = Need::Have(Right::Administer);
                let row = check_volume(&mut change, principal, volume, need).await?;
                version_rows::version_of(&mut change, head).await?;
                let changed = sqlx::query(
                    "UPDATE volumes SET head_volume = $1, head_number = $2, epoch = epoch + 1, \
             restores = restores + 1, journal_next = journal_next + $4 \
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
                // The journal continues a version that is no longer the head.
                journals::forget(&mut change, volume).await?;
                let target = format!("{volume} {} to version {}", row.name, head.number);
                principal.note(&mut change, "restore", target).await
            })
            .await
    }
}

/// The volumes of rows, as far as they can be read.
pub(in crate::database) fn volumes_of(found: &[AnyRow]) -> VolumeRows {
    let mut volumes = VolumeRows::default();
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

pub(in crate::database) async fn by_id(
    connection: &mut AnyConnection,
    id: VolumeId,
) -> Result<VolumeRow, DatabaseError> {
    let row = sqlx::query(volumes!("WHERE v.id = $1"))
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| DatabaseError::not_found(ObjectKind::Volume, id))?;
    rows::volume_row(&row)
}
