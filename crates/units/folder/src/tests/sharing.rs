//! Several processes, and several threads, on one folder.

use std::sync::Arc;

use base::Slot;
use testkit::units::conformance::{SLOT_BYTES, is_absent, put, read, segment};
use unit::{Read, SlotRun, Unit};
use world::Disk;
use world::simulated::{SimulatedDisk, SimulatedRandom, Simulation};

use super::{PATH, create, open};
use crate::FolderUnit;

/// Units of two processes on one folder, and their disk.
fn two_processes() -> (FolderUnit, FolderUnit, Arc<SimulatedDisk>) {
    let simulation = Simulation::new(1);
    let one = create(&simulation.world());
    let mut world = simulation.world();
    world.disk = Arc::new(simulation.disk.spawn());
    let two = open(&world);
    (one, two, simulation.disk)
}

#[test]
fn a_process_sees_what_another_appends_frees_and_deletes() {
    let (one, two, _) = two_processes();
    let id = segment(1);
    put(&one, id, SLOT_BYTES, 0, 4).expect("put");
    for _ in 0..40 {
        read(&two, id, SLOT_BYTES, 0, 4).expect("in the end from memory");
    }
    put(&one, id, SLOT_BYTES, 4, 4).expect("appended");
    read(&two, id, SLOT_BYTES, 0, 8).expect("and read again from the file");
    two.free(id, &[Slot(1)], false).expect("freed");
    put(&one, id, SLOT_BYTES, 8, 1).expect("appended");
    read(&two, id, SLOT_BYTES, 2, 7).expect("neither undid the other");
    assert_eq!(one.stat_segment(id).expect("there").freed, 1);
    assert!(is_absent(&read(&open_again(&one), id, SLOT_BYTES, 1, 1)));
    one.delete(id).expect("deleted");
    assert!(is_absent(&read(&two, id, SLOT_BYTES, 0, 1)));
}

fn open_again(unit: &FolderUnit) -> FolderUnit {
    let mut world = Simulation::new(2).world();
    world.disk = Arc::clone(&unit.segments.root.outside);
    open(&world)
}

#[test]
fn a_deleted_segment_gives_its_room_back_though_others_have_it_open() {
    let (one, two, disk) = two_processes();
    let free_bytes = || {
        let space = disk.space(PATH.as_ref()).expect("there");
        space.free_bytes
    };
    disk.set_capacity(PATH.as_ref(), 64 << 20);
    let before = free_bytes();
    for number in 0..20 {
        put(&one, segment(number), SLOT_BYTES, 0, 64).expect("put");
        one.sync(&[segment(number)]).expect("synced");
        read(&one, segment(number), SLOT_BYTES, 0, 1).expect("open");
        read(&two, segment(number), SLOT_BYTES, 0, 1).expect("open");
    }
    for number in 0..20 {
        one.delete(segment(number)).expect("deleted");
    }
    assert_eq!(free_bytes(), before);
}

#[test]
fn counters_agree_with_a_fresh_count_after_anything() {
    for seed in 0..20 {
        let simulation = Simulation::new(seed);
        let unit = create(&simulation.world());
        let random = SimulatedRandom::new(seed);
        if seed % 2 == 0 {
            unit.stat().expect("counts from the first put on");
        }
        for number in 0..60 {
            let id = segment(random.below(number + 1));
            match random.below(6) {
                0 => unit.delete(id).expect("deleted"),
                1 | 2 => {
                    let slots = (0..20).filter(|_| random.below(2) == 0).map(Slot);
                    let slots: Vec<Slot> = slots.collect();
                    unit.free(id, &slots, random.below(2) == 0).expect("freed");
                }
                3 => {
                    unit.reclaim().expect("settled");
                }
                _ => {
                    put(&unit, segment(number + 100), SLOT_BYTES, 0, 20).expect("put");
                    let _ = put(&unit, id, SLOT_BYTES, 0, 20);
                }
            }
        }
        let kept = unit.stat().expect("there");
        let fresh = open(&simulation.world()).stat().expect("there");
        assert_eq!((kept.segments, kept.bytes), (fresh.segments, fresh.bytes));
        let files = simulation
            .disk
            .files_under(format!("{PATH}/segments").as_ref());
        assert_eq!(kept.segments, files.len() as u64);
    }
}

#[test]
fn a_count_learns_in_time_what_another_process_did() {
    let simulation = Simulation::new(1);
    let one = create(&simulation.world());
    let two = open(&simulation.world());
    assert_eq!(two.stat().expect("there").segments, 0);
    put(&one, segment(1), SLOT_BYTES, 0, 4).expect("put");
    simulation.clock.advance(std::time::Duration::from_secs(61));
    assert_eq!(two.stat().expect("there").segments, 1);
    one.delete(segment(1)).expect("deleted");
    simulation.clock.advance(std::time::Duration::from_secs(61));
    let stat = two.stat().expect("there");
    assert_eq!((stat.segments, stat.bytes), (0, 0));
}

#[test]
fn a_segment_that_was_read_is_read_without_waiting() {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world());
    put(&unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    let unit = open(&simulation.world());
    let mut tags = [[0; 16]];
    let mut data = vec![0; SLOT_BYTES as usize];
    let run = SlotRun {
        segment: segment(1),
        first: Slot(2),
        count: 1,
    };
    let mut read_now = || {
        unit.read_now(Read {
            run,
            slot_bytes: SLOT_BYTES,
            tags: &mut tags,
            data: &mut data,
        })
    };
    assert!(!read_now().expect("not open yet"));
    read(&unit, segment(1), SLOT_BYTES, 0, 1).expect("opened");
    assert!(read_now().expect("open"));
}

#[test]
fn a_table_in_memory_says_what_the_file_says() {
    let simulation = Simulation::new(1);
    put(&create(&simulation.world()), segment(1), SLOT_BYTES, 0, 100).expect("put");
    let unit = open(&simulation.world());
    unit.free(segment(1), &[Slot(50)], false).expect("freed");
    for _ in 0..100 {
        read(&unit, segment(1), SLOT_BYTES, 0, 50).expect("kept");
        read(&unit, segment(1), SLOT_BYTES, 51, 49).expect("kept");
        for (first, count) in [(50, 1), (10, 90), (99, 2), (u16::MAX, 3)] {
            assert!(is_absent(&read(
                &unit,
                segment(1),
                SLOT_BYTES,
                first,
                count
            )));
        }
    }
}
