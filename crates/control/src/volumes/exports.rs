//! Exporting a volume on a host without a VM, and ending that. Both wait for the host's report.

use std::time::Duration;

use api::host::{Access, AttachmentState};
use base::{AttachmentId, PartyId};

use super::VolumeView;
use crate::database::{AttachmentRow, DatabaseError, Need, NewAttachment, Right};
use crate::error::ControlError;
use crate::volumes::Volumes;

/// The time within which a responsive host opens or closes a volume.
const HOST_WITHIN: Duration = Duration::from_secs(100);

impl Volumes<'_> {
    /// Exports a volume on `host` until it is unexported, also after a restart. Returns when it can
    /// be used.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Forbidden`] if the principal may
    /// not use the volume or the host; [`ControlError::Conflict`] if it is attached in another
    /// way, or being deleted; [`ControlError::QuotaExceeded`] of read-only attachments;
    /// [`ControlError::Unavailable`] if it cannot be opened now, or its host does not
    /// answer: then its host keeps trying.
    pub async fn export(
        self,
        name: &str,
        host: PartyId,
        access: Access,
    ) -> Result<AttachmentRow, ControlError> {
        let need = match access {
            Access::ReadOnly => Right::Read,
            Access::ReadWrite => Right::Use,
        };
        let row = self.request.living(name, need).await?;
        let id = AttachmentId::from_u128(self.request.inner.world.random.u128());
        let new = NewAttachment {
            id,
            volume: row.id,
            host,
            vm: None,
            access,
            created: self.request.inner.world.clock.wall(),
        };
        let asked = self
            .request
            .inner
            .database
            .attachments()
            .attach(self.request.principal(), &new)
            .await?;
        let now = self.wait_exported(&asked).await?;
        match now.observed.state {
            AttachmentState::Attached => Ok(now),
            state => Err(ControlError::Unavailable {
                reason: now.observed.problem.map_or_else(
                    || format!("volume {:?} is {state}", row.name),
                    |why| why.text,
                ),
            }),
        }
    }

    /// Ends the exports of a volume on all hosts: everything that was written is in a version
    /// afterwards.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Conflict`] if the principal has it
    /// exported nowhere; [`ControlError::Unavailable`] if it cannot be closed now, or
    /// its host does not answer: then its host keeps trying.
    pub async fn unexport(self, name: &str) -> Result<VolumeView, ControlError> {
        let database = &self.request.inner.database;
        let need = Need::SeeToChange;
        let row = database
            .volumes()
            .find(self.request.principal(), name, need)
            .await?;
        let mut attachments = Vec::new();
        for attachment in database.attachments().of_volume(row.id).await? {
            let id = attachment.id.to_string();
            match database
                .attachments()
                .find(self.request.principal(), &id)
                .await
            {
                Ok(seen) => attachments.push(seen),
                // It belongs to another user.
                Err(DatabaseError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let of_vm = attachments.extract_if(.., |one| one.vm.is_some()).next();
        if attachments.is_empty() {
            let name = row.name_for(self.request.principal().party.id);
            let vm = of_vm.and_then(|one| one.vm);
            return Err(ControlError::conflict(match vm {
                None => format!("volume {name:?} is not exported"),
                Some(vm) => format!(
                    "volume {name:?} is not exported, but attached to {vm}; run `scree detach \
                     {name} --vm {vm}`"
                ),
            }));
        }
        for attachment in attachments {
            let database = &self.request.inner.database;
            let asked = database
                .attachments()
                .detach(self.request.principal(), attachment.id, false)
                .await?;
            let now = self.wait_exported(&asked).await?;
            if now.observed.state != AttachmentState::Detached {
                return Err(ControlError::Unavailable {
                    reason: now.observed.problem.map_or_else(
                        || format!("the host of volume {:?} does not answer", row.name),
                        |why| why.text,
                    ),
                });
            }
        }
        self.reported_view(row.id).await
    }

    /// The attachment, as soon as its host has reported on `asked`.
    async fn wait_exported(self, asked: &AttachmentRow) -> Result<AttachmentRow, ControlError> {
        // A dry run changes nothing that a host could report on.
        debug_assert!(
            !self.request.is_dry_run(),
            "exports do not support a dry run"
        );
        let database = &self.request.inner.database;
        let said = self.request.until(HOST_WITHIN, || async {
            let now = database.attachments().get(asked.id).await?;
            let is_said = now.desired.generation != asked.desired.generation
                || now.observed.generation == now.desired.generation;
            let is_over = !matches!(
                now.observed.state,
                AttachmentState::Attaching | AttachmentState::Detaching
            );
            Ok((is_said && is_over).then_some(now))
        });
        match said.await? {
            Some(now) => Ok(now),
            None => Ok(database.attachments().get(asked.id).await?),
        }
    }
}
