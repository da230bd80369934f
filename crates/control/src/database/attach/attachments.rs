//! Attachments: the desired state of a volume on a host, and its observed state.
//!
//! * A volume has at most one writable attachment that is not `detached`. A unique index ensures
//!   it.
//! * If an attachment is moved, the transaction that records `detached` creates its successor
//!   ([`moves`](crate::database::attach::moves)).
//!
//! This file has the rows and who may see them; [`requests`](crate::database::attach::requests)
//! changes the desired state, [`reports`](crate::database::attach::reports) records the observed
//! state.

use api::host::{Access, AttachmentState};
use api::types::Message;
use base::{AttachmentId, PartyId, VolumeId};
use catalog::VersionKey;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::tenancy::rights::check_volume;
use crate::database::{
    ChainKey, Database, DatabaseError, Need, ObjectKind, Principal, Right, rows,
};

/// An attachment: which volume is attached where, its desired and its observed state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentRow {
    /// The id.
    pub id: AttachmentId,
    /// The volume.
    pub volume: VolumeId,
    /// The host.
    pub host: PartyId,
    /// The VM that it is plugged into; `None` for a plain export.
    pub vm: Option<String>,
    /// Whether it may be written.
    pub access: Access,
    /// Read-only: the version that is shown; `None` if the volume was empty.
    pub version: Option<VersionKey>,
    /// The last lease that was granted for it.
    pub epoch: Option<u32>,
    /// The desired state.
    pub desired: DesiredAttachment,
    /// The observed state.
    pub observed: ObservedAttachment,
    /// The user who requested it; `None` if Scree did.
    pub requested_by: Option<PartyId>,
    /// When it was requested.
    pub created: Millis,
    /// When it was detached.
    pub ended: Option<Millis>,
}

/// The desired state of an attachment, as the last request left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredAttachment {
    /// Whether it should be attached; otherwise it should be detached.
    pub is_attached: bool,
    /// Whether it is detached without the guest's consent, and without the host's report if the
    /// host is unresponsive.
    pub is_forced: bool,
    /// Grows with each change of the desired state.
    pub generation: u64,
    /// The attachment that replaces it when it is detached, or has replaced it.
    pub successor: Option<Successor>,
}

/// The attachment that replaces another one as soon as that is detached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// The id.
    pub id: AttachmentId,
    /// The host.
    pub host: PartyId,
    /// The VM that it is plugged into; `None` for a plain export.
    pub vm: Option<String>,
}

/// The observed state of an attachment, as its host reported it or as the controllers set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedAttachment {
    /// The state.
    pub state: AttachmentState,
    /// The generation of the desired state that the host's report was about.
    pub generation: u64,
    /// What keeps it from the desired state, or what was lost when it was detached.
    pub problem: Option<Message>,
    /// What the user should know although nothing is wrong.
    pub notice: Option<Message>,
    /// The device's serial number in the VM.
    pub device: Option<String>,
    /// The size that it is served with, in bytes.
    pub size_bytes: Option<u64>,
    /// The NBD URI for clients on the host.
    pub uri: Option<String>,
    /// The NBD URI for clients elsewhere.
    pub tcp_uri: Option<String>,
    /// The active chain.
    pub chain: Option<ChainKey>,
    /// Why the desired chain is not active.
    pub chain_problem: Option<String>,
}

pub(in crate::database) fn attachment_row(row: &AnyRow) -> Result<AttachmentRow, DatabaseError> {
    let epoch: Option<i64> = row.try_get("epoch")?;
    Ok(AttachmentRow {
        id: rows::spelled(row, "id")?,
        volume: rows::spelled(row, "volume")?,
        host: rows::spelled(row, "host")?,
        vm: row.try_get("vm")?,
        access: rows::spelled(row, "access")?,
        version: rows::version_key(row, "version_volume", "version_number")?,
        epoch: epoch.map(|_| rows::small(row, "epoch")).transpose()?,
        desired: desired(row)?,
        observed: observed(row)?,
        requested_by: rows::spelled_if_any(row, "requested_by")?,
        created: Millis(row.try_get("created_ms")?),
        ended: row.try_get::<Option<i64>, _>("ended_ms")?.map(Millis),
    })
}

/// Reads the successor from a row of `attachments`.
fn successor(row: &AnyRow) -> Result<Option<Successor>, DatabaseError> {
    let Some(id) = rows::spelled_if_any(row, "successor_id")? else {
        return Ok(None);
    };
    Ok(Some(Successor {
        id,
        host: rows::spelled(row, "successor_host")?,
        vm: row.try_get("successor_vm")?,
    }))
}

fn desired(row: &AnyRow) -> Result<DesiredAttachment, DatabaseError> {
    Ok(DesiredAttachment {
        is_attached: rows::flag(row, "desired")?,
        is_forced: rows::flag(row, "forced")?,
        generation: rows::number(row, "generation")?,
        successor: successor(row)?,
    })
}

fn observed(row: &AnyRow) -> Result<ObservedAttachment, DatabaseError> {
    let size: Option<i64> = row.try_get("size_bytes")?;
    Ok(ObservedAttachment {
        state: rows::spelled(row, "state")?,
        generation: rows::number(row, "reported_generation")?,
        problem: message(row, "problem", "problem_code")?,
        notice: message(row, "notice", "notice_code")?,
        device: row.try_get("device")?,
        size_bytes: size.map(i64::cast_unsigned),
        uri: row.try_get("uri")?,
        tcp_uri: row.try_get("tcp_uri")?,
        chain: chain_key(row)?,
        chain_problem: row.try_get("chain_problem")?,
    })
}

