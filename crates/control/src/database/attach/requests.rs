//! Requests to attach and detach. Each changes the desired state, of which the host is notified.

use api::host::{Access, AttachmentState};
use api::types::READ_ONLY_ATTACHMENTS_MAX;
use base::{AttachmentId, PartyId, VolumeId};
use sqlx::{AnyConnection, Row as _};
use world::Millis;

use crate::database::attach::attachments::{
    AttachmentRow, attachment_named, attachment_of, may_see, of_volume,
};
use crate::database::rows::{self, VolumeRow};
use crate::database::tenancy::rights::{check_host, check_volume, refuse_if_deleting};
use crate::database::tenancy::{audit_log, principal};
use crate::database::{Attachments, DatabaseError, Need, Principal, Right, hosts};

/// A new attachment.
#[derive(Debug, Clone)]
pub struct NewAttachment {
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
    /// When it is requested.
    pub created: Millis,
}

impl Attachments<'_> {
    /// Requests that a volume is attached to a host. Repeating the request is no error.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`] and [`DatabaseError::Forbidden`] if the volume, the
    /// host or the VM may not be used by the principal; [`DatabaseError::Refused`] if the volume is
    /// attached in another way, or being deleted; [`DatabaseError::Quota`] of read-only
    /// attachments; [`DatabaseError::OtherRequest`].
    pub async fn attach(
        self,
        principal: &Principal,
        new: &NewAttachment,
    ) -> Result<AttachmentRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                if let Some(made) = principal.made_before(&mut change).await? {
                    let seen = attachment_named(&mut change, principal, &made).await;
                    return seen.map_err(principal::gone_since);
                }
                let need = Need::Have(match new.access {
                    Access::ReadOnly => Right::Read,
                    Access::ReadWrite => Right::Use,
                });
                let volume = check_volume(&mut change, principal, new.volume, need).await?;
                check_host(&mut change, principal, new.host, new.vm.as_deref()).await?;
                refuse_if_deleting(&volume)?;
                let name = &volume.name;
                let others = of_volume(&mut change, new.volume).await?;
                let same = others.iter().find(|other| {
                    (other.host, &other.vm, other.access) == (new.host, &new.vm, new.access)
                });
                // Only the user who requested it may request it again, or learn of it.
                if let Some(same) = same
                    && !may_see(&mut change, principal, same).await?
                {
                    let reason = format!("volume {name:?} is attached there by another user");
                    return Err(DatabaseError::Refused { reason });
                }
                let place = audit_log::place(&mut change, new.host, new.vm.as_deref()).await?;
                let target = format!("{} {name} to {place}", volume.id);
                principal.note(&mut change, "attach", target).await?;
                if let Some(same) = same {
                    return repeat(&mut change, principal, same).await;
                }
                refuse_if_excluded(&mut change, principal, new.access, &volume, &others).await?;
                if new.access == Access::ReadOnly {
                    refuse_too_many(&mut change, principal, new.host).await?;
                }
                insert(&mut change, principal, new, &volume).await?;
                principal.note_made(&mut change, new.id).await?;
                hosts::assign(&mut change, new.host).await?;
                attachment_of(&mut change, new.id).await
            })
            .await
    }

    /// Requests that an attachment is detached; if forced, without the guest's consent.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`], also if the principal may not see it.
    pub async fn detach(
        self,
        principal: &Principal,
        id: AttachmentId,
        is_forced: bool,
    ) -> Result<AttachmentRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let attachment = attachment_named(&mut change, principal, &id.to_string()).await?;
                if attachment.observed.state != AttachmentState::Detached {
                    // A forced detach stays forced.
                    let is_forced = is_forced || attachment.desired.is_forced;
                    let desired = DesiredChange::Detach { is_forced };
                    set_desired(&mut change, &attachment, desired).await?;
                    let how = if is_forced { " by force" } else { "" };
                    let volume = audit_log::volume(&mut change, attachment.volume).await?;
                    let vm = attachment.vm.as_deref();
                    let place = audit_log::place(&mut change, attachment.host, vm).await?;
                    let target = format!("{volume} from {place}{how}");
                    principal.note(&mut change, "detach", target).await?;
                }
                attachment_of(&mut change, id).await
            })
            .await
    }
}

/// Requests the same attachment once more.
async fn repeat(
    change: &mut AnyConnection,
    principal: &Principal,
    same: &AttachmentRow,
) -> Result<AttachmentRow, DatabaseError> {
    principal.note_made(&mut *change, same.id).await?;
    if !same.desired.is_attached || same.observed.state != AttachmentState::Attached {
        set_desired(&mut *change, same, DesiredChange::Attach).await?;
    }
    attachment_of(change, same.id).await
}

/// Refuses an attachment beside `others`, all of the same volume, if it or one of them may write.
async fn refuse_if_excluded(
    change: &mut AnyConnection,
    principal: &Principal,
    access: Access,
    volume: &VolumeRow,
    others: &[AttachmentRow],
) -> Result<(), DatabaseError> {
    let excludes = |attachment: &&AttachmentRow| {
        attachment.access == Access::ReadWrite || access == Access::ReadWrite
    };
    let Some(other) = others.iter().find(excludes) else {
        return Ok(());
    };
    Err(DatabaseError::Refused {
        reason: match may_see(change, principal, other).await? {
            true => in_use(&volume.name_for(principal.party.id), other),
            false => format!("volume {:?} is attached by another user", volume.name),
        },
    })
}

