//! [`Context`]: what all parts of a run share.

use catalog::VersionKey;
use world::simulated::SimulatedRandom;

use super::ledger::VersionLedger;
use crate::Summary;
use crate::machine::Machine;
use crate::setup::{NetSetup, Setup};

/// The faults that are active now, and thereby what may fail.
#[derive(Debug, Default)]
pub(super) struct ActiveFaults {
    /// Faults are, or were recently, active: requests may fail.
    pub is_any: bool,
    /// Bits were flipped in segments: blocks may be damaged for good.
    pub has_rot: bool,
    /// Some unit returns falsified content.
    pub is_falsifying: bool,
    /// The power fails in some later operation of the host's disk.
    pub is_crash_armed: bool,
}

/// The machine under test, the seed's choices, and the record of the run.
pub(super) struct Context {
    pub setup: Setup,
    pub random: SimulatedRandom,
    pub machine: Machine,
    pub faults: ActiveFaults,
    pub ledger: VersionLedger,
    pub summary: Summary,
    pub is_traced: bool,
    last_number: u128,
}

/// Prints a step if the run is traced.
macro_rules! trace {
    ($context:expr, $($part:tt)*) => {
        if $context.is_traced {
            eprintln!("  {}", format!($($part)*));
        }
    };
}

pub(super) use trace;

impl Context {
    /// The context of seed `seed`, with an empty machine.
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
        Self {
            setup,
            random,
            machine,
            faults: ActiveFaults::default(),
            ledger: VersionLedger::default(),
            summary: Summary::default(),
            is_traced,
            last_number: 1,
        }
    }

    /// A number that was not used before.
    pub fn next_number(&mut self) -> u128 {
        self.last_number += 1;
        self.last_number
    }

    pub fn chance(&self, one_in: u64) -> bool {
        self.random.one_in(one_in)
    }

    /// Whether the host has no power.
    pub fn is_off(&self) -> bool {
        self.machine.simulation.disk.is_off()
    }

    /// Whether requests may fail now.
    pub fn may_fail(&self) -> bool {
        self.faults.is_any || self.faults.has_rot || self.is_off()
    }

    /// Whether the network may break.
    pub fn breaks_network(&self) -> bool {
        self.setup.net.is_some_and(|net| net.breaks)
    }

    /// Whether some member of some copyset is not in sync.
    pub fn is_repairing(&self) -> bool {
        !self.machine.catalog.members.to_repair().is_empty()
    }

    pub fn any_version(&self) -> Option<VersionKey> {
        let keys: Vec<VersionKey> = self.ledger.versions.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[self.random.index(keys.len())])
    }
}
