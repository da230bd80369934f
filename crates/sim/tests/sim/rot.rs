//! Bit flips in segments.

use base::VolumeId;
use world::{Disk, OpenMode};

use crate::bench::Bench;

const BLOCKS: u64 = 6;

/// A volume of a few blocks, some in the tree and some in the tail.
fn small(replicas: u8) -> (Bench, VolumeId) {
    let mut setup = sim::setup::Setup::quiet(2, replicas);
    setup.volume.tail_pages_max = 1;
    setup.is_sealed = replicas == 2;
    let mut bench = Bench::with(setup);
    let id = bench.create(None);
    for round in 1..3 {
        let mut volume = bench.attach(id);
        bench.write(&mut volume, 0..BLOCKS / u64::from(round), round);
        bench.close(volume);
    }
    (bench, id)
}

/// Flips a bit of every byte that matters, one after another, and reads everything with a
/// new process each time.
fn flip_each(replicas: u8, check: impl Fn(u64, Option<u8>, &str)) {
    let (mut bench, id) = small(replicas);
    let mut files = Vec::new();
    for unit in 0..2 {
        let folder = bench.machine.unit_path(unit).join("segments");
        files.extend(bench.machine.simulation.disk.files_under(&folder));
    }
    for (path, length) in files {
        let offsets: Vec<u64> = {
            let disk = &bench.machine.simulation.disk;
            let file = disk.open(&path, OpenMode::Read).expect("there");
            let mut bytes = vec![0; length as usize];
            file.read_at(&mut bytes, 0).expect("read");
            // All of header and table, and some bytes of each slot.
            let matters =
                |at: &u64| bytes[*at as usize] != 0 && (*at < 8192 || at.is_multiple_of(61));
            (0..length).filter(matters).collect()
        };
        for at in offsets {
            let bit = (at % 8) as u8;
            bench
                .machine
                .simulation
                .disk
                .flip_bit(&path, at, bit)
                .expect("there");
            bench.machine.kill();
            let what = format!("{} byte {at}", path.display());
            let lease = bench.machine.acquire(id);
            if let Ok(mut volume) = bench.machine.open(lease) {
                for block in 0..BLOCKS {
                    check(block, bench.read(&mut volume, block).ok(), &what);
                }
            } else {
                check(0, None, &what);
            }
            bench
                .machine
                .simulation
                .disk
                .flip_bit(&path, at, bit)
                .expect("there");
        }
    }
}

fn expected(block: u64) -> u8 {
    if block < BLOCKS / 2 { 2 } else { 1 }
}

#[test]
fn with_one_copy_a_flipped_bit_is_an_error_and_never_wrong_data() {
    flip_each(1, |block, found, what| {
        assert!(
            found.is_none_or(|found| found == expected(block)),
            "{what}: block {block}"
        );
    });
}

#[test]
fn with_two_copies_a_flipped_bit_has_no_effect() {
    flip_each(2, |block, found, what| {
        assert_eq!(found, Some(expected(block)), "{what}: block {block}");
    });
}
