//! The logs of what was freed, where they fail.

use std::path::Path;

use world::OpenMode;
use world::simulated::{Fault, Simulation};

use super::{all, free, keeping, made, of, path_of, put_synced, settle};
use crate::Unit as _;
use crate::conformance::{SLOT_BYTES, is_absent, read, replace};
use crate::folder::SegmentFate;
use crate::folder::tests::PATH;

#[test]
fn what_a_log_has_lost_is_found_after_the_next_start() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut simulation = Simulation::new(seed);
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
        let logged = unit.restore(&all(), true).expect("told");
        lost += 3 - of(&logged, id).1;
        settle(&unit);
        let restored = unit.restore(&all(), false).expect("restored");
        assert_eq!(of(&restored, id), (SegmentFate::There, 3, 0), "seed {seed}");
        read(&unit, id, SLOT_BYTES, 0, 8).expect("as it was put");
    }
    assert!((1..20).contains(&lost), "{lost}");
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

/// Giving back the room of other slots of the segment, which nobody keeps, took it off
/// the list of what is to be logged.
#[test]
fn what_cannot_be_logged_is_logged_later_though_other_slots_are_given_back() {
    let simulation = Simulation::new(3);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    // The walk of the start is through.
    settle(&unit);
    free(&unit, id, [0, 1, 2]);
    // Of what is free there the one in its place has no content.
    replace(&unit, id, id, (Some(0), 1), 8).expect("replaced");
    let freed = Path::new(PATH).join("freed");
    simulation.disk.inject(&freed, Fault::Broken);
    free(&unit, id, [5]);
    let file = simulation
        .world()
        .disk
        .open(&path_of(&unit, id), OpenMode::Read);
    let allocated = file.expect("there").allocated().expect("known");
    // A page of the header, one of the table, and five slots.
    assert_eq!(allocated, 7 * 4096, "the room of three is given back");
    simulation.disk.heal(&freed);
    settle(&unit);
    let restored = unit.restore(&all(), true).expect("told");
    assert_eq!(of(&restored, id).1, 1);
}
