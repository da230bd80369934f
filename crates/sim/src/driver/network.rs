//! What happens between the host and unit daemons, when the seed says so.

use std::time::Duration;

use super::{Run, trace};
use crate::Check;
use crate::net::link::Strikes;

/// What can happen there.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    Strikes,
    Partition,
    KillDaemon,
    DaemonLosesPower,
    ArmDaemon,
    Lie,
}

impl Run {
    /// Connections break, daemons are out of reach, or end.
    pub(super) fn disturb(&mut self) {
        let Some(network) = &self.machine.network else {
            return;
        };
        let what = [
            Disturbance::Strikes,
            Disturbance::Strikes,
            Disturbance::Strikes,
            Disturbance::Partition,
            Disturbance::KillDaemon,
            Disturbance::DaemonLosesPower,
            Disturbance::ArmDaemon,
            Disturbance::Lie,
        ][self.random.index(8)];
        let units = self.machine.units.len();
        let unit = self.random.index(units);
        trace!(self, "unit {unit}: {what:?}");
        self.trouble = true;
        match what {
            Disturbance::Strikes => {
                let strikes = self.strikes();
                let all = self.random.one_in(3);
                let struck = (0..units).filter(|it| all || *it == unit);
                struck.for_each(|unit| network.strike(unit, strikes));
            }
            Disturbance::Partition => {
                let strikes = Strikes {
                    is_cut: true,
                    ..Strikes::default()
                };
                network.strike(unit, strikes);
                (0..units)
                    .filter(|_| self.random.one_in(3))
                    .for_each(|unit| network.strike(unit, strikes));
                network.count(|counts| counts.partitions += 1);
            }
            Disturbance::KillDaemon => {
                network.daemon(unit).kill();
                network.count(|counts| counts.killed += 1);
                if self.random.one_in(2) {
                    self.machine.start_daemon(unit);
                }
            }
            Disturbance::DaemonLosesPower => {
                network.daemon(unit).lose_power();
                if self.random.one_in(2) {
                    self.machine.start_daemon(unit);
                }
            }
            Disturbance::Lie => {
                network.daemon(unit).lie(1 + self.random.below(4));
                self.is_lying = true;
            }
            Disturbance::ArmDaemon => {
                let disk = network.daemon(unit).disk();
                disk.arm_crash(disk.operations() + self.random.below(20));
            }
        }
    }

    fn strikes(&self) -> Strikes {
        let often = [2, 3, 5, 10, 20][self.random.index(5)];
        let mut strikes = Strikes::default();
        for rate in [
            &mut strikes.before_one_in,
            &mut strikes.after_one_in,
            &mut strikes.within_one_in,
            &mut strikes.late_one_in,
            &mut strikes.slow_one_in,
        ] {
            if self.random.one_in(2) {
                *rate = often + self.random.below(often);
            }
        }
        strikes
    }

    /// What ends each step: what was given up may be carried out, daemons come back, and
    /// do what they do by themselves.
    pub(super) fn after_network(&mut self) -> Check {
        let Some(network) = &self.machine.network else {
            return Ok(());
        };
        network.haunt(false);
        let units = self.machine.units.len();
        for unit in 0..units {
            let daemon = network.daemon(unit);
            if self.random.one_in(30) {
                daemon.look();
            }
        }
        let down: Vec<usize> = (0..units)
            .filter(|unit| !network.daemon(*unit).is_running())
            .collect();
        for unit in down {
            if self.random.one_in(6) {
                self.machine.start_daemon(unit);
            }
        }
        self.check_network()
    }

    pub(super) fn check_network(&self) -> Check {
        let network = self.machine.network.as_ref();
        match network.and_then(|network| network.wrong()) {
            None => Ok(()),
            Some(wrong) => Err(wrong),
        }
    }

    /// Whoever renews leases hears that they are lost. Where units refuse what is put
    /// under them, the catalog may not be asked for a long time.
    fn tell_who_is_fenced(&self) {
        let fenced = self.subjects.iter().filter(|subject| subject.is_fenced);
        if self.machine.network.is_some() {
            fenced.for_each(|subject| subject.term.lose());
        }
    }

    /// Everybody is there, and reaches everybody.
    pub(super) fn heal_network(&mut self) {
        self.tell_who_is_fenced();
        let Some(network) = &self.machine.network else {
            return;
        };
        network.heal();
        let units = self.machine.units.len();
        for unit in 0..units {
            network.daemon(unit).disk().arm_crash(u64::MAX);
        }
        let down: Vec<usize> = (0..units)
            .filter(|unit| !network.daemon(*unit).is_running())
            .collect();
        // By then whoever has waited after a failure tries again.
        self.machine
            .simulation
            .clock
            .advance(Duration::from_secs(6));
        for unit in down {
            self.machine.start_daemon(unit);
        }
    }

    /// The host is elsewhere than the daemons: some of them lose power as well.
    pub(super) fn power_of_daemons(&mut self) {
        let Some(network) = &self.machine.network else {
            return;
        };
        let units = 0..self.machine.units.len();
        let struck: Vec<usize> = units.filter(|_| self.random.one_in(3)).collect();
        for unit in &struck {
            network.daemon(*unit).lose_power();
        }
        for unit in struck {
            self.machine.start_daemon(unit);
        }
    }
}
