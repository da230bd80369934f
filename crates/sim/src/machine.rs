//! The simulated machine: a disk with units and journals on it, and the
//! process that uses them.

mod units;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use base::{BlockSize, ClusterId, Lineage, UnitId, VolumeId};
use cache::host::HostCache;
use cache::store::{Cache, CacheConfig, Division};
use testkit::units::{FaultyUnit, InjectedFaults};
use unit::{TrackedUnit, Unit};
use volume::catalog::copysets;
use volume::catalog::{Catalog, Copyset, Lease, LineageKey, PendingFree, StoredVersion};
use volume::clean::{CleanError, Cleaner};
use volume::journal::JournalLocation;
use volume::map::PageBudget;
use volume::scatter::{CacheView, ImagePart, Layout};
use volume::seal::{DataKey, KeyEncryptionKey, Keyring, LeaseSalt};
use volume::{LeaseTerm, OpenError, OpenParams, Store, Volume, VolumeConfig};
use volume::{ReadOnlyParams, ReadOnlyVolume};
use world::simulated::{SimulatedRandom, Simulation};
use world::{Job, Pool, Wake, World};

use crate::catalog::WatchedCatalog;
use crate::net::Network;
use crate::net::daemon::unit_path;
use crate::setup::Setup;

/// Where the journals of the first host lie.
const HOST: &str = "/host";

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
    /// Units that died, or are no longer a member of any copyset.
    pub removed: BTreeSet<usize>,
    cleaner: Cleaner,
    wrapping: Arc<KeyEncryptionKey>,
    config: VolumeConfig,
    segment_bytes: u64,
    /// The number of units, the first ones, that take whole segments only.
    whole_units: usize,
    folder: PathBuf,
    world: World,
    cache_bytes: Option<u64>,
    cache_memory_bytes: u64,
    /// The cache of the current process.
    cache: Arc<HostCache>,
    /// The hits of earlier processes' caches.
    cached: u64,
    /// The network, if units are on machines of their own.
    pub network: Option<Network>,
}

/// A unit as the engine gets it.
fn tracked(unit: &Arc<dyn Unit>, world: &World) -> Arc<TrackedUnit> {
    Arc::new(TrackedUnit::new(Arc::clone(unit), Arc::clone(&world.clock)))
}

/// A pool without threads: parallel work is done by the caller.
struct CallerPool;

impl Pool for CallerPool {
    fn run(&self, _: Job) {}
}

/// The id of unit `number`.
#[must_use]
pub fn unit_id(number: usize) -> UnitId {
    UnitId::from_u128(number as u128 + 1)
}

impl Machine {
    /// A machine with empty units.
    #[must_use]
    pub fn new(seed: u64, setup: &Setup) -> Self {
        let simulation = Simulation::new(seed);
        let world = simulation.world();
        for folder in [HOST, "/units"] {
            let made = world.disk.create_directory(folder.as_ref());
            made.and_then(|()| world.disk.sync_directory("/".as_ref()))
                .expect("an empty disk takes folders");
        }
        simulation
            .disk
            .set_read_now_misses(setup.read_misses_one_in);
        let at_once = SimulatedRandom::new(seed ^ 0xA7_0C4E);
        simulation
            .pool
            .set_immediate(setup.jobs_at_once_one_in, at_once);
        let cluster = ClusterId::from_u128(1);
        let ids: Vec<UnitId> = (0..setup.units).map(unit_id).collect();
        let random = SimulatedRandom::new(seed);
        let config = VolumeConfig {
            journal_bytes: setup.journal_bytes,
            tail_entries_max: setup.tail_entries_max,
            tail_pages_max: setup.tail_pages_max,
            segment_bytes: setup.segment_bytes,
            scatter_width: setup.scatter_width,
            ..VolumeConfig::default()
        };
        let store = Store::new(Arc::clone(&world.pool));
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
        let wrapping = Arc::new(KeyEncryptionKey::from_bytes(&[7; 32]));
        let mut machine = Self {
            simulation,
            cleaner: cleaner(&store, &catalog, &wrapping),
            catalog,
            units: Vec::new(),
            faulty: Vec::new(),
            tracked: Vec::new(),
            audited: Arc::clone(&store),
            store,
            audited_units: Vec::new(),
            removed: BTreeSet::new(),
            wrapping,
            config,
            segment_bytes: u64::from(setup.segment_bytes),
            whole_units: setup.whole_units,
            folder: PathBuf::from(HOST),
            world,
            cache_bytes: setup.cache_bytes,
            cache_memory_bytes: setup.cache_memory_bytes,
            cache: HostCache::new(0),
            cached: 0,
            network,
        };
        for number in 0..setup.units {
            machine.make_unit(number).expect("made");
        }
        machine.start(setup.units);
        machine
    }

