//! Jobs that a host runs for a request, which waits for the answer.

use std::time::Duration;

use api::host::{JobKind, JobOutput, JobResult, Refusal};
use base::PartyId;
use world::Millis;

use crate::authorized_request::AuthorizedRequest;
use crate::error::ControlError;

/// The time within which a responsive host runs a job.
const ADD_WITHIN: Duration = Duration::from_secs(60);

/// How long an answer that no one fetched is kept, in milliseconds.
const FORGET_MS: i64 = 3_600_000;

impl AuthorizedRequest {
    /// Sends a job to `host` and waits for the answer. A refusal names the request's `field`;
    /// `hint` says what happens if the host does not answer.
    pub(crate) async fn run_job(
        &self,
        host: PartyId,
        what: &JobKind,
        field: &'static str,
        hint: &str,
    ) -> Result<JobOutput, ControlError> {
        // No host would hear of it.
        debug_assert!(!self.is_dry_run(), "a job is not tried");
        let job = self
            .inner
            .database
            .hosts()
            .insert_job(self.principal(), host, what);
        let answer = self.job_done_within(job.await?, ADD_WITHIN).await?;
        let Some(answer) = answer else {
            return Err(ControlError::Unavailable {
                reason: format!("the host does not answer; {hint}"),
            });
        };
        answer.map_err(|refusal| refused(&refusal, field))
    }

    /// The answer to a job, if it arrives in time. The job is deleted then.
    pub(crate) async fn job_done_within(
        &self,
        job: i64,
        within: Duration,
    ) -> Result<Option<JobResult>, ControlError> {
        let database = &self.inner.database;
        let answer = self
            .until(within, || async {
                Ok(database.hosts().job_answer(job).await?)
            })
            .await?;
        if answer.is_some() {
            let now = self.principal().by.at;
            let old = Millis(now.0.saturating_sub(FORGET_MS));
            database.hosts().forget_job(job, old).await?;
        }
        Ok(answer)
    }
}

/// The error if a host's answer does not match the job.
pub(crate) fn wrong_output() -> ControlError {
    ControlError::Internal {
        reason: "the host's result does not match its job; see the host's log".to_owned(),
    }
}

fn refused(refusal: &Refusal, field: &'static str) -> ControlError {
    match refusal.field {
        Some(_) => ControlError::invalid(field, refusal.message.clone()),
        None => ControlError::conflict(refusal.message.clone()),
    }
}