/// Reads the active chain from a row of `attachments`.
fn chain_key(row: &AnyRow) -> Result<Option<ChainKey>, DatabaseError> {
    let id = rows::spelled_if_any(row, "chain")?;
    let key = |id| {
        let revision = rows::number(row, "chain_revision")?;
        Ok(ChainKey { id, revision })
    };
    id.map(key).transpose()
}

fn message(row: &AnyRow, text: &str, code: &str) -> Result<Option<Message>, DatabaseError> {
    let Some(text) = row.try_get::<Option<String>, _>(text)? else {
        return Ok(None);
    };
    let code: Option<String> = row.try_get(code)?;
    Ok(Some(Message {
        code: code.unwrap_or_default(),
        text,
    }))
}

pub(in crate::database) async fn of_volume(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<Vec<AttachmentRow>, DatabaseError> {
    sqlx::query(
        "SELECT * FROM attachments WHERE volume = $1 AND state <> 'detached' \
         ORDER BY created_ms, id",
    )
    .bind(volume.to_string())
    .fetch_all(connection)
    .await?
    .iter()
    .map(attachment_row)
    .collect()
}

/// The host with the writable attachment of `volume`, if there is one.
pub(in crate::database) async fn writer_of(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<Option<PartyId>, DatabaseError> {
    let all = of_volume(connection, volume).await?;
    let writer = all.iter().find(|one| one.access == Access::ReadWrite);
    Ok(writer.map(|one| one.host))
}

/// Whether a volume is attached anywhere, or not detached yet.
pub(in crate::database) async fn is_attached(
    connection: &mut AnyConnection,
    volume: VolumeId,
) -> Result<bool, DatabaseError> {
    Ok(!of_volume(connection, volume).await?.is_empty())
}

/// Attachments of volumes to hosts.
#[derive(Clone, Copy, Debug)]
pub struct Attachments<'a> {
    pub(in crate::database) database: &'a Database,
}

impl Attachments<'_> {
    /// The attachment with this id, if `principal` may see it: their own, or of a
    /// volume that they administer.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn find(
        self,
        principal: &Principal,
        id: &str,
    ) -> Result<AttachmentRow, DatabaseError> {
        attachment_named(&mut *self.database.reader.acquire().await?, principal, id).await
    }

    /// The attachment with this id.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`].
    pub async fn get(self, id: AttachmentId) -> Result<AttachmentRow, DatabaseError> {
        attachment_of(&mut *self.database.reader.acquire().await?, id).await
    }

    /// The attachments of a volume that are not detached.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn of_volume(self, volume: VolumeId) -> Result<Vec<AttachmentRow>, DatabaseError> {
        of_volume(&mut *self.database.reader.acquire().await?, volume).await
    }

    /// All attachments that are not detached.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn all(self) -> Result<Vec<AttachmentRow>, DatabaseError> {
        sqlx::query("SELECT * FROM attachments WHERE state <> 'detached' ORDER BY created_ms, id")
            .fetch_all(&self.database.reader)
            .await?
            .iter()
            .map(attachment_row)
            .collect()
    }

    /// The attachments of one host that are not detached.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn on_host(self, host: PartyId) -> Result<Vec<AttachmentRow>, DatabaseError> {
        sqlx::query(
            "SELECT * FROM attachments WHERE host = $1 AND state <> 'detached' \
             ORDER BY created_ms, id",
        )
        .bind(host.to_string())
        .fetch_all(&self.database.reader)
        .await?
        .iter()
        .map(attachment_row)
        .collect()
    }

    /// The attachments that were detached last, the newest first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn ended(self, count_max: u32) -> Result<Vec<AttachmentRow>, DatabaseError> {
        sqlx::query(
            "SELECT * FROM attachments WHERE state = 'detached' \
             ORDER BY ended_ms DESC, id LIMIT $1",
        )
        .bind(i64::from(count_max))
        .fetch_all(&self.database.reader)
        .await?
        .iter()
        .map(attachment_row)
        .collect()
    }
}

/// The attachment with this id, if `principal` may see it, and so detach it.
pub(in crate::database) async fn attachment_named(
    connection: &mut AnyConnection,
    principal: &Principal,
    id: &str,
) -> Result<AttachmentRow, DatabaseError> {
    let not_found = || DatabaseError::not_found(ObjectKind::Attachment, id);
    let parsed: AttachmentId = id.parse().map_err(|_| not_found())?;
    let attachment = attachment_of(&mut *connection, parsed).await?;
    match may_see(connection, principal, &attachment).await? {
        true => Ok(attachment),
        false => Err(not_found()),
    }
}

/// Whether `principal` may see an attachment, and so detach it: their own, or of a volume that
/// they administer.
pub(in crate::database) async fn may_see(
    connection: &mut AnyConnection,
    principal: &Principal,
    attachment: &AttachmentRow,
) -> Result<bool, DatabaseError> {
    Ok(attachment.requested_by == Some(principal.party.id)
        || administers(connection, principal, attachment.volume).await?)
}

/// Whether `principal` administers a volume.
pub(in crate::database) async fn administers(
    connection: &mut AnyConnection,
    principal: &Principal,
    volume: VolumeId,
) -> Result<bool, DatabaseError> {
    let need = Need::Have(Right::Administer);
    match check_volume(connection, principal, volume, need).await {
        Ok(_) => Ok(true),
        // The volume may have been deleted. Administrators still see the attachment.
        Err(DatabaseError::NotFound { .. }) => Ok(principal.party.is_administrator),
        Err(DatabaseError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(in crate::database) async fn attachment_of(
    connection: &mut AnyConnection,
    id: AttachmentId,
) -> Result<AttachmentRow, DatabaseError> {
    let row = sqlx::query("SELECT * FROM attachments WHERE id = $1")
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?;
    attachment_row(&row.ok_or_else(|| DatabaseError::not_found(ObjectKind::Attachment, id))?)
}
