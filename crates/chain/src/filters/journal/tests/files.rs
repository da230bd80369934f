//! Journal files that are damaged, of another disk, or without room.

use std::path::Path;

use base::{Outcome, Request};
use world::Wake;

use super::{BLOCK, BLOCKS, Machine, write};
use crate::filters::journal::file::{self, JournalSpec};
use crate::filters::journal::origin::Origin;
use crate::filters::journal::record::{LogPosition, RING_OFFSET, StartPage};
use crate::filters::journal::stage::Stage;
use crate::filters::journal::{FlushMode, Journal, JournalConfig};
use crate::{Filter, FilterError, Opening};

/// Opens the journal over a disk of `bytes` bytes with the number `disk`. Returns its content, or
/// why the journal is refused.
fn opened_over(
    machine: &Machine,
    bytes: usize,
    (disk, has_moved): (Option<u32>, bool),
) -> Result<Vec<u8>, FilterError> {
    let config = JournalConfig {
        disk,
        has_moved,
        ..machine.journal.lifecycle.config.clone()
    };
    let mut journal = Journal::new(config, machine.simulation.world(), Wake::noop());
    let mut below = testkit::memory_device::MemoryDevice::new(bytes);
    loop {
        match journal.open(&mut below) {
            Opening::Failed(error) => return Err(error),
            Opening::Ready if matches!(journal.lifecycle.stage, Stage::Open(_)) => {
                return Ok(below.bytes().to_vec());
            }
            Opening::Ready => journal.resume(),
            Opening::Pending => {}
        }
        machine.simulation.pool.run_all(&machine.simulation.random);
        journal.poll(&mut below, &mut Vec::new());
        // A failure is returned by `open`.
        let _ = journal.end_batch(&mut below);
    }
}

#[test]
fn records_are_written_to_no_other_disk() {
    let size = BLOCK * BLOCKS;
    let ours = (Some(1), false);
    let mut machine = Machine::new(7, FlushMode::Through);
    machine.open();
    machine.platter.borrow_mut().fails = true;
    write(&mut machine, 512, &[4; 512]);
    write(&mut machine, 0, &[5; 512]);
    let refused = |bytes, disk, why: &str| {
        let error = opened_over(&machine, bytes, disk).expect_err("it is another disk");
        assert!(
            matches!(&error, FilterError::Other(reason) if reason.contains(why)),
            "{error}"
        );
    };
    refused(size, (Some(2), false), "acknowledged for another disk");
    refused(size, (Some(2), false), "--server-moved");
    let smaller = "a disk of 32768 bytes, and this one has 28672";
    refused(size - 4096, ours, smaller);
    refused(size - 4096, (Some(2), true), smaller);
    // The same disk at another address, which has grown.
    let bytes = opened_over(&machine, size + 4096, (Some(2), true)).expect("it is the same disk");
    assert_eq!((&bytes[..512], bytes[512]), (&[5; 512][..], 4));
    // An empty journal may be used for any disk.
    opened_over(&machine, size - 4096, (Some(3), false)).expect("it is empty");
    opened_over(&machine, 1 << 20, (None, false)).expect("it is empty");
}

/// Found by the fuzzer: the position of the first record, rounded up to a multiple of the ring,
/// did not fit 64 bits.
#[test]
fn a_start_page_with_impossible_numbers_is_refused() {
    let sound = StartPage {
        number: 1,
        epoch: 1,
        tail: LogPosition {
            offset: 0,
            sequence: 1,
        },
        ring_bytes: 64 << 10,
        disk_bytes: 1 << 20,
        origin: Origin::default(),
    };
    let spec = JournalSpec {
        ring_bytes: sound.ring_bytes,
        disk_bytes: sound.disk_bytes,
        origin: Origin::default(),
    };
    let with = |change: fn(&mut StartPage)| {
        let mut start = sound;
        change(&mut start);
        start
    };
    let cases = [
        with(|start| start.tail.offset = u64::MAX - 15),
        with(|start| start.tail.offset = 8),
        with(|start| start.tail.sequence = u64::MAX),
        with(|start| start.epoch = u64::MAX),
        with(|start| start.number = u64::MAX),
        with(|start| start.ring_bytes = u64::MAX - 15),
    ];
    for start in cases {
        let disk = world::simulated::SimulatedDisk::new(1);
        let path = std::path::Path::new("/journal");
        let opened = file::open(&disk, path, &spec);
        let file = opened.expect("created").file;
        file::write_start(&*file, &start).expect("written");
        file.write_at(&start.encode(), 4096).expect("written");
        file.write_at(&start.encode(), 0).expect("written");
        drop(file);
        let refused = file::open(&disk, path, &spec);
        assert!(refused.is_err(), "{start:?}");
    }
}

#[test]
fn a_journal_without_room_on_its_disk_returns_its_size_in_the_error() {
    use world::Disk;

    let disk = world::simulated::SimulatedDisk::new(1);
    let folder = std::path::Path::new("/journals");
    disk.create_directory(folder).expect("made");
    disk.set_capacity(folder, 4 << 20);
    let spec = JournalSpec {
        ring_bytes: 8 << 20,
        disk_bytes: 1 << 20,
        origin: Origin::default(),
    };
    let opened = file::open(&disk, &folder.join("a.journal"), &spec);
    let error = opened.map(|_| ()).expect_err("there is no room");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let reason = "its 8 MiB cannot be reserved: No space left on device";
    assert!(error.to_string().starts_with(reason), "{error}");
    assert_eq!(disk.list(folder).expect("listed").len(), 0);
}

#[test]
fn a_journal_that_cannot_be_created_on_a_full_disk_says_so_by_its_type() {
    let machine = Machine::new(1, FlushMode::Through);
    machine.simulation.disk.set_capacity(Path::new("/"), 4096);
    let refused = opened_over(&machine, BLOCK * BLOCKS, (Some(1), false));
    let Err(FilterError::StorageFull(reason)) = refused else {
        panic!("the disk is full: {refused:?}");
    };
    assert!(reason.contains("cannot be reserved"), "{reason}");
}

/// Everything behind the damage was dropped as if the power had failed, though it was flushed.
#[test]
fn a_damaged_record_that_was_durable_is_not_taken_for_the_end_of_the_log() {
    for (damaged, is_refused) in [(0, true), (3, true), (4, false), (7, false)] {
        let mut machine = Machine::new(9, FlushMode::Journal);
        machine.open();
        machine.platter.borrow_mut().fails = true;
        for number in 0..8 {
            write(&mut machine, number * 512, &[number as u8 + 1; 512]);
            if number == 3 {
                let flushed = machine
                    .ask(|journal, below, token| journal.start(below, Request::flush(token)));
                assert_eq!(flushed, Ok(Outcome::Done));
            }
        }
        let disk = machine.simulation.world().disk;
        let file = disk.open(Path::new("/journal"), world::OpenMode::Write);
        let file = file.expect("it is there");
        let at = RING_OFFSET + damaged * (48 + 512) + 100;
        file.write_at(&[77], at).expect("written");
        drop(file);
        match opened_over(&machine, BLOCK * BLOCKS, (Some(1), false)) {
            Err(why) => {
                assert!(is_refused, "{damaged}: {why}");
                assert!(why.reason().contains("it is damaged at byte"), "{why}");
            }
            Ok(bytes) => {
                assert!(!is_refused, "{damaged}");
                for number in 0..8_usize {
                    let expected = if (number as u64) < damaged {
                        number as u8 + 1
                    } else {
                        0
                    };
                    assert_eq!(bytes[number * 512], expected, "{damaged}: {number}");
                }
            }
        }
    }
}