    /// Another host with the same units and the same database. Its journals are in a
    /// folder of its own; its clock starts with this one's and then runs on its own.
    #[must_use]
    pub fn beside(&self, folder: &str) -> Self {
        let simulation = self.simulation.beside();
        let world = simulation.world();
        let made = world.disk.create_directory(folder.as_ref());
        made.and_then(|()| world.disk.sync_directory("/".as_ref()))
            .expect("the disk takes folders");
        let store = Store::new(Arc::clone(&world.pool));
        let catalog = Arc::new(self.catalog.beside(simulation.random.split()));
        let network = self.network.as_ref();
        let network = network.map(|network| network.beside(&simulation.clock));
        let mut machine = Self {
            simulation,
            cleaner: cleaner(&store, &catalog, &self.wrapping),
            catalog,
            units: Vec::new(),
            faulty: Vec::new(),
            tracked: Vec::new(),
            audited: Arc::clone(&store),
            store,
            audited_units: Vec::new(),
            removed: self.removed.clone(),
            wrapping: Arc::clone(&self.wrapping),
            config: self.config,
            segment_bytes: self.segment_bytes,
            whole_units: self.whole_units,
            folder: PathBuf::from(folder),
            world,
            cache_bytes: self.cache_bytes,
            cache_memory_bytes: self.cache_memory_bytes,
            cache: HostCache::new(0),
            cached: 0,
            network,
        };
        machine.start(self.units.len());
        machine
    }

    /// A new salt for a lease.
    #[must_use]
    pub fn salt(&self) -> LeaseSalt {
        LeaseSalt::generate(&*self.world.random)
    }

    /// Acquires the lease on an existing volume, with a catalog that is available.
    ///
    /// # Panics
    /// If either does not hold.
    #[must_use]
    pub fn acquire(&self, volume: VolumeId) -> Lease {
        let lease = self.catalog.acquire(volume, self.salt(), None);
        lease.expect("it is there")
    }

