//! Two hosts and one volume: leases that expire, a controller that cannot be
//! reached, and hosts that return.
//!
//! ```text
//!   registry ── which host has the lease, by the controller's clock
//!   host 0 ──┐  each with clock, jobs, process and journals of its own;
//!   host 1 ──┘  units, database and, in some runs, the journals are shared
//! ```
//!
//! The three clocks run at the same rate; a host's may jump forward, like a clock
//! that includes time asleep. What must hold:
//!
//! * Nothing is acknowledged by a host after another has taken the volume.
//! * If journals are shared, the next holder finds everything that was acknowledged,
//!   or all that was durable if the power failed meanwhile.
//! * If they are not, it finds the newest committed version and nothing else.
//! * In half of the runs units are behind daemons, which are told of the next lease,
//!   and the network between a host and them breaks.
//! * A returning host damages nothing: in the end units hold exactly what the kept
//!   versions name.

mod host;
mod network;
mod opening;
mod registry;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{BlockDevice, Durability, JournalFolderId, Lineage, VolumeId};
use volume::catalog::{Catalog, NewVolume, VersionKey};
use volume::clean::Removal;
use world::Millis;
use world::simulated::SimulatedRandom;

use self::host::{Attached, HOLD, Host, Past, Renewal, edit};
use self::registry::LeaseRegistry;
use crate::audit::{self, Nonces, Walked};
use crate::machine::Machine;
use crate::model::Pinned;
use crate::setup::{NetSetup, Setup};
use crate::{Check, Summary};

/// Blocks that are written. Few, so that they are overwritten often.
const BLOCKS: u64 = 40;
const VOLUME: VolumeId = VolumeId::from_u128(1);
/// The journal folder that both hosts share, in some runs.
const FOLDER: JournalFolderId = JournalFolderId::from_u128(1);

struct Run {
    random: SimulatedRandom,
    hosts: [Host; 2],
    registry: LeaseRegistry,
    past: Past,
    versions: BTreeMap<VersionKey, Pinned>,
    /// Whether the hosts share a folder of journals.
    is_shared: bool,
    /// Whether the power failed since a host had the volume.
    power_failed: bool,
    number: u64,
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
/// What did not hold.
pub fn run(seed: u64, is_traced: bool) -> Check<Summary> {
    Run::new(seed, is_traced).all()
}

use trace;

impl Run {
    fn new(seed: u64, is_traced: bool) -> Self {
        let random = SimulatedRandom::new(seed ^ 0x2_0057);
        let setup = Setup {
            is_sealed: random.below(3) > 0,
            journal_bytes: 4096 * (40 + random.below(80)),
            read_misses_one_in: [0, 3][random.index(2)],
            jobs_at_once_one_in: [0, 3][(seed % 2) as usize],
            net: NetSetup::choose(seed),
            ..Setup::quiet(1 + random.index(4), 1)
        };
        let machine = Machine::new(seed, &setup);
        if let Some(network) = machine.network.as_ref().filter(|_| is_traced) {
            network.trace();
        }
        let other = machine.beside("/other");
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
        made.expect("there is none yet");
        Self {
            is_shared: random.below(2) == 0,
            random,
            hosts: [Host::new(machine), Host::new(other)],
            registry: LeaseRegistry::default(),
            past: Past::default(),
            versions: BTreeMap::new(),
            power_failed: false,
            number: 0,
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
            self.place_commits();
            self.after_network()?;
        }
        self.finish()?;
        self.summary.operations = self.hosts[0].machine.simulation.disk.operations();
        if let Some(network) = &self.hosts[0].machine.network {
            self.summary.network = network.counts();
        }
        Ok(self.summary)
    }

