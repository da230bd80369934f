//! [`Network`]: hosts and unit daemons, and a network between them that breaks when the seed
//! says so (docs/internals/simulator.md).
//!
//! ```text
//!   RemoteUnit ── link ── Conversation ~ bytes ~ Session ── daemon ── FolderUnit
//!                  │                                │
//!            capabilities ◄──── controllers        tap: requests, answers and rights
//! ```
//!
//! * [`daemon`]: the machine of a unit: its disk, its clock, its daemon.
//! * [`tap`]: observes connections, and checks them without the daemon's code.
//! * [`link`]: a host's link to a daemon.
//! * [`faults`]: the faults of a link.
//! * [`record`]: what happened, as counts and violations.
//! * [`capabilities`]: the capabilities that controllers sign, and a host's cache of them.
//!
//! Everything runs on one thread: the caller of a request moves the bytes in both
//! directions. A host must not start a request within the completion of another one.

pub mod capabilities;
mod clock;
pub mod daemon;
pub mod faults;
pub mod link;
pub mod record;
pub mod tap;

use std::sync::Arc;

use base::{ClusterId, UnitId};
use parking_lot::Mutex;
use unit_remote::RemoteUnit;
use world::World;
use world::simulated::{SimulatedClock, SimulatedDisk, SimulatedRandom};

use self::capabilities::{CapabilityCache, Controllers};
use self::clock::SteadyClock;
use self::daemon::Daemon;
use self::faults::LinkFaults;
use self::link::Link;
use self::record::{Counts, Records};
use crate::setup::NetSetup;
use crate::watched_catalog::WatchedCatalog;

/// One host's view of the network.
pub struct Network {
    setup: NetSetup,
    cluster: ClusterId,
    holder: [u8; 32],
    clock: Arc<SimulatedClock>,
    random: SimulatedRandom,
    daemons: Vec<Arc<Daemon>>,
    /// The faults of the link to each daemon.
    faults: Vec<Arc<Mutex<LinkFaults>>>,
    links: Vec<Arc<Link>>,
    controllers: Arc<Controllers>,
    capability_cache: Arc<CapabilityCache>,
    records: Records,
}

impl Network {
    /// A network without daemons. `clock` is that of all machines.
    #[must_use]
    pub fn new(
        setup: NetSetup,
        cluster: ClusterId,
        clock: &Arc<SimulatedClock>,
        catalog: &WatchedCatalog,
    ) -> Self {
        let controllers = Arc::new(Controllers::new(
            cluster,
            clock,
            Arc::clone(&catalog.memory),
            Arc::clone(&catalog.members),
        ));
        let holder = [1; 32];
        Self {
            setup,
            cluster,
            holder,
            clock: Arc::clone(clock),
            random: SimulatedRandom::new(setup.seed),
            daemons: Vec::new(),
            faults: Vec::new(),
            links: Vec::new(),
            capability_cache: Arc::new(CapabilityCache::new(&controllers, holder)),
            controllers,
            records: Records::default(),
        }
    }

    /// The same daemons for another host, with links of its own.
    #[must_use]
    pub fn for_another_host(&self, clock: &Arc<SimulatedClock>) -> Self {
        let holder = [3; 32];
        Self {
            setup: self.setup,
            cluster: self.cluster,
            holder,
            clock: Arc::clone(clock),
            random: self.random.split(),
            daemons: self.daemons.clone(),
            faults: self.daemons.iter().map(|_| Arc::default()).collect(),
            links: Vec::new(),
            controllers: Arc::clone(&self.controllers),
            capability_cache: Arc::new(CapabilityCache::new(&self.controllers, holder)),
            records: Arc::clone(&self.records),
        }
    }

    /// Whether the network has faults.
    #[must_use]
    pub fn breaks(&self) -> bool {
        self.setup.breaks
    }

    /// Prints events from now on.
    pub fn trace(&self) {
        self.records.lock().is_traced = true;
    }

