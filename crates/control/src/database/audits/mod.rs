//! Audits of volumes: what some units alone hold of a volume, as determined by a host
//! (docs/explanation/leakage.md).
//!
//! An audit that has not ended holds its version and lets its host read it, so it ends when its
//! host stops reporting progress. Results are kept for a day, or until they are deleted, up to a
//! limit for each volume. A user who may read the volume may request an audit and read the result:
//! for a volume that is not encrypted it contains names and lengths of files. The user who
//! requested an audit and those who administer the volume may delete it even if they may not read
//! the volume; the result is not shown to them then.

mod limits;

use api::host::{AuditReport, DesiredAudit};
use api::types::{AuditPlacement, AuditResult};
use api::words::AuditState;
use base::{AuditId, PartyId, SnapshotId, UnitId, VolumeId};
use catalog::VersionKey;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::hosts::{self, jobs};
use crate::database::rows::{self, SnapshotState, VolumeRow};
use crate::database::tenancy::audit_log;
use crate::database::tenancy::rights::{self, Rights};
use crate::database::{Database, DatabaseError, Job, Need, ObjectKind, Principal, Right};

/// How long results are kept, in milliseconds.
const KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// A new audit.
#[derive(Debug, Clone)]
pub struct NewAudit {
    /// The id.
    pub id: AuditId,
    /// The units that are assumed to be compromised.
    pub units: Vec<UnitId>,
    /// The snapshot that was named, if one was.
    pub snapshot: Option<SnapshotId>,
    /// Whether files are listed.
    pub files: bool,
    /// How blocks are placed on units now.
    pub placement: AuditPlacement,
    /// How much the journal of the volume's host holds that is in no version, in bytes; `None` if
    /// it is unknown or irrelevant.
    pub journal_bytes: Option<u64>,
    /// The host that runs it, and whether that host has the volume attached: then the principal
    /// needs no right on the host.
    pub host: (PartyId, bool),
}

/// An audit.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditOfVolume {
    /// The id.
    pub id: AuditId,
    /// The volume.
    pub volume: VolumeId,
    /// The snapshot that was named, if one was.
    pub snapshot: Option<SnapshotId>,
    /// The user who requested it.
    pub principal: Option<PartyId>,
    /// That user's name. Shown to themselves and to those who administer the volume.
    pub principal_name: Option<String>,
    /// The audited version.
    pub version: VersionKey,
    /// The name of the host that runs it.
    pub host_name: String,
    /// The units that are assumed to be compromised.
    pub units: Vec<UnitId>,
    /// The state.
    pub state: AuditState,
    /// How much of the volume was covered, in bytes.
    pub done_bytes: u64,
    /// The size of the version, in bytes.
    pub size_bytes: u64,
    /// Why it failed.
    pub message: Option<String>,
    /// The result, for those who may read the volume. Lists leave it out.
    pub result: Option<AuditResult>,
    /// How blocks were placed on units when it was requested.
    pub placement: Option<AuditPlacement>,
    /// See [`NewAudit::journal_bytes`].
    pub journal_bytes: Option<u64>,
    /// When it was requested.
    pub created: Millis,
    /// When it ended.
    pub ended: Option<Millis>,
}

/// The audited version: that of the named snapshot, or the newest one.
async fn version_of(
    change: &mut AnyConnection,
    principal: &Principal,
    row: &VolumeRow,
    snapshot: Option<SnapshotId>,
) -> Result<(VersionKey, u64), DatabaseError> {
    let nothing = |what: String| DatabaseError::Refused {
        reason: format!("{what} has no data on the units yet"),
    };
    let Some(snapshot) = snapshot else {
        let head = row
            .head
            .ok_or_else(|| nothing(format!("volume {:?}", row.name)))?;
        return Ok((head, row.size_bytes));
    };
    let need = Need::Have(Right::Read);
    let taken = rights::check_snapshot(change, principal, snapshot, need).await?;
    if taken.volume != row.id {
        return Err(DatabaseError::Refused {
            reason: format!(
                "snapshot {:?} does not belong to volume {:?}",
                taken.name, row.name
            ),
        });
    }
    let name = format!("snapshot {:?}", taken.name);
    match taken.state {
        SnapshotState::Completed(version) => {
            Ok((version.ok_or_else(|| nothing(name))?, taken.size_bytes))
        }
        SnapshotState::Pending => Err(DatabaseError::Refused {
            reason: format!("{name} is not completed yet"),
        }),
        SnapshotState::Error { reason } => Err(DatabaseError::Refused {
            reason: format!("{name} failed: {reason}"),
        }),
    }
}

