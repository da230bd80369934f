//! [`Agent`]: what one host does, without the command line around it.
//!
//! It has no will of its own: it follows what the controllers want of it, one
//! [`Assignments`] after the other, and tells them how far that is. Each
//! attachment has a `worker`, so that none waits for another. What survives a
//! crash is the journal; what is to be done after one, the controllers know.
//!
//! Lifecycle: 1. start (lock D, open the key, mount the units, open what is
//! wanted), 2. follow, 3. shut down (destage everything), which a `kill -9` may
//! leave out at the price of a replay.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::host::{
    Assignments, FIRST_KEY, FoundedKey, Refusal, Task, TaskAnswer, TaskDone, TaskKind, WrappingKey,
};
use api::{Client, ClientError};
use base::{AttachmentId, ClusterId, VolumeId, with_causes};
use catalog::{Catalog, CatalogError};
use chain::{DERIVATIONS_MAX, Derivations};
use nbd::ServerTls;
use nbd::client::Departed;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use volume::clean::Cleaner;
use volume::map::PageBudget;
use volume::seal::KeyEncryptionKey;
use volume::{Store, VolumeConfig};
use world::real::ThreadPool;
use world::{World, host};

use crate::audits::Audits;
use crate::caching::{CacheSettings, Caching};
use crate::chains::FilterCredentials;
use crate::claim::Claim;
use crate::controller::{Controller, Pauses};
use crate::filter_targets::Network;
use crate::folder::{Folder, FolderError};
use crate::health::Health;
use crate::host_keys::{HostKeyError, HostKeys, KeyPlaces};
use crate::journals::{Journals, JournalsError};
use crate::journals_aside::JournalsAside;
use crate::keys::KeyEntry;
use crate::leases::Held;
use crate::links::Links;
use crate::plugging::Plugging;
use crate::preloads::Preloads;
use crate::rejoined::CameBack;
use crate::repair::RepairedTotals;
use crate::serving::{Serving, ServingError};
use crate::units::{Mounted, UnitsError};
use crate::vm::VmOptions;
use crate::volume_statuses::VolumeStatuses;
use crate::worker::Worker;

