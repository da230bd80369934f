//! The observed state of attachments: reported by their host, or set without it.
//!
//! * A report is applied only if its generation is the current one: a late report on an older
//!   desired state changes nothing.
//! * `epoch` is set in the transaction that grants the lease. From then on the host's journal may
//!   be newer than the head, until the host reports `detached`.

use api::host::{Access, AttachmentReport, AttachmentState};
use api::types::Message;
use base::{AttachmentId, PartyId, VolumeId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::attach::attachments::of_volume;
use crate::database::attach::{journals, moves};
use crate::database::hosts::{self, lease_terms};
use crate::database::{Attachments, DatabaseError, rows, snapshots};

impl Attachments<'_> {
    /// Records that no volume is open on `host`: its earlier reports no longer hold.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn nothing_open(self, host: PartyId) -> Result<(), DatabaseError> {
        self.database.transaction().notify().run(|mut change| async move {
            sqlx::query(
                "UPDATE attachments SET reported_generation = 0, problem = NULL, problem_code = NULL, uri = NULL, \
                 tcp_uri = NULL, chain = NULL, chain_revision = NULL, chain_problem = NULL, state = CASE desired WHEN 1 THEN 'attaching' ELSE 'detaching' END \
                 WHERE host = $1 AND state <> 'detached'",
            )
            .bind(host.to_string())
            .execute(&mut *change)
            .await?;
            Ok(())
        }).await
    }

    /// Records a host's report on an attachment; `false` if the report is outdated, or the
    /// attachment is not the host's.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn record_report(
        self,
        host: PartyId,
        id: AttachmentId,
        report: &AttachmentReport,
        now: Millis,
    ) -> Result<bool, DatabaseError> {
        self.database
            .transaction()
            .notify()
            .run(|mut change| async move {
                let stored = store_report(&mut change, host, id, report, now).await?;
                let Some(stored) = stored else {
                    return Ok(false);
                };
                if report.state == AttachmentState::Detached {
                    let access: Access = rows::spelled(&stored, "access")?;
                    if access == Access::ReadWrite {
                        end_writer(&mut change, id, &stored, report.problem.as_ref()).await?;
                    }
                    moves::create_successor(&mut change, id, now).await?;
                    hosts::request_cleaning(&mut change).await?;
                    hosts::assign(&mut change, host).await?;
                }
                Ok(true)
            })
            .await
    }
}

/// Stores a host's report on its attachment. Returns the attachment's volume, access and epoch, or
/// `None` if the report is outdated.
async fn store_report(
    change: &mut AnyConnection,
    host: PartyId,
    id: AttachmentId,
    report: &AttachmentReport,
    now: Millis,
) -> Result<Option<AnyRow>, DatabaseError> {
    let is_end = report.state == AttachmentState::Detached;
    let stored = sqlx::query(
        "UPDATE attachments SET state = $1, problem = $2, problem_code = $16, reported_generation = generation, \
         size_bytes = $3, uri = $4, tcp_uri = $5, ended_ms = $6, \
         notice = COALESCE($11, notice), \
         notice_code = COALESCE($17, notice_code), device = $12, chain = $13, chain_revision = $14, \
         chain_problem = $15 WHERE id = $7 AND host = $8 AND generation = $9 \
         AND state <> 'detached' AND (desired = 0 OR $10 = 0) \
         RETURNING volume, access, epoch",
    )
    .bind(report.state.as_str())
    .bind(text(report.problem.as_ref()))
    .bind(report.size_bytes.map(u64::cast_signed))
    .bind(report.uri.clone())
    .bind(report.tcp_uri.clone())
    .bind(is_end.then_some(now.0))
    .bind(id.to_string())
    .bind(host.to_string())
    .bind(report.generation.cast_signed())
    .bind(i64::from(is_end))
    .bind(text(report.notice.as_ref()))
    .bind(report.device.clone())
    .bind(report.chain.map(|chain| chain.id.to_string()))
    .bind(report.chain.map(|chain| chain.revision.cast_signed()))
    .bind(report.chain_problem.clone())
    .bind(code(report.problem.as_ref()))
    .bind(code(report.notice.as_ref()))
    .fetch_optional(change)
    .await?;
    Ok(stored)
}

