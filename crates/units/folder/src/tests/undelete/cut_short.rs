//! Restores that are cut short, and what ends them.

use std::time::Duration;

use base::{SegmentId, Slot};
use testkit::units::conformance::{
    Generations, SLOT_BYTES, content_of, is_absent, put, read, replace, segment,
};
use unit::{Read, SlotRun, Unit as _};
use world::World;
use world::simulated::Simulation;

use super::{
    DAY, all, free, is_there, made, of, put_synced, replaced, run_for, settle, with_undelete,
};
use crate::FolderUnit;
use crate::tests::open;
use crate::{RestoreFilter, SegmentFate, UndeletePolicy};

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
        replace(&unit, other, segment(9), Generations::new(Some(0), 0), 8).expect("replaced");
        settle(&unit);
        simulation.clock.advance(DAY / 2);
        settle(&unit);
        (simulation, [slots, whole, other])
    };
    let meant = replaced();
    let operations = {
        let (simulation, _) = begun();
        let before = simulation.disk.operations();
        let unit = with_undelete(&simulation.world());
        unit.restore(&meant, false).expect("restored");
        simulation.disk.operations() - before
    };
    assert!(operations > 10, "{operations}");
    for number in 0..operations {
        let (mut simulation, ids) = begun();
        simulation
            .disk
            .arm_crash(simulation.disk.operations() + number);
        let unit = with_undelete(&simulation.world());
        unit.restore(&meant, false).expect_err("the power is gone");
        simulation.crash();
        // As a daemon starts, or as the operator says it again.
        let unit = with_undelete(&simulation.world());
        unit.complete_restore().expect("ended");
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
        let restored = unit.restore(&all(), true).expect("reported");
        for id in ids {
            assert_eq!(of(&restored, id), (SegmentFate::Present, 4, 0), "{number}");
        }
        run_for(&simulation, &unit, DAY / 2);
        assert_eq!(unit.undelete_usage().expect("known").bytes, 0, "{number}");
    }
}

/// The operations of a restore of `meant` on what `begun` leaves.
fn operations(begun: impl Fn() -> Simulation, meant: &RestoreFilter) -> u64 {
    let simulation = begun();
    let before = simulation.disk.operations();
    let unit = with_undelete(&simulation.world());
    unit.restore(meant, false).expect("restored");
    simulation.disk.operations() - before
}

/// The power fails in operation `number` of a restore.
fn cut_short(simulation: &mut Simulation, meant: &RestoreFilter, number: u64) {
    let at = simulation.disk.operations() + number;
    simulation.disk.arm_crash(at);
    let unit = with_undelete(&simulation.world());
    unit.restore(meant, false).expect_err("the power is gone");
    simulation.crash();
}

/// Whose content a segment has: of the first slot.
fn has_content_of(unit: &FolderUnit, id: SegmentId, other: SegmentId) -> bool {
    let run = SlotRun {
        segment: id,
        first: Slot(0),
        count: 1,
    };
    let (mut tags, mut data) = ([[0; 16]], vec![0; SLOT_BYTES as usize]);
    unit.read(Read {
        run,
        slot_bytes: SLOT_BYTES,
        tags: &mut tags,
        data: &mut data,
    })
    .expect("there");
    data == content_of(other, 0, SLOT_BYTES)
}

/// A daemon that could not write started in between, and hosts have put a segment in
/// the place: the restore's end put the old one over it.
#[test]
fn the_end_of_a_restore_leaves_alone_what_was_put_since() {
    let (gone, other) = (segment(1), segment(9));
    let begun = || {
        let simulation = Simulation::new(5);
        let unit = made(&simulation.world());
        put_synced(&unit, 1, 8);
        free(&unit, gone, [3]);
        unit.delete(gone).expect("deleted");
        settle(&unit);
        simulation
    };
    let mut seen = [false; 2];
    for number in 0..operations(begun, &all()) {
        let mut simulation = begun();
        cut_short(&mut simulation, &all(), number);
        let unit = with_undelete(&simulation.world());
        let is_back = unit.stat_segment(gone).is_ok();
        seen[usize::from(is_back)] = true;
        if !is_back {
            replace(&unit, gone, other, Generations::new(None, 0), 8).expect("put in its place");
            free(&unit, gone, [3]);
        }
        unit.complete_restore().expect("ended");
        assert_eq!(has_content_of(&unit, gone, other), !is_back, "{number}");
        assert_eq!(has_content_of(&unit, gone, gone), is_back, "{number}");
        assert_eq!(is_there(&unit, gone, 3..4), [is_back], "{number}");
        // Nothing of it is left to be done, and the old one can be had by its name.
        let restored = unit.restore(&all(), false).expect("restored");
        let fates: Vec<_> = restored
            .segments
            .iter()
            .map(|segment| segment.whole)
            .collect();
        match is_back {
            true => assert_eq!(fates, []),
            false => assert_eq!(fates, [SegmentFate::Occupied]),
        }
    }
    assert_eq!(seen, [true; 2]);
}

/// A restore without an end meant everything until now, and "now" was when a start
/// did it to its end.
#[test]
fn what_is_freed_after_a_restore_was_begun_is_not_brought_back_by_its_end() {
    let ids = [segment(1), segment(2)];
    let begun = || {
        let simulation = Simulation::new(6);
        let unit = made(&simulation.world());
        for number in [1, 2] {
            put_synced(&unit, number, 8);
        }
        free(&unit, ids[0], [0]);
        settle(&unit);
        simulation
    };
    let mut unfinished = 0;
    for number in 0..operations(begun, &all()) {
        let mut simulation = begun();
        cut_short(&mut simulation, &all(), number);
        let unit = with_undelete(&simulation.world());
        // The clock may jump in between.
        simulation.clock.jump(-3_600_000);
        free(&unit, ids[0], [5]);
        unit.delete(ids[1]).expect("deleted");
        unfinished += u32::from(is_there(&unit, ids[0], 0..1) == [false]);
        unit.complete_restore().expect("ended");
        assert_eq!(is_there(&unit, ids[0], 5..6), [false], "{number}");
        assert!(is_absent(&read(&unit, ids[1], SLOT_BYTES, 0, 1)));
        let restored = unit.restore(&all(), true).expect("reported");
        assert_eq!(of(&restored, ids[1]).0, SegmentFate::Restored);
    }
    assert!(unfinished > 0);
}

/// Where nothing is kept any more, the restore's end destroyed what it put the old one
/// in the place of.
#[test]
fn what_a_restore_takes_the_place_of_is_held_whatever_is_kept() {
    let unkept = |world: &World| {
        open(world).with_undelete(UndeletePolicy {
            window: Duration::ZERO,
            ..UndeletePolicy::default()
        })
    };
    let (id, other) = (segment(1), segment(9));
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    put(&unit, id, SLOT_BYTES, 0, 8).expect("put");
    replace(&unit, id, other, Generations::new(Some(0), 1), 8).expect("replaced");
    let meant = replaced();
    let unit = unkept(&simulation.world());
    let restored = unit.restore(&meant, false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::Reverted, 0, 0));
    assert!(has_content_of(&unit, id, id));
    assert_eq!(unit.undelete_usage().expect("known").segments, 1);
}
