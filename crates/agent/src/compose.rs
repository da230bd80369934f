//! [`Foundation::compose`]: makes the parts of an agent, bottom up, and gives each what it needs.
//!
//! 1. [`Storage`]: units, leases, journals, the cache; 2. [`Volumes`]: open volumes, filters and
//!    attachments; 3. [`Maintenance`]: what works on closed volumes and units; 4. reports.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::host::Cluster;
use volume::map::PageBudget;
use volume::{Store, VolumeConfig};
use world::Clock;

use crate::attach::{Attachments, OpenerParts, VolumeOpener, WorkerParts};
use crate::audits::Audits;
use crate::background::VersionReader;
use crate::cache::{Caching, Preloads};
use crate::cleaning::{Cleaning, CleaningParts, JournalCleaning};
use crate::context::{HostContext, Shutdown, blocking};
use crate::controller::{Contact, Controller};
use crate::export::{NbdServer, OpenVolumes, VolumeStatuses};
use crate::filters::{FilterFiles, FilterJournals, FilterSettings, Filters};
use crate::jobs::HostJobs;
use crate::journals::{LocalJournals, SharedJournals};
use crate::keys::{HostKeys, Rewrapping};
use crate::lease::{DatabaseAge, Fencing, Leases};
use crate::repair::Repair;
use crate::report::{Monitor, MonitorParts, ReportParts, Reporter};
use crate::settings::{Settings, StartError};
use crate::units::lease_count::CountSigner;
use crate::units::{RejoinReports, Units};
use crate::vm::Plugging;

/// What exists before any part is made, and is given to most of them.
pub(crate) struct Foundation {
    pub context: Arc<HostContext>,
    pub shutdown: Shutdown,
    pub controller: Controller,
    pub contact: Arc<Contact>,
    pub keys: Arc<HostKeys>,
    pub cluster: Cluster,
}

/// The parts of an agent, made by [`Foundation::compose`].
pub(crate) struct Parts {
    pub foundation: Foundation,
    pub storage: Storage,
    pub volumes: Volumes,
    pub maintenance: Maintenance,
    pub jobs: HostJobs,
    pub preloads: Preloads,
    pub audits: Audits,
    pub reporter: Reporter,
    pub monitor: Monitor,
}

/// What volumes are stored on.
pub(crate) struct Storage {
    store: Arc<Store>,
    pub units: Arc<Units>,
    pub rejoin_reports: RejoinReports,
    pub age: Arc<DatabaseAge>,
    fencing: Arc<Fencing>,
    pub leases: Arc<Leases>,
    local_journals: Arc<LocalJournals>,
    shared_journals: Option<Arc<SharedJournals>>,
    pub caching: Arc<Caching>,
    reader: VersionReader,
}

/// What opens, serves and closes volumes.
pub(crate) struct Volumes {
    pub open: Arc<OpenVolumes>,
    pub attachments: Arc<Attachments>,
}

/// How volumes are opened and served.
struct VolumeSettings {
    filters: FilterSettings,
    allows_unencrypted: bool,
    volume: VolumeConfig,
}

/// What works on closed volumes and on units.
pub(crate) struct Maintenance {
    pub rewrapping: Rewrapping,
    pub repair: Arc<Repair>,
    pub cleaning: Arc<Cleaning>,
    pub journal_cleaning: Arc<JournalCleaning>,
}

