//! Tests of tracked units.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{ClusterId, UnitId};
use testkit::units::conformance::{self, SLOT_BYTES, put, read, segment};
use testkit::units::{FaultyUnit, InjectedFaults};
use unit::{TrackedUnit, Traffic, Unit as _, UnitError, UnitState};
use unit_folder::FolderUnit;
use world::simulated::{Fault, Simulation};

fn tracked(simulation: &Simulation) -> TrackedUnit {
    let world = simulation.world();
    let (cluster, unit) = (ClusterId::from_u128(1), UnitId::from_u128(2));
    let path = Path::new("/unit");
    let unit = FolderUnit::create(&world, path, cluster, unit).expect("made");
    TrackedUnit::new(Arc::new(unit), world.clock)
}

#[test]
fn a_closed_unit_is_healthy_and_accepts_no_puts() {
    let unit = tracked(&Simulation::new(8));
    assert!(unit.can_write());
    unit.set_closed(true);
    assert!(!unit.can_write());
    assert_eq!(unit.state(), UnitState::Healthy);
    unit.set_closed(false);
    assert!(unit.can_write());
}

#[test]
fn a_tracked_unit_is_a_unit() {
    conformance::run(&|| Arc::new(tracked(&Simulation::new(1))));
}

#[test]
fn an_unavailable_unit_is_not_written_to_until_a_probe_succeeds() {
    let simulation = Simulation::new(1);
    let unit = tracked(&simulation);
    put(&unit, segment(1), SLOT_BYTES, 0, 1).expect("put");
    simulation.disk.inject(Path::new("/unit"), Fault::Missing);
    assert!(unit.can_write(), "no call has failed yet");
    assert!(put(&unit, segment(2), SLOT_BYTES, 0, 1).is_err());
    assert_eq!(unit.state(), UnitState::Missing);
    assert!(!unit.can_write() && !unit.is_probe_due());
    simulation.clock.advance(Duration::from_secs(1));
    assert!(unit.is_probe_due());
    assert!(unit.probe().is_err());
    assert!(!unit.take_return());
    simulation.disk.heal(Path::new("/unit"));
    simulation.clock.advance(Duration::from_secs(1));
    unit.probe().expect("it is back");
    assert!(unit.can_write());
    assert!(unit.take_return() && !unit.take_return());
    read(&unit, segment(1), SLOT_BYTES, 0, 1).expect("with what it had");
}

/// At the usual limit of 1024 open files, a few GiB of segments exhausted them: all units were
/// reported failing, and guests got I/O errors.
#[test]
fn a_process_without_descriptors_does_not_make_a_unit_failing() {
    let simulation = Simulation::new(1);
    let unit = tracked(&simulation);
    put(&unit, segment(1), SLOT_BYTES, 0, 1).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    simulation.disk.set_open_files_max(0);
    for _ in 0..5 {
        let full = put(&unit, segment(2), SLOT_BYTES, 0, 1);
        assert!(matches!(full, Err(UnitError::Io { .. })), "{full:?}");
        assert!(unit.stat_segment(segment(1)).is_err());
        assert!(unit.probe().is_err());
    }
    assert_eq!(unit.state(), UnitState::Healthy);
}

#[test]
fn a_read_that_succeeds_ends_a_series_of_failures() {
    let simulation = Simulation::new(1);
    let faulty = Arc::new(FaultyUnit::new(Arc::new(tracked(&simulation)), 1));
    let unit = TrackedUnit::new(Arc::clone(&faulty) as _, simulation.world().clock);
    put(&unit, segment(1), SLOT_BYTES, 0, 1).expect("put");
    for _ in 0..5 {
        faulty.set(InjectedFaults {
            read_errors_one_in: 1,
            ..InjectedFaults::default()
        });
        for _ in 0..2 {
            assert!(unit.stat_segment(segment(1)).is_err());
        }
        faulty.set(InjectedFaults::default());
        read(&unit, segment(1), SLOT_BYTES, 0, 1).expect("well again");
    }
    assert!(unit.can_write());
}

#[test]
fn successful_traffic_is_counted_and_failed_is_not() {
    let simulation = Simulation::new(1);
    let unit = tracked(&simulation);
    assert_eq!(unit.traffic(), Traffic::default());
    let slot_bytes = u64::from(SLOT_BYTES);
    put(&unit, segment(1), SLOT_BYTES, 0, 5).expect("put");
    read(&unit, segment(1), SLOT_BYTES, 1, 3).expect("read");
    let traffic = unit.traffic();
    assert_eq!(traffic.written_bytes, 5 * slot_bytes);
    // It is read in both ways, of which one need not answer.
    let ways = traffic.read_bytes / (3 * slot_bytes);
    assert_eq!(traffic.read_bytes, ways * 3 * slot_bytes);
    assert!((1..=2).contains(&ways), "{traffic:?}");
    simulation.disk.inject(Path::new("/unit"), Fault::Missing);
    assert!(put(&unit, segment(1), SLOT_BYTES, 5, 1).is_err());
    assert!(read(&unit, segment(1), SLOT_BYTES, 1, 3).is_err());
    assert_eq!(unit.traffic(), traffic);
}
