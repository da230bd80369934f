//! What was freed is kept for a while, and can be brought back. Crashes in between
//! are in `crash`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{SegmentId, Slot};
use world::simulated::{Fault, Simulation};
use world::{Millis, World};

use super::{PATH, create, open};
use crate::conformance::{self, SLOT_BYTES, is_absent, put, read, replace, segment, tag_of};
use crate::folder::{Keeping, Restorable, Restored, SegmentFate};
use crate::{FolderUnit, SlotRun, Unit as _, UnitError};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn keeping(world: &World) -> FolderUnit {
    open(world).keeping(Keeping::default())
}

fn made(world: &World) -> FolderUnit {
    create(world).keeping(Keeping::default())
}

fn all() -> Restorable {
    Restorable {
        since: Millis(0),
        until: Millis(i64::MAX),
        segment: None,
        replaced: false,
    }
}

fn put_synced(unit: &FolderUnit, number: u64, count: u16) -> SegmentId {
    let id = segment(number);
    put(unit, id, SLOT_BYTES, 0, count).expect("put");
    unit.sync(&[id]).expect("synced");
    id
}

fn free(unit: &FolderUnit, id: SegmentId, slots: impl IntoIterator<Item = u16>) {
    let slots: Vec<Slot> = slots.into_iter().map(Slot).collect();
    unit.free(id, &slots, false).expect("freed");
}

fn settle(unit: &FolderUnit) {
    while unit.settle().expect("settled") {}
}

/// Lets the daemon run for a while, which looks after its unit all the time.
fn run_for(simulation: &Simulation, unit: &FolderUnit, time: Duration) {
    for _ in 0..10 {
        simulation.clock.advance(time / 10);
        settle(unit);
    }
}

fn room_taken(world: &World, simulation: &Simulation) -> u64 {
    let files = simulation.disk.files_under(Path::new(PATH));
    let room = |(path, _): (std::path::PathBuf, u64)| {
        let file = world.disk.open(&path, world::OpenMode::Read);
        file.expect("there").allocated().expect("known")
    };
    files.into_iter().map(room).sum()
}

fn of(restored: &Restored, id: SegmentId) -> (SegmentFate, u32, u32) {
    let mut segments = restored.segments.iter();
    let found = segments.find(|one| one.segment == id).expect("told");
    (found.whole, found.slots, found.gone)
}

/// Whether slots can be read, each by itself.
fn is_there(unit: &FolderUnit, id: SegmentId, slots: std::ops::Range<u16>) -> Vec<bool> {
    slots
        .map(|slot| match read(unit, id, SLOT_BYTES, slot, 1) {
            Ok(()) => true,
            absent if is_absent(&absent) => false,
            other => panic!("{id}/{slot}: {other:?}"),
        })
        .collect()
}

#[test]
fn a_folder_that_keeps_what_is_freed_conforms() {
    conformance::run(&|| Arc::new(made(&Simulation::new(1).world())));
    let root = tempfile::tempdir().expect("a folder");
    let number = std::cell::Cell::new(0);
    conformance::run(&|| {
        number.set(number.get() + 1);
        let path = root.path().join(number.get().to_string());
        let world = World::real(1);
        let unit = FolderUnit::create(&world, &path, super::cluster(), super::unit_id());
        Arc::new(unit.expect("made").keeping(Keeping::default()))
    });
}

