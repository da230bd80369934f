//! A journal over a disk that loses what was not flushed, killed and crashed at any moment.

mod of_chain;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op, Outcome,
    Request, Started, Token,
};
use world::Wake;
use world::simulated::{SimulatedRandom, Simulation};

use super::opening::Stage;
use super::{FlushMode, Journal, JournalConfig, RING_BYTES_MIN};
use crate::{Filter, Opening};

const BLOCK: usize = 512;
const BLOCKS: usize = 64;

/// What is left of the disk below when its machine crashes.
#[derive(Default)]
struct Platter {
    live: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<(usize, Vec<u8>)>,
    fails: bool,
    /// So many flushes fail, and then no more; what was written since the last one may be
    /// lost then.
    failing_flushes: usize,
    flushes_lose: bool,
    /// It is so much smaller than it was.
    blocks_less: usize,
    /// So many writes were carried out.
    writes: usize,
}

impl Platter {
    fn crash(&mut self, random: &SimulatedRandom) {
        let mut unflushed = std::mem::take(&mut self.unflushed);
        random.shuffle(&mut unflushed);
        for (at, bytes) in unflushed {
            if random.one_in(2) {
                self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        self.live = self.durable.clone();
    }
}

/// A disk that answers late, in any order, and is busy at times.
struct Below {
    platter: Rc<RefCell<Platter>>,
    random: SimulatedRandom,
    late: Vec<(Token, Asked)>,
}

enum Asked {
    Read(usize, usize),
    Write(usize, Vec<u8>, Durability),
    Flush,
    /// One that fails.
    FailingFlush,
}

impl Below {
    fn later(&mut self, token: Token, asked: Asked) -> Started {
        if self.random.one_in(8) {
            return Started::Busy;
        }
        if self.platter.borrow().fails {
            return Started::Failed(IoError::Unavailable("on purpose".into()));
        }
        if matches!(asked, Asked::Flush) {
            let mut platter = self.platter.borrow_mut();
            if platter.failing_flushes > 0 {
                platter.failing_flushes -= 1;
                if self.random.one_in(2) {
                    self.late.push((token, Asked::FailingFlush));
                    return Started::Pending;
                }
                if platter.flushes_lose {
                    platter.crash(&self.random);
                }
                return Started::Failed(IoError::Unavailable("on purpose".into()));
            }
        }
        if self.random.one_in(3) && !matches!(asked, Asked::Read(..)) {
            self.carry_out(asked);
            return Started::Done;
        }
        self.late.push((token, asked));
        Started::Pending
    }

    fn carry_out(&mut self, asked: Asked) -> Outcome {
        let mut platter = self.platter.borrow_mut();
        match asked {
            Asked::Read(at, length) => Outcome::Data(platter.live[at..at + length].to_vec()),
            Asked::Write(at, data, durability) => {
                platter.live[at..at + data.len()].copy_from_slice(&data);
                if durability == Durability::Durable {
                    platter.durable[at..at + data.len()].copy_from_slice(&data);
                }
                platter.unflushed.push((at, data));
                platter.writes += 1;
                Outcome::Done
            }
            Asked::FailingFlush => Outcome::Done,
            Asked::Flush => {
                platter.durable = platter.live.clone();
                platter.unflushed.clear();
                Outcome::Done
            }
        }
    }
}

impl BlockDevice for Below {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: (BLOCK * (BLOCKS - self.platter.borrow().blocks_less)) as u64,
            block_bytes: 512,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { offset, out } => self.later(token, Asked::Read(offset as usize, out.len())),
            Op::Write {
                offset,
                data,
                durability,
            } => self.later(
                token,
                Asked::Write(offset as usize, data.to_vec(), durability),
            ),
            Op::Flush => self.later(token, Asked::Flush),
            Op::Trim { .. } => panic!("a journal makes zeroes of it"),
            Op::Prefetch { .. } => Started::Done,
            Op::WriteZeroes {
                offset,
                length,
                mode,
            } => {
                let zeroes = vec![0; length as usize];
                self.later(
                    token,
                    Asked::Write(offset as usize, zeroes, mode.durability),
                )
            }
            Op::Extents { .. } => Started::Failed(IoError::NotSupported),
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        for _ in 0..self.random.index(4) {
            if self.late.is_empty() {
                return;
            }
            let at = self.random.index(self.late.len());
            let (token, asked) = self.late.swap_remove(at);
            let result = match asked {
                Asked::FailingFlush => {
                    let mut platter = self.platter.borrow_mut();
                    if platter.flushes_lose {
                        platter.crash(&self.random);
                    }
                    Err(IoError::Unavailable("on purpose".into()))
                }
                asked => Ok(self.carry_out(asked)),
            };
            completions.push(Completion { token, result });
        }
    }
}

/// A journal, what is below, and the machine that both are on.
struct Machine {
    simulation: Simulation,
    platter: Rc<RefCell<Platter>>,
    below: Below,
    journal: Journal,
    answers: HashMap<Token, Result<Outcome, IoError>>,
    last: Token,
    flush: FlushMode,
}

impl Machine {
    fn new(seed: u64, flush: FlushMode) -> Self {
        let simulation = Simulation::new(seed);
        let at_once = SimulatedRandom::new(seed);
        simulation.pool.set_immediate(2 * (seed % 2), at_once);
        let platter = Rc::new(RefCell::new(Platter {
            live: vec![0; BLOCK * BLOCKS],
            durable: vec![0; BLOCK * BLOCKS],
            ..Platter::default()
        }));
        let (journal, below) = Self::parts(&simulation, &platter, flush);
        Self {
            simulation,
            platter,
            below,
            journal,
            answers: HashMap::new(),
            last: 0,
            flush,
        }
    }

