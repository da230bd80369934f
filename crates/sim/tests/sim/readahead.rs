//! Stories of what is read before it is asked for.

use base::{BlockDevice, Durability, Outcome, Request, Started};
use sim::setup::Setup;
use testkit::units::InjectedFaults;
use volume::Volume;

use crate::bench::Bench;

const BLOCKS: u64 = 1500;

/// A volume that was written and opened again, on units that tell later what was read.
fn written(bench: &mut Bench) -> Volume {
    let id = bench.create(None);
    let mut volume = bench.attach(id);
    for block in 0..BLOCKS {
        bench.write(&mut volume, block..block + 1, block as u8);
        bench.turn(&mut volume, 6);
    }
    bench.close(volume);
    for unit in 0..2 {
        let told_later = InjectedFaults {
            async_reads_one_in: 1,
            ..InjectedFaults::default()
        };
        bench.machine.lie(unit, told_later);
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

/// Reads a block: whether it had to be waited for.
fn waits(bench: &Bench, volume: &mut Volume, block: u64, byte: u8) -> bool {
    let mut bytes = vec![0; 4096];
    let waits = match volume.start(Request::read(3, block * 4096, &mut bytes)) {
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
    waits
}

#[test]
fn who_reads_one_block_after_another_waits_for_few_of_them() {
    let mut bench = bench();
    let mut volume = written(&mut bench);
    let waited = (0..BLOCKS)
        .filter(|block| waits(&bench, &mut volume, *block, *block as u8))
        .count();
    assert!(waited < 100, "{waited}");
    let ahead = volume.status().cache.expect("there is one").ahead;
    assert!(ahead.used >= BLOCKS - 100, "{ahead:?}");
    assert!(ahead.used * 10 >= ahead.brought * 9, "{ahead:?}");
    bench.close(volume);
}

#[test]
fn who_reads_here_and_there_has_nothing_read_ahead() {
    let mut bench = bench();
    let mut volume = written(&mut bench);
    for turn in 0..500 {
        let block = (turn * 7919 + 13) % BLOCKS;
        waits(&bench, &mut volume, block, block as u8);
    }
    let ahead = volume.status().cache.expect("there is one").ahead;
    assert!(ahead.brought < 50, "{ahead:?}");
    bench.close(volume);
}

#[test]
fn what_is_written_after_it_was_read_ahead_is_what_is_read() {
    let mut bench = bench();
    let mut volume = written(&mut bench);
    for block in 0..500 {
        let is_new = block >= 5;
        waits(&bench, &mut volume, block, block as u8 ^ u8::from(is_new));
        let next = block + 5;
        let bytes = [next as u8 ^ 1; 4096];
        let done = volume.start(Request::write(9, next * 4096, &bytes, Durability::Volatile));
        assert_eq!(done, Started::Done);
        volume.commit().expect("the journal is well");
        bench.turn(&mut volume, (block % 3) as usize);
    }
    bench.close(volume);
    bench.audit();
}
