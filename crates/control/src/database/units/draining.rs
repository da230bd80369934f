//! Draining and removing units, and replacing members of copysets.
//!
//! Invariant: the last complete copy of a segment is never removed. A draining unit stays a member
//! until its replacement is in sync; a lost unit is removed only where another member is in sync,
//! or as many as there are data units. Where no volume has any data, a replacement takes effect at
//! once.

use std::collections::{HashMap, HashSet};

use base::UnitId;
use catalog::{Copyset, MemberState, copysets};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::units::{name_of, zones_of};

use crate::database::repair::members::{
    Departure, Used, drop_member, put_in_place, take_place_back,
};
use crate::database::repair::{degraded, suspicions};
use crate::database::units::{copysets_of, units_of};
use crate::database::{DatabaseError, ObjectKind, Principal, UnitRow, Units, hosts, rows};

/// The largest number of copysets that a refusal names.
const TOLD_MAX: usize = 3;

/// The result of draining or removing a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moved {
    /// The number of copysets in which another unit replaces it.
    pub copysets: u64,
    /// Whether it was removed.
    pub is_removed: bool,
    /// The number of copysets in which no other available member was in sync.
    pub given_up: u64,
}

/// Why a unit may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is a member of no copyset.
    Empty,
    /// It is lost for good, and other available units hold everything it held.
    Lost,
    /// It is lost for good, and so is what only it held.
    GivenUp,
}

