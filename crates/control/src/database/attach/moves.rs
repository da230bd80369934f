//! Moving an attachment: the successor is part of the row, and the transaction that records
//! `detached` creates it (docs/internals/desired-state.md).
//!
//! * Until then the row excludes every other writer, and from then on its successor does: no other
//!   host can attach in between.
//! * Every other change of the desired state cancels the move.

use api::host::{Access, AttachmentState};
use base::{AttachmentId, PartyId};
use sqlx::AnyConnection;
use world::Millis;

use crate::database::attach::attachments::{
    AttachmentRow, Successor, administers, attachment_named, attachment_of,
};
use crate::database::attach::requests::{DesiredChange, set_desired};
use crate::database::rows::VolumeRow;
use crate::database::tenancy::audit_log;
use crate::database::tenancy::rights::{check_host, check_volume};
use crate::database::{Attachments, DatabaseError, Need, Principal, Right, hosts, rows};

/// Creates the successor of an attachment that is detached now.
pub(in crate::database) async fn create_successor(
    change: &mut AnyConnection,
    old: AttachmentId,
    now: Millis,
) -> Result<(), DatabaseError> {
    let made = sqlx::query(
        "INSERT INTO attachments (id, volume, host, access, created_ms, vm, requested_by) \
         SELECT o.successor_id, o.volume, o.successor_host, o.access, $1, o.successor_vm, o.successor_requested_by \
         FROM attachments o JOIN volumes v ON v.id = o.volume \
         WHERE o.id = $2 AND o.successor_id IS NOT NULL AND v.deleting = 0 RETURNING host",
    )
    .bind(now.0)
    .bind(old.to_string())
    .fetch_optional(&mut *change)
    .await?;
    match made {
        Some(made) => hosts::assign(change, rows::spelled(&made, "host")?).await,
        None => Ok(()),
    }
}

fn refused<T>(reason: String) -> Result<T, DatabaseError> {
    Err(DatabaseError::Refused { reason })
}

/// Refuses a move that the state of the attachment, or of its volume, does not allow.
fn refuse_unmovable(
    old: &AttachmentRow,
    volume: &VolumeRow,
    next: &Successor,
) -> Result<(), DatabaseError> {
    let (id, name) = (old.id, &volume.name);
    if old.observed.state == AttachmentState::Detached {
        return refused(format!("attachment {id} of volume {name:?} has ended"));
    }
    if old.access == Access::ReadOnly {
        return refused(format!(
            "volume {name:?} is attached read-only, and only writable attachments can be moved: \
             attach it there first, then detach it here"
        ));
    }
    if !old.desired.is_attached && old.desired.successor.is_none() || volume.deleting {
        return refused(format!("volume {name:?} is already being detached"));
    }
    if (old.host, &old.vm) == (next.host, &next.vm) {
        return refused(format!("volume {name:?} is already attached there"));
    }
    Ok(())
}

/// Refuses a target that has not reported since `heard_after`.
async fn refuse_unresponsive(
    change: &mut AnyConnection,
    target: PartyId,
    heard_after: Millis,
    name: &str,
) -> Result<(), DatabaseError> {
    let heard = sqlx::query("SELECT 1 FROM host_reports WHERE party = $1 AND heard_ms > $2")
        .bind(target.to_string())
        .bind(heard_after.0)
        .fetch_optional(change)
        .await?;
    if heard.is_none() {
        return refused(format!(
            "the target host does not report, so volume {name:?} would be attached nowhere: start \
             its agent, or move the volume to another host"
        ));
    }
    Ok(())
}

impl Attachments<'_> {
    /// Requests that an attachment is detached and replaced by `next`. Repeating the request is no
    /// error, even when the move is done. A target host that has not reported since `heard_after`
    /// is refused, since the volume would become unusable.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`], if the volume
    /// may not be used, or the target; [`DatabaseError::Refused`] if there is
    /// nothing to be moved.
    pub async fn move_to(
        self,
        principal: &Principal,
        id: AttachmentId,
        next: &Successor,
        heard_after: Millis,
    ) -> Result<AttachmentRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let old = attachment_named(&mut change, principal, &id.to_string()).await?;
                let need = Need::Have(Right::Use);
                let volume = check_volume(&mut change, principal, old.volume, need).await?;
                check_host(&mut change, principal, next.host, next.vm.as_deref()).await?;
                let is_same = |other: &Successor| (other.host, &other.vm) == (next.host, &next.vm);
                if old.desired.successor.as_ref().is_some_and(is_same) {
                    return Ok(old);
                }
                let name = &volume.name;
                refuse_unmovable(&old, &volume, next)?;
                refuse_unresponsive(&mut change, next.host, heard_after, name).await?;
                let desired = DesiredChange::Detach { is_forced: false };
                set_desired(&mut change, &old, desired).await?;
                sqlx::query(
                "UPDATE attachments SET successor_id = $1, successor_host = $2, successor_vm = $3, \
                 successor_requested_by = $4 WHERE id = $5",
            )
            .bind(next.id.to_string())
            .bind(next.host.to_string())
            .bind(next.vm.clone())
            .bind(principal.party.id.to_string())
            .bind(id.to_string())
            .execute(&mut *change)
            .await?;
                let from = audit_log::place(&mut change, old.host, old.vm.as_deref()).await?;
                let to = audit_log::place(&mut change, next.host, next.vm.as_deref()).await?;
                let target = format!("{} {name} from {from} to {to}", old.volume);
                principal.note(&mut change, "move", target).await?;
                attachment_of(&mut change, id).await
            })
            .await
    }

    /// Cancels a move: the attachment stays where it is.
    ///
    /// # Errors
    /// [`DatabaseError::NotFound`]; [`DatabaseError::Forbidden`], if who does not
    /// administer the volume could not attach it there now; [`DatabaseError::Refused`] if nothing
    /// is to follow it, or its host has already released the volume.
    pub async fn cancel_move(
        self,
        principal: &Principal,
        id: AttachmentId,
    ) -> Result<AttachmentRow, DatabaseError> {
        self.database
            .transaction_for(principal)
            .run(|mut change| async move {
                let old = attachment_named(&mut change, principal, &id.to_string()).await?;
                if !administers(&mut change, principal, old.volume).await? {
                    // The same check as for attaching it where it is.
                    check_volume(&mut change, principal, old.volume, Need::Have(Right::Use))
                        .await?;
                    check_host(&mut change, principal, old.host, old.vm.as_deref()).await?;
                }
                let Some(successor) = &old.desired.successor else {
                    return refused(format!("attachment {id} is not being moved"));
                };
                if old.observed.state == AttachmentState::Detached {
                    return refused(format!(
                        "attachment {id} is already detached, and attachment {} has replaced it: \
                         move that one back",
                        successor.id
                    ));
                }
                set_desired(&mut change, &old, DesiredChange::Attach).await?;
                let volume = audit_log::volume(&mut change, old.volume).await?;
                let to =
                    audit_log::place(&mut change, successor.host, successor.vm.as_deref()).await?;
                let target = format!("{volume} to {to}");
                principal.note(&mut change, "cancel-move", target).await?;
                attachment_of(&mut change, id).await
            })
            .await
    }
}
