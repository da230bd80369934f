//! What every [`Unit`] must do, as one suite for all kinds.
//!
//! ```no_run
//! # fn empty_unit() -> std::sync::Arc<dyn unit::Unit> { unimplemented!() }
//! testkit::units::conformance::run(&|| empty_unit());
//! ```
//!
//! Each claim gets an empty unit of its own, and panics where the unit breaks
//! it. The suite knows the trait and nothing else.

use std::sync::Arc;

use base::{CopysetId, LineageTag, SegmentId, Slot};
use unit::{NOTE_BYTES, Put, Read, Replacement, SlotRun, Tag, Unit, UnitError};

/// A slot's size, unless a claim is about sizes.
pub const SLOT_BYTES: u32 = 4096;

/// Panics unless an empty unit keeps a claim.
type Check = fn(&dyn Unit);

/// Checks all claims, each on a unit that `empty` makes.
pub fn run(empty: &dyn Fn() -> Arc<dyn Unit>) {
    let claims: [(&str, Check); 16] = [
        ("what is put is read back", what_is_put_is_read_back),
        (
            "a segment grows at its end only",
            a_segment_grows_at_its_end_only,
        ),
        (
            "what was never put is not there",
            what_was_never_put_is_not_there,
        ),
        ("slots may have any size", slots_may_have_any_size),
        ("a run may be a whole segment", a_run_may_be_a_whole_segment),
        (
            "freed slots are gone and the others stay",
            freed_slots_are_gone,
        ),
        (
            "freeing twice is freeing once",
            freeing_twice_is_freeing_once,
        ),
        (
            "a closed segment goes with its last slot",
            a_closed_segment_goes_with_its_last_slot,
        ),
        ("a deleted segment is gone", a_deleted_segment_is_gone),
        ("segments are listed in order", segments_are_listed_in_order),
        ("room is taken and given back", room_is_taken_and_given_back),
        ("a sound segment has no rot", a_sound_segment_has_no_rot),
        ("the last note is kept", the_last_note_is_kept),
        (
            "a replaced segment is the new one as a whole",
            a_replaced_segment_is_the_new_one_as_a_whole,
        ),
        (
            "only the expected segment is replaced",
            only_the_expected_segment_is_replaced,
        ),
        (
            "what was freed is told slot by slot",
            freed_slots_are_reported,
        ),
    ];
    for (claim, check) in claims {
        let unit = empty();
        eprintln!("{}: {claim}", unit.url());
        unit.probe().expect("an empty unit is there");
        check(&*unit);
    }
    threads_do_not_disturb_each_other(&empty());
}

/// Segment `number` on some copyset.
pub fn segment(number: u64) -> SegmentId {
    let copyset = CopysetId::new((number % 7) as u16).expect("under 4096");
    SegmentId::new(copyset, number).expect("under 2^36")
}

/// The tag of a slot: never zero, and another for every slot and segment.
pub fn tag_of(segment: SegmentId, slot: u16) -> Tag {
    let mut tag = [0xa5; 16];
    tag[..8].copy_from_slice(&segment.bits().to_le_bytes());
    tag[8..10].copy_from_slice(&slot.to_le_bytes());
    tag
}

/// The content that tests put into a slot: another one for each slot.
pub fn content_of(segment: SegmentId, slot: u16, slot_bytes: u32) -> Vec<u8> {
    let seed = segment.bits() as u8 ^ (slot as u8).wrapping_mul(31);
    (0..slot_bytes)
        .map(|at| seed.wrapping_add((at / 7) as u8))
        .collect()
}

/// Puts slots whose tags and contents follow from their numbers.
pub fn put(
    unit: &dyn Unit,
    segment: SegmentId,
    slot_bytes: u32,
    first: u16,
    count: u16,
) -> Result<(), UnitError> {
    let slots = first..first + count;
    let tags: Vec<Tag> = slots.clone().map(|slot| tag_of(segment, slot)).collect();
    let contents = slots.map(|slot| content_of(segment, slot, slot_bytes));
    let data: Vec<u8> = contents.flatten().collect();
    unit.put(Put {
        lineage_tag: LineageTag::NONE,
        segment,
        slot_bytes,
        first: Slot(first),
        tags: &tags,
        data: &data,
    })
}