/// Completes the snapshots of a volume that its writer has closed, and forgets its journal.
/// `problem` is why the journal was discarded, if it was.
async fn end_writer(
    change: &mut AnyConnection,
    id: AttachmentId,
    stored: &AnyRow,
    problem: Option<&Message>,
) -> Result<(), DatabaseError> {
    let volume: VolumeId = rows::spelled(stored, "volume")?;
    snapshots::settle(&mut *change, volume).await?;
    // Without a lease the host did not write the journal.
    if stored.try_get::<Option<i64>, _>("epoch")?.is_some() {
        journals::forget(&mut *change, volume).await?;
    }
    if let Some(problem) = problem {
        // The journal was discarded: record what was lost.
        let at = lease_terms::where_it_is(&mut *change, volume).await?;
        sqlx::query("UPDATE attachments SET problem = $1 WHERE id = $2")
            .bind(format!("{problem}: the volume is {at}"))
            .bind(id.to_string())
            .execute(&mut *change)
            .await?;
    }
    Ok(())
}

fn text(message: Option<&Message>) -> Option<String> {
    message.map(|message| message.text.clone())
}

fn code(message: Option<&Message>) -> Option<String> {
    message.map(|message| message.code.clone())
}

/// Records that a lease was granted for the attachment of `volume` to `host`.
pub(in crate::database) async fn note_lease(
    change: &mut AnyConnection,
    volume: VolumeId,
    host: PartyId,
    epoch: u32,
) -> Result<(), DatabaseError> {
    let noted = sqlx::query(
        "UPDATE attachments SET epoch = $1 WHERE volume = $2 AND host = $3 \
         AND access = 'read-write' AND state <> 'detached'",
    )
    .bind(i64::from(epoch))
    .bind(volume.to_string())
    .bind(host.to_string())
    .execute(&mut *change)
    .await?;
    if noted.rows_affected() == 0 {
        return Err(DatabaseError::Fenced {
            volume,
            reason: "it is not attached to this host".to_owned(),
        });
    }
    sqlx::query("UPDATE volumes SET last_host = $1 WHERE id = $2")
        .bind(host.to_string())
        .bind(volume.to_string())
        .execute(change)
        .await?;
    Ok(())
}

/// Ends every attachment of `volume`. The caller has taken its lease away.
pub(in crate::database) async fn fence(
    change: &mut AnyConnection,
    volume: VolumeId,
    now: Millis,
    problem: &Message,
) -> Result<(), DatabaseError> {
    for attachment in of_volume(&mut *change, volume).await? {
        sqlx::query(
            "UPDATE attachments SET state = 'detached', desired = 0, problem = $1, ended_ms = $2, \
             problem_code = $4, generation = generation + 1 WHERE id = $3",
        )
        .bind(&problem.text)
        .bind(now.0)
        .bind(attachment.id.to_string())
        .bind(&problem.code)
        .execute(&mut *change)
        .await?;
        hosts::assign(&mut *change, attachment.host).await?;
    }
    Ok(())
}

/// Requests that every volume is opened and closed once on the host that had it last, or else on
/// `host`, so that what its journal holds becomes a version.
///
/// The attachment's id is derived from the volume's. A row that exists is left from an earlier
/// restore and has ended. It is reset: earlier requests and reports, and above all a forced detach,
/// no longer count.
pub(in crate::database) async fn reopen_all(
    change: &mut AnyConnection,
    host: PartyId,
    now: Millis,
) -> Result<(), DatabaseError> {
    sqlx::query(
        "INSERT INTO attachments (id, volume, host, access, desired, state, epoch, created_ms) \
         SELECT 'att-' || SUBSTR(id, 5), id, COALESCE(last_host, $1), 'read-write', 0, \
         'detaching', epoch, $2 FROM volumes v WHERE deleting = 0 AND NOT EXISTS (SELECT 1 \
         FROM attachments a WHERE a.volume = v.id AND a.state <> 'detached') \
         ON CONFLICT (id) DO UPDATE SET host = excluded.host, access = excluded.access, \
         desired = 0, state = 'detaching', epoch = excluded.epoch, \
         created_ms = excluded.created_ms, generation = attachments.generation + 1, \
         reported_generation = 0, forced = 0, vm = NULL, device = NULL, problem = NULL, problem_code = NULL, notice = NULL, notice_code = NULL, \
         size_bytes = NULL, uri = NULL, tcp_uri = NULL, ended_ms = NULL, requested_by = NULL, \
         chain = NULL, chain_revision = NULL, chain_problem = NULL, successor_id = NULL, successor_host = NULL, successor_vm = NULL, successor_requested_by = NULL",
    )
    .bind(host.to_string())
    .bind(now.0)
    .execute(&mut *change)
    .await?;
    hosts::assign_all(change).await
}
