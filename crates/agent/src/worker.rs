//! One attachment, from what is wanted to what is: the next step again and
//! again, until both agree.
//!
//! ```text
//!   wanted      open                not open
//!   attached    plug and tend it    open it, later again if that fails
//!   detached    wait until it has   settle its journal if it was ever leased;
//!               all that its filters  tell. If its VM may still have it, or its
//!               have; unplug,       filters have what it lacks, open it first:
//!               close it            only a disk that answers is let go of
//!   gone        let go              end
//!   ending      close it            end; a VM that has it waits for the next
//!                                   process
//! ```
//!
//! A worker takes one step at a time, so a volume is never opened while it is
//! closed. What a controller hears is true when it is said; it says so once
//! more whenever it changes.

mod closing;
mod filters;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::host::{Access, Assignment, AttachmentReport, AttachmentState};
use base::{SnapshotId, VolumeId, with_causes};
use catalog::CatalogError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volume::{OpenError, Volume};
use world::host;

use crate::agent::{Agent, Inner, lock};
use crate::attached::{AttachError, Attached};
use crate::chains::{self, ChainState};
use crate::plugging::{DOES_NOT_WAIT, serial};
use crate::serving::Serving;
use filters::FILTERS_HAVE_MORE;

/// How often an open volume is looked at, if nothing else is wanted.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often a VM is asked whether it still has its disk.
const LOOK_AT_VM_EVERY: Duration = Duration::from_secs(10);

/// What fails is tried again after so long at first, and at last.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What helps where what was flushed last cannot be had.
const JOURNAL_LOST: &str = "bring that back, or give up what was flushed last with `scree detach \
     --force`, now that this is known";

/// What is wanted of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    /// What the controllers say.
    Is(Box<Assignment>),
    /// It is none of this host's any more.
    Gone,
    /// The process ends.
    End,
}

/// An open volume, seen from outside its worker.
#[derive(Default)]
struct Shared {
    open: Mutex<Option<Arc<Attached>>>,
}

/// See the module's head.
pub(crate) struct Worker {
    volume: VolumeId,
    wishes: watch::Sender<Wish>,
    shared: Arc<Shared>,
    tried: watch::Receiver<bool>,
    task: JoinHandle<bool>,
}

impl Worker {
    fn start(agent: &Agent, wish: Assignment) -> Self {
        let volume = wish.volume;
        let (wishes, wanted) = watch::channel(Wish::Is(Box::new(wish)));
        let (tell_tried, tried) = watch::channel(false);
        let shared = Arc::<Shared>::default();
        let work = Work {
            agent: agent.clone(),
            shared: Arc::clone(&shared),
            tried: tell_tried,
            wait: Duration::ZERO,
            cuts: HashSet::new(),
            size_bytes: 0,
            blocks_written: 0,
            stopped: None,
            opened_for: 0,
            looked_at_vm: None,
            is_unplugged: false,
            is_journal_aside: false,
            journal_lost_for: None,
            chain: ChainState::default(),
            note: None,
            device: None,
            told: None,
        };
        Self {
            volume,
            wishes,
            shared,
            tried,
            task: tokio::spawn(work.run(wanted)),
        }
    }

    /// The volume, while it is open.
    pub fn open(&self) -> Option<(VolumeId, Arc<Attached>)> {
        let open = lock(&self.shared.open).clone();
        open.map(|attached| (self.volume, attached))
    }

    /// Whether it has to do with `volume`.
    pub fn is_of(&self, volume: VolumeId) -> bool {
        self.volume == volume
    }

    /// Ends when what was wanted first has been tried.
    pub fn tried(&self) -> impl Future<Output = ()> + use<> {
        let mut tried = self.tried.clone();
        async move {
            // One that has ended has tried, too.
            let _ = tried.wait_for(|tried| *tried).await;
        }
    }

    /// Closes the volume, and ends; whether all is in versions then.
    pub async fn end(self) -> bool {
        self.wishes.send_replace(Wish::End);
        self.task.await.unwrap_or(false)
    }
}

impl Agent {
    /// What is wanted now is what is in `wanted`, and nothing else.
    pub(crate) fn set_wishes(&self, wanted: Vec<Assignment>) {
        let mut workers = lock(&self.inner.workers);
        if self.is_ending() {
            return;
        }
        let ids: HashSet<_> = wanted.iter().map(|wish| wish.id).collect();
        workers.retain(|id, worker| {
            if !ids.contains(id) {
                worker.wishes.send_replace(Wish::Gone);
            }
            ids.contains(id)
        });
        for wish in wanted {
            match workers.get(&wish.id) {
                Some(worker) => {
                    worker.wishes.send_if_modified(|now| {
                        let next = Wish::Is(Box::new(wish));
                        let is_news = *now != next;
                        *now = next;
                        is_news
                    });
                }
                None => {
                    workers.insert(wish.id, Worker::start(self, wish));
                }
            }
        }
    }
}

