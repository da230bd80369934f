//! Deleted volumes that still have versions, pending frees or degraded segments.

use sqlx::AnyConnection;

use crate::database::DatabaseError;

/// Deletes the rows of deleted volumes of which nothing is left to clean.
pub(in crate::database) async fn forget_clean(
    change: &mut AnyConnection,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "DELETE FROM deleted_volumes WHERE \
         NOT EXISTS (SELECT 1 FROM versions v WHERE v.volume = deleted_volumes.volume) \
         AND NOT EXISTS (SELECT 1 FROM pending_frees f WHERE f.volume = deleted_volumes.volume) \
         AND NOT EXISTS (SELECT 1 FROM degraded_segments t WHERE t.volume = deleted_volumes.volume)",
    )
    .execute(change)
    .await?;
    Ok(())
}
