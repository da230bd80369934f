//! Hosts and unit daemons with a network between them that the seed breaks
//! (docs/internals/simulator.md).
//!
//! ```text
//!   RemoteUnit ── link ── Conversation ~ bytes ~ Session ── daemon ── FolderUnit
//!                  │                                │
//!            capabilities ◄──── controllers        tap: what was asked and answered,
//!                                                      and by what right
//! ```
//!
//! * [`daemon`]: a unit's machine: its disk, its clock, the daemon on it.
//! * [`tap`]: looks at what passes, and judges it without the daemon's code.
//! * [`link`]: a host's way to a daemon, and what happens on it.
//! * [`capabilities`]: what a host may do, as controllers sign it.
//!
//! All of it runs on one thread: whoever asks moves the bytes there and back. What it
//! must not do is ask while it is told an answer; no host does.

pub mod capabilities;
pub mod daemon;
pub mod link;
pub mod tap;

use std::sync::Arc;
use std::time::Duration;

use base::{ClusterId, UnitId};
use parking_lot::Mutex;
use unit_remote::RemoteUnit;
use world::simulated::{SimulatedClock, SimulatedDisk, SimulatedRandom};
use world::{Clock, Millis, World};

use self::capabilities::{CapabilityCache, Controllers};
use self::daemon::Daemon;
use self::link::{Link, Strikes};
use crate::catalog::WatchedCatalog;
use crate::setup::NetSetup;

/// What has happened, over all links and daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests that were sent.
    pub asked: u64,
    /// Connections that broke before what was sent arrived.
    pub broken_before: u64,
    /// After it was carried out, and before an answer came.
    pub answers_lost: u64,
    /// In the middle of a frame.
    pub cut_in_frame: u64,
    /// Requests that were carried out after their connection was given up.
    pub late: u64,
    /// Of these, changes that were carried out.
    pub late_changes: u64,
    /// Answers that came before one to an earlier request.
    pub reordered: u64,
    /// Connections that were given up because no answer came in time.
    pub timed_out: u64,
    /// Partitions.
    pub partitions: u64,
    /// Daemons that were killed.
    pub killed: u64,
    /// Machines of daemons that lost power.
    pub crashed: u64,
    /// Reads that were answered with something else.
    pub lies: u64,
    /// Changes under a lease, or by a *repair*, that is not the newest, or was shown on a
    /// newer connection, which were refused.
    pub refused_older: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.asked += other.asked;
        self.broken_before += other.broken_before;
        self.answers_lost += other.answers_lost;
        self.cut_in_frame += other.cut_in_frame;
        self.late += other.late;
        self.late_changes += other.late_changes;
        self.reordered += other.reordered;
        self.timed_out += other.timed_out;
        self.partitions += other.partitions;
        self.killed += other.killed;
        self.crashed += other.crashed;
        self.lies += other.lies;
        self.refused_older += other.refused_older;
    }
}

/// What all hosts and daemons of a run tell.
#[derive(Debug, Default)]
pub struct Record {
    /// What has happened.
    pub counts: Counts,
    /// What must not.
    pub wrong: Vec<String>,
    /// Said, if the run is told step by step.
    pub is_traced: bool,
}

/// Shared by all.
pub type Records = Arc<Mutex<Record>>;

/// The clock of machines whose clock nobody sets: controllers' and daemons'.
pub struct SteadyClock(pub Arc<SimulatedClock>);

impl Clock for SteadyClock {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn wall(&self) -> Millis {
        let begun = 1_767_225_600_000;
        Millis(begun + i64::try_from(self.0.monotonic().as_millis()).expect("some years"))
    }
}

/// The network as one host has it.
pub struct Network {
    setup: NetSetup,
    cluster: ClusterId,
    holder: [u8; 32],
    clock: Arc<SimulatedClock>,
    random: SimulatedRandom,
    daemons: Vec<Arc<Daemon>>,
    /// What goes wrong on the way to each.
    strikes: Vec<Arc<Mutex<Strikes>>>,
    links: Vec<Arc<Link>>,
    controllers: Arc<Controllers>,
    capability_cache: Arc<CapabilityCache>,
    records: Records,
}

impl Network {
    /// No daemons yet; the clock is that of all machines.
    #[must_use]
    pub fn new(
        setup: NetSetup,
        cluster: ClusterId,
        clock: &Arc<SimulatedClock>,
        catalog: &WatchedCatalog,
    ) -> Self {
        let controllers = Arc::new(Controllers::new(cluster, clock, catalog));
        let holder = [1; 32];
        Self {
            setup,
            cluster,
            holder,
            clock: Arc::clone(clock),
            random: SimulatedRandom::new(setup.seed),
            daemons: Vec::new(),
            strikes: Vec::new(),
            links: Vec::new(),
            capability_cache: Arc::new(CapabilityCache::new(&controllers, holder)),
            controllers,
            records: Records::default(),
        }
    }

