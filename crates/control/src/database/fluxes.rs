//! What hosts may have been putting at a moment, for the members of copysets that began
//! to lack something then (docs/units.md, "Coming back").
//!
//! Invariants:
//!
//! * All that is on its way at some moment is in every flux that was kept before: what is
//!   on its way later was so before, or has a later serial. So one that there is serves.
//! * A change keeps a flux before it says itself what is on its way no more.

use std::ops::Range;

use base::{CopysetId, UnitId};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use super::{Backend, Database, DatabaseError, rows};

/// One that is no older serves for what begins to lack something, in milliseconds.
const SERVES_MS: i64 = 10 * 60 * 1000;

/// So many serials may have been taken by changes that are not over yet, and are not seen
/// by others: more than all controllers have connections, with 64 each.
const IN_FLIGHT_MAX: u64 = 64 * 256;

impl Database {
    /// The flux of this moment, or one that serves as well.
    pub(super) async fn flux(
        &self,
        change: &mut AnyConnection,
        now: Millis,
    ) -> Result<i64, DatabaseError> {
        let known: Option<i64> =
            sqlx::query_scalar("SELECT MAX(id) FROM fluxes WHERE at_ms BETWEEN $1 AND $2")
                .bind(now.0.saturating_sub(SERVES_MS))
                .bind(now.0)
                .fetch_one(&mut *change)
                .await?;
        if let Some(known) = known {
            return Ok(known);
        }
        let next = self.serial_next(&mut *change).await?;
        let from = match self.backend {
            // Changes follow one another.
            Backend::Sqlite => next,
            Backend::Postgres => next.saturating_sub(IN_FLIGHT_MAX),
        };
        let id: i64 = sqlx::query_scalar("SELECT COALESCE(MAX(id), 0) + 1 FROM fluxes")
            .fetch_one(&mut *change)
            .await?;
        sqlx::query("INSERT INTO fluxes (id, at_ms) VALUES ($1, $2)")
            .bind(id)
            .bind(now.0)
            .execute(&mut *change)
            .await?;
        sqlx::query(
            "INSERT INTO flux_serials (flux, copyset, first, end_before) \
             SELECT CAST($1 AS BIGINT), NULL, first, end_before FROM serial_ranges",
        )
        .bind(id)
        .execute(&mut *change)
        .await?;
        sqlx::query(
            "INSERT INTO flux_serials (flux, copyset, first, end_before) \
             SELECT CAST($1 AS BIGINT), segment / $2, segment % $2, segment % $2 + 1 \
             FROM open_segments",
        )
        .bind(id)
        .bind(1_i64 << 36)
        .execute(&mut *change)
        .await?;
        sqlx::query(
            "INSERT INTO flux_serials (flux, copyset, first, end_before) VALUES ($1, NULL, $2, $3)",
        )
        .bind(id)
        .bind(from.cast_signed())
        .bind(i64::MAX)
        .execute(change)
        .await?;
        Ok(id)
    }
}

/// Of which members of a copyset, that are filled, it is known what may be otherwise than it
/// was put; and what that is.
pub(super) async fn doubtful_of(
    connection: &mut AnyConnection,
    copyset: CopysetId,
) -> Result<Vec<(UnitId, Vec<Range<u64>>)>, DatabaseError> {
    let members = sqlx::query(
        "SELECT unit, flux FROM copyset_members \
         WHERE copyset = $1 AND state = 'filling' AND flux IS NOT NULL",
    )
    .bind(i64::from(copyset.number()))
    .fetch_all(&mut *connection)
    .await?;
    let mut doubtful = Vec::new();
    for member in &members {
        let serials = sqlx::query(
            "SELECT first, end_before FROM flux_serials \
             WHERE flux = $1 AND (copyset IS NULL OR copyset = $2) ORDER BY first",
        )
        .bind(member.try_get::<i64, _>("flux")?)
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
        // Each has at least the serials that were not handed out. One that has nothing says
        // nothing.
        if !merged.is_empty() {
            doubtful.push((rows::spelt(member, "unit")?, merged));
        }
    }
    Ok(doubtful)
}

/// Of these members of a copyset, or all, anything may be otherwise than it was put.
pub(super) async fn know_nothing(
    change: &mut AnyConnection,
    copyset: CopysetId,
    units: Option<&[UnitId]>,
) -> Result<(), DatabaseError> {
    let number = i64::from(copyset.number());
    let Some(units) = units else {
        sqlx::query("UPDATE copyset_members SET flux = NULL WHERE copyset = $1")
            .bind(number)
            .execute(change)
            .await?;
        return Ok(());
    };
    for unit in units {
        sqlx::query("UPDATE copyset_members SET flux = NULL WHERE copyset = $1 AND unit = $2")
            .bind(number)
            .bind(unit.to_string())
            .execute(&mut *change)
            .await?;
    }
    Ok(())
}

/// What no member needs any more goes.
pub(super) async fn forget_fluxes(change: &mut AnyConnection) -> Result<(), DatabaseError> {
    for statement in [
        "DELETE FROM flux_serials WHERE flux NOT IN \
         (SELECT flux FROM copyset_members WHERE flux IS NOT NULL)",
        "DELETE FROM fluxes WHERE id NOT IN \
         (SELECT flux FROM copyset_members WHERE flux IS NOT NULL)",
    ] {
        sqlx::query(statement).execute(&mut *change).await?;
    }
    Ok(())
}