    fn step(&mut self) -> Check {
        self.pass(Duration::from_millis(
            [0, 0, 0, 20, 200][self.random.index(5)],
        ));
        let index = self.random.index(2);
        match self.random.below(100) {
            0..=29 => self.requests(index),
            30..=54 => self.turn(index),
            55..=79 => self.renew(index),
            80..=83 => self.acquire(index),
            84..=89 => self.open(index),
            90..=92 => self.cut(index),
            93 => {
                // It was asleep, or its work was stopped for a while.
                let jump = Duration::from_millis(self.random.below(12_000));
                trace!(self, "host {index}: the clock jumps by {jump:?}");
                let clock = &self.hosts[index].machine.simulation.clock;
                clock.advance(jump);
                clock.jump(self.random.below(100_000).cast_signed() - 50_000);
                Ok(())
            }
            94 => self.clean(index),
            95 if self.random.below(3) == 0 => self.kill(index),
            96 if self.random.below(3) == 0 => self.crash(),
            _ => {
                self.pass(Duration::from_secs(self.random.below(7)));
                Ok(())
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.registry.now += time;
        for host in &self.hosts {
            host.machine.simulation.clock.advance(time);
        }
    }

    /// Whether nobody has taken the volume since `host` did.
    fn is_holder(&self, index: usize) -> bool {
        let attached = self.hosts[index].attached.as_ref();
        attached.is_some_and(|attached| attached.epoch == self.registry.epoch())
    }

    /// Lets the client of a host do something, with what it knows of the
    /// volume's past.
    fn with(
        &mut self,
        index: usize,
        action: impl FnOnce(&mut Attached, &mut Past, bool, &SimulatedRandom, &mut u64) -> Check,
    ) -> Check {
        let is_holder = self.is_holder(index);
        let host = &mut self.hosts[index];
        let Some(attached) = &mut host.attached else {
            return Ok(());
        };
        let mut left_with = attached.left_with.take();
        let past = left_with.as_mut().unwrap_or(&mut self.past);
        let done = action(attached, past, is_holder, &self.random, &mut self.number);
        attached.left_with = left_with;
        done.map_err(|why| format!("host {index}: {why}"))?;
        if attached.is_stopped() {
            let stopped = attached.volume.status().stopped;
            if is_holder && !host.may_stop {
                return Err(format!("host {index} has stopped: {stopped:?}"));
            }
            trace!(self, "host {index} has stopped: {stopped:?}");
            self.let_go(index);
        }
        Ok(())
    }

    fn let_go(&mut self, index: usize) {
        self.hosts[index].forget();
    }

    fn requests(&mut self, index: usize) -> Check {
        self.with(index, |attached, past, is_holder, random, number| {
            for _ in 0..1 + random.below(3) {
                let block = random.below(BLOCKS);
                match random.below(10) {
                    0..=5 => {
                        *number += 1;
                        let durability = match random.below(4) {
                            0 => Durability::Durable,
                            _ => Durability::Volatile,
                        };
                        let edit = edit(block, *number);
                        attached.write(past, is_holder, edit, durability)?;
                    }
                    6 | 7 => attached.flush(past, is_holder)?,
                    _ => attached.read(past, is_holder, block)?,
                }
            }
            // It may fail; then it has stopped.
            let _ = attached.volume.commit();
            Ok(())
        })
    }

    fn turn(&mut self, index: usize) -> Check {
        let host = &self.hosts[index];
        for _ in 0..self.random.below(5) {
            host.machine.simulation.pool.run_one(&self.random);
        }
        self.with(index, |attached, past, is_holder, _, _| {
            attached.poll(past, is_holder)
        })
    }

    /// The next step of a renewal: it is sent, heard, answered, or lost.
    fn renew(&mut self, index: usize) -> Check {
        let host = &mut self.hosts[index];
        let clock = host.clock();
        let Some(attached) = &mut host.attached else {
            return Ok(());
        };
        let Some(renewal) = &mut host.renewal else {
            if clock >= attached.renewed + Duration::from_secs(2) {
                attached.renewed = clock;
                host.renewal = Some(Renewal {
                    sent: clock,
                    answer: None,
                });
            }
            return Ok(());
        };
        if host.is_cut {
            // Half of them were heard, and the answer did not come.
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
                // Some hear it so, the others by being fenced.
                if self.random.below(3) == 0 {
                    attached.term.lose();
                }
                host.renewal = None;
            }
        }
        Ok(())
    }

    fn cut(&mut self, index: usize) -> Check {
        let host = &mut self.hosts[index];
        host.is_cut = !host.is_cut;
        // A commit may be carried out whose answer is lost: tried again, it
        // finds another head.
        host.may_stop |= host.is_cut;
        let one_in = u64::from(host.is_cut);
        host.machine.catalog.set_unavailable(one_in);
        trace!(self, "host {index} is cut off: {}", host.is_cut);
        Ok(())
    }

    fn kill(&mut self, index: usize) -> Check {
        trace!(self, "host {index} dies");
        let host = &mut self.hosts[index];
        host.forget();
        host.machine.kill();
        Ok(())
    }

    fn crash(&mut self) -> Check {
        trace!(self, "the power fails");
        self.place_commits();
        for host in &mut self.hosts {
            host.forget();
        }
        let [first, second] = &mut self.hosts;
        first.machine.crash();
        second.machine.restart_beside(&first.machine);
        self.power_failed = true;
        Ok(())
    }

    /// The holder removes a version.
    fn clean(&mut self, index: usize) -> Check {
        let host = &self.hosts[index];
        let is_out_of_reach = host.is_cut || host.is_disturbed;
        if !self.is_holder(index) || is_out_of_reach || self.versions.is_empty() {
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

    fn place_commits(&mut self) {
        for index in 0..2 {
            for commit in self.hosts[index].machine.catalog.take_commits() {
                let key = commit.version.key;
                trace!(self, "host {index} committed {}", key.number);
                let pinned = Pinned {
                    timeline: self.past.timeline.clone(),
                    boundaries: 0..=self.past.timeline.len(),
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
            if self.hosts[index].is_cut {
                self.cut(index)?;
            }
            self.heal(index);
            // What it still does, it does now: after the other's sweep.
            for _ in 0..30 {
                self.turn(index)?;
            }
        }
        // The second lease sweeps what the first one gave up.
        for _ in 0..2 {
            self.hosts[0].forget();
            self.pass(Duration::from_secs(60));
            while self.hosts[0].taken.is_none() {
                self.acquire(0)?;
            }
            self.open(0)?;
            let Some(attached) = &mut self.hosts[0].attached else {
                return Err("it cannot be opened in the end".to_owned());
            };
            attached.term.renew(Duration::MAX);
            attached.volume.begin_close();
            for _ in 0..4000 {
                self.turn(0)?;
                self.pass(Duration::from_millis(50));
            }
            let closed = self.hosts[0].attached.as_ref();
            let closed = closed.map(|attached| attached.volume.close_state());
            if closed != Some(Some(Ok(()))) {
                return Err(format!("it cannot be closed: {closed:?}"));
            }
            self.hosts[0].machine.simulation.pool.run_all(&self.random);
        }
        self.place_commits();
        // And the host that is late comes back once more.
        for _ in 0..30 {
            self.turn(1)?;
        }
        if let Some(network) = &self.hosts[0].machine.network {
            network.haunt(true);
        }
        self.check_network()?;
        self.audit()
    }

    fn audit(&mut self) -> Check {
        let machine = &self.hosts[0].machine;
        let mut walked: Vec<Walked> = Vec::new();
        for stored in machine.catalog.memory.versions() {
            let of = |why| format!("{:?}: {why}", stored.key);
            let walk = audit::walk(machine, &stored).map_err(of)?;
            let mut read = audit::read_version(machine, &walk).map_err(of)?;
            for block in 0..BLOCKS {
                read.entry(block).or_insert(None);
            }
            let pinned = &self.versions[&stored.key];
            let range = pinned.boundaries.clone();
            if pinned.timeline.boundaries(range, false, &read).is_empty() {
                return Err(of("it holds no state that the volume ever had".to_owned()));
            }
            walked.push(walk);
        }
        audit::compare(machine, &walked, &mut Nonces::default(), &BTreeSet::new())
    }
}
