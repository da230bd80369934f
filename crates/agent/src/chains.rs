//! The filters that a volume is served through: put in place before anybody is let in, and
//! exchanged while it is served, as its owner wants them (docs/chains.md).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::host::{Access, Assignment, ChainKey, EventLines, Refusal, WantedChain};
use auth::KeyRequest;
use base::{AttachmentId, with_causes};
use chain::{
    Attribution, EventSink, Exchange, ExchangeError, NoPrograms, Programs, SizeRule, StateFolder,
    Surroundings, Tenure, Unlimited, build,
};
use chain_policy::{Policy, PolicyError};
use nbd::client::Departed;
use nbd::{ExportGone, Watcher};
use sandbox::{HostIdentity, OutOfProcessFilters, OutOfProcessOptions};
use tokio::sync::oneshot;
use volume::LeaseTerm;
use world::{Clock, Wake, host};
use zeroize::Zeroizing;

use crate::agent::{Agent, TaskEnded, blocking, lock};
use crate::attached::Attached;
use crate::events::EventLog;
use crate::filter_files::Keepers;
use crate::filter_keys::FilterKeys;
use crate::filter_targets::{FilterTargets, OtherVolumes, may_reach};
use crate::worker::Worker;

/// Why a volume is not served through the filters that are wanted.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The policy is none to this program.
    #[error("this host does not know its policy, and may be older than the controller: {0}")]
    Policy(#[from] PolicyError),
    /// The filters that there were go on.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// So many journals were put aside.
    #[error("{0}")]
    Asides(String),
    /// Where filters keep what they have to know.
    #[error("the folder of its filters cannot be used: {0}")]
    Folder(#[from] std::io::Error),
    /// Its thread ended.
    #[error(transparent)]
    Gone(#[from] ExportGone),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

/// The lease on a volume, as its filters see it.
struct FilterLease(LeaseTerm, Arc<dyn Clock>);

impl chain::Lease for FilterLease {
    fn holds(&self) -> bool {
        self.0.holds(&*self.1)
    }
}

/// A certificate that was made for machines of filters counts as long, of a day.
const CREDENTIALS_FOR: Duration = Duration::from_secs(8 * 60 * 60);

/// What this host shows to machines of filters.
pub(crate) struct FilterCredentials {
    chain_pem: String,
    key_pem: Zeroizing<String>,
    made: Duration,
}

impl HostIdentity for Agent {
    /// A key of its own, which controllers sign.
    fn credentials(&self) -> Result<(String, Zeroizing<String>), String> {
        let inner = &self.inner;
        let now = inner.world.clock.monotonic();
        let mut kept = lock(&inner.filter_credentials);
        if let Some(kept) = kept
            .as_ref()
            .filter(|kept| now < kept.made + CREDENTIALS_FOR)
        {
            return Ok((kept.chain_pem.clone(), kept.key_pem.clone()));
        }
        let key = KeyRequest::generate().map_err(|error| error.to_string())?;
        // This is a thread of the pool.
        let issued = inner
            .runtime
            .block_on(inner.controller.certificate(&key.request_pem))
            .map_err(|error| {
                let why = with_causes(&error);
                format!("no controller has signed this host's key: {why}")
            })?;
        *kept = Some(FilterCredentials {
            chain_pem: issued.certificate.clone(),
            key_pem: key.key_pem.clone(),
            made: now,
        });
        Ok((issued.certificate, key.key_pem))
    }
}

/// Reads a policy. To compile its patterns may take tenths of a second.
async fn read(chain: &WantedChain) -> Result<Policy, ChainError> {
    let text = chain.policy.clone();
    Ok(blocking(move || Policy::parse(&text)).await??)
}

impl Agent {
    /// Puts other filters in the place of those that somebody uses the volume through.
    pub(crate) async fn exchange_chain(
        &self,
        wish: &Assignment,
        attached: &Arc<Attached>,
    ) -> Result<(), ChainError> {
        self.note_filters(wish, attached, Some(&wish.chain))
            .await??;
        let put = self.put_chain(wish, attached, SizeRule::Keep).await;
        if put.is_ok() {
            lock(&attached.chain).clone_from(&wish.chain);
        }
        if let Err(error) = self.note_filters(wish, attached, None).await? {
            // Of both that are noted it is found out which one was in use.
            tracing::warn!(volume = %wish.volume, %error, "that filters were exchanged is not noted");
        }
        put
    }

    /// Puts the filters in place that are wanted of a volume: none, without a chain.
    /// Nothing that was asked of it meanwhile is lost.
    pub(crate) async fn put_chain(
        &self,
        wish: &Assignment,
        attached: &Arc<Attached>,
        rule: SizeRule,
    ) -> Result<(), ChainError> {
        let turn = self.new_turn();
        let follows = attached.chain_turn.load(Ordering::Acquire);
        let mut keepers = Keepers::default();
        let filters = match &wish.chain {
            Some(chain) => {
                let mut policy = read(chain).await?;
                if wish.access == Access::ReadOnly {
                    // That is of whoever writes it.
                    policy.filters.retain(|one| !one.kind.keeps_files());
                }
                keepers = Keepers::of(&policy);
                for name in keepers.journals() {
                    let room = self.has_room_for_journal(wish.volume, name).await??;
                    room.map_err(ChainError::Asides)?;
                }
                let tenure = Tenure {
                    epoch: attached.epoch,
                    turn,
                    follows,
                    restores: attached.restores,
                    since: attached.since,
                };
                let surroundings = self.surroundings(wish, chain, attached, tenure).await?;
                Some((policy, surroundings))
            }
            None => None,
        };
        let (tell, told) = oneshot::channel();
        let exchange = move |wake| Exchange {
            filters: filters.map_or_else(Vec::new, |(policy, surroundings)| {
                build(
                    &policy,
                    &Surroundings {
                        wake,
                        ..surroundings
                    },
                )
            }),
            rule,
            told: Box::new(move |ended| {
                // Who has stopped waiting needs no answer.
                let _ = tell.send(ended);
            }),
        };
        let served = Arc::clone(attached);
        blocking(move || served.exchange(exchange)).await??;
        match told.await {
            Ok(ended) => ended?,
            Err(_) => return Err(ExportGone.into()),
        }
        attached.chain_turn.store(turn, Ordering::Release);
        if attached.epoch.is_some() {
            self.tidy_filters(wish.volume, keepers).await;
        }
        // New clients hear what the disk is like by now.
        let served = Arc::clone(attached);
        Ok(blocking(move || served.publish()).await??)
    }

    /// A chain's number, which no other one has, of whatever life of this host.
    pub(crate) fn new_turn(&self) -> u64 {
        let mut turn = [0; 8];
        self.inner.world.random.fill(&mut turn);
        u64::from_le_bytes(turn).max(1)
    }

    /// What the filters of a volume are given, but for its thread's wake.
    async fn surroundings(
        &self,
        wish: &Assignment,
        chain: &WantedChain,
        attached: &Attached,
        tenure: Tenure,
    ) -> Result<Surroundings, ChainError> {
        let inner = &self.inner;
        let state = inner.folder.chain(wish.volume);
        let (world, made) = (inner.world.clone(), state.clone());
        blocking(move || host::make_folders(&*world.disk, &made)).await??;
        let watcher = attached.watcher()?;
        let targets = FilterTargets::new(
            [
                &inner.folder.filter_sockets(),
                &inner.folder.filter_certificates(),
            ],
            Arc::clone(&inner.world.disk),
            &chain.tenant,
            Arc::clone(&inner.filter_networks),
            self.other_volumes(chain),
            (watcher.clone(), self.departed(&chain.tenant)),
            Arc::clone(&inner.world.clock),
        );
        let events = attached.events.get_or_init(|| {
            let folder = self.inner.folder.events();
            Arc::new(EventLog::start(&self.inner.world, &folder, wish.volume))
        });
        Ok(Surroundings {
            clock: Arc::clone(&self.inner.world.clock),
            pool: Arc::clone(&self.inner.world.pool),
            derivations: Arc::clone(&inner.derivations),
            memory_max: inner.filter_memory,
            tenure,
            lease: self.filter_lease(wish),
            room: inner.filter_room,
            random: Arc::clone(&self.inner.world.random),
            keys: Arc::new(FilterKeys::of_tenant(
                &self.inner.world,
                &self.inner.folder.filter_keys(),
                &chain.tenant,
            )),
            wake: Wake::noop(),
            whose: Arc::new(Attribution {
                tenant: chain.tenant.clone(),
                vm: wish.vm.clone(),
                volume: wish.name.clone(),
                volume_id: Some(wish.volume.to_string()),
            }),
            events: Arc::clone(events) as Arc<dyn EventSink>,
            targets: Arc::new(targets),
            programs: self.filter_programs(watcher),
            state: Some(StateFolder {
                disk: Arc::clone(&inner.world.disk),
                path: state,
            }),
        })
    }

    /// The connections that the filters of a tenant have left: what one of them hangs at is no
    /// other tenant's matter.
    fn departed(&self, tenant: &str) -> Arc<Departed> {
        let mut all = lock(&self.inner.departed);
        // Those of whom nothing is heard any more, and who have no chain.
        all.retain(|_, one| Arc::strong_count(one) > 1 || !one.is_empty());
        Arc::clone(all.entry(tenant.to_owned()).or_default())
    }

    /// Until when what is written to a volume may be acknowledged.
    fn filter_lease(&self, wish: &Assignment) -> Arc<dyn chain::Lease> {
        match self.lease_term(wish.id) {
            Some(term) => Arc::new(FilterLease(term, Arc::clone(&self.inner.world.clock))),
            None => Arc::new(Unlimited),
        }
    }

    /// Whether the volume lacks what its filters have elsewhere, as they have kept it here.
    pub(crate) async fn filters_have_more(&self, wish: &Assignment) -> Result<bool, ChainError> {
        // Where another host had it since, what is kept here is of before that.
        let Some(chain) = wish.chain.as_ref().filter(|_| wish.fenced.is_none()) else {
            return Ok(false);
        };
        let state = StateFolder {
            disk: Arc::clone(&self.inner.world.disk),
            path: self.inner.folder.chain(wish.volume),
        };
        // Of a policy that this host does not know, too.
        let mut filters = chain_policy::outline(&chain.policy);
        filters.retain(|one| one.kind == "replicate");
        let have = blocking(move || {
            filters.iter().try_fold(false, |any, one| {
                Ok::<_, std::io::Error>(any | chain::filters::volume_lacks(&state, &one.name)?)
            })
        });
        Ok(have.await??)
    }

    /// What its filters write beside it.
    fn other_volumes(&self, chain: &WantedChain) -> OtherVolumes {
        // Its thread is one of those that the agent ends.
        let inner = Arc::downgrade(&self.inner);
        OtherVolumes {
            named: chain.volumes.clone(),
            export: Box::new(move |id| {
                let inner = inner.upgrade()?;
                let workers = lock(&inner.workers);
                let mut open = workers.values().filter_map(Worker::open);
                let is_it =
                    |(volume, one): &(_, Arc<Attached>)| *volume == id && one.epoch.is_some();
                let (_, attached) = open.find(is_it)?;
                Some(attached.export.name().to_owned())
            }),
            socket: self.inner.folder.nbd_socket(),
        }
    }

    /// What makes the programs of filters that do not run inline.
    fn filter_programs(&self, watcher: Watcher) -> Arc<dyn Programs> {
        let inner = &self.inner;
        let Some(program) = &inner.filter_program else {
            return Arc::new(NoPrograms);
        };
        let options = OutOfProcessOptions {
            program: program.clone(),
            external_programs: Some(inner.folder.filter_programs()),
            sockets: Some(sandbox::sockets_folder(inner.folder.path())),
            disk: Arc::clone(&inner.world.disk),
            host: Some(Arc::new(self.clone())),
            may_reach: {
                let networks = Arc::clone(&inner.filter_networks);
                Arc::new(move |at| may_reach(&networks, at))
            },
        };
        Arc::new(OutOfProcessFilters::new(options, watcher))
    }

    /// What the filters of an attachment have told.
    pub(crate) async fn read_events(
        &self,
        id: AttachmentId,
        after: Option<u64>,
        count_max: u32,
        wait: Duration,
    ) -> Result<EventLines, Refusal> {
        let open = lock(&self.inner.workers).get(&id).and_then(Worker::open);
        let events = open.and_then(|(_, attached)| attached.events.get().cloned());
        match events {
            Some(events) => Ok(events.after(after, count_max as usize, wait).await),
            None => Err(Refusal {
                field: None,
                reason: "it has no filters that tell anything, or is not open".to_owned(),
            }),
        }
    }
}

/// Which chain is wanted.
pub(crate) fn wanted(wish: &Assignment) -> Option<ChainKey> {
    wish.chain.as_ref().map(|chain| chain.key)
}

/// What does not begin is tried again after so long: a key may have been brought.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Through which filters a volume is served, and why not through others.
#[derive(Debug, Default)]
pub(crate) struct ChainState {
    /// The chain that it is served through.
    pub served: Option<ChainKey>,
    /// Why that is not the one that is wanted.
    pub problem: Option<String>,
    /// Its filters do not show that the volume has grown, and their like would.
    pub hides_growth: bool,
    /// What was tried in vain, for which wish, and when that is tried again.
    tried: Option<(Option<ChainKey>, u64, Duration)>,
}

impl ChainState {
    /// This one is served.
    pub fn served(chain: Option<ChainKey>) -> Self {
        Self {
            served: chain,
            ..Self::default()
        }
    }

    /// Whether other filters are to be tried at `now`.
    pub fn is_to_change(&mut self, wish: &Assignment, now: Duration) -> bool {
        let wanted = wanted(wish);
        if self.served == wanted && !self.hides_growth {
            // What was tried in vain is not wanted any more.
            (self.problem, self.tried) = (None, None);
            return false;
        }
        let is_waiting = self.tried.is_some_and(|(chain, generation, again)| {
            chain == wanted && generation == wish.generation && now < again
        });
        !is_waiting
    }

    /// The filters that are wanted do not begin.
    pub fn failed(&mut self, wish: &Assignment, why: String, now: Duration) {
        self.problem = Some(why);
        self.tried = Some((wanted(wish), wish.generation, now + RETRY_AFTER));
    }
}
