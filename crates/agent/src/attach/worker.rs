//! [`Worker`]: one attachment. It observes, decides ([`decide`]) and acts until the observed state
//! is the desired one.
//!
//! A worker takes one action at a time, so opening and closing a volume never overlap. A report is
//! true when it is made, and is made again whenever it changes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::host::{Assignment, AttachmentReport, AttachmentState};
use api::types::Message;
use base::{SnapshotId, VolumeId};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use world::host;

use super::decide::{AttachAction, Desired, Findings, Observed, ObservedVolume, decide};
use super::opener::VolumeOpener;
use super::{AttachError, messages};
use crate::cache::Caching;
use crate::context::{HostContext, blocking};
use crate::controller::Controller;
use crate::export::{NbdServer, OpenVolume, OpenVolumes};
use crate::filters::{ChainState, Filters, quarantine_filter_journals};
use crate::journals::{LocalJournals, SharedJournals, quarantine};
use crate::vm::Plugging;

/// The first and the longest pause after a failure.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The parts of the agent that a worker uses.
#[derive(Clone)]
pub(crate) struct WorkerParts {
    pub context: Arc<HostContext>,
    pub controller: Controller,
    pub opener: VolumeOpener,
    pub filters: Arc<Filters>,
    pub plugging: Arc<Plugging>,
    pub server: Arc<NbdServer>,
    pub caching: Arc<Caching>,
    pub open: Arc<OpenVolumes>,
    pub local_journals: Arc<LocalJournals>,
    pub shared_journals: Option<Arc<SharedJournals>>,
}

/// The handle of a worker.
pub(super) struct Worker {
    volume: VolumeId,
    desired: watch::Sender<Desired>,
    tried: watch::Receiver<bool>,
    task: JoinHandle<bool>,
}

impl Worker {
    pub fn start(parts: &WorkerParts, assignment: Assignment) -> Self {
        let volume = assignment.volume;
        let (send, desired) = watch::channel(Desired::Assigned(Box::new(assignment)));
        let (send_tried, tried) = watch::channel(false);
        let work = WorkerState::new(parts.clone(), send_tried);
        Self {
            volume,
            desired: send,
            tried,
            task: tokio::spawn(work.run(desired)),
        }
    }

    /// The volume of the worker's attachment.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Sets the desired state.
    pub fn assign(&self, assignment: Assignment) {
        let next = Desired::Assigned(Box::new(assignment));
        self.desired.send_if_modified(|desired| {
            let is_new = *desired != next;
            *desired = next;
            is_new
        });
    }

    /// Ends the worker: the attachment does not belong to this host any more.
    pub fn remove(&self) {
        self.desired.send_replace(Desired::Removed);
    }

    /// Ends when the first desired state has been tried.
    pub fn tried(&self) -> impl Future<Output = ()> + use<> {
        let mut tried = self.tried.clone();
        async move {
            // A worker that has ended has tried as well.
            let _ = tried.wait_for(|tried| *tried).await;
        }
    }

    /// Closes the volume and ends the worker. Returns whether all writes are in versions.
    pub async fn end(self) -> bool {
        self.desired.send_replace(Desired::Shutdown);
        self.task.await.unwrap_or(false)
    }
}

/// What a worker does after an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Decide at once.
    Decide,
    /// Decide after this time, or as soon as the desired state changes.
    After(Duration),
    /// Decide as soon as the desired state changes.
    Wait,
    /// End; the flag says whether all writes are in versions.
    End(bool),
}

/// The state of a worker.
pub(super) struct WorkerState {
    pub parts: WorkerParts,
    tried: watch::Sender<bool>,
    /// The pause after the next failure.
    retry: Duration,
    pub observed: Observed,
    pub open_volume: Option<Arc<OpenVolume>>,
    /// Why the engine has stopped; `None` while it runs.
    pub stopped: Option<String>,
    /// Snapshots whose consistency points were taken since the volume was opened.
    pub snapshots: HashSet<SnapshotId>,
    pub size_bytes: u64,
    pub blocks_written: u64,
    /// When the VM was last seen with the disk, by the monotonic clock.
    pub seen_in_vm: Option<Duration>,
    /// A journal from before another host had the volume is quarantined.
    is_journal_quarantined: bool,
    /// The first generation that failed because flushed writes are unavailable.
    journal_lost_for: Option<u64>,
    pub chain: ChainState,
    /// A message for the report that is not an error.
    pub notice: Option<Message>,
    /// The serial by which the VM knows the disk.
    pub device: Option<String>,
    /// The last report that a controller accepted.
    pub reported: Option<AttachmentReport>,
}

