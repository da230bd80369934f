//! Hosts: a counter that grows with every change of their desired state, their last report, and
//! their jobs.

pub(in crate::database) mod jobs;
pub(in crate::database) mod lease_terms;

use api::host::{HostJob, JobKind, JobResult, Report};
use base::PartyId;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::tenancy::audit_log;
use crate::database::{Database, DatabaseError, ObjectKind, Principal, rows};

/// A query for hosts, with more columns and a given end.
macro_rules! hosts {
    ($columns:literal, $end:literal) => {
        concat!(
            "SELECT h.party, p.name, h.reports_requested, \
             COALESCE(r.report_number, 0) AS report_number, r.heard_ms, r.free_bytes",
            $columns,
            " FROM hosts h JOIN parties p ON p.id = h.party \
             LEFT JOIN host_reports r ON r.party = h.party",
            $end
        )
    };
}

/// A host, and when it last reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRow {
    /// The host.
    pub host: PartyId,
    /// The name.
    pub name: String,
    /// The number of the last request for a report.
    pub reports_requested: u64,
    /// The number of the request that its last report answers.
    pub report_number: u64,
    /// When it last reported.
    pub heard: Option<Millis>,
    /// Free space on the units' file systems in bytes, from its last report.
    pub free_bytes: Option<u64>,
}

/// A host and its last report. The report may be long; use [`HostRow`] where it is not needed.
#[derive(Debug, Clone, PartialEq)]
pub struct HostReport {
    /// The host.
    pub host: HostRow,
    /// The report.
    pub report: Report,
}

/// Counters that tell a host what has changed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostCounters {
    /// Grows with every change of the host's desired state.
    pub assignments: u64,
    /// The number of the last request for a report.
    pub reports_requested: u64,
    /// Grows when there may be something to clean.
    pub cleaning_serial: u64,
}

/// Notifies `host` that its desired state has changed.
pub(in crate::database) async fn assign(
    change: &mut AnyConnection,
    host: PartyId,
) -> Result<(), DatabaseError> {
    sqlx::query("UPDATE hosts SET assignments = assignments + 1 WHERE party = $1")
        .bind(host.to_string())
        .execute(change)
        .await?;
    Ok(())
}

/// Notifies every host that its desired state has changed.
pub(in crate::database) async fn assign_all(
    change: &mut AnyConnection,
) -> Result<(), DatabaseError> {
    sqlx::query("UPDATE hosts SET assignments = assignments + 1")
        .execute(change)
        .await?;
    Ok(())
}

/// Notifies every host that there may be something to clean.
pub(in crate::database) async fn request_cleaning(
    change: &mut AnyConnection,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "UPDATE hosts SET assignments = assignments + 1, cleaning_serial = cleaning_serial + 1",
    )
    .execute(change)
    .await?;
    Ok(())
}

