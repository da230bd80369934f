//! Snapshots: names that hold versions.

use base::{PartyId, SnapshotId, VolumeId};
use sqlx::AnyConnection;
use world::Millis;

use crate::database::attach::attachments;
use crate::database::rows::{self, SnapshotRow};
use crate::database::tenancy::quotas::{Addition, check_membership, check_quota};
use crate::database::tenancy::rights::{
    check_snapshot, check_volume, refuse_if_deleting, snapshot_for,
};
use crate::database::tenancy::{grants, principal};
use crate::database::volumes::tags::{self, Tags};
use crate::database::{Database, DatabaseError, Need, ObjectKind, Principal, Right, hosts};

/// A new snapshot.
#[derive(Debug, Clone)]
pub struct NewSnapshot {
    /// The id.
    pub id: SnapshotId,
    /// The name.
    pub name: String,
    /// The volume.
    pub volume: VolumeId,
    /// The tags.
    pub tags: Tags,
    /// When it was requested.
    pub created: Millis,
}

/// Fails the snapshots of `volume` whose consistency point will never be taken.
pub(in crate::database) async fn fail_pending(
    connection: &mut AnyConnection,
    volume: VolumeId,
    reason: &str,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE snapshots SET state = 'error', message = $1 WHERE volume = $2 AND state = 'pending'",
    )
    .bind(reason)
    .bind(volume.to_string())
    .execute(connection)
    .await?;
    Ok(())
}

/// Resets the snapshots of `volume` whose consistency point was lost with the process that took it.
pub(in crate::database) async fn fail_taken(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE snapshots SET state = 'error', message = \
         'Scree ended before the snapshot was completed; take it again' \
         WHERE volume = $1 AND state = 'pending' AND has_consistency_point = 1",
    )
    .bind(volume.to_string())
    .execute(connection)
    .await?;
    Ok(())
}

/// Completes all pending snapshots of `volume`, which was closed, with its head.
pub(in crate::database) async fn settle(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE snapshots SET state = 'completed', \
         version_volume = (SELECT head_volume FROM volumes WHERE id = $1), \
         version_number = (SELECT head_number FROM volumes WHERE id = $1) \
         WHERE volume = $1 AND state = 'pending' AND has_consistency_point = 0",
    )
    .bind(volume.to_string())
    .execute(&mut *connection)
    .await?;
    fail_pending(
        connection,
        volume,
        "the volume was closed before its consistency point was taken",
    )
    .await
}

/// Refuses a name that another snapshot of the same owner has.
async fn refuse_name(
    change: &mut AnyConnection,
    owner: &str,
    name: &str,
) -> Result<(), DatabaseError> {
    let taken = sqlx::query("SELECT id FROM snapshots WHERE name = $1 AND owner = $2")
        .bind(name)
        .bind(owner)
        .fetch_optional(change)
        .await?;
    match taken {
        None => Ok(()),
        Some(_) => Err(DatabaseError::Taken {
            what: format!("a snapshot named {name:?}"),
            remedy: "choose another name, or delete that snapshot first (`scree snapshot delete`)",
        }),
    }
}

