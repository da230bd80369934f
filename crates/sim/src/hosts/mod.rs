//! Two hosts and one volume: leases that expire, an unreachable controller, and hosts that
//! return.
//!
//! ```text
//!   registry ── which host has the lease, by the controller's clock
//!   host 0 ──┐  each with clock, jobs, process and journals of its own;
//!   host 1 ──┘  units, database and, in some runs, the journals are shared
//! ```
//!
//! The three clocks run at the same rate; a host's may jump forward, like a clock that
//! includes suspended time. In half of the runs units are behind daemons, to which the next
//! lease is presented, and the network between them and a host breaks.
//!
//! Invariants:
//!
//! * No host acknowledges anything after another one has taken the volume.
//! * If journals are shared, the next holder finds everything that was acknowledged; if the
//!   power failed, everything that was durable.
//! * If they are not, it finds the newest committed version and nothing else.
//! * A returning host damages nothing: in the end units hold exactly what the kept versions
//!   name.

mod host;
mod network;
mod opening;
mod registry;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{BlockDevice, Durability, JournalFolderId, Lineage, VolumeId};
use catalog::{Catalog, NewVolume, VersionKey};
use volume::VolumeConfig;
use volume::clean::Removal;
use world::Millis;
use world::simulated::SimulatedRandom;

use self::host::{Attached, HOLD, Host, HostView, Renewal, VolumeHistory, edit};
use self::registry::LeaseRegistry;
use crate::audit::{self, Nonces, WalkedVersion};
use crate::machine::Machine;
use crate::model::{Edit, Pinned};
use crate::setup::{NetSetup, Setup};
use crate::{Check, Summary};

/// The number of blocks that are written. Few, so that they are overwritten often.
const BLOCKS: u64 = 40;
const VOLUME: VolumeId = VolumeId::from_u128(1);
/// The journal folder that both hosts share, in some runs.
const FOLDER: JournalFolderId = JournalFolderId::from_u128(1);

/// A request of a host's client.
enum ClientRequest {
    Write { edit: Edit, durability: Durability },
    Flush,
    Read { block: u64 },
}

/// One run.
struct Run {
    random: SimulatedRandom,
    hosts: [Host; 2],
    registry: LeaseRegistry,
    history: VolumeHistory,
    versions: BTreeMap<VersionKey, Pinned>,
    /// Whether the hosts share a folder of journals.
    is_shared: bool,
    /// Whether the power has failed since a host last opened the volume.
    power_failed: bool,
    /// The number of writes so far.
    writes: u64,
    is_traced: bool,
    summary: Summary,
}

macro_rules! trace {
    ($run:expr, $($part:tt)*) => {
        if $run.is_traced {
            eprintln!("  {:?} {}", $run.registry.now, format!($($part)*));
        }
    };
}

/// Runs one seed.
///
/// # Errors
/// The first broken promise.
pub fn run(seed: u64, is_traced: bool) -> Check<Summary> {
    Run::new(seed, is_traced).all()
}

use trace;

impl Run {
    fn new(seed: u64, is_traced: bool) -> Self {
        let random = SimulatedRandom::new(seed ^ 0x2_0057);
        let setup = Setup {
            is_sealed: random.below(3) > 0,
            volume: VolumeConfig {
                journal_bytes: 4096 * (40 + random.below(80)),
                ..Setup::quiet(1, 1).volume
            },
            read_misses_one_in: [0, 3][random.index(2)],
            jobs_at_once_one_in: [0, 3][(seed % 2) as usize],
            net: NetSetup::choose(seed),
            ..Setup::quiet(1 + random.index(4), 1)
        };
        let machine = Machine::new(seed, &setup);
        if let Some(network) = machine.network.as_ref().filter(|_| is_traced) {
            network.trace();
        }
        let other = machine.another_host("/other");
        let lineage = Lineage::from_u128(1);
        let new = NewVolume {
            volume: VOLUME,
            size_bytes: setup.size_bytes,
            block_size: setup.block_size,
            replicas: setup.replicas,
            erasure: setup.erasure,
            key: machine.new_key(lineage, setup.is_sealed, &random),
            from: None,
        };
        let made = machine.catalog.memory.create_volume(new);
        made.expect("a new volume");
        Self {
            is_shared: random.below(2) == 0,
            random,
            hosts: [Host::new(machine), Host::new(other)],
            registry: LeaseRegistry::default(),
            history: VolumeHistory::default(),
            versions: BTreeMap::new(),
            power_failed: false,
            writes: 0,
            is_traced,
            summary: Summary {
                volumes: 1,
                ..Summary::default()
            },
        }
    }

