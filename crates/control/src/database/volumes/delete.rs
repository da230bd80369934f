//! Deleting a volume. It stays in state `deleting` until its host has cleaned up, and is then
//! removed. The host that had it last is remembered until its versions are removed, too.

use api::types::Message;
use api::words::MessageCode;
use base::VolumeId;
use world::Millis;

use crate::database::attach::reports;
use crate::database::catalog::{deleted_volumes, frees};
use crate::database::keys::lineages;
use crate::database::tenancy::grants;
use crate::database::tenancy::rights::check_volume;
use crate::database::volumes::tags;
use crate::database::{
    DatabaseError, Need, Principal, Reach, Right, Volumes, chains, hosts, images, rows, snapshots,
};

impl Volumes<'_> {
    /// The volumes that are being deleted and that this host has to clean.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn deleting(self, reach: &Reach) -> Result<Vec<VolumeId>, DatabaseError> {
        let statement = concat!(
            "SELECT d.id FROM volumes d WHERE d.deleting = 1 AND ",
            cleans!("d.id"),
            " ORDER BY d.id"
        );
        reach
            .query(statement)
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(|row| rows::spelled(row, "id"))
            .collect()
    }

    /// Begins to delete a volume: its name becomes free, its head is released, its writer is
    /// fenced, and the content of its journal is discarded. Its snapshots stay.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], [`DatabaseError::Forbidden`];
    /// [`DatabaseError::Refused`] if it is in use, or being deleted already.
    pub async fn begin_delete(
        self,
        principal: &Principal,
        volume: VolumeId,
        now: Millis,
    ) -> Result<(), DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let need = Need::Have(Right::Administer);
                let row = check_volume(&mut change, principal, volume, need).await?;
                let changed = sqlx::query(
                    "UPDATE volumes SET deleting = 1, head_volume = NULL, head_number = NULL, \
             epoch = epoch + 1 WHERE id = $1 AND deleting = 0 \
             AND NOT EXISTS (SELECT 1 FROM attachments \
                 WHERE volume = $1 AND (desired = 1 OR successor_id IS NOT NULL) \
                 AND state <> 'detached')",
                )
                .bind(volume.to_string())
                .execute(&mut *change)
                .await?;
                if changed.rows_affected() == 0 {
                    let reason = format!("{volume} is in use, or was deleted");
                    return Err(DatabaseError::Refused { reason });
                }
                let problem = Message::new(MessageCode::VolumeDeleted, "its volume was deleted");
                reports::fence(&mut change, volume, now, &problem).await?;
                hosts::request_cleaning(&mut change).await?;
                snapshots::fail_pending(&mut change, volume, "its volume was deleted").await?;
                tags::forget(&mut change, &volume.to_string()).await?;
                chains::forget(&mut change, volume).await?;
                images::forget(&mut change, &row).await?;
                crate::database::Job::Audit
                    .forget(&mut change, volume)
                    .await?;
                let target = format!("{volume} {}", row.name);
                principal.note(&mut change, "delete", target).await
            })
            .await
    }

    /// Removes a volume that is being deleted, and its key unless a version needs it.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub(in crate::database) async fn finish_delete(
        self,
        reach: &Reach,
        volume: VolumeId,
    ) -> Result<(), DatabaseError> {
        let is_forgotten = self
            .database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let deleting = sqlx::query("SELECT 1 FROM volumes WHERE id = $1 AND deleting = 1")
                    .bind(volume.to_string())
                    .fetch_optional(&mut *change)
                    .await?;
                // It was removed before, or another host cleans it.
                if deleting.is_none() || !reach.cleans(&mut change, volume).await? {
                    return Ok(false);
                }
                // Record the host that cleans what is left of it.
                sqlx::query(
                    "INSERT INTO deleted_volumes (volume, last_host) VALUES ($1, $2) \
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
                frees::free_closed(&mut change, volume).await?;
                grants::forget_gone(&mut change, volume).await?;
                deleted_volumes::forget_clean(&mut change).await?;
                lineages::forget_lineages(&mut change).await
            })
            .await?;
        if is_forgotten {
            self.database.erase().await;
        }
        Ok(())
    }
}
