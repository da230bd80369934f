//! [`Machine`]: the simulated host: a disk with units and journals, and the process that
//! uses them.

mod opening;
mod units;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use base::{ClusterId, UnitId, VolumeId};
use cache::host::HostCache;
use cache::store::{Cache, CacheConfig, Division};
use catalog::copysets;
use catalog::{Catalog, Copyset, Lease, PendingFree};
use testkit::units::{FaultyUnit, InjectedFaults};
use unit::{TrackedUnit, Unit};
use volume::clean::{CleanError, Cleaner};
use volume::scatter::Layout;
use volume::seal::{Keyring, LeaseSalt, WrappingKey};
use volume::{Store, VolumeConfig};
use world::simulated::{SimulatedRandom, Simulation};
use world::{Job, Pool, World};

use crate::net::Network;
use crate::net::daemon::unit_path;
use crate::setup::Setup;
use crate::watched_catalog::WatchedCatalog;

/// The folder of the first host's journals.
const JOURNALS: &str = "/host";

/// A machine and its current process.
pub struct Machine {
    /// The simulated world.
    pub simulation: Simulation,
    /// The database.
    pub catalog: Arc<WatchedCatalog>,
    /// The units, as the current process sees them.
    pub units: Vec<(UnitId, Arc<dyn Unit>)>,
    /// The fault injector of each unit.
    faulty: Vec<Arc<FaultyUnit>>,
    /// The same units, with their health.
    pub tracked: Vec<Arc<TrackedUnit>>,
    /// The process's store.
    pub store: Arc<Store>,
    /// A store of the same units for the auditor, which leaves the process unchanged.
    pub audited: Arc<Store>,
    /// The same units, as the auditor sees them.
    audited_units: Vec<Arc<TrackedUnit>>,
    /// Units that died, or are no longer members of any copyset.
    pub removed: BTreeSet<usize>,
    cleaner: Cleaner,
    config: HostConfig,
    /// The folder of journals and the cache.
    folder: PathBuf,
    world: World,
    /// The cache of the current process.
    cache: Arc<HostCache>,
    /// Hits in the caches of earlier processes.
    cached: u64,
    /// The network, if units are behind daemons.
    pub network: Option<Network>,
}

/// A unit with its health.
fn tracked(unit: &Arc<dyn Unit>, world: &World) -> Arc<TrackedUnit> {
    Arc::new(TrackedUnit::new(Arc::clone(unit), Arc::clone(&world.clock)))
}

/// A pool without threads: the caller does parallel work itself.
struct CallerPool;

impl Pool for CallerPool {
    fn run(&self, _: Job) {}
}

/// The id of unit `number`.
#[must_use]
pub fn unit_id(number: usize) -> UnitId {
    UnitId::from_u128(number as u128 + 1)
}

/// The configuration that all hosts of a run share.
#[derive(Clone)]
struct HostConfig {
    wrapping_key: Arc<WrappingKey>,
    volume: VolumeConfig,
    /// Size of a segment in bytes.
    segment_bytes: u64,
    /// The first units, this many, take whole segments only.
    whole_units: usize,
    cache_bytes: Option<u64>,
    cache_memory_bytes: u64,
}

impl HostConfig {
    fn new(setup: &Setup) -> Self {
        Self {
            wrapping_key: Arc::new(WrappingKey::from_bytes(&[7; 32])),
            volume: setup.volume,
            segment_bytes: u64::from(setup.volume.segment_bytes),
            whole_units: setup.whole_units,
            cache_bytes: setup.cache_bytes,
            cache_memory_bytes: setup.cache_memory_bytes,
        }
    }
}

/// The parts of a host before its first process starts.
struct HostParts {
    simulation: Simulation,
    world: World,
    catalog: Arc<WatchedCatalog>,
    network: Option<Network>,
    config: HostConfig,
    folder: PathBuf,
}

impl HostParts {
    /// A machine without units.
    fn assemble(self) -> Machine {
        let store = Store::new(Arc::clone(&self.world.pool));
        Machine {
            cleaner: cleaner(&store, &self.catalog, &self.config.wrapping_key),
            simulation: self.simulation,
            catalog: self.catalog,
            units: Vec::new(),
            faulty: Vec::new(),
            tracked: Vec::new(),
            audited: Arc::clone(&store),
            store,
            audited_units: Vec::new(),
            removed: BTreeSet::new(),
            config: self.config,
            folder: self.folder,
            world: self.world,
            cache: HostCache::new(0),
            cached: 0,
            network: self.network,
        }
    }
}