    fn all(mut self) -> Check<Summary> {
        trace!(self, "journals are shared: {}", self.is_shared);
        for _ in 0..800 + self.random.below(1600) {
            self.step()?;
            self.record_commits();
            self.advance_network()?;
        }
        self.finish()?;
        self.summary.operations = self.hosts[0].machine.simulation.disk.operations();
        if let Some(network) = &self.hosts[0].machine.network {
            self.summary.network = network.counts();
        }
        Ok(self.summary)
    }

    fn step(&mut self) -> Check {
        self.advance(Duration::from_millis(
            [0, 0, 0, 20, 200][self.random.index(5)],
        ));
        let index = self.random.index(2);
        match self.random.below(100) {
            0..=29 => self.requests(index),
            30..=54 => self.turn(index),
            55..=79 => self.renew(index),
            80..=83 => self.acquire(index),
            84..=89 => self.open(index),
            90..=92 => {
                self.toggle_controller(index);
                Ok(())
            }
            93 => {
                // The host was suspended.
                let jump = Duration::from_millis(self.random.below(12_000));
                trace!(self, "host {index}: the clock jumps by {jump:?}");
                let clock = &self.hosts[index].machine.simulation.clock;
                clock.advance(jump);
                clock.jump(self.random.below(100_000).cast_signed() - 50_000);
                Ok(())
            }
            94 => self.remove_any_version(index),
            95 if self.random.below(3) == 0 => {
                self.kill(index);
                Ok(())
            }
            96 if self.random.below(3) == 0 => {
                self.crash();
                Ok(())
            }
            _ => {
                self.advance(Duration::from_secs(self.random.below(7)));
                Ok(())
            }
        }
    }

    /// Advances all clocks.
    fn advance(&mut self, time: Duration) {
        self.registry.now += time;
        for host in &self.hosts {
            host.machine.simulation.clock.advance(time);
        }
    }

    /// Whether a host has the newest lease.
    fn is_holder(&self, index: usize) -> bool {
        let attached = self.hosts[index].attached.as_ref();
        attached.is_some_and(|attached| attached.epoch == self.registry.epoch())
    }

