//! What is claimed of a unit in a pool, without a cluster. `make test-engines` runs the
//! conformance suite on a real one (`tests/rados`).

use std::sync::Arc;

use base::{ClusterId, CopysetId, DatabaseId, LineageTag, SegmentId, Slot, UnitId};
use unit::{Owner, Put, Read, Replacement, SlotRun, Unit, UnitError};
use world::World;

use crate::memory::Memory;
use crate::pool::Errno;
use crate::{Location, RadosUnit};

const CLUSTER: ClusterId = ClusterId::from_u128(1);
const UNIT: UnitId = UnitId::from_u128(2);

fn location() -> Location {
    Location::with_args("rados://pool/space", "").expect("a URL")
}

fn open(memory: &Memory) -> RadosUnit {
    RadosUnit::on(
        &World::real(2),
        &location(),
        memory.connect(),
        CLUSTER,
        UNIT,
    )
}

fn made(memory: &Memory) -> RadosUnit {
    open(memory).created().expect("made")
}

fn segment(serial: u64) -> SegmentId {
    SegmentId::new(CopysetId::new(1).expect("few"), serial).expect("few")
}

fn put(unit: &RadosUnit, serial: u64, first: u16, count: usize) -> Result<(), UnitError> {
    let tags = vec![[7; 16]; count];
    unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment: segment(serial),
        slot_bytes: 512,
        first: Slot(first),
        tags: &tags,
        data: &vec![9; count * 512],
    })
}

fn read(unit: &RadosUnit, serial: u64, first: u16, count: u16) -> Result<(), UnitError> {
    let run = SlotRun {
        segment: segment(serial),
        first: Slot(first),
        count,
    };
    let (mut tags, mut data) = (
        vec![[0; 16]; count.into()],
        vec![0; usize::from(count) * 512],
    );
    unit.read(Read {
        run,
        slot_bytes: 512,
        tags: &mut tags,
        data: &mut data,
    })
}

#[test]
fn a_pool_is_a_unit() {
    testkit::units::conformance::run(&|| Arc::new(made(&Memory::default())));
}

#[test]
fn a_host_without_librados_or_without_a_configuration_is_told_what_to_do() {
    let location = Location::with_args("rados://pool", "--conf /nowhere/ceph.conf").expect("a URL");
    let unit = RadosUnit::open(&World::real(1), &location, CLUSTER, UNIT);
    let error = unit.probe().expect_err("there is no cluster");
    assert!(matches!(error, UnitError::Missing { .. }), "{error:?}");
    let error = error.to_string();
    let says = |word| error.contains(word);
    assert!(
        says("install the package librados2") || says("CEPH_CONF"),
        "{error}"
    );
}

#[test]
fn asynchronous_reads_get_the_same_results_as_synchronous_ones() {
    let memory = Memory::default();
    let unit = made(&memory);
    put(&unit, 1, 0, 4).expect("put");
    unit.free(segment(1), &[Slot(2)], false).expect("freed");
    let read = |serial, first, count| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let run = SlotRun {
            segment: segment(serial),
            first: Slot(first),
            count,
        };
        let done = Box::new(move |read: Result<unit::ReadSlots<'_>, UnitError>| {
            let answer = read.map(|slots| {
                let slots = slots
                    .iter(512)
                    .map(|(tag, content)| (*tag, content.to_vec()));
                slots.unzip::<_, _, Vec<_>, Vec<_>>()
            });
            sender.send(answer).expect("the caller waits");
        });
        assert!(unit.read_async(run, 512, done));
        receiver.recv().expect("answered")
    };
    let (tags, data) = read(1, 0, 2).expect("there");
    assert_eq!((tags, data), (vec![[7; 16]; 2], vec![vec![9; 512]; 2]));
    assert!(matches!(
        read(1, 1, 2),
        Err(UnitError::NoSlot { slot: Slot(2), .. })
    ));
    assert!(matches!(
        read(1, 3, 2),
        Err(UnitError::NoSlot { slot: Slot(4), .. })
    ));
    assert!(matches!(read(2, 0, 1), Err(UnitError::NoSegment { .. })));
}