impl Machine {
    /// A machine with empty units.
    #[must_use]
    pub fn new(seed: u64, setup: &Setup) -> Self {
        let simulation = Simulation::new(seed);
        let world = simulation.world();
        for folder in [JOURNALS, "/units"] {
            let made = world.disk.create_directory(folder.as_ref());
            made.and_then(|()| world.disk.sync_directory("/".as_ref()))
                .expect("an empty disk takes folders");
        }
        simulation
            .disk
            .set_read_now_misses(setup.read_misses_one_in);
        let immediate = SimulatedRandom::new(seed ^ 0xA7_0C4E);
        simulation
            .pool
            .set_immediate(setup.jobs_at_once_one_in, immediate);
        let cluster = ClusterId::from_u128(1);
        let ids: Vec<UnitId> = (0..setup.units).map(unit_id).collect();
        let random = SimulatedRandom::new(seed);
        let copysets = copysets::plan(
            &ids,
            &copysets::Zones::new(),
            setup.replicas,
            setup.erasure,
            &[],
            copysets::SCATTER_WIDTH,
            &random,
        );
        let catalog = Arc::new(WatchedCatalog::new(random, copysets));
        let network = setup
            .net
            .map(|net| Network::new(net, cluster, &simulation.clock, &catalog));
        let parts = HostParts {
            simulation,
            world,
            catalog,
            network,
            config: HostConfig::new(setup),
            folder: PathBuf::from(JOURNALS),
        };
        let mut machine = parts.assemble();
        for number in 0..setup.units {
            machine.create_unit(number).expect("created");
        }
        machine.start(setup.units);
        machine
    }

    /// Another host with the same units and the same database. Its journals are in
    /// `folder`; its clock starts with this host's and then runs on its own.
    #[must_use]
    pub fn another_host(&self, folder: &str) -> Self {
        let simulation = self.simulation.beside();
        let world = simulation.world();
        let made = world.disk.create_directory(folder.as_ref());
        made.and_then(|()| world.disk.sync_directory("/".as_ref()))
            .expect("the disk takes folders");
        let catalog = Arc::new(self.catalog.for_another_host(simulation.random.split()));
        let network = self.network.as_ref();
        let network = network.map(|network| network.for_another_host(&simulation.clock));
        let parts = HostParts {
            simulation,
            world,
            catalog,
            network,
            config: self.config.clone(),
            folder: PathBuf::from(folder),
        };
        let mut machine = parts.assemble();
        machine.removed = self.removed.clone();
        machine.start(self.units.len());
        machine
    }

    /// A new salt for a lease.
    #[must_use]
    pub fn salt(&self) -> LeaseSalt {
        LeaseSalt::generate(&*self.world.random)
    }

    /// Acquires the lease of a volume.
    ///
    /// # Panics
    /// If the volume does not exist, or the catalog fails.
    #[must_use]
    pub fn acquire(&self, volume: VolumeId) -> Lease {
        let lease = self.catalog.acquire(volume, self.salt(), None);
        lease.expect("the volume exists")
    }

    /// Starts a process, which opens the units.
    fn start(&mut self, units: usize) {
        self.world = self.simulation.world();
        self.cached = self.cached();
        self.cache = self.open_cache();
        self.store = Store::new(Arc::clone(&self.world.pool));
        self.audited = Store::new(Arc::new(CallerPool));
        self.units.clear();
        self.faulty.clear();
        self.tracked.clear();
        self.audited_units.clear();
        if let Some(network) = &mut self.network {
            network.start_process();
            self.catalog
                .set_capability_cache(Some(Arc::clone(network.capability_cache())));
        }
        for number in 0..units {
            self.open_unit(number);
        }
        self.cleaner = cleaner(&self.store, &self.catalog, &self.config.wrapping_key);
        self.set_tables();
    }

    /// The current process's cache.
    #[must_use]
    pub fn cache(&self) -> &HostCache {
        &self.cache
    }

    /// The number of cache hits so far, over all processes.
    #[must_use]
    pub fn cached(&self) -> u64 {
        let areas = self.cache.counts();
        let hits = areas.iter().map(|area| area.memory + area.file);
        self.cached + hits.sum::<u64>()
    }

    /// Opens the cache. Its file is sometimes lost or damaged before, which must have no
    /// effect.
    fn open_cache(&self) -> Arc<HostCache> {
        let cache = HostCache::new(self.config.cache_memory_bytes);
        if let Some(file) = self.open_cache_file() {
            cache.use_file(file);
        }
        cache
    }

