//! Draining and removing units, and replacing members of copysets. [`decide`] says which unit
//! replaces which; this module applies that.
//!
//! Invariant: the last complete copy of a segment is never removed. A draining unit stays a member
//! until its replacement is in sync; a lost unit is removed only where another member is in sync,
//! or as many as there are data units. Where no volume has any data, a replacement takes effect at
//! once.

use std::collections::HashSet;

use base::UnitId;
use catalog::{Copyset, copysets};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::repair::members::{
    Departure, Replacement, Used, drop_member, rejoin_draining, replace_member,
};
use crate::database::repair::{degraded, suspicions};
use crate::database::units::decide::{
    DesiredUnit, ObservedUnits, Removal, ReplacementStep, decide,
};
use crate::database::units::{copysets_of, units_of};
use crate::database::{DatabaseError, ObjectKind, Principal, Units, hosts, rows};
use crate::units::{name_of, zones_of};

/// The result of draining or removing a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainResult {
    /// The number of copysets in which another unit replaces it.
    pub copysets: u64,
    /// Whether it was removed.
    pub is_removed: bool,
    /// The number of copysets in which no other available member was in sync.
    pub copysets_lost: u64,
}

impl Units<'_> {
    /// Drains units: replaces them wherever they are members by units among `usable`. Each is
    /// removed when it is a member of no copyset any more.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if there are too few usable units: then none is drained.
    pub async fn drain(
        self,
        principal: &Principal,
        units: &[UnitId],
        usable: &HashSet<UnitId>,
    ) -> Result<Vec<(UnitId, DrainResult)>, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                for unit in units {
                    require_unit(&mut change, *unit).await?;
                    set_draining(&mut change, *unit, true).await?;
                }
                let now = principal.by.at;
                let mut moved = Vec::new();
                for unit in units {
                    // Read again each time: the units before it have changed copysets.
                    let observed = observe(&mut change, usable, &HashSet::new()).await?;
                    let step = decide(*unit, DesiredUnit::Drained, &observed);
                    let (copysets, _) = apply(&mut change, step, now).await?;
                    moved.push((*unit, copysets));
                    principal.note(&mut change, "drain-unit", unit).await?;
                }
                let gone = forget_drained(&mut change, now).await?;
                hosts::assign_all(&mut change).await?;
                let moved = moved.into_iter().map(|(unit, copysets)| {
                    let is_removed = gone.contains(&unit);
                    let moved = DrainResult {
                        copysets,
                        is_removed,
                        copysets_lost: 0,
                    };
                    (unit, moved)
                });
                Ok(moved.collect())
            })
            .await
    }

    /// Cancels draining: each unit becomes a full member again where it is draining, and is rebuilt
    /// with what was written since.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if one of the units is not being drained.
    pub async fn cancel_drain(
        self,
        principal: &Principal,
        units: &[UnitId],
    ) -> Result<Vec<(UnitId, DrainResult)>, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let rows = units_of(&mut change).await?;
                let mut moved = Vec::new();
                for unit in units {
                    require_unit(&mut change, *unit).await?;
                    let places = sqlx::query(
                    "SELECT copyset FROM copyset_members WHERE unit = $1 AND state = 'draining'",
                )
                .bind(unit.to_string())
                .fetch_all(&mut *change)
                .await?;
                    let was_draining = rows.iter().any(|row| row.id == *unit && row.is_draining);
                    if places.is_empty() && !was_draining {
                        let reason = format!("{} is not being drained", name_of(&rows, *unit));
                        return Err(DatabaseError::Refused { reason });
                    }
                    set_draining(&mut change, *unit, false).await?;
                    for row in &places {
                        let copyset = row.try_get("copyset")?;
                        rejoin_draining(&mut change, copyset, *unit, principal.by.at).await?;
                    }
                    principal.note(&mut change, "cancel-drain", unit).await?;
                    let copysets = places.len() as u64;
                    let is_removed = false;
                    let one = DrainResult {
                        copysets,
                        is_removed,
                        copysets_lost: 0,
                    };
                    moved.push((*unit, one));
                }
                hosts::assign_all(&mut change).await?;
                Ok(moved)
            })
            .await
    }

    /// Removes a unit that is a member of no copyset; or one that is lost, which units among
    /// `usable` replace. Units in `reachable` are reached by some host.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if that would remove the last complete reachable copy of
    /// anything, unless data loss is accepted.
    pub async fn remove(
        self,
        principal: &Principal,
        unit: UnitId,
        removal: Removal,
        usable: &HashSet<UnitId>,
        reachable: &HashSet<UnitId>,
    ) -> Result<DrainResult, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let now = principal.by.at;
                require_unit(&mut change, unit).await?;
                let observed = observe(&mut change, usable, reachable).await?;
                let step = decide(unit, DesiredUnit::Removed(removal), &observed);
                suspicions::try_again(&mut change, unit).await?;
                let (copysets, copysets_lost) = apply(&mut change, step, now).await?;
                let is_member =
                    |set: &&Copyset| set.member_states().any(|(member, _)| member == unit);
                for set in observed.copysets.iter().filter(is_member) {
                    drop_member(&mut change, set.id, unit).await?;
                }
                forget_unit(&mut change, unit, now).await?;
                hosts::assign_all(&mut change).await?;
                let what = match removal {
                    Removal::DataLossAccepted => "accept-data-loss-unit",
                    Removal::Empty | Removal::Lost => "remove-unit",
                };
                principal.note(&mut change, what, unit).await?;
                Ok(DrainResult {
                    copysets,
                    is_removed: true,
                    copysets_lost,
                })
            })
            .await
    }

    /// Replaces a unit that has been missing for longer than `replace_after`, where other reachable
    /// members hold everything it held. Returns the number of copysets. Unlike a drained unit, it
    /// stays registered when it is a member of no copyset any more: it may rejoin.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn replace_missing(
        self,
        unit: UnitId,
        usable: &HashSet<UnitId>,
        reachable: &HashSet<UnitId>,
        now: Millis,
    ) -> Result<u64, DatabaseError> {
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let observed = observe(&mut change, usable, reachable).await?;
                let step = decide(unit, DesiredUnit::Replaced, &observed);
                let (done, _) = apply(&mut change, step, now).await?;
                if done > 0 {
                    hosts::assign_all(&mut change).await?;
                }
                Ok(done)
            })
            .await
    }

    /// Moves copysets to units that have fewer than others. Returns how many.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn rebalance(
        self,
        principal: &Principal,
        usable: &HashSet<UnitId>,
    ) -> Result<u64, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let observed = observe(&mut change, usable, &HashSet::new()).await?;
                let (loads, zones) = (observed.loads(), zones_of(&observed.units));
                let moves = copysets::rebalancing(&observed.copysets, &loads, &zones);
                let replacements = moves.iter().filter_map(|(id, old, new)| {
                    let copyset = observed.copysets.iter().find(|copyset| copyset.id == *id)?;
                    Some(Replacement {
                        copyset: *id,
                        old: *old,
                        new: *new,
                        departure: observed.used.departure(copyset, Departure::Draining),
                    })
                });
                let step = ReplacementStep::Replace {
                    replacements: replacements.collect(),
                    copysets_lost: 0,
                };
                apply(&mut change, step, principal.by.at).await?;
                principal
                    .note(&mut change, "rebalance", moves.len())
                    .await?;
                hosts::assign_all(&mut change).await?;
                Ok(moves.len() as u64)
            })
            .await
    }

    /// Requests a scrub of the copysets of a unit, or of all. Returns the number of copysets.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn request_scrub(
        self,
        principal: &Principal,
        unit: Option<UnitId>,
    ) -> Result<u64, DatabaseError> {
        self.database.transaction_for(principal).run(|mut change| async move {
            if let Some(unit) = unit {
                require_unit(&mut change, unit).await?;
            }
            let wanted = sqlx::query(
                "UPDATE copysets SET scrub_requested = 1, repair_after_ms = 0 WHERE $1 = '' OR EXISTS \
                 (SELECT 1 FROM copyset_members m WHERE m.copyset = number AND m.unit = $1)",
            )
            .bind(unit.map(|unit| unit.to_string()).unwrap_or_default())
            .execute(&mut *change)
            .await?;
            hosts::assign_all(&mut change).await?;
            Ok(wanted.rows_affected())
        }).await
    }

    /// Requests a comparison of all members of all copysets. Returns the number of copysets.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn request_comparison(self, principal: &Principal) -> Result<u64, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let wanted = degraded::compare_all(&mut change).await?;
                hosts::assign_all(&mut change).await?;
                Ok(wanted)
            })
            .await
    }

    /// Records which units every reporting host reports missing; returns those that have been
    /// missing since before `since`. If no host has reported since `unresponsive_before`, it is
    /// unknown whether they were reachable in between, and they count as missing since now.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn record_missing(
        self,
        missing: &HashSet<UnitId>,
        now: Millis,
        since: Millis,
        unresponsive_before: Millis,
    ) -> Result<Vec<UnitId>, DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                let mut long = Vec::new();
                let rows = sqlx::query("SELECT id, missing_ms, missing_seen_ms FROM units")
                    .fetch_all(&mut *change)
                    .await?;
                for row in &rows {
                    let unit: UnitId = rows::spelled(row, "id")?;
                    let was: Option<i64> = row.try_get("missing_ms")?;
                    let seen: Option<i64> = row.try_get("missing_seen_ms")?;
                    let is_missing = missing.contains(&unit);
                    let known =
                        was.filter(|_| seen.is_some_and(|seen| seen >= unresponsive_before.0));
                    let begun = is_missing.then(|| known.unwrap_or(now.0));
                    if is_missing || was.is_some() {
                        sqlx::query(
                            "UPDATE units SET missing_ms = $1, missing_seen_ms = $2 WHERE id = $3",
                        )
                        .bind(begun)
                        .bind(is_missing.then_some(now.0))
                        .bind(unit.to_string())
                        .execute(&mut *change)
                        .await?;
                    }
                    if begun.is_some_and(|begun| begun <= since.0) {
                        long.push(unit);
                    }
                }
                Ok(long)
            })
            .await
    }
}