impl WorkerState {
    fn new(parts: WorkerParts, tried: watch::Sender<bool>) -> Self {
        Self {
            parts,
            tried,
            retry: Duration::ZERO,
            observed: Observed::default(),
            open_volume: None,
            stopped: None,
            snapshots: HashSet::new(),
            size_bytes: 0,
            blocks_written: 0,
            seen_in_vm: None,
            is_journal_quarantined: false,
            journal_lost_for: None,
            chain: ChainState::default(),
            notice: None,
            device: None,
            reported: None,
        }
    }

    async fn run(mut self, mut desired: watch::Receiver<Desired>) -> bool {
        loop {
            let now = desired.borrow_and_update().clone();
            let action = decide(&now, &self.observed);
            let next = self.act(action, &now).await;
            if next == NextStep::Decide {
                continue;
            }
            self.observed.findings = Findings::default();
            let changed = match next {
                NextStep::End(is_clean) => return is_clean,
                NextStep::After(time) => {
                    self.tried.send_replace(true);
                    host::timeout(time, desired.changed()).await
                }
                NextStep::Wait | NextStep::Decide => {
                    self.tried.send_replace(true);
                    Some(desired.changed().await)
                }
            };
            if let Some(Err(_)) = changed {
                // The agent was dropped.
                let action = decide(&Desired::Shutdown, &self.observed);
                return self.act(action, &Desired::Shutdown).await == NextStep::End(true);
            }
        }
    }

    async fn act(&mut self, action: AttachAction, desired: &Desired) -> NextStep {
        let assignment = match desired {
            Desired::Assigned(assignment) => assignment,
            Desired::Removed | Desired::Shutdown => return self.end(action).await,
        };
        match (action, self.open_volume.clone()) {
            (AttachAction::Open, _) => self.open(assignment).await,
            (AttachAction::Reopen, Some(open_volume)) => {
                self.abandon(open_volume).await;
                NextStep::Decide
            }
            (AttachAction::Maintain, Some(open_volume)) => {
                self.maintain(assignment, &open_volume).await
            }
            (AttachAction::FindMissingWrites, Some(open_volume)) => {
                self.find_missing_writes(&open_volume).await
            }
            (AttachAction::WaitForFilters, Some(open_volume)) => {
                self.wait_for_filters(assignment, &open_volume).await
            }
            (AttachAction::Unplug, Some(open_volume)) => {
                self.unplug(assignment, &open_volume).await
            }
            (AttachAction::Close, Some(open_volume)) => self.close(assignment, open_volume).await,
            (AttachAction::FindPlug, _) => self.find_plug(assignment).await,
            (AttachAction::FindFilterContent, _) => self.find_filter_content(assignment).await,
            (AttachAction::DestageJournal, _) => self.destage_journal(assignment).await,
            (AttachAction::Detach, _) => self.closed(assignment, Ok(None)).await,
            _ => NextStep::Wait,
        }
    }

    /// Runs the last action of a worker.
    async fn end(&mut self, action: AttachAction) -> NextStep {
        match (action, self.open_volume.clone()) {
            (AttachAction::Abandon, Some(open_volume)) => {
                tracing::warn!(
                    name = open_volume.name(),
                    "agent stopped serving volume, which was taken from this host"
                );
                self.abandon(open_volume).await;
                NextStep::End(true)
            }
            (AttachAction::CloseAndEnd, Some(open_volume)) => {
                NextStep::End(self.close_at_end(open_volume).await)
            }
            _ => NextStep::End(true),
        }
    }