impl Units<'_> {
    /// Drains units: replaces them wherever they are members by units among `usable`. Each is
    /// removed when it is a member of no copyset any more.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if there are too few of these: then none is.
    pub async fn drain(
        self,
        principal: &Principal,
        units: &[UnitId],
        usable: &HashSet<UnitId>,
    ) -> Result<Vec<(UnitId, Moved)>, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                for unit in units {
                    must_be_there(&mut *change, *unit).await?;
                    set_draining(&mut *change, *unit, true).await?;
                }
                let now = principal.by.at;
                let mut moved = Vec::new();
                for unit in units {
                    let copysets =
                        replace(&mut *change, *unit, usable, Departure::Draining, now).await?;
                    moved.push((*unit, copysets));
                    principal.note(&mut *change, "drain-unit", unit).await?;
                }
                let gone = forget_drained(&mut *change, now).await?;
                hosts::assign_all(&mut *change).await?;
                let moved = moved.into_iter().map(|(unit, copysets)| {
                    let is_removed = gone.contains(&unit);
                    let moved = Moved {
                        copysets,
                        is_removed,
                        given_up: 0,
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
    /// [`DatabaseError::Refused`] if one is neither drained nor leaves anything.
    pub async fn cancel_drain(
        self,
        principal: &Principal,
        units: &[UnitId],
    ) -> Result<Vec<(UnitId, Moved)>, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let rows = units_of(&mut *change).await?;
                let mut moved = Vec::new();
                for unit in units {
                    must_be_there(&mut *change, *unit).await?;
                    let places = sqlx::query(
                    "SELECT copyset FROM copyset_members WHERE unit = $1 AND state = 'draining'",
                )
                .bind(unit.to_string())
                .fetch_all(&mut *change)
                .await?;
                    let is_drained = rows.iter().any(|row| row.id == *unit && row.is_draining);
                    if places.is_empty() && !is_drained {
                        let reason = format!("{} is not being drained", name_of(&rows, *unit));
                        return Err(DatabaseError::Refused { reason });
                    }
                    set_draining(&mut *change, *unit, false).await?;
                    for row in &places {
                        let copyset = row.try_get("copyset")?;
                        take_place_back(&mut *change, copyset, *unit, principal.by.at).await?;
                    }
                    principal.note(&mut *change, "cancel-drain", unit).await?;
                    let copysets = places.len() as u64;
                    let is_removed = false;
                    let one = Moved {
                        copysets,
                        is_removed,
                        given_up: 0,
                    };
                    moved.push((*unit, one));
                }
                hosts::assign_all(&mut *change).await?;
                Ok(moved)
            })
            .await
    }

    /// Removes a unit that is a member of no copyset; or one that is lost, which units among
    /// `usable` replace. Units in `there` are reachable by some host.
    ///
    /// # Errors
    /// [`DatabaseError::Refused`] if that would drop the last whole copy of
    /// anything that is there, unless it is given up.
    pub async fn remove(
        self,
        principal: &Principal,
        unit: UnitId,
        how: Removal,
        usable: &HashSet<UnitId>,
        there: &HashSet<UnitId>,
    ) -> Result<Moved, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let now = principal.by.at;
                let (copysets, given_up) =
                    take_out(&mut *change, unit, how, (usable, there), now).await?;
                let what = match how {
                    Removal::GivenUp => "accept-data-loss-unit",
                    Removal::Empty | Removal::Lost => "remove-unit",
                };
                principal.note(&mut *change, what, unit).await?;
                Ok(Moved {
                    copysets,
                    is_removed: true,
                    given_up,
                })
            })
            .await
    }

    /// Replaces a unit that has been missing for too long, where other members in `there` hold
    /// everything it held. Returns the number of copysets.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn replace_missing(
        self,
        unit: UnitId,
        usable: &HashSet<UnitId>,
        there: &HashSet<UnitId>,
        now: Millis,
    ) -> Result<u64, DatabaseError> {
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let mut done = 0;
                let copysets = copysets_of(&mut *change).await?;
                let units = units_of(&mut *change).await?;
                let mut loads = loads_of(&copysets, &still_usable(usable, &units));
                let zones = zones_of(&units);
                let used = Used::of(&mut *change).await?;
                for copyset in &copysets {
                    // It may rejoin, so it is drained, and counts until its replacement is in sync.
                    let goes = used.goes(copyset, Departure::Draining);
                    if copyset.members.contains(&unit)
                        && (has_whole_without(copyset, unit, there) || goes == Departure::Empty)
                        && let Some(new) = copysets::replacement(copyset, unit, &loads, &zones)
                    {
                        put_in_place(&mut *change, copyset, unit, new, goes, now).await?;
                        *loads.entry(new).or_default() += 1;
                        done += 1;
                    }
                }
                if done > 0 {
                    hosts::assign_all(&mut *change).await?;
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
                let copysets = copysets_of(&mut *change).await?;
                let units = units_of(&mut *change).await?;
                let (usable, zones) = (still_usable(usable, &units), zones_of(&units));
                let moves = copysets::rebalancing(&copysets, &loads_of(&copysets, &usable), &zones);
                let used = Used::of(&mut *change).await?;
                for (id, old, new) in &moves {
                    let Some(copyset) = copysets.iter().find(|copyset| copyset.id == *id) else {
                        continue;
                    };
                    let now = principal.by.at;
                    let goes = used.goes(copyset, Departure::Draining);
                    put_in_place(&mut *change, copyset, *old, *new, goes, now).await?;
                }
                principal
                    .note(&mut *change, "rebalance", moves.len())
                    .await?;
                hosts::assign_all(&mut *change).await?;
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
                must_be_there(&mut *change, unit).await?;
            }
            let wanted = sqlx::query(
                "UPDATE copysets SET scrub_requested = 1, repair_after_ms = 0 WHERE $1 = '' OR EXISTS \
                 (SELECT 1 FROM copyset_members m WHERE m.copyset = number AND m.unit = $1)",
            )
            .bind(unit.map(|unit| unit.to_string()).unwrap_or_default())
            .execute(&mut *change)
            .await?;
            hosts::assign_all(&mut *change).await?;
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
                let wanted = degraded::compare_all(&mut *change).await?;
                hosts::assign_all(&mut *change).await?;
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
                    let unit: UnitId = rows::spelt(row, "id")?;
                    let was: Option<i64> = row.try_get("missing_ms")?;
                    let seen: Option<i64> = row.try_get("missing_seen_ms")?;
                    let is_missing = missing.contains(&unit);
                    let went_on =
                        was.filter(|_| seen.is_some_and(|seen| seen >= unresponsive_before.0));
                    let begun = is_missing.then(|| went_on.unwrap_or(now.0));
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

async fn must_be_there(change: &mut AnyConnection, unit: UnitId) -> Result<(), DatabaseError> {
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

/// Those of `usable` that are still usable: the caller determined them before this transaction
/// began, and another one may have begun to drain one of them.
fn still_usable(usable: &HashSet<UnitId>, units: &[UnitRow]) -> HashSet<UnitId> {
    let takes = |unit: &&UnitRow| !unit.is_draining && !unit.is_disabled;
    let now = units.iter().filter(takes).map(|unit| unit.id);
    now.filter(|unit| usable.contains(unit)).collect()
}

/// Whether enough members of a copyset other than `unit` are in sync and in `there` to hold all of
/// its data.
fn has_whole_without(copyset: &Copyset, unit: UnitId, there: &HashSet<UnitId>) -> bool {
    let whole = copyset.member_states().filter(|(other, state)| {
        *other != unit && *state == MemberState::InSync && there.contains(other)
    });
    whole.count() >= usize::from(copyset.data)
}

/// Why the other members of a copyset do not count as copies.
fn who_is_in_the_way(
    copyset: &Copyset,
    unit: UnitId,
    there: &HashSet<UnitId>,
    units: &[UnitRow],
) -> String {
    let others = copyset.member_states().filter(|(other, _)| *other != unit);
    let why = |(other, state): (UnitId, MemberState)| {
        let why = match (state, there.contains(&other)) {
            (MemberState::InSync, true) => return None,
            (MemberState::Rebuilding, true) => "may be missing something",
            (MemberState::Draining, true) => {
                "holds nothing that was written since it began to drain"
            }
            (_, false) => "is found by no host",
        };
        Some(format!("{} {why}", name_of(units, other)))
    };
    let why: Vec<String> = others.filter_map(why).collect();
    let number = copyset.id.number();
    match why.is_empty() {
        true => format!("copyset {number} has no other member"),
        false => format!("in copyset {number} {}", why.join(" and ")),
    }
}

/// The usable units, with the number of copysets that each is a member of.
fn loads_of(copysets: &[Copyset], usable: &HashSet<UnitId>) -> HashMap<UnitId, usize> {
    let load = |unit: &UnitId| {
        let its = copysets.iter().filter(|set| set.members.contains(unit));
        its.count()
    };
    usable.iter().map(|unit| (*unit, load(unit))).collect()
}

/// Replaces `old` in every copyset of which it is a full member.
async fn replace(
    change: &mut AnyConnection,
    old: UnitId,
    usable: &HashSet<UnitId>,
    goes: Departure,
    now: Millis,
) -> Result<u64, DatabaseError> {
    let copysets = copysets_of(&mut *change).await?;
    let units = units_of(&mut *change).await?;
    let mut loads = loads_of(&copysets, &still_usable(usable, &units));
    loads.remove(&old);
    let zones = zones_of(&units);
    let used = Used::of(&mut *change).await?;
    let mut done = 0;
    for copyset in copysets.iter().filter(|set| set.members.contains(&old)) {
        let Some(new) = copysets::replacement(copyset, old, &loads, &zones) else {
            return Err(DatabaseError::Refused {
                reason: format!(
                    "no healthy unit with room is there to take the place of {} in copyset {}, \
                     which has {} members; add a unit (`scree unit add`) and try again",
                    name_of(&units, old),
                    copyset.id.number(),
                    copyset.members.len()
                ),
            });
        };
        let goes = used.goes(copyset, goes);
        put_in_place(&mut *change, copyset, old, new, goes, now).await?;
        *loads.entry(new).or_default() += 1;
        done += 1;
    }
    Ok(done)
}

/// Removes a unit, unless the last complete copy in `there` of anything would be lost and that is
/// not accepted. Returns the number of copysets in which it is replaced, and of those with data
/// loss.
async fn take_out(
    change: &mut AnyConnection,
    unit: UnitId,
    how: Removal,
    (usable, there): (&HashSet<UnitId>, &HashSet<UnitId>),
    now: Millis,
) -> Result<(u64, u64), DatabaseError> {
    must_be_there(&mut *change, unit).await?;
    let copysets = copysets_of(&mut *change).await?;
    let units = units_of(&mut *change).await?;
    let name = name_of(&units, unit);
    let is_its = |set: &&Copyset| set.member_states().any(|(member, _)| member == unit);
    let its: Vec<&Copyset> = copysets.iter().filter(is_its).collect();
    if !its.is_empty() && how == Removal::Empty {
        return Err(DatabaseError::Refused {
            reason: format!(
                "{name} is a member of {} copysets; `scree unit drain` moves what it holds \
                 elsewhere, and removes it then. If it is gone for good: `scree unit remove \
                 --lost`",
                its.len()
            ),
        });
    }
    let used = Used::of(&mut *change).await?;
    let has_something = |set: &&&Copyset| used.goes(set, Departure::Lost) == Departure::Lost;
    let last: Vec<String> = its
        .iter()
        .filter(has_something)
        .filter(|set| !has_whole_without(set, unit, there))
        .map(|set| who_is_in_the_way(set, unit, there, &units))
        .collect();
    if !last.is_empty() && how != Removal::GivenUp {
        let (first, rest) = last.split_at(last.len().min(TOLD_MAX));
        let more = match rest.len() {
            0 => String::new(),
            count => format!("; and in {count} more"),
        };
        return Err(DatabaseError::Refused {
            reason: format!(
                "{name} may have the last whole copy of something: {}{more}. Bring it or them \
                 back, or wait until another member is whole (`scree unit tasks`), and try \
                 again; `scree unit remove --lost --accept-data-loss` gives up what nobody else has",
                first.join("; ")
            ),
        });
    }
    suspicions::try_again(&mut *change, unit).await?;
    let replaced = replace(&mut *change, unit, usable, Departure::Lost, now).await?;
    for set in &its {
        drop_member(&mut *change, set.id, unit).await?;
    }
    forget_unit(&mut *change, unit, now).await?;
    hosts::assign_all(change).await?;
    Ok((replaced, last.len() as u64))
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
        let unit = rows::spelt(row, "id")?;
        forget_unit(&mut *change, unit, now).await?;
        gone.push(unit);
    }
    Ok(gone)
}
