//! Faults between the host and unit daemons, as the seed chooses them.

use std::time::Duration;

use super::context::{Context, trace};
use crate::Check;
use crate::net::faults::LinkFaults;

/// A fault of the network or of a daemon.
#[derive(Debug, Clone, Copy)]
enum NetworkFault {
    Links,
    Partition,
    KillDaemon,
    DaemonPowerFailure,
    ArmDaemonCrash,
    FalsifyReads,
}

impl Context {
    /// Connections break, daemons are unreachable, or daemons end.
    pub(super) fn break_network(&mut self) {
        let Some(network) = &self.machine.network else {
            return;
        };
        let fault = [
            NetworkFault::Links,
            NetworkFault::Links,
            NetworkFault::Links,
            NetworkFault::Partition,
            NetworkFault::KillDaemon,
            NetworkFault::DaemonPowerFailure,
            NetworkFault::ArmDaemonCrash,
            NetworkFault::FalsifyReads,
        ][self.random.index(8)];
        let units = self.machine.units.len();
        let unit = self.random.index(units);
        trace!(self, "unit {unit}: {fault:?}");
        self.faults.is_any = true;
        match fault {
            NetworkFault::Links => {
                let faults = self.choose_link_faults();
                let all = self.random.one_in(3);
                let affected = (0..units).filter(|it| all || *it == unit);
                affected.for_each(|unit| network.set_faults(unit, faults));
            }
            NetworkFault::Partition => {
                let faults = LinkFaults {
                    is_partitioned: true,
                    ..LinkFaults::default()
                };
                network.set_faults(unit, faults);
                (0..units)
                    .filter(|_| self.random.one_in(3))
                    .for_each(|unit| network.set_faults(unit, faults));
                network.count(|counts| counts.partitions += 1);
            }
            NetworkFault::KillDaemon => {
                network.daemon(unit).kill();
                network.count(|counts| counts.killed += 1);
                if self.random.one_in(2) {
                    self.machine.start_daemon(unit);
                }
            }
            NetworkFault::DaemonPowerFailure => {
                network.daemon(unit).lose_power();
                if self.random.one_in(2) {
                    self.machine.start_daemon(unit);
                }
            }
            NetworkFault::FalsifyReads => {
                let one_in = 1 + self.random.below(4);
                network.daemon(unit).falsify_reads(one_in);
                self.faults.is_falsifying = true;
            }
            NetworkFault::ArmDaemonCrash => {
                let disk = network.daemon(unit).disk();
                disk.arm_crash(disk.operations() + self.random.below(20));
            }
        }
    }

    fn choose_link_faults(&self) -> LinkFaults {
        let often = [2, 3, 5, 10, 20][self.random.index(5)];
        let mut faults = LinkFaults::default();
        for rate in [
            &mut faults.before_one_in,
            &mut faults.after_one_in,
            &mut faults.within_one_in,
            &mut faults.late_one_in,
            &mut faults.slow_one_in,
        ] {
            if self.random.one_in(2) {
                *rate = often + self.random.below(often);
            }
        }
        faults
    }

    /// The network's part of the end of a step: requests of abandoned connections may
    /// arrive, daemons do their own work, and some that ended are started again.
    pub(super) fn advance_network(&mut self) -> Check {
        let Some(network) = &self.machine.network else {
            return Ok(());
        };
        network.deliver_abandoned(false);
        let units = self.machine.units.len();
        for unit in 0..units {
            let daemon = network.daemon(unit);
            if self.random.one_in(30) {
                daemon.run_maintenance();
            }
        }
        for unit in self.ended_daemons() {
            if self.random.one_in(6) {
                self.machine.start_daemon(unit);
            }
        }
        self.check_network()
    }

    fn ended_daemons(&self) -> Vec<usize> {
        let Some(network) = &self.machine.network else {
            return Vec::new();
        };
        (0..self.machine.units.len())
            .filter(|unit| !network.daemon(*unit).is_running())
            .collect()
    }

    /// Checks that no daemon broke a promise.
    pub(super) fn check_network(&self) -> Check {
        let network = self.machine.network.as_ref();
        match network.and_then(|network| network.violation()) {
            None => Ok(()),
            Some(violation) => Err(violation),
        }
    }

    /// Ends all faults of the network: every daemon runs and is reachable.
    pub(super) fn heal_network(&mut self) {
        let Some(network) = &self.machine.network else {
            return;
        };
        network.heal();
        for unit in 0..self.machine.units.len() {
            network.daemon(unit).disk().arm_crash(u64::MAX);
        }
        let ended = self.ended_daemons();
        // By then links that pause after a failure connect again.
        self.machine
            .simulation
            .clock
            .advance(Duration::from_secs(6));
        for unit in ended {
            self.machine.start_daemon(unit);
        }
    }

    /// The host has lost power; some machines of daemons, which are elsewhere, lose it,
    /// too.
    pub(super) fn crash_daemons(&mut self) {
        let Some(network) = &self.machine.network else {
            return;
        };
        let units = 0..self.machine.units.len();
        let affected: Vec<usize> = units.filter(|_| self.random.one_in(3)).collect();
        for unit in &affected {
            network.daemon(*unit).lose_power();
        }
        for unit in affected {
            self.machine.start_daemon(unit);
        }
    }
}
