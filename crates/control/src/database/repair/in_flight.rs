//! What was in flight at a moment: what hosts may have been writing when members of copysets began
//! to miss something (docs/internals/rejoined-units.md).
//!
//! Invariants:
//!
//! * All that is in flight at some moment is in every set that was recorded before: what is in
//!   flight later was so before, or has a later serial. So an existing set can be used again.
//! * A transaction records a set before it releases serials itself.
//! * Serials that another transaction takes while a set is recorded are not lost: it reads which
//!   sets exist, and PostgreSQL repeats one of the two.

use std::ops::Range;

use base::{CopysetId, SegmentId, UnitId};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::{DatabaseError, Repair, rows};

/// The age up to which a set is used again, in milliseconds.
const SERVES_MS: i64 = 10 * 60 * 1000;

impl Repair<'_> {
    /// The number of a set for this moment, which may be an existing one.
    pub(in crate::database) async fn in_flight_set(
        self,
        change: &mut AnyConnection,
        now: Millis,
    ) -> Result<i64, DatabaseError> {
        let known: Option<i64> =
            sqlx::query_scalar("SELECT MAX(id) FROM in_flight_sets WHERE at_ms BETWEEN $1 AND $2")
                .bind(now.0.saturating_sub(SERVES_MS))
                .bind(now.0)
                .fetch_one(&mut *change)
                .await?;
        if let Some(known) = known {
            return Ok(known);
        }
        let from = self.database.catalog().serial_next(&mut *change).await?;
        let id: i64 = sqlx::query_scalar("SELECT COALESCE(MAX(id), 0) + 1 FROM in_flight_sets")
            .fetch_one(&mut *change)
            .await?;
        sqlx::query("INSERT INTO in_flight_sets (id, at_ms) VALUES ($1, $2)")
            .bind(id)
            .bind(now.0)
            .execute(&mut *change)
            .await?;
        sqlx::query(
            "INSERT INTO in_flight_serials (in_flight_set, copyset, first, end_before) \
             SELECT CAST($1 AS BIGINT), NULL, first, end_before FROM serial_ranges",
        )
        .bind(id)
        .execute(&mut *change)
        .await?;
        sqlx::query(
            "INSERT INTO in_flight_serials (in_flight_set, copyset, first, end_before) \
             SELECT CAST($1 AS BIGINT), segment / $2, segment % $2, segment % $2 + 1 \
             FROM open_segments",
        )
        .bind(id)
        .bind(SegmentId::SERIAL_END.cast_signed())
        .execute(&mut *change)
        .await?;
        sqlx::query(
            "INSERT INTO in_flight_serials (in_flight_set, copyset, first, end_before) \
             VALUES ($1, NULL, $2, $3)",
        )
        .bind(id)
        .bind(from.cast_signed())
        .bind(i64::MAX)
        .execute(change)
        .await?;
        Ok(id)
    }
}

/// Reads which sets exist, so that PostgreSQL orders this transaction with others that record one.
pub(in crate::database) async fn heed_sets(
    change: &mut AnyConnection,
) -> Result<(), DatabaseError> {
    sqlx::query("SELECT MAX(id) AS newest FROM in_flight_sets")
        .fetch_one(change)
        .await?;
    Ok(())
}

/// The rebuilding members with a known set of slots that may be wrong, with the serials of those.
pub(in crate::database) async fn suspect_of(
    connection: &mut AnyConnection,
    copyset: CopysetId,
) -> Result<Vec<(UnitId, Vec<Range<u64>>)>, DatabaseError> {
    let members = sqlx::query(
        "SELECT unit, in_flight_set FROM copyset_members \
         WHERE copyset = $1 AND state = 'rebuilding' AND in_flight_set IS NOT NULL",
    )
    .bind(i64::from(copyset.number()))
    .fetch_all(&mut *connection)
    .await?;
    let mut suspect = Vec::new();
    for member in &members {
        let serials = sqlx::query(
            "SELECT first, end_before FROM in_flight_serials \
             WHERE in_flight_set = $1 AND (copyset IS NULL OR copyset = $2) ORDER BY first",
        )
        .bind(member.try_get::<i64, _>("in_flight_set")?)
        .bind(i64::from(copyset.number()))
        .fetch_all(&mut *connection)
        .await?;
        let mut merged: Vec<Range<u64>> = Vec::new();
        for row in &serials {
            let range = rows::number(row, "first")?..rows::number(row, "end_before")?;
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        // Each set has at least the serials that were not handed out, so an empty one is damaged.
        if !merged.is_empty() {
            suspect.push((rows::spelled(member, "unit")?, merged));
        }
    }
    Ok(suspect)
}

/// Any slot of these members may be wrong until they have been read and are in sync, even if they
/// count as in sync until then.
pub(in crate::database) async fn clear_in_flight(
    change: &mut AnyConnection,
    copyset: CopysetId,
    units: &[UnitId],
) -> Result<(), DatabaseError> {
    for unit in units {
        sqlx::query(
            "UPDATE copyset_members SET in_flight_set = NULL, is_unknown = 1 \
             WHERE copyset = $1 AND unit = $2",
        )
        .bind(i64::from(copyset.number()))
        .bind(unit.to_string())
        .execute(&mut *change)
        .await?;
    }
    Ok(())
}

/// Deletes the sets that no member refers to any more.
pub(in crate::database) async fn forget_unneeded(
    change: &mut AnyConnection,
) -> Result<(), DatabaseError> {
    for statement in [
        "DELETE FROM in_flight_serials WHERE in_flight_set NOT IN \
         (SELECT in_flight_set FROM copyset_members WHERE in_flight_set IS NOT NULL)",
        "DELETE FROM in_flight_sets WHERE id NOT IN \
         (SELECT in_flight_set FROM copyset_members WHERE in_flight_set IS NOT NULL)",
    ] {
        sqlx::query(statement).execute(&mut *change).await?;
    }
    Ok(())
}