/// Why a volume cannot be attached, and what to do.
fn in_use(name: &str, attachment: &AttachmentRow) -> String {
    let access = attachment.access;
    match (attachment.desired.is_attached, &attachment.observed.problem) {
        (true, _) if attachment.vm.is_none() => format!(
            "volume {name:?} is exported {access}; run `scree volume unexport {name}` first"
        ),
        (true, _) => format!(
            "volume {name:?} is attached {access} to {vm}; run `scree detach {name} --vm {vm}` \
             first",
            vm = attachment.vm.as_deref().unwrap_or_default()
        ),
        (false, _) if attachment.desired.successor.is_some() => format!(
            "volume {name:?} is being moved to another host; `scree attachment move {id} \
             --cancel` cancels that",
            id = attachment.id
        ),
        (false, None) => format!("volume {name:?} is still being closed; try again soon"),
        (false, Some(why)) => format!("volume {name:?} is still being closed: {why}"),
    }
}

/// A change of the desired state of an attachment.
#[derive(Debug, Clone, Copy)]
pub(in crate::database) enum DesiredChange {
    Attach,
    Detach { is_forced: bool },
}

/// Changes the desired state of an attachment. A move is canceled.
pub(in crate::database) async fn set_desired(
    change: &mut AnyConnection,
    attachment: &AttachmentRow,
    desired: DesiredChange,
) -> Result<(), DatabaseError> {
    let (is_attached, is_forced, state) = match desired {
        DesiredChange::Attach => (true, false, AttachmentState::Attaching),
        DesiredChange::Detach { is_forced } => (false, is_forced, AttachmentState::Detaching),
    };
    sqlx::query(
        "UPDATE attachments SET desired = $1, state = $2, problem = NULL, problem_code = NULL, forced = $3, \
         successor_id = NULL, successor_host = NULL, successor_vm = NULL, successor_requested_by = NULL, \
         generation = generation + 1 WHERE id = $4",
    )
    .bind(i64::from(is_attached))
    .bind(state.as_str())
    .bind(i64::from(is_forced))
    .bind(attachment.id.to_string())
    .execute(&mut *change)
    .await?;
    hosts::assign(change, attachment.host).await
}

/// Refuses one more read-only attachment on `host` if the user has too many, since the host has
/// each of them open. The limit is the same for all users, and not part of a project's quota.
/// Administrators, who own the hosts, may have more.
async fn refuse_too_many(
    change: &mut AnyConnection,
    principal: &Principal,
    host: PartyId,
) -> Result<(), DatabaseError> {
    if principal.party.is_administrator {
        return Ok(());
    }
    let count: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM attachments WHERE host = $1 AND requested_by = $2 \
         AND access = 'read-only' AND state <> 'detached'",
    )
    .bind(host.to_string())
    .bind(principal.party.id.to_string())
    .fetch_one(change)
    .await?;
    if count < i64::from(READ_ONLY_ATTACHMENTS_MAX) {
        return Ok(());
    }
    Err(DatabaseError::Quota {
        reason: format!(
            "you have {count} read-only attachments on this host, as many as a user may have; \
             detach some first"
        ),
    })
}

async fn insert(
    change: &mut AnyConnection,
    principal: &Principal,
    new: &NewAttachment,
    volume: &VolumeRow,
) -> Result<(), DatabaseError> {
    let version = volume.head.filter(|_| new.access == Access::ReadOnly);
    sqlx::query(
        "INSERT INTO attachments (id, volume, host, access, version_volume, version_number, \
         created_ms, vm, requested_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(new.id.to_string())
    .bind(new.volume.to_string())
    .bind(new.host.to_string())
    .bind(new.access.as_str())
    .bind(version.map(|version| version.volume.to_string()))
    .bind(version.map(|version| version.number.cast_signed()))
    .bind(new.created.0)
    .bind(new.vm.clone())
    .bind(principal.party.id.to_string())
    .execute(&mut *change)
    .await?;
    if new.access == Access::ReadOnly {
        return Ok(());
    }
    // If the last attachment was detached by force, the new one says what was lost.
    let last = sqlx::query(
        "SELECT host, forced, problem, problem_code FROM attachments WHERE volume = $1 AND state = 'detached' \
         AND access = 'read-write' ORDER BY ended_ms DESC LIMIT 1",
    )
    .bind(new.volume.to_string())
    .fetch_optional(&mut *change)
    .await?;
    if let Some(last) = last
        && rows::flag(&last, "forced")?
    {
        sqlx::query("UPDATE attachments SET notice = $1, notice_code = $2 WHERE id = $3")
            .bind(last.try_get::<Option<String>, _>("problem")?)
            .bind(last.try_get::<Option<String>, _>("problem_code")?)
            .bind(new.id.to_string())
            .execute(change)
            .await?;
    }
    Ok(())
}
