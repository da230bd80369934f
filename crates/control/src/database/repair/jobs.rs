//! Repair jobs: which host repairs which copyset, and with what outcome (docs/internals/repair.md).
//!
//! Invariant: a unit stops being a member of a copyset only in a transaction that sees another
//! member in sync there.

use api::host::catalog_calls::{EndRepair, ReportRepair};
use api::host::{REPAIR_TERM_MS, RepairJob, RepairOutcome, RepairProgress};
use base::{CopysetId, PartyId, SegmentId, UnitId};
use catalog::MemberState;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::catalog::deleted_volumes;
use crate::database::repair::degraded::segment_of;
use crate::database::repair::{in_flight, suspicions};
use crate::database::units::{self, draining};
use crate::database::{Database, DatabaseError, hosts, rows};

/// After a failure, repair is retried after this time in milliseconds, and after twice as long each
/// time, until a unit rejoins.
const RETRY_MS: i64 = 5_000;

/// The longest time between attempts, in milliseconds. It applies at once if a unit is full or
/// slots are corrupt on every member: retrying soon does not help.
const RETRY_MS_MAX: i64 = 5 * 60 * 1000;

/// How often every slot is scrubbed, in milliseconds: every 30 days.
const SCRUB_EVERY_MS: i64 = 30 * 24 * 60 * 60 * 1000;

/// How long a host may change members under repair after its capability was signed, in
/// milliseconds.
pub const REPAIR_RIGHTS_MS: u64 = 20_000;

/// The largest number of units in a report: no copyset has more members.
const REPAIR_UNITS_MAX: usize = 1024;

/// The largest stored part of a failure's text, in characters.
const PROBLEM_CHARACTERS_MAX: usize = 2000;

/// How long after its last sign of life a host's copyset is given to another host, in milliseconds:
/// by then its capability has expired by every clock. A host that did not repair a copyset gets no
/// other one for the same time.
const AFTER_MS: i64 = 30_000;

/// A host that reported within this time, in milliseconds, counts as available for repair.
const HEARD_MS: i64 = 60_000;

