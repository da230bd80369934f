//! Scenarios of readahead.

use base::{BlockDevice, Durability, Outcome, Request, Started};
use sim::setup::Setup;
use testkit::units::InjectedFaults;
use volume::Volume;

use crate::bench::Bench;

const BLOCKS: u64 = 1500;

/// A volume that was written and opened again, on units that complete reads later.
fn written(bench: &mut Bench) -> Volume {
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for block in 0..BLOCKS {
        bench.write(&mut volume, block..block + 1, block as u8);
        bench.turn(&mut volume, 6);
    }
    bench.close(volume);
    for unit in 0..2 {
        let completes_later = InjectedFaults {
            async_reads_one_in: 1,
            ..InjectedFaults::default()
        };
        bench.machine.inject(unit, completes_later);
    }
    let mut volume = bench.attach(id);
    bench.turn(&mut volume, 40);
    volume
}

fn bench() -> Bench {
    let mut setup = Setup::quiet(2, 1);
    setup.cache_memory_bytes = 4 << 20;
    setup.read_misses_one_in = 1;
    Bench::with(setup)
}

/// Reads a block. Returns whether the read had to wait.
fn read_waits(bench: &Bench, volume: &mut Volume, block: u64, byte: u8) -> bool {
    let mut bytes = vec![0; 4096];
    let has_waited = match volume.start(Request::read(3, block * 4096, &mut bytes)) {
        Started::Done => false,
        _ => {
            let answers = bench.turn(volume, 40);
            let answer = answers.into_iter().find(|answer| answer.token == 3);
            match answer.expect("an answer").result.expect("it is there") {
                Outcome::Data(data) => bytes = data,
                other => panic!("{other:?}"),
            }
            true
        }
    };
    assert!(bytes.iter().all(|found| *found == byte), "block {block}");
    has_waited
}

#[test]
fn few_sequential_reads_wait() {
    let mut bench = bench();
    let mut volume = written(&mut bench);
    let waited = (0..BLOCKS)
        .filter(|block| read_waits(&bench, &mut volume, *block, *block as u8))
        .count();
    assert!(waited < 100, "{waited}");
    let ahead = volume.status().cache.expect("there is one").ahead;
    assert!(ahead.used >= BLOCKS - 100, "{ahead:?}");
    assert!(ahead.used * 10 >= ahead.read_ahead * 9, "{ahead:?}");
    bench.close(volume);
}

#[test]
fn random_reads_start_no_readahead() {
    let mut bench = bench();
    let mut volume = written(&mut bench);
    for turn in 0..500 {
        let block = (turn * 7919 + 13) % BLOCKS;
        read_waits(&bench, &mut volume, block, block as u8);
    }
    let ahead = volume.status().cache.expect("there is one").ahead;
    assert!(ahead.read_ahead < 50, "{ahead:?}");
    bench.close(volume);
}

#[test]
fn a_block_written_after_its_readahead_is_read_with_its_new_content() {
    let mut bench = bench();
    let mut volume = written(&mut bench);
    for block in 0..500 {
        let is_new = block >= 5;
        read_waits(&bench, &mut volume, block, block as u8 ^ u8::from(is_new));
        let next = block + 5;
        let bytes = [next as u8 ^ 1; 4096];
        let done = volume.start(Request::write(9, next * 4096, &bytes, Durability::Volatile));
        assert_eq!(done, Started::Done);
        volume.end_batch().expect("the journal works");
        bench.turn(&mut volume, (block % 3) as usize);
    }
    bench.close(volume);
    bench.audit();
}