async fn require_unit(change: &mut AnyConnection, unit: UnitId) -> Result<(), DatabaseError> {
    let found = sqlx::query("SELECT id FROM units WHERE id = $1")
        .bind(unit.to_string())
        .fetch_optional(change)
        .await?;
    match found {
        Some(_) => Ok(()),
        None => Err(DatabaseError::not_found(ObjectKind::Unit, unit)),
    }
}

async fn set_draining(
    change: &mut AnyConnection,
    unit: UnitId,
    is_draining: bool,
) -> Result<(), DatabaseError> {
    sqlx::query("UPDATE units SET draining = $2 WHERE id = $1")
        .bind(unit.to_string())
        .bind(i64::from(is_draining))
        .execute(change)
        .await?;
    Ok(())
}

/// Reads what [`decide`] needs.
async fn observe(
    change: &mut AnyConnection,
    usable: &HashSet<UnitId>,
    reachable: &HashSet<UnitId>,
) -> Result<ObservedUnits, DatabaseError> {
    Ok(ObservedUnits {
        copysets: copysets_of(&mut *change).await?,
        units: units_of(&mut *change).await?,
        used: Used::of(&mut *change).await?,
        usable: usable.clone(),
        reachable: reachable.clone(),
    })
}

/// Carries out a step. Returns the number of copysets with a replacement, and of those with data
/// loss.
///
/// # Errors
/// [`DatabaseError::Refused`] if the step is a refusal.
async fn apply(
    change: &mut AnyConnection,
    step: ReplacementStep,
    now: Millis,
) -> Result<(u64, u64), DatabaseError> {
    let (replacements, copysets_lost) = match step {
        ReplacementStep::Refuse(reason) => return Err(DatabaseError::Refused { reason }),
        ReplacementStep::Replace {
            replacements,
            copysets_lost,
        } => (replacements, copysets_lost),
    };
    for replacement in &replacements {
        replace_member(&mut *change, replacement, now).await?;
    }
    Ok((replacements.len() as u64, copysets_lost))
}