    /// Opens and serves the volume. A journal from before another host's lease is quarantined
    /// before the controller grants a lease: after that, the journal here belongs to this
    /// attachment.
    async fn open_and_serve(
        &mut self,
        assignment: &Assignment,
    ) -> Result<Arc<OpenVolume>, AttachError> {
        if let Some(epoch) = assignment.fenced
            && !self.is_journal_quarantined
        {
            let context = &self.parts.context;
            let disk = Arc::clone(&context.world.disk);
            let journal = context.folder.journal(assignment.volume);
            let filters = context.folder.chain(assignment.volume);
            let quarantined = blocking(move || {
                quarantine(&*disk, &journal, epoch)?;
                quarantine_filter_journals(&*disk, &filters, &HashSet::new())
            });
            quarantined.await?.map_err(AttachError::Quarantine)?;
        }
        self.is_journal_quarantined = true;
        self.parts.opener.open_and_serve(assignment).await
    }

    async fn open(&mut self, assignment: &Assignment) -> NextStep {
        match self.open_and_serve(assignment).await {
            Ok(open_volume) => {
                tracing::info!(
                    volume = %assignment.volume,
                    name = assignment.name,
                    access = %assignment.access,
                    "agent attached volume"
                );
                self.note_open(assignment, open_volume);
                NextStep::Decide
            }
            Err(AttachError::ShuttingDown) => NextStep::Wait,
            Err(error) => {
                self.journal_lost_since(assignment, &error);
                let mut why = messages::open_failure(
                    &assignment.name,
                    &error,
                    self.parts.shared_journals.is_some(),
                );
                let filters = &self.parts.filters;
                if !assignment.attached
                    && matches!(filters.have_content(assignment).await, Ok(true))
                {
                    why = format!("{why}; {}", messages::FILTERS_UNFINISHED);
                }
                let volume = assignment.volume;
                tracing::error!(%volume, name = assignment.name, error = why, "agent could not open volume");
                let problem = Message::new(error.message_code(), why);
                self.report(assignment, AttachmentState::Error, Some(problem))
                    .await;
                self.retry_later()
            }
        }
    }

    fn note_open(&mut self, assignment: &Assignment, open_volume: Arc<OpenVolume>) {
        let chain = open_volume.chain().as_ref().map(|chain| chain.key);
        self.chain = ChainState::served(chain);
        self.parts.open.insert(Arc::clone(&open_volume));
        self.open_volume = Some(open_volume);
        self.observed.open = Some(ObservedVolume {
            opened_for: assignment.generation,
            has_stopped: false,
        });
        self.observed.findings = Findings::default();
        self.retry = Duration::ZERO;
        self.snapshots.clear();
        self.stopped = None;
        self.journal_lost_for = None;
        // The next status has the size with which the engine was opened.
        self.size_bytes = 0;
    }

    /// Notes that the volume is closed.
    pub fn note_closed(&mut self, open_volume: &Arc<OpenVolume>) {
        self.parts.open.remove(open_volume);
        self.open_volume = None;
        self.observed.open = None;
    }

    /// Stops serving a volume, and leaves its journal unchanged.
    async fn abandon(&mut self, open_volume: Arc<OpenVolume>) {
        self.note_closed(&open_volume);
        if let Err(error) = self.parts.opener.abandon(open_volume).await {
            tracing::warn!(%error, "agent did not drop volume cleanly");
        }
    }

    /// Retries after twice the last pause.
    pub fn retry_later(&mut self) -> NextStep {
        self.retry = (self.retry * 2).clamp(RETRY_MIN, RETRY_MAX);
        NextStep::After(self.retry)
    }

    /// Makes the next failure be retried soon.
    pub fn reset_retry(&mut self) {
        self.retry = Duration::ZERO;
    }

    /// Returns the first generation that failed because flushed writes are unavailable, if `error`
    /// is of that kind: only a `--force` that was desired later abandons them.
    pub fn journal_lost_since(
        &mut self,
        assignment: &Assignment,
        error: &AttachError,
    ) -> Option<u64> {
        let is_lost = error.is_journal_lost(self.parts.shared_journals.is_some());
        is_lost.then(|| *self.journal_lost_for.get_or_insert(assignment.generation))
    }
}