#[test]
fn what_is_freed_deleted_or_replaced_is_gone_at_once_and_can_be_brought_back() {
    let mut simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let [some, whole, closed, other] = [1, 2, 3, 4].map(|number| put_synced(&unit, number, 20));
    let kept = put_synced(&unit, 5, 20);
    free(&unit, some, [0, 1, 2, 7, 19]);
    free(&unit, whole, [4, 5]);
    unit.delete(whole).expect("deleted");
    free(&unit, closed, 0..10);
    let rest: Vec<Slot> = (10..20).map(Slot).collect();
    unit.free(closed, &rest, true).expect("freed, and deleted");
    replace(&unit, other, segment(9), (Some(0), 1), 20).expect("replaced");

    let is_some = |slot: u16| ![0, 1, 2, 7, 19].contains(&slot);
    let expected: Vec<bool> = (0..20).map(is_some).collect();
    assert_eq!(is_there(&unit, some, 0..20), expected);
    assert_eq!(unit.list().expect("listed"), [some, other, kept]);
    assert_eq!(unit.stat_segment(some).expect("there").freed, 5);
    assert_eq!(unit.scrub(some).expect("scrubbed"), []);
    settle(&unit);
    let freed = unit.kept_freed().expect("known");
    assert_eq!((freed.segments, freed.given_up_bytes), (3, 0));
    // The slots of two, the slots and the tables of three.
    assert!(freed.bytes > (17 + 60) * 4096, "{freed:?}");

    simulation.kill();
    let world = simulation.world();
    let unit = keeping(&world);
    let dry = unit.restore(&all(), true).expect("told");
    assert_eq!(is_there(&unit, some, 0..20), expected, "nothing was done");
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(restored, dry);
    assert_eq!(of(&restored, some), (SegmentFate::There, 5, 0));
    assert_eq!(of(&restored, whole), (SegmentFate::BroughtBack, 2, 0));
    assert_eq!(of(&restored, closed), (SegmentFate::BroughtBack, 10, 0));
    assert_eq!(of(&restored, other), (SegmentFate::OtherThere, 0, 0));
    assert_eq!(restored.given_back, None);
    for id in [some, whole, closed, kept] {
        read(&unit, id, SLOT_BYTES, 0, 20).expect("as it was put");
        assert_eq!(unit.scrub(id).expect("scrubbed"), []);
    }
    assert_eq!(unit.stat_segment(other).expect("there").generation, 1);
    // Only what was asked for by its name takes the place of another.
    let replaced = Restorable {
        replaced: true,
        ..all()
    };
    for time in 0..2 {
        let restored = unit.restore(&replaced, false).expect("restored");
        match time {
            0 => assert_eq!(of(&restored, other), (SegmentFate::PutBack, 0, 0)),
            _ => assert_eq!(restored.segments, []),
        }
        assert_eq!(unit.stat_segment(other).expect("there").generation, 0);
        read(&unit, other, SLOT_BYTES, 0, 20).expect("as it was put");
    }
    // The daemon goes on with it.
    simulation.kill();
    let unit = keeping(&simulation.world());
    free(&unit, some, [3]);
    settle(&unit);
    read(&unit, some, SLOT_BYTES, 4, 16).expect("as it was put");
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
    replace(&unit, ids[4], ids[4], (Some(0), 0), 64).expect("replaced");
    run_for(&simulation, &unit, DAY - Duration::from_secs(60));
    assert!(room_taken(&world, &simulation) >= before, "all is kept");
    let restored = unit.restore(&all(), true).expect("told");
    assert_eq!(of(&restored, ids[0]), (SegmentFate::There, 32, 0));
    assert_eq!(of(&restored, ids[3]), (SegmentFate::BroughtBack, 0, 0));

    run_for(&simulation, &unit, Duration::from_secs(120));
    let kept = unit.kept_freed().expect("known");
    assert_eq!((kept.bytes, kept.segments, kept.given_up_bytes), (0, 0, 0));
    let after = room_taken(&world, &simulation);
    // 96 slots, and a segment with its table; a sector is for the time.
    let least = 96 * 4096 + 64 * 4096;
    assert!(after + least <= before, "{before} {after}");
    let restored = unit.restore(&all(), true).expect("told");
    assert_eq!(restored.segments, []);
    assert!(restored.given_back.is_some());
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
        let mut lived = Duration::ZERO;
        while lived < DAY - Duration::from_secs(600) {
            let kept = unit.kept_freed().expect("known");
            assert_eq!(kept.segments, 1, "{jump_days}: {lived:?}");
            run_for(&simulation, &unit, DAY / 50);
            lived += DAY / 50;
            match lived.as_secs() % 2 {
                0 => simulation.crash(),
                _ => simulation.kill(),
            }
            simulation.clock.jump(jump_days * 60_000);
            unit = keeping(&simulation.world());
        }
        let restored = unit.restore(&all(), true).expect("told");
        assert_eq!(of(&restored, slots), (SegmentFate::There, 4, 0));
        assert_eq!(of(&restored, whole), (SegmentFate::BroughtBack, 0, 0));
        run_for(&simulation, &unit, DAY / 10);
        assert_eq!(unit.kept_freed().expect("known").bytes, 0, "{jump_days}");
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
    assert_eq!(unit.kept_freed().expect("known").bytes, 0);
    let restored = unit.restore(&all(), true).expect("told");
    assert_eq!(restored.segments, []);
}