/// Audits of volumes.
#[derive(Clone, Copy, Debug)]
pub struct Audits<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Audits<'_> {
    /// Requests an audit of a volume from a host.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`] unless the principal may read the
    /// volume, and the host is for them or has it; [`DatabaseError::Refused`] if nothing was
    /// written to it yet, it is being deleted, the snapshot is not of it or not completed, or
    /// enough of it are under way.
    pub async fn begin(
        self,
        principal: &Principal,
        volume: &str,
        new: &NewAudit,
        now: Millis,
    ) -> Result<AuditOfVolume, DatabaseError> {
        let (units, placement) = (&json(&new.units)?, &json(&new.placement)?);
        self.database.transaction_for(principal).run(|mut change| async move {
            let need = Need::Have(Right::Read);
            let row = rights::volume_for(&mut change, principal, volume, need).await?;
            rights::refuse_if_deleting(&row)?;
            let (version, size_bytes) =
                version_of(&mut change, principal, &row, new.snapshot).await?;
            let (host, has_it) = new.host;
            if !has_it {
                rights::check_host(&mut change, principal, host, None).await?;
            }
            limits::make_room(&mut change, principal, &row).await?;
            limits::check_room(&mut change, &row).await?;
            sqlx::query(
                "INSERT INTO volume_audits (id, volume, snapshot, host, version_volume, \
                 version_number, units, files, size_bytes, state, created_ms, reported_ms, principal, \
                 placement, journal_bytes) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11, $12, $13, $14)",
            )
            .bind(new.id.to_string())
            .bind(row.id.to_string())
            .bind(new.snapshot.map(|snapshot| snapshot.to_string()))
            .bind(host.to_string())
            .bind(version.volume.to_string())
            .bind(version.number.cast_signed())
            .bind(units)
            .bind(i64::from(new.files))
            .bind(size_bytes.cast_signed())
            .bind(AuditState::Waiting.as_str())
            .bind(now.0)
            .bind(principal.party.id.to_string())
            .bind(placement)
            .bind(new.journal_bytes.map(u64::cast_signed))
            .execute(&mut *change)
            .await?;
            hosts::assign(&mut change, host).await?;
            let place = audit_log::place(&mut change, host, None).await?;
            let target = format!("{} of {} {} on {place}", new.id, row.id, row.name);
            principal.note(&mut change, "audit-volume", target).await?;
            one(&mut change, row.id, new.id, now).await
        }).await
    }

    /// An audit of a volume that the principal may read.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], also if its result has expired;
    /// [`DatabaseError::Forbidden`].
    pub async fn find(
        self,
        principal: &Principal,
        volume: &str,
        id: AuditId,
        now: Millis,
    ) -> Result<(VolumeRow, AuditOfVolume), DatabaseError> {
        let mut moment = self.database.moment().await?;
        let need = Need::Have(Right::Read);
        let row = rights::volume_for(&mut moment, principal, volume, need).await?;
        let rights = rights::volume_rights(&mut moment, principal, &row).await?;
        let audit = one(&mut moment, row.id, id, now).await?;
        Ok((row, visible_part(audit, &rights, principal)))
    }

    /// All audits of a volume that the principal may read, newest first, without their results.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`].
    pub async fn list(
        self,
        principal: &Principal,
        volume: &str,
        now: Millis,
    ) -> Result<(VolumeRow, Vec<AuditOfVolume>), DatabaseError> {
        let mut moment = self.database.moment().await?;
        let need = Need::Have(Right::Read);
        let row = rights::volume_for(&mut moment, principal, volume, need).await?;
        let rights = rights::volume_rights(&mut moment, principal, &row).await?;
        // All results together may exceed the memory of a controller.
        let statement = format!(
            "SELECT {COLUMNS}, CAST(NULL AS TEXT) AS result FROM {TABLES} \
             WHERE a.volume = $1 AND COALESCE(a.ended_ms, $2) >= $2 \
             ORDER BY a.created_ms DESC, a.id DESC"
        );
        let found = sqlx::query(&statement)
            .bind(row.id.to_string())
            .bind(now.0.saturating_sub(KEPT_MS))
            .fetch_all(&mut *moment)
            .await?;
        let audits = found.iter().map(audit_of_volume);
        let audits = audits.map(|audit| Ok(visible_part(audit?, &rights, principal)));
        let audits = audits.collect::<Result<_, DatabaseError>>()?;
        Ok((row, audits))
    }

    /// Cancels an audit that has not ended, and deletes its result. Returns it as it was, with the
    /// result if the principal may read the volume.
    ///
    /// # Errors
    /// As [`Self::find`], but [`DatabaseError::Forbidden`] for a principal who neither requested it
    /// nor administers the volume.
    pub async fn delete(
        self,
        principal: &Principal,
        volume: &str,
        id: AuditId,
        now: Millis,
    ) -> Result<(VolumeRow, AuditOfVolume), DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                // Cluster administrators may not read it, and a right may have been revoked.
                let need = Need::SeeToChange;
                let row = rights::volume_for(&mut change, principal, volume, need).await?;
                let rights = rights::volume_rights(&mut change, principal, &row).await?;
                let audit = one(&mut change, row.id, id, now).await?;
                if audit.principal != Some(principal.party.id) {
                    let need = Need::Have(Right::Administer);
                    rights::volume_for(&mut change, principal, volume, need).await?;
                }
                let gone = sqlx::query("DELETE FROM volume_audits WHERE id = $1 RETURNING host")
                    .bind(id.to_string())
                    .fetch_all(&mut *change)
                    .await?;
                jobs::assign(&mut change, &gone).await?;
                let target = format!("{id} of {} {}", row.id, row.name);
                principal.note(&mut change, "delete-audit", target).await?;
                Ok((row, visible_part(audit, &rights, principal)))
            })
            .await
    }

    /// The audits that a host should run.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn on_host(self, host: PartyId) -> Result<Vec<DesiredAudit>, DatabaseError> {
        Job::Audit.desired(self.database, host, desired).await
    }

    /// Records the progress of a host; `false` if the audit no longer exists.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn record_report(
        self,
        host: PartyId,
        id: AuditId,
        report: &AuditReport,
        now: Millis,
    ) -> Result<bool, DatabaseError> {
        let (state, message, found) = match &report.end {
            None => (AuditState::Running, None, None),
            Some(Ok(found)) => (AuditState::Done, None, Some(json(found)?)),
            Some(Err(why)) => (AuditState::Error, Some(why.as_str()), None),
        };
        let ended = report.end.as_ref().map(|_| now.0);
        let found = &found;
        self.database.transaction().notify().run(|mut change| async move {
            let kept = sqlx::query(
                "UPDATE volume_audits SET state = $1, message = $2, result = $3, ended_ms = $4, \
                 done_bytes = $5, reported_ms = $8 WHERE id = $6 AND host = $7 AND ended_ms IS NULL",
            )
            .bind(state.as_str())
            .bind(message)
            .bind(found.as_deref())
            .bind(ended)
            .bind(report.done_bytes.cast_signed())
            .bind(id.to_string())
            .bind(host.to_string())
            .bind(now.0)
            .execute(&mut *change)
            .await?;
            if kept.rows_affected() > 0 && ended.is_some() {
                hosts::assign(&mut change, host).await?;
            }
            Ok(kept.rows_affected() > 0)
        }).await
    }

    /// Deletes expired results. Returns the number of audits.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn forget_old(self, now: Millis) -> Result<u64, DatabaseError> {
        let before = now.0.saturating_sub(KEPT_MS);
        let any = sqlx::query("SELECT 1 FROM volume_audits WHERE ended_ms < $1 LIMIT 1")
            .bind(before)
            .fetch_optional(&self.database.reader)
            .await?;
        if any.is_none() {
            return Ok(0);
        }
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let gone = sqlx::query("DELETE FROM volume_audits WHERE ended_ms < $1")
                    .bind(before)
                    .execute(&mut *change)
                    .await?;
                Ok(gone.rows_affected())
            })
            .await
    }
}