/// Reads slots in both ways, and panics if they are not what was put.
pub fn read(
    unit: &dyn Unit,
    segment: SegmentId,
    slot_bytes: u32,
    first: u16,
    count: u16,
) -> Result<(), UnitError> {
    let run = SlotRun {
        segment,
        first: Slot(first),
        count,
    };
    let mut tags = vec![[0; 16]; usize::from(count)];
    let mut data = vec![0; usize::from(count) * slot_bytes as usize];
    let check = |tags: &[Tag], data: &[u8]| {
        let contents = data.chunks_exact(slot_bytes as usize);
        for ((slot, tag), content) in (first..).zip(tags).zip(contents) {
            assert_eq!(*tag, tag_of(segment, slot), "{segment}/{slot}");
            let is_right = content == content_of(segment, slot, slot_bytes);
            assert!(is_right, "the content of {segment}/{slot}");
        }
    };
    unit.read(Read {
        run,
        slot_bytes,
        tags: &mut tags,
        data: &mut data,
    })?;
    check(&tags, &data);
    tags.fill([0; 16]);
    data.fill(0);
    if unit.read_now(Read {
        run,
        slot_bytes,
        tags: &mut tags,
        data: &mut data,
    })? {
        check(&tags, &data);
    }
    Ok(())
}

/// Whether the slot is not there, as opposed to any other error.
pub fn is_absent(result: &Result<(), UnitError>) -> bool {
    matches!(
        result,
        Err(UnitError::NoSlot { .. } | UnitError::NoSegment { .. })
    )
}

fn what_is_put_is_read_back(unit: &dyn Unit) {
    for number in 0..40 {
        put(unit, segment(number), SLOT_BYTES, 0, 9).expect("put");
    }
    let all: Vec<SegmentId> = (0..40).map(segment).collect();
    unit.sync(&all).expect("synced");
    unit.sync(&all).expect("synced twice");
    for id in all {
        read(unit, id, SLOT_BYTES, 0, 9).expect("all");
        for slot in 0..9 {
            read(unit, id, SLOT_BYTES, slot, 1).expect("one");
        }
        read(unit, id, SLOT_BYTES, 3, 4).expect("some");
        let stat = unit.stat_segment(id).expect("there");
        assert_eq!((stat.segment, stat.slots, stat.freed), (id, 9, 0));
        assert_eq!(stat.slot_bytes, SLOT_BYTES);
    }
}

fn a_segment_grows_at_its_end_only(unit: &dyn Unit) {
    let id = segment(1);
    put(unit, id, SLOT_BYTES, 0, 4).expect("put");
    let again = put(unit, id, SLOT_BYTES, 0, 8);
    assert!(
        matches!(again, Err(UnitError::Misplaced { .. })),
        "{again:?}"
    );
    if unit.can_append() {
        read(unit, id, SLOT_BYTES, 0, 4).expect("put before");
        put(unit, id, SLOT_BYTES, 4, 3).expect("appended");
        unit.sync(&[id]).expect("synced");
        put(unit, id, SLOT_BYTES, 7, 1).expect("appended after a sync");
        for (slot_bytes, first) in [(SLOT_BYTES, 9), (SLOT_BYTES, 7), (SLOT_BYTES * 2, 8)] {
            let misplaced = put(unit, id, slot_bytes, first, 1);
            assert!(
                matches!(
                    misplaced,
                    Err(UnitError::Misplaced {
                        slots: 8,
                        slot_bytes: SLOT_BYTES,
                        ..
                    })
                ),
                "{misplaced:?}"
            );
        }
        unit.sync(&[id]).expect("synced");
        read(unit, id, SLOT_BYTES, 0, 8).expect("whole");
    } else {
        let appended = put(unit, id, SLOT_BYTES, 4, 3);
        assert!(
            matches!(
                appended,
                Err(UnitError::Misplaced {
                    slots: 4,
                    slot_bytes: SLOT_BYTES,
                    ..
                })
            ),
            "{appended:?}"
        );
        read(unit, id, SLOT_BYTES, 0, 4).expect("put before");
    }
}

