//! [`Agent`]: what one host does, without the command line around it. It composes the parts, gives
//! each what it needs, and passes on what the controllers desire.
//!
//! The agent follows the controllers' [`Assignments`], and reports how far it is. Each attachment
//! has a worker, so that none waits for another. What survives a crash is the journal; what is to
//! be done after one, the controllers know.
//!
//! Lifecycle: 1. start (lock D, open the key, mount the units, open the desired volumes), 2. run,
//! 3. shut down (destage everything), which a `kill -9` may leave out at the price of a replay.

use std::sync::Arc;
use std::time::Duration;

use api::host::{Assignments, Cluster, FIRST_KEY};
use metrics::{Answer, Measures, Part};
use tokio::runtime::Handle;
use volume::Store;
use volume::map::PageBudget;
use world::{World, host};

use crate::attach::{Attachments, OpenerParts, VolumeOpener, WorkerParts};
use crate::audits::Audits;
use crate::background::VersionReader;
use crate::cache::{Caching, Preloads};
use crate::cleaning::{Cleaning, CleaningParts, JournalCleaning};
use crate::context::{HostContext, Shutdown, blocking};
use crate::controller::{Contact, Controller, Pauses};
use crate::export::{NbdServer, OpenVolumes, VolumeStatuses};
use crate::filters::{FilterFiles, FilterJournals, FilterSettings, Filters};
use crate::folder::Folder;
use crate::jobs::{HostJobs, create_key};
use crate::journals::{LocalJournals, SharedJournals};
use crate::keys::{HostKeys, KeyLocations, Rewrapping};
use crate::lease::{DatabaseAge, Fencing, Leases};
use crate::repair::Repair;
use crate::report::{Monitor, MonitorParts, ReportParts, Reporter};
use crate::settings::{Settings, StartError};
use crate::unit_owner::UnitOwner;
use crate::units::lease_count::LeaseCountKey;
use crate::units::{RejoinReports, Units};
use crate::vm::Plugging;

/// The longest time of a shutdown: the 30 s in which an export may finish the requests of its
/// clients, the 60 s in which a destage must make progress, and some.
pub const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(95);

/// How long the controllers have to hear of the shutdown.
const GOODBYE: Duration = Duration::from_secs(3);

/// How often units are looked at.
const LOOK_AT_UNITS_EVERY: Duration = Duration::from_secs(1);

/// Healthy units are probed every this many looks.
const PROBE_LOOKS: u64 = 5;

/// The agent of a host. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    pub(crate) parts: Arc<Parts>,
}

/// The parts of an agent.
pub(crate) struct Parts {
    pub context: Arc<HostContext>,
    pub shutdown: Shutdown,
    pub controller: Controller,
    pub contact: Arc<Contact>,
    pub keys: Arc<HostKeys>,
    pub rewrapping: Rewrapping,
    pub units: Arc<Units>,
    pub rejoin_reports: RejoinReports,
    pub age: Arc<DatabaseAge>,
    pub leases: Arc<Leases>,
    pub caching: Arc<Caching>,
    pub preloads: Preloads,
    pub audits: Audits,
    pub open: Arc<OpenVolumes>,
    pub attachments: Arc<Attachments>,
    pub jobs: HostJobs,
    pub repair: Arc<Repair>,
    pub cleaning: Arc<Cleaning>,
    pub journal_cleaning: Arc<JournalCleaning>,
    pub reporter: Reporter,
    pub monitor: Monitor,
}