impl Foundation {
    /// Makes the parts of an agent. Mounts no unit and opens no volume.
    pub async fn compose(self, settings: Settings) -> Result<Parts, StartError> {
        let server = self.serve_nbd(&settings)?;
        let plugging = Plugging::new(settings.vm.clone(), settings.vm_user);
        let storage = self.compose_storage(&settings).await?;
        let volume_settings = VolumeSettings {
            filters: settings.filters,
            allows_unencrypted: settings.allows_unencrypted,
            volume: settings.volume,
        };
        let volumes = self.compose_volumes(&storage, server, plugging, volume_settings);
        let repair_bytes_per_second = settings.repair_bytes_per_second;
        let maintenance = self.compose_maintenance(&storage, &volumes, repair_bytes_per_second);
        let statuses = Arc::new(VolumeStatuses::new(Arc::clone(&volumes.open)));
        let reporter = self.compose_reporter(&storage, &maintenance, &statuses);
        let monitor = self.compose_monitor(&storage, &maintenance, statuses);
        let jobs = HostJobs::new(
            self.controller.clone(),
            Arc::clone(&self.keys),
            Arc::clone(&storage.units),
            Arc::clone(&volumes.open),
        );
        let preloads = Preloads::new(
            self.controller.clone(),
            Arc::clone(&storage.caching),
            storage.reader.clone(),
            self.shutdown.clone(),
        );
        let audits = Audits::new(
            self.controller.clone(),
            storage.reader.clone(),
            Arc::clone(&self.context.world.random),
            self.shutdown.clone(),
        );
        Ok(Parts {
            foundation: self,
            storage,
            volumes,
            maintenance,
            jobs,
            preloads,
            audits,
            reporter,
            monitor,
        })
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.context.world.clock)
    }

    fn serve_nbd(&self, settings: &Settings) -> Result<Arc<NbdServer>, StartError> {
        let server = NbdServer::start(
            &self.context.world,
            &self.context.folder.nbd_socket(),
            settings.listen_nbd,
            settings.nbd_tls.clone(),
        )?;
        Ok(Arc::new(server))
    }

    async fn compose_storage(&self, settings: &Settings) -> Result<Storage, StartError> {
        let world = &self.context.world;
        let shared_journals =
            open_shared_journals(&self.context, settings.journals.clone()).await?;
        let cluster_id = self.context.cluster.as_u128().to_be_bytes();
        let unpinned = self.context.folder.unpinned();
        let caching = Caching::start(world, settings.cache.clone(), cluster_id, unpinned).await?;
        let store = Store::new(Arc::clone(&world.pool));
        let units = Arc::new(Units::new(
            Arc::clone(&self.context),
            self.controller.clone(),
            Arc::clone(&store),
            CountSigner::new(&self.cluster.lease_count_key),
        ));
        let rejoin_reports = RejoinReports::new(self.controller.clone(), Arc::clone(&units));
        let age = DatabaseAge::new(
            self.controller.clone(),
            Arc::clone(&units),
            rejoin_reports.clone(),
        );
        let fencing = Arc::new(Fencing::default());
        let leases = Leases::new(
            self.clock(),
            self.controller.clone(),
            Arc::clone(&self.contact),
            Arc::clone(&fencing),
            self.cluster.lease_ms.map(Duration::from_millis),
        );
        let reader = VersionReader {
            controller: self.controller.clone(),
            keys: Arc::clone(&self.keys),
            store: Arc::clone(&store),
            pages: PageBudget::new(settings.map_memory_bytes),
            clock: self.clock(),
        };
        Ok(Storage {
            store,
            units,
            rejoin_reports,
            age: Arc::new(age),
            fencing,
            leases: Arc::new(leases),
            local_journals: Arc::new(LocalJournals::new(Arc::clone(&self.context))),
            shared_journals,
            caching,
            reader,
        })
    }

    fn compose_volumes(
        &self,
        storage: &Storage,
        server: Arc<NbdServer>,
        plugging: Plugging,
        settings: VolumeSettings,
    ) -> Volumes {
        let open = Arc::new(OpenVolumes::default());
        let plugging = Arc::new(plugging);
        let filters = Arc::new(Filters::new(
            Arc::clone(&self.context),
            self.controller.clone(),
            settings.filters,
            Arc::clone(&storage.leases),
            Arc::clone(&open),
        ));
        let opener = VolumeOpener::new(OpenerParts {
            context: Arc::clone(&self.context),
            controller: self.controller.clone(),
            shutdown: self.shutdown.clone(),
            reader: storage.reader.clone(),
            caching: Arc::clone(&storage.caching),
            shared_journals: storage.shared_journals.clone(),
            leases: Arc::clone(&storage.leases),
            age: Arc::clone(&storage.age),
            filters: Arc::clone(&filters),
            server: Arc::clone(&server),
            plugging: Arc::clone(&plugging),
            allows_unencrypted: settings.allows_unencrypted,
            volume_config: settings.volume,
        });
        let worker_parts = WorkerParts {
            context: Arc::clone(&self.context),
            controller: self.controller.clone(),
            opener,
            filters,
            plugging,
            server,
            caching: Arc::clone(&storage.caching),
            open: Arc::clone(&open),
            local_journals: Arc::clone(&storage.local_journals),
            shared_journals: storage.shared_journals.clone(),
        };
        Volumes {
            open,
            attachments: Arc::new(Attachments::new(worker_parts, self.shutdown.clone())),
        }
    }

    fn compose_maintenance(
        &self,
        storage: &Storage,
        volumes: &Volumes,
        repair_bytes_per_second: u64,
    ) -> Maintenance {
        let repair = Repair::new(
            self.controller.clone(),
            Arc::clone(&storage.store),
            Arc::clone(&storage.age),
            self.clock(),
            repair_bytes_per_second,
        );
        let cleaning = Cleaning::new(CleaningParts {
            controller: self.controller.clone(),
            keys: Arc::clone(&self.keys),
            store: Arc::clone(&storage.store),
            clock: self.clock(),
            age: Arc::clone(&storage.age),
            open: Arc::clone(&volumes.open),
            local_journals: Arc::clone(&storage.local_journals),
            shared_journals: storage.shared_journals.clone(),
            filter_files: FilterFiles::new(&self.context),
        });
        let journal_cleaning = JournalCleaning::new(
            Arc::clone(&self.context),
            Arc::clone(&storage.local_journals),
            Arc::clone(&storage.fencing),
            Arc::clone(&storage.age),
            Arc::clone(&volumes.attachments),
        );
        Maintenance {
            rewrapping: Rewrapping::new(self.controller.clone(), Arc::clone(&self.keys)),
            repair: Arc::new(repair),
            cleaning: Arc::new(cleaning),
            journal_cleaning: Arc::new(journal_cleaning),
        }
    }

    fn compose_reporter(
        &self,
        storage: &Storage,
        maintenance: &Maintenance,
        statuses: &Arc<VolumeStatuses>,
    ) -> Reporter {
        Reporter::new(ReportParts {
            controller: self.controller.clone(),
            contact: Arc::clone(&self.contact),
            clock: self.clock(),
            units: Arc::clone(&storage.units),
            statuses: Arc::clone(statuses),
            age: Arc::clone(&storage.age),
            cleaning: Arc::clone(&maintenance.cleaning),
            journal_cleaning: Arc::clone(&maintenance.journal_cleaning),
            local_journals: Arc::clone(&storage.local_journals),
            filter_journals: FilterJournals::new(&self.context),
            keys: Arc::clone(&self.keys),
            rewrapping: maintenance.rewrapping.clone(),
            caching: Arc::clone(&storage.caching),
        })
    }

    fn compose_monitor(
        &self,
        storage: &Storage,
        maintenance: &Maintenance,
        statuses: Arc<VolumeStatuses>,
    ) -> Monitor {
        Monitor::new(MonitorParts {
            shutdown: self.shutdown.clone(),
            clock: self.clock(),
            contact: Arc::clone(&self.contact),
            leases: Arc::clone(&storage.leases),
            units: Arc::clone(&storage.units),
            repair: Arc::clone(&maintenance.repair),
            caching: Arc::clone(&storage.caching),
            statuses,
        })
    }
}

/// Opens the folder of journals that this host shares with others, if it has one.
async fn open_shared_journals(
    context: &Arc<HostContext>,
    path: Option<PathBuf>,
) -> Result<Option<Arc<SharedJournals>>, StartError> {
    let Some(path) = path else { return Ok(None) };
    let context = Arc::clone(context);
    let opened =
        blocking(move || SharedJournals::open(&context.world, &path, context.cluster)).await??;
    tracing::info!(id = %opened.id(), "agent keeps journals in a shared folder");
    Ok(Some(Arc::new(opened)))
}
