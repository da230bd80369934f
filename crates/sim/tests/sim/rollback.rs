//! Units that are rolled back to an earlier state.

use base::{CopysetId, LineageTag, SegmentId, Slot};
use unit::Put;
use world::simulated::Fault;

use crate::bench::Bench;

const SLOT_BYTES: u32 = 4096;

/// A machine with one slot on its first unit.
fn with_a_slot() -> (Bench, SegmentId) {
    let bench = Bench::with(sim::setup::Setup::quiet(2, 2));
    let copyset = CopysetId::new(0).expect("12 bits");
    let segment = SegmentId::new(copyset, 77).expect("36 bits");
    let (_, unit) = &bench.machine.units[0];
    let put = unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment,
        slot_bytes: SLOT_BYTES,
        first: Slot(0),
        tags: &[[1; 16]],
        data: &[1; 4096],
    });
    put.and_then(|()| unit.sync(&[segment])).expect("put");
    (bench, segment)
}

/// The copy was made while the unit was missing, and restored that fault for good: correct
/// seeds failed.
#[test]
fn faults_of_a_unit_are_not_restored_with_it() {
    for fault in [Fault::Missing, Fault::Broken, Fault::Unreadable] {
        let (mut bench, segment) = with_a_slot();
        let machine = &mut bench.machine;
        let path = machine.unit_path(0);
        machine.simulation.disk.inject(&path, fault);
        let earlier = machine.simulation.disk.copy();
        machine.simulation.disk.heal(&path);
        let (_, unit) = &machine.units[0];
        unit.delete(segment).expect("deleted");
        machine
            .kill_and_roll_back(0, &earlier)
            .expect("rolled back");
        let (_, unit) = &machine.units[0];
        assert_eq!(unit.list().expect("listed"), [segment], "{fault:?}");
    }
}

/// The copy contains folders that were not durable, and that a crash has removed from the
/// disk.
#[test]
fn a_unit_is_rolled_back_on_a_disk_without_its_folders() {
    let (bench, segment) = with_a_slot();
    let earlier = bench.machine.simulation.disk.copy();
    let mut without = Bench::with(sim::setup::Setup::quiet(2, 2));
    let machine = &mut without.machine;
    machine
        .kill_and_roll_back(0, &earlier)
        .expect("rolled back");
    let (_, unit) = &machine.units[0];
    assert_eq!(unit.list().expect("listed"), [segment]);
}