impl Agent {
    /// Opens D, and the volumes that are desired of this host.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(world: World, settings: Settings) -> Result<Self, StartError> {
        let folder = Folder::lock(&world, &settings.folder)?;
        let shutdown = Shutdown::default();
        let clock = Arc::clone(&world.clock);
        let controller = Controller::new(
            settings.client.clone(),
            Handle::current(),
            clock,
            shutdown.clone(),
        );
        let contact = Arc::new(Contact::new(world.clock.monotonic()));
        let cluster = controller.begin().await?;
        let keys = open_keys(&world, &settings, &folder, &cluster, &controller).await?;
        let context = Arc::new(HostContext {
            world,
            runtime: Handle::current(),
            folder,
            cluster: cluster.id,
            owner: UnitOwner::new(&cluster),
        });
        let count = (settings.units, settings.units_default);
        let base = Base {
            context,
            shutdown,
            controller,
            contact,
            keys,
            cluster,
        };
        let agent = Self {
            parts: Arc::new(base.compose(settings).await?),
        };
        agent.begin(count.0, count.1).await?;
        Ok(agent)
    }

    /// Uses the units, and opens the desired volumes; returns when each has been tried once.
    async fn begin(&self, units: Option<usize>, default: usize) -> Result<(), StartError> {
        let parts = &self.parts;
        let mut assignments = parts.controller.assignments(None).await?;
        if assignments.units.is_empty() {
            parts.units.make_first(units.unwrap_or(default)).await?;
            assignments = parts.controller.assignments(None).await?;
        } else if let Some(asked) = units.filter(|count| *count != assignments.units.len()) {
            tracing::info!(
                units = assignments.units.len(),
                asked,
                "the cluster has its units already; add more with `scree unit add`"
            );
        }
        parts
            .units
            .follow(&assignments.units, &assignments.copysets);
        parts.units.get_certificate().await;
        parts.units.wait_until_found().await;
        parts.units.refuse_if_held()?;
        parts.age.check().await?;
        // Again: after that check volumes may be opened.
        let assignments = parts.controller.assignments(None).await?;
        self.apply(assignments);
        parts.attachments.tried().await;
        parts.reporter.send(true).await;
        Ok(())
    }

    /// Does what a host does until it is dropped.
    pub async fn run(self) {
        let parts = &self.parts;
        tokio::join!(
            self.follow(),
            parts.reporter.run(),
            parts.leases.run(),
            parts.journal_cleaning.run(),
            self.watch_units(),
            parts.cleaning.run_removing(),
            parts.cleaning.run_freeing(),
            parts.rejoin_reports.run(),
            parts.repair.run(),
            parts.rewrapping.run(),
            parts.caching.run(),
            parts.controller.keep_capabilities(),
            parts.units.keep_certificate(),
        );
    }

    /// Follows the desired state of this host.
    pub(crate) async fn follow(&self) {
        let mut after = None;
        let mut pauses = Pauses::default();
        let mut is_lost = false;
        loop {
            match self.parts.controller.assignments(after).await {
                Ok(assignments) => {
                    let clock = &self.parts.context.world.clock;
                    self.parts.contact.note_answer(clock.monotonic());
                    if is_lost {
                        tracing::info!("controller answers again");
                    }
                    is_lost = false;
                    pauses = Pauses::default();
                    after = Some(assignments.serial);
                    self.apply(assignments);
                }
                Err(error) => {
                    if !is_lost {
                        tracing::warn!(%error, "no controller answers; the agent asks again");
                    }
                    is_lost = true;
                    pauses.next().await;
                }
            }
        }
    }

    /// Looks at the units as long as the agent runs.
    async fn watch_units(&self) {
        let mut ticks = host::ticks(LOOK_AT_UNITS_EVERY);
        for look in 0_u64.. {
            ticks.tick().await;
            // No one waits for the answers.
            drop(self.parts.units.probe(look.is_multiple_of(PROBE_LOOKS)));
        }
    }

    /// Passes the desired state on to the parts.
    fn apply(&self, desired: Assignments) {
        let parts = &self.parts;
        parts.units.follow(&desired.units, &desired.copysets);
        if parts.keys.list(desired.keys) {
            let keys = Arc::clone(&parts.keys);
            tokio::task::spawn_blocking(move || keys.follow_and_notify());
        }
        for job in desired.tasks {
            parts.jobs.begin(job);
        }
        // Before anything is unpinned: a worker that is busy would let blocks that are read
        // meanwhile stay pinned.
        for assignment in &desired.attachments {
            if let Some(attached) = parts.open.get(assignment.id) {
                attached.follow_image(assignment.image);
            }
        }
        parts.attachments.set_desired(desired.attachments);
        parts.preloads.set_desired(desired.preloads);
        parts.audits.set_desired(desired.audits);
        parts.caching.set_unpins(desired.unpins);
        parts.repair.set_compare_count(desired.compare);
        parts.cleaning.set_serial(desired.clean);
        parts.reporter.set_requested(desired.report_number);
    }

    /// Closes every volume, also one that is just being opened: all that was
    /// written is in versions on the units then. They are opened again on the
    /// next start. Returns how many could not be closed; their journals have
    /// the rest. Ends within [`SHUT_DOWN_WITHIN`], whatever units do.
    pub async fn shut_down(&self) -> usize {
        let parts = &self.parts;
        parts.shutdown.begin();
        let mut shutting_down = parts.attachments.shut_down();
        let is_over = tokio::select! {
            closed = host::timeout(SHUT_DOWN_WITHIN, shutting_down.wait()) => closed.is_none(),
            () = self.stay_entitled() => unreachable!("it never ends"),
        };
        if is_over {
            let seconds = SHUT_DOWN_WITHIN.as_secs();
            tracing::error!(seconds, "volumes were not closed in time");
        }
        parts.caching.leave().await;
        let reported = parts.controller.begin();
        if !matches!(host::timeout(GOODBYE, reported).await, Some(Ok(_))) {
            tracing::warn!("controllers did not hear that nothing is open here");
        }
        shutting_down.unclean()
    }

    /// Keeps the leases and capabilities with which volumes are destaged, which may take longer
    /// than leases last; [`Agent::run`] has ended.
    async fn stay_entitled(&self) {
        tokio::join!(
            self.parts.leases.run(),
            self.parts.controller.keep_capabilities()
        );
        std::future::pending().await
    }

    /// D.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.parts.context.folder
    }
}