fn what_was_never_put_is_not_there(unit: &dyn Unit) {
    let absent = read(unit, segment(1), SLOT_BYTES, 0, 1);
    assert!(
        matches!(absent, Err(UnitError::NoSegment { .. })),
        "{absent:?}"
    );
    let absent = unit.stat_segment(segment(1)).map(|_| ());
    assert!(
        matches!(absent, Err(UnitError::NoSegment { .. })),
        "{absent:?}"
    );
    put(unit, segment(1), SLOT_BYTES, 0, 4).expect("put");
    for (first, count) in [(4, 1), (3, 2), (u16::MAX, 1)] {
        let absent = read(unit, segment(1), SLOT_BYTES, first, count);
        assert!(
            matches!(absent, Err(UnitError::NoSlot { .. })),
            "{absent:?}"
        );
    }
    let misplaced = read(unit, segment(1), SLOT_BYTES * 2, 0, 1);
    assert!(misplaced.is_err());
    assert!(put(unit, segment(2), SLOT_BYTES, 5, 1).is_err());
    assert!(is_absent(&read(unit, segment(2), SLOT_BYTES, 5, 1)));
}

fn slots_may_have_any_size(unit: &dyn Unit) {
    for (number, slot_bytes) in (1..).zip([512, 1536, 8192, 65_536]) {
        put(unit, segment(number), slot_bytes, 0, 3).expect("put");
        unit.sync(&[segment(number)]).expect("synced");
        unit.free(segment(number), &[Slot(1)], false)
            .expect("freed");
        while unit.reclaim().expect("settled") {}
        read(unit, segment(number), slot_bytes, 0, 1).expect("the one before");
        read(unit, segment(number), slot_bytes, 2, 1).expect("the one after");
    }
}

/// Longer than what one message to a daemon holds.
fn a_run_may_be_a_whole_segment(unit: &dyn Unit) {
    for (number, slot_bytes, count) in [(1, SLOT_BYTES, 1200), (2, 65_536, 75)] {
        let at_once = match unit.can_append() {
            true => ((1 << 20) / slot_bytes) as u16,
            false => count,
        };
        for first in (0..count).step_by(at_once.into()) {
            let count = at_once.min(count - first);
            put(unit, segment(number), slot_bytes, first, count).expect("put");
        }
        unit.sync(&[segment(number)]).expect("synced");
        read(unit, segment(number), slot_bytes, 0, count).expect("all");
        read(unit, segment(number), slot_bytes, 7, count - 7).expect("but for some");
    }
}

fn freed_slots_are_gone(unit: &dyn Unit) {
    let id = segment(1);
    put(unit, id, SLOT_BYTES, 0, 32).expect("put");
    unit.sync(&[id]).expect("synced");
    let mut freed = Vec::new();
    for slots in [vec![5], vec![31, 0], (8..20).collect(), vec![21, 23, 25]] {
        let slots: Vec<u16> = slots;
        let numbers: Vec<Slot> = slots.iter().map(|slot| Slot(*slot)).collect();
        unit.free(id, &numbers, false).expect("freed");
        freed.extend(slots);
        for slot in 0..32 {
            let found = read(unit, id, SLOT_BYTES, slot, 1);
            if freed.contains(&slot) {
                assert!(matches!(found, Err(UnitError::NoSlot { .. })), "{found:?}");
            } else {
                found.expect("not freed");
            }
        }
        let stat = unit.stat_segment(id).expect("there");
        assert_eq!((stat.slots, stat.freed as usize), (32, freed.len()));
        assert_eq!(unit.scrub(id).expect("scrubbed"), []);
    }
    let across = read(unit, id, SLOT_BYTES, 4, 3);
    assert!(
        matches!(across, Err(UnitError::NoSlot { .. })),
        "{across:?}"
    );
    while unit.reclaim().expect("settled") {}
    read(unit, id, SLOT_BYTES, 1, 4).expect("not freed");
    if unit.can_append() {
        put(unit, id, SLOT_BYTES, 32, 2).expect("freeing does not close it");
        read(unit, id, SLOT_BYTES, 32, 2).expect("appended");
    }
}

