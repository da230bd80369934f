//! What happens between the hosts and unit daemons.

use std::time::Duration;

use super::{Run, trace};
use crate::Check;
use crate::net::link::Strikes;

impl Run {
    /// Connections of a host break now and then, from now on.
    fn disturb(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let (Some(network), Some(attached)) = (&host.machine.network, &mut host.attached) else {
            return;
        };
        attached.may_miss = true;
        host.is_disturbed = true;
        let often = [2, 4, 10][self.random.index(3)];
        let strikes = Strikes {
            after_one_in: often * 2,
            late_one_in: often,
            ..Strikes::default()
        };
        (0..host.machine.units.len()).for_each(|unit| network.strike(unit, strikes));
        trace!(self, "host {index}: its connections break");
    }

    /// They break no more, and it looks at its units again.
    pub(super) fn heal(&mut self, index: usize) {
        if !std::mem::take(&mut self.hosts[index].is_disturbed) {
            return;
        }
        trace!(self, "host {index}: its connections hold");
        if let Some(network) = &self.hosts[index].machine.network {
            network.heal();
        }
        // By then it tries again.
        self.pass(Duration::from_secs(6));
        self.hosts[index].machine.probe(true);
    }

    /// What ends each step.
    pub(super) fn after_network(&mut self) -> Check {
        let Some(network) = &self.hosts[0].machine.network else {
            return Ok(());
        };
        network.haunt(false);
        if network.breaks() {
            let index = self.random.index(2);
            match self.random.below(60) {
                0 => self.disturb(index),
                1 | 2 => self.heal(index),
                _ => {}
            }
        }
        self.check_network()
    }

    pub(super) fn check_network(&self) -> Check {
        let network = self.hosts[0].machine.network.as_ref();
        match network.and_then(|network| network.wrong()) {
            None => Ok(()),
            Some(wrong) => Err(wrong),
        }
    }
}