/// When to go on if nothing else is wanted.
enum Next {
    Now,
    After(Duration),
    Never,
}

/// A worker's own side.
struct Work {
    agent: Agent,
    shared: Arc<Shared>,
    tried: watch::Sender<bool>,
    /// How long the next failure makes it wait.
    wait: Duration,
    /// Snapshots whose moment was taken since it was opened.
    cuts: HashSet<SnapshotId>,
    size_bytes: u64,
    blocks_written: u64,
    stopped: Option<String>,
    /// The wish for which it was opened.
    opened_for: u64,
    /// When its VM was last seen to have it.
    looked_at_vm: Option<Duration>,
    /// A journal from before another host had the volume is out of the way.
    is_journal_aside: bool,
    /// The first wish that could not be met because what was flushed last
    /// cannot be had.
    journal_lost_for: Option<u64>,
    /// Its VM has it no more.
    is_unplugged: bool,
    /// The filters that it is served through.
    chain: ChainState,
    /// What is worth knowing and no error.
    note: Option<String>,
    /// By what the VM knows it.
    device: Option<String>,
    /// What was heard last.
    told: Option<AttachmentReport>,
}

impl Work {
    async fn run(mut self, mut wishes: watch::Receiver<Wish>) -> bool {
        loop {
            let wish = wishes.borrow_and_update().clone();
            let next = match &wish {
                Wish::Is(wish) => self.step(wish).await,
                Wish::Gone => return self.let_go().await,
                Wish::End => return self.end().await,
            };
            if !matches!(next, Next::Now) {
                // And told.
                self.tried.send_replace(true);
            }
            let changed = match next {
                Next::Now => continue,
                Next::After(time) => host::timeout(time, wishes.changed()).await,
                Next::Never => Some(wishes.changed().await),
            };
            if let Some(Err(_)) = changed {
                // Nobody wants anything any more.
                return self.end().await;
            }
        }
    }

    async fn step(&mut self, wish: &Assignment) -> Next {
        let open = lock(&self.shared.open).clone();
        match (open, wish.attached) {
            (None, true) => self.open(wish).await,
            (Some(attached), true) => self.tend(wish, attached).await,
            (Some(attached), false) => self.close(wish, attached).await,
            (None, false) => self.settle(wish).await,
        }
    }

    /// Opens and serves it. A journal of this host's that is of a lease before
    /// another host's is put aside first, before the controller hears that a
    /// lease is taken: from then on the journal here is this attachment's.
    async fn open_and_serve(&mut self, wish: &Assignment) -> Result<Arc<Attached>, AttachError> {
        if let Some(epoch) = wish.fenced
            && !self.is_journal_aside
        {
            self.agent.put_aside(wish.volume, epoch).await?;
        }
        self.is_journal_aside = true;
        self.agent.open_and_serve(wish).await
    }

    async fn open(&mut self, wish: &Assignment) -> Next {
        match self.open_and_serve(wish).await {
            Ok(attached) => {
                tracing::info!(volume = %wish.volume, name = wish.name, access = %wish.access,
                    "attached");
                let chain = lock(&attached.chain).as_ref().map(|chain| chain.key);
                *lock(&self.shared.open) = Some(attached);
                self.chain = ChainState::served(chain);
                self.wait = Duration::ZERO;
                self.cuts.clear();
                self.stopped = None;
                self.journal_lost_for = None;
                self.opened_for = wish.generation;
                // What it was opened with, it says itself.
                self.size_bytes = 0;
                Next::Now
            }
            Err(AttachError::Ending) => Next::Never,
            Err(error) => {
                self.journal_lost_since(wish, &error);
                let mut why = open_failure(&self.agent.inner, &wish.name, &error);
                if !wish.attached && matches!(self.agent.filters_have_more(wish).await, Ok(true)) {
                    why = format!("{why}; {FILTERS_HAVE_MORE}");
                }
                tracing::error!(volume = %wish.volume, name = wish.name, why, "cannot be opened");
                self.tell(wish, AttachmentState::Error, Some(why)).await;
                self.later()
            }
        }
    }

    /// Does what an open volume is to do, and looks how it is.
    async fn tend(&mut self, wish: &Assignment, attached: Arc<Attached>) -> Next {
        if self.stopped.is_some() && wish.generation != self.opened_for {
            // Somebody has looked at it, and wants it once more.
            self.abandon(attached).await;
            return Next::Now;
        }
        attached.follow_image(wish.image);
        let caching = &self.agent.inner.caching;
        caching.bound_share(wish.volume, wish.cache_max_bytes);
        let why = self.look_at_engine(wish, &attached).await;
        if why.is_some() {
            self.tell(wish, AttachmentState::Error, why).await;
            return Next::After(LOOK_EVERY);
        }
        self.keep_chain(wish, &attached).await;
        match self.keep_plugged(wish).await {
            Ok(()) => {
                self.wait = Duration::ZERO;
                self.tell(wish, AttachmentState::Attached, None).await;
                Next::After(LOOK_EVERY)
            }
            Err(why) => {
                tracing::warn!(volume = %wish.volume, why, "not plugged");
                self.tell(wish, AttachmentState::Error, Some(why)).await;
                self.later()
            }
        }
    }

