//! The reports of hosts, and how a request waits for fresh ones.

use std::time::Duration;

use world::Millis;

use crate::control::Control;
use crate::database::{DatabaseError, HostReport, HostRow};
use crate::error::ControlError;

/// How long a request for the current state waits for hosts.
const SHOW_WITHIN: Duration = Duration::from_millis(800);

/// A host that has not reported for this time, in milliseconds, is unresponsive and not waited for.
pub(crate) const UNRESPONSIVE_MS: i64 = 10_000;

impl Control {
    /// The time since which a responsive host has reported.
    pub(crate) async fn unresponsive_before(&self) -> Result<Millis, ControlError> {
        Ok(Millis(self.now().await?.0.saturating_sub(UNRESPONSIVE_MS)))
    }

    /// Requests reports from the responsive hosts and waits for them, but not for long. Returns why
    /// they were not requested if the database is read-only, as on a full disk: the last reports
    /// then have to do.
    pub(crate) async fn request_reports(&self) -> Result<Option<String>, ControlError> {
        let since = self.unresponsive_before().await?;
        let database = &self.inner.database;
        let requested = match database.hosts().request_reports(since).await {
            Err(error @ (DatabaseError::Full(_) | DatabaseError::ReadOnly(_))) => {
                return Ok(Some(error.to_string()));
            }
            requested => requested?,
        };
        if requested > 0 {
            let is_outdated = |host: &HostRow| {
                let is_responsive = host.heard.is_some_and(|heard| heard > since);
                is_responsive && host.report_number < host.reports_requested
            };
            self.until(SHOW_WITHIN, || async {
                let hosts = database.hosts().all().await?;
                Ok((!hosts.iter().any(is_outdated)).then_some(()))
            })
            .await?;
        }
        Ok(None)
    }

    /// The reports of all hosts, after a request for fresh ones; and why fresh ones were not
    /// requested, if so.
    pub(crate) async fn host_reports(
        &self,
    ) -> Result<(Vec<HostReport>, Option<String>), ControlError> {
        let not_requested = self.request_reports().await?;
        Ok((self.inner.database.hosts().reports().await?, not_requested))
    }
}