#[test]
fn a_full_unit_gives_up_the_oldest_first() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world).with_segment_data_bytes(1 << 20);
    let unit = Arc::new(unit.keeping(Keeping {
        time: DAY,
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
    let kept = unit.kept_freed().expect("known");
    assert!(kept.given_up_bytes > 0 && kept.bytes > 2 << 20, "{kept:?}");
    let restored = unit.restore(&all(), true).expect("told");
    let is_back: Vec<bool> = freed
        .iter()
        .map(|id| {
            let mut segments = restored.segments.iter();
            segments.any(|one| one.segment == *id && one.gone == 0)
        })
        .collect();
    let first = is_back.iter().position(|is_back| *is_back).expect("some");
    assert!((1..10).contains(&first), "{is_back:?}");
    assert!(
        is_back[first..].iter().all(|is_back| *is_back),
        "{is_back:?}"
    );
    let given_back = restored.given_back.expect("some was given back");
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
    assert_eq!(unit.kept_freed().expect("known").segments, 0);
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
        let kept = unit.kept_freed().expect("known");
        assert!(kept.bytes <= 10 << 20, "{kept:?}");
    }
    let kept = unit.kept_freed().expect("known");
    assert!(kept.bytes > 8 << 20 && kept.given_up_bytes > 20 << 20);
    let last = Restorable {
        segment: Some(segment(39)),
        ..all()
    };
    let restored = unit.restore(&last, false).expect("restored");
    let fate = (SegmentFate::BroughtBack, 0, 0);
    assert_eq!(of(&restored, segment(39)), fate);
    assert_eq!(restored.segments.len(), 1);
    read(&unit, segment(39), SLOT_BYTES, 0, 256).expect("as it was put");
}

#[test]
fn only_what_is_meant_is_brought_back() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world);
    let [one, other] = [1, 2].map(|number| put_synced(&unit, number, 8));
    free(&unit, one, [0]);
    simulation.clock.advance(Duration::from_secs(60));
    let since = world.clock.wall();
    free(&unit, one, [1]);
    free(&unit, other, [1]);
    simulation.clock.advance(Duration::from_secs(60));
    let until = world.clock.wall();
    simulation.clock.advance(Duration::from_secs(60));
    free(&unit, one, [2]);
    unit.delete(other).expect("deleted");
    let meant = Restorable {
        since,
        until,
        segment: Some(one),
        replaced: false,
    };
    let restored = unit.restore(&meant, false).expect("restored");
    assert_eq!(restored.segments.len(), 1);
    let expected = [false, true, false, true];
    assert_eq!(is_there(&unit, one, 0..4), expected);
    // Before it was deleted is not after it was.
    let meant = Restorable {
        segment: None,
        ..meant
    };
    let restored = unit.restore(&meant, false).expect("restored");
    assert_eq!(of(&restored, other), (SegmentFate::Gone, 0, 1));
    let meant = Restorable {
        until: Millis(i64::MAX),
        ..meant
    };
    unit.restore(&meant, false).expect("restored");
    assert_eq!(is_there(&unit, one, 0..4), [false, true, true, true]);
    read(&unit, other, SLOT_BYTES, 0, 8).expect("as it was put");
}

/// A log named a slot that had been brought back, and was freed once more: it would
/// have been destroyed when the time of the first free was over.
#[test]
fn what_is_freed_after_a_restore_that_was_cut_short_has_its_own_time() {
    let begun = || {
        let simulation = Simulation::new(7);
        let unit = made(&simulation.world());
        let [slots, whole, other] = [1, 2, 3].map(|number| put_synced(&unit, number, 8));
        free(&unit, slots, 0..4);
        free(&unit, whole, 0..4);
        unit.delete(whole).expect("deleted");
        replace(&unit, other, segment(9), (Some(0), 0), 8).expect("replaced");
        settle(&unit);
        simulation.clock.advance(DAY / 2);
        settle(&unit);
        (simulation, [slots, whole, other])
    };
    let meant = Restorable {
        replaced: true,
        ..all()
    };
    let operations = {
        let (simulation, _) = begun();
        let before = simulation.disk.operations();
        let unit = keeping(&simulation.world());
        unit.restore(&meant, false).expect("restored");
        simulation.disk.operations() - before
    };
    assert!(operations > 10, "{operations}");
    for number in 0..operations {
        let (mut simulation, ids) = begun();
        simulation
            .disk
            .arm_crash(simulation.disk.operations() + number);
        let unit = keeping(&simulation.world());
        unit.restore(&meant, false).expect_err("the power is gone");
        simulation.crash();
        // As a daemon starts, or as the operator says it again.
        let unit = keeping(&simulation.world());
        unit.end_restore().expect("ended");
        unit.restore(&meant, false).expect("restored");
        for id in ids {
            read(&unit, id, SLOT_BYTES, 0, 8).unwrap_or_else(|why| panic!("{number}: {why}"));
        }
        let again = unit.restore(&meant, false).expect("restored");
        assert_eq!(again.segments, [], "{number}");
        for id in ids {
            free(&unit, id, 0..4);
        }
        run_for(&simulation, &unit, DAY * 3 / 4);
        for id in ids {
            assert!(is_absent(&read(&unit, id, SLOT_BYTES, 0, 1)));
        }
        let restored = unit.restore(&all(), true).expect("told");
        for id in ids {
            assert_eq!(of(&restored, id), (SegmentFate::There, 4, 0), "{number}");
        }
        run_for(&simulation, &unit, DAY / 2);
        assert_eq!(unit.kept_freed().expect("known").bytes, 0, "{number}");
    }
}