    /// Puts the filters in place that are wanted, unless they are and show how large the volume
    /// is by now; now and then again, if they do not begin.
    async fn keep_chain(&mut self, wish: &Assignment, attached: &Arc<Attached>) {
        let now = self.agent.inner.world.clock.monotonic();
        if wish.chain.is_some() {
            // If its thread has ended, whoever looks at the engine next says so.
            let hides_growth = self.agent.hides_growth(attached).await;
            self.chain.hides_growth = hides_growth.unwrap_or(false);
        }
        if !self.chain.is_to_change(wish, now) {
            return;
        }
        match self.agent.exchange_chain(wish, attached).await {
            Ok(()) => {
                let revision = chains::wanted(wish).map(|chain| chain.revision);
                tracing::info!(volume = %wish.volume, revision, "filters exchanged");
                self.chain = ChainState::served(chains::wanted(wish));
            }
            Err(error) => {
                let why = with_causes(&error);
                tracing::warn!(volume = %wish.volume, why, "filters not exchanged");
                let now = self.agent.inner.world.clock.monotonic();
                self.chain.failed(wish, why, now);
            }
        }
    }

    /// Plugs it into its VM, and looks now and then whether it still is.
    async fn keep_plugged(&mut self, wish: &Assignment) -> Result<(), String> {
        let Some(vm) = &wish.vm else { return Ok(()) };
        self.is_unplugged = false;
        let now = self.agent.inner.world.clock.monotonic();
        let is_fresh = |looked: Duration| now.saturating_sub(looked) < LOOK_AT_VM_EVERY;
        if self.looked_at_vm.is_some_and(is_fresh) {
            return Ok(());
        }
        match self.agent.plug(wish, vm).await {
            Ok(plugged) => {
                if !plugged.was_there {
                    tracing::info!(volume = %wish.volume, vm, "plugged");
                }
                self.looked_at_vm = Some(now);
                self.device = serial(wish).ok().map(|serial| serial.to_string());
                self.note = (!plugged.waits_for_server).then(|| DOES_NOT_WAIT.to_owned());
                Ok(())
            }
            // Its monitor may be in use for now; the disk is where it was.
            Err(error) if self.looked_at_vm.is_some() && !error.is_gone() => {
                tracing::debug!(vm, %error, "it could not be looked at");
                Ok(())
            }
            Err(error) => {
                self.looked_at_vm = None;
                self.device = None;
                Err(error.to_string())
            }
        }
    }

    /// Does what an open volume is to do, and looks how it is: why it has
    /// stopped, if it has.
    async fn look_at_engine(
        &mut self,
        wish: &Assignment,
        attached: &Arc<Attached>,
    ) -> Option<String> {
        let cuts: Vec<SnapshotId> = wish
            .cuts
            .iter()
            .copied()
            .filter(|cut| !self.cuts.contains(cut))
            .collect();
        let size_bytes = wish.size_bytes;
        let is_grown = wish.access == Access::ReadWrite && size_bytes > self.size_bytes;
        let taken = cuts.clone();
        let acted = match is_grown || !cuts.is_empty() {
            true => {
                let act = move |volume: &mut Volume| {
                    if is_grown {
                        volume.grow(size_bytes);
                    }
                    for cut in taken {
                        volume.snapshot(cut);
                    }
                };
                self.agent.on_volume(attached, act).await
            }
            false => Ok(()),
        };
        let seen = match acted {
            Ok(()) => self.agent.engine_status(attached).await,
            Err(error) => Err(error),
        };
        let why = match seen {
            Ok(status) => {
                self.size_bytes = status.size_bytes;
                self.note_writes(wish.volume, status.counters.blocks_written);
                status.stopped
            }
            Err(error) => Some(error.to_string()),
        };
        match &why {
            None => self.tell_cuts(cuts).await,
            Some(why) if self.stopped.is_none() => {
                tracing::error!(volume = %wish.volume, why, "the volume has stopped");
            }
            Some(_) => {}
        }
        self.stopped.clone_from(&why);
        why
    }

    fn note_writes(&mut self, volume: VolumeId, blocks_written: u64) {
        let mut busy = lock(&self.agent.inner.busy);
        if std::mem::replace(&mut self.blocks_written, blocks_written) == blocks_written {
            busy.remove(&volume);
        } else {
            busy.insert(volume);
        }
    }

