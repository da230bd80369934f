//! For how long what was freed is kept.

use std::sync::Arc;
use std::time::Duration;

use base::SegmentId;
use testkit::units::conformance;
use testkit::units::conformance::{Generations, SLOT_BYTES, is_absent, read, replace};
use unit::Unit as _;
use world::World;
use world::simulated::Simulation;

use super::{DAY, all, free, made, of, put_synced, room_taken, run_for, settle, with_undelete};
use crate::FolderUnit;
use crate::tests::{cluster, create, open, unit_id};
use crate::{SegmentFate, UndeletePolicy};

#[test]
fn a_folder_that_keeps_what_is_freed_conforms() {
    conformance::run(&|| Arc::new(made(&Simulation::new(1).world())));
    let root = tempfile::tempdir().expect("a folder");
    let number = std::cell::Cell::new(0);
    conformance::run(&|| {
        number.set(number.get() + 1);
        let path = root.path().join(number.get().to_string());
        let world = World::real(1);
        let unit = FolderUnit::create(&world, &path, cluster(), unit_id());
        Arc::new(unit.expect("made").with_undelete(UndeletePolicy::default()))
    });
}

#[test]
fn what_is_over_gives_its_room_back() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world);
    let ids: Vec<SegmentId> = (0..6).map(|number| put_synced(&unit, number, 64)).collect();
    settle(&unit);
    let before = room_taken(&world, &simulation);
    for id in &ids[..3] {
        free(&unit, *id, 0..32);
    }
    unit.delete(ids[3]).expect("deleted");
    replace(&unit, ids[4], ids[4], Generations::new(Some(0), 0), 64).expect("replaced");
    run_for(&simulation, &unit, DAY - Duration::from_secs(60));
    assert!(room_taken(&world, &simulation) >= before, "all is kept");
    let restored = unit.restore(&all(), true).expect("reported");
    assert_eq!(of(&restored, ids[0]), (SegmentFate::Present, 32, 0));
    assert_eq!(of(&restored, ids[3]), (SegmentFate::Restored, 0, 0));

    run_for(&simulation, &unit, Duration::from_secs(120));
    let kept = unit.undelete_usage().expect("known");
    assert_eq!((kept.bytes, kept.segments, kept.evicted_bytes), (0, 0, 0));
    let after = room_taken(&world, &simulation);
    // 96 slots, and a segment with its table; a sector is for the time.
    let least = 96 * 4096 + 64 * 4096;
    assert!(after + least <= before, "{before} {after}");
    let restored = unit.restore(&all(), true).expect("reported");
    assert_eq!(restored.segments, []);
    assert!(restored.reclaimed_until.is_some());
    for id in &ids[..3] {
        assert!(is_absent(&read(&unit, *id, SLOT_BYTES, 0, 1)));
        read(&unit, *id, SLOT_BYTES, 32, 32).expect("not freed");
    }
}

#[test]
fn no_clock_that_is_set_ends_the_time_and_none_stops_it() {
    for jump_days in [-4000, 4000] {
        let mut simulation = Simulation::new(1);
        let mut unit = made(&simulation.world());
        let [slots, whole] = [1, 2].map(|number| put_synced(&unit, number, 8));
        free(&unit, slots, 0..4);
        unit.delete(whole).expect("deleted");
        settle(&unit);
        simulation.clock.jump(jump_days * 24 * 3_600_000);
        // Restarted all the time, by a power failure too.
        let (mut lived, mut lives) = (Duration::ZERO, 0);
        while lived < DAY - Duration::from_secs(600) {
            let kept = unit.undelete_usage().expect("known");
            assert_eq!(kept.segments, 1, "{jump_days}: {lived:?}");
            run_for(&simulation, &unit, DAY / 50);
            lived += DAY / 50;
            lives += 1;
            match lives % 2 {
                0 => simulation.crash(),
                _ => simulation.kill(),
            }
            simulation.clock.jump(jump_days * 60_000);
            unit = with_undelete(&simulation.world());
        }
        let restored = unit.restore(&all(), true).expect("reported");
        assert_eq!(of(&restored, slots), (SegmentFate::Present, 4, 0));
        assert_eq!(of(&restored, whole), (SegmentFate::Restored, 0, 0));
        run_for(&simulation, &unit, DAY / 10);
        assert_eq!(
            unit.undelete_usage().expect("known").bytes,
            0,
            "{jump_days}"
        );
    }
}

/// Not even if it is freed once more, by a host that heard no answer.
#[test]
fn what_is_freed_twice_is_kept_from_the_first_time_on() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    free(&unit, id, 0..4);
    for _ in 0..30 {
        run_for(&simulation, &unit, DAY / 24);
        free(&unit, id, 0..4);
    }
    assert_eq!(unit.undelete_usage().expect("known").bytes, 0);
    let restored = unit.restore(&all(), true).expect("reported");
    assert_eq!(restored.segments, []);
}

/// A segment was deleted, repaired, and freed from again, with what was freed from
/// the first one in the logs.
#[test]
fn slots_freed_in_a_segment_that_was_put_again_have_their_own_window() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    free(&unit, id, [0]);
    simulation.clock.advance(Duration::from_secs(60));
    unit.delete(id).expect("deleted");
    simulation.clock.advance(Duration::from_secs(60));
    put_synced(&unit, 1, 8);
    run_for(&simulation, &unit, DAY / 2);
    free(&unit, id, [0]);
    run_for(&simulation, &unit, DAY * 3 / 4);
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::Present, 1, 0));
    read(&unit, id, SLOT_BYTES, 0, 8).expect("as it was put");
}

#[test]
fn a_unit_that_keeps_nothing_any_more_gives_all_of_it_back() {
    let mut simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let [slots, whole] = [1, 2].map(|number| put_synced(&unit, number, 8));
    free(&unit, slots, 0..4);
    unit.delete(whole).expect("deleted");
    simulation.kill();
    let off = UndeletePolicy {
        window: Duration::ZERO,
        ..UndeletePolicy::default()
    };
    let unit = open(&simulation.world()).with_undelete(off);
    settle(&unit);
    let kept = unit.undelete_usage().expect("known");
    assert_eq!((kept.bytes, kept.segments, kept.evicted_bytes), (0, 0, 0));
    free(&unit, slots, [5]);
    unit.delete(slots).expect("deleted");
    assert_eq!(unit.undelete_usage().expect("known").segments, 0);
    let restored = unit.restore(&all(), true).expect("reported");
    assert_eq!(restored.segments, []);
}

#[test]
fn a_free_costs_one_write_more_than_where_nothing_is_kept() {
    let cost = |made: fn(&World) -> FolderUnit| {
        let simulation = Simulation::new(1);
        let unit = made(&simulation.world());
        let id = put_synced(&unit, 1, 200);
        free(&unit, id, [0]);
        let before = simulation.disk.operations();
        free(&unit, id, [2, 3, 9]);
        simulation.disk.operations() - before
    };
    assert_eq!(cost(made), cost(create) + 1);
}
