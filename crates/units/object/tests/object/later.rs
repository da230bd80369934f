//! Asynchronous reads.

use std::sync::{Arc, mpsc};

use base::Slot;
use object_store::path::Path;
use unit::{ReadDone, SlotRun, Unit, UnitError};
use unit_object::{Location, ObjectUnit};
use world::World;

use crate::help::{
    CLUSTER, Site, UNIT, Unresponsive, data, free, memory, put_slots, runtime, segment, tags,
};

fn run(first: u16, count: u16) -> SlotRun {
    SlotRun {
        segment: segment(1),
        first: Slot(first),
        count,
    }
}

#[test]
fn what_is_read_without_waiting_is_what_was_put_and_told_once() {
    let site = Site::new(memory());
    let unit = site.unit();
    put_slots(&unit, segment(1), 4096, 20).expect("put");
    free(&unit, segment(1), [7]).expect("freed");
    // As another process, which knows nothing yet.
    for unit in [&unit, &site.open()] {
        let (sender, results) = mpsc::channel();
        for (first, count) in [(2, 5), (6, 2), (0, 1)] {
            let sender = sender.clone();
            let done: ReadDone = Box::new(move |read| {
                let read = read.map(|slots| {
                    let slots = slots
                        .iter(4096)
                        .map(|(tag, content)| (*tag, content.to_vec()));
                    slots.unzip::<_, _, Vec<_>, Vec<_>>()
                });
                sender.send((first, read)).expect("the test listens");
            });
            assert!(unit.read_async(run(first, count), 4096, done));
        }
        drop(sender);
        let mut results: Vec<_> = results.iter().collect();
        results.sort_by_key(|(first, _)| *first);
        assert_eq!(results.len(), 3);
        let (all_tags, all) = (tags(segment(1), 20), data(segment(1), 4096, 20));
        for ((_, read), slots) in results.iter().zip([0..1, 2..7]) {
            let (tags, data) = read.as_ref().expect("read");
            assert_eq!(tags[..], all_tags[slots.clone()]);
            assert!(data.concat() == all[slots.start * 4096..slots.end * 4096]);
        }
        let gone = &results[2].1;
        assert!(
            matches!(gone, Err(UnitError::NoSlot { slot: Slot(7), .. })),
            "{gone:?}"
        );
    }
}

/// A store that does not answer would otherwise take all memory.
#[test]
fn no_more_readings_are_begun_than_there_is_memory_for() {
    let location = Location::on(
        Arc::new(Unresponsive),
        Path::from("a"),
        "test://unresponsive".to_owned(),
    );
    let unit = ObjectUnit::open(&World::real(1), runtime(), &location, CLUSTER, UNIT);
    let begun = (0..1000)
        .take_while(|_| unit.read_async(run(0, 1), 4096, Box::new(|_| {})))
        .count();
    assert_eq!(begun, 64);
}
