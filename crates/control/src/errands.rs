//! What hosts do beside what is attached, as far as nobody does it any more: preloads, and audits
//! of volumes.

use std::time::Duration;

use world::Millis;

use crate::control::Control;
use crate::database::{DatabaseError, Errand};
use crate::error::ControlError;

/// What a host says nothing of for so long, it does not do any more.
const SILENT_FOR: Duration = Duration::from_secs(300);

impl Control {
    /// Ends what hosts do not do any more, and forgets what audits have found long ago. Where a
    /// database can be read only, as one on a full disk, both go on.
    ///
    /// # Errors
    /// [`ControlError`].
    pub(crate) async fn tend_errands(&self) -> Result<(), ControlError> {
        let now = self.now().await?;
        match self.end_silent(now).await {
            Ok(()) | Err(DatabaseError::Full(_) | DatabaseError::ReadOnly(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn end_silent(&self, now: Millis) -> Result<(), DatabaseError> {
        let database = &self.inner.database;
        let silent_ms = i64::try_from(SILENT_FOR.as_millis()).unwrap_or(i64::MAX);
        let since = Millis(now.0.saturating_sub(silent_ms));
        let minutes = SILENT_FOR.as_secs() / 60;
        for (errand, reason) in [
            (
                Errand::Preload,
                format!("the host was not heard of for {minutes} minutes"),
            ),
            (
                Errand::Audit,
                format!(
                    "the host said nothing of it for {minutes} minutes: it is away, or its agent \
                     knows no audits"
                ),
            ),
        ] {
            match database.end_silent(errand, since, &reason, now).await? {
                0 => {}
                ended => tracing::warn!(ended, ?errand, reason, "hosts do not what was asked"),
            }
        }
        database.forget_old_audits(now).await?;
        Ok(())
    }
}
