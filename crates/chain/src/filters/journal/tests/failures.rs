//! Errors of the disk below.

use base::{Durability, IoError, Outcome, Request};
use world::simulated::SimulatedRandom;

use super::{BLOCK, BLOCKS, Machine, write};
use crate::Filter;
use crate::filters::journal::FlushMode;

#[test]
fn a_failing_disk_below_loses_nothing_and_flushes_return_its_error() {
    let mut machine = Machine::new(5, FlushMode::Through);
    machine.open();
    write(&mut machine, 0, &[1; 512]);
    machine.platter.borrow_mut().fails = true;
    write(&mut machine, 512, &[2; 1024]);
    let flushed = machine.ask(|journal, below, token| journal.start(below, Request::flush(token)));
    assert!(
        matches!(flushed, Err(IoError::Unavailable(_))),
        "{flushed:?}"
    );
    let mut full = false;
    for _ in 0..200 {
        let token = machine.begin(|journal, below, token| {
            journal.start(
                below,
                Request::write(token, 4096, &[3; 4096], Durability::Volatile),
            )
        });
        machine.turn();
        let answer = token.and_then(|token| machine.answers.remove(&token));
        full |= matches!(answer, Some(Err(IoError::Unavailable(_))));
    }
    assert!(full, "a full journal returns the error of the disk below");
    machine.platter.borrow_mut().fails = false;
    let flushed = machine.ask(|journal, below, token| journal.start(below, Request::flush(token)));
    assert_eq!(flushed, Ok(Outcome::Done));
    let durable = machine.platter.borrow().durable.clone();
    assert_eq!(durable[..512], [1; 512]);
    assert_eq!(durable[512..1536], [2; 1024]);
    assert_eq!(durable[4096..8192], [3; 4096]);
}

/// A flush that failed while a journal was opening was never tried again, and the relay read the
/// clock in a loop instead.
#[test]
fn a_flush_that_fails_while_a_journal_opens_is_tried_again() {
    for seed in 0..20 {
        let mut machine = Machine::new(seed, FlushMode::Through);
        machine.open();
        machine.platter.borrow_mut().fails = true;
        write(&mut machine, 512, &[2; 1024]);
        machine.platter.borrow_mut().fails = false;
        machine.platter.borrow_mut().failing_flushes = 2;
        machine.die(false);
        assert_eq!(machine.platter.borrow().failing_flushes, 0);
        assert_eq!(machine.read()[512..1536], [2; 1024]);
    }
}

/// What a disk loses in a failed flush it may still not have when the next flush succeeds.
fn live_with_failing_flushes(seed: u64, flush: FlushMode) {
    let mut machine = Machine::new(seed, flush);
    machine.open();
    machine.platter.borrow_mut().flushes_lose = true;
    let random = SimulatedRandom::new(seed);
    let mut versions = [0; BLOCKS];
    for version in 1..=250 {
        match random.index(16) {
            0..=9 => {
                let first = random.index(BLOCKS);
                let count = 1 + random.index((BLOCKS - first).min(6));
                let data = vec![version; count * BLOCK];
                let offset = (first * BLOCK) as u64;
                let durability = Durability::Volatile;
                // A full journal returns the error of the disk below.
                while machine
                    .ask(|journal, below, token| {
                        journal.start(below, Request::write(token, offset, &data, durability))
                    })
                    .is_err()
                {
                    machine.turn();
                }
                versions[first..first + count].fill(version);
            }
            10 => {
                let flushed = machine
                    .ask(|journal, below, token| journal.start(below, Request::flush(token)));
                if flushed.is_ok() {
                    let durable = match flush {
                        FlushMode::Through => machine.platter.borrow().durable.clone(),
                        FlushMode::Journal => machine.read(),
                    };
                    let is_whole = |(version, bytes): (&u8, &[u8])| bytes[0] >= *version;
                    let mut blocks = versions.iter().zip(durable.chunks(BLOCK));
                    assert!(blocks.all(is_whole), "seed {seed}");
                }
            }
            11 => machine.platter.borrow_mut().failing_flushes = 1 + random.index(2),
            12 if random.one_in(4) => machine.die(false),
            13 => {
                let read = machine.read();
                for (at, (version, bytes)) in versions.iter().zip(read.chunks(BLOCK)).enumerate() {
                    assert_eq!(bytes[0], *version, "seed {seed}: block {at}");
                }
            }
            _ => machine.turn(),
        }
    }
    machine.platter.borrow_mut().failing_flushes = 0;
    while !machine.journal.quiesce() {
        machine.turn();
    }
    let flush = |machine: &mut Machine| {
        machine.ask(|journal, below, token| journal.start(below, Request::flush(token)))
    };
    let is_flushed = (0..10).any(|_| flush(&mut machine).is_ok());
    assert!(is_flushed, "nothing fails now");
    let durable = machine.platter.borrow().durable.clone();
    for (version, bytes) in versions.iter().zip(durable.chunks(BLOCK)) {
        assert_eq!(bytes[0], *version, "seed {seed}");
    }
    assert_eq!(machine.journal.write_back.backlog.changes.memory_bytes, 0);
}

#[test]
fn changes_that_a_failed_flush_should_have_covered_are_written_again() {
    for seed in 0..80 {
        live_with_failing_flushes(seed, FlushMode::Through);
        live_with_failing_flushes(seed, FlushMode::Journal);
    }
}