/// Hosts: their desired state, their reports, and their jobs.
#[derive(Clone, Copy, Debug)]
pub struct Hosts<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Hosts<'_> {
    /// The counters of a host.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn counters(self, host: PartyId) -> Result<HostCounters, DatabaseError> {
        let row = sqlx::query("SELECT * FROM hosts WHERE party = $1")
            .bind(host.to_string())
            .fetch_optional(&self.database.reader)
            .await?
            .ok_or_else(|| DatabaseError::not_found(ObjectKind::Host, host))?;
        Ok(HostCounters {
            assignments: rows::number(&row, "assignments")?,
            reports_requested: rows::number(&row, "reports_requested")?,
            cleaning_serial: rows::number(&row, "cleaning_serial")?,
        })
    }

    /// Records a host's report.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn record_report(
        self,
        host: PartyId,
        report: &Report,
        now: Millis,
    ) -> Result<(), DatabaseError> {
        let text = serde_json::to_string(report).map_err(|error| DatabaseError::Refused {
            reason: format!("the report cannot be stored: {error}"),
        })?;
        let text = &text;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                sqlx::query(
                    "INSERT INTO host_reports (party, heard_ms, report_number, report, free_bytes) \
                 VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (party) DO UPDATE SET heard_ms = excluded.heard_ms, \
                 report_number = excluded.report_number, report = excluded.report, \
                 free_bytes = excluded.free_bytes",
                )
                .bind(host.to_string())
                .bind(now.0)
                .bind(report.report_number.cast_signed())
                .bind(text)
                .bind(report.free_bytes.map(u64::cast_signed))
                .execute(&mut *change)
                .await?;
                Ok(())
            })
            .await
    }

    /// All hosts, by name.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn all(self) -> Result<Vec<HostRow>, DatabaseError> {
        sqlx::query(hosts!("", " ORDER BY p.name"))
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(host_row)
            .collect()
    }

    /// All hosts by name, with their last reports.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn reports(self) -> Result<Vec<HostReport>, DatabaseError> {
        sqlx::query(hosts!(", r.report", " ORDER BY p.name"))
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(report_row)
            .collect()
    }

    /// A host with its last report; `None` if there is no such host.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn report(self, host: PartyId) -> Result<Option<HostReport>, DatabaseError> {
        sqlx::query(hosts!(", r.report", " WHERE h.party = $1"))
            .bind(host.to_string())
            .fetch_optional(&self.database.reader)
            .await?
            .as_ref()
            .map(report_row)
            .transpose()
    }

    /// One host; `None` if there is no such host.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn get(self, host: PartyId) -> Result<Option<HostRow>, DatabaseError> {
        sqlx::query(hosts!("", " WHERE h.party = $1"))
            .bind(host.to_string())
            .fetch_optional(&self.database.reader)
            .await?
            .as_ref()
            .map(host_row)
            .transpose()
    }

    /// The hosts on which a user has any right.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn granted_to(self, user: PartyId) -> Result<Vec<PartyId>, DatabaseError> {
        sqlx::query(
            "SELECT h.party FROM hosts h WHERE EXISTS (SELECT 1 FROM grants g \
             WHERE g.party = $1 AND g.object = h.party)",
        )
        .bind(user.to_string())
        .fetch_all(&self.database.reader)
        .await?
        .iter()
        .map(|row| rows::spelled(row, "party"))
        .collect()
    }

    /// Requests a fresh report from the hosts that have reported after `since`. Returns their
    /// number.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn request_reports(self, since: Millis) -> Result<u64, DatabaseError> {
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let requested = sqlx::query(
                    "UPDATE hosts SET reports_requested = reports_requested + 1, \
                 assignments = assignments + 1 \
                 WHERE party IN (SELECT party FROM host_reports WHERE heard_ms > $1)",
                )
                .bind(since.0)
                .execute(&mut *change)
                .await?;
                Ok(requested.rows_affected())
            })
            .await
    }

    /// Inserts a job for `host`; returns its number.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn insert_job(
        self,
        principal: &Principal,
        host: PartyId,
        what: &JobKind,
    ) -> Result<i64, DatabaseError> {
        let text = job_text(what)?;
        let text = &text;
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let job = begin_job(&mut change, host, text, principal.by.at).await?;
                assign(&mut change, host).await?;
                let place = audit_log::place(&mut change, host, None).await?;
                principal
                    .note(&mut change, "assign-job", format!("{place}: {text}"))
                    .await?;
                Ok(job)
            })
            .await
    }

    /// Inserts a job for `host` that changes nothing and is not in the audit log; returns its
    /// number.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn insert_query(
        self,
        host: PartyId,
        what: &JobKind,
        now: Millis,
    ) -> Result<i64, DatabaseError> {
        let text = job_text(what)?;
        let text = &text;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let job = begin_job(&mut change, host, text, now).await?;
                assign(&mut change, host).await?;
                Ok(job)
            })
            .await
    }

    /// The jobs of `host` without an answer.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn jobs_of(self, host: PartyId) -> Result<Vec<HostJob>, DatabaseError> {
        sqlx::query("SELECT * FROM jobs WHERE host = $1 AND answer IS NULL ORDER BY id")
            .bind(host.to_string())
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(|row| {
                Ok(HostJob {
                    id: row.try_get("id")?,
                    kind: read(row.try_get("request")?)?,
                })
            })
            .collect()
    }

    /// The request of a job, unless no one waits for it any more.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn job(self, host: PartyId, job: i64) -> Result<Option<JobKind>, DatabaseError> {
        let what: Option<String> =
            sqlx::query_scalar("SELECT request FROM jobs WHERE id = $1 AND host = $2")
                .bind(job)
                .bind(host.to_string())
                .fetch_optional(&self.database.reader)
                .await?;
        what.as_deref().map(read).transpose()
    }

    /// Records the answer to a job. A job that no one waits for does not exist any more.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn answer_job(
        self,
        host: PartyId,
        job: i64,
        answer: &JobResult,
    ) -> Result<(), DatabaseError> {
        let text = serde_json::to_string(answer).map_err(|error| DatabaseError::Refused {
            reason: format!("the answer cannot be stored: {error}"),
        })?;
        let text = &text;
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                sqlx::query("UPDATE jobs SET answer = $1 WHERE id = $2 AND host = $3")
                    .bind(text)
                    .bind(job)
                    .bind(host.to_string())
                    .execute(&mut *change)
                    .await?;
                assign(&mut change, host).await
            })
            .await
    }

    /// The answer to a job, if there is one.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn job_answer(self, job: i64) -> Result<Option<JobResult>, DatabaseError> {
        let answer: Option<String> = sqlx::query_scalar("SELECT answer FROM jobs WHERE id = $1")
            .bind(job)
            .fetch_optional(&self.database.reader)
            .await?
            .ok_or_else(|| DatabaseError::not_found(ObjectKind::Job, job))?;
        answer.as_deref().map(read).transpose()
    }

    /// Deletes a job, and abandoned jobs created before `old`.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn forget_job(self, job: i64, old: Millis) -> Result<(), DatabaseError> {
        self.database
            .transaction()
            .run(|mut change| async move {
                sqlx::query("DELETE FROM jobs WHERE id = $1 OR created_ms < $2")
                    .bind(job)
                    .bind(old.0)
                    .execute(&mut *change)
                    .await?;
                Ok(())
            })
            .await
    }
}