#[test]
fn asynchronous_reads_beyond_the_limit_are_not_started() {
    let memory = Memory::default();
    let unit = made(&memory);
    memory.0.lock().is_unresponsive = true;
    let run = SlotRun {
        segment: segment(1),
        first: Slot(0),
        count: 256,
    };
    let begun = (0..1000).take_while(|_| unit.read_async(run, 4096, Box::new(|_| ())));
    assert_eq!(begun.count(), (32 << 20) / (256 * 4120));
}

#[test]
fn a_namespace_that_is_no_unit_is_not_written_to() {
    let memory = Memory::default();
    let unit = open(&memory);
    for missing in [
        unit.probe(),
        unit.list().map(drop),
        unit.stat().map(drop),
        unit.read_note().map(drop),
        unit.write_note(&[0; 512]),
        put(&unit, 1, 0, 1),
        read(&unit, 1, 0, 1),
        unit.free(segment(1), &[Slot(0)], false),
        unit.delete(segment(1)),
        unit.scrub(segment(1)).map(drop),
    ] {
        assert!(
            matches!(missing, Err(UnitError::Missing { .. })),
            "{missing:?}"
        );
    }
    assert!(memory.0.lock().objects.is_empty(), "nothing was written");
    let picture = crate::memory::Object::default();
    memory
        .0
        .lock()
        .objects
        .insert("picture".to_owned(), picture);
    let foreign = open(&memory).created().map(drop);
    assert!(
        matches!(&foreign, Err(UnitError::Foreign { reason, .. }) if reason.contains("picture")),
        "{foreign:?}"
    );
}

#[test]
fn a_unit_is_changed_by_its_owner_only() {
    let memory = Memory::default();
    let owner = |database, generation| Owner {
        database: DatabaseId::from_u128(database),
        generation,
        place: format!("place {database}"),
    };
    let as_owner = |owner, takes_over| open(&memory).with_owner(owner, takes_over);
    made(&memory);
    let first = as_owner(owner(1, 5), false);
    assert!(put(&first, 1, 0, 1).is_err(), "not claimed");
    first.probe().expect("claimed");
    put(&first, 1, 0, 4).expect("its own");
    let held = |result: Result<(), UnitError>| match result {
        Err(UnitError::Held { holder, .. }) => holder.place,
        other => panic!("{other:?}"),
    };
    let second = as_owner(owner(2, 5), false);
    assert_eq!(held(second.probe()), "place 1");
    assert_eq!(held(put(&second, 2, 0, 1)), "place 1");
    assert_eq!(held(second.free(segment(1), &[Slot(0)], false)), "place 1");
    assert_eq!(held(second.delete(segment(1))), "place 1");
    assert_eq!(held(second.write_note(&[1; 512])), "place 1");
    read(&second, 1, 0, 4).expect("it may be read");
    assert_eq!(held(as_owner(owner(2, 4), true).probe()), "place 1");
    as_owner(owner(2, 5), true).probe().expect("taken over");
    assert_eq!(held(first.probe()), "place 2");
    as_owner(owner(3, 6), false).probe().expect("later");
    assert_eq!(held(as_owner(owner(2, 5), true).probe()), "place 3");
}

/// Of two that claim it at once, one has it.
#[test]
fn a_claim_takes_nothing_from_who_came_before() {
    let memory = Memory::default();
    made(&memory);
    let owner = |database| Owner {
        database: DatabaseId::from_u128(database),
        generation: 1,
        place: String::new(),
    };
    let (first, second) = (owner(1), owner(2));
    let marker = unit::Marker {
        cluster: CLUSTER,
        unit: UNIT,
        owner: Some(first),
    };
    memory.0.lock().before_change = Some(Box::new(move |state| {
        let object = state.objects.get_mut("scree-unit.toml").expect("made");
        object.content = marker.encode().into_bytes();
    }));
    let late = open(&memory).with_owner(second, false).probe();
    assert!(matches!(late, Err(UnitError::Held { .. })), "{late:?}");
}