/// The repair of copysets.
#[derive(Clone, Copy, Debug)]
pub struct Repair<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Repair<'_> {
    /// A copyset for `host` to repair: the one with the fewest copies in sync first.
    pub(in crate::database) async fn take(
        self,
        host: PartyId,
        now: Millis,
    ) -> Result<Option<RepairJob>, DatabaseError> {
        self.database.transaction().alone().run(|mut change| async move {
            // A host that reported a unit as suspect does not repair its copysets if another host
            // is available; otherwise any host could make itself the one that changes them. For the
            // same reason a host that did not repair one gets no other one yet.
            let others: i64 = sqlx::query_scalar(
                "SELECT COUNT(*) FROM host_reports WHERE party <> $1 AND heard_ms > $2",
            )
            .bind(host.to_string())
            .bind(now.0.saturating_sub(HEARD_MS))
            .fetch_one(&mut *change)
            .await?;
            let row = sqlx::query(
                "SELECT c.number FROM copysets c \
                 WHERE (c.repairer_last IS NULL OR c.repairer_last = $1 OR c.repairer_until_ms <= $4) \
                 AND ($5 = 0 OR c.suspected_by IS NULL OR c.suspected_by <> $1) \
                 AND ($5 = 0 OR NOT EXISTS (SELECT 1 FROM copysets o WHERE o.number <> c.number \
                     AND o.repairer_last = $1 AND o.repairer_until_ms > $4 AND (o.repairer IS NOT NULL \
                         OR o.scrub_requested > 0 OR EXISTS (SELECT 1 FROM copyset_members m \
                             WHERE m.copyset = o.number AND m.state <> 'in_sync')))) \
                 AND c.repair_after_ms <= $2 AND (c.scrub_requested > 0 OR c.scrubbed_ms <= $3 \
                     OR EXISTS (SELECT 1 FROM copyset_members m WHERE m.copyset = c.number \
                         AND m.state <> 'in_sync')) \
                 ORDER BY CASE WHEN c.repair_problem IS NULL THEN 0 ELSE 1 END, (SELECT COUNT(*) FROM copyset_members m WHERE m.copyset = c.number \
                     AND m.state <> 'in_sync') DESC, c.repairer_until_ms, c.number LIMIT 1",
            )
            .bind(host.to_string())
            .bind(now.0)
            .bind(now.0.saturating_sub(SCRUB_EVERY_MS))
            .bind(now.0.saturating_sub(AFTER_MS))
            .bind(others)
            .fetch_optional(&mut *change)
            .await?;
            let Some(row) = row else { return Ok(None) };
            let copyset = copyset_of(&row, "number")?;
            let was_abandoned = is_under_way(&mut change, copyset).await?;
            let none = RepairProgress::default();
            hold(&mut change, host, copyset, &none, now).await?;
            let serial_next = self.database.catalog().serial_next(&mut change).await?;
            let mut job = job_of(&mut change, copyset, serial_next, now).await?;
            if let Some(job) = job.as_mut().filter(|_| was_abandoned) {
                // The previous host reported nothing, and may have left partial writes.
                let changed = changed_of(job);
                in_flight::clear_in_flight(&mut change, copyset, &changed).await?;
                job.suspect.clear();
            }
            Ok(job)
        }).await
    }

    /// Stores the progress of a repair, and returns the copyset's state; `None` if `host` does not
    /// repair the copyset any more.
    pub(in crate::database) async fn report_progress(
        self,
        host: PartyId,
        call: &ReportRepair,
        now: Millis,
    ) -> Result<Option<RepairJob>, DatabaseError> {
        let ReportRepair { copyset, progress } = *call;
        self.database
            .transaction()
            .alone()
            .run(|mut change| async move {
                if !has(&mut change, host, copyset, now).await? {
                    return Ok(None);
                }
                hold(&mut change, host, copyset, &progress, now).await?;
                let serial_next = self.database.catalog().serial_next(&mut change).await?;
                job_of(&mut change, copyset, serial_next, now).await
            })
            .await
    }

    /// The units on which `host` may change the copyset's segments; `None` if it does not repair
    /// the copyset. These are the members being rebuilt, and during a comparison also those in
    /// sync.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn rights(
        self,
        host: PartyId,
        copyset: CopysetId,
        now: Millis,
    ) -> Result<Option<Vec<UnitId>>, DatabaseError> {
        let mut moment = self.database.moment().await?;
        if !has(&mut moment, host, copyset, now).await? {
            return Ok(None);
        }
        let Some(job) = job_of(&mut moment, copyset, 0, now).await? else {
            return Ok(None);
        };
        Ok(Some(changed_of(&job)))
    }

    /// Ends a repair. A member that has missed nothing since the last pass found nothing to copy is
    /// in sync, and the member that it replaces is removed.
    pub(in crate::database) async fn end(
        self,
        host: PartyId,
        call: &EndRepair,
        now: Millis,
    ) -> Result<bool, DatabaseError> {
        let EndRepair { copyset, end } = call;
        let copyset = *copyset;
        refuse_long(end)?;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                if !has(&mut change, host, copyset, now).await? {
                    return Ok(false);
                }
                // The host has not examined the others: those in sync stay so.
                let job = job_of(&mut change, copyset, 0, now).await?;
                let examined = job.as_ref().map(changed_of).unwrap_or_default();
                let is_examined = |unit: &&UnitId| examined.contains(unit);
                for unit in end.out_of_sync.iter().filter(is_examined) {
                    mark_out_of_sync(&mut change, copyset, *unit, now).await?;
                }
                for (unit, missed) in &end.in_sync {
                    mark_in_sync(&mut change, copyset, *unit, *missed, now).await?;
                }
                let copied_to = end.copied_to.as_ref().unwrap_or(&examined);
                let is_unfinished =
                    |unit: &&UnitId| !end.in_sync.iter().any(|(in_sync, _)| in_sync == *unit);
                let unfinished: Vec<UnitId> =
                    copied_to.iter().filter(is_unfinished).copied().collect();
                in_flight::clear_in_flight(&mut change, copyset, &unfinished).await?;
                in_flight::forget_unneeded(&mut change).await?;
                suspicions::forget_suspicions(&mut change).await?;
                let is_rebuilding = is_rebuilding(&mut change, copyset).await?;
                if !is_rebuilding {
                    forget_degraded(&mut change, copyset).await?;
                }
                release(&mut change, copyset, end, is_rebuilding, now).await?;
                draining::forget_drained(&mut change, now).await?;
                hosts::assign_all(&mut change).await?;
                Ok(true)
            })
            .await
    }
}

