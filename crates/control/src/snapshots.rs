//! What owners do with snapshots.

use std::time::Duration;

use base::SnapshotId;

use crate::control::Control;
use crate::database::{SnapshotRow, SnapshotState};
use crate::error::ControlError;
use crate::parse;
use world::host;

impl Control {
    /// Takes a snapshot. Of a volume that is served it is pending at first.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn create_snapshot(
        &self,
        volume: &str,
        name: Option<&str>,
    ) -> Result<SnapshotRow, ControlError> {
        let (volume, name) = (volume.to_owned(), name.map(str::to_owned));
        self.to_its_end(|control| async move { control.take(&volume, name.as_deref()).await })
            .await
    }

    async fn take(&self, volume: &str, name: Option<&str>) -> Result<SnapshotRow, ControlError> {
        let id = SnapshotId::from_random(self.inner.world.random.u128());
        let name = match name {
            Some(name) => parse::name(name)?.to_owned(),
            None => id.to_string(),
        };
        let (row, _door) = self.enter(volume).await?;
        let attached = self.attached(row.id);
        if attached.is_none() {
            self.settle(&row).await?;
        }
        let now = self.inner.world.clock.wall();
        let snapshot = self
            .inner
            .database
            .insert_snapshot(id, &name, row.id, now)
            .await?;
        if let Some(attached) = attached {
            let cut = self.on_volume(attached, move |volume| {
                volume.snapshot(id);
                volume.status().stopped
            });
            let stopped = match cut.await {
                Ok(stopped) => stopped,
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = stopped {
                self.inner.database.fail_snapshot(id, &why).await?;
                return Err(ControlError::Unavailable {
                    reason: format!("volume {:?} has stopped: {why}", row.name),
                });
            }
        }
        tracing::info!(snapshot = %id, name, volume = %row.id, "snapshot taken");
        Ok(snapshot)
    }

    /// A snapshot by name or id.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn snapshot(&self, name: &str) -> Result<SnapshotRow, ControlError> {
        Ok(self.inner.database.snapshot(name).await?)
    }

    /// As [`Control::snapshot`], once it is no longer pending or `wait` has
    /// passed.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub async fn snapshot_settled(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<SnapshotRow, ControlError> {
        let mut changes = self.inner.database.changes();
        let settled = async {
            loop {
                changes.mark_unchanged();
                let snapshot = self.snapshot(name).await?;
                if snapshot.state != SnapshotState::Pending || changes.changed().await.is_err() {
                    return Ok(snapshot);
                }
            }
        };
        match host::within(wait, settled).await {
            Some(snapshot) => snapshot,
            None => self.snapshot(name).await,
        }
    }

    /// All snapshots, oldest first.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn snapshots(&self) -> Result<Vec<SnapshotRow>, ControlError> {
        Ok(self.inner.database.snapshots().await?)
    }

    /// Deletes a snapshot. Clones of it go on; what only it held is freed in
    /// the background.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn delete_snapshot(&self, name: &str) -> Result<SnapshotRow, ControlError> {
        let name = name.to_owned();
        self.to_its_end(|control| async move {
            let snapshot = control.inner.database.snapshot(&name).await?;
            control.inner.database.delete_snapshot(snapshot.id).await?;
            control.inner.cleaning_wanted.notify_one();
            Ok(snapshot)
        })
        .await
    }
}
