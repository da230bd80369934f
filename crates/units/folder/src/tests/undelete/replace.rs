//! UndeletePolicy what is replaced.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base::{LineageTag, SegmentId, Slot};
use testkit::units::conformance::{
    Generations, SLOT_BYTES, content_of, put, read, replace, segment, tag_of,
};
use unit::{Read, ReplacementPart, SlotRun, Unit as _, UnitError};
use world::OpenMode;
use world::simulated::{Fault, Simulation};

use super::{
    DAY, all, free, freed_files, is_there, made, of, path_of, put_synced, replaced, room_taken,
    with_undelete,
};
use crate::FolderUnit;
use crate::tests::PATH;
use crate::tests::watched::{Seen, Watched};
use crate::{RestoreFilter, SegmentFate, UndeletePolicy};

/// Where the content begins of a segment of the usual size, in bytes.
const DATA_OFFSET: u64 = 53_248;

/// What repair replaces has often just that: a sector that cannot be read. It could
/// not be kept, so it could not be repaired either.
#[test]
fn a_segment_that_cannot_be_read_everywhere_is_replaced_and_the_rest_of_it_is_kept() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 600);
    let path = path_of(&unit, id);
    for slot in [7, 300, 599] {
        let offset = DATA_OFFSET + slot * u64::from(SLOT_BYTES) + 512;
        let length = 512;
        let fault = Fault::BadSectors { offset, length };
        simulation.disk.inject(&path, fault);
    }
    replace(&unit, id, segment(9), Generations::new(Some(0), 1), 600).expect("replaced");
    simulation.disk.heal(&path);
    assert_eq!(unit.stat_segment(id).expect("there").generation, 1);
    assert_eq!(unit.undelete_usage().expect("known").segments, 1);

    let restored = unit.restore(&replaced(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::Reverted, 0, 0));
    let bad = unit.scrub(id).expect("scrubbed");
    assert_eq!(bad, [7, 300, 599].map(Slot));
    for run in [0..7, 8..300, 301..599] {
        let count = run.end - run.start;
        read(&unit, id, SLOT_BYTES, run.start, count).expect("as it was put");
    }
    assert_eq!(is_there(&unit, id, 0..1), [true]);
}

/// The copy stayed, and a restore would have said that another one is in its place.
#[test]
fn a_replacement_that_fails_leaves_nothing_among_what_is_kept() {
    let simulation = Simulation::new(1);
    let unit = made(&simulation.world());
    let id = put_synced(&unit, 1, 8);
    // The first: the draft cannot be written. The second: it cannot be renamed.
    let folder = path_of(&unit, id);
    let folder = folder.parent().expect("in a folder");
    for fault in [Fault::SyncFails, Fault::NoReplacing] {
        simulation.disk.inject(folder, fault);
        let by = replace(&unit, id, segment(9), Generations::new(Some(0), 1), 8);
        by.expect_err("it cannot be replaced");
        simulation.disk.heal(folder);
        assert_eq!(unit.stat_segment(id).expect("there").generation, 0);
        let kept = unit.undelete_usage().expect("known");
        assert_eq!((kept.bytes, kept.segments), (0, 0), "{fault:?}");
        assert_eq!(freed_files(&simulation, "").len(), 0, "{fault:?}");
    }
    let restored = unit.restore(&all(), true).expect("reported");
    assert_eq!(restored.segments, []);
}