/// Refuses a report that names more units than a copyset has.
fn refuse_long(end: &RepairOutcome) -> Result<(), DatabaseError> {
    let copied_to = end.copied_to.as_ref().map_or(0, Vec::len);
    let named = [
        end.in_sync.len(),
        end.out_of_sync.len(),
        end.full.len(),
        copied_to,
    ];
    match named.iter().max() {
        Some(most) if *most > REPAIR_UNITS_MAX => Err(DatabaseError::Refused {
            reason: format!("{most} units are more than a copyset has"),
        }),
        _ => Ok(()),
    }
}

/// The part of a failure's text that is stored.
fn shortened(problem: &str) -> String {
    problem.chars().take(PROBLEM_CHARACTERS_MAX).collect()
}

pub(in crate::database) fn copyset_of(
    row: &sqlx::any::AnyRow,
    column: &str,
) -> Result<CopysetId, DatabaseError> {
    let number: u16 = rows::small(row, column)?;
    CopysetId::new(number).ok_or_else(|| DatabaseError::Damaged {
        what: format!("copyset {number}"),
    })
}

/// Whether `host` repairs it. It does not any more if it has since reported a member as suspect and
/// another host is available.
async fn has(
    connection: &mut AnyConnection,
    host: PartyId,
    copyset: CopysetId,
    now: Millis,
) -> Result<bool, DatabaseError> {
    let found = sqlx::query(
        "SELECT number FROM copysets WHERE number = $1 AND repairer = $2 AND repairer_until_ms > $3 \
         AND (suspected_by IS NULL OR suspected_by <> $2 OR NOT EXISTS \
             (SELECT 1 FROM host_reports WHERE party <> $2 AND heard_ms > $4))",
    )
    .bind(i64::from(copyset.number()))
    .bind(host.to_string())
    .bind(now.0)
    .bind(now.0.saturating_sub(HEARD_MS))
    .fetch_optional(connection)
    .await?;
    Ok(found.is_some())
}

/// Whether a host repairs it, or did and has not reported the result.
async fn is_under_way(
    connection: &mut AnyConnection,
    copyset: CopysetId,
) -> Result<bool, DatabaseError> {
    let repairer: Option<String> =
        sqlx::query_scalar("SELECT repairer FROM copysets WHERE number = $1")
            .bind(i64::from(copyset.number()))
            .fetch_one(connection)
            .await?;
    Ok(repairer.is_some())
}

async fn hold(
    change: &mut AnyConnection,
    host: PartyId,
    copyset: CopysetId,
    progress: &RepairProgress,
    now: Millis,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE copysets SET repairer = $2, repairer_last = $2, repairer_until_ms = $3, \
         repair_done = $4, repair_all = $5 WHERE number = $1",
    )
    .bind(i64::from(copyset.number()))
    .bind(host.to_string())
    .bind(now.0.saturating_add_unsigned(REPAIR_TERM_MS))
    .bind(progress.done.cast_signed())
    .bind(progress.all.cast_signed())
    .execute(change)
    .await?;
    Ok(())
}