    fn parts(
        simulation: &Simulation,
        platter: &Rc<RefCell<Platter>>,
        flush: FlushMode,
    ) -> (Journal, Below) {
        let config = JournalConfig {
            path: Path::new("/journal").to_owned(),
            ring_bytes: RING_BYTES_MIN / 64,
            flush,
            memory_max: 40_000,
            block_min: 1,
            history: None,
            below: None,
            disk: Some(1),
            has_moved: false,
        };
        let below = Below {
            platter: Rc::clone(platter),
            random: simulation.random.split(),
            late: Vec::new(),
        };
        let world = simulation.world();
        (Journal::new(config, world, Wake::noop()), below)
    }

    fn turn(&mut self) {
        let random = &self.simulation.random;
        if random.one_in(2) {
            self.simulation.pool.run_one(random);
        }
        self.simulation.clock.advance(Duration::from_millis(50));
        let _ = self.journal.commit(&mut self.below);
        let mut completions = Vec::new();
        self.journal.poll(&mut self.below, &mut completions);
        for Completion { token, result } in completions {
            assert!(self.answers.insert(token, result).is_none());
        }
    }

    fn open(&mut self) {
        for _ in 0..100_000 {
            match self.journal.open(&mut self.below) {
                Opening::Ready if matches!(self.journal.stage, Stage::Open(_)) => return,
                Opening::Ready => {
                    self.journal.resume();
                    self.turn();
                }
                Opening::Pending => self.turn(),
                Opening::Failed(reason) => panic!("{reason}"),
            }
        }
        panic!("it never opens");
    }

    /// The process dies; with it the machine, and that of the disk below, if `power` says.
    fn die(&mut self, power: bool) {
        let random = self.simulation.random.split();
        if power {
            self.simulation.crash();
            self.platter.borrow_mut().crash(&random);
        } else {
            // What the process had asked for may still be carried out.
            for (_, asked) in std::mem::take(&mut self.below.late) {
                if random.one_in(2) {
                    self.below.carry_out(asked);
                }
            }
            self.simulation.kill();
        }
        let parts = Self::parts(&self.simulation, &self.platter, self.flush);
        (self.journal, self.below) = parts;
        self.answers.clear();
        self.open();
    }

