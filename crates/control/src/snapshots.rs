//! Requests on snapshots.

use std::time::Duration;

use base::SnapshotId;

use crate::authorized_request::AuthorizedRequest;
use crate::database::{
    Filter, Need, NewSnapshot, Page, Right, SnapshotPage, SnapshotRow, SnapshotState, Tags,
};
use crate::error::{ControlError, gone_since};
use crate::parse;

/// The time within which a responsive host takes a consistency point.
const CUT_WITHIN: Duration = Duration::from_secs(10);

/// Snapshots, as one authorized request may use them.
#[derive(Clone, Copy)]
pub struct Snapshots<'a> {
    pub(crate) request: &'a AuthorizedRequest,
}

impl AuthorizedRequest {
    /// Snapshots.
    #[must_use]
    pub fn snapshots(&self) -> Snapshots<'_> {
        Snapshots { request: self }
    }
}

impl Snapshots<'_> {
    /// Takes a snapshot. If the volume is attached, the snapshot is pending at first; its
    /// consistency point lies between the request and the response, unless the host does not answer
    /// in time: then it comes later.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an invalid name or tag;
    /// [`ControlError::NotFound`] (the volume); [`ControlError::Forbidden`] (also if the
    /// volume's owner has left its project); [`ControlError::Exists`];
    /// [`ControlError::QuotaExceeded`]; [`ControlError::Conflict`] if the volume is being
    /// deleted, or the object of the idempotency key was deleted;
    /// [`ControlError::IdempotencyConflict`] if the key was used for another request. A consistency
    /// point that is not taken in time is not an error.
    pub async fn create(
        self,
        volume: &str,
        name: Option<&str>,
        tags: Tags,
    ) -> Result<SnapshotRow, ControlError> {
        let (volume, name) = (volume.to_owned(), name.map(str::to_owned));
        self.request
            .to_completion(|authorized| async move {
                authorized
                    .snapshots()
                    .take_now(&volume, name.as_deref(), tags)
                    .await
            })
            .await
    }

    async fn take_now(
        self,
        volume: &str,
        name: Option<&str>,
        tags: Tags,
    ) -> Result<SnapshotRow, ControlError> {
        let database = &self.request.inner.database;
        // The volume may have been deleted since.
        if let Some(made) = database
            .parties()
            .made_under_key(self.request.principal())
            .await?
        {
            return self.wait_cut(&made).await.map_err(gone_since);
        }
        parse::tags(&tags)?;
        let id = SnapshotId::from_u128(self.request.inner.world.random.u128());
        let name = match name {
            Some(name) => parse::name(name)?.to_owned(),
            None => id.to_string(),
        };
        let row = self.request.living(volume, Right::Snapshot).await?;
        let new = NewSnapshot {
            id,
            name,
            volume: row.id,
            tags,
            created: self.request.inner.world.clock.wall(),
        };
        let database = &self.request.inner.database;
        let snapshot = database
            .snapshots()
            .insert(self.request.principal(), &new)
            .await?;
        let id = snapshot.id;
        if self.request.is_dry_run() || snapshot.state != SnapshotState::Pending {
            return Ok(snapshot);
        }
        // Writes after the answer are not in the snapshot.
        let snapshot = self.wait_cut(&id.to_string()).await?;
        tracing::info!(snapshot = %id, name = snapshot.name, volume = %row.id, "user requested snapshot");
        Ok(snapshot)
    }

    /// The snapshot, as soon as its consistency point was taken, or when its host has not answered
    /// in time.
    async fn wait_cut(self, id: &str) -> Result<SnapshotRow, ControlError> {
        let taken = self.request.until(CUT_WITHIN, || async {
            let snapshot = self.get(id).await?;
            let is_taken =
                snapshot.has_consistency_point || snapshot.state != SnapshotState::Pending;
            Ok(is_taken.then_some(snapshot))
        });
        match taken.await? {
            Some(snapshot) => Ok(snapshot),
            None => self.get(id).await,
        }
    }

    /// A snapshot by name or id.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn get(self, name: &str) -> Result<SnapshotRow, ControlError> {
        let database = &self.request.inner.database;
        Ok(database
            .snapshots()
            .find(self.request.principal(), name, Need::See)
            .await?)
    }

    /// Waits until the snapshot is no longer pending or `wait` has passed, and returns it as
    /// [`Self::get`] does.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn wait_settled(
        self,
        name: &str,
        wait: Duration,
    ) -> Result<SnapshotRow, ControlError> {
        let settled = self.request.until(wait, || async {
            let snapshot = self.get(name).await?;
            Ok((snapshot.state != SnapshotState::Pending).then_some(snapshot))
        });
        match settled.await? {
            Some(snapshot) => Ok(snapshot),
            None => self.get(name).await,
        }
    }

    /// A page of the snapshots that the principal may see.
    ///
    /// # Errors
    /// Only those of the database.
    pub async fn list(self, filter: &Filter, page: &Page) -> Result<SnapshotPage, ControlError> {
        let database = &self.request.inner.database;
        Ok(database
            .snapshots()
            .page(self.request.principal(), filter, page)
            .await?)
    }

    /// The tags of a snapshot.
    ///
    /// # Errors
    /// Only those of the database. A snapshot that does not exist has no tags.
    pub async fn tags_of(self, id: SnapshotId) -> Result<Tags, ControlError> {
        Ok(self.request.inner.database.tags_of(&id.to_string()).await?)
    }

    /// Replaces the tags of a snapshot.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an invalid tag ([`parse::tags`]);
    /// [`ControlError::NotFound`] and [`ControlError::Forbidden`] if the principal may not
    /// see or not administer the snapshot; [`ControlError::Conflict`] if the name is
    /// ambiguous.
    pub async fn set_tags(self, name: &str, tags: &Tags) -> Result<SnapshotRow, ControlError> {
        parse::tags(tags)?;
        let database = &self.request.inner.database;
        Ok(database
            .snapshots()
            .set_tags(self.request.principal(), name, tags)
            .await?)
    }

    /// Deletes a snapshot. Its clones stay; what only the snapshot held is freed in the background.
    ///
    /// # Errors
    /// [`ControlError::NotFound`], [`ControlError::Forbidden`];
    /// [`ControlError::Conflict`] if the name is ambiguous.
    pub async fn delete(self, name: &str) -> Result<SnapshotRow, ControlError> {
        let name = name.to_owned();
        self.request
            .to_completion(|authorized| async move {
                let database = &authorized.inner.database;
                let need = Need::Have(Right::Administer);
                let snapshot = database
                    .snapshots()
                    .find(authorized.principal(), &name, need)
                    .await?;
                let gone = database
                    .snapshots()
                    .delete(authorized.principal(), snapshot.id)
                    .await?;
                tracing::info!(snapshot = %gone.id, name = gone.name, "user deleted snapshot");
                Ok(gone)
            })
            .await
    }
}
