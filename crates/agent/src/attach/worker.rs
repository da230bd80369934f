//! [`Worker`]: one attachment. It observes, decides ([`decide`]) and acts, again and again, until
//! what is desired and what is agree.
//!
//! A worker takes one action at a time, so a volume is never opened while it is closed. A report is
//! true when it is made, and made again whenever it changes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::host::{Assignment, AttachmentReport, AttachmentState};
use api::types::Message;
use base::{SnapshotId, VolumeId};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use world::host;

use super::decide::{Action, Desired, Findings, Observed, ObservedVolume, decide};
use super::opener::VolumeOpener;
use super::{AttachError, messages};
use crate::cache::Caching;
use crate::context::{HostContext, blocking};
use crate::controller::Controller;
use crate::export::{Attached, NbdServer, OpenVolumes};
use crate::filters::{ChainState, Filters, quarantine_filter_journals};
use crate::journals::{LocalJournals, SharedJournals, quarantine};
use crate::vm::Plugging;

/// The first and the longest pause after a failure.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What a worker is given.
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

/// A worker, as others see it.
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
        let work = Work::new(parts.clone(), send_tried);
        Self {
            volume,
            desired: send,
            tried,
            task: tokio::spawn(work.run(desired)),
        }
    }

    /// The volume of its attachment.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// From now on this is desired of it.
    pub fn assign(&self, assignment: Assignment) {
        let next = Desired::Assigned(Box::new(assignment));
        self.desired.send_if_modified(|desired| {
            let is_new = *desired != next;
            *desired = next;
            is_new
        });
    }

    /// The attachment is not this host's any more.
    pub fn remove(&self) {
        self.desired.send_replace(Desired::Removed);
    }

    /// Ends when what was desired first has been tried.
    pub fn tried(&self) -> impl Future<Output = ()> + use<> {
        let mut tried = self.tried.clone();
        async move {
            // A worker that has ended has tried, too.
            let _ = tried.wait_for(|tried| *tried).await;
        }
    }

    /// Closes the volume, and ends; whether all that was written is in versions then.
    pub async fn end(self) -> bool {
        self.desired.send_replace(Desired::Shutdown);
        self.task.await.unwrap_or(false)
    }
}

/// What a worker does after an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Decide at once.
    Decide,
    /// Decide after this time, or as soon as something else is desired.
    After(Duration),
    /// Decide as soon as something else is desired.
    Wait,
    /// End; whether all that was written is in versions.
    End(bool),
}

/// The state of a worker.
pub(super) struct Work {
    pub parts: WorkerParts,
    tried: watch::Sender<bool>,
    /// The pause after the next failure.
    retry: Duration,
    pub observed: Observed,
    pub attached: Option<Arc<Attached>>,
    /// Why the engine has stopped, if it has.
    pub stopped: Option<String>,
    /// Snapshots whose consistency point was taken since the volume was opened.
    pub snapshots: HashSet<SnapshotId>,
    pub size_bytes: u64,
    pub blocks_written: u64,
    /// When the VM was last seen to have the disk.
    pub seen_in_vm: Option<Duration>,
    /// A journal from before another host had the volume is quarantined.
    is_journal_quarantined: bool,
    /// The first generation that failed because flushed writes cannot be had.
    journal_lost_for: Option<u64>,
    pub chain: ChainState,
    /// What the user should know although nothing is wrong.
    pub notice: Option<Message>,
    /// The serial by which the VM knows the disk.
    pub device: Option<String>,
    /// The last report that a controller has heard.
    pub reported: Option<AttachmentReport>,
}

impl Work {
    fn new(parts: WorkerParts, tried: watch::Sender<bool>) -> Self {
        Self {
            parts,
            tried,
            retry: Duration::ZERO,
            observed: Observed::default(),
            attached: None,
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
            if next == Next::Decide {
                continue;
            }
            self.observed.findings = Findings::default();
            let changed = match next {
                Next::End(is_clean) => return is_clean,
                Next::After(time) => {
                    self.tried.send_replace(true);
                    host::timeout(time, desired.changed()).await
                }
                Next::Wait | Next::Decide => {
                    self.tried.send_replace(true);
                    Some(desired.changed().await)
                }
            };
            if let Some(Err(_)) = changed {
                // The agent was dropped.
                let action = decide(&Desired::Shutdown, &self.observed);
                return self.act(action, &Desired::Shutdown).await == Next::End(true);
            }
        }
    }