fn freeing_twice_is_freeing_once(unit: &dyn Unit) {
    let id = segment(1);
    unit.free(id, &[Slot(1)], false).expect("not there");
    unit.free(id, &[Slot(1)], true).expect("not there");
    put(unit, id, SLOT_BYTES, 0, 8).expect("put");
    for _ in 0..2 {
        let slots = [Slot(1), Slot(2), Slot(1), Slot(2000)];
        unit.free(id, &slots, false).expect("freed");
        assert_eq!(unit.stat_segment(id).expect("there").freed, 2);
    }
    read(unit, id, SLOT_BYTES, 3, 5).expect("not freed");
}

fn a_closed_segment_goes_with_its_last_slot(unit: &dyn Unit) {
    for id in [segment(1), segment(2)] {
        put(unit, id, SLOT_BYTES, 0, 3).expect("put");
        unit.sync(&[id]).expect("synced");
        unit.free(id, &[Slot(0), Slot(1)], true).expect("freed");
        read(unit, id, SLOT_BYTES, 2, 1).expect("the last one");
    }
    unit.free(segment(1), &[Slot(2)], true).expect("freed");
    assert_eq!(unit.list().expect("listed"), [segment(2)]);
    // All free, and said to be closed only afterwards; or known to be.
    unit.free(segment(2), &[Slot(2)], false).expect("freed");
    if unit.can_append() {
        assert_eq!(unit.list().expect("listed"), [segment(2)]);
    }
    unit.free(segment(2), &[], true).expect("closed");
    assert_eq!(unit.list().expect("listed"), []);
    unit.free(segment(2), &[Slot(2)], true)
        .expect("gone already");
}

fn a_deleted_segment_is_gone(unit: &dyn Unit) {
    for id in [segment(1), segment(2)] {
        put(unit, id, SLOT_BYTES, 0, 3).expect("put");
        read(unit, id, SLOT_BYTES, 0, 3).expect("there");
    }
    for _ in 0..2 {
        unit.delete(segment(1)).expect("deleted");
        assert!(is_absent(&read(unit, segment(1), SLOT_BYTES, 0, 1)));
        assert_eq!(unit.list().expect("listed"), [segment(2)]);
    }
    read(unit, segment(2), SLOT_BYTES, 0, 3).expect("another one");
}

fn segments_are_listed_in_order(unit: &dyn Unit) {
    assert_eq!(unit.list().expect("listed"), []);
    let numbers = [7, 1, 1 << 35, 300, 16, 20_000, 2];
    let mut ids: Vec<SegmentId> = numbers.into_iter().map(segment).collect();
    for id in &ids {
        put(unit, *id, SLOT_BYTES, 0, 1).expect("put");
    }
    ids.sort_unstable();
    assert_eq!(unit.list().expect("listed"), ids);
    for range in [0..1, 1..8, 7..8, 8..16, 300..301, 0..1 << 36] {
        let expected: Vec<SegmentId> = ids
            .iter()
            .copied()
            .filter(|id| range.contains(&id.serial()))
            .collect();
        assert_eq!(
            unit.list_serials(range.clone()).expect("listed"),
            expected,
            "{range:?}"
        );
    }
    assert_eq!(unit.list_serials(5..5).expect("listed"), []);
}