    /// Adds the machine of unit `number`, the next one, with a running daemon.
    ///
    /// # Errors
    /// [`unit::UnitError`] if the unit cannot be created.
    pub fn add(
        &mut self,
        number: usize,
        id: UnitId,
        segment_bytes: u64,
    ) -> Result<(), unit::UnitError> {
        assert_eq!(number, self.daemons.len(), "units are added in order");
        let daemon = Daemon::new(daemon::Params {
            number,
            id,
            cluster: self.cluster,
            segment_bytes,
            undelete_window: self.setup.undelete_window,
            clock: Arc::new(SteadyClock(Arc::clone(&self.clock))),
            random: self.random.split(),
            key: self.controllers.verifying_key(),
            records: Arc::clone(&self.records),
        })?;
        self.daemons.push(Arc::new(daemon));
        self.faults.push(Arc::default());
        Ok(())
    }

    /// The host's process has ended, and a new one starts: without connections and
    /// capabilities.
    pub fn start_process(&mut self) {
        for link in self.links.drain(..) {
            link.end();
        }
        self.capability_cache = Arc::new(CapabilityCache::new(&self.controllers, self.holder));
    }

    /// Connects the current process to unit `number`, the next one.
    #[must_use]
    pub fn unit(&mut self, number: usize, world: &World) -> RemoteUnit {
        assert_eq!(number, self.links.len(), "units are added in order");
        let daemon = &self.daemons[number];
        let link = Link::new(link::Params {
            cluster: self.cluster,
            holder: self.holder,
            daemon: Arc::clone(daemon),
            clock: Arc::clone(&self.clock),
            random: self.random.split(),
            pool: Arc::clone(&world.pool),
            delivers_abandoned: self.setup.breaks,
            faults: Arc::clone(&self.faults[number]),
            capability_cache: Arc::clone(&self.capability_cache),
            records: Arc::clone(&self.records),
        });
        self.capability_cache.add(&link);
        self.links.push(Arc::clone(&link));
        RemoteUnit::new(format!("scree://10.0.0.{}:7070", number + 1), link)
    }

    /// The capabilities of the current process.
    #[must_use]
    pub fn capability_cache(&self) -> &Arc<CapabilityCache> {
        &self.capability_cache
    }

    /// The daemon of a unit, with its machine.
    #[must_use]
    pub fn daemon(&self, number: usize) -> &Arc<Daemon> {
        &self.daemons[number]
    }

    /// The disk of a unit's machine, for a new process there.
    #[must_use]
    pub fn disk(&self, number: usize) -> Arc<SimulatedDisk> {
        Arc::new(self.daemons[number].disk().spawn())
    }

    /// `world` with the disk of a unit's machine, for the auditor.
    #[must_use]
    pub fn world(&self, number: usize, world: &World) -> World {
        World {
            disk: self.disk(number),
            ..world.clone()
        }
    }

    /// Sets the faults of the link to a unit.
    pub fn set_faults(&self, number: usize, faults: LinkFaults) {
        *self.faults[number].lock() = faults;
    }

    /// Ends all faults. Requests of abandoned connections stay in transit.
    pub fn heal(&self) {
        for faults in &self.faults {
            *faults.lock() = LinkFaults::default();
        }
        self.stop_falsifying();
    }

    /// Ends falsified reads.
    pub fn stop_falsifying(&self) {
        self.daemons
            .iter()
            .for_each(|daemon| daemon.falsify_reads(0));
    }

    /// Delivers requests of abandoned connections: `all` of them, or some if the seed says
    /// so.
    pub fn deliver_abandoned(&self, all: bool) {
        for daemon in &self.daemons {
            while all && daemon.deliver_abandoned() {}
            if self.random.one_in(6) {
                daemon.deliver_abandoned();
            }
        }
    }

    /// A host outside of the run acquires a lease, and presents it to the units that it
    /// reaches.
    pub fn present_from_elsewhere(&self, volume: base::VolumeId, epoch: u32) {
        let holder = [2; 32];
        let signed = self.controllers.lease(holder, volume, epoch);
        for daemon in &self.daemons {
            if self.random.below(4) > 0 {
                daemon.present(self.cluster, holder, &signed);
            }
        }
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.records.lock().counts
    }

    /// The first promise that a daemon broke.
    #[must_use]
    pub fn violation(&self) -> Option<String> {
        self.records.lock().violations.first().cloned()
    }

    /// Changes the counts.
    pub fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.records.lock().counts);
    }
}
