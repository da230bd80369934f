//! Reports of hosts on units that rejoined (docs/internals/rejoined-units.md).
//!
//! Invariant: a host's report on a unit is applied once until all copysets of that unit are in sync
//! again; and once more if the unit turns out to be older and was not reported as such.

use api::host::catalog_calls::SuspectUnit;
use api::host::{NOTED_MAX, Suspicion};
use auth::{Kind, Subject};
use base::{PartyId, UnitId};
use sqlx::AnyConnection;
use world::Millis;

use crate::database::repair::degraded::suspect_unit;
use crate::database::tenancy::audit_log::Origin;
use crate::database::{DatabaseError, Repair, hosts, rows};

/// Members that are being rebuilt in any copyset of the unit.
const REBUILDING_BESIDE: &str = "SELECT 1 FROM copyset_members m JOIN copyset_members o \
     ON o.copyset = m.copyset WHERE o.state = 'rebuilding' AND m.unit = ";

impl Repair<'_> {
    /// Applies the report of `host` that a unit has rejoined. `false` if an earlier report is not
    /// settled: the host then reports again.
    pub(in crate::database) async fn suspect(
        self,
        host: PartyId,
        call: &SuspectUnit,
        now: Millis,
    ) -> Result<bool, DatabaseError> {
        let SuspectUnit { unit, suspicion } = *call;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                if !is_known(&mut change, unit).await? {
                    // It was removed, or was never a unit: nothing is rebuilt from it.
                    return Ok(true);
                }
                let is_older = match suspicion {
                    Suspicion::NothingLost => {
                        try_again(&mut change, unit).await?;
                        return Ok(true);
                    }
                    Suspicion::Restarted => false,
                    Suspicion::Older => true,
                };
                if is_older {
                    // The lease count recorded on it is lost; the next lease records it again.
                    sqlx::query("UPDATE units SET leases = 0 WHERE id = $1")
                        .bind(unit.to_string())
                        .execute(&mut *change)
                        .await?;
                }
                if is_taken(&mut change, host, unit, is_older).await? {
                    return Ok(false);
                }
                try_again(&mut change, unit).await?;
                take(&mut change, host, unit, is_older).await?;
                let in_flight_set = match is_older {
                    true => None,
                    false => Some(self.in_flight_set(&mut change, now).await?),
                };
                let has_turned = suspect_unit(&mut change, unit, in_flight_set, now).await?;
                // Otherwise a host could repeat the report, and fill the log, without end.
                if has_turned || is_taken(&mut change, host, unit, is_older).await? {
                    let what = if is_older { "older" } else { "restarted" };
                    let by = Origin {
                        at: now,
                        who: name_of(&mut change, host).await?,
                        key: None,
                        address: None,
                    };
                    by.note(&mut change, "suspicion", &format!("{unit} {what}"))
                        .await?;
                }
                if has_turned {
                    hosts::assign_all(&mut change).await?;
                }
                Ok(true)
            })
            .await
    }

    /// Records the lease counts that hosts have durably recorded on units. A count larger than the
    /// number of granted leases is refused.
    pub(in crate::database) async fn record_leases(
        self,
        units: &[(UnitId, u64)],
    ) -> Result<(), DatabaseError> {
        if units.len() > NOTED_MAX {
            let reason = format!(
                "{} units are more than one report of lease counts may name",
                units.len()
            );
            return Err(DatabaseError::Refused { reason });
        }
        let lease_count = self.database.catalog().lease_count().await?;
        self.database
            .transaction()
            .run(|mut change| async move {
                for (unit, leases) in units {
                    sqlx::query("UPDATE units SET leases = $2 WHERE id = $1 AND leases < $2")
                        .bind(unit.to_string())
                        .bind((*leases).min(lease_count).cast_signed())
                        .execute(&mut *change)
                        .await?;
                }
                Ok(())
            })
            .await
    }

    /// The lease count that was recorded on each unit.
    pub(in crate::database) async fn recorded_leases(
        self,
    ) -> Result<Vec<(UnitId, u64)>, DatabaseError> {
        let units = sqlx::query("SELECT id, leases FROM units ORDER BY id")
            .fetch_all(&self.database.reader)
            .await?;
        let noted = units
            .iter()
            .map(|row| Ok((rows::spelled(row, "id")?, rows::number(row, "leases")?)));
        noted.collect()
    }
}

