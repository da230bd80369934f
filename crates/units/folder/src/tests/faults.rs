//! Full, read-only, away.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Slot;
use testkit::units::conformance::{SLOT_BYTES, put, read, segment};
use unit::{Unit, UnitError};
use world::simulated::{Fault, Simulation};

use super::{PATH, create, open};
use crate::FolderUnit;

pub(super) fn path() -> &'static Path {
    Path::new(PATH)
}

/// Everything that changes the unit, and what comes of it.
pub(super) fn change_everything(unit: &FolderUnit) -> Vec<Result<(), UnitError>> {
    vec![
        put(unit, segment(900), SLOT_BYTES, 0, 1),
        unit.free(segment(1), &[Slot(0)], false),
        unit.free(segment(1), &[Slot(0)], true),
        unit.delete(segment(1)),
        unit.reclaim().map(|_| ()),
        unit.probe(),
    ]
}

pub(super) fn look_at_everything(unit: &FolderUnit) -> Vec<Result<(), UnitError>> {
    vec![
        read(unit, segment(1), SLOT_BYTES, 0, 1),
        unit.list().map(|_| ()),
        unit.stat().map(|_| ()),
        unit.stat_segment(segment(1)).map(|_| ()),
        unit.scrub(segment(1)).map(|_| ()),
    ]
}

pub(super) fn is_away(error: &UnitError) -> bool {
    matches!(
        error,
        UnitError::Missing { .. } | UnitError::Unavailable { .. }
    )
}

pub(super) fn assert_all(results: Vec<Result<(), UnitError>>, is_meant: fn(&UnitError) -> bool) {
    for (number, result) in results.into_iter().enumerate() {
        match result {
            Err(error) if is_meant(&error) => {}
            other => panic!("number {number}: {other:?}"),
        }
    }
}

#[test]
fn a_full_unit_says_so_keeps_what_it_has_and_takes_more_once_it_has_room() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world()).with_segment_data_bytes(1 << 20);
    simulation.disk.set_capacity(path(), 4 << 20);
    let mut number = 0;
    let full = loop {
        match put(&unit, segment(number), SLOT_BYTES, 0, 128) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, UnitError::Full { .. }), "{full}");
    assert!(number >= 6, "{number}");
    let listed = unit.list().expect("listed").len() as u64;
    assert_eq!(listed, number, "the one that failed left nothing");
    let full = unit.probe().expect_err("full");
    assert!(matches!(full, UnitError::Full { .. }), "{full}");
    for number in 0..number {
        unit.sync(&[segment(number)]).expect("synced");
        read(&unit, segment(number), SLOT_BYTES, 0, 128).expect("kept");
    }
    let most: Vec<Slot> = (0..127).map(Slot).collect();
    for number in 0..number {
        unit.free(segment(number), &most, false)
            .expect("freeing needs no room");
    }
    unit.probe().expect("room again");
    put(&unit, segment(1000), SLOT_BYTES, 0, 128).expect("room again");
    read(&unit, segment(0), SLOT_BYTES, 127, 1).expect("kept");
}

#[test]
fn a_read_only_unit_can_still_be_read() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world());
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    simulation.disk.inject(path(), Fault::ReadOnly);
    for unit in [&unit, &open(&simulation.world())] {
        let mut results = change_everything(unit);
        // Nothing waits to be settled before the walk has found it.
        results.remove(4).ok();
        assert_all(results, |error| matches!(error, UnitError::ReadOnly { .. }));
        for result in look_at_everything(unit) {
            result.expect("it can be read");
        }
    }
}

#[test]
fn a_unit_that_was_moved_away_is_missing_until_it_comes_back() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    simulation.disk.inject(path(), Fault::Missing);
    let unit = open(&world);
    assert_all(change_everything(&unit), is_away);
    simulation.disk.heal(path());
    assert_all(vec![unit.probe()], is_away);

    let unit = create(&world);
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    simulation.disk.inject(path(), Fault::Missing);
    for unit in [&unit, &open(&world)] {
        assert_all(change_everything(unit), is_away);
        assert_all(look_at_everything(unit), is_away);
        assert_all(vec![unit.sync(&[segment(1)])], is_away);
    }
    simulation.disk.heal(path());
    for unit in [&unit, &open(&world)] {
        unit.probe().expect("it is back");
        read(unit, segment(1), SLOT_BYTES, 0, 4).expect("with all it had");
        assert_eq!(unit.stat().expect("there").segments, 1);
    }
}

#[test]
fn what_the_system_said_of_a_unit_that_is_away_is_kept_as_its_cause() {
    use std::error::Error as _;
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world());
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    simulation
        .disk
        .inject(&path().join("segments"), Fault::Missing);
    let error = unit.list().expect_err("it is unavailable");
    assert!(matches!(error, UnitError::Unavailable { .. }), "{error}");
    let cause = error.source().expect("a cause").to_string();
    assert!(cause.contains("No such file"), "{cause}");
    assert!(!error.to_string().contains(&cause), "said once: {error}");
}

