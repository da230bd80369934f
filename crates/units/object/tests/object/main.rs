//! Object units as their users see them: by the suite that judges all units,
//! with stores that fail, damaged objects, several hosts, and over HTTP.

mod claims;
mod damage;
mod failing;
mod help;
mod later;
mod model;
mod s3;
mod sharing;

use std::sync::Arc;
use std::time::Duration;

use base::LineageTag;
use object_store::path::Path;
use testkit::units::conformance;
use unit::{Put, Read, SlotRun, Unit as _, UnitError};
use unit_object::{Location, ObjectUnit};

use help::{Site, local, memory};

#[test]
fn memory_is_a_unit_like_any_other() {
    conformance::run(&|| Arc::new(Site::new(memory()).unit()));
}

/// It replaces nothing on condition: what is done then is the next best.
#[test]
fn a_store_that_knows_no_conditions_is_a_unit_like_any_other() {
    conformance::run(&|| {
        let (folder, store) = local();
        let unit = Site::new(store).unit();
        // The folder is kept for as long as this process lives.
        std::mem::forget(folder);
        Arc::new(unit)
    });
}

#[test]
fn large_segments_go_in_parts() {
    let site = Site::new(memory());
    let unit = site.open().with_segment_data_bytes(64 << 20);
    let unit = unit.created().expect("made");
    let segment = help::segment(1);
    let (slot_bytes, count) = (1 << 20, 20);
    help::put_slots(&unit, segment, slot_bytes, count).expect("put");
    assert_eq!(site.store.parts(), 3, "20 MiB in parts of 8");
    let again = help::put_slots(&unit, segment, slot_bytes, count);
    assert!(again.is_ok(), "the same once more: {again:?}");
    let other = help::put_slots(&unit, segment, slot_bytes, count - 1);
    assert!(
        matches!(other, Err(UnitError::Misplaced { .. })),
        "{other:?}"
    );
    help::read_slots(&unit, segment, slot_bytes, 0, count).expect("read");
    assert_eq!(unit.scrub(segment).expect("scrubbed"), []);
    let small = site.open();
    let too_long = help::put_slots(&small, help::segment(2), slot_bytes, count);
    assert!(
        matches!(too_long, Err(UnitError::Misplaced { .. })),
        "{too_long:?}"
    );
}

#[test]
fn a_read_of_a_known_segment_is_one_request_of_no_more_than_the_run() {
    let site = Site::new(memory());
    let unit = site.unit();
    help::put_slots(&unit, help::segment(1), 4096, 64).expect("put");
    site.store.forget_requests();
    help::read_slots(&unit, help::segment(1), 4096, 8, 16).expect("read");
    assert_eq!(
        site.store.requests(),
        [format!("get segments/000000001-001 {}", 16 * 4120)]
    );
    site.store.forget_requests();
    unit.sync(&[help::segment(1)]).expect("synced");
    assert_eq!(site.store.requests(), [""; 0]);
    // Another process: the head, what is free, and then the run.
    let other = site.open();
    help::read_slots(&other, help::segment(1), 4096, 8, 16).expect("read");
    assert_eq!(site.store.requests().len(), 3);
    assert_eq!(other.stat().expect("counted").segments, 1);
}

#[test]
fn a_put_is_one_request_once_the_marker_was_looked_at() {
    let site = Site::new(memory());
    let unit = site.unit();
    help::put_slots(&unit, help::segment(1), 4096, 64).expect("put");
    site.store.forget_requests();
    help::put_slots(&unit, help::segment(2), 4096, 64).expect("put");
    assert_eq!(site.store.requests(), ["put segments/000000002-002"]);
    site.store.forget_requests();
    site.simulation.clock.advance(Duration::from_secs(6));
    help::put_slots(&unit, help::segment(3), 4096, 64).expect("put");
    assert_eq!(site.store.requests().len(), 2, "the marker again");
}

