//! Faults between the hosts and unit daemons.

use std::time::Duration;

use super::{Run, trace};
use crate::Check;
use crate::net::faults::LinkFaults;

impl Run {
    /// Connections of a host break from now on.
    fn break_links(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let (Some(network), Some(attached)) = (&host.machine.network, &mut host.attached) else {
            return;
        };
        attached.may_miss = true;
        host.has_link_faults = true;
        let often = [2, 4, 10][self.random.index(3)];
        let faults = LinkFaults {
            after_one_in: often * 2,
            late_one_in: often,
            ..LinkFaults::default()
        };
        (0..host.machine.units.len()).for_each(|unit| network.set_faults(unit, faults));
        trace!(self, "host {index}: its connections break");
    }

    /// Ends the faults of a host's links, and probes its units.
    pub(super) fn heal(&mut self, index: usize) {
        if !std::mem::take(&mut self.hosts[index].has_link_faults) {
            return;
        }
        trace!(self, "host {index}: its connections no longer break");
        if let Some(network) = &self.hosts[index].machine.network {
            network.heal();
        }
        // By then links that pause after a failure connect again.
        self.advance(Duration::from_secs(6));
        self.hosts[index].machine.probe(true);
    }

    /// The network's part of the end of a step.
    pub(super) fn advance_network(&mut self) -> Check {
        let Some(network) = &self.hosts[0].machine.network else {
            return Ok(());
        };
        network.deliver_abandoned(false);
        if network.breaks() {
            let index = self.random.index(2);
            match self.random.below(60) {
                0 => self.break_links(index),
                1 | 2 => self.heal(index),
                _ => {}
            }
        }
        self.check_network()
    }

    pub(super) fn check_network(&self) -> Check {
        let network = self.hosts[0].machine.network.as_ref();
        match network.and_then(|network| network.violation()) {
            None => Ok(()),
            Some(violation) => Err(violation),
        }
    }
}