/// A put on a full unit evicts what is stored, but a replacement failed there, so damaged
/// segments could not be repaired.
#[test]
fn a_segment_is_replaced_on_a_unit_that_is_full_of_what_is_kept() {
    for parts in [1, 3] {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let unit = made(&world).with_segment_data_bytes(1 << 20);
        let unit = unit.with_undelete(UndeletePolicy {
            window: DAY,
            room_percent: 100,
        });
        let id = put_synced(&unit, 1, 250);
        for number in 10..20 {
            let id = put_synced(&unit, number, 250);
            unit.delete(id).expect("deleted");
        }
        let taken = room_taken(&world, &simulation);
        simulation.disk.set_capacity(Path::new(PATH), taken + 4096);
        replace_in_parts(&unit, id, segment(9), 250, parts).expect("room is made");
        assert_eq!(unit.stat_segment(id).expect("there").generation, 1);
        let kept = unit.undelete_usage().expect("known");
        assert!(kept.evicted_bytes > 0 && kept.segments > 5, "{kept:?}");
        // Also what it took the place of is held.
        let meant = RestoreFilter {
            segment: Some(id),
            ..replaced()
        };
        let restored = unit.restore(&meant, false).expect("restored");
        assert_eq!(of(&restored, id), (SegmentFate::Reverted, 0, 0));
        read(&unit, id, SLOT_BYTES, 0, 250).expect("as it was put");
    }
    // Where nothing is left that could go, it says so, and is as it was.
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let unit = made(&world);
    let id = put_synced(&unit, 1, 250);
    let taken = room_taken(&world, &simulation);
    simulation.disk.set_capacity(Path::new(PATH), taken + 8192);
    let full = replace(&unit, id, segment(9), Generations::new(Some(0), 1), 250).expect_err("full");
    assert!(matches!(full, UnitError::Full { .. }), "{full}");
    read(&unit, id, SLOT_BYTES, 0, 250).expect("as it was put");
    assert!(room_taken(&world, &simulation) <= taken + 8192);
}

/// Puts the slots of `like` in the place of those of `id`.
fn replace_in_parts(
    unit: &FolderUnit,
    id: SegmentId,
    like: SegmentId,
    count: u16,
    parts: u16,
) -> Result<(), UnitError> {
    let slots: Vec<u16> = (0..count).collect();
    for slots in slots.chunks(usize::from(count.div_ceil(parts))) {
        let part = ReplacementPart {
            segment: id,
            lineage_tag: LineageTag::NONE,
            draft: 7,
            expected: Some(0),
            generation: 1,
            slot_bytes: SLOT_BYTES,
            slots: u32::from(count),
            first: u32::from(slots[0]),
        };
        let tags: Vec<_> = slots.iter().map(|slot| tag_of(like, *slot)).collect();
        let contents = slots.iter().map(|slot| content_of(like, *slot, SLOT_BYTES));
        unit.replace_part(&part, &tags, &contents.flatten().collect::<Vec<_>>())?;
    }
    Ok(())
}

/// A segment of 64 GiB was copied while all that write to one in 64 of the segments
/// waited.
#[test]
fn writers_do_not_wait_for_a_copy_and_it_includes_their_changes() {
    let simulation = Simulation::new(1);
    let mut world = simulation.world();
    let id = segment(1);
    let copies = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&copies);
    let watched = Watched::new(&world, move |unit, seen| {
        let is_copy =
            |path: &Path| path.starts_with("freed") && path.to_string_lossy().contains("draft-0");
        if let Seen::Open(path, OpenMode::CreateNew) = seen
            && is_copy(path)
        {
            count.fetch_add(1, Ordering::Relaxed);
            assert!(unit.segments.try_writer(id).is_some(), "others may write");
            put(unit, id, SLOT_BYTES, 8, 4).expect("appended");
            unit.sync(&[id]).expect("synced");
            free(unit, id, [1, 9]);
        }
    });
    world.disk = Arc::clone(&watched) as _;
    let unit = Arc::new(made(&world));
    put_synced(&unit, 1, 8);
    free(&unit, id, [0]);
    watched.watch(&unit);
    replace(&*unit, id, segment(9), Generations::new(Some(0), 1), 12).expect("replaced");
    assert_eq!(copies.load(Ordering::Relaxed), 1);
    let expected: Vec<bool> = (0..12).map(|slot| ![0, 1, 9].contains(&slot)).collect();
    let there = |slot| {
        let run = SlotRun {
            segment: id,
            first: Slot(slot),
            count: 1,
        };
        let (mut tags, mut data) = ([[0; 16]], vec![0; SLOT_BYTES as usize]);
        unit.read(Read {
            run,
            slot_bytes: SLOT_BYTES,
            tags: &mut tags,
            data: &mut data,
        })
        .is_ok()
    };
    assert_eq!((0..12).map(there).collect::<Vec<_>>(), expected);

    let unit = with_undelete(&simulation.world());
    let restored = unit.restore(&replaced(), false).expect("restored");
    assert_eq!(of(&restored, id), (SegmentFate::Reverted, 3, 0));
    read(&unit, id, SLOT_BYTES, 0, 12).expect("as it was put, all of it");
    assert_eq!(unit.scrub(id).expect("scrubbed"), []);
}