#[test]
fn a_segment_is_rewritten_when_half_of_it_is_dead() {
    let site = Site::new(memory());
    let unit = site.unit();
    let segment = help::segment(1);
    unit.put(Put {
        lineage_tag: LineageTag(77),
        segment,
        slot_bytes: 4096,
        first: base::Slot(0),
        tags: &help::tags(segment, 64),
        data: &help::data(segment, 4096, 64),
    })
    .expect("put");
    let whole = site.store.length("segments/000000001-001");
    help::free(&unit, segment, 0..31).expect("freed");
    while unit.reclaim().expect("settled") {}
    assert_eq!(
        site.store.length("segments/000000001-001"),
        whole,
        "31 of 64 are dead"
    );
    let other = site.open();
    help::read_slots(&other, segment, 4096, 40, 10).expect("read");
    help::free(&unit, segment, [50]).expect("freed");
    while unit.reclaim().expect("settled") {}
    assert_eq!(
        site.store.length("segments/000000001-001"),
        whole - 32 * 4120
    );
    assert_eq!(unit.stat().expect("counted").bytes, whole - 32 * 4120);
    for reader in [&unit, &other, &site.open()] {
        for slot in 0..64 {
            let found = help::read_slots(reader, segment, 4096, slot, 1);
            if slot < 31 || slot == 50 {
                assert!(
                    matches!(found, Err(UnitError::NoSlot { .. })),
                    "{slot}: {found:?}"
                );
            } else {
                found.expect("not freed");
            }
        }
        let stat = reader.stat_segment(segment).expect("there");
        assert_eq!((stat.slots, stat.freed), (64, 32));
        assert_eq!(
            reader.lineage_tag_of(segment).expect("there"),
            LineageTag(77)
        );
        assert_eq!(reader.scrub(segment).expect("scrubbed"), []);
    }
    // And once more, of what is left, by a process that was not there before.
    let next = site.open();
    help::free(&next, segment, 31..47).expect("freed");
    drop(next);
    let walks = site.open();
    while walks.reclaim().expect("settled") {}
    assert_eq!(
        site.store.length("segments/000000001-001"),
        whole - 48 * 4120
    );
    help::read_slots(&other, segment, 4096, 51, 13).expect("read");
    help::free(&walks, segment, 47..64).expect("freed");
    assert_eq!(
        site.store.names(),
        ["scree-unit.toml"],
        "nothing is left of it"
    );
    let run = SlotRun {
        segment,
        first: base::Slot(51),
        count: 1,
    };
    let gone = other.read(Read {
        run,
        slot_bytes: 4096,
        tags: &mut [[0; 16]],
        data: &mut [0; 4096],
    });
    assert!(matches!(gone, Err(UnitError::NoSegment { .. })), "{gone:?}");
}

#[test]
fn serials_are_listed_from_where_they_begin() {
    let site = Site::new(memory());
    let unit = site.unit();
    for number in [1, 15, 16, 17, 4096, 1 << 35] {
        help::put_slots(&unit, help::segment(number), 512, 1).expect("put");
    }
    site.store.put_raw("segments/notes.txt", b"somebody else's");
    site.store.put_raw("segments/000000010-002.part", b"");
    for (serials, expected) in [
        (0..1 << 36, vec![1, 15, 16, 17, 4096, 1 << 35]),
        (16..17, vec![16]),
        (16..4097, vec![16, 17, 4096]),
        (18..19, vec![]),
        (5..5, vec![]),
    ] {
        let mut expected: Vec<_> = expected.into_iter().map(help::segment).collect();
        expected.sort_unstable();
        assert_eq!(
            unit.list_serials(serials.clone()).expect("listed"),
            expected,
            "{serials:?}"
        );
    }
}

#[test]
fn a_store_that_does_not_answer_is_away_in_time() {
    let location = Location::on(
        Arc::new(help::Unresponsive),
        Path::from("unit"),
        "test://unresponsive".to_owned(),
    )
    .with_answer_timeout(Duration::from_millis(50));
    let site = Site::new(memory());
    let world = site.simulation.world();
    let unit = ObjectUnit::open(
        &world,
        help::runtime(),
        &location,
        help::CLUSTER,
        help::UNIT,
    );
    for unresponsive in [
        unit.probe(),
        unit.list().map(drop),
        unit.delete(help::segment(1)),
        help::put_slots(&unit, help::segment(1), 4096, 1),
        help::read_slots(&unit, help::segment(1), 4096, 0, 1),
        help::free(&unit, help::segment(1), [0]),
    ] {
        assert!(
            matches!(unresponsive, Err(UnitError::Unavailable { .. })),
            "{unresponsive:?}"
        );
    }
}