    /// Calls `action` with the open volume of a host, if it has one.
    fn with_attached(
        &mut self,
        index: usize,
        action: impl FnOnce(&mut Attached, &mut HostView<'_>) -> Check,
    ) -> Check {
        let is_holder = self.is_holder(index);
        let host = &mut self.hosts[index];
        let Some(attached) = &mut host.attached else {
            return Ok(());
        };
        let mut last_history = attached.last_history.take();
        let mut view = HostView {
            history: last_history.as_mut().unwrap_or(&mut self.history),
            is_holder,
        };
        let done = action(attached, &mut view);
        attached.last_history = last_history;
        done.map_err(|error| format!("host {index}: {error}"))?;
        if attached.is_stopped() {
            let stopped = attached.volume.status().stopped;
            if is_holder && !host.may_stop {
                return Err(format!("host {index} has stopped: {stopped:?}"));
            }
            trace!(self, "host {index} has stopped: {stopped:?}");
            host.forget();
        }
        Ok(())
    }

    /// Starts a few requests on a host, in one batch.
    fn requests(&mut self, index: usize) -> Check {
        if self.hosts[index].attached.is_none() {
            return Ok(());
        }
        let count = 1 + self.random.below(3);
        let requests: Vec<ClientRequest> = (0..count).map(|_| self.choose_request()).collect();
        self.with_attached(index, |attached, view| {
            for request in requests {
                match request {
                    ClientRequest::Write { edit, durability } => {
                        attached.write(view, edit, durability)?;
                    }
                    ClientRequest::Flush => attached.flush(view)?,
                    ClientRequest::Read { block } => attached.read(view, block)?,
                }
            }
            // If it fails, the volume has stopped.
            let _ = attached.volume.end_batch();
            Ok(())
        })
    }

    fn choose_request(&mut self) -> ClientRequest {
        let block = self.random.below(BLOCKS);
        match self.random.below(10) {
            0..=5 => {
                self.writes += 1;
                ClientRequest::Write {
                    edit: edit(block, self.writes),
                    durability: match self.random.below(4) {
                        0 => Durability::Durable,
                        _ => Durability::Volatile,
                    },
                }
            }
            6 | 7 => ClientRequest::Flush,
            _ => ClientRequest::Read { block },
        }
    }

    fn turn(&mut self, index: usize) -> Check {
        let host = &self.hosts[index];
        for _ in 0..self.random.below(5) {
            host.machine.simulation.pool.run_one(&self.random);
        }
        self.with_attached(index, Attached::poll)
    }

    /// The next step of a renewal: it is sent, received, answered, or lost.
    fn renew(&mut self, index: usize) -> Check {
        let host = &mut self.hosts[index];
        let now = host.now();
        let Some(attached) = &mut host.attached else {
            return Ok(());
        };
        let Some(renewal) = &mut host.renewal else {
            if now >= attached.renewed + Duration::from_secs(2) {
                attached.renewed = now;
                host.renewal = Some(Renewal {
                    sent: now,
                    answer: None,
                });
            }
            return Ok(());
        };
        if host.is_controller_unreachable {
            // The renewal, or its answer, is lost.
            if self.random.below(2) == 0 {
                host.renewal = None;
            }
            return Ok(());
        }
        match renewal.answer {
            None => renewal.answer = Some(self.registry.renew(attached.epoch)),
            Some(true) => {
                attached.term.renew(renewal.sent + HOLD);
                host.renewal = None;
            }
            Some(false) => {
                // Sometimes the answer is lost: then the host is fenced later.
                if self.random.below(3) == 0 {
                    attached.term.lose();
                }
                host.renewal = None;
            }
        }
        Ok(())
    }

    /// Makes the controller unreachable for a host, or reachable again.
    fn toggle_controller(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.is_controller_unreachable = !host.is_controller_unreachable;
        // A commit may be carried out although its answer is lost: the retry finds another
        // head.
        host.may_stop |= host.is_controller_unreachable;
        let one_in = u64::from(host.is_controller_unreachable);
        host.machine.catalog.set_unavailable(one_in);
        trace!(
            self,
            "host {index} is cut off: {}", host.is_controller_unreachable
        );
    }

    fn kill(&mut self, index: usize) {
        trace!(self, "host {index} is killed");
        let host = &mut self.hosts[index];
        host.forget();
        host.machine.kill();
    }

    /// Both hosts lose power.
    fn crash(&mut self) {
        trace!(self, "the power fails");
        self.record_commits();
        for host in &mut self.hosts {
            host.forget();
        }
        let [first, second] = &mut self.hosts;
        first.machine.crash();
        second.machine.restart_with(&first.machine);
        self.power_failed = true;
    }

    /// The holder removes a version.
    fn remove_any_version(&mut self, index: usize) -> Check {
        let host = &self.hosts[index];
        let has_faults = host.is_controller_unreachable || host.has_link_faults;
        if !self.is_holder(index) || has_faults || self.versions.is_empty() {
            return Ok(());
        }
        let keys: Vec<VersionKey> = self.versions.keys().copied().collect();
        let key = keys[self.random.index(keys.len())];
        let machine = &self.hosts[index].machine;
        let cleaner = machine.cleaner();
        match cleaner.remove_version(key, Millis(0)) {
            Ok(Removal::Needed) => return Ok(()),
            Ok(Removal::Removed { .. }) => {}
            Err(error) => return Err(format!("{key:?} cannot be removed: {error}")),
        }
        self.versions.remove(&key);
        self.summary.removed += 1;
        let due = machine.catalog.memory.due_frees(Millis(1), 0, u32::MAX);
        for free in due.expect("it is in memory") {
            let freed = machine.carry_out(&free);
            freed.map_err(|error| format!("cannot free: {error}"))?;
        }
        Ok(())
    }

    fn record_commits(&mut self) {
        for index in 0..2 {
            for commit in self.hosts[index].machine.catalog.take_commits() {
                let key = commit.version.key;
                trace!(self, "host {index} committed {}", key.number);
                let pinned = Pinned {
                    timeline: self.history.timeline.clone(),
                    boundaries: 0..=self.history.timeline.len(),
                    size_bytes: 0,
                };
                self.versions.insert(key, pinned);
                self.summary.versions += 1;
            }
        }
    }

    fn finish(&mut self) -> Check {
        trace!(self, "finishing");
        for index in 0..2 {
            if self.hosts[index].is_controller_unreachable {
                self.toggle_controller(index);
            }
            self.heal(index);
            // Work that a host still has in flight ends now, after the other's sweep.
            for _ in 0..30 {
                self.turn(index)?;
            }
        }
        // The second lease sweeps the leftovers of the first one.
        for _ in 0..2 {
            self.attach_and_close()?;
        }
        self.record_commits();
        // The other host continues once more.
        for _ in 0..30 {
            self.turn(1)?;
        }
        if let Some(network) = &self.hosts[0].machine.network {
            network.deliver_abandoned(true);
        }
        self.check_network()?;
        self.audit()
    }

    /// The first host acquires the lease, opens the volume and closes it.
    fn attach_and_close(&mut self) -> Check {
        self.hosts[0].forget();
        self.advance(Duration::from_secs(60));
        while self.hosts[0].acquired.is_none() {
            self.acquire(0)?;
        }
        self.open(0)?;
        let Some(attached) = &mut self.hosts[0].attached else {
            return Err("the volume cannot be opened at the end".to_owned());
        };
        attached.term.renew(Duration::MAX);
        attached.volume.begin_close();
        for _ in 0..4000 {
            self.turn(0)?;
            self.advance(Duration::from_millis(50));
        }
        let closed = self.hosts[0].attached.as_ref();
        let closed = closed.map(|attached| attached.volume.close_state());
        if closed != Some(Some(Ok(()))) {
            return Err(format!("the volume cannot be closed: {closed:?}"));
        }
        self.hosts[0].machine.simulation.pool.run_all(&self.random);
        Ok(())
    }

    fn audit(&mut self) -> Check {
        let machine = &self.hosts[0].machine;
        let mut walked: Vec<WalkedVersion> = Vec::new();
        for stored in machine.catalog.memory.versions() {
            let of = |error| format!("{:?}: {error}", stored.key);
            let walk = audit::walk(machine, &stored).map_err(of)?;
            let mut read = audit::read_version(machine, &walk).map_err(of)?;
            for block in 0..BLOCKS {
                read.entry(block).or_insert(None);
            }
            let pinned = &self.versions[&stored.key];
            let range = pinned.boundaries.clone();
            if pinned.timeline.boundaries(range, false, &read).is_empty() {
                return Err(of("it has no state that the volume ever had".to_owned()));
            }
            walked.push(walk);
        }
        audit::check_slots(machine, &walked, &mut Nonces::default(), &BTreeSet::new())
    }
}