/// The first and the last segment number of a copyset, as stored.
fn segments_of(copyset: CopysetId) -> (i64, i64) {
    let serials = SegmentId::SERIAL_END.cast_signed();
    let first = i64::from(copyset.number()) * serials;
    (first, first + serials - 1)
}

/// Forgets which segments of a copyset were degraded: all of its members are in sync.
async fn forget_degraded(
    change: &mut AnyConnection,
    copyset: CopysetId,
) -> Result<(), DatabaseError> {
    let (first, last) = segments_of(copyset);
    sqlx::query("DELETE FROM degraded_segments WHERE segment BETWEEN $1 AND $2")
        .bind(first)
        .bind(last)
        .execute(&mut *change)
        .await?;
    deleted_volumes::forget_clean(change).await
}

/// Releases a copyset from the host that repaired it, stores the outcome, and sets when repair is
/// retried if it failed.
async fn release(
    change: &mut AnyConnection,
    copyset: CopysetId,
    end: &RepairOutcome,
    is_rebuilding: bool,
    now: Millis,
) -> Result<(), DatabaseError> {
    let number = i64::from(copyset.number());
    let tries: i64 = sqlx::query_scalar("SELECT repair_tries FROM copysets WHERE number = $1")
        .bind(number)
        .fetch_one(&mut *change)
        .await?;
    let is_lasting = !end.full.is_empty() || end.damaged > 0;
    let retry_ms = match (&end.problem, is_lasting) {
        (None, _) => 0,
        (Some(_), false) => (RETRY_MS << tries.clamp(0, 8)).min(RETRY_MS_MAX),
        (Some(_), true) => RETRY_MS_MAX,
    };
    sqlx::query(
        "UPDATE copysets SET repairer = NULL, repairer_until_ms = $5, repair_after_ms = $2, \
         repair_tries = CASE WHEN $2 > $5 THEN repair_tries + 1 ELSE 0 END, \
         repair_problem = $3, suspected_by = CASE WHEN $8 = 1 THEN suspected_by ELSE NULL END, \
         scrub_requested = CASE WHEN $4 = 1 OR (scrub_requested = 2 AND $7 = 1) THEN 0 \
         ELSE scrub_requested END, \
         scrubbed_ms = CASE WHEN $4 = 1 THEN $5 ELSE scrubbed_ms END, \
         corrupt_slots = CASE WHEN $4 = 1 THEN $6 ELSE corrupt_slots END WHERE number = $1",
    )
    .bind(number)
    .bind(now.0.saturating_add(retry_ms))
    .bind(end.problem.as_deref().map(shortened))
    .bind(i64::from(end.scrubbed))
    .bind(now.0)
    .bind(end.damaged.cast_signed())
    .bind(i64::from(end.compared))
    .bind(i64::from(is_rebuilding))
    .execute(change)
    .await?;
    Ok(())
}

