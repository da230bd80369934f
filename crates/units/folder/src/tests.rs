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

use base::{ClusterId, LineageTag, Slot, UnitId};
use testkit::units::conformance;
use unit::{Put, Unit as _, UnitError};
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
fn a_segment_keeps_the_lineage_tag_it_was_created_with() {
    let world = Simulation::new(3).world();
    let unit = create(&world);
    let (plain, tagged) = (conformance::segment(1), conformance::segment(2));
    let tags = [[7; 16]];
    let put = |lineage_tag, segment, first| {
        unit.put(Put {
            lineage_tag,
            segment,
            slot_bytes: 512,
            first: Slot(first),
            tags: &tags,
            data: &[1; 512],
        })
        .expect("put");
    };
    unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment: plain,
        slot_bytes: 512,
        first: Slot(0),
        tags: &tags,
        data: &[1; 512],
    })
    .expect("put");
    put(LineageTag(9), tagged, 0);
    // The tag of a put that appends is ignored.
    put(LineageTag(8), tagged, 1);
    for (segment, lineage_tag) in [(plain, LineageTag::NONE), (tagged, LineageTag(9))] {
        assert_eq!(unit.lineage_tag_of(segment).expect("there"), lineage_tag);
        assert_eq!(
            open(&world).lineage_tag_of(segment).expect("there"),
            lineage_tag
        );
    }
    assert!(unit.lineage_tag_of(conformance::segment(3)).is_err());
}
