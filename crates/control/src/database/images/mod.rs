//! Base images: which volumes are marked, and which image a volume descends from
//! (docs/explanation/caching.md).
//!
//! * The image of a volume is the nearest one at or above it, by lineages, which exist even if a
//!   volume in between was deleted. A deleted image no longer counts.
//! * Hosts that have the volume or a descendant attached are notified of a change at once.

pub(in crate::database) mod preloads;

use std::collections::HashMap;

use api::host::BaseImage;
use api::words::ImageMark;
use base::{PartyId, VolumeId};
use sqlx::AnyConnection;

use crate::database::attach::attachments;
use crate::database::rows::{self, VolumeRow};
use crate::database::tenancy::rights;
use crate::database::{Database, DatabaseError, Job, Need, Principal, Right, hosts};

/// Base images, and preloads of them into caches.
#[derive(Clone, Copy, Debug)]
pub struct Images<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Images<'_> {
    /// Marks a volume as a base image, and pins or unpins it; `None`: unchanged.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`], also if the
    /// principal pins it without being an administrator; [`DatabaseError::Refused`] if the volume
    /// is being deleted, its name is ambiguous, or a volume that is not an image is unpinned.
    pub async fn mark(
        self,
        principal: &Principal,
        volume: &str,
        pinned: Option<bool>,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let row = administered(&mut change, principal, volume).await?;
                let mark = match (row.image, pinned) {
                    (Some(mark), None) => mark,
                    (None, None) | (Some(_), Some(false)) => ImageMark::Marked,
                    (_, Some(true)) => ImageMark::Pinned,
                    (None, Some(false)) => return Err(no_image(&row)),
                };
                if mark == ImageMark::Pinned && row.image != Some(mark) {
                    refuse_unless_administrator(principal)?;
                }
                if row.image == Some(mark) {
                    return Ok(row);
                }
                set(&mut change, &row, Some(mark)).await?;
                let target = format!("{} {}: {mark}", row.id, row.name);
                principal.note(&mut change, "mark-image", target).await?;
                Ok(VolumeRow {
                    image: Some(mark),
                    ..row
                })
            })
            .await
    }

    /// Unmarks a base image, and cancels its preloads.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`];
    /// [`DatabaseError::Refused`] if it is not an image, is being deleted, or its name is
    /// ambiguous.
    pub async fn unmark(
        self,
        principal: &Principal,
        volume: &str,
    ) -> Result<VolumeRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let row = administered(&mut change, principal, volume).await?;
                if row.image.is_none() {
                    return Err(no_image(&row));
                }
                set(&mut change, &row, None).await?;
                Job::Preload.forget(&mut change, row.id).await?;
                let target = format!("{} {}", row.id, row.name);
                principal.note(&mut change, "unmark-image", target).await?;
                Ok(row)
            })
            .await
    }

    /// The images of the volumes that are attached to `host`, by volume: the nearest one at or
    /// above each.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn on_host(
        self,
        host: PartyId,
    ) -> Result<HashMap<VolumeId, BaseImage>, DatabaseError> {
        let found = sqlx::query(
            "WITH RECURSIVE above (volume, lineage, height) AS (\
             SELECT v.id, v.lineage, 0 FROM volumes v WHERE v.id IN (\
                 SELECT a.volume FROM attachments a WHERE a.host = $1 AND a.state <> 'detached') \
             UNION ALL SELECT b.volume, l.parent, b.height + 1 FROM above b \
                 JOIN lineages l ON l.lineage = b.lineage WHERE l.parent IS NOT NULL) \
             SELECT b.volume, b.lineage, i.image FROM above b \
             JOIN volumes i ON i.lineage = b.lineage WHERE i.image IS NOT NULL \
             ORDER BY b.height",
        )
        .bind(host.to_string())
        .fetch_all(&self.database.reader)
        .await?;
        let mut images = HashMap::new();
        for row in &found {
            let mark: ImageMark = rows::spelled(row, "image")?;
            let image = BaseImage {
                lineage: rows::spelled(row, "lineage")?,
                is_pinned: mark == ImageMark::Pinned,
            };
            images.entry(rows::spelled(row, "volume")?).or_insert(image);
        }
        Ok(images)
    }

    /// The number of volumes that descend from an image.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn clone_count(self, volume: VolumeId) -> Result<u64, DatabaseError> {
        let count: i64 = sqlx::query_scalar(
            "WITH RECURSIVE below (lineage) AS (\
             SELECT l.lineage FROM lineages l JOIN volumes v ON v.lineage = l.parent \
                 WHERE v.id = $1 \
             UNION ALL SELECT l.lineage FROM lineages l JOIN below b ON l.parent = b.lineage) \
             SELECT COUNT(*) FROM volumes v JOIN below b ON b.lineage = v.lineage \
             WHERE v.deleting = 0",
        )
        .bind(volume.to_string())
        .fetch_one(&self.database.reader)
        .await?;
        Ok(count.cast_unsigned())
    }

    /// The number of times that an image was unpinned.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn unpins(self) -> Result<u64, DatabaseError> {
        let row = sqlx::query("SELECT unpins FROM cluster")
            .fetch_optional(&self.database.reader)
            .await?;
        row.map_or(Ok(0), |row| rows::number(&row, "unpins"))
    }

    /// Whether `principal` administers a volume.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn administers(
        self,
        principal: &Principal,
        volume: VolumeId,
    ) -> Result<bool, DatabaseError> {
        let connection = &mut *self.database.reader.acquire().await?;
        attachments::administers(connection, principal, volume).await
    }
}