    /// Opens the units in the current process.
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
            network.begin();
            self.catalog
                .set_capability_cache(Some(Arc::clone(network.capability_cache())));
        }
        for number in 0..units {
            self.open_unit(number);
        }
        self.cleaner = cleaner(&self.store, &self.catalog, &self.wrapping);
        self.set_tables();
    }

    /// The current process's cache.
    #[must_use]
    pub fn cache(&self) -> &HostCache {
        &self.cache
    }

    /// The number of hits in its caches so far.
    #[must_use]
    pub fn cached(&self) -> u64 {
        let areas = self.cache.counts();
        let hits = areas.iter().map(|area| area.memory + area.file);
        self.cached + hits.sum::<u64>()
    }

    /// Opens the cache, whose file may have been damaged: that must have no effect.
    fn open_cache(&self) -> Arc<HostCache> {
        let cache = HostCache::new(self.cache_memory_bytes);
        if let Some(file) = self.open_cache_file() {
            cache.use_file(file);
        }
        cache
    }

    fn open_cache_file(&self) -> Option<Arc<Cache>> {
        let bytes = self.cache_bytes?;
        let path = self.folder.join("cache");
        let (random, disk) = (&self.simulation.random, &self.simulation.disk);
        match random.below(4) {
            // The file may be missing.
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

    /// Gives the stores the present members of copysets.
    pub fn set_tables(&self) {
        let copysets = self.catalog.members.copysets();
        let of = |units: &[Arc<TrackedUnit>]| -> Vec<(UnitId, Arc<TrackedUnit>)> {
            let units = units.iter().cloned().enumerate();
            let there = units.filter(|(number, _)| !self.removed.contains(number));
            there
                .map(|(number, unit)| (unit_id(number), unit))
                .collect()
        };
        self.store.set_table(of(&self.tracked), &copysets);
        self.audited.set_table(of(&self.audited_units), &copysets);
    }

    /// Carries out a free that is due.
    ///
    /// # Errors
    /// [`CleanError`].
    pub fn carry_out(&self, due: &PendingFree) -> Result<usize, CleanError> {
        if let Some(network) = &self.network {
            network.capability_cache().frees(due);
        }
        self.cleaner.carry_out(due)
    }

    /// Sets the faults of a unit.
    pub fn lie(&self, unit: usize, faults: InjectedFaults) {
        self.faulty[unit].set(faults);
    }

    /// The number of reads that a unit has not answered.
    #[must_use]
    pub fn kept_reads(&self, unit: usize) -> usize {
        self.faulty[unit].held()
    }

    /// Looks again at the units that are not well, as somebody does now and
    /// then; `at_once` also if it is not yet time.
    pub fn probe(&self, at_once: bool) {
        for unit in &self.tracked {
            if unit.is_probe_due() || (at_once && !unit.can_write()) {
                // What comes of it, the unit's health keeps.
                let _ = unit.probe();
            }
        }
    }

    /// The machine loses power, and a new process starts.
    pub fn crash(&mut self) {
        self.simulation.crash();
        self.start(self.units.len());
    }

    /// The process dies, and a new one starts.
    pub fn kill(&mut self) {
        self.simulation.kill();
        self.start(self.units.len());
    }

    /// The machine loses power together with `other`, which has a new process
    /// already.
    pub fn restart_beside(&mut self, other: &Self) {
        self.simulation.restart_beside(&other.simulation);
        self.start(self.units.len());
    }

    /// The folder of unit `number`.
    #[must_use]
    pub fn unit_path(&self, number: usize) -> PathBuf {
        unit_path(number)
    }

    /// Units that hold segments of a copyset, in order.
    #[must_use]
    pub fn members(&self, copyset: base::CopysetId) -> Vec<UnitId> {
        let copysets = self.catalog.members.copysets();
        let found = copysets.into_iter().find(|set| set.id == copyset);
        found.map_or_else(Vec::new, |set| set.members)
    }

    /// How they hold them.
    #[must_use]
    pub fn layout(&self, copyset: base::CopysetId) -> Layout {
        let copysets = self.catalog.members.copysets();
        let found = copysets.iter().find(|set| set.id == copyset);
        Layout::new(found.and_then(Copyset::erasure))
    }

    /// The folder of journals.
    #[must_use]
    pub fn host(&self) -> PathBuf {
        self.folder.clone()
    }

    /// A volume's journal.
    #[must_use]
    pub fn journal(&self, volume: VolumeId) -> PathBuf {
        self.folder.join(format!("{volume}.journal"))
    }

    /// A new lineage's key, or the word that it is not sealed.
    #[must_use]
    pub fn new_key(
        &self,
        lineage: Lineage,
        is_sealed: bool,
        random: &SimulatedRandom,
    ) -> LineageKey {
        let key = DataKey::generate(random);
        let wrapped = match is_sealed {
            true => self.wrapping.wrap(lineage, &key, random),
            false => self.wrapping.wrap_none(lineage, random),
        };
        LineageKey {
            lineage,
            epoch_first: 0,
            wrapped: Some(wrapped),
            wrapped_by: None,
            salts: Vec::new(),
        }
    }

    /// Opens the keys of a lineage.
    #[must_use]
    pub fn keyring(&self, keys: &[LineageKey]) -> Arc<Keyring> {
        Arc::new(Keyring::unwrap(keys, &self.wrapping).expect("wrapped with this key"))
    }

    /// Opens a volume under a lease.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, lease: Lease) -> Result<Volume, OpenError> {
        let journal = self.journal(lease.volume);
        self.open_until(lease, LeaseTerm::unlimited(), journal, false)
    }

    /// Opens a volume under a lease that ends, maybe over another host's
    /// journal.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_until(
        &self,
        lease: Lease,
        term: LeaseTerm,
        journal: PathBuf,
        taken_over: bool,
    ) -> Result<Volume, OpenError> {
        let place = JournalLocation::of(&lease, &journal, None);
        self.open_at(lease, term, place, taken_over)
    }

    /// As [`Machine::open_until`], with the journal wherever it is.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_at(
        &self,
        lease: Lease,
        term: LeaseTerm,
        journal: JournalLocation,
        taken_over: bool,
    ) -> Result<Volume, OpenError> {
        let keyring = self.keyring(&lease.keys);
        Volume::open(OpenParams {
            world: self.world.clone(),
            wake: Wake::noop(),
            store: Arc::clone(&self.store),
            catalog: Arc::clone(&self.catalog) as Arc<dyn Catalog>,
            journal,
            taken_over,
            cache: Some(self.view(lease.volume)),
            lease,
            term,
            keyring,
            config: self.config,
            pages: PageBudget::new(0),
        })
    }

    /// A volume's way through the cache; part of it counts as an image's.
    fn view(&self, volume: VolumeId) -> CacheView {
        let view = CacheView::new(Arc::clone(&self.cache), volume);
        let random = &self.simulation.random;
        view.set_image(ImagePart {
            of: Some(Lineage::from_u128(random.below(3).into())),
            below: random.below(4) as u32,
            is_pinned: random.one_in(4),
        });
        view
    }

    /// Opens a version for reading.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_read_only(
        &self,
        version: Option<StoredVersion>,
        keys: &[LineageKey],
        size_bytes: u64,
        block_size: BlockSize,
    ) -> Result<ReadOnlyVolume, OpenError> {
        ReadOnlyVolume::open(ReadOnlyParams {
            cache: version
                .as_ref()
                .map(|version| self.view(version.key.volume)),
            wake: Wake::noop(),
            clock: Arc::clone(&self.world.clock),
            store: Arc::clone(&self.store),
            version: version.map(|version| (version, self.keyring(keys))),
            size_bytes,
            block_size,
            pages: PageBudget::new(0),
        })
    }

    /// The process's cleaner, which remembers what it saw.
    #[must_use]
    pub fn cleaner(&self) -> Cleaner {
        self.cleaner.clone()
    }
}

fn cleaner(
    store: &Arc<Store>,
    catalog: &Arc<WatchedCatalog>,
    wrapping: &Arc<KeyEncryptionKey>,
) -> Cleaner {
    let wrapping = Arc::clone(wrapping);
    Cleaner::new(
        Arc::clone(store),
        Arc::clone(catalog) as Arc<dyn Catalog>,
        Arc::new(move |keys| Keyring::unwrap(keys, &wrapping)),
    )
}
