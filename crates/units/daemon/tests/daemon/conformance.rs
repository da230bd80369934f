//! A unit that a daemon keeps is a unit.

use std::sync::Arc;

use world::simulated::Simulation;

use crate::inside::{HOST, keeper, unit_of, whole_lease};

#[test]
fn a_unit_behind_a_daemon_conforms() {
    testkit::units::conformance::run(&|| {
        let keeper = keeper(&Simulation::new(1).world());
        Arc::new(unit_of(&keeper, HOST, &[whole_lease(1)]))
    });
}