/// The part of an audit that is visible with these rights on its volume.
fn visible_part(audit: AuditOfVolume, rights: &Rights, principal: &Principal) -> AuditOfVolume {
    let is_own = audit.principal == Some(principal.party.id);
    let sees_principal = is_own || rights.allow(Need::Have(Right::Administer));
    let sees_result = rights.allow(Need::Have(Right::Read));
    AuditOfVolume {
        principal_name: audit.principal_name.filter(|_| sees_principal),
        result: audit.result.filter(|_| sees_result),
        ..audit
    }
}

/// The columns of an audit except its result, and the tables that they are read from.
const COLUMNS: &str = "a.id, a.volume, a.snapshot, a.principal, a.version_volume, a.version_number, \
    a.units, a.state, a.done_bytes, a.size_bytes, a.message, a.created_ms, a.ended_ms, \
    a.placement, a.journal_bytes, h.name AS host_name, p.name AS principal_name";
const TABLES: &str = "volume_audits a JOIN parties h ON h.id = a.host \
    LEFT JOIN parties p ON p.id = a.principal";

/// An audit that is running or whose result has not expired.
async fn one(
    connection: &mut AnyConnection,
    volume: VolumeId,
    id: AuditId,
    now: Millis,
) -> Result<AuditOfVolume, DatabaseError> {
    let statement = format!(
        "SELECT {COLUMNS}, a.result FROM {TABLES} \
         WHERE a.id = $1 AND a.volume = $2 AND COALESCE(a.ended_ms, $3) >= $3"
    );
    let row = sqlx::query(&statement)
        .bind(id.to_string())
        .bind(volume.to_string())
        .bind(now.0.saturating_sub(KEPT_MS))
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| DatabaseError::not_found(ObjectKind::Audit, id))?;
    audit_of_volume(&row)
}

