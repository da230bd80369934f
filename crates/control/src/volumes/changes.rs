//! Changing a volume's tags, settings, owner and size; deleting a volume.

use api::types::{Message, SetSettings};
use api::words::MessageCode;
use std::time::Duration;

use api::host::Access;
use base::VolumeId;
use base::size::exact_bytes;

use super::VolumeView;
use crate::database::{AttachmentRow, DatabaseError, Right, Tags, VolumeRow, VolumeSettings};
use crate::error::ControlError;
use crate::parse;
use crate::volumes::Volumes;

/// How long to wait until clients see a volume's new size.
const GROWN_WITHIN: Duration = Duration::from_secs(5);

impl Volumes<'_> {
    /// Replaces the tags of a volume.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an invalid tag ([`parse::tags`]);
    /// [`ControlError::NotFound`] and [`ControlError::Forbidden`] if the principal may not
    /// see or not administer the volume; [`ControlError::Conflict`] if it is being
    /// deleted, or the name is ambiguous.
    pub async fn set_tags(self, name: &str, tags: Tags) -> Result<VolumeView, ControlError> {
        parse::tags(&tags)?;
        let database = &self.request.inner.database;
        let row = database
            .volumes()
            .set_tags(self.request.principal(), name, &tags)
            .await?;
        Ok(VolumeView {
            tags,
            ..self.reported_view(row.id).await?
        })
    }

    /// Changes the settings of a volume that `set` gives. Hosts apply a cache share at once, and a
    /// journal length at the next attachment.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an invalid setting; [`ControlError::NotFound`];
    /// [`ControlError::Forbidden`] if the principal does not administer the volume, or changes
    /// the journal's length without being an administrator of the cluster;
    /// [`ControlError::Conflict`] if it is being deleted, or the name is ambiguous.
    pub async fn set_settings(
        self,
        name: &str,
        set: &SetSettings,
    ) -> Result<VolumeView, ControlError> {
        VolumeSettings::check_changes(set)?;
        let database = &self.request.inner.database;
        let row = database
            .volumes()
            .set_settings(self.request.principal(), name, set)
            .await?;
        let mut view = self.reported_view(row.id).await?;
        view.row.settings = row.settings;
        Ok(view)
    }

    /// Transfers a volume to another user.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] (the volume, the user, the project);
    /// [`ControlError::Forbidden`] if the principal neither owns it nor is an
    /// administrator; [`ControlError::Exists`] if the user has a volume or snapshot of
    /// that name; [`ControlError::QuotaExceeded`] of the project;
    /// [`ControlError::Conflict`] if it is being deleted or attached, or no project is named that
    /// it could be charged to.
    pub async fn transfer(
        self,
        name: &str,
        user: &str,
        project: Option<&str>,
    ) -> Result<VolumeView, ControlError> {
        let database = &self.request.inner.database;
        let row = database
            .volumes()
            .transfer(self.request.principal(), name, user, project)
            .await?;
        let seen = self.reported_view(row.id).await?;
        Ok(VolumeView { row, ..seen })
    }

    /// Grows a volume. Existing connections see the new size when they ask for it.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] if the size is invalid or not larger than the current one;
    /// [`ControlError::NotFound`], [`ControlError::Forbidden`] (also if its owner has left its
    /// project); [`ControlError::QuotaExceeded`];
    /// [`ControlError::NoCapacity`] if it would exceed the limit on the total size;
    /// [`ControlError::Conflict`] if it is being deleted. If its host has not
    /// reported yet that clients see the new size, the answer has a notice.
    pub async fn grow(self, name: &str, size_bytes: u64) -> Result<VolumeView, ControlError> {
        let name = name.to_owned();
        self.request
            .to_completion(|authorized| async move {
                authorized.volumes().grow_now(&name, size_bytes).await
            })
            .await
    }

    async fn grow_now(self, name: &str, size_bytes: u64) -> Result<VolumeView, ControlError> {
        let row = self.request.living(name, Right::Administer).await?;
        parse::volume_size(size_bytes, row.block_size)?;
        if size_bytes <= row.size_bytes {
            let reason = format!(
                "volume {:?} has {}; the new size must be larger (a volume is never shrunk: create a \
                 smaller one and copy)",
                row.name,
                exact_bytes(row.size_bytes)
            );
            return Err(ControlError::invalid("size", reason));
        }
        let more = size_bytes - row.size_bytes;
        self.refuse_beyond_capacity(more, row.redundancy()).await?;
        let database = &self.request.inner.database;
        let grown = database
            .volumes()
            .set_size(self.request.principal(), row.id, size_bytes)
            .await?;
        if self.request.is_dry_run() {
            let mut view = self.reported_view(row.id).await?;
            view.row.size_bytes = grown.size_bytes;
            return Ok(view);
        }
        let seen = self.request.until(GROWN_WITHIN, || async {
            let view = self.reported_view(row.id).await?;
            let is_smaller = |attachment: &AttachmentRow| {
                attachment.access == Access::ReadWrite
                    && attachment.observed.size_bytes.unwrap_or(0) < size_bytes
            };
            let waits = view.served().is_some_and(is_smaller);
            Ok((!waits).then_some(view))
        });
        let (mut view, notice) = match seen.await? {
            Some(view) => (
                view,
                self.overcommitted(size_bytes, row.redundancy()).await?,
            ),
            None => (
                self.reported_view(row.id).await?,
                Some(Message::new(
                    MessageCode::GrowthPending,
                    "its host has not reported yet that clients see the new size",
                )),
            ),
        };
        view.notice = notice;
        Ok(view)
    }

    /// Deletes a volume that is not attached. Its snapshots stay. Its space is freed in the
    /// background.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], [`ControlError::Forbidden`];
    /// [`ControlError::Conflict`] if it is in use, or being deleted already.
    pub async fn delete(self, name: &str) -> Result<VolumeView, ControlError> {
        let name = name.to_owned();
        self.request
            .to_completion(|authorized| async move { authorized.volumes().delete_now(&name).await })
            .await
    }

    async fn delete_now(self, name: &str) -> Result<VolumeView, ControlError> {
        let row = self.request.living(name, Right::Administer).await?;
        self.refuse_if_attached_to(&row).await?;
        let now = self.request.inner.world.clock.wall();
        let database = &self.request.inner.database;
        database
            .volumes()
            .begin_delete(self.request.principal(), row.id, now)
            .await?;
        if self.request.is_dry_run() {
            return self.reported_view(row.id).await;
        }
        tracing::info!(volume = %row.id, name = row.name, "controller deletes volume");
        match self.reported_view(row.id).await {
            Ok(view) => Ok(view),
            // It was cleaned and removed meanwhile.
            Err(ControlError::NotFound { .. }) => {
                let projects = self.projects_known().await?;
                let row = VolumeRow {
                    deleting: true,
                    ..self.known(row, projects.as_ref())
                };
                Ok(VolumeView::fresh(row, Tags::new()))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until a volume that is being deleted is removed, or `wait` has passed.
    ///
    /// # Errors
    /// Only those of the database. A volume that still exists is not an error.
    pub async fn wait_deleted(self, id: VolumeId, wait: Duration) -> Result<(), ControlError> {
        let gone = self.request.until(wait, || async {
            match self.request.inner.database.volumes().get(id).await {
                Err(DatabaseError::NotFound { .. }) => Ok(Some(())),
                Err(error) => Err(error.into()),
                Ok(_) => Ok(None),
            }
        });
        gone.await.map(|_| ())
    }

    pub(super) async fn refuse_if_attached_to(self, row: &VolumeRow) -> Result<(), ControlError> {
        let attachments = self
            .request
            .inner
            .database
            .attachments()
            .of_volume(row.id)
            .await?;
        let name = row.name_for(self.request.principal().party.id);
        match attachments
            .iter()
            .find(|attachment| attachment.desired.is_attached)
        {
            None => Ok(()),
            Some(attachment) => Err(ControlError::conflict(match &attachment.vm {
                None => {
                    format!("volume {name:?} is in use; run `scree volume unexport {name}` first")
                }
                Some(vm) => format!(
                    "volume {name:?} is attached to {vm}; run `scree detach {name} --vm {vm}` \
                     first"
                ),
            })),
        }
    }
}
