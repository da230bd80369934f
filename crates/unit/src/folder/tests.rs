//! What a folder unit promises, on the real disk and on simulated ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{ClusterId, CopysetId, SegmentId, Slot, UnitId};
use world::simulated::{Fault, SimulatedDisk, SimulatedRandom, Simulation};
use world::{Disk, OpenMode, World};

use crate::{FolderUnit, SlotRun, Tag, Unit, UnitError, conformance};

const SLOT_BYTES: u32 = 4096;

fn cluster() -> ClusterId {
    ClusterId::from_random(0xc1)
}

fn unit_id() -> UnitId {
    UnitId::from_random(0x1d)
}

fn segment(serial: u64) -> SegmentId {
    SegmentId::new(CopysetId::new(5).expect("12 bits"), serial).expect("36 bits")
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
    conformance::run(&|| {
        let world = Simulation::new(1).world();
        let unit = FolderUnit::create(&world, Path::new("/unit"), cluster(), unit_id());
        Arc::new(unit.expect("made"))
    });
}

#[test]
fn a_folder_that_keeps_hardly_anything_open_conforms() {
    conformance::run(&|| {
        let simulation = Simulation::new(2);
        simulation.disk.set_read_now_misses(3);
        let world = simulation.world();
        let unit = FolderUnit::create(&world, Path::new("/unit"), cluster(), unit_id());
        Arc::new(unit.expect("made").with_open_segments(1))
    });
}
