//! Rot, short files, and files that are something else.

use std::path::PathBuf;

use base::Slot;
use testkit::units::conformance::{SLOT_BYTES, content_of, put, segment, tag_of};
use unit::{Read, SlotRun, Unit, UnitError};
use world::simulated::{SimulatedDisk, SimulatedRandom, Simulation};
use world::{Disk, OpenMode};

use super::{PATH, create, open};
use crate::FolderUnit;
use crate::format;
use crate::format::{ENTRY_BYTES, TABLE_OFFSET};
use crate::root::folder_of;

const SLOTS: u16 = 4;

fn path() -> PathBuf {
    let id = segment(1);
    format!("{PATH}/segments/{:03x}/{id}", folder_of(id)).into()
}

/// A disk with one segment of four slots, the last of them freed.
fn disk_with_segment() -> SimulatedDisk {
    let simulation = Simulation::new(1);
    let unit = create(&simulation.world()).with_segment_data_bytes(16_384);
    put(&unit, segment(1), SLOT_BYTES, 0, SLOTS).expect("put");
    unit.sync(&[segment(1)]).expect("synced");
    unit.free(segment(1), &[Slot(3)], false).expect("freed");
    // A bit flips on the medium: what waits to be written would hide that.
    unit.sync(&[segment(1)]).expect("synced");
    simulation.disk.copy()
}

/// A unit on a copy of `disk`, changed by `damage`.
fn damaged(disk: &SimulatedDisk, damage: impl Fn(&SimulatedDisk)) -> FolderUnit {
    let mut simulation = Simulation::new(1);
    let copy = disk.copy();
    damage(&copy);
    simulation.disk = std::sync::Arc::new(copy);
    open(&simulation.world())
}

/// Asks everything of the segment. Nothing may panic, and a slot is right, or
/// an error, or has a tag that does not fit: returns how many were right.
fn ask_everything(unit: &FolderUnit) -> u16 {
    let id = segment(1);
    let mut right = 0;
    for slot in 0..SLOTS {
        let run = SlotRun {
            segment: id,
            first: Slot(slot),
            count: 1,
        };
        let mut tags = [[0; 16]];
        let mut data = vec![0; SLOT_BYTES as usize];
        let read = unit.read(Read {
            run,
            slot_bytes: SLOT_BYTES,
            tags: &mut tags,
            data: &mut data,
        });
        if read.is_ok() && tags[0] == tag_of(id, slot) {
            // Content that has rotted is detected by hosts, which check tags;
            // here only header and table have.
            assert_eq!(data, content_of(id, slot, SLOT_BYTES), "slot {slot}");
            right += 1;
        }
    }
    assert_eq!(unit.list().expect("listed"), [id]);
    let _ = unit.stat_segment(id);
    let _ = unit.stat().expect("counted");
    let _ = unit.scrub(id);
    let _ = unit.reclaim();
    let _ = unit.free(id, &[Slot(0)], false);
    unit.delete(id).expect("whatever it is");
    assert_eq!(unit.list().expect("listed"), []);
    right
}

#[test]
fn a_flipped_bit_in_header_or_table_never_passes_for_good() {
    let disk = disk_with_segment();
    let header = (0..format::HEADER_BYTES as u64).map(|at| (at, 0));
    let table_bytes = ENTRY_BYTES as u64 * u64::from(SLOTS);
    let table = (TABLE_OFFSET..TABLE_OFFSET + table_bytes).map(|at| (at, SLOTS - 2));
    for (offset, right_min) in header.chain(table) {
        for bit in 0..8 {
            let flip = |disk: &SimulatedDisk| {
                disk.flip_bit(&path(), offset, bit).expect("there");
            };
            let unit = damaged(&disk, flip);
            let scrubbed = unit.scrub(segment(1));
            let in_table = offset - TABLE_OFFSET.min(offset);
            match &scrubbed {
                _ if right_min == 0 => assert!(
                    matches!(scrubbed, Err(UnitError::Damaged { .. })),
                    "{scrubbed:?}"
                ),
                // The tag and the CRC of a freed slot mean nothing.
                Ok(bad) if in_table / ENTRY_BYTES as u64 == 3 && bad.is_empty() => {
                    assert!(in_table % (ENTRY_BYTES as u64) < 20);
                }
                Ok(bad) => {
                    assert_eq!(bad.len(), 1, "byte {offset}");
                    assert_eq!(u64::from(bad[0].0), in_table / ENTRY_BYTES as u64);
                }
                Err(why) => panic!("{why}"),
            }
            let right = ask_everything(&unit);
            assert!(
                (right_min..SLOTS).contains(&right),
                "byte {offset}: {right}"
            );
        }
    }
}

#[test]
fn a_scrub_finds_the_slot_in_which_a_bit_has_flipped() {
    let disk = disk_with_segment();
    let random = SimulatedRandom::new(5);
    for _ in 0..100 {
        let at = random.below(u64::from(SLOT_BYTES) * 3);
        let flip = |disk: &SimulatedDisk| {
            disk.flip_bit(&path(), 8192 + at, 3).expect("there");
        };
        let unit = damaged(&disk, flip);
        let slot = Slot((at / u64::from(SLOT_BYTES)) as u16);
        assert_eq!(unit.scrub(segment(1)).expect("scrubbed"), [slot]);
    }
}

#[test]
fn a_segment_cut_short_anywhere_is_an_error_and_no_panic() {
    let disk = disk_with_segment();
    let whole = 8192 + u64::from(SLOT_BYTES) * 4;
    for length in (0..5000).chain((5000..whole).step_by(61)) {
        let cut = |disk: &SimulatedDisk| {
            let file = disk.open(&path(), OpenMode::Write).expect("there");
            file.set_length(length).expect("cut");
        };
        let right = ask_everything(&damaged(&disk, cut));
        let whole_slots = length.saturating_sub(8192) / u64::from(SLOT_BYTES);
        assert_eq!(u64::from(right), whole_slots.min(3), "{length} bytes");
    }
}

#[test]
fn another_file_in_a_segments_place_is_refused() {
    let disk = disk_with_segment();
    let text = |disk: &SimulatedDisk| {
        let file = disk.open(&path(), OpenMode::Write).expect("there");
        file.write_at(b"a picture of a cat", 0).expect("written");
    };
    assert_eq!(ask_everything(&damaged(&disk, text)), 0);

    let swapped = damaged(&disk, |disk| {
        let id = segment(1 + 7);
        let other = format!("{PATH}/segments/{:03x}/{id}", folder_of(id));
        disk.rename(&path(), other.as_ref()).expect("renamed");
    });
    let stat = swapped.stat_segment(segment(8));
    assert!(matches!(stat, Err(UnitError::Damaged { .. })), "{stat:?}");
}

#[test]
fn parsing_returns_whatever_the_bytes() {
    let random = SimulatedRandom::new(9);
    let id = segment(1);
    let cluster = super::cluster();
    let header = format::Header::new(id, cluster, 4096, 16_384).expect("a size");
    let mut good = header.encode();
    good.resize(8192, 0x55);
    assert!(format::parse(&good).is_ok());
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.index(bytes.len().min(5000));
            bytes[at] ^= 1 << random.below(8);
        }
        bytes.truncate(random.index(bytes.len() + 1));
        let _ = format::parse(&bytes);
    }
}