    fn open_cache_file(&self) -> Option<Arc<Cache>> {
        let bytes = self.config.cache_bytes?;
        let path = self.folder.join("cache");
        let (random, disk) = (&self.simulation.random, &self.simulation.disk);
        match random.below(4) {
            // The file is lost.
            0 => drop(world::Disk::remove(&**disk, &path)),
            1 => (0..16).for_each(|_| {
                drop(disk.flip_bit(&path, random.below(bytes), random.below(8) as u8));
            }),
            _ => {}
        }
        let config = CacheConfig {
            path,
            bytes: Some(bytes),
            division: Division::default(),
            cluster: [1; 16],
        };
        let opened = Cache::open(&self.world, &config);
        opened.ok().map(|(cache, _)| cache)
    }

    /// Updates the tables of the stores to the current members.
    pub fn set_tables(&self) {
        let copysets = self.catalog.members.copysets();
        let present = |units: &[Arc<TrackedUnit>]| -> Vec<(UnitId, Arc<TrackedUnit>)> {
            let units = units.iter().cloned().enumerate();
            let there = units.filter(|(number, _)| !self.removed.contains(number));
            there
                .map(|(number, unit)| (unit_id(number), unit))
                .collect()
        };
        self.store.set_table(present(&self.tracked), &copysets);
        self.audited
            .set_table(present(&self.audited_units), &copysets);
    }

    /// Carries out a free plan that is due.
    ///
    /// # Errors
    /// [`CleanError`].
    pub fn carry_out(&self, due: &PendingFree) -> Result<usize, CleanError> {
        if let Some(network) = &self.network {
            network.capability_cache().request_free(due);
        }
        self.cleaner.carry_out(due)
    }

    /// Sets the faults of calls to a unit.
    pub fn inject(&self, unit: usize, faults: InjectedFaults) {
        self.faulty[unit].set(faults);
    }

    /// The number of reads that a unit holds back.
    #[must_use]
    pub fn held_reads(&self, unit: usize) -> usize {
        self.faulty[unit].held()
    }

    /// Probes the units whose probe is due; if `at_once`, all that take no writes.
    pub fn probe(&self, at_once: bool) {
        for unit in &self.tracked {
            if unit.is_probe_due() || (at_once && !unit.can_write()) {
                // The unit's health records the result.
                let _ = unit.probe();
            }
        }
    }

    /// The host loses power, and a new process starts.
    pub fn crash(&mut self) {
        self.simulation.crash();
        self.start(self.units.len());
    }

    /// The process dies, and a new one starts.
    pub fn kill(&mut self) {
        self.simulation.kill();
        self.start(self.units.len());
    }

    /// The host has lost power together with `other`, whose new process already runs.
    pub fn restart_with(&mut self, other: &Self) {
        self.simulation.restart_beside(&other.simulation);
        self.start(self.units.len());
    }

    /// The folder of unit `number`.
    #[must_use]
    pub fn unit_path(&self, number: usize) -> PathBuf {
        unit_path(number)
    }

    /// The members of a copyset, in order.
    #[must_use]
    pub fn members(&self, copyset: base::CopysetId) -> Vec<UnitId> {
        let copysets = self.catalog.members.copysets();
        let found = copysets.into_iter().find(|set| set.id == copyset);
        found.map_or_else(Vec::new, |set| set.members)
    }

    /// The layout of a copyset's segments.
    #[must_use]
    pub fn layout(&self, copyset: base::CopysetId) -> Layout {
        let copysets = self.catalog.members.copysets();
        let found = copysets.iter().find(|set| set.id == copyset);
        Layout::new(found.and_then(Copyset::erasure))
    }

    /// The folder of journals.
    #[must_use]
    pub fn journal_folder(&self) -> PathBuf {
        self.folder.clone()
    }

    /// The path of a volume's journal.
    #[must_use]
    pub fn journal(&self, volume: VolumeId) -> PathBuf {
        self.folder.join(format!("{volume}.journal"))
    }

    /// The process's cleaner; clones share what it has read.
    #[must_use]
    pub fn cleaner(&self) -> Cleaner {
        self.cleaner.clone()
    }
}

/// A new cleaner.
fn cleaner(
    store: &Arc<Store>,
    catalog: &Arc<WatchedCatalog>,
    wrapping_key: &Arc<WrappingKey>,
) -> Cleaner {
    let wrapping_key = Arc::clone(wrapping_key);
    Cleaner::new(
        Arc::clone(store),
        Arc::clone(catalog) as Arc<dyn Catalog>,
        Arc::new(move |keys| Keyring::unwrap(keys, &wrapping_key)),
    )
}