/// A segment was deleted, mended, and freed from again, with what was freed from
/// the first one in the logs.
#[test]
fn what_is_freed_of_a_segment_that_was_put_anew_has_its_own_time() {
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
    assert_eq!(of(&restored, id), (SegmentFate::There, 1, 0));
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
    let off = Keeping {
        time: Duration::ZERO,
        ..Keeping::default()
    };
    let unit = open(&simulation.world()).keeping(off);
    settle(&unit);
    let kept = unit.kept_freed().expect("known");
    assert_eq!((kept.bytes, kept.segments, kept.given_up_bytes), (0, 0, 0));
    free(&unit, slots, [5]);
    unit.delete(slots).expect("deleted");
    assert_eq!(unit.kept_freed().expect("known").segments, 0);
    let restored = unit.restore(&all(), true).expect("told");
    assert_eq!(restored.segments, []);
}

#[test]
fn what_has_rotted_since_is_gone_and_said_to_be() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    free(&unit, id, [1, 2, 5]);
    let path = unit.place.path.join(unit.place.file(id));
    let offset = 53_248 + 2 * u64::from(SLOT_BYTES) + 9;
    simulation.disk.flip_bit(&path, offset, 3).expect("rots");
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::There, 2, 1));
    let expected = [true, true, false, true, true, true];
    assert_eq!(is_there(&unit, id, 0..6), expected);
    // Its tag comes back with it.
    let run = SlotRun {
        segment: id,
        first: Slot(5),
        count: 1,
    };
    let (mut tags, mut data) = ([[0; 16]], vec![0; SLOT_BYTES as usize]);
    unit.read(run, SLOT_BYTES, &mut tags, &mut data)
        .expect("read");
    assert_eq!(tags, [tag_of(id, 5)]);
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

#[test]
fn what_a_log_has_lost_is_found_after_the_next_start() {
    let mut simulation = Simulation::new(3);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    let freed = Path::new(PATH).join("freed");
    free(&unit, id, [0]);
    settle(&unit);
    simulation.disk.inject(&freed, Fault::SyncFails);
    free(&unit, id, [1]);
    unit.settle().expect_err("it cannot be made durable");
    simulation.disk.heal(&freed);
    free(&unit, id, [2]);
    settle(&unit);
    simulation.crash();
    let unit = keeping(&simulation.world());
    settle(&unit);
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::There, 3, 0));
    read(&unit, id, SLOT_BYTES, 0, 8).expect("as it was put");
}

#[test]
fn what_cannot_be_logged_is_free_and_logged_later() {
    let simulation = Simulation::new(3);
    let unit = made(&simulation.world());
    let [id, other] = [1, 2].map(|number| put_synced(&unit, number, 8));
    free(&unit, id, [0]);
    let freed = Path::new(PATH).join("freed");
    simulation.disk.inject(&freed, Fault::Broken);
    free(&unit, id, [1]);
    assert!(is_absent(&read(&unit, id, SLOT_BYTES, 1, 1)));
    unit.delete(other).expect_err("it cannot be kept");
    read(&unit, other, SLOT_BYTES, 0, 8).expect("it is there");
    unit.settle().expect_err("it cannot be logged");
    simulation.disk.heal(&freed);
    settle(&unit);
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::There, 2, 0));
}