    /// Begins something, unless the journal is busy.
    fn begin(
        &mut self,
        ask: impl FnOnce(&mut Journal, &mut Below, Token) -> Started,
    ) -> Option<Token> {
        self.last += 1;
        let token = self.last;
        match ask(&mut self.journal, &mut self.below, token) {
            Started::Pending => {}
            Started::Busy => return None,
            Started::Done => {
                self.journal.commit(&mut self.below).expect("it goes on");
                self.answers.insert(token, Ok(Outcome::Done));
            }
            Started::Failed(error) => {
                self.answers.insert(token, Err(error));
            }
        }
        Some(token)
    }

    fn ask(
        &mut self,
        mut ask: impl FnMut(&mut Journal, &mut Below, Token) -> Started,
    ) -> Result<Outcome, IoError> {
        for _ in 0..100_000 {
            let Some(token) = self.begin(&mut ask) else {
                self.turn();
                continue;
            };
            for _ in 0..100_000 {
                if let Some(answer) = self.answers.remove(&token) {
                    return answer;
                }
                self.turn();
            }
        }
        panic!("it is never answered")
    }

    fn read(&mut self) -> Vec<u8> {
        let mut out = vec![0; BLOCK * BLOCKS];
        let answer = self
            .ask(|journal, below, token| journal.start(below, Request::read(token, 0, &mut out)));
        match answer.expect("readable") {
            Outcome::Data(data) => data,
            _ => out,
        }
    }
}

/// What a block may hold: the version that was flushed last, or a later one.
#[derive(Clone, Default)]
struct Block {
    durable: u8,
    acknowledged: u8,
    written: u8,
}

/// Writes versions, flushes, dies and looks, as `seed` says. Versions of a block only grow,
/// so what was lost or came back is seen.
fn lives(seed: u64, flush: FlushMode) {
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
                // Those that are under way do not overlap.
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
                let versions = blocks.iter().map(|one| one.acknowledged).collect();
                let token = machine
                    .begin(|journal, below, token| journal.start(below, Request::flush(token)));
                flushing = token.map(|token| (token, versions));
            }
            8 if random.one_in(3) => {
                let power = random.one_in(2);
                machine.die(power);
                under_way.clear();
                flushing = None;
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
                    assert!(bytes.iter().all(|byte| *byte == version), "it is torn");
                    // It may be read: so it may not go back, unless the power goes.
                    (block.acknowledged, block.written) = (version, version);
                }
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
    assert!(writes > 50, "seed {seed}: {writes} writes try little");
}

#[test]
fn what_was_acknowledged_survives_a_kill_and_what_was_flushed_a_crash() {
    for seed in 0..150 {
        lives(seed, FlushMode::Through);
    }
}

#[test]
fn a_journal_that_answers_flushes_itself_loses_nothing_either() {
    for seed in 1000..1150 {
        lives(seed, FlushMode::Journal);
    }
}

fn write(machine: &mut Machine, at: u64, bytes: &[u8]) {
    let written = machine.ask(|journal, below, token| {
        journal.start(
            below,
            Request::write(token, at, bytes, Durability::Volatile),
        )
    });
    assert_eq!(written, Ok(Outcome::Done));
}

#[test]
fn a_disk_below_that_fails_loses_nothing_and_a_flush_says_so() {
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
    assert!(full, "it is bounded, and says why");
    machine.platter.borrow_mut().fails = false;
    let flushed = machine.ask(|journal, below, token| journal.start(below, Request::flush(token)));
    assert_eq!(flushed, Ok(Outcome::Done));
    let durable = machine.platter.borrow().durable.clone();
    assert_eq!(durable[..512], [1; 512]);
    assert_eq!(durable[512..1536], [2; 1024]);
    assert_eq!(durable[4096..8192], [3; 4096]);
}

