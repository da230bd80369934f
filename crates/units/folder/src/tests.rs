//! What a folder unit promises, on the real disk and on simulated ones.

mod crash;
mod damage;
mod descriptors;
mod examine;
mod faults;
mod foreign;
mod owner;
mod planted;
mod sharing;
mod undelete;
mod watched;

use std::path::Path;
use std::sync::Arc;

use base::{ClusterId, Slot, UnitId};
use testkit::units::conformance;
use unit::{Unit as _, UnitError};
use world::World;
use world::simulated::Simulation;

use crate::FolderUnit;

/// Where simulated units lie.
const PATH: &str = "/unit";

fn cluster() -> ClusterId {
    ClusterId::from_u128(0xc1)
}

fn unit_id() -> UnitId {
    UnitId::from_u128(0x1d)
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

#[test]
fn a_segment_stays_on_the_line_it_was_made_for() {
    let world = Simulation::new(3).world();
    let unit = create(&world);
    let (plain, lined) = (conformance::segment(1), conformance::segment(2));
    let tags = [[7; 16]];
    let put = |line, segment, first| {
        unit.put_for(line, segment, 512, Slot(first), &tags, &[1; 512])
            .expect("put");
    };
    unit.put(plain, 512, Slot(0), &tags, &[1; 512])
        .expect("put");
    put(9, lined, 0);
    // Whoever appends says the same, or is not asked.
    put(8, lined, 1);
    for (segment, line) in [(plain, 0), (lined, 9)] {
        assert_eq!(unit.line_of(segment).expect("there"), line);
        assert_eq!(open(&world).line_of(segment).expect("there"), line);
    }
    assert!(unit.line_of(conformance::segment(3)).is_err());
}