/// Opens the wrapping keys; creates the first one of a new cluster.
async fn open_keys(
    world: &World,
    settings: &Settings,
    folder: &Folder,
    cluster: &Cluster,
    controller: &Controller,
) -> Result<Arc<HostKeys>, StartError> {
    let locations = KeyLocations {
        first: settings.key.clone(),
        keys_file: settings.keys_file.clone(),
        default_keys_file: folder.keys_file(),
        default_key_file: folder.key_file(),
    };
    let keys = Arc::new(HostKeys::new(world, locations));
    keys.list(cluster.keys.clone());
    if cluster.keys.is_empty() {
        let first = create_key(&keys, controller, FIRST_KEY.to_owned()).await?;
        keys.list(vec![first]);
    }
    let opening = Arc::clone(&keys);
    blocking(move || opening.start()).await??;
    Ok(keys)
}

/// What all other parts are made of.
struct Base {
    context: Arc<HostContext>,
    shutdown: Shutdown,
    controller: Controller,
    contact: Arc<Contact>,
    keys: Arc<HostKeys>,
    cluster: Cluster,
}

impl Base {
    /// Makes the parts of an agent.
    async fn compose(self, settings: Settings) -> Result<Parts, StartError> {
        let Self {
            context,
            shutdown,
            controller,
            contact,
            keys,
            cluster,
        } = self;
        let (world, folder) = (&context.world, &context.folder);
        let clock = &world.clock;
        let shared_journals = open_shared_journals(&context, settings.journals.clone()).await?;
        let server = Arc::new(NbdServer::start(
            world,
            &folder.nbd_socket(),
            settings.listen_nbd,
            settings.nbd_tls.clone(),
        )?);
        let cluster_id = context.cluster.as_u128().to_be_bytes();
        let unpinned = folder.unpinned();
        let caching = Caching::start(world, settings.cache.clone(), cluster_id, unpinned).await?;

        let store = Store::new(Arc::clone(&world.pool));
        let units = Arc::new(Units::new(
            Arc::clone(&context),
            controller.clone(),
            Arc::clone(&store),
            lease_count_key(&cluster)?,
        ));
        let rejoin_reports = RejoinReports::new(controller.clone(), Arc::clone(&units));
        let age = Arc::new(DatabaseAge::new(
            controller.clone(),
            Arc::clone(&units),
            rejoin_reports.clone(),
        ));
        let fencing = Arc::new(Fencing::default());
        let leases = Arc::new(Leases::new(
            Arc::clone(clock),
            controller.clone(),
            Arc::clone(&contact),
            Arc::clone(&fencing),
            cluster.lease_ms.map(Duration::from_millis),
        ));
        let reader = VersionReader {
            controller: controller.clone(),
            keys: Arc::clone(&keys),
            store: Arc::clone(&store),
            pages: PageBudget::new(settings.map_memory_bytes),
            clock: Arc::clone(clock),
        };

        let open = Arc::new(OpenVolumes::default());
        let filter_settings = FilterSettings {
            networks: settings.filter_networks.clone().into(),
            program: settings.filter_program.clone(),
            memory: settings.filter_memory,
            disk_limits: settings.filter_disk_limits,
        };
        let filters = Arc::new(Filters::new(
            Arc::clone(&context),
            controller.clone(),
            filter_settings,
            Arc::clone(&leases),
            Arc::clone(&open),
        ));
        let local_journals = Arc::new(LocalJournals::new(Arc::clone(&context)));
        let plugging = Arc::new(Plugging::new(settings.vm.clone(), settings.vm_user));
        let opener = VolumeOpener::new(OpenerParts {
            context: Arc::clone(&context),
            controller: controller.clone(),
            shutdown: shutdown.clone(),
            reader: reader.clone(),
            caching: Arc::clone(&caching),
            shared_journals: shared_journals.clone(),
            leases: Arc::clone(&leases),
            age: Arc::clone(&age),
            filters: Arc::clone(&filters),
            server: Arc::clone(&server),
            plugging: Arc::clone(&plugging),
            allows_unencrypted: settings.allows_unencrypted,
            volume_config: settings.volume,
        });
        let worker_parts = WorkerParts {
            context: Arc::clone(&context),
            controller: controller.clone(),
            opener,
            filters,
            plugging,
            server,
            caching: Arc::clone(&caching),
            open: Arc::clone(&open),
            local_journals: Arc::clone(&local_journals),
            shared_journals: shared_journals.clone(),
        };
        let attachments = Arc::new(Attachments::new(worker_parts, shutdown.clone()));

        let jobs = HostJobs::new(
            controller.clone(),
            Arc::clone(&keys),
            Arc::clone(&units),
            Arc::clone(&open),
        );
        let rewrapping = Rewrapping::new(controller.clone(), Arc::clone(&keys));
        let preloads = Preloads::new(
            controller.clone(),
            Arc::clone(&caching),
            reader.clone(),
            shutdown.clone(),
        );
        let random = Arc::clone(&world.random);
        let audits = Audits::new(controller.clone(), reader, random, shutdown.clone());
        let repair = Arc::new(Repair::new(
            controller.clone(),
            Arc::clone(&store),
            Arc::clone(&age),
            Arc::clone(clock),
            settings.repair_bytes_per_second,
        ));
        let cleaning = Arc::new(Cleaning::new(CleaningParts {
            controller: controller.clone(),
            keys: Arc::clone(&keys),
            store,
            clock: Arc::clone(clock),
            age: Arc::clone(&age),
            open: Arc::clone(&open),
            local_journals: Arc::clone(&local_journals),
            shared_journals,
            filter_files: FilterFiles::new(&context),
        }));
        let journal_cleaning = Arc::new(JournalCleaning::new(
            Arc::clone(&context),
            Arc::clone(&local_journals),
            fencing,
            Arc::clone(&age),
            Arc::clone(&attachments),
        ));

        let statuses = Arc::new(VolumeStatuses::new(Arc::clone(&open)));
        let reporter = Reporter::new(ReportParts {
            controller: controller.clone(),
            contact: Arc::clone(&contact),
            clock: Arc::clone(clock),
            units: Arc::clone(&units),
            statuses: Arc::clone(&statuses),
            age: Arc::clone(&age),
            cleaning: Arc::clone(&cleaning),
            journal_cleaning: Arc::clone(&journal_cleaning),
            local_journals,
            filter_journals: FilterJournals::new(&context),
            keys: Arc::clone(&keys),
            rewrapping: rewrapping.clone(),
            caching: Arc::clone(&caching),
        });
        let monitor = Monitor::new(MonitorParts {
            shutdown: shutdown.clone(),
            clock: Arc::clone(clock),
            contact: Arc::clone(&contact),
            leases: Arc::clone(&leases),
            units: Arc::clone(&units),
            repair: Arc::clone(&repair),
            caching: Arc::clone(&caching),
            statuses,
        });
        Ok(Parts {
            context,
            shutdown,
            controller,
            contact,
            keys,
            rewrapping,
            units,
            rejoin_reports,
            age,
            leases,
            caching,
            preloads,
            audits,
            open,
            attachments,
            jobs,
            repair,
            cleaning,
            journal_cleaning,
            reporter,
            monitor,
        })
    }
}

/// Opens the folder of journals that this host shares with others, if it has one.
async fn open_shared_journals(
    context: &Arc<HostContext>,
    path: Option<std::path::PathBuf>,
) -> Result<Option<Arc<SharedJournals>>, StartError> {
    let Some(path) = path else { return Ok(None) };
    let context = Arc::clone(context);
    let opened =
        blocking(move || SharedJournals::open(&context.world, &path, context.cluster)).await??;
    tracing::info!(id = %opened.id(), "journals are in a shared folder");
    Ok(Some(Arc::new(opened)))
}

fn lease_count_key(cluster: &Cluster) -> Result<LeaseCountKey, StartError> {
    let bytes = cluster.lease_count_key.0.as_slice().try_into();
    let bytes: &[u8; 32] = bytes.map_err(|_| StartError::LeaseCountKey)?;
    Ok(LeaseCountKey::new(bytes))
}

impl Part for Agent {
    fn name(&self) -> &'static str {
        "agent"
    }

    fn reasons(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { self.parts.monitor.unready_for() })
    }

    fn measure(&self) -> Answer<'_, Measures> {
        Box::pin(self.parts.monitor.measures())
    }
}