/// Linux reports a lost write once and then forgets it: a sync that is tried
/// again says that all is well.
#[test]
fn a_segment_that_lost_a_write_is_never_called_durable() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world()).with_open_segments(1);
    for id in [segment(1), segment(2)] {
        put(&unit, id, SLOT_BYTES, 0, 4).expect("put");
    }
    simulation.disk.inject(path(), Fault::SyncFails);
    assert!(unit.sync(&[segment(1)]).is_err());
    simulation.disk.heal(path());
    for _ in 0..2 {
        assert!(unit.sync(&[segment(1)]).is_err(), "forgotten, not saved");
        assert!(put(&unit, segment(1), SLOT_BYTES, 4, 1).is_err());
        unit.sync(&[segment(2)]).expect("another one is well");
        put(
            &unit,
            segment(2),
            SLOT_BYTES,
            unit.stat_segment(segment(2)).expect("there").slots as u16,
            1,
        )
        .expect("appended");
    }
    unit.delete(segment(1)).expect("given up");
    put(&unit, segment(3), SLOT_BYTES, 0, 1).expect("the unit works");
    unit.sync(&[segment(3)]).expect("the unit works");
}

/// A retried free found its marks in the page cache after a failed sync and synced, which wrote
/// nothing, because Linux takes what it lost for written. After a crash the slots were kept again
/// although no version named them.
#[test]
fn a_free_that_is_tried_again_after_a_failed_sync_survives_a_crash() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(seed);
        let unit = create(&simulation.world());
        put(&unit, segment(1), SLOT_BYTES, 0, 8).expect("put");
        unit.sync(&[segment(1)]).expect("synced");
        drop(unit);
        simulation.kill();
        let unit = open(&simulation.world());
        simulation.disk.inject(path(), Fault::SyncFails);
        assert!(unit.free(segment(1), &[Slot(2), Slot(5)], true).is_err());
        simulation.disk.heal(path());
        unit.free(segment(1), &[Slot(2), Slot(5)], true)
            .expect("the unit is well again");
        simulation.crash();
        let stat = open(&simulation.world()).stat_segment(segment(1));
        assert_eq!(stat.expect("there").freed, 2, "seed {seed}");
    }
}

/// A segment that was not listed reappeared after a power failure: its name had been removed
/// without a sync.
#[test]
fn a_segment_that_is_not_listed_stays_away_after_a_crash() {
    for seed in 0..50 {
        let mut simulation = Simulation::new(seed);
        let unit = create(&simulation.world());
        put(&unit, segment(1), SLOT_BYTES, 0, 8).expect("put");
        unit.sync(&[segment(1)]).expect("synced");
        simulation.disk.inject(path(), Fault::SyncFails);
        assert!(unit.delete(segment(1)).is_err());
        assert!(
            unit.list_serials(0..16).is_err(),
            "it cannot promise that now"
        );
        simulation.disk.heal(path());
        drop(unit);
        simulation.kill();
        let unit = open(&simulation.world());
        assert_eq!(unit.list_serials(0..16).expect("listed"), []);
        simulation.crash();
        let unit = open(&simulation.world());
        assert_eq!(unit.list().expect("listed"), [], "seed {seed}");
    }
}

#[test]
fn an_unreadable_segment_is_an_io_error_that_names_it() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world());
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    simulation
        .disk
        .inject(&path().join("segments"), Fault::Unreadable);
    let error = read(&unit, segment(1), SLOT_BYTES, 0, 1).expect_err("EIO");
    assert!(matches!(error, UnitError::Io { .. }), "{error}");
    assert!(
        error.to_string().contains(&segment(1).to_string()),
        "{error}"
    );
}

#[test]
fn counting_on_a_slow_unit_stops_in_time_and_goes_on_with_the_next_call() {
    /// Lets the clock follow the disk: each read of the clock takes 5 ms.
    struct SlowDisk(Simulation);
    impl world::Clock for SlowDisk {
        fn monotonic(&self) -> Duration {
            self.0.clock.advance(self.0.disk.take_waited());
            self.0.clock.monotonic()
        }
        fn wall(&self) -> world::Millis {
            self.0.clock.wall()
        }
    }
    let simulation = Simulation::new(1);
    let mut world = simulation.world();
    let unit = create(&world);
    for number in 0..300 {
        put(&unit, segment(number * 16), SLOT_BYTES, 0, 1).expect("put");
    }
    simulation
        .disk
        .inject(path(), Fault::Slow(Duration::from_millis(5)));
    world.clock = Arc::new(SlowDisk(simulation));
    let unit = open(&world);
    let (mut calls, mut segments) = (0, 0);
    while segments < 300 {
        let before = world.clock.monotonic();
        let stat = unit.stat().expect("there");
        assert!(world.clock.monotonic() - before < Duration::from_secs(1));
        assert!(stat.segments >= segments);
        segments = stat.segments;
        calls += 1;
        assert!(calls < 100);
    }
    assert!(calls > 3, "{calls}");
}