async fn forget_unit(
    change: &mut AnyConnection,
    unit: UnitId,
    now: Millis,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO removed_units (id, url, removed_ms) SELECT id, url, $2 FROM units \
         WHERE id = $1",
    )
    .bind(unit.to_string())
    .bind(now.0)
    .execute(&mut *change)
    .await?;
    for statement in [
        "DELETE FROM unit_zones WHERE unit = $1",
        "DELETE FROM units WHERE id = $1",
    ] {
        sqlx::query(statement)
            .bind(unit.to_string())
            .execute(&mut *change)
            .await?;
    }
    Ok(())
}

/// Removes the units that are drained, and returns which.
pub(in crate::database) async fn forget_drained(
    change: &mut AnyConnection,
    now: Millis,
) -> Result<Vec<UnitId>, DatabaseError> {
    let rows = sqlx::query(
        "SELECT id FROM units WHERE draining = 1 AND NOT EXISTS \
         (SELECT 1 FROM copyset_members m WHERE m.unit = units.id)",
    )
    .fetch_all(&mut *change)
    .await?;
    let mut gone = Vec::new();
    for row in &rows {
        let unit = rows::spelled(row, "id")?;
        forget_unit(&mut *change, unit, now).await?;
        gone.push(unit);
    }
    Ok(gone)
}
