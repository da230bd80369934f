//! What a folder unit promises, on the real disk and on simulated ones.

mod crash;
mod damage;
mod faults;
mod owner;
mod planted;
mod sharing;

use std::path::Path;
use std::sync::Arc;

use base::{ClusterId, UnitId};
use world::World;
use world::simulated::Simulation;

use crate::{FolderUnit, UnitError, conformance};

/// Where simulated units lie.
const PATH: &str = "/unit";

fn cluster() -> ClusterId {
    ClusterId::from_random(0xc1)
}

fn unit_id() -> UnitId {
    UnitId::from_random(0x1d)
}

fn create(world: &World) -> FolderUnit {
    try_create(world).expect("made")
}

fn try_create(world: &World) -> Result<FolderUnit, UnitError> {
    FolderUnit::create(world, Path::new(PATH), cluster(), unit_id())
}

fn open(world: &World) -> FolderUnit {
    FolderUnit::open(world, Path::new(PATH), cluster(), unit_id())
}

#[test]
fn a_folder_on_the_real_disk_conforms() {
    let root = tempfile::tempdir().expect("a folder");
    let number = std::cell::Cell::new(0);
    conformance::run(&|| {
        number.set(number.get() + 1);
        let path = root.path().join(number.get().to_string());
        let unit = FolderUnit::create(&World::real(1), &path, cluster(), unit_id());
        Arc::new(unit.expect("made"))
    });
}

#[test]
fn a_folder_on_a_simulated_disk_conforms() {
    conformance::run(&|| Arc::new(create(&Simulation::new(1).world())));
}

#[test]
fn a_folder_that_keeps_hardly_anything_open_conforms() {
    conformance::run(&|| {
        let simulation = Simulation::new(2);
        simulation.disk.set_read_now_misses(3);
        Arc::new(create(&simulation.world()).with_open_segments(1))
    });
}
