//! Ending long jobs (preloads and audits) of hosts that have stopped working on them.

use std::time::Duration;

use world::Millis;

use crate::control::Control;
use crate::database::{DatabaseError, Job};
use crate::error::ControlError;

/// A job that its host has not reported on for this time has ended.
const UNRESPONSIVE_FOR: Duration = Duration::from_secs(300);

impl Control {
    /// Ends the jobs that hosts have stopped working on, and deletes old results of audits. Both
    /// are skipped while the database is read-only, as on a full disk.
    ///
    /// # Errors
    /// [`ControlError`].
    pub(crate) async fn reconcile_jobs(&self) -> Result<(), ControlError> {
        let now = self.now().await?;
        match self.end_unresponsive(now).await {
            Ok(()) | Err(DatabaseError::Full(_) | DatabaseError::ReadOnly(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn end_unresponsive(&self, now: Millis) -> Result<(), DatabaseError> {
        let database = &self.inner.database;
        let lasts = {
            let monotonic = self.inner.world.clock.monotonic();
            self.inner.reception.lasts(monotonic, now)
        };
        if lasts >= UNRESPONSIVE_FOR {
            self.end_all_unresponsive(now).await?;
        }
        database.audits().forget_old(now).await?;
        Ok(())
    }

    /// Passes on the result of recording a report. If recording failed, other reports may have been
    /// lost as well.
    pub(crate) fn note_loss<T>(&self, kept: Result<T, ControlError>) -> Result<T, ControlError> {
        if matches!(kept, Err(ControlError::Unavailable { .. })) {
            let monotonic = self.inner.world.clock.monotonic();
            self.inner.reception.was_lost(monotonic);
        }
        kept
    }

    async fn end_all_unresponsive(&self, now: Millis) -> Result<(), DatabaseError> {
        let database = &self.inner.database;
        let unresponsive_ms = i64::try_from(UNRESPONSIVE_FOR.as_millis()).unwrap_or(i64::MAX);
        let since = Millis(now.0.saturating_sub(unresponsive_ms));
        let minutes = UNRESPONSIVE_FOR.as_secs() / 60;
        for (job, reason) in [
            (
                Job::Preload,
                format!("the host has not reported for {minutes} minutes"),
            ),
            (
                Job::Audit,
                format!(
                    "the host has not reported its progress for {minutes} minutes: it is \
                     unavailable, or its agent does not support audits"
                ),
            ),
        ] {
            match database
                .hosts()
                .end_unresponsive(job, since, &reason, now)
                .await?
            {
                0 => {}
                ended => {
                    tracing::warn!(
                        ended,
                        ?job,
                        reason,
                        "controller ended jobs of unresponsive hosts"
                    )
                }
            }
        }
        Ok(())
    }
}