/// The volume with this name or id, if `principal` administers it.
pub(in crate::database) async fn administered(
    change: &mut AnyConnection,
    principal: &Principal,
    volume: &str,
) -> Result<VolumeRow, DatabaseError> {
    let need = Need::Have(Right::Administer);
    let row = rights::volume_for(&mut *change, principal, volume, need).await?;
    rights::refuse_if_deleting(&row)?;
    Ok(row)
}

pub(in crate::database) fn no_image(row: &VolumeRow) -> DatabaseError {
    DatabaseError::Refused {
        reason: format!(
            "volume {:?} is not a base image; mark it with `scree image mark`",
            row.name
        ),
    }
}

/// Refuses to pin for a user: pinned blocks take space from all other volumes of a host.
fn refuse_unless_administrator(principal: &Principal) -> Result<(), DatabaseError> {
    match principal.party.is_administrator {
        true => Ok(()),
        false => Err(DatabaseError::Forbidden {
            reason: "a pinned image takes space in the caches of all hosts, so only an \
                     administrator may pin it; any owner may use `scree image mark`"
                .to_owned(),
        }),
    }
}

/// Unmarks a volume that is being deleted.
pub(in crate::database) async fn forget(
    change: &mut AnyConnection,
    row: &VolumeRow,
) -> Result<(), DatabaseError> {
    Job::Preload.forget(&mut *change, row.id).await?;
    match row.image {
        Some(_) => set(change, row, None).await,
        None => Ok(()),
    }
}

/// Sets the mark, and notifies the hosts concerned.
async fn set(
    change: &mut AnyConnection,
    row: &VolumeRow,
    mark: Option<ImageMark>,
) -> Result<(), DatabaseError> {
    sqlx::query("UPDATE volumes SET image = $1 WHERE id = $2")
        .bind(mark.map(ImageMark::as_str))
        .bind(row.id.to_string())
        .execute(&mut *change)
        .await?;
    if row.image == Some(ImageMark::Pinned) {
        sqlx::query("UPDATE cluster SET unpins = unpins + 1")
            .execute(&mut *change)
            .await?;
        return hosts::assign_all(change).await;
    }
    sqlx::query(
        "UPDATE hosts SET assignments = assignments + 1 WHERE party IN (\
         WITH RECURSIVE below (lineage) AS (\
         SELECT lineage FROM lineages WHERE lineage = $1 \
         UNION ALL SELECT l.lineage FROM lineages l JOIN below b ON l.parent = b.lineage) \
         SELECT a.host FROM attachments a JOIN volumes v ON v.id = a.volume \
             JOIN below b ON b.lineage = v.lineage WHERE a.state <> 'detached' \
         UNION SELECT p.host FROM preloads p WHERE p.volume = $2 AND p.ended_ms IS NULL)",
    )
    .bind(row.lineage.to_string())
    .bind(row.id.to_string())
    .execute(change)
    .await?;
    Ok(())
}