#[test]
fn slots_that_two_hosts_free_at_once_are_both_freed() {
    let memory = Memory::default();
    let (one, other) = (made(&memory), made(&memory));
    put(&one, 1, 0, 8).expect("put");
    let between = memory.clone();
    memory.0.lock().before_change = Some(Box::new(move |state| {
        // As the other host's change leaves it.
        let scratch = Memory::default();
        scratch.0.lock().objects = state.objects.clone();
        let unit = open(&scratch);
        unit.free(segment(1), &[Slot(1)], false).expect("freed");
        state.objects = scratch.0.lock().objects.clone();
        drop(between);
    }));
    one.free(segment(1), &[Slot(5)], false).expect("freed");
    assert_eq!(other.stat_segment(segment(1)).expect("there").freed, 2);
    for slot in [1, 5] {
        assert!(matches!(
            read(&other, 1, slot, 1),
            Err(UnitError::NoSlot { .. })
        ));
    }
    read(&other, 1, 2, 3).expect("not freed");
}

#[test]
fn a_segment_that_somebody_appends_to_is_not_removed_with_the_slots_that_were_there() {
    let memory = Memory::default();
    let unit = made(&memory);
    put(&unit, 1, 0, 2).expect("put");
    memory.0.lock().before_change = Some(Box::new(|state| {
        let scratch = Memory::default();
        scratch.0.lock().objects = state.objects.clone();
        put(&open(&scratch), 1, 2, 1).expect("appended");
        state.objects = scratch.0.lock().objects.clone();
    }));
    unit.free(segment(1), &[Slot(0), Slot(1)], true)
        .expect("freed");
    read(&unit, 1, 2, 1).expect("appended meanwhile");
}

fn replace(
    unit: &RadosUnit,
    serial: u64,
    generations: (u16, u16),
    count: usize,
) -> Result<(), UnitError> {
    let by = Replacement {
        expected: Some(generations.0),
        generation: generations.1,
        lineage_tag: LineageTag::NONE,
        slot_bytes: 512,
        tags: &vec![[8; 16]; count],
        data: &vec![5; count * 512],
    };
    unit.replace(segment(serial), by)
}

/// As if another host did it before the next change.
fn meanwhile(memory: &Memory, act: impl FnOnce(&RadosUnit) + Send + 'static) {
    memory.0.lock().before_change = Some(Box::new(move |state| {
        let scratch = Memory::default();
        scratch.0.lock().objects = state.objects.clone();
        act(&open(&scratch));
        state.objects = scratch.0.lock().objects.clone();
    }));
}

#[test]
fn of_two_hosts_that_replace_at_once_one_does() {
    let memory = Memory::default();
    let unit = made(&memory);
    put(&unit, 1, 0, 8).expect("put");
    meanwhile(&memory, |other| {
        replace(other, 1, (0, 1), 4).expect("replaced");
    });
    let late = replace(&unit, 1, (0, 1), 6);
    assert!(
        matches!(late, Err(UnitError::Replaced { generation: 1, .. })),
        "{late:?}"
    );
    let stat = unit.stat_segment(segment(1)).expect("there");
    assert_eq!((stat.slots, stat.generation), (4, 1));
}

#[test]
fn what_is_freed_while_a_segment_is_replaced_is_free_in_the_new_one() {
    let memory = Memory::default();
    let unit = made(&memory);
    put(&unit, 1, 0, 8).expect("put");
    unit.free(segment(1), &[Slot(7)], false).expect("freed");
    meanwhile(&memory, |other| {
        other.free(segment(1), &[Slot(3)], false).expect("freed");
    });
    replace(&unit, 1, (0, 1), 8).expect("replaced");
    let stat = unit.stat_segment(segment(1)).expect("there");
    assert_eq!((stat.freed, stat.generation), (2, 1));
    read(&unit, 1, 0, 3).expect("new");
    read(&unit, 1, 4, 3).expect("new");
    assert!(matches!(
        read(&unit, 1, 3, 1),
        Err(UnitError::NoSlot { .. })
    ));
    assert!(matches!(
        read(&unit, 1, 7, 1),
        Err(UnitError::NoSlot { .. })
    ));
}

