//! One run: the steps that the seed chooses, and the checks after each.

mod attach;
mod mishaps;
mod network;
mod readers;
mod repair;
mod steps;
mod versions;

use std::collections::{BTreeMap, BTreeSet};

use base::{SegmentId, SnapshotId, VolumeId};
use volume::LeaseTerm;
use volume::catalog::{VersionCommit, VersionKey};
use world::simulated::{SimulatedDisk, SimulatedRandom};

use self::readers::Reader;
use crate::audit::Nonces;
use crate::client::{Client, Past};
use crate::machine::Machine;
use crate::model::Pinned;
use crate::setup::{NetSetup, Setup};
use crate::{Check, Summary};

/// What a detached volume must contain when it is attached.
#[derive(Debug, Clone, Copy)]
enum Expect {
    /// The state at a boundary from this one on; if `torn`, in the middle of an
    /// operation. After a power failure the state that is found is durable.
    Since {
        boundary: usize,
        torn: bool,
        is_durable: bool,
    },
    /// The state of this version; an empty volume if there is none.
    Version(Option<VersionKey>),
}

/// A volume under test.
struct Subject {
    id: VolumeId,
    past: Past,
    client: Option<Client>,
    expect: Expect,
    /// The next version's consistency point is at this boundary or a later one.
    version_floor: usize,
    /// Requested snapshots, and the boundaries of their consistency points.
    pending: BTreeMap<SnapshotId, usize>,
    /// Whether `past` is its history, also for the versions that it commits now.
    is_known: bool,
    /// Whether another host has taken the lease: the owner will stop sooner or later.
    is_fenced: bool,
    /// The term of its last lease.
    term: LeaseTerm,
}

/// One run.
pub struct Run {
    setup: Setup,
    random: SimulatedRandom,
    machine: Machine,
    subjects: Vec<Subject>,
    readers: Vec<Reader>,
    versions: BTreeMap<VersionKey, Pinned>,
    snapshots: Vec<SnapshotId>,
    /// Commits of volumes whose content is not yet known.
    unplaced: Vec<VersionCommit>,
    nonces: Nonces,
    next: u128,
    /// Whether faults are, or were recently, active: requests may fail.
    trouble: bool,
    rotten: bool,
    /// Whether some unit returns falsified content.
    is_lying: bool,
    /// Copies of the units' disks, and the number of units then.
    earlier: Option<(usize, Vec<SimulatedDisk>)>,
    /// The unit that is rolled back to its copy by the next kill of the process.
    put_back: Option<usize>,
    /// Segments that reappeared on units that were rolled back.
    ghosts: BTreeSet<SegmentId>,
    /// Units that have been a member of some copyset.
    ever_used: BTreeSet<usize>,
    crash_armed: bool,
    is_traced: bool,
    summary: Summary,
}

macro_rules! trace {
    ($run:expr, $($part:tt)*) => {
        if $run.is_traced {
            eprintln!("  {}", format!($($part)*));
        }
    };
}

use trace;

impl Run {
    /// The run of `seed`.
    #[must_use]
    pub fn new(seed: u64, is_traced: bool) -> Self {
        let random = SimulatedRandom::new(seed ^ 0x5ca1_ab1e);
        let setup = Setup {
            net: NetSetup::choose(seed),
            ..Setup::choose(&random)
        };
        let machine = Machine::new(seed, &setup);
        if let Some(network) = machine.network.as_ref().filter(|_| is_traced) {
            network.trace();
        }
        let mut run = Self {
            setup,
            random,
            machine,
            subjects: Vec::new(),
            readers: Vec::new(),
            versions: BTreeMap::new(),
            snapshots: Vec::new(),
            unplaced: Vec::new(),
            nonces: Nonces::default(),
            next: 1,
            trouble: false,
            rotten: false,
            is_lying: false,
            earlier: None,
            put_back: None,
            ghosts: BTreeSet::new(),
            ever_used: BTreeSet::new(),
            crash_armed: false,
            is_traced,
            summary: Summary::default(),
        };
        trace!(run, "{:?}", run.setup);
        run.create(None);
        run
    }

    /// Takes all steps, and then looks at everything.
    ///
    /// # Errors
    /// What did not hold.
    pub fn all(mut self) -> Check<Summary> {
        for step in 0..self.setup.steps {
            trace!(self, "step {step}");
            self.step()?;
            self.after_step()?;
        }
        self.finish()?;
        self.summary.operations = self.machine.simulation.disk.operations();
        self.summary.cached = self.machine.cached();
        if let Some(network) = &self.machine.network {
            self.summary.network = network.counts();
        }
        Ok(self.summary)
    }

    fn number(&mut self) -> u128 {
        self.next += 1;
        self.next
    }

    fn chance(&self, one_in: u64) -> bool {
        self.random.one_in(one_in)
    }

    fn is_off(&self) -> bool {
        self.machine.simulation.disk.is_off()
    }

    fn may_fail(&self) -> bool {
        self.trouble || self.rotten || self.is_off()
    }

    fn step(&mut self) -> Check {
        if self.is_repairing() && self.chance(6) {
            return self.repair();
        }
        if self.is_disturbed() && self.chance(12) {
            self.disturb();
            return Ok(());
        }
        match self.random.below(100) {
            0..=54 => self.request(),
            55..=71 => self.turn(),
            72..=75 => self.pass_time(),
            76..=78 => self.snapshot(),
            79 | 80 => self.clone_version(),
            81 => self.grow(),
            82 => self.restore(),
            83 => self.close_one(),
            84 => self.delete(),
            85..=87 => self.remove_version(),
            88 | 89 => self.carry_out(),
            90 => match self.chance(2) {
                true => self.check_version(),
                false => self.read_version(),
            },
            91 => self.fence(),
            92 => self.repair(),
            93 | 94 if self.setup.hazards.members => self.change_members(),
            _ => self.mishap(),
        }
    }

    /// What every step ends with: a machine without power boots, a volume that
    /// has stopped is let go.
    fn after_step(&mut self) -> Check {
        if self.is_off() {
            trace!(self, "power failed");
            return self.restart(true);
        }
        for index in 0..self.subjects.len() {
            if self.subjects[index]
                .client
                .as_ref()
                .is_some_and(Client::is_stopped)
            {
                self.let_go(index)?;
            }
        }
        self.after_network()?;
        self.place_commits()
    }

    fn any_subject(&self) -> Option<usize> {
        (!self.subjects.is_empty()).then(|| self.random.index(self.subjects.len()))
    }

    fn any_attached(&mut self) -> Check<Option<usize>> {
        let Some(index) = self.any_subject() else {
            return Ok(None);
        };
        Ok(self.attach(index)?.then_some(index))
    }

    fn any_version(&self) -> Option<VersionKey> {
        let keys: Vec<VersionKey> = self.versions.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[self.random.index(keys.len())])
    }
}
