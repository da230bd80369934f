//! Long jobs of hosts: preloads and audits of volumes. Each kind has a table; this file has what
//! the tables share: `volume`, `host`, `state`, `message` and `ended_ms`.
//!
//! A job that has not ended holds its version and lets its host read it. So it ends when its host
//! is disabled, loses its keys, or has not reported for long.

use api::words::{AuditState, PreloadState};
use base::{PartyId, VolumeId};
use sqlx::AnyConnection;
use sqlx::any::AnyRow;
use world::Millis;

use crate::database::{Database, DatabaseError, Hosts, hosts, rows};

/// The state of a failed job, the same for both kinds.
const ERROR: &str = PreloadState::Error.as_str();
const _: () = assert!(matches!(AuditState::Error.as_str().as_bytes(), b"error"));
const _: () = assert!(matches!(ERROR.as_bytes(), b"error"));

/// Why the jobs of a disabled host end.
pub(in crate::database) const IS_DISABLED: &str = "the host is disabled";

/// A kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Reads an image into a cache.
    Preload,
    /// Audits a volume.
    Audit,
}

impl Job {
    /// The table.
    const fn table(self) -> &'static str {
        match self {
            Self::Preload => "preloads",
            Self::Audit => "volume_audits",
        }
    }

    /// An SQL condition: the host has reported nothing of the job since `$1`, which is after the
    /// request.
    const fn is_unresponsive(self) -> &'static str {
        match self {
            Self::Preload => {
                "created_ms <= $1 AND NOT EXISTS (SELECT 1 FROM host_reports r \
                 WHERE r.party = preloads.host AND r.heard_ms > $1)"
            }
            // Other reports of the host do not count: they do not mention the audit.
            Self::Audit => "reported_ms <= $1",
        }
    }

    /// The jobs of this kind without an end that are assigned to $1, with their volumes.
    const fn desired_statement(self) -> &'static str {
        match self {
            Self::Preload => {
                "SELECT p.*, v.size_bytes, v.block_bytes, v.image FROM preloads p \
                 JOIN volumes v ON v.id = p.volume WHERE p.host = $1 AND p.ended_ms IS NULL \
                 AND v.image IS NOT NULL ORDER BY p.created_ms, p.volume"
            }
            Self::Audit => {
                "SELECT a.*, v.block_bytes FROM volume_audits a JOIN volumes v ON v.id = a.volume \
                 WHERE a.host = $1 AND a.ended_ms IS NULL ORDER BY a.created_ms, a.id"
            }
        }
    }

    /// The jobs that a host should run, oldest first. `read` converts a row; `None` if the volume's
    /// row is damaged, which the list of volumes shows.
    pub(in crate::database) async fn desired<T>(
        self,
        database: &Database,
        host: PartyId,
        read: impl Fn(&AnyRow) -> Result<Option<T>, DatabaseError>,
    ) -> Result<Vec<T>, DatabaseError> {
        sqlx::query(self.desired_statement())
            .bind(host.to_string())
            .fetch_all(&database.reader)
            .await?
            .iter()
            .filter_map(|row| read(row).transpose())
            .collect()
    }

    /// Ends the jobs of a host, for this reason.
    pub(in crate::database) async fn end_of_host(
        self,
        change: &mut AnyConnection,
        host: PartyId,
        reason: &str,
        now: Millis,
    ) -> Result<(), DatabaseError> {
        let statement = format!(
            "UPDATE {} SET state = $1, message = $2, ended_ms = $3 \
             WHERE host = $4 AND ended_ms IS NULL",
            self.table()
        );
        let ended = sqlx::query(&statement)
            .bind(ERROR)
            .bind(reason)
            .bind(now.0)
            .bind(host.to_string())
            .execute(&mut *change)
            .await?;
        match ended.rows_affected() {
            0 => Ok(()),
            _ => hosts::assign(change, host).await,
        }
    }

    /// Deletes the jobs of a volume, and notifies the hosts.
    pub(in crate::database) async fn forget(
        self,
        change: &mut AnyConnection,
        volume: VolumeId,
    ) -> Result<(), DatabaseError> {
        let statement = format!(
            "DELETE FROM {} WHERE volume = $1 RETURNING host",
            self.table()
        );
        let gone = sqlx::query(&statement)
            .bind(volume.to_string())
            .fetch_all(&mut *change)
            .await?;
        assign(change, &gone).await
    }
}

/// Ends the jobs of all kinds of a host, for this reason.
pub(in crate::database) async fn end_all_of_host(
    change: &mut AnyConnection,
    host: PartyId,
    reason: &str,
    now: Millis,
) -> Result<(), DatabaseError> {
    for job in [Job::Preload, Job::Audit] {
        job.end_of_host(&mut *change, host, reason, now).await?;
    }
    Ok(())
}

/// Notifies the hosts of these rows that their desired state has changed.
pub(in crate::database) async fn assign(
    change: &mut AnyConnection,
    rows: &[AnyRow],
) -> Result<(), DatabaseError> {
    for row in rows {
        hosts::assign(&mut *change, rows::spelled(row, "host")?).await?;
    }
    Ok(())
}

impl Hosts<'_> {
    /// Ends the jobs of a kind that were requested before `since` and not reported on since.
    /// Returns their number.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn end_unresponsive(
        self,
        job: Job,
        since: Millis,
        reason: &str,
        now: Millis,
    ) -> Result<u64, DatabaseError> {
        // It is called often and rarely finds any. Reading first avoids a write transaction.
        let (table, is_unresponsive) = (job.table(), job.is_unresponsive());
        let statement =
            format!("SELECT 1 FROM {table} WHERE ended_ms IS NULL AND {is_unresponsive}");
        let any = sqlx::query(&statement)
            .bind(since.0)
            .fetch_optional(&self.database.reader)
            .await?;
        if any.is_none() {
            return Ok(0);
        }
        let statement = format!(
            "UPDATE {table} SET state = $2, message = $3, ended_ms = $4 \
             WHERE ended_ms IS NULL AND {is_unresponsive} RETURNING host"
        );
        let statement = &statement;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let ended = sqlx::query(statement)
                    .bind(since.0)
                    .bind(ERROR)
                    .bind(reason)
                    .bind(now.0)
                    .fetch_all(&mut *change)
                    .await?;
                assign(&mut change, &ended).await?;
                Ok(ended.len() as u64)
            })
            .await
    }
}
