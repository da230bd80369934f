//! [`HostJobs`]: one-time jobs that the controllers request of this host, each with a result: add a
//! unit, create a wrapping key, read events.
//!
//! Must not know: who requested a job.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::ClientError;
use api::host::calls::{RegisterKey, ReportJob};
use api::host::{EventLines, HostJob, JobKind, JobOutput, JobResult, ListedKey, Refusal};
use base::{AttachmentId, with_causes};
use parking_lot::Mutex;
use world::host;

use crate::context::{TaskFailed, blocking};
use crate::controller::Controller;
use crate::export::OpenVolumes;
use crate::keys::{HostKeyError, HostKeys};
use crate::units::Units;

/// How long a job waits for a controller to list a registered key.
const LISTED_WITHIN: Duration = Duration::from_secs(5);

/// The longest time that a job waits for events.
const EVENTS_WAIT_MAX: Duration = Duration::from_secs(20);

/// Why a wrapping key was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateKeyError {
    #[error(transparent)]
    Key(#[from] HostKeyError),
    #[error("the controller: {0}")]
    Controller(#[from] ClientError),
    #[error(transparent)]
    Task(#[from] TaskFailed),
}

/// Runs jobs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HostJobs {
    controller: Controller,
    keys: Arc<HostKeys>,
    units: Arc<Units>,
    open: Arc<OpenVolumes>,
    running: Arc<Mutex<HashSet<i64>>>,
}

impl HostJobs {
    pub fn new(
        controller: Controller,
        keys: Arc<HostKeys>,
        units: Arc<Units>,
        open: Arc<OpenVolumes>,
    ) -> Self {
        Self {
            controller,
            keys,
            units,
            open,
            running: Arc::default(),
        }
    }

    /// Starts a job, unless it is running already.
    pub fn begin(&self, job: HostJob) {
        if !self.running.lock().insert(job.id) {
            return;
        }
        let jobs = self.clone();
        tokio::spawn(async move {
            let report = ReportJob {
                job: job.id,
                answer: jobs.run(job.kind).await,
            };
            if let Err(error) = jobs.controller.call_until_answered(&report).await {
                tracing::error!(job = job.id, %error, "controller did not accept job result");
            }
            jobs.running.lock().remove(&job.id);
        });
    }

    async fn run(&self, job: JobKind) -> JobResult {
        match job {
            JobKind::AddUnit { url, .. } => self.units.add(&url).await.map(JobOutput::Unit),
            JobKind::AddKey { name } => self.add_key(name).await,
            JobKind::ReadEvents {
                attachment,
                after,
                count_max,
                wait_ms,
            } => {
                let wait = Duration::from_millis(wait_ms).min(EVENTS_WAIT_MAX);
                let read = self.read_events(attachment, after, count_max, wait).await;
                read.map(JobOutput::Events)
            }
        }
    }

    /// Creates the wrapping key that this host calls `name`. If a crash came after an earlier
    /// attempt, the key may exist already.
    async fn add_key(&self, name: String) -> JobResult {
        let known = self.keys.listed().into_iter().find(|key| key.name == name);
        let key = match known {
            Some(key) => Ok(key),
            None => create_key(&self.keys, &self.controller, name).await,
        };
        if let Ok(key) = &key {
            // The requester expects that new volumes use the key.
            let is_listed = |listed: &Vec<ListedKey>| listed.iter().any(|one| one.id == key.id);
            host::timeout(LISTED_WITHIN, self.keys.until_listed(is_listed)).await;
        }
        key.map(JobOutput::Key).map_err(|error| Refusal {
            field: matches!(error, CreateKeyError::Key(HostKeyError::Unnamed { .. }))
                .then(|| "name".to_owned()),
            message: with_causes(&error),
        })
    }

    /// Reads the events of an attachment's filters.
    async fn read_events(
        &self,
        attachment: AttachmentId,
        after: Option<u64>,
        count_max: u32,
        wait: Duration,
    ) -> Result<EventLines, Refusal> {
        let open = self.open.get(attachment);
        let events = open.and_then(|open_volume| open_volume.events().cloned());
        match events {
            Some(events) => Ok(events.after(after, count_max as usize, wait).await),
            None => Err(Refusal {
                field: None,
                message: "the attachment has no filters that report events, or is not open"
                    .to_owned(),
            }),
        }
    }
}

/// Creates a wrapping key, and registers it with the controllers.
pub(crate) async fn create_key(
    keys: &Arc<HostKeys>,
    controller: &Controller,
    name: String,
) -> Result<ListedKey, CreateKeyError> {
    let (keys, created) = (Arc::clone(keys), name.clone());
    let parameters = blocking(move || keys.create(&created)).await??;
    let parameters =
        serde_json::to_value(parameters).map_err(|source| HostKeyError::Parameters {
            name: name.clone(),
            source,
        })?;
    let register = RegisterKey { name, parameters };
    Ok(controller.call(&register).await?)
}