fn room_is_taken_and_given_back(unit: &dyn Unit) {
    let empty = unit.stat().expect("there");
    assert_eq!((empty.segments, empty.bytes), (0, 0));
    let data_bytes = u64::from(SLOT_BYTES) * 100;
    for number in 1..=3 {
        put(unit, segment(number), SLOT_BYTES, 0, 100).expect("put");
        unit.sync(&[segment(number)]).expect("synced");
        let stat = unit.stat().expect("there");
        assert_eq!(stat.segments, number);
        assert!(stat.bytes >= data_bytes * number, "{stat:?}");
        assert!(stat.bytes <= data_bytes * number * 2, "{stat:?}");
    }
    unit.delete(segment(1)).expect("deleted");
    let slots: Vec<Slot> = (0..100).map(Slot).collect();
    unit.free(segment(2), &slots, true).expect("freed");
    let stat = unit.stat().expect("there");
    assert_eq!(stat.segments, 1);
    assert!(stat.bytes <= data_bytes * 2, "{stat:?}");
    unit.delete(segment(3)).expect("deleted");
    let stat = unit.stat().expect("there");
    assert_eq!((stat.segments, stat.bytes), (0, 0));
}

/// The generations of a replacement: the expected one and the new one.
#[derive(Debug, Clone, Copy)]
pub struct Generations {
    /// The generation of the segment to replace; `None` if there must be none.
    pub expected: Option<u16>,
    /// The generation of the new segment.
    pub new: u16,
}

impl Generations {
    /// Both generations.
    #[must_use]
    pub fn new(expected: Option<u16>, new: u16) -> Self {
        Self { expected, new }
    }
}

/// Replaces segment `at` by the content that [`put`] puts into segment `like`.
pub fn replace(
    unit: &dyn Unit,
    at: SegmentId,
    like: SegmentId,
    generations: Generations,
    count: u16,
) -> Result<(), UnitError> {
    let tags: Vec<Tag> = (0..count).map(|slot| tag_of(like, slot)).collect();
    let contents = (0..count).map(|slot| content_of(like, slot, SLOT_BYTES));
    let data: Vec<u8> = contents.flatten().collect();
    let by = Replacement {
        expected: generations.expected,
        generation: generations.new,
        lineage_tag: LineageTag::NONE,
        slot_bytes: SLOT_BYTES,
        tags: &tags,
        data: &data,
    };
    unit.replace(at, by)
}

/// The slots that can be read, and the tag of each.
fn tags_there(unit: &dyn Unit, segment: SegmentId, count: u16) -> Vec<(u16, Tag)> {
    let read = |slot| {
        let run = SlotRun {
            segment,
            first: Slot(slot),
            count: 1,
        };
        let (mut tags, mut data) = ([[0; 16]], vec![0; SLOT_BYTES as usize]);
        match unit.read(Read {
            run,
            slot_bytes: SLOT_BYTES,
            tags: &mut tags,
            data: &mut data,
        }) {
            Ok(()) => Some((slot, tags[0])),
            Err(UnitError::NoSlot { .. }) => None,
            Err(why) => panic!("{why}"),
        }
    };
    (0..count).filter_map(read).collect()
}

fn a_replaced_segment_is_the_new_one_as_a_whole(unit: &dyn Unit) {
    // More than goes into one request to a daemon.
    let (id, like, count) = (segment(1), segment(2), 600);
    put(unit, id, SLOT_BYTES, 0, 500).expect("put");
    unit.sync(&[id]).expect("synced");
    read(unit, id, SLOT_BYTES, 0, 9).expect("there");
    unit.free(id, &[Slot(3), Slot(4)], false).expect("freed");
    assert_eq!(unit.stat_segment(id).expect("there").generation, 0);
    replace(unit, id, like, Generations::new(Some(0), 1), count).expect("replaced");
    let live: Vec<(u16, Tag)> = (0..count)
        .filter(|slot| ![3, 4].contains(slot))
        .map(|slot| (slot, tag_of(like, slot)))
        .collect();
    assert_eq!(tags_there(unit, id, count), live, "what was freed stays so");
    let stat = unit.stat_segment(id).expect("there");
    assert_eq!((stat.slots, stat.freed, stat.generation), (600, 2, 1));
    unit.sync(&[id]).expect("synced");
    while unit.reclaim().expect("settled") {}
    assert_eq!(unit.scrub(id).expect("scrubbed"), []);
    unit.free(id, &[Slot(5)], true).expect("freed");
    assert_eq!(unit.stat_segment(id).expect("there").freed, 3);
    assert_eq!(unit.list().expect("listed"), [id], "a draft is no segment");
    replace(unit, id, id, Generations::new(Some(1), 1), 9).expect("replaced by the same");
    let stat = unit.stat_segment(id).expect("there");
    assert_eq!((stat.slots, stat.freed, stat.generation), (9, 3, 1));
    read(unit, id, SLOT_BYTES, 6, 3).expect("the new one");
}

