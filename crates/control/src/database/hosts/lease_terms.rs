//! The terms of leases: which have expired because the host has not reported.
//!
//! Terms are measured by one clock: PostgreSQL's, which several controllers share, or this
//! machine's for SQLite, which has one controller.
//!
//! * A host's leases hold for a fixed time after its last report. It reports before it gets one, so
//!   none is expired when it is granted.
//! * A host's report is recorded in the transaction that reads its leases.
//! * A lease is taken from a host only if a forced detach was requested, and only after the lease
//!   has expired.

use api::host::{Access, Fenced, HeldLease, Renewal, Renewed, Report};
use api::words::MessageCode;
use base::size::about_bytes;
use base::{AttachmentId, PartyId, VolumeId};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::timestamp::rfc3339;

use crate::database::attach::attachments::{AttachmentRow, attachment_row};
use crate::database::attach::journals;
use crate::database::{Backend, Database, DatabaseError, Hosts, hosts, rows, snapshots};

/// Attachments to be detached by force, of hosts that have not reported since $1.
const UNRESPONSIVE: &str = "SELECT a.*, p.name AS host_name, r.heard_ms, r.report FROM attachments a \
     JOIN parties p ON p.id = a.host LEFT JOIN host_reports r ON r.party = a.host \
     WHERE a.forced = 1 AND a.desired = 0 AND a.state <> 'detached' \
     AND COALESCE(r.heard_ms, 0) <= $1 ORDER BY a.id";

impl Database {
    /// The time by the clock that leases are measured with; `wall` is this machine's.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn now(&self, wall: Millis) -> Result<Millis, DatabaseError> {
        if self.backend == Backend::Sqlite {
            return Ok(wall);
        }
        let now: i64 = sqlx::query_scalar(
            "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
        )
        .fetch_one(&self.reader)
        .await?;
        Ok(Millis(now))
    }
}

impl Hosts<'_> {
    /// Records that `host` is alive, without a report.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn record_heard(self, host: PartyId, now: Millis) -> Result<(), DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move { hear(&mut change, host, now).await })
            .await
    }

    /// Renews the leases of `host`. Returns the leases that it has lost, and the
    /// journals that are no longer needed.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn renew(
        self,
        host: PartyId,
        renewal: &Renewal,
        now: Millis,
    ) -> Result<Renewed, DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                hear(&mut change, host, now).await?;
                let mut renewed = Renewed::default();
                for held in &renewal.leases {
                    if !holds(&mut change, host, held).await? {
                        renewed.lost.push(held.clone());
                    }
                }
                for volume in &renewal.journals {
                    // The raw row, since a row with damage in other columns counts as well.
                    let epoch: Option<i64> = sqlx::query_scalar(
                        "SELECT epoch FROM volumes v WHERE id = $1 AND deleting = 0 AND NOT EXISTS \
                     (SELECT 1 FROM attachments a WHERE a.volume = v.id AND a.host = $2 \
                     AND a.access = 'read-write' AND a.state <> 'detached')",
                    )
                    .bind(volume.to_string())
                    .bind(host.to_string())
                    .fetch_optional(&mut *change)
                    .await?;
                    if epoch.is_none() {
                        let count: i64 =
                            sqlx::query_scalar("SELECT COUNT(*) FROM volumes WHERE id = $1")
                                .bind(volume.to_string())
                                .fetch_one(&mut *change)
                                .await?;
                        if count == 0 {
                            renewed.deleted.push(*volume);
                        }
                    }
                    renewed.fenced.extend(epoch.map(|epoch| Fenced {
                        volume: *volume,
                        epoch: u32::try_from(epoch).unwrap_or(u32::MAX),
                    }));
                }
                Ok(renewed)
            })
            .await
    }

    /// Detaches by force on hosts whose leases have expired, and ends their epochs in the same
    /// transaction.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn end_forced(
        self,
        lease_ms: i64,
        now: Millis,
    ) -> Result<Vec<AttachmentId>, DatabaseError> {
        let heard_max = now.0.saturating_sub(lease_ms);
        let due = sqlx::query(UNRESPONSIVE)
            .bind(heard_max)
            .fetch_optional(&self.database.reader)
            .await?;
        if due.is_none() {
            return Ok(Vec::new());
        }
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let rows = sqlx::query(UNRESPONSIVE)
                    .bind(heard_max)
                    .fetch_all(&mut *change)
                    .await?;
                let mut ended = Vec::new();
                for row in &rows {
                    let attachment = attachment_row(row)?;
                    let host: String = row.try_get("host_name")?;
                    let heard: Option<i64> = row.try_get("heard_ms")?;
                    let report: Option<String> = row.try_get("report")?;
                    let report: Report = report
                        .and_then(|report| serde_json::from_str(&report).ok())
                        .unwrap_or_default();
                    let unresponsive = unresponsive(&host, heard);
                    let reason =
                        detach_by_force(&mut change, &attachment, &unresponsive, &report).await?;
                    sqlx::query(
                        "UPDATE attachments SET state = 'detached', problem = $1, problem_code = $4, ended_ms = $2, \
                     uri = NULL, tcp_uri = NULL, generation = generation + 1 WHERE id = $3",
                    )
                    .bind(reason)
                    .bind(now.0)
                    .bind(attachment.id.to_string())
                    .bind(MessageCode::DetachedByForce.as_str())
                    .execute(&mut *change)
                    .await?;
                    hosts::request_cleaning(&mut change).await?;
                    hosts::assign(&mut change, attachment.host).await?;
                    ended.push(attachment.id);
                }
                Ok(ended)
            })
            .await
    }
}

