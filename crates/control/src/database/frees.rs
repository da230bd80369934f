//! Slots of removed versions that wait to be freed on the units.

use base::VolumeId;
use catalog::{FreePlan, PLAN_BYTES_MAX, PendingFree};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use super::{Database, DatabaseError, Reach};

impl Database {
    /// See [`catalog::Catalog::due_frees`].
    pub(super) async fn due_frees(
        &self,
        reach: &Reach,
        now: Millis,
        after: i64,
        count_max: u32,
    ) -> Result<Vec<PendingFree>, DatabaseError> {
        let statement = concat!(
            "SELECT f.* FROM pending_frees f WHERE f.not_before_ms <= $3 AND f.id > $4 AND ",
            cleans!("f.volume"),
            " ORDER BY f.id LIMIT $5"
        );
        reach
            .query(statement)
            .bind(now.0)
            .bind(after)
            .bind(i64::from(count_max))
            .fetch_all(&self.reader)
            .await?
            .iter()
            .map(|row| {
                Ok(PendingFree {
                    id: row.try_get("id")?,
                    not_before: Millis(row.try_get("not_before_ms")?),
                    plan: row.try_get("plan")?,
                })
            })
            .collect()
    }

    /// Notes a free that is due at once, for tests.
    ///
    /// # Errors
    /// [`DatabaseError`].
    #[doc(hidden)]
    pub async fn note_free_now(&self, plan: &[u8]) -> Result<(), DatabaseError> {
        change!(self, change, {
            note_free(&mut *change, None, Millis(0), plan).await?;
            Ok(())
        })
    }

    /// See [`catalog::Catalog::freed`].
    pub(super) async fn freed(&self, reach: &Reach, id: i64) -> Result<(), DatabaseError> {
        let statement = concat!(
            "DELETE FROM pending_frees WHERE id = $3 AND ",
            cleans!("pending_frees.volume")
        );
        change!(self, change, {
            reach
                .query(statement)
                .bind(id)
                .execute(&mut *change)
                .await?;
            super::deleting::forget_departed(change).await
        })
    }

    /// How many frees wait.
    ///
    /// # Errors
    /// [`DatabaseError::Sql`].
    pub async fn pending_free_count(&self) -> Result<u64, DatabaseError> {
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM pending_frees")
            .fetch_one(&self.reader)
            .await?;
        Ok(count.cast_unsigned())
    }
}

/// Notes slots to be freed after `not_before`, which a version of `volume` has
/// left; none if the plan is empty. A long plan is noted in parts. What is no plan
/// is refused: it would be in the way of all others when it is due.
pub(super) async fn note_free(
    connection: &mut AnyConnection,
    volume: Option<VolumeId>,
    not_before: Millis,
    plan: &[u8],
) -> Result<(), DatabaseError> {
    if plan.is_empty() {
        return Ok(());
    }
    let whole = FreePlan::decode(plan).map_err(|error| DatabaseError::Refused {
        reason: error.to_string(),
    })?;
    for part in whole.split(PLAN_BYTES_MAX) {
        note_part(&mut *connection, volume, not_before, &part.encode()).await?;
    }
    Ok(())
}

async fn note_part(
    connection: &mut AnyConnection,
    volume: Option<VolumeId>,
    not_before: Millis,
    plan: &[u8],
) -> Result<(), DatabaseError> {
    sqlx::query("INSERT INTO pending_frees (not_before_ms, plan, volume) VALUES ($1, $2, $3)")
        .bind(not_before.0)
        .bind(plan)
        .bind(volume.map(|volume| volume.to_string()).unwrap_or_default())
        .execute(connection)
        .await?;
    Ok(())
}