/// Its slots may lie elsewhere: what was to be freed in the old one is looked for in
/// the new one.
#[test]
fn slots_of_a_segment_that_is_replaced_meanwhile_are_freed_in_the_new_one() {
    let memory = Memory::default();
    let unit = made(&memory);
    put(&unit, 1, 0, 8).expect("put");
    meanwhile(&memory, |other| {
        replace(other, 1, (0, 1), 2).expect("replaced");
    });
    let freed = [Slot(1), Slot(5)];
    unit.free(segment(1), &freed, false).expect("freed");
    let stat = unit.stat_segment(segment(1)).expect("there");
    assert_eq!((stat.slots, stat.freed, stat.generation), (2, 1, 1));
    read(&unit, 1, 0, 1).expect("not freed");
}

#[test]
fn many_runs_are_freed_though_one_change_takes_few() {
    let unit = made(&Memory::default());
    put(&unit, 1, 0, 2000).expect("put");
    let odd: Vec<Slot> = (0..1000).map(|index| Slot(index * 2 + 1)).collect();
    unit.free(segment(1), &odd, false).expect("freed");
    assert_eq!(unit.stat_segment(segment(1)).expect("there").freed, 1000);
}

#[test]
fn a_scrub_finds_damage_and_a_segment_under_a_wrong_name() {
    let memory = Memory::default();
    let unit = made(&memory);
    put(&unit, 1, 0, 8).expect("put");
    let name = crate::format::name_of(segment(1));
    {
        let mut state = memory.0.lock();
        let object = state.objects.get_mut(&name).expect("there");
        object.content[536 * 3 + 100] ^= 1;
        let copy = object.clone();
        state
            .objects
            .insert(crate::format::name_of(segment(2)), copy);
    }
    assert_eq!(unit.scrub(segment(1)).expect("scrubbed"), [Slot(3)]);
    unit.free(segment(1), &[Slot(3)], false).expect("freed");
    assert_eq!(unit.scrub(segment(1)).expect("scrubbed"), []);
    let wrong = unit.stat_segment(segment(2)).map(drop);
    assert!(matches!(wrong, Err(UnitError::Damaged { .. })), "{wrong:?}");
}

#[test]
fn errors_of_the_cluster_are_converted() {
    let memory = Memory::default();
    let unit = made(&memory);
    memory.0.lock().refuses_changes = Some(Errno(libc::EDQUOT));
    let full = put(&unit, 1, 0, 1);
    assert!(matches!(full, Err(UnitError::Full { .. })), "{full:?}");
    memory.0.lock().refuses_changes = Some(Errno(libc::EPERM));
    let read_only = unit.probe();
    assert!(
        matches!(read_only, Err(UnitError::ReadOnly { .. })),
        "{read_only:?}"
    );
}

#[test]
fn a_blocklisted_client_connects_again() {
    let memory = Memory::default();
    let unit = made(&memory);
    memory.0.lock().refuses_readings = Some(Errno(libc::ESHUTDOWN));
    let blocked = unit.probe();
    assert!(
        matches!(blocked, Err(UnitError::NotAllowed { .. })),
        "{blocked:?}"
    );
    memory.0.lock().refuses_readings = None;
    unit.probe().expect("under another name");
    assert_eq!(memory.0.lock().connections, 2);
}

#[test]
fn a_cluster_that_does_not_answer_is_unavailable() {
    let memory = Memory::default();
    let unit = made(&memory);
    memory.0.lock().is_unresponsive = true;
    let away = unit.probe();
    assert!(
        matches!(away, Err(UnitError::Unavailable { .. })),
        "{away:?}"
    );
}