/// How an agent was asked to run.
pub struct Settings {
    /// D.
    pub folder: PathBuf,
    /// Asks the controllers.
    pub client: Client,
    /// How many folder units to make if the cluster has none.
    pub units: Option<usize>,
    /// As many, if nothing was said.
    pub units_default: usize,
    /// Where the wrapping key `main` is, if `keys.toml` does not say so.
    pub key: Option<KeyEntry>,
    /// Where `keys.toml` is, if not in D's keys folder.
    pub keys_file: Option<PathBuf>,
    /// Volumes may be written in the clear, where that is what their owner
    /// wants.
    pub allows_unencrypted: bool,
    /// Networks that tenants' filters may reach.
    pub filter_networks: Vec<Network>,
    /// The program that filters' processes are, Scree's own; none: they all run inline.
    pub filter_program: Option<PathBuf>,
    /// What the filters of a chain may take of memory together, in bytes.
    pub filter_memory: u64,
    /// What it may take of D's disk.
    pub filter_room: chain::Room,
    /// Serve NBD over TCP here as well.
    pub listen_nbd: Option<SocketAddr>,
    /// TLS for that.
    pub nbd_tls: Option<ServerTls>,
    /// How VMs are asked.
    pub vm: VmOptions,
    /// A folder of journals that several hosts have, if this one's are not to
    /// lie in D.
    pub journals: Option<PathBuf>,
    /// The user who runs them, if their monitors' sockets do not say.
    pub vm_user: Option<u32>,
    /// Each attached volume's sizes and times.
    pub volume: VolumeConfig,
    /// What is kept here of what lies on units.
    pub cache: CacheSettings,
    /// What maps may take of memory together, in bytes; not less than 4 MiB each.
    pub map_memory_bytes: u64,
    /// Repair moves no more.
    pub repair_bytes_per_second: u64,
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// D cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No controller answers, or it says no.
    #[error("the controller: {0}")]
    Controller(#[from] ClientError),
    /// The database does not answer.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// There is no key to work with.
    #[error(transparent)]
    Key(#[from] HostKeyError),
    /// A task ended before its time.
    #[error(transparent)]
    Task(#[from] TaskEnded),
    /// The shared folder of journals cannot be used.
    #[error(transparent)]
    Journals(#[from] JournalsError),
    /// The units cannot be used.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// NBD cannot be served.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// What the cluster's hosts vouch with is not what it should be.
    #[error("the database is damaged: what hosts vouch with has not 32 bytes")]
    Vouch,
}

/// A task ended before its time.
#[derive(Debug, thiserror::Error)]
#[error("a task ended before its time: {0}; see the log")]
pub struct TaskEnded(#[from] tokio::task::JoinError);

/// A shutdown takes no longer: the 30 s in which an export may finish what
/// clients have asked for, the 60 s in which a destage must get on, and some.
pub const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(95);

/// How long the controllers have to hear of that.
const GOODBYE: Duration = Duration::from_secs(3);
/// What a controller keeps, it soon lists.
const LISTED_WITHIN: Duration = Duration::from_secs(5);

/// Whoever asks for events is kept waiting for no longer.
const EVENTS_WAIT_MAX: Duration = Duration::from_secs(20);

/// See the module's head. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub world: World,
    /// Where answers of units are waited for that have no thread for it.
    pub runtime: Handle,
    pub folder: Folder,
    pub controller: Controller,
    pub cluster: ClusterId,
    /// As whom the units are used.
    pub claim: Claim,
    pub catalog: Arc<dyn Catalog>,
    pub store: Arc<Store>,
    /// Wrap the keys of volumes.
    pub keys: Arc<HostKeys>,
    /// Rung when the controllers list other keys than before.
    pub keys_changed: Notify,
    /// Vouches for what is left on units.
    pub vouch: KeyEncryptionKey,
    /// Where journals are, if not in D.
    pub journals: Option<Journals>,
    /// What is kept here of what lies on units.
    pub caching: Arc<Caching>,
    /// The memory for map pages.
    pub pages: Arc<PageBudget>,
    /// Networks that tenants' filters may reach.
    pub filter_networks: Arc<[Network]>,
    /// The program that filters' processes are.
    pub filter_program: Option<PathBuf>,
    /// What this host shows to machines of filters.
    pub filter_credentials: Mutex<Option<FilterCredentials>>,
    /// What the filters of a chain may take of memory together, in bytes.
    pub filter_memory: u64,
    /// What it may take of D's disk.
    pub filter_room: chain::Room,
    /// Where the keys of tenants' filters are derived.
    pub derivations: Arc<Derivations>,
    /// Replicas' connections that were left, by tenants.
    pub departed: Mutex<HashMap<String, Arc<Departed>>>,
    pub allows_unencrypted: bool,
    pub units: Mutex<Vec<Mounted>>,
    /// The ways to those that daemons keep.
    pub links: Links,
    pub serving: Serving,
    pub plugging: Plugging,
    /// How long leases hold; for ever, where there is only one host.
    pub lease_term: Option<Duration>,
    /// The leases that this host has.
    pub leases: Mutex<HashMap<AttachmentId, Held>>,
    pub volume_config: VolumeConfig,
    pub workers: Mutex<HashMap<AttachmentId, Worker>>,
    /// Tasks under way.
    tasks: Mutex<HashSet<i64>>,
    /// Images that are being read into the cache.
    pub preloads: Mutex<Preloads>,
    pub audits: Mutex<Audits>,
    /// Whoever has this audits.
    pub audit_turn: tokio::sync::Mutex<()>,
    /// A report that has seen this is waited for.
    pub look: watch::Sender<u64>,
    /// Rung when there may be something to clean.
    pub cleaning_wanted: Notify,
    /// The serial of what there is to clean.
    clean: Mutex<u64>,
    /// How many copysets somebody wants compared.
    pub(crate) compare: AtomicU64,
    /// Volumes that were written to just now.
    pub busy: Mutex<HashSet<VolumeId>>,
    /// Why cleaning does not get on, if it does not.
    pub removal_problem: Mutex<Option<String>>,
    /// Of journals in D, what nobody wants any more.
    pub journals_aside: JournalsAside,
    /// Units that have come back.
    pub rejoined: Mutex<CameBack>,
    /// Held while that is told.
    pub telling: tokio::sync::Mutex<()>,
    /// What this host has repaired.
    pub repaired: RepairedTotals,
    /// Repair moves no more.
    pub repair_bytes_per_second: u64,
    /// Why freeing does not get on, if it does not.
    pub freeing_problem: Mutex<Option<String>>,
    /// Why a wrapping key is not replaced, if it should be.
    pub rewrap_problem: Mutex<Option<String>>,
    /// For those who watch.
    pub health: Health,
    pub volume_statuses: VolumeStatuses,
    /// No more volumes are opened.
    is_ending: AtomicBool,
}

/// Locks a mutex whose content stays sound if a thread panics in between.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what waits on a thread where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TaskEnded> {
    Ok(tokio::task::spawn_blocking(work).await?)
}

impl Agent {
    /// Opens D, and what is wanted of this host.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(world: World, settings: Settings) -> Result<Self, StartError> {
        let folder = Folder::lock(&world, &settings.folder)?;
        let controller =
            Controller::new(settings.client, Handle::current(), Arc::clone(&world.clock));
        let begun = world.clock.monotonic();
        let cluster = controller.begin().await?;
        let places = KeyPlaces {
            first: settings.key,
            keys_file: settings.keys_file,
            default_keys_file: folder.keys_file(),
            default_key_file: folder.key_file(),
        };
        let keys = Arc::new(HostKeys::new(&world, places));
        keys.list(cluster.keys.clone());
        if cluster.keys.is_empty() {
            let first = Self::found_key(&keys, &controller, FIRST_KEY.to_owned()).await?;
            keys.list(vec![first]);
        }
        let opening = Arc::clone(&keys);
        blocking(move || opening.start()).await??;
        let journals = match settings.journals {
            None => None,
            Some(path) => {
                let (world, cluster) = (world.clone(), cluster.id);
                let opened = blocking(move || Journals::open(&world, &path, cluster)).await??;
                tracing::info!(id = %opened.id(), "journals are in a shared folder");
                Some(opened)
            }
        };
        let vouch: &[u8; 32] = cluster
            .vouch
            .0
            .as_slice()
            .try_into()
            .map_err(|_| StartError::Vouch)?;
        let serving = Serving::start(
            &world,
            &folder.nbd_socket(),
            settings.listen_nbd,
            settings.nbd_tls,
        )?;
        let id = cluster.id.as_u128().to_be_bytes();
        let unpinned = folder.unpinned();
        let caching = Caching::start(&world, settings.cache, id, unpinned).await?;
        let agent = Self {
            inner: Arc::new(Inner {
                caching,
                pages: PageBudget::new(settings.map_memory_bytes),
                claim: Claim::of(&cluster),
                catalog: Arc::new(controller.clone()),
                store: Store::new(Arc::clone(&world.pool)),
                cluster: cluster.id,
                keys,
                keys_changed: Notify::new(),
                vouch: KeyEncryptionKey::from_bytes(vouch),
                journals,
                allows_unencrypted: settings.allows_unencrypted,
                filter_networks: settings.filter_networks.into(),
                filter_program: settings.filter_program,
                filter_credentials: Mutex::default(),
                filter_memory: settings.filter_memory,
                filter_room: settings.filter_room,
                departed: Mutex::default(),
                derivations: Arc::new(Derivations::new(Arc::new(ThreadPool::new(DERIVATIONS_MAX)))),
                units: Mutex::default(),
                links: Links::new(
                    cluster.id,
                    Arc::clone(&world.clock),
                    Arc::clone(controller.capability_cache()),
                ),
                serving,
                lease_term: cluster.lease_ms.map(Duration::from_millis),
                leases: Mutex::default(),
                plugging: Plugging::new(settings.vm, settings.vm_user),
                volume_config: settings.volume,
                workers: Mutex::default(),
                tasks: Mutex::default(),
                preloads: Mutex::default(),
                audits: Mutex::default(),
                audit_turn: tokio::sync::Mutex::default(),
                look: watch::Sender::new(0),
                cleaning_wanted: Notify::new(),
                clean: Mutex::default(),
                compare: AtomicU64::default(),
                busy: Mutex::default(),
                removal_problem: Mutex::default(),
                journals_aside: JournalsAside::default(),
                rejoined: Mutex::default(),
                telling: tokio::sync::Mutex::default(),
                repaired: RepairedTotals::default(),
                repair_bytes_per_second: settings.repair_bytes_per_second,
                freeing_problem: Mutex::default(),
                rewrap_problem: Mutex::default(),
                health: Health::new(begun),
                volume_statuses: VolumeStatuses::default(),
                is_ending: AtomicBool::new(false),
                runtime: Handle::current(),
                world,
                folder,
                controller,
            }),
        };
        agent.begin(settings.units, settings.units_default).await?;
        Ok(agent)
    }

    /// Uses the units, and opens what is wanted; returns when all of it has
    /// been tried once.
    async fn begin(&self, units: Option<usize>, default: usize) -> Result<(), StartError> {
        let controller = &self.inner.controller;
        let mut wanted = controller.assignments(None).await?;
        if wanted.units.is_empty() {
            self.make_units(units.unwrap_or(default)).await?;
            wanted = controller.assignments(None).await?;
        } else if let Some(asked) = units.filter(|count| *count != wanted.units.len()) {
            tracing::info!(
                units = wanted.units.len(),
                asked,
                "the cluster has its units already; add more with `scree unit add`"
            );
        }
        self.use_units(&wanted.units, &wanted.copysets);
        self.have_certificate().await;
        self.wait_for_units().await;
        self.refuse_if_held()?;
        self.check_database_age().await?;
        // After that check: it may want volumes opened.
        let wanted = controller.assignments(None).await?;
        let mut first = JoinSet::new();
        self.follow_one(wanted);
        for worker in lock(&self.inner.workers).values() {
            first.spawn(worker.tried());
        }
        first.join_all().await;
        self.send_report(true).await;
        Ok(())
    }

    /// Does what a host does until it is dropped.
    pub async fn run(self) {
        tokio::join!(
            self.follow(),
            self.keep_reporting(),
            self.keep_leases(),
            self.keep_journals(),
            self.keep_watch(),
            self.keep_removing(),
            self.keep_freeing(),
            self.keep_telling_of_units(),
            self.keep_repair(),
            self.keep_rewrapping(),
            self.keep_cache(),
            self.inner.controller.keep_capabilities(),
            self.inner.links.keep_certificate(&self.inner.controller)
        );
    }

    /// Follows what is wanted.
    pub(crate) async fn follow(&self) {
        let mut after = None;
        let mut pauses = Pauses::default();
        let mut is_lost = false;
        loop {
            match self.inner.controller.assignments(after).await {
                Ok(wanted) => {
                    self.note_heard();
                    if is_lost {
                        tracing::info!("a controller answers again");
                    }
                    is_lost = false;
                    pauses = Pauses::default();
                    after = Some(wanted.serial);
                    self.follow_one(wanted);
                }
                Err(error) => {
                    if !is_lost {
                        tracing::warn!(%error, "no controller answers; it is asked again");
                    }
                    is_lost = true;
                    pauses.next().await;
                }
            }
        }
    }

    fn follow_one(&self, wanted: Assignments) {
        self.use_units(&wanted.units, &wanted.copysets);
        self.use_keys(wanted.keys);
        for task in wanted.tasks {
            self.begin_task(task);
        }
        // Before anything is unpinned: a worker that has something else to do would let what is
        // read meanwhile stay once more.
        for wish in &wanted.attachments {
            let open = lock(&self.inner.workers)
                .get(&wish.id)
                .and_then(Worker::open);
            if let Some((_, attached)) = open {
                attached.follow_image(wish.image);
            }
        }
        self.set_wishes(wanted.attachments);
        self.set_preloads(wanted.preloads);
        self.set_audits(wanted.audits);
        self.inner.caching.want_unpinned(wanted.unpins);
        self.inner.compare.store(wanted.compare, Ordering::Relaxed);
        if std::mem::replace(&mut *lock(&self.inner.clean), wanted.clean) != wanted.clean {
            self.inner.cleaning_wanted.notify_one();
        }
        self.inner.look.send_if_modified(|look| {
            let is_news = *look != wanted.look;
            *look = wanted.look;
            is_news
        });
    }

    fn begin_task(&self, task: Task) {
        if !lock(&self.inner.tasks).insert(task.id) {
            return;
        }
        let agent = self.clone();
        tokio::spawn(async move {
            let answer = match task.what {
                TaskKind::AddUnit { url, .. } => agent.mark_unit(&url).await.map(TaskDone::Unit),
                TaskKind::AddKey { name } => agent.add_key(name).await,
                TaskKind::ReadEvents {
                    attachment,
                    after,
                    count_max,
                    wait_ms,
                } => {
                    let wait = Duration::from_millis(wait_ms).min(EVENTS_WAIT_MAX);
                    let read = agent.read_events(attachment, after, count_max, wait).await;
                    read.map(TaskDone::Events)
                }
            };
            let controller = &agent.inner.controller;
            if let Err(error) = controller.task_done(task.id, &answer).await {
                tracing::error!(task = task.id, %error, "what came of a task was not told");
            }
            lock(&agent.inner.tasks).remove(&task.id);
        });
    }

    /// Opens and closes wrapping keys as the controllers list them.
    fn use_keys(&self, listed: Vec<WrappingKey>) {
        if self.inner.keys.list(listed) {
            let agent = self.clone();
            tokio::task::spawn_blocking(move || {
                agent.inner.keys.follow();
                agent.inner.keys_changed.notify_one();
            });
        }
    }

    /// Founds a wrapping key, and has the controllers keep it.
    async fn found_key(
        keys: &Arc<HostKeys>,
        controller: &Controller,
        name: String,
    ) -> Result<WrappingKey, StartError> {
        let (keys, founding) = (Arc::clone(keys), name.clone());
        let parameters = blocking(move || keys.found(&founding)).await??;
        let parameters =
            serde_json::to_value(parameters).map_err(|source| HostKeyError::Parameters {
                name: name.clone(),
                source,
            })?;
        Ok(controller
            .bring_key(&FoundedKey { name, parameters })
            .await?)
    }

    /// Founds the wrapping key that this host calls `name`, for a task. It may
    /// have been founded already, before a crash.
    async fn add_key(&self, name: String) -> TaskAnswer {
        let inner = &self.inner;
        let known = inner.keys.listed().into_iter().find(|key| key.name == name);
        let key = match known {
            Some(key) => Ok(key),
            None => Self::found_key(&inner.keys, &inner.controller, name).await,
        };
        if let Ok(key) = &key {
            // Whoever asked for it expects that new volumes use it.
            let listed = inner
                .keys
                .until(|listed| listed.iter().any(|one| one.id == key.id));
            host::timeout(LISTED_WITHIN, listed).await;
        }
        key.map(TaskDone::Key).map_err(|error| Refusal {
            field: matches!(error, StartError::Key(HostKeyError::Unnamed { .. }))
                .then(|| "name".to_owned()),
            reason: with_causes(&error),
        })
    }

    /// Closes every volume, also one that is just being opened: all that was
    /// written is in versions on the units then. They are opened again on the
    /// next start. Returns how many could not be closed; their journals have
    /// what is missing. Ends within [`SHUT_DOWN_WITHIN`], whatever units do.
    pub async fn shut_down(&self) -> usize {
        self.inner.is_ending.store(true, Ordering::Relaxed);
        self.inner.controller.end();
        let workers: Vec<Worker> = lock(&self.inner.workers)
            .drain()
            .map(|(_, worker)| worker)
            .collect();
        let mut unclean = workers.len();
        let mut ends = JoinSet::new();
        for worker in workers {
            ends.spawn(worker.end());
        }
        let closed = async {
            while let Some(ended) = ends.join_next().await {
                unclean -= usize::from(matches!(ended, Ok(true)));
            }
        };
        let is_over = tokio::select! {
            closed = host::timeout(SHUT_DOWN_WITHIN, closed) => closed.is_none(),
            () = self.stay_entitled() => unreachable!("it never ends"),
        };
        if is_over {
            let seconds = SHUT_DOWN_WITHIN.as_secs();
            tracing::error!(seconds, "volumes do not close");
        }
        self.leave_cache().await;
        let told = self.inner.controller.begin();
        if !matches!(host::timeout(GOODBYE, told).await, Some(Ok(_))) {
            tracing::warn!("the controllers do not know that nothing is open here");
        }
        unclean
    }

    /// Keeps what allows it to put and to commit what volumes have, which may take longer than
    /// leases last; [`Agent::run`] does that no more.
    async fn stay_entitled(&self) {
        tokio::join!(
            self.keep_leases(),
            self.inner.controller.keep_capabilities()
        );
        std::future::pending().await
    }

    /// Whether no more volumes are to be opened.
    pub(crate) fn is_ending(&self) -> bool {
        self.inner.is_ending.load(Ordering::Relaxed)
    }

    /// What removes versions and frees their slots.
    pub(crate) fn cleaner(&self) -> Cleaner {
        let wrapping = Arc::clone(&self.inner.keys);
        Cleaner::new(
            Arc::clone(&self.inner.store),
            Arc::clone(&self.inner.catalog),
            Arc::new(move |keys| wrapping.keyring(keys)),
        )
    }

    /// D.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.inner.folder
    }
}