#[test]
fn a_journal_that_is_left_behind_is_empty_and_overwrites_nothing_later() {
    for flush in [FlushMode::Through, FlushMode::Journal] {
        let mut machine = Machine::new(6, flush);
        machine.open();
        write(&mut machine, 0, &[1; 512]);
        while !machine.journal.quiesce() {
            machine.turn();
        }
        let flushed =
            machine.ask(|journal, below, token| journal.start(below, Request::flush(token)));
        assert_eq!(flushed, Ok(Outcome::Done));
        // Somebody else writes to the disk meanwhile.
        {
            let mut platter = machine.platter.borrow_mut();
            assert_eq!(platter.durable[..512], [1; 512]);
            platter.live[..512].fill(9);
            platter.durable[..512].fill(9);
        }
        machine.die(true);
        assert_eq!(machine.read()[..512], [9; 512]);
    }
}

/// A flush that failed while a journal began was never tried again, and the relay asked
/// the clock instead, as often as it could.
#[test]
fn a_flush_that_fails_at_the_beginning_is_tried_again() {
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

/// What a disk has not when a flush fails it need not have when the next one succeeds.
fn lives_with_failing_flushes(seed: u64, flush: FlushMode) {
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
                // Who comes while it is full hears why.
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
    assert!(is_flushed, "nothing fails any more");
    let durable = machine.platter.borrow().durable.clone();
    for (version, bytes) in versions.iter().zip(durable.chunks(BLOCK)) {
        assert_eq!(bytes[0], *version, "seed {seed}");
    }
    assert_eq!(machine.journal.carry.bytes, 0, "nothing is kept");
}

#[test]
fn what_a_failed_flush_was_to_cover_is_carried_out_once_more() {
    for seed in 0..80 {
        lives_with_failing_flushes(seed, FlushMode::Through);
        lives_with_failing_flushes(seed, FlushMode::Journal);
    }
}

/// A trim has no data, and yet it is noted, in the journal and in memory.
#[test]
fn what_has_no_data_is_bounded_too() {
    let mut machine = Machine::new(9, FlushMode::Through);
    machine.open();
    machine.platter.borrow_mut().fails = true;
    let mut count = 0;
    loop {
        let offset = count % BLOCKS as u64 * BLOCK as u64;
        let token = machine.begin(|journal, below, token| {
            journal.start(
                below,
                Request::trim(token, offset, BLOCK as u64, Durability::Volatile),
            )
        });
        match token.and_then(|token| machine.answers.remove(&token)) {
            Some(Ok(_)) => count += 1,
            None | Some(Err(_)) => break,
        }
    }
    assert_eq!(count, 40_000 / super::carry::CHANGE_BYTES);
    machine.platter.borrow_mut().fails = false;
    let flushed = machine.ask(|journal, below, token| journal.start(below, Request::flush(token)));
    assert_eq!(flushed, Ok(Outcome::Done));
    assert_eq!(machine.journal.carry.bytes, 0);
}

/// A server that takes blocks of 4096 bytes only would refuse for ever what was
/// acknowledged.
#[test]
fn what_the_disk_below_cannot_take_is_not_acknowledged() {
    let mut machine = Machine::new(10, FlushMode::Through);
    let config = JournalConfig {
        block_min: 4096,
        ..machine.journal.config.clone()
    };
    machine.journal = Journal::new(config, machine.simulation.world(), Wake::noop());
    machine.open();
    for (offset, length) in [(512, 4096), (4096, 512)] {
        let data = vec![1; length];
        let written = machine.ask(|journal, below, token| {
            journal.start(
                below,
                Request::write(token, offset, &data, Durability::Durable),
            )
        });
        assert_eq!(written, Err(IoError::NotSupported));
    }
    let data = [3; 12_288];
    let written = machine.ask(|journal, below, token| {
        journal.start(below, Request::write(token, 0, &data, Durability::Durable))
    });
    assert_eq!(written, Ok(Outcome::Done));
    // Of a trim the whole blocks count.
    for (offset, length) in [(512, 8192), (512, 1024)] {
        let trimmed = machine.ask(|journal, below, token| {
            journal.start(
                below,
                Request::trim(token, offset, length, Durability::Durable),
            )
        });
        assert_eq!(trimmed, Ok(Outcome::Done));
    }
    let flushed = machine.ask(|journal, below, token| journal.start(below, Request::flush(token)));
    assert_eq!(flushed, Ok(Outcome::Done));
    let durable = machine.platter.borrow().durable.clone();
    let expected = [vec![3; 4096], vec![0; 4096], vec![3; 4096]].concat();
    assert_eq!(durable[..12_288], expected);
}

/// What comes of a journal over a disk of `bytes`, with the number `disk`.
fn opened_over(
    machine: &Machine,
    bytes: usize,
    (disk, has_moved): (Option<u32>, bool),
) -> Result<Vec<u8>, String> {
    let config = JournalConfig {
        disk,
        has_moved,
        ..machine.journal.config.clone()
    };
    let mut journal = Journal::new(config, machine.simulation.world(), Wake::noop());
    let mut below = nbd::memory::MemoryDevice::new(bytes);
    loop {
        match journal.open(&mut below) {
            Opening::Failed(reason) => return Err(reason),
            Opening::Ready if matches!(journal.stage, Stage::Open(_)) => {
                return Ok(below.bytes().to_vec());
            }
            Opening::Ready => journal.resume(),
            Opening::Pending => {}
        }
        machine.simulation.pool.run_all(&machine.simulation.random);
        journal.poll(&mut below, &mut Vec::new());
        // What has failed says so when it is opened.
        let _ = journal.commit(&mut below);
    }
}

#[test]
fn what_a_journal_has_goes_to_no_other_disk() {
    let size = BLOCK * BLOCKS;
    let ours = (Some(1), false);
    let mut machine = Machine::new(7, FlushMode::Through);
    machine.open();
    machine.platter.borrow_mut().fails = true;
    write(&mut machine, 512, &[4; 512]);
    write(&mut machine, 0, &[5; 512]);
    let refused = |bytes, attribution, why: &str| {
        let reason = opened_over(&machine, bytes, attribution).expect_err("it is another's");
        assert!(reason.contains(why), "{reason}");
    };
    refused(size, (Some(2), false), "acknowledged for another disk");
    refused(size, (Some(2), false), "--server-moved");
    let smaller = "a disk of 32768 bytes, and this one has 28672";
    refused(size - 4096, ours, smaller);
    refused(size - 4096, (Some(2), true), smaller);
    // The same one at another place, which has grown.
    let bytes = opened_over(&machine, size + 4096, (Some(2), true)).expect("it is the same");
    assert_eq!((&bytes[..512], bytes[512]), (&[5; 512][..], 4));
    // One that has nothing is anybody's.
    opened_over(&machine, size - 4096, (Some(3), false)).expect("it is empty");
    opened_over(&machine, 1 << 20, (None, false)).expect("it is empty");
}

#[test]
fn what_is_in_the_journal_only_is_told_as_data_and_as_zeroes() {
    let mut machine = Machine::new(8, FlushMode::Through);
    machine.open();
    machine.platter.borrow_mut().fails = true;
    write(&mut machine, 1024, &[1; 2048]);
    let trimmed = machine.ask(|journal, below, token| {
        journal.start(below, Request::trim(token, 2048, 512, Durability::Volatile))
    });
    assert_eq!(trimmed, Ok(Outcome::Done));
    let mut run = |offset| {
        let mut runs = Vec::new();
        let (journal, below) = (&mut machine.journal, &mut machine.below);
        let started = journal.start(below, Request::extents(99, offset, 8192, &mut runs));
        (started == Started::Done).then(|| (runs[0].length, runs[0].kind))
    };
    use base::ExtentKind::{Data, Hole};
    assert_eq!(run(1024), Some((1024, Data)));
    assert_eq!(run(2048), Some((512, Hole)));
    assert_eq!(run(2560), Some((512, Data)));
    assert_eq!(run(0), None, "it is asked below");
    let mut out = vec![7; 2048];
    let read = machine
        .ask(|journal, below, token| journal.start(below, Request::read(token, 1024, &mut out)));
    assert_eq!(read, Ok(Outcome::Done), "nothing is asked below");
    assert_eq!(out, [vec![1; 1024], vec![0; 512], vec![1; 512]].concat());
}

/// Found by the fuzzer: the position of the first record, rounded up to a whole ring, was
/// beyond 64 bits.
#[test]
fn a_page_with_numbers_that_no_journal_has_is_refused() {
    use super::origin::Origin;
    use super::record::Start;
    use super::ring;

    let sound = Start {
        number: 1,
        epoch: 1,
        tail: 0,
        sequence: 1,
        ring_bytes: 64 << 10,
        size_bytes: 1 << 20,
        origin: Origin::default(),
    };
    let shape = ring::Shape {
        ring_bytes: sound.ring_bytes,
        size_bytes: sound.size_bytes,
        origin: Origin::default(),
    };
    let with = |change: fn(&mut Start)| {
        let mut start = sound;
        change(&mut start);
        start
    };
    let cases = [
        with(|start| start.tail = u64::MAX - 15),
        with(|start| start.tail = 8),
        with(|start| start.sequence = u64::MAX),
        with(|start| start.epoch = u64::MAX),
        with(|start| start.number = u64::MAX),
        with(|start| start.ring_bytes = u64::MAX - 15),
    ];
    for start in cases {
        let disk = world::simulated::SimulatedDisk::new(1);
        let path = std::path::Path::new("/journal");
        let opened = ring::open(&disk, path, &shape);
        let (file, _) = opened.expect("it is made");
        ring::write_start(&*file, &start).expect("written");
        file.write_at(&start.encode(), 4096).expect("written");
        file.write_at(&start.encode(), 0).expect("written");
        drop(file);
        let refused = ring::open(&disk, path, &shape);
        assert!(refused.is_err(), "{start:?}");
    }
}

#[test]
fn a_journal_that_its_disk_has_no_room_for_says_how_large_it_would_be() {
    use world::Disk;

    use crate::filters::journal::origin::Origin;

    let disk = world::simulated::SimulatedDisk::new(1);
    let folder = std::path::Path::new("/journals");
    disk.create_directory(folder).expect("made");
    disk.set_capacity(folder, 4 << 20);
    let shape = super::ring::Shape {
        ring_bytes: 8 << 20,
        size_bytes: 1 << 20,
        origin: Origin::default(),
    };
    let opened = super::ring::open(&disk, &folder.join("a.journal"), &shape);
    let error = opened.map(|_| ()).expect_err("there is no room");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let words = "its size is to be 8 MiB, which cannot be reserved: No space left on device";
    assert!(error.to_string().starts_with(words), "{error}");
    assert_eq!(disk.list(folder).expect("listed").len(), 0);
}

/// All behind it was dropped, as if its power had failed, though it had been flushed.
#[test]
fn a_record_that_was_durable_and_is_damaged_is_not_taken_for_the_end() {
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
        let at = super::record::RING_OFFSET + damaged * (48 + 512) + 100;
        file.write_at(&[77], at).expect("written");
        drop(file);
        match opened_over(&machine, BLOCK * BLOCKS, (Some(1), false)) {
            Err(why) => {
                assert!(is_refused, "{damaged}: {why}");
                assert!(why.contains("it is damaged at byte"), "{why}");
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