/// The name of a host in the audit log.
async fn name_of(change: &mut AnyConnection, host: PartyId) -> Result<String, DatabaseError> {
    let name: Option<String> = sqlx::query_scalar("SELECT name FROM parties WHERE id = $1")
        .bind(host.to_string())
        .fetch_optional(change)
        .await?;
    let subject = name.and_then(|name| Subject::new(Kind::Host, &name).ok());
    Ok(subject.map_or_else(|| host.to_string(), |subject| subject.to_string()))
}

/// Retries the repair of a unit's copysets at once: what prevented it may be gone.
pub(in crate::database) async fn try_again(
    change: &mut AnyConnection,
    unit: UnitId,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE copysets SET repair_tries = 0, repair_after_ms = 0, repair_problem = NULL WHERE EXISTS \
         (SELECT 1 FROM copyset_members m WHERE m.copyset = number AND m.unit = $1)",
    )
    .bind(unit.to_string())
    .execute(change)
    .await?;
    Ok(())
}

async fn is_known(change: &mut AnyConnection, unit: UnitId) -> Result<bool, DatabaseError> {
    let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM units WHERE id = $1")
        .bind(unit.to_string())
        .fetch_one(change)
        .await?;
    Ok(count > 0)
}

/// Records the report, and that the host does not repair the unit's copysets.
async fn take(
    change: &mut AnyConnection,
    host: PartyId,
    unit: UnitId,
    is_older: bool,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO unit_suspicions (unit, host, is_older) VALUES ($1, $2, $3) \
         ON CONFLICT (unit, host) DO UPDATE SET is_older = excluded.is_older",
    )
    .bind(unit.to_string())
    .bind(host.to_string())
    .bind(i64::from(is_older))
    .execute(&mut *change)
    .await?;
    sqlx::query(
        "UPDATE copysets SET suspected_by = $1 WHERE EXISTS \
         (SELECT 1 FROM copyset_members m WHERE m.copyset = number AND m.unit = $2)",
    )
    .bind(host.to_string())
    .bind(unit.to_string())
    .execute(change)
    .await?;
    Ok(())
}

/// Whether the host has reported this before, and a copyset of the unit is still not in sync.
async fn is_taken(
    change: &mut AnyConnection,
    host: PartyId,
    unit: UnitId,
    is_older: bool,
) -> Result<bool, DatabaseError> {
    // If the unit is older, the earlier report is settled as soon as the unit itself is in sync.
    let is_open = match is_older {
        true => "SELECT 1 FROM copyset_members m WHERE m.state = 'rebuilding' AND m.unit = $1"
            .to_owned(),
        false => format!("{REBUILDING_BESIDE} $1"),
    };
    let statement = format!(
        "SELECT d.is_older FROM unit_suspicions d WHERE d.unit = $1 AND d.host = $2 \
         AND EXISTS ({is_open})"
    );
    let reported: Option<i64> = sqlx::query_scalar(&statement)
        .bind(unit.to_string())
        .bind(host.to_string())
        .fetch_optional(change)
        .await?;
    Ok(reported.is_some_and(|reported| reported >= i64::from(is_older)))
}

/// Deletes reports on units whose copysets are in sync again.
pub(in crate::database) async fn forget_suspicions(
    change: &mut AnyConnection,
) -> Result<(), DatabaseError> {
    let statement = format!(
        "DELETE FROM unit_suspicions WHERE NOT EXISTS ({REBUILDING_BESIDE} unit_suspicions.unit)"
    );
    sqlx::query(&statement).execute(change).await?;
    Ok(())
}
