//! Tests of the health of units.

use std::io;
use std::sync::Arc;

use base::SegmentId;

use super::*;

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

/// An expired lease made all daemons' units failing, and the disk full.
#[test]
fn a_refused_request_does_not_change_the_units_health() {
    let refused = UnitError::NotAllowed {
        url: url(),
        reason: "the capability for it has ended".to_owned(),
    };
    let mut health = Health::new(at(0));
    for verb in [OpClass::Read, OpClass::Write, OpClass::Release] {
        for _ in 0..READ_FAILURES_MAX {
            health.record(verb, Err(&refused), at(10));
        }
        assert_eq!(health.state(), UnitState::Healthy, "{verb:?}");
    }
    health.record(OpClass::Probe, Err(&refused), at(20));
    assert_eq!(
        health.state(),
        UnitState::Failing,
        "not even that it is there"
    );
}

#[test]
fn each_error_leads_to_its_state_and_a_probe_leads_back() {
    let missing = UnitError::Missing {
        url: url(),
        reason: "gone".to_owned(),
    };
    let read_only = UnitError::ReadOnly {
        url: url(),
        reason: "read-only file system".to_owned(),
    };
    let unavailable = UnitError::Unavailable {
        url: url(),
        doing: "test".to_owned(),
        source: Arc::new(io::ErrorKind::NotFound.into()),
    };
    for (error, state, read_rank) in [
        (UnitError::Full { url: url() }, UnitState::Full, 0),
        (read_only, UnitState::ReadOnly, 0),
        (missing, UnitState::Missing, 2),
        (unavailable, UnitState::Missing, 2),
        (io_error(), UnitState::Failing, 1),
    ] {
        let mut health = Health::new(at(0));
        assert!(health.state().can_write() && health.state().read_rank() == 0);
        health.record(OpClass::Write, Err(&error), at(10));
        assert_eq!(health.state(), state);
        assert!(!health.state().can_write());
        assert_eq!(health.state().read_rank(), read_rank);
        health.record(OpClass::Read, Ok(()), at(20));
        health.record(OpClass::Release, Ok(()), at(20));
        assert_eq!(health.state(), state, "a read does not change the state");
        health.record(OpClass::Probe, Ok(()), at(30));
        assert!(health.state().can_write());
        let report = health.report();
        assert_eq!(report.since, at(30).wall);
        let (when, why) = report.last_error.expect("it is kept");
        assert_eq!((when, why.to_string()), (at(10).wall, error.to_string()));
    }
}

#[test]
fn the_interval_of_probes_doubles_up_to_ten_seconds() {
    let mut health = Health::new(at(0));
    assert!(!health.is_probe_due(at(1_000_000)), "healthy");
    let full = UnitError::Full { url: url() };
    health.record(OpClass::Write, Err(&full), at(0));
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let start = now;
        while !health.is_probe_due(at(now)) {
            health.record(OpClass::Write, Err(&full), at(now));
            now += 10;
        }
        waits.push(now - start);
        health.record(OpClass::Probe, Err(&full), at(now));
    }
    assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    health.record(OpClass::Probe, Ok(()), at(now));
    health.record(OpClass::Write, Err(&full), at(now));
    assert!(health.is_probe_due(at(now + 250)), "it begins again");
}

#[test]
fn one_damaged_segment_does_not_make_a_unit_failing() {
    let mut health = Health::new(at(0));
    let damaged = UnitError::Damaged {
        url: url(),
        segment: SegmentId::from_bits(1).expect("48 bits"),
        reason: "rot".to_owned(),
    };
    for _ in 0..10 {
        health.record(OpClass::Read, Err(&damaged), at(1));
        health.record(OpClass::Read, Err(&io_error()), at(1));
        health.record(OpClass::Read, Ok(()), at(1));
    }
    assert!(health.state().can_write());
    for _ in 0..3 {
        health.record(OpClass::Read, Err(&io_error()), at(1));
    }
    assert_eq!(health.state(), UnitState::Failing);
}

/// A disk whose reads failed stayed healthy as long as one write succeeded for every two of them.
#[test]
fn writes_do_not_interrupt_a_row_of_failed_reads() {
    let mut health = Health::new(at(0));
    for _ in 0..READ_FAILURES_MAX {
        assert_eq!(health.state(), UnitState::Healthy);
        health.record(OpClass::Write, Ok(()), at(1));
        health.record(OpClass::Release, Ok(()), at(1));
        health.record(OpClass::Probe, Ok(()), at(1));
        health.record(OpClass::Read, Err(&io_error()), at(1));
    }
    assert_eq!(health.state(), UnitState::Failing);
}

#[test]
fn the_row_of_failed_reads_begins_again_when_the_unit_becomes_healthy() {
    let mut health = Health::new(at(0));
    for _ in 0..READ_FAILURES_MAX {
        health.record(OpClass::Read, Err(&io_error()), at(1));
    }
    health.record(OpClass::Probe, Ok(()), at(2));
    for _ in 1..READ_FAILURES_MAX {
        health.record(OpClass::Read, Err(&io_error()), at(3));
        assert_eq!(health.state(), UnitState::Healthy);
    }
    health.record(OpClass::Read, Err(&io_error()), at(4));
    assert_eq!(health.state(), UnitState::Failing);
}

/// Status shows the last error beside the state: a failed read would explain a full unit wrongly.
#[test]
fn the_last_error_explains_the_state() {
    let mut health = Health::new(at(0));
    for failures in 1..READ_FAILURES_MAX {
        health.record(OpClass::Read, Err(&io_error()), at(1));
        assert!(health.report().last_error.is_none(), "{failures}");
    }
    health.record(OpClass::Read, Err(&io_error()), at(2));
    let (when, why) = health.report().last_error.expect("it is failing");
    assert_eq!(
        (when, why.to_string()),
        (at(2).wall, io_error().to_string())
    );

    let full = UnitError::Full { url: url() };
    health.record(OpClass::Write, Err(&full), at(3));
    for _ in 0..2 * READ_FAILURES_MAX {
        health.record(OpClass::Read, Err(&io_error()), at(4));
    }
    assert_eq!(health.state(), UnitState::Full);
    let (when, why) = health.report().last_error.expect("it is full");
    assert_eq!((when, why.to_string()), (at(3).wall, full.to_string()));
}