    async fn act(&mut self, action: Action, desired: &Desired) -> Next {
        let assignment = match desired {
            Desired::Assigned(assignment) => assignment,
            Desired::Removed | Desired::Shutdown => return self.end(action).await,
        };
        match (action, self.attached.clone()) {
            (Action::Open, _) => self.open(assignment).await,
            (Action::Reopen, Some(attached)) => {
                self.abandon(attached).await;
                Next::Decide
            }
            (Action::Maintain, Some(attached)) => self.maintain(assignment, &attached).await,
            (Action::FindMissingWrites, Some(attached)) => {
                self.find_missing_writes(&attached).await
            }
            (Action::WaitForFilters, Some(attached)) => {
                self.wait_for_filters(assignment, &attached).await
            }
            (Action::Unplug, Some(attached)) => self.unplug(assignment, &attached).await,
            (Action::Close, Some(attached)) => self.close(assignment, attached).await,
            (Action::FindPlug, _) => self.find_plug(assignment).await,
            (Action::FindFilterContent, _) => self.find_filter_content(assignment).await,
            (Action::Settle, _) => self.settle(assignment).await,
            (Action::Detach, _) => self.closed(assignment, Ok(None)).await,
            _ => Next::Wait,
        }
    }

    /// The actions at the end of a worker.
    async fn end(&mut self, action: Action) -> Next {
        match (action, self.attached.clone()) {
            (Action::Abandon, Some(attached)) => {
                tracing::warn!(
                    name = attached.name(),
                    "volume was taken from this host; it is not served any more"
                );
                self.abandon(attached).await;
                Next::End(true)
            }
            (Action::CloseAndEnd, Some(attached)) => Next::End(self.close_at_end(attached).await),
            _ => Next::End(true),
        }
    }

    /// Opens and serves the volume. A journal from before another host's lease is quarantined
    /// first, before the controller hears of a lease: from then on the journal here is this
    /// attachment's.
    async fn open_and_serve(
        &mut self,
        assignment: &Assignment,
    ) -> Result<Arc<Attached>, AttachError> {
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

    async fn open(&mut self, assignment: &Assignment) -> Next {
        match self.open_and_serve(assignment).await {
            Ok(attached) => {
                tracing::info!(
                    volume = %assignment.volume,
                    name = assignment.name,
                    access = %assignment.access,
                    "volume attached"
                );
                self.note_open(assignment, attached);
                Next::Decide
            }
            Err(AttachError::Ending) => Next::Wait,
            Err(error) => {
                self.journal_lost_since(assignment, &error);
                let mut why = messages::open_failure(
                    &assignment.name,
                    &error,
                    self.parts.shared_journals.is_some(),
                );
                let filters = &self.parts.filters;
                if !assignment.attached && matches!(filters.have_more(assignment).await, Ok(true)) {
                    why = format!("{why}; {}", messages::FILTERS_HAVE_MORE);
                }
                let volume = assignment.volume;
                tracing::error!(%volume, name = assignment.name, why, "volume cannot be opened");
                let problem = Message::new(error.message_code(), why);
                self.report(assignment, AttachmentState::Error, Some(problem))
                    .await;
                self.later()
            }
        }
    }

    fn note_open(&mut self, assignment: &Assignment, attached: Arc<Attached>) {
        let chain = attached.chain().as_ref().map(|chain| chain.key);
        self.chain = ChainState::served(chain);
        self.parts.open.insert(Arc::clone(&attached));
        self.attached = Some(attached);
        self.observed.open = Some(ObservedVolume {
            opened_for: assignment.generation,
            has_stopped: false,
        });
        self.observed.findings = Findings::default();
        self.retry = Duration::ZERO;
        self.snapshots.clear();
        self.stopped = None;
        self.journal_lost_for = None;
        // The engine says what it was opened with.
        self.size_bytes = 0;
    }

    /// The volume is not open any more.
    pub fn note_closed(&mut self, attached: &Arc<Attached>) {
        self.parts.open.remove(attached);
        self.attached = None;
        self.observed.open = None;
    }

    /// Stops to serve a volume, and leaves its journal as it is.
    async fn abandon(&mut self, attached: Arc<Attached>) {
        self.note_closed(&attached);
        if let Err(error) = self.parts.opener.abandon(attached).await {
            tracing::warn!(%error, "volume was not dropped cleanly");
        }
    }

    /// The next attempt follows after twice the last pause.
    pub fn later(&mut self) -> Next {
        self.retry = (self.retry * 2).clamp(RETRY_MIN, RETRY_MAX);
        Next::After(self.retry)
    }

    /// The next failure is tried again soon.
    pub fn reset_retry(&mut self) {
        self.retry = Duration::ZERO;
    }

    /// The first generation that failed because flushed writes cannot be had, if that is the
    /// error: only a force that is desired later gives them up.
    pub fn journal_lost_since(
        &mut self,
        assignment: &Assignment,
        error: &AttachError,
    ) -> Option<u64> {
        let is_lost = error.is_journal_lost(self.parts.shared_journals.is_some());
        is_lost.then(|| *self.journal_lost_for.get_or_insert(assignment.generation))
    }
}
