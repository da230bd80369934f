//! What is given back first, and how much of the time that takes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use testkit::units::conformance::{SLOT_BYTES, is_absent, put, read, segment};
use unit::Unit as _;
use world::simulated::{Fault, Simulation};
use world::{Clock, Millis};

use super::{DAY, all, free, freed_files, made, of, put_synced, run_for, with_undelete};
use crate::tests::PATH;
use crate::{SegmentFate, UndeletePolicy};

/// Lets the clock follow the disk.
struct FollowingClock(Simulation);

impl Clock for FollowingClock {
    fn monotonic(&self) -> Duration {
        self.0.clock.advance(self.0.disk.take_waited());
        self.0.clock.monotonic()
    }

    fn wall(&self) -> Millis {
        self.0.clock.wall()
    }
}

/// On a slow disk what was kept took all of the time, and the walk never began.
#[test]
fn the_walk_has_its_share_of_the_time_and_whole_segments_do_not_wait_for_slots() {
    let clock = Arc::new(FollowingClock(Simulation::new(1)));
    let simulation = &clock.0;
    let mut world = simulation.world();
    world.clock = Arc::clone(&clock) as _;
    let unit = made(&world);
    for number in 0..60 {
        let id = put_synced(&unit, number, 8);
        free(&unit, id, [0, 2, 4]);
    }
    for number in 100..110 {
        let id = put_synced(&unit, number, 8);
        unit.delete(id).expect("deleted");
    }
    simulation.clock.advance(DAY * 2);
    let slow = Fault::Slow(Duration::from_millis(2));
    simulation.disk.inject(Path::new(PATH), slow);
    while unit.undelete_usage().expect("known").segments > 0 {
        assert!(unit.reclaim().expect("settled"), "there is more to do");
    }
    let kept = unit.undelete_usage().expect("known");
    assert!(kept.bytes > 0, "the slots are not through: {kept:?}");
    assert!(unit.punches.next_folder() != Some(0));
}

/// The segment that was set aside goes when its time is over, and a log that is older
/// only later: what that names was taken for the successor's, whose time it was not.
#[test]
fn what_an_older_log_names_is_not_its_successors_though_the_segment_is_gone() {
    let minutes = |count: u64| Duration::from_secs(count * 60);
    let mut simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let [id, other] = [1, 2].map(|number| put_synced(&unit, number, 8));
    free(&unit, id, [0]);
    run_for(&simulation, &unit, minutes(10));
    unit.delete(id).expect("deleted");
    put_synced(&unit, 1, 8);
    run_for(&simulation, &unit, minutes(40));
    free(&unit, other, [0]);
    run_for(&simulation, &unit, minutes(40));
    free(&unit, id, [0]);
    run_for(&simulation, &unit, DAY - minutes(70));
    assert_eq!(unit.undelete_usage().expect("known").segments, 0);
    assert_eq!(freed_files(&simulation, &id.to_string()).len(), 1);
    simulation.kill();
    let unit = with_undelete(&simulation.world());
    run_for(&simulation, &unit, minutes(50));
    let restored = unit.restore(&all(), true).expect("reported");
    assert_eq!(restored.segments.len(), 1, "the older log is gone");
    assert_eq!(of(&restored, id), (SegmentFate::Present, 1, 0));
    run_for(&simulation, &unit, minutes(30));
    assert_eq!(unit.undelete_usage().expect("known").bytes, 0);
    assert_eq!(freed_files(&simulation, &id.to_string()).len(), 0);
    assert!(is_absent(&read(&unit, id, SLOT_BYTES, 0, 1)));
}

/// Each put that found no room gave back as much as a segment takes, however many had
/// done so just then.
#[test]
fn puts_that_find_no_room_at_once_give_up_no_more_than_they_need() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world).with_segment_data_bytes(1 << 20);
    let unit = unit.with_undelete(UndeletePolicy {
        window: DAY,
        room_percent: 100,
    });
    for number in 0..64 {
        let id = put_synced(&unit, number, 128);
        unit.delete(id).expect("deleted");
    }
    let taken = super::room_taken(&world, &simulation);
    simulation.disk.set_capacity(Path::new(PATH), taken);
    // As many as make room at once.
    std::thread::scope(|scope| {
        for number in 0..16 {
            let unit = &unit;
            scope.spawn(move || {
                let done = put(unit, segment(1000 + number), SLOT_BYTES, 0, 1);
                done.expect("room was made");
            });
        }
    });
    let kept = unit.undelete_usage().expect("known");
    assert!(kept.evicted_bytes >= 1 << 20, "{kept:?}");
    assert!(kept.evicted_bytes < 4 << 20, "{kept:?}");
}

/// All logs were read before the first free after a start, while everybody waited.
#[test]
fn a_free_does_not_wait_until_all_logs_are_read() {
    let clock = Arc::new(FollowingClock(Simulation::new(1)));
    let mut world = clock.0.world();
    world.clock = Arc::clone(&clock) as _;
    let unit = made(&world);
    let id = put_synced(&unit, 1, 100);
    for slot in 0..40 {
        free(&unit, id, [2 * slot]);
        clock.0.clock.advance(Duration::from_secs(4000));
        while unit.reclaim().expect("settled") {}
    }
    let (before, bytes) = {
        let kept = unit.undelete_usage().expect("known");
        (freed_files(&clock.0, "log-").len(), kept.bytes)
    };
    assert!(before > 15, "{before}");
    let unit = with_undelete(&world);
    let logs = Path::new(PATH).join("freed");
    let slow = Fault::Slow(Duration::from_millis(20));
    clock.0.disk.inject(&logs, slow);
    let begun = clock.monotonic();
    free(&unit, id, [81]);
    let took = clock.monotonic() - begun;
    assert!(took < Duration::from_millis(300), "{took:?}");
    // They are read later, and known then.
    assert!(unit.reclaim().expect("settled"), "there is more to read");
    while unit.reclaim().expect("settled") {}
    let kept = unit.undelete_usage().expect("known");
    assert_eq!(kept.bytes, bytes + u64::from(SLOT_BYTES) + 44);
    let restored = unit.restore(&all(), true).expect("reported");
    assert_eq!(of(&restored, id).0, SegmentFate::Present);
}