fn audit_of_volume(row: &AnyRow) -> Result<AuditOfVolume, DatabaseError> {
    let found: Option<&str> = row.try_get("result")?;
    let placement: Option<&str> = row.try_get("placement")?;
    let journal_bytes: Option<i64> = row.try_get("journal_bytes")?;
    Ok(AuditOfVolume {
        id: rows::spelled(row, "id")?,
        volume: rows::spelled(row, "volume")?,
        snapshot: rows::spelled_if_any(row, "snapshot")?,
        principal: rows::spelled_if_any(row, "principal")?,
        principal_name: row.try_get("principal_name")?,
        version: version(row)?,
        host_name: row.try_get("host_name")?,
        units: read(row.try_get("units")?)?,
        state: rows::spelled(row, "state")?,
        done_bytes: rows::number(row, "done_bytes")?,
        size_bytes: rows::number(row, "size_bytes")?,
        message: row.try_get("message")?,
        result: found.map(read).transpose()?,
        placement: placement.map(read).transpose()?,
        journal_bytes: journal_bytes.map(i64::cast_unsigned),
        created: Millis(row.try_get("created_ms")?),
        ended: row.try_get::<Option<i64>, _>("ended_ms")?.map(Millis),
    })
}

fn version(row: &AnyRow) -> Result<VersionKey, DatabaseError> {
    Ok(VersionKey {
        volume: rows::spelled(row, "version_volume")?,
        number: rows::number(row, "version_number")?,
    })
}

/// Converts a row; `None` if the volume's row is damaged, which the list of volumes shows.
fn desired(row: &AnyRow) -> Result<Option<DesiredAudit>, DatabaseError> {
    let Ok(block_size) = rows::block_size(row) else {
        return Ok(None);
    };
    Ok(Some(DesiredAudit {
        id: rows::spelled(row, "id")?,
        volume: rows::spelled(row, "volume")?,
        version: version(row)?,
        size_bytes: rows::number(row, "size_bytes")?,
        block_size,
        units: read(row.try_get("units")?)?,
        files: rows::flag(row, "files")?,
    }))
}

fn json(of: &impl serde::Serialize) -> Result<String, DatabaseError> {
    serde_json::to_string(of).map_err(|error| DatabaseError::Refused {
        reason: format!("the report on an audit cannot be stored: {error}"),
    })
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, DatabaseError> {
    serde_json::from_str(text).map_err(|error| DatabaseError::Damaged {
        what: format!("an audit of a volume: {error}"),
    })
}
