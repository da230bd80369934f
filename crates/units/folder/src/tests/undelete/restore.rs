//! Bringing back what was freed.

use std::time::Duration;

use base::Slot;
use testkit::units::conformance::{Generations, SLOT_BYTES, read, replace, segment, tag_of};
use unit::{Read, SlotRun, Unit as _};
use world::Millis;
use world::simulated::Simulation;

use super::{all, free, is_there, made, of, put_synced, replaced, settle, with_undelete};
use crate::FolderUnit;
use crate::{RestoreFilter, SegmentFate};

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
    replace(&unit, other, segment(9), Generations::new(Some(0), 1), 20).expect("replaced");

    let is_some = |slot: u16| ![0, 1, 2, 7, 19].contains(&slot);
    let expected: Vec<bool> = (0..20).map(is_some).collect();
    assert_eq!(is_there(&unit, some, 0..20), expected);
    assert_eq!(unit.list().expect("listed"), [some, other, kept]);
    assert_eq!(unit.stat_segment(some).expect("there").freed, 5);
    assert_eq!(unit.scrub(some).expect("scrubbed"), []);
    settle(&unit);
    let freed = unit.undelete_usage().expect("known");
    assert_eq!((freed.segments, freed.evicted_bytes), (3, 0));
    // The slots of two, the slots and the tables of three.
    assert!(freed.bytes > (17 + 60) * 4096, "{freed:?}");

    simulation.kill();
    let world = simulation.world();
    let unit = with_undelete(&world);
    let dry = unit.restore(&all(), true).expect("reported");
    assert_eq!(is_there(&unit, some, 0..20), expected, "nothing was done");
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(restored, dry);
    assert_eq!(of(&restored, some), (SegmentFate::Present, 5, 0));
    assert_eq!(of(&restored, whole), (SegmentFate::Restored, 2, 0));
    assert_eq!(of(&restored, closed), (SegmentFate::Restored, 10, 0));
    assert_eq!(of(&restored, other), (SegmentFate::Occupied, 0, 0));
    assert_eq!(restored.reclaimed_until, None);
    for id in [some, whole, closed, kept] {
        read(&unit, id, SLOT_BYTES, 0, 20).expect("as it was put");
        assert_eq!(unit.scrub(id).expect("scrubbed"), []);
    }
    assert_eq!(unit.stat_segment(other).expect("there").generation, 1);
    // Only what was asked for by its name takes the place of another.
    let replaced = replaced();
    for time in 0..2 {
        let restored = unit.restore(&replaced, false).expect("restored");
        match time {
            0 => assert_eq!(of(&restored, other), (SegmentFate::Reverted, 0, 0)),
            _ => assert_eq!(restored.segments, []),
        }
        assert_eq!(unit.stat_segment(other).expect("there").generation, 0);
        read(&unit, other, SLOT_BYTES, 0, 20).expect("as it was put");
    }
    // The daemon goes on with it.
    simulation.kill();
    let unit = with_undelete(&simulation.world());
    free(&unit, some, [3]);
    settle(&unit);
    read(&unit, some, SLOT_BYTES, 4, 16).expect("as it was put");
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
    let meant = RestoreFilter {
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
    let meant = RestoreFilter {
        segment: None,
        ..meant
    };
    let restored = unit.restore(&meant, false).expect("restored");
    assert_eq!(of(&restored, other), (SegmentFate::Lost, 0, 1));
    let meant = RestoreFilter {
        until: Millis(i64::MAX),
        ..meant
    };
    unit.restore(&meant, false).expect("restored");
    assert_eq!(is_there(&unit, one, 0..4), [false, true, true, true]);
    read(&unit, other, SLOT_BYTES, 0, 8).expect("as it was put");
}

#[test]
fn what_has_rotted_since_is_gone_and_said_to_be() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    free(&unit, id, [1, 2, 5]);
    let path = unit.segments.root.path.join(unit.segments.root.file(id));
    let offset = 53_248 + 2 * u64::from(SLOT_BYTES) + 9;
    simulation.disk.flip_bit(&path, offset, 3).expect("rots");
    let restored = unit.restore(&all(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::Present, 2, 1));
    let expected = [true, true, false, true, true, true];
    assert_eq!(is_there(&unit, id, 0..6), expected);
    // Its tag comes back with it.
    let run = SlotRun {
        segment: id,
        first: Slot(5),
        count: 1,
    };
    let (mut tags, mut data) = ([[0; 16]], vec![0; SLOT_BYTES as usize]);
    unit.read(Read {
        run,
        slot_bytes: SLOT_BYTES,
        tags: &mut tags,
        data: &mut data,
    })
    .expect("read");
    assert_eq!(tags, [tag_of(id, 5)]);
}

/// What a restore took the place of was held, and no words brought it back.
#[test]
fn a_restore_that_put_the_wrong_one_back_can_be_undone_by_its_time() {
    let minute = Duration::from_secs(60);
    let mut simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world);
    let id = put_synced(&unit, 1, 8);
    let mut times = Vec::new();
    for generation in 1..4 {
        simulation.clock.advance(minute);
        times.push(world.clock.wall());
        simulation.clock.advance(minute);
        let like = segment(10 + u64::from(generation));
        replace(
            &unit,
            id,
            like,
            Generations::new(Some(generation - 1), generation),
            8,
        )
        .expect("replaced");
    }
    let generation = |unit: &FolderUnit| unit.stat_segment(id).expect("there").generation;
    let since = |since| RestoreFilter {
        since,
        ..replaced()
    };
    simulation.clock.advance(minute);
    times.push(world.clock.wall());
    // Since when, and what was there then. The last: since the first one was taken away
    // by the third restore.
    let words = [(0, 0), (0, 0), (3, 3), (3, 3), (1, 1), (2, 2), (6, 0)];
    for (at, expected) in words {
        simulation.clock.advance(minute);
        times.push(simulation.world().clock.wall());
        simulation.kill();
        let unit = with_undelete(&simulation.world());
        let restored = unit.restore(&since(times[at]), false).expect("restored");
        let whole = restored.segments.first().map(|one| one.whole);
        assert!(matches!(whole, None | Some(SegmentFate::Reverted)));
        assert_eq!(generation(&unit), expected, "since {at}");
        assert_eq!(
            unit.undelete_usage().expect("known").segments,
            3,
            "none is lost"
        );
    }
}
