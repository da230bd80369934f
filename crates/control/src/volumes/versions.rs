//! The kept versions of a volume, and restoring one.

use catalog::VersionKey;
use world::Millis;

use super::VolumeView;
use crate::database::{Need, Right, VersionRow, VolumeRow};
use crate::error::ControlError;
use crate::timestamp::rfc3339;
use crate::volumes::Volumes;

/// The state to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTo {
    /// The newest version that existed at this time.
    Time(Millis),
    /// The version with this number.
    Version(u64),
}

impl Volumes<'_> {
    /// Makes a kept version the state of a detached volume.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] (the volume, a version from then);
    /// [`ControlError::Forbidden`]; [`ControlError::Invalid`] for a time in the future;
    /// [`ControlError::Conflict`] if the volume is in use, still being closed, or being
    /// deleted.
    pub async fn restore(self, name: &str, to: RestoreTo) -> Result<VolumeView, ControlError> {
        let name = name.to_owned();
        self.request
            .to_completion(
                |authorized| async move { authorized.volumes().restore_now(&name, to).await },
            )
            .await
    }

    async fn restore_now(self, name: &str, to: RestoreTo) -> Result<VolumeView, ControlError> {
        let row = self.request.living(name, Right::Administer).await?;
        self.refuse_if_attached_to(&row).await?;
        // What the journal holds becomes a version first, so that restoring can itself be undone.
        self.refuse_if_attached(&row).await?;
        let line = self
            .request
            .inner
            .database
            .catalog()
            .line_of(row.id)
            .await?;
        let version = self.choose(&row, &line, to)?;
        let database = &self.request.inner.database;
        database
            .volumes()
            .set_head(self.request.principal(), row.id, version)
            .await?;
        tracing::info!(volume = %row.id, name = row.name, version = version.number, "user restored volume");
        self.reported_view(row.id).await
    }

    fn choose(
        self,
        row: &VolumeRow,
        line: &[VersionRow],
        to: RestoreTo,
    ) -> Result<VersionKey, ControlError> {
        let found = match to {
            RestoreTo::Version(number) => line.iter().find(|version| version.key.number == number),
            RestoreTo::Time(time) => {
                if time.0 > self.request.inner.world.clock.wall().0 {
                    let reason = "that time is in the future".to_owned();
                    return Err(ControlError::invalid("time", reason));
                }
                line.iter().rev().find(|version| version.created <= time)
            }
        };
        let name = &row.name;
        let hint = format!("`scree volume versions {name}` lists the versions that are kept");
        found
            .map(|version| version.key)
            .ok_or_else(|| ControlError::NotFound {
                what: match (to, line.first()) {
                    (RestoreTo::Version(number), _) => format!("version {number} of {name:?}"),
                    (RestoreTo::Time(_), Some(oldest)) => format!(
                        "a version of {name:?} from that time or before (the oldest that is kept is {} \
                         of {})",
                        oldest.key.number,
                        rfc3339(oldest.created)
                    ),
                    (RestoreTo::Time(_), None) => format!("a version of {name:?}"),
                },
                hint: hint.into(),
            })
    }

    async fn refuse_if_attached(self, row: &VolumeRow) -> Result<(), ControlError> {
        let attachments = self
            .request
            .inner
            .database
            .attachments()
            .of_volume(row.id)
            .await?;
        let name = &row.name;
        match attachments.first() {
            None => Ok(()),
            Some(attachment) => Err(ControlError::conflict(match &attachment.observed.problem {
                Some(why) => format!("volume {name:?} is still being closed: {why}"),
                None => format!("volume {name:?} is still being closed; try again soon"),
            })),
        }
    }

    /// The kept versions that were ever a volume's state, oldest first, with the volume's row,
    /// which names its head.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Conflict`] if the name could mean
    /// the volumes of several owners.
    pub async fn versions(self, name: &str) -> Result<(VolumeRow, Vec<VersionRow>), ControlError> {
        let database = &self.request.inner.database;
        let row = database
            .volumes()
            .find(self.request.principal(), name, Need::See)
            .await?;
        let line = self
            .request
            .inner
            .database
            .catalog()
            .line_of(row.id)
            .await?;
        Ok((row, line))
    }
}