    async fn tell_cuts(&mut self, cuts: Vec<SnapshotId>) {
        for cut in cuts {
            self.cuts.insert(cut);
            if let Err(error) = self.agent.inner.controller.cut_taken(cut).await {
                tracing::error!(snapshot = %cut, %error, "that it was taken was not heard");
            }
        }
    }

    /// The attachment is somebody else's, or nobody's.
    async fn let_go(&mut self) -> bool {
        let open = lock(&self.shared.open).clone();
        if let Some(attached) = open {
            tracing::warn!(name = attached.name, "taken away; it is served no more");
            self.abandon(attached).await;
        }
        true
    }

    /// Serves a volume no more, and leaves its journal as it is.
    async fn abandon(&mut self, attached: Arc<Attached>) {
        *lock(&self.shared.open) = None;
        if let Err(error) = self.agent.abandon(attached).await {
            tracing::warn!(%error, "a volume was not let go of cleanly");
        }
    }

    async fn end(&mut self) -> bool {
        let Some(attached) = lock(&self.shared.open).take() else {
            return true;
        };
        let (name, volume) = (attached.name.clone(), attached.volume());
        let is_writer = attached.epoch.is_some();
        match self.agent.stop_and_close(attached, true).await {
            Ok(()) => {}
            Err(error) => {
                tracing::error!(name, %error, "not closed cleanly; its journal has the rest");
                return false;
            }
        }
        if !is_writer {
            return true;
        }
        match self.agent.filters_hold_nothing(volume).await {
            Ok(()) => true,
            Err(why) => {
                tracing::error!(name, %why, "its filters go on with that when it is opened again");
                false
            }
        }
    }

    /// Tells the controllers, if that is news; whether this wish's state is
    /// what they have heard.
    async fn tell(
        &mut self,
        wish: &Assignment,
        state: AttachmentState,
        reason: Option<String>,
    ) -> bool {
        let inner = &self.agent.inner;
        let serving = &inner.serving;
        let is_served = state == AttachmentState::Attached;
        let uri = || match wish.vm {
            None => serving.uri(&wish.name),
            Some(_) => Serving::own_uri(&wish.id.to_string(), &inner.folder.vm_socket(wish.id)),
        };
        let tcp_uri = || serving.tcp_uri(&wish.name).filter(|_| wish.vm.is_none());
        let report = AttachmentReport {
            generation: wish.generation,
            state,
            reason,
            note: self.note.clone(),
            device: self.device.clone(),
            chain: self.chain.served.filter(|_| is_served),
            chain_problem: self.chain.problem.clone().filter(|_| is_served),
            size_bytes: is_served.then_some(self.size_bytes),
            uri: is_served.then(uri),
            tcp_uri: is_served.then(tcp_uri).flatten(),
        };
        if self.told.as_ref() == Some(&report) {
            return true;
        }
        match self
            .agent
            .inner
            .controller
            .report_attachment(wish.id, &report)
            .await
        {
            // An older wish's is heard by nobody; the next one is on its way.
            Ok(is_kept) => {
                self.told = Some(report);
                is_kept
            }
            Err(error) => {
                tracing::error!(%error, "how an attachment is was not heard");
                false
            }
        }
    }

    fn later(&mut self) -> Next {
        self.wait = (self.wait * 2).clamp(RETRY_MIN, RETRY_MAX);
        Next::After(self.wait)
    }
}

/// Says why a volume is not served, and what to do.
fn open_failure(inner: &Inner, name: &str, error: &AttachError) -> String {
    let hint = match error {
        AttachError::Older(_)
        | AttachError::BeforeLeaseKeys
        | AttachError::Unsealed
        | AttachError::FilterJournalLost(_) => {
            return format!("volume {name:?} cannot be opened: {error}");
        }
        error if error.is_journal_lost(inner) => JOURNAL_LOST,
        AttachError::Open(OpenError::Journal(error)) if error.is_loss() => {
            "restore the file, or move it away: without its journal it opens at its newest version"
        }
        AttachError::Open(OpenError::Journal(_)) => {
            "its journal may have what was flushed last, and is to stay as it is"
        }
        AttachError::Journals(_) => "nothing of it is lost",
        AttachError::Chain(_) | AttachError::FilterJournals(_) => {
            "`scree chain show` says which filters there are"
        }
        AttachError::Key(_) | AttachError::HostKey(_) => {
            "an administrator sees the wrapping keys there are with `scree key list`"
        }
        AttachError::Lease(CatalogError::Refused { .. }) => "see what its controller says",
        _ => "an administrator sees what is missing with `scree unit list` and `scree status`",
    };
    format!("volume {name:?} cannot be opened: {error}; {hint}; it is tried again")
}