fn unresponsive(host: &str, heard: Option<i64>) -> String {
    match heard {
        Some(heard) => format!(
            "host {host:?}, which last reported at {}",
            rfc3339(Millis(heard))
        ),
        None => format!("host {host:?}, which has never reported"),
    }
}

/// Begins a new epoch of a writable volume; returns what was lost.
async fn detach_by_force(
    change: &mut AnyConnection,
    attachment: &AttachmentRow,
    unresponsive: &str,
    report: &Report,
) -> Result<String, DatabaseError> {
    if attachment.access == Access::ReadOnly || attachment.epoch.is_none() {
        return Ok(format!(
            "detached by force without an answer from {unresponsive}"
        ));
    }
    let volume = attachment.volume;
    sqlx::query("UPDATE volumes SET epoch = epoch + 1 WHERE id = $1")
        .bind(volume.to_string())
        .execute(&mut *change)
        .await?;
    snapshots::settle(&mut *change, volume).await?;
    let at = where_it_is(&mut *change, volume).await?;
    let said = report
        .volumes
        .iter()
        .find(|volume| volume.attachment == attachment.id);
    let left = said.map(|one| about_bytes(one.engine.journal_used_bytes));
    let left = left.map_or_else(String::new, |left| format!(" ({left} in its last report)"));
    let taken = format!("taken by force from {unresponsive}: the volume is {at}");
    journals::record_forced_detach(change, volume, &taken, &left).await
}

/// The version that a volume is at, as text.
pub(in crate::database) async fn where_it_is(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<String, DatabaseError> {
    let head = sqlx::query(
        "SELECT s.number, s.created_ms FROM volumes v JOIN versions s \
         ON s.volume = v.head_volume AND s.number = v.head_number WHERE v.id = $1",
    )
    .bind(volume.to_string())
    .fetch_optional(connection)
    .await?;
    Ok(match head {
        None => "empty, as it was created".to_owned(),
        Some(head) => {
            let created = Millis(head.try_get("created_ms")?);
            let number = rows::number(&head, "number")?;
            format!("at version {number} of {}", rfc3339(created))
        }
    })
}

async fn hear(change: &mut AnyConnection, host: PartyId, now: Millis) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO host_reports (party, heard_ms, report_number, report) VALUES ($1, $2, 0, '{}') \
         ON CONFLICT (party) DO UPDATE SET heard_ms = excluded.heard_ms",
    )
    .bind(host.to_string())
    .bind(now.0)
    .execute(change)
    .await?;
    Ok(())
}

async fn holds(
    change: &mut AnyConnection,
    host: PartyId,
    held: &HeldLease,
) -> Result<bool, DatabaseError> {
    let row = sqlx::query(
        "SELECT a.id FROM attachments a JOIN volumes v ON v.id = a.volume WHERE a.id = $1 \
         AND a.host = $2 AND a.state <> 'detached' AND a.epoch = $3 AND v.epoch = $3",
    )
    .bind(held.attachment.to_string())
    .bind(host.to_string())
    .bind(i64::from(held.epoch))
    .fetch_optional(change)
    .await?;
    Ok(row.is_some())
}
