//! Objects that are not as they were put.

use base::{ClusterId, Slot};
use unit::{Read, SlotRun, Unit as _, UnitError};

use crate::help::{CLUSTER, Site, free, live, memory, put_slots, read_slots, segment};

const SEGMENT: &str = "segments/000000001-001";
const FREED: &str = "freed/000000001-001";

/// A unit with a segment of 70 slots, of which the first 3 were freed.
fn site() -> Site {
    let site = Site::new(memory());
    let unit = site.unit();
    put_slots(&unit, segment(1), 512, 70).expect("put");
    free(&unit, segment(1), 0..3).expect("freed");
    site
}

#[test]
fn no_flipped_bit_of_a_head_is_believed() {
    let site = site();
    let sound = site.store.get_raw(SEGMENT);
    for at in 0..64 + 16 {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        site.store.put_raw(SEGMENT, &damaged);
        let unit = site.open();
        for refused in [
            read_slots(&unit, segment(1), 512, 5, 1),
            unit.stat_segment(segment(1)).map(drop),
            unit.scrub(segment(1)).map(drop),
            unit.lineage_tag_of(segment(1)).map(drop),
            unit.sync(&[segment(1)]),
            free(&unit, segment(1), [5]),
        ] {
            assert!(
                matches!(refused, Err(UnitError::Damaged { .. })),
                "byte {at}: {refused:?}"
            );
        }
        let again = put_slots(&unit, segment(1), 512, 70);
        assert!(again.is_err(), "byte {at}");
    }
    site.store.put_raw(SEGMENT, &sound);
    let unit = site.open();
    read_slots(&unit, segment(1), 512, 3, 67).expect("sound again");
    site.store.put_raw(SEGMENT, &sound[..64]);
    unit.delete(segment(1)).expect("it can be removed");
    assert_eq!(site.store.names(), ["scree-unit.toml"]);
}

#[test]
fn a_scrub_finds_every_slot_that_has_rotted() {
    let site = site();
    let sound = site.store.get_raw(SEGMENT);
    let record = |slot: usize| 64 + 16 + slot * (24 + 512);
    let mut damaged = sound.clone();
    // One of them was freed: of that nothing is expected.
    for (slot, at) in [(1, 30), (4, 0), (5, 16), (6, 23), (9, 24), (69, 535)] {
        damaged[record(slot) + at] ^= 4;
    }
    let (first, second) = (record(20), record(21));
    let other = damaged[first..first + 536].to_vec();
    damaged[second..second + 536].copy_from_slice(&other);
    site.store.put_raw(SEGMENT, &damaged);
    let unit = site.open();
    let bad = [4, 5, 6, 9, 21, 69].map(Slot);
    assert_eq!(unit.scrub(segment(1)).expect("scrubbed"), bad);
    read_slots(&unit, segment(1), 512, 10, 10).expect("the others");
    // What has rotted is what it was also after the segment is rewritten.
    free(&unit, segment(1), 30..66).expect("freed");
    while unit.reclaim().expect("settled") {}
    assert!(site.store.length(SEGMENT) < sound.len() as u64);
    assert_eq!(unit.scrub(segment(1)).expect("scrubbed"), bad);
    free(&unit, segment(1), [4, 5, 6, 9, 21, 69]).expect("freed");
    assert_eq!(unit.scrub(segment(1)).expect("scrubbed"), []);
}

#[test]
fn a_short_or_a_long_object_is_refused() {
    let site = site();
    let sound = site.store.get_raw(SEGMENT);
    let mut long = sound.clone();
    long.push(0);
    let lengths = [0, 1, 8, 63, 64, 70, 80, 81, 2000, sound.len() - 1];
    let mut objects: Vec<&[u8]> = lengths.iter().map(|length| &sound[..*length]).collect();
    objects.push(&long);
    for object in objects {
        site.store.put_raw(SEGMENT, object);
        let unit = site.open();
        for refused in [
            read_slots(&unit, segment(1), 512, 5, 1),
            unit.scrub(segment(1)).map(drop),
            free(&unit, segment(1), [5]),
        ] {
            let length = object.len();
            assert!(
                matches!(refused, Err(UnitError::Damaged { .. })),
                "{length}: {refused:?}"
            );
        }
    }
}