    /// The same daemons, as another host reaches them.
    #[must_use]
    pub fn beside(&self, clock: &Arc<SimulatedClock>) -> Self {
        let holder = [3; 32];
        Self {
            setup: self.setup,
            cluster: self.cluster,
            holder,
            clock: Arc::clone(clock),
            random: self.random.split(),
            daemons: self.daemons.clone(),
            strikes: self.daemons.iter().map(|_| Arc::default()).collect(),
            links: Vec::new(),
            controllers: Arc::clone(&self.controllers),
            capability_cache: Arc::new(CapabilityCache::new(&self.controllers, holder)),
            records: Arc::clone(&self.records),
        }
    }

    /// Whether anything goes wrong on it.
    #[must_use]
    pub fn breaks(&self) -> bool {
        self.setup.breaks
    }

    /// Each step is told from now on.
    pub fn trace(&self) {
        self.records.lock().is_traced = true;
    }

    /// The machine of unit `number`, the next one, is set up, and its daemon runs.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn add(
        &mut self,
        number: usize,
        id: UnitId,
        segment_bytes: u64,
    ) -> Result<(), unit::UnitError> {
        assert_eq!(number, self.daemons.len(), "one after the other");
        let daemon = Daemon::new(daemon::Params {
            number,
            id,
            cluster: self.cluster,
            segment_bytes,
            keeps: self.setup.keeps_freed,
            clock: Arc::new(SteadyClock(Arc::clone(&self.clock))),
            random: self.random.split(),
            key: self.controllers.verifying_key(),
            records: Arc::clone(&self.records),
        })?;
        self.daemons.push(Arc::new(daemon));
        self.strikes.push(Arc::default());
        Ok(())
    }

    /// The host's process has ended, and a new one begins: it has no connection, and
    /// may do nothing yet.
    pub fn begin(&mut self) {
        for link in self.links.drain(..) {
            link.end();
        }
        self.capability_cache = Arc::new(CapabilityCache::new(&self.controllers, self.holder));
    }

    /// How this process reaches unit `number`, the next one.
    #[must_use]
    pub fn unit(&mut self, number: usize, world: &World) -> RemoteUnit {
        assert_eq!(number, self.links.len(), "one after the other");
        let daemon = &self.daemons[number];
        let link = Link::new(link::Params {
            cluster: self.cluster,
            holder: self.holder,
            daemon: Arc::clone(daemon),
            clock: Arc::clone(&self.clock),
            random: self.random.split(),
            pool: Arc::clone(&world.pool),
            haunts: self.setup.breaks,
            strikes: Arc::clone(&self.strikes[number]),
            capability_cache: Arc::clone(&self.capability_cache),
            records: Arc::clone(&self.records),
        });
        self.capability_cache.add(&link);
        self.links.push(Arc::clone(&link));
        RemoteUnit::new(format!("scree://10.0.0.{}:7070", number + 1), link)
    }

    /// What this process may do.
    #[must_use]
    pub fn capability_cache(&self) -> &Arc<CapabilityCache> {
        &self.capability_cache
    }

    /// The machine of a unit.
    #[must_use]
    pub fn daemon(&self, number: usize) -> &Arc<Daemon> {
        &self.daemons[number]
    }

    /// The disk of a unit's machine, as a new process there sees it.
    #[must_use]
    pub fn disk(&self, number: usize) -> Arc<SimulatedDisk> {
        Arc::new(self.daemons[number].disk().spawn())
    }

    /// A world on the machine of a unit, for whoever looks at it from outside.
    #[must_use]
    pub fn world(&self, number: usize, world: &World) -> World {
        World {
            disk: self.disk(number),
            ..world.clone()
        }
    }

    /// What goes wrong on the way to a unit, from now on.
    pub fn strike(&self, number: usize, strikes: Strikes) {
        *self.strikes[number].lock() = strikes;
    }

    /// From now on nothing goes wrong on the way, and nobody lies. What is on its way
    /// still is.
    pub fn heal(&self) {
        for strikes in &self.strikes {
            *strikes.lock() = Strikes::default();
        }
        self.be_honest();
    }

    /// Nobody lies.
    pub fn be_honest(&self) {
        self.daemons.iter().for_each(|daemon| daemon.lie(0));
    }

    /// What was given up by hosts may be carried out now, if the seed says so; all of it
    /// `at_once`.
    pub fn haunt(&self, at_once: bool) {
        for daemon in &self.daemons {
            while at_once && daemon.haunt() {}
            if self.random.one_in(6) {
                daemon.haunt();
            }
        }
    }

    /// Another host is given a lease, and shows it to the units that it reaches.
    pub fn show_elsewhere(&self, volume: base::VolumeId, epoch: u32) {
        let holder = [2; 32];
        let signed = self.controllers.lease(holder, volume, epoch);
        for daemon in &self.daemons {
            if self.random.below(4) > 0 {
                daemon.show(self.cluster, holder, &signed);
            }
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.records.lock().counts
    }

    /// What must not have happened, and has.
    #[must_use]
    pub fn wrong(&self) -> Option<String> {
        self.records.lock().wrong.first().cloned()
    }

    /// As [`Record::counts`], to be changed.
    pub fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.records.lock().counts);
    }
}