fn only_the_expected_segment_is_replaced(unit: &dyn Unit) {
    let id = segment(1);
    let absent = replace(unit, id, id, Generations::new(Some(0), 1), 4);
    assert!(
        matches!(absent, Err(UnitError::NoSegment { .. })),
        "{absent:?}"
    );
    replace(unit, id, id, Generations::new(None, 3), 4).expect("made");
    assert_eq!(unit.stat_segment(id).expect("there").generation, 3);
    let cases = [(None, 4), (Some(2), 4), (Some(4), 4), (Some(3), 2)];
    for (expected, new) in cases {
        let generations = Generations::new(expected, new);
        let refused = replace(unit, id, segment(2), generations, 4);
        let is_told = matches!(refused, Err(UnitError::Replaced { generation: 3, .. }));
        assert!(is_told, "{generations:?}: {refused:?}");
        read(unit, id, SLOT_BYTES, 0, 4).expect("as it was");
    }
    replace(unit, id, segment(2), Generations::new(Some(3), 4), 4).expect("replaced");
    unit.delete(id).expect("deleted");
    assert_eq!(unit.list().expect("listed"), []);
}

fn freed_slots_are_reported(unit: &dyn Unit) {
    let segment = segment(3);
    assert!(matches!(
        unit.segment_slots(segment),
        Err(UnitError::NoSegment { .. })
    ));
    put(unit, segment, 4096, 0, 11).expect("put");
    unit.sync(&[segment]).expect("synced");
    unit.free(segment, &[Slot(9), Slot(1), Slot(2)], false)
        .expect("freed");
    let report = unit.segment_slots(segment).expect("reported");
    assert_eq!(report.stat, unit.stat_segment(segment).expect("reported"));
    assert_eq!((report.stat.slots, report.stat.freed), (11, 3));
    assert_eq!(report.freed, [Slot(1), Slot(2), Slot(9)]);
}

fn the_last_note_is_kept(unit: &dyn Unit) {
    assert_eq!(unit.read_note().expect("answers"), None);
    for byte in [1, 2] {
        unit.write_note(&[byte; NOTE_BYTES]).expect("kept");
        assert_eq!(unit.read_note().expect("answers"), Some([byte; NOTE_BYTES]));
    }
    assert_eq!(unit.list().expect("answers"), [], "it is no segment");
}

fn a_sound_segment_has_no_rot(unit: &dyn Unit) {
    put(unit, segment(1), SLOT_BYTES, 0, 100).expect("put");
    assert_eq!(unit.scrub(segment(1)).expect("scrubbed"), []);
    let absent = unit.scrub(segment(2)).map(|_| ());
    assert!(
        matches!(absent, Err(UnitError::NoSegment { .. })),
        "{absent:?}"
    );
}

fn threads_do_not_disturb_each_other(unit: &Arc<dyn Unit>) {
    eprintln!("{}: threads do not disturb each other", unit.url());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..20 {
                    let id = segment(thread * 100 + number);
                    put(&**unit, id, SLOT_BYTES, 0, 8).expect("put");
                    if unit.can_append() {
                        put(&**unit, id, SLOT_BYTES, 8, 8).expect("appended");
                        read(&**unit, id, SLOT_BYTES, 0, 16).expect("read");
                    }
                    unit.sync(&[id]).expect("synced");
                    unit.free(id, &[Slot(0), Slot(2)], false).expect("freed");
                    read(&**unit, id, SLOT_BYTES, 3, 5).expect("read");
                    unit.stat().expect("there");
                    if number % 2 == 0 {
                        unit.delete(id).expect("deleted");
                    }
                }
            });
        }
    });
    assert_eq!(unit.list().expect("listed").len(), 40);
    assert_eq!(unit.stat().expect("there").segments, 40);
}