/// Snapshots.
#[derive(Clone, Copy, Debug)]
pub struct Snapshots<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Snapshots<'_> {
    /// Creates a snapshot of `volume`. It is completed at once with the head if the volume is
    /// detached; otherwise it is pending until the engine commits a version for it.
    ///
    /// # Errors
    /// [`DatabaseError::Taken`]; [`DatabaseError::NotFound`] (the volume);
    /// [`DatabaseError::Forbidden`], also if the volume's owner has left its project;
    /// [`DatabaseError::Quota`]; [`DatabaseError::Refused`] if the volume is being
    /// deleted; [`DatabaseError::OtherRequest`].
    pub async fn insert(
        self,
        principal: &Principal,
        new: &NewSnapshot,
    ) -> Result<SnapshotRow, DatabaseError> {
        let NewSnapshot { id, volume, .. } = *new;
        self.database.transaction_for(principal).run(|mut change| async move {
            if let Some(made) = principal.made_before(&mut change).await? {
                let seen = snapshot_for(&mut change, principal, &made, Need::See).await;
                return seen.map_err(principal::gone_since);
            }
            let need = Need::Have(Right::Snapshot);
            let of = check_volume(&mut change, principal, volume, need).await?;
            // The volume's owner owns it, not the user who takes it.
            let owner = of.owner.map(|owner| owner.to_string()).unwrap_or_default();
            refuse_name(&mut change, &owner, &new.name).await?;
            refuse_if_deleting(&of)?;
            check_membership(&mut change, principal, &of).await?;
            let more = Addition {
                snapshots: 1,
                ..Addition::default()
            };
            check_quota(&mut change, principal, of.project, more).await?;
            let writer = attachments::writer_of(&mut change, volume).await?;
            let made = sqlx::query(
                "INSERT INTO snapshots (id, name, owner, project, volume, volume_name, \
                 size_bytes, block_bytes, encryption, version_volume, version_number, state, created_ms) \
                 SELECT $1, $2, owner, project, id, name, size_bytes, block_bytes, encryption, \
                 CASE $5 WHEN 0 THEN head_volume END, CASE $5 WHEN 0 THEN head_number END, \
                 CASE $5 WHEN 0 THEN 'completed' ELSE 'pending' END, $3 \
                 FROM volumes WHERE id = $4 AND deleting = 0",
            )
            .bind(id.to_string())
            .bind(&new.name)
            .bind(new.created.0)
            .bind(volume.to_string())
            .bind(i64::from(writer.is_some()))
            .execute(&mut *change)
            .await?;
            if made.rows_affected() == 0 {
                return Err(DatabaseError::not_found(ObjectKind::Volume, volume));
            }
            if let Some(writer) = writer {
                hosts::assign(&mut change, writer).await?;
            }
            tags::set(&mut change, &id.to_string(), &new.tags).await?;
            let target = format!("{id} {} of {volume} {}", new.name, of.name);
            principal.note(&mut change, "snapshot", target).await?;
            principal.note_made(&mut change, id).await?;
            by_id(&mut change, id).await
        }).await
    }

    /// The snapshot with this id, name or `owner/name`, if `principal` has the needed right.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], also if the principal may not see it;
    /// [`DatabaseError::Forbidden`].
    pub async fn find(
        self,
        principal: &Principal,
        text: &str,
        need: Need,
    ) -> Result<SnapshotRow, DatabaseError> {
        snapshot_for(
            &mut *self.database.reader.acquire().await?,
            principal,
            text,
            need,
        )
        .await
    }

    /// The snapshot with this id.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn get(self, id: SnapshotId) -> Result<SnapshotRow, DatabaseError> {
        by_id(&mut *self.database.reader.acquire().await?, id).await
    }

    /// All snapshots, oldest first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn all(self) -> Result<Vec<SnapshotRow>, DatabaseError> {
        sqlx::query(snapshots!("ORDER BY s.created_ms, s.id"))
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(rows::snapshot_row)
            .collect()
    }

    /// The snapshots whose consistency point is still to be taken, with their volumes.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn pending_consistency_points(
        self,
    ) -> Result<Vec<(SnapshotId, VolumeId)>, DatabaseError> {
        sqlx::query("SELECT id, volume FROM snapshots WHERE state = 'pending' AND has_consistency_point = 0")
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(|row| Ok((rows::spelled(row, "id")?, rows::spelled(row, "volume")?)))
            .collect()
    }

    /// The number of snapshots.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn count(self) -> Result<u64, DatabaseError> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM snapshots")
            .fetch_one(&self.database.reader)
            .await?;
        Ok(count.cast_unsigned())
    }

    /// Records that the consistency point of a pending snapshot was taken.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn record_consistency_point(
        self,
        id: SnapshotId,
        host: PartyId,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                sqlx::query(
                    "UPDATE snapshots SET has_consistency_point = 1 WHERE id = $1 AND volume IN (SELECT volume \
                 FROM attachments WHERE host = $2 AND access = 'read-write' \
                 AND state <> 'detached')",
                )
                .bind(id.to_string())
                .bind(host.to_string())
                .execute(&mut *change)
                .await?;
                Ok(())
            })
            .await
    }

    /// Deletes a snapshot. The version that it held may be removed then.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`].
    pub async fn delete(
        self,
        principal: &Principal,
        id: SnapshotId,
    ) -> Result<SnapshotRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let need = Need::Have(Right::Administer);
                let snapshot = check_snapshot(&mut change, principal, id, need).await?;
                sqlx::query("DELETE FROM snapshots WHERE id = $1")
                    .bind(id.to_string())
                    .execute(&mut *change)
                    .await?;
                hosts::request_cleaning(&mut change).await?;
                tags::forget(&mut change, &id.to_string()).await?;
                grants::forget(&mut change, &id.to_string()).await?;
                grants::forget_gone(&mut change, snapshot.volume).await?;
                let target = format!("{id} {}", snapshot.name);
                principal.note(&mut change, "delete", target).await?;
                Ok(snapshot)
            })
            .await
    }
}

async fn by_id(
    connection: &mut AnyConnection,
    id: SnapshotId,
) -> Result<SnapshotRow, DatabaseError> {
    let row = sqlx::query(snapshots!("WHERE s.id = $1"))
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| DatabaseError::not_found(ObjectKind::Snapshot, id))?;
    rows::snapshot_row(&row)
}