#[test]
fn an_object_of_another_segment_or_cluster_is_refused() {
    let site = site();
    let unit = site.unit();
    put_slots(&unit, segment(8), 512, 70).expect("put");
    site.store
        .put_raw(SEGMENT, &site.store.get_raw("segments/000000008-001"));
    let other = read_slots(&unit, segment(1), 512, 5, 1);
    assert!(matches!(other, Err(UnitError::Damaged { .. })), "{other:?}");
    let elsewhere = Site::new(memory());
    let world = elsewhere.simulation.world();
    let cluster = ClusterId::from_u128(9);
    let location = &elsewhere.location;
    let id = unit.id();
    let foreign =
        unit_object::ObjectUnit::create(&world, crate::help::runtime(), location, cluster, id);
    put_slots(&foreign.expect("made"), segment(1), 512, 70).expect("put");
    site.store
        .put_raw(SEGMENT, &elsewhere.store.get_raw(SEGMENT));
    let other = read_slots(&unit, segment(1), 512, 5, 1);
    assert!(
        matches!(&other, Err(UnitError::Damaged { reason, .. }) if reason.contains("belongs to")),
        "{other:?}"
    );
    assert_ne!(cluster, CLUSTER);
}

/// It is known no more what was freed: nothing is taken for free, and nothing is
/// freed beside it, which would make what was written down of no use for ever.
#[test]
fn damage_to_what_says_what_is_free_is_shown_and_what_is_there_can_be_read() {
    let site = site();
    let sound = site.store.get_raw(FREED);
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        site.store.put_raw(FREED, &damaged);
        let unit = site.open();
        read_slots(&unit, segment(1), 512, 3, 67).expect("not freed");
        for refused in [
            unit.stat_segment(segment(1)).map(drop),
            unit.scrub(segment(1)).map(drop),
            free(&unit, segment(1), [5]),
        ] {
            assert!(
                matches!(refused, Err(UnitError::Damaged { .. })),
                "byte {at}: {refused:?}"
            );
        }
        while unit.reclaim().expect("goes on") {}
    }
    site.store.put_raw(FREED, &vec![0; 1 << 20]);
    assert!(site.open().stat_segment(segment(1)).is_err());
    let unit = site.open();
    unit.delete(segment(1)).expect("deleted");
    assert_eq!(site.store.names(), ["scree-unit.toml"]);
}

#[test]
fn a_note_of_another_length_is_none() {
    let site = site();
    let unit = site.open();
    unit.write_note(&[7; 512]).expect("kept");
    site.store.put_raw("leases", &[7; 511]);
    assert_eq!(unit.read_note().expect("answers"), None);
    site.store.put_raw("leases", &[7; 513]);
    assert!(unit.read_note().is_err() || unit.read_note().expect("answers").is_none());
}

/// It was put as it is by this process, whose memory of it is too old.
#[test]
fn a_segment_that_was_replaced_meanwhile_is_loaded_again() {
    let site = Site::new(memory());
    let unit = site.unit();
    put_slots(&unit, segment(1), 4096, 8).expect("put");
    assert_eq!(live(&unit, segment(1), 0..9), Vec::from_iter(0..8));
    let other = site.open();
    free(&other, segment(1), 0..4).expect("freed");
    while other.reclaim().expect("settled") {}
    assert_eq!(live(&unit, segment(1), 0..9), Vec::from_iter(4..8));
    // By another process's segment with larger slots: never the wrong bytes.
    let elsewhere = Site::new(memory());
    put_slots(&elsewhere.unit(), segment(1), 8192, 8).expect("put");
    site.store
        .put_raw(SEGMENT, &elsewhere.store.get_raw(SEGMENT));
    let run = SlotRun {
        segment: segment(1),
        first: Slot(5),
        count: 1,
    };
    let wrong = unit.read(Read {
        run,
        slot_bytes: 4096,
        tags: &mut [[0; 16]],
        data: &mut [0; 4096],
    });
    assert!(
        matches!(
            wrong,
            Err(UnitError::Misplaced {
                slot_bytes: 8192,
                ..
            })
        ),
        "{wrong:?}"
    );
}