fn job_text(what: &JobKind) -> Result<String, DatabaseError> {
    serde_json::to_string(what).map_err(|error| DatabaseError::Refused {
        reason: format!("the job cannot be stored: {error}"),
    })
}

async fn begin_job(
    change: &mut AnyConnection,
    host: PartyId,
    text: &str,
    now: Millis,
) -> Result<i64, DatabaseError> {
    let job = sqlx::query_scalar(
        "INSERT INTO jobs (host, request, created_ms) VALUES ($1, $2, $3) RETURNING id",
    )
    .bind(host.to_string())
    .bind(text)
    .bind(now.0)
    .fetch_one(change)
    .await?;
    Ok(job)
}

fn report_row(row: &AnyRow) -> Result<HostReport, DatabaseError> {
    let report: Option<&str> = row.try_get("report")?;
    Ok(HostReport {
        host: host_row(row)?,
        // A report that cannot be parsed is replaced by the next one within seconds.
        report: report
            .and_then(|report| serde_json::from_str(report).ok())
            .unwrap_or_default(),
    })
}

fn host_row(row: &AnyRow) -> Result<HostRow, DatabaseError> {
    let free_bytes: Option<i64> = row.try_get("free_bytes")?;
    Ok(HostRow {
        host: rows::spelled(row, "party")?,
        name: row.try_get("name")?,
        reports_requested: rows::number(row, "reports_requested")?,
        report_number: rows::number(row, "report_number")?,
        heard: row.try_get::<Option<i64>, _>("heard_ms")?.map(Millis),
        free_bytes: free_bytes.map(i64::cast_unsigned),
    })
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, DatabaseError> {
    serde_json::from_str(text).map_err(|error| DatabaseError::Damaged {
        what: format!("a job: {error}"),
    })
}
