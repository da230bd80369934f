//! Kills and crashes at any moment, in random lives.

use base::{Durability, Request, Token};
use world::simulated::SimulatedRandom;

use super::{BLOCK, BLOCKS, Machine};
use crate::Filter;
use crate::filters::journal::FlushMode;

/// The versions of a block: it may hold the one that was flushed last, or a later one.
#[derive(Clone, Default)]
struct Block {
    durable: u8,
    acknowledged: u8,
    written: u8,
}

/// Checks each block after a restart: it has an acknowledged version, or after a power failure one
/// that was flushed, or a later one. From now on that version counts.
fn check_restarted(machine: &mut Machine, blocks: &mut [Block], power: bool, seed: u64) {
    let read = machine.read();
    for (at, (block, bytes)) in blocks.iter_mut().zip(read.chunks(BLOCK)).enumerate() {
        let least = if power {
            block.durable
        } else {
            block.acknowledged
        };
        let version = bytes[0];
        assert!(
            (least..=block.written).contains(&version),
            "seed {seed}: block {at} has version {version}, of {least} to {} (power {power})",
            block.written
        );
        assert!(bytes.iter().all(|byte| *byte == version), "torn");
        // It was read, so it may not go back, unless the power fails.
        (block.acknowledged, block.written) = (version, version);
    }
}

/// Writes versions, flushes, dies and reads, as `seed` decides. The versions of a block only grow,
/// so a lost or repeated write is detected.
fn live(seed: u64, flush: FlushMode) {
    let mut machine = Machine::new(seed, flush);
    machine.open();
    let random = SimulatedRandom::new(seed);
    let mut blocks = vec![Block::default(); BLOCKS];
    let mut under_way: Vec<(Token, usize, usize, bool)> = Vec::new();
    let mut flushing: Option<(Token, Vec<u8>)> = None;
    let mut writes = 0;
    for _ in 0..600 {
        match random.index(12) {
            0..=6 => {
                let first = random.index(BLOCKS);
                let count = 1 + random.index((BLOCKS - first).min(12));
                let range = first..first + count;
                // Pending writes do not overlap.
                let overlaps = |(_, from, to, _): &(Token, usize, usize, bool)| {
                    *from < first + count && first < *to
                };
                if under_way.iter().any(overlaps)
                    || blocks[range.clone()].iter().any(|one| one.written > 250)
                {
                    continue;
                }
                let mut data = Vec::new();
                for block in &mut blocks[range.clone()] {
                    data.resize(data.len() + BLOCK, block.written + 1);
                }
                let durability = if random.one_in(4) {
                    Durability::Durable
                } else {
                    Durability::Volatile
                };
                let offset = (first * BLOCK) as u64;
                let begun = machine.begin(|journal, below, token| {
                    journal.start(below, Request::write(token, offset, &data, durability))
                });
                if let Some(token) = begun {
                    blocks[range].iter_mut().for_each(|one| one.written += 1);
                    writes += 1;
                    let is_durable = durability == Durability::Durable;
                    under_way.push((token, first, first + count, is_durable));
                }
            }
            7 if flushing.is_none() => {
                let versions = blocks.iter().map(|block| block.acknowledged).collect();
                let token = machine
                    .begin(|journal, below, token| journal.start(below, Request::flush(token)));
                flushing = token.map(|token| (token, versions));
            }
            8 if random.one_in(3) => {
                let power = random.one_in(2);
                machine.die(power);
                under_way.clear();
                flushing = None;
                check_restarted(&mut machine, &mut blocks, power, seed);
            }
            9 => {
                let read = machine.read();
                for (block, bytes) in blocks.iter().zip(read.chunks(BLOCK)) {
                    assert!((block.acknowledged..=block.written).contains(&bytes[0]));
                }
            }
            _ => machine.turn(),
        }
        under_way.retain(|(token, from, to, is_durable)| {
            let Some(answer) = machine.answers.remove(token) else {
                return true;
            };
            answer.expect("nothing fails");
            for block in &mut blocks[*from..*to] {
                block.acknowledged = block.written;
                if *is_durable {
                    block.durable = block.written;
                }
            }
            false
        });
        if let Some((token, versions)) = &flushing
            && let Some(answer) = machine.answers.remove(token)
        {
            answer.expect("nothing fails");
            for (block, version) in blocks.iter_mut().zip(versions) {
                block.durable = block.durable.max(*version);
            }
            flushing = None;
        }
    }
    assert!(writes > 50, "seed {seed}: only {writes} writes");
}

#[test]
fn acknowledged_writes_survive_a_kill_and_flushed_writes_survive_a_crash() {
    for seed in 0..150 {
        live(seed, FlushMode::Through);
    }
}

#[test]
fn a_journal_that_answers_flushes_itself_loses_nothing() {
    for seed in 1000..1150 {
        live(seed, FlushMode::Journal);
    }
}
