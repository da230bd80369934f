//! How much of what was freed is kept.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use testkit::units::conformance::{SLOT_BYTES, put, read, segment};
use unit::{Unit as _, UnitError};
use world::simulated::{Fault, Simulation};

use super::{DAY, all, free, freed_files, made, of, path_of, put_synced, room_taken, settle};
use crate::tests::PATH;
use crate::{RestoreFilter, SegmentFate, UndeletePolicy};

#[test]
fn a_full_unit_gives_up_the_oldest_first() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world).with_segment_data_bytes(1 << 20);
    let unit = Arc::new(unit.with_undelete(UndeletePolicy {
        window: DAY,
        room_percent: 100,
    }));
    simulation.disk.set_capacity(Path::new(PATH), 4 << 20);
    // Slots and whole segments in turn, until there is room for one more.
    let mut freed = Vec::new();
    for number in 0..12 {
        let id = put_synced(&unit, number, 128);
        match number % 2 {
            0 => free(&unit, id, 0..127),
            _ => unit.delete(id).expect("deleted"),
        }
        freed.push(id);
        simulation.clock.advance(Duration::from_secs(3700));
    }
    unit.probe().expect("what is kept is room");
    let kept = unit.undelete_usage().expect("known");
    assert!(kept.evicted_bytes > 0 && kept.bytes > 2 << 20, "{kept:?}");
    let restored = unit.restore(&all(), true).expect("reported");
    let is_back: Vec<bool> = freed
        .iter()
        .map(|id| {
            let mut segments = restored.segments.iter();
            segments.any(|one| one.segment == *id && one.lost == 0)
        })
        .collect();
    let first = is_back.iter().position(|is_back| *is_back).expect("some");
    assert!((1..10).contains(&first), "{is_back:?}");
    assert!(
        is_back[first..].iter().all(|is_back| *is_back),
        "{is_back:?}"
    );
    let given_back = restored.reclaimed_until.expect("some was given back");
    assert!(given_back < world.clock.wall());
    // An append that finds no room as well, and what frees needs none.
    let id = put_synced(&unit, 100, 1);
    for first in 1..250 {
        put(&*unit, id, SLOT_BYTES, first, 1).expect("appended");
        if first % 100 == 0 {
            let more = put_synced(&unit, 100 + u64::from(first), 128);
            unit.delete(more).expect("deleted");
        }
    }
    unit.sync(&[id]).expect("synced");
    read(&*unit, id, SLOT_BYTES, 0, 250).expect("all of it");
    // Then nothing is left to be given up.
    let mut number = 1000;
    let full = loop {
        number += 1;
        match put(&*unit, segment(number), SLOT_BYTES, 0, 128) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, UnitError::Full { .. }), "{full}");
    assert_eq!(unit.undelete_usage().expect("known").segments, 0);
    for number in 1001..number {
        unit.delete(segment(number)).expect("makes room");
    }
    put(&*unit, segment(5000), SLOT_BYTES, 0, 128).expect("room again");
}

#[test]
fn more_than_its_share_is_given_up() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    simulation.disk.set_capacity(Path::new(PATH), 100 << 20);
    for number in 0..40 {
        let id = put_synced(&unit, number, 256);
        unit.delete(id).expect("deleted");
        settle(&unit);
        let kept = unit.undelete_usage().expect("known");
        assert!(kept.bytes <= 10 << 20, "{kept:?}");
    }
    let kept = unit.undelete_usage().expect("known");
    assert!(kept.bytes > 8 << 20 && kept.evicted_bytes > 20 << 20);
    let last = RestoreFilter {
        segment: Some(segment(39)),
        ..all()
    };
    let restored = unit.restore(&last, false).expect("restored");
    let fate = (SegmentFate::Restored, 0, 0);
    assert_eq!(of(&restored, segment(39)), fate);
    assert_eq!(restored.segments.len(), 1);
    read(&unit, segment(39), SLOT_BYTES, 0, 256).expect("as it was put");
}

