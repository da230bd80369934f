//! The members of a copyset: how one replaces another.
//!
//! A unit that becomes a member gets a join number larger than all before, and a member that is
//! replaced keeps the join number of its replacement as its leave number. So it is known which
//! members a write by an older table of copysets reached
//! ([`degraded`](crate::database::repair::degraded)).

use std::collections::HashSet;

use base::{CopysetId, UnitId};
use catalog::Copyset;
use sqlx::AnyConnection;
use world::Millis;

use crate::database::{DatabaseError, rows};

/// What happens to a member that is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::database) enum Departure {
    /// It is read until its replacement is in sync.
    Draining,
    /// It leaves at once, as its content is lost.
    Lost,
    /// It leaves at once, as the copyset holds no data.
    Empty,
}

/// A replacement of one member of a copyset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::database) struct Replacement {
    /// The copyset.
    pub copyset: CopysetId,
    /// The member that is replaced.
    pub old: UnitId,
    /// Its replacement.
    pub new: UnitId,
    /// What happens to the old member.
    pub departure: Departure,
}

/// The kinds of copysets that may hold data, by their numbers of members and of data members.
/// `None`: all kinds.
pub(in crate::database) struct Used(Option<HashSet<(usize, u8)>>);

impl Used {
    pub async fn of(change: &mut AnyConnection) -> Result<Self, DatabaseError> {
        // Deleted volumes may have left data in any copyset.
        let left: i64 = sqlx::query_scalar(
            "SELECT (SELECT COUNT(*) FROM deleted_volumes) + (SELECT COUNT(*) FROM versions v \
             WHERE NOT EXISTS (SELECT 1 FROM volumes o WHERE o.id = v.volume))",
        )
        .fetch_one(&mut *change)
        .await?;
        if left > 0 {
            return Ok(Self(None));
        }
        let volumes = sqlx::query("SELECT DISTINCT replicas, data, parity FROM volumes")
            .fetch_all(change)
            .await?;
        let of_row = |row| {
            let (data, parity): (u8, u8) = (rows::small(row, "data")?, rows::small(row, "parity")?);
            let replicas: usize = rows::small(row, "replicas")?;
            Ok(match parity {
                0 => (replicas, 1),
                parity => (usize::from(data) + usize::from(parity), data),
            })
        };
        let used: Result<_, DatabaseError> = volumes.iter().map(of_row).collect();
        Ok(Self(Some(used?)))
    }

    /// A copyset of any kind may hold data.
    #[cfg(test)]
    pub fn all() -> Self {
        Self(None)
    }

    /// No copyset holds data.
    #[cfg(test)]
    pub fn none() -> Self {
        Self(Some(HashSet::new()))
    }

    /// The departure of a member of this copyset: `departure` if it may hold data.
    pub fn departure(&self, copyset: &Copyset, departure: Departure) -> Departure {
        let kind = (copyset.members.len(), copyset.data);
        match &self.0 {
            Some(used) if !used.contains(&kind) => Departure::Empty,
            _ => departure,
        }
    }
}

/// Replaces a member by another one, which is rebuilt unless the copyset holds no data.
pub(in crate::database) async fn replace_member(
    change: &mut AnyConnection,
    replacement: &Replacement,
    now: Millis,
) -> Result<(), DatabaseError> {
    let Replacement {
        copyset,
        old,
        new,
        departure,
    } = *replacement;
    let number = i64::from(copyset.number());
    let position: i64 =
        sqlx::query_scalar("SELECT position FROM copyset_members WHERE copyset = $1 AND unit = $2")
            .bind(number)
            .bind(old.to_string())
            .fetch_one(&mut *change)
            .await?;
    let joined: i64 = sqlx::query_scalar("UPDATE cluster SET joins = joins + 1 RETURNING joins")
        .fetch_one(&mut *change)
        .await?;
    match departure {
        Departure::Draining => {
            sqlx::query(
                "UPDATE copyset_members SET state = 'draining', leave_number = $4, since_ms = $3 \
                 WHERE copyset = $1 AND unit = $2",
            )
            .bind(number)
            .bind(old.to_string())
            .bind(now.0)
            .bind(joined)
            .execute(&mut *change)
            .await?;
        }
        Departure::Lost | Departure::Empty => drop_member(&mut *change, copyset, old).await?,
    }
    sqlx::query(
        "INSERT INTO copyset_members (copyset, position, unit, state, join_number, misses, missed_ms, \
         since_ms) VALUES ($1, $2, $3, $6, $4, 1, $5, $5)",
    )
    .bind(number)
    .bind(position)
    .bind(new.to_string())
    .bind(joined)
    .bind(now.0)
    .bind(match departure {
        Departure::Empty => "in_sync",
        Departure::Draining | Departure::Lost => "rebuilding",
    })
    .execute(&mut *change)
    .await?;
    sqlx::query("UPDATE copysets SET repair_after_ms = 0 WHERE number = $1")
        .bind(number)
        .execute(change)
        .await?;
    Ok(())
}

/// Makes `unit`, which is draining, a full member again; its replacement is drained instead. For
/// the catalog it is a new member: it is missing what was written since it began to drain.
pub(in crate::database) async fn rejoin_draining(
    change: &mut AnyConnection,
    copyset: i64,
    unit: UnitId,
    now: Millis,
) -> Result<(), DatabaseError> {
    let joined: i64 = sqlx::query_scalar("UPDATE cluster SET joins = joins + 1 RETURNING joins")
        .fetch_one(&mut *change)
        .await?;
    for statement in [
        "UPDATE copyset_members SET state = 'draining', leave_number = $3, since_ms = $4 \
         WHERE copyset = $1 AND state <> 'draining' AND position = \
         (SELECT o.position FROM copyset_members o WHERE o.copyset = $1 AND o.unit = $2)",
        "UPDATE copyset_members SET state = 'rebuilding', in_flight_set = NULL, join_number = $3, leave_number = NULL, \
         misses = misses + 1, missed_ms = $4, since_ms = $4 WHERE copyset = $1 AND unit = $2",
    ] {
        sqlx::query(statement)
            .bind(copyset)
            .bind(unit.to_string())
            .bind(joined)
            .bind(now.0)
            .execute(&mut *change)
            .await?;
    }
    sqlx::query("UPDATE copysets SET repair_after_ms = 0 WHERE number = $1")
        .bind(copyset)
        .execute(change)
        .await?;
    Ok(())
}

pub(in crate::database) async fn drop_member(
    change: &mut AnyConnection,
    copyset: CopysetId,
    unit: UnitId,
) -> Result<(), DatabaseError> {
    sqlx::query("DELETE FROM copyset_members WHERE copyset = $1 AND unit = $2")
        .bind(i64::from(copyset.number()))
        .bind(unit.to_string())
        .execute(change)
        .await?;
    Ok(())
}