async fn job_of(
    connection: &mut AnyConnection,
    id: CopysetId,
    serial_next: u64,
    now: Millis,
) -> Result<Option<RepairJob>, DatabaseError> {
    let all = units::copysets_of(&mut *connection).await?;
    let Some(copyset) = all.into_iter().find(|copyset| copyset.id == id) else {
        return Ok(None);
    };
    let number = i64::from(id.number());
    let missed = sqlx::query("SELECT unit, misses FROM copyset_members WHERE copyset = $1")
        .bind(number)
        .fetch_all(&mut *connection)
        .await?;
    let (first, last) = segments_of(id);
    let open = sqlx::query(
        "SELECT segment, slots FROM open_segments WHERE segment BETWEEN $1 AND $2 ORDER BY segment",
    )
    .bind(first)
    .bind(last)
    .fetch_all(&mut *connection)
    .await?;
    let uncommitted = sqlx::query("SELECT first, end_before FROM serial_ranges ORDER BY first")
        .fetch_all(&mut *connection)
        .await?;
    let scrub = sqlx::query("SELECT scrub_requested, scrubbed_ms FROM copysets WHERE number = $1")
        .bind(number)
        .fetch_one(&mut *connection)
        .await?;
    let suspect = in_flight::suspect_of(&mut *connection, id).await?;
    let requested: i64 = scrub.try_get("scrub_requested")?;
    let scrubbed: i64 = scrub.try_get("scrubbed_ms")?;
    let is_due = scrubbed <= now.0.saturating_sub(SCRUB_EVERY_MS);
    Ok(Some(RepairJob {
        copyset,
        missed: missed
            .iter()
            .map(|row| Ok((rows::spelled(row, "unit")?, rows::number(row, "misses")?)))
            .collect::<Result<_, DatabaseError>>()?,
        open: open
            .iter()
            .map(|row| {
                Ok(catalog::OpenSegment {
                    segment: segment_of(row)?,
                    slots: rows::small(row, "slots")?,
                })
            })
            .collect::<Result<_, DatabaseError>>()?,
        uncommitted: uncommitted
            .iter()
            .map(|row| Ok(rows::number(row, "first")?..rows::number(row, "end_before")?))
            .collect::<Result<_, DatabaseError>>()?,
        serial_next,
        suspect,
        is_comparison: requested > 0 || is_due,
        is_scrub: requested == 1 || is_due,
    }))
}

/// The members that a repairing host may change: those being rebuilt, and during a comparison also
/// those in sync.
fn changed_of(job: &RepairJob) -> Vec<UnitId> {
    let is_changed = |(_, state): &(UnitId, MemberState)| match state {
        MemberState::Rebuilding => true,
        MemberState::InSync => job.is_comparison,
        MemberState::Draining => false,
    };
    let changed = job.copyset.member_states().filter(is_changed);
    changed.map(|(unit, _)| unit).collect()
}

async fn mark_out_of_sync(
    change: &mut AnyConnection,
    copyset: CopysetId,
    unit: UnitId,
    now: Millis,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE copyset_members SET misses = misses + 1, missed_ms = $3, since_ms = $3, \
         state = 'rebuilding', in_flight_set = NULL \
         WHERE copyset = $1 AND unit = $2 AND state <> 'draining'",
    )
    .bind(i64::from(copyset.number()))
    .bind(unit.to_string())
    .bind(now.0)
    .execute(change)
    .await?;
    Ok(())
}

async fn mark_in_sync(
    change: &mut AnyConnection,
    copyset: CopysetId,
    unit: UnitId,
    missed: u64,
    now: Millis,
) -> Result<(), DatabaseError> {
    let number = i64::from(copyset.number());
    let done = sqlx::query(
        "UPDATE copyset_members SET state = 'in_sync', in_flight_set = NULL, is_unknown = 0, since_ms = $4 \
         WHERE copyset = $1 AND unit = $2 AND misses = $3 AND state = 'rebuilding'",
    )
    .bind(number)
    .bind(unit.to_string())
    .bind(missed.cast_signed())
    .bind(now.0)
    .execute(&mut *change)
    .await?;
    if done.rows_affected() > 0 {
        // Its replacement is in sync.
        sqlx::query(
            "DELETE FROM copyset_members WHERE copyset = $1 AND state = 'draining' AND position = \
             (SELECT n.position FROM copyset_members n WHERE n.copyset = $1 AND n.unit = $2)",
        )
        .bind(number)
        .bind(unit.to_string())
        .execute(change)
        .await?;
    }
    Ok(())
}

async fn is_rebuilding(
    connection: &mut AnyConnection,
    copyset: CopysetId,
) -> Result<bool, DatabaseError> {
    let count: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM copyset_members WHERE copyset = $1 AND state = 'rebuilding'",
    )
    .bind(i64::from(copyset.number()))
    .fetch_one(connection)
    .await?;
    Ok(count > 0)
}