/// All that was freed within an hour is in one log, and once reclaimed it went as a whole, even
/// if less room was needed.
#[test]
fn a_full_unit_gives_up_no_more_than_is_needed() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world).with_segment_data_bytes(1 << 20);
    let unit = unit.with_undelete(UndeletePolicy {
        window: DAY,
        room_percent: 100,
    });
    let ids: Vec<_> = (0..40)
        .map(|number| put_synced(&unit, number, 256))
        .collect();
    for id in &ids {
        free(&unit, *id, 0..255);
    }
    settle(&unit);
    assert_eq!(freed_files(&simulation, "log-").len(), 1);
    let taken = room_taken(&world, &simulation);
    simulation.disk.set_capacity(Path::new(PATH), taken + 8192);
    put_synced(&unit, 100, 256);
    settle(&unit);
    simulation.clock.advance(DAY / 2);
    settle(&unit);
    let kept = unit.undelete_usage().expect("known");
    assert!((1 << 20..3 << 20).contains(&kept.evicted_bytes), "{kept:?}");
    assert!(kept.bytes < 38 * 255 * 4096 + (1 << 20), "{kept:?}");
    let restored = unit.restore(&all(), true).expect("reported");
    let gone = restored
        .segments
        .iter()
        .filter(|segment| segment.lost > 0)
        .count();
    assert!((1..=3).contains(&gone), "{restored:?}");
    // The rest goes in its time.
    simulation.clock.advance(DAY);
    settle(&unit);
    assert_eq!(unit.undelete_usage().expect("known").bytes, 0);
}

#[test]
fn no_log_names_more_than_a_few_segments() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    for number in 0..20 {
        let id = put_synced(&unit, number, 2000);
        free(&unit, id, 0..2000);
    }
    let logs = freed_files(&simulation, "log-").len();
    assert_eq!(logs, 3, "of 64 MiB");
}

/// An attacker destroyed a segment by deleting it, and after it as many small segments as are
/// stored.
#[test]
fn many_small_segments_push_out_no_larger_ones() {
    let simulation = Simulation::new(1);
    let mut unit = made(&simulation.world());
    unit.undelete.as_mut().expect("enabled").segments_max = 16;
    let large: Vec<_> = (0..4).map(|number| put_synced(&unit, number, 64)).collect();
    for id in &large {
        unit.delete(*id).expect("deleted");
    }
    for number in 100..140 {
        let small = put_synced(&unit, number, 1);
        unit.delete(small).expect("deleted");
        settle(&unit);
    }
    let kept = unit.undelete_usage().expect("known");
    assert_eq!(kept.segments, 16);
    assert!(kept.evicted_bytes > 0, "{kept:?}");
    let restored = unit.restore(&all(), false).expect("restored");
    for id in large {
        assert_eq!(of(&restored, id), (SegmentFate::Restored, 0, 0));
    }
    // Of equal ones the oldest were reclaimed.
    assert_eq!(restored.segments.len(), 16);
    assert!(
        restored
            .segments
            .iter()
            .any(|one| one.segment == segment(139))
    );
}

/// A put on a full unit failed as on a broken one, because one file of what is kept
/// could not be read.
#[test]
fn a_put_makes_room_past_a_file_that_cannot_be_read_and_else_says_that_it_is_full() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world).with_segment_data_bytes(1 << 20);
    let unit = unit.with_undelete(UndeletePolicy {
        window: DAY,
        room_percent: 100,
    });
    let ids: Vec<_> = (0..4)
        .map(|number| put_synced(&unit, number, 256))
        .collect();
    for id in &ids {
        free(&unit, *id, 0..255);
    }
    settle(&unit);
    let taken = room_taken(&world, &simulation);
    simulation.disk.set_capacity(Path::new(PATH), taken + 8192);
    let bad = path_of(&unit, ids[0]);
    simulation.disk.inject(&bad, Fault::Broken);
    put_synced(&unit, 100, 128);
    assert!(unit.undelete_usage().expect("known").evicted_bytes > 0);
    // Not even what is kept can be looked at.
    let freed = Path::new(PATH).join("freed");
    simulation.disk.inject(&freed, Fault::Broken);
    let mut number = 200;
    let full = loop {
        number += 1;
        match put(&unit, segment(number), SLOT_BYTES, 0, 256) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, UnitError::Full { .. }), "{full}");
    simulation.disk.heal(&freed);
    simulation.disk.heal(&bad);
}
