//! What is claimed of a unit's health.

use std::io;
use std::path::Path;

use base::{ClusterId, UnitId};
use world::simulated::{Fault, Simulation};

use super::*;
use crate::conformance::{self, SLOT_BYTES, put, read, segment};
use crate::{FaultyUnit, FolderUnit, InjectedFaults, Unit};

fn at(milliseconds: u64) -> Moment {
    Moment {
        monotonic: Duration::from_millis(milliseconds),
        wall: Millis(1_000_000 + milliseconds as i64),
    }
}

fn url() -> String {
    "file:///unit".to_owned()
}

fn io_error() -> UnitError {
    UnitError::Io {
        url: url(),
        doing: "test".to_owned(),
        source: Arc::new(io::ErrorKind::Other.into()),
    }
}

/// A lease that had ended made all daemons' units failing, and the disk full.
#[test]
fn what_a_unit_does_not_allow_says_nothing_about_the_unit() {
    let refused = UnitError::NotAllowed {
        url: url(),
        reason: "the capability for it has ended".to_owned(),
    };
    let mut health = Health::new(at(0));
    for verb in [Verb::Read, Verb::Write, Verb::Release] {
        for _ in 0..READ_FAILURES_MAX {
            health.record(verb, Err(&refused), at(10));
        }
        assert_eq!(health.state(), UnitState::Healthy, "{verb:?}");
    }
    health.record(Verb::Probe, Err(&refused), at(20));
    assert_eq!(
        health.state(),
        UnitState::Failing,
        "not even that it is there"
    );
}

#[test]
fn a_unit_that_is_closed_is_well_and_nothing_is_put_there() {
    let unit = tracked(&Simulation::new(8));
    assert!(unit.can_write());
    unit.set_closed(true);
    assert!(!unit.can_write());
    assert_eq!(unit.state(), UnitState::Healthy);
    unit.set_closed(false);
    assert!(unit.can_write());
}

#[test]
fn each_error_leads_to_its_state_and_a_probe_leads_back() {
    let missing = UnitError::Missing {
        url: url(),
        reason: "gone".to_owned(),
    };
    let read_only = UnitError::ReadOnly { url: url() };
    let away = UnitError::Away {
        url: url(),
        doing: "test".to_owned(),
        source: Arc::new(io::ErrorKind::NotFound.into()),
    };
    for (error, state, read_rank) in [
        (UnitError::Full { url: url() }, UnitState::Full, 0),
        (read_only, UnitState::ReadOnly, 0),
        (missing, UnitState::Missing, 2),
        (away, UnitState::Missing, 2),
        (io_error(), UnitState::Failing, 1),
    ] {
        let mut health = Health::new(at(0));
        assert!(health.state().can_write() && health.state().read_rank() == 0);
        health.record(Verb::Write, Err(&error), at(10));
        assert_eq!(health.state(), state);
        assert!(!health.state().can_write());
        assert_eq!(health.state().read_rank(), read_rank);
        health.record(Verb::Read, Ok(()), at(20));
        health.record(Verb::Release, Ok(()), at(20));
        assert_eq!(health.state(), state, "that it can be read is no news");
        health.record(Verb::Probe, Ok(()), at(30));
        assert!(health.state().can_write());
        let report = health.report();
        assert_eq!(report.since, at(30).wall);
        let (when, why) = report.last_error.expect("it is kept");
        assert_eq!((when, why.to_string()), (at(10).wall, error.to_string()));
    }
}

#[test]
fn probes_come_less_and_less_often_up_to_ten_seconds() {
    let mut health = Health::new(at(0));
    assert!(!health.is_probe_due(at(1_000_000)), "healthy");
    let full = UnitError::Full { url: url() };
    health.record(Verb::Write, Err(&full), at(0));
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let start = now;
        while !health.is_probe_due(at(now)) {
            health.record(Verb::Write, Err(&full), at(now));
            now += 10;
        }
        waits.push(now - start);
        health.record(Verb::Probe, Err(&full), at(now));
    }
    assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    health.record(Verb::Probe, Ok(()), at(now));
    health.record(Verb::Write, Err(&full), at(now));
    assert!(health.is_probe_due(at(now + 250)), "it starts anew");
}

#[test]
fn one_bad_segment_is_no_bad_unit() {
    let mut health = Health::new(at(0));
    let damaged = UnitError::Damaged {
        url: url(),
        segment: segment(1),
        reason: "rot".to_owned(),
    };
    for _ in 0..10 {
        health.record(Verb::Read, Err(&damaged), at(1));
        health.record(Verb::Read, Err(&io_error()), at(1));
        health.record(Verb::Read, Ok(()), at(1));
    }
    assert!(health.state().can_write());
    for _ in 0..3 {
        health.record(Verb::Read, Err(&io_error()), at(1));
    }
    assert_eq!(health.state(), UnitState::Failing);
}

fn tracked(simulation: &Simulation) -> TrackedUnit {
    let world = simulation.world();
    let (cluster, unit) = (ClusterId::from_u128(1), UnitId::from_u128(2));
    let path = Path::new("/unit");
    let unit = FolderUnit::create(&world, path, cluster, unit).expect("made");
    TrackedUnit::new(Arc::new(unit), world.clock)
}

#[test]
fn a_tracked_unit_is_a_unit() {
    conformance::run(&|| Arc::new(tracked(&Simulation::new(1))));
}

#[test]
fn a_unit_that_goes_away_and_comes_back_is_passed_over_meanwhile() {
    let simulation = Simulation::new(1);
    let unit = tracked(&simulation);
    put(&unit, segment(1), SLOT_BYTES, 0, 1).expect("put");
    simulation.disk.inject(Path::new("/unit"), Fault::Missing);
    assert!(unit.can_write(), "nobody has noticed yet");
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

/// At the usual limit of 1024 open files a few GiB of segments used them up:
/// all units were said to fail, and guests got I/O errors.
#[test]
fn a_process_without_descriptors_is_no_bad_unit() {
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
fn what_goes_through_a_unit_is_counted_and_what_fails_is_not() {
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
