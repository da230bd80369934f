//! A journal over a disk that loses what was not flushed, killed or crashed at any time.

mod in_chain;

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

use super::stage::Stage;
use super::{FlushMode, Journal, JournalConfig, RING_BYTES_MIN};
use crate::{Filter, Opening};

const BLOCK: usize = 512;
const BLOCKS: usize = 64;

/// The content of the disk below, and how it fails.
#[derive(Default)]
struct Platter {
    live: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<(usize, Vec<u8>)>,
    fails: bool,
    /// The number of flushes that fail from now on. What was written since the last successful
    /// one may be lost then.
    failing_flushes: usize,
    flushes_lose: bool,
    /// How many blocks the disk has lost.
    blocks_less: usize,
    /// The number of writes that were carried out.
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

/// A disk that answers later, in any order, and is busy at times.
struct Below {
    platter: Rc<RefCell<Platter>>,
    random: SimulatedRandom,
    late: Vec<(Token, Deferred)>,
}

enum Deferred {
    Read(usize, usize),
    Write(usize, Vec<u8>, Durability),
    Flush,
    FailingFlush,
}

impl Below {
    fn later(&mut self, token: Token, request: Deferred) -> Started {
        if self.random.one_in(8) {
            return Started::Busy;
        }
        if self.platter.borrow().fails {
            return Started::Failed(IoError::Unavailable("on purpose".into()));
        }
        if matches!(request, Deferred::Flush) {
            let mut platter = self.platter.borrow_mut();
            if platter.failing_flushes > 0 {
                platter.failing_flushes -= 1;
                if self.random.one_in(2) {
                    self.late.push((token, Deferred::FailingFlush));
                    return Started::Pending;
                }
                if platter.flushes_lose {
                    platter.crash(&self.random);
                }
                return Started::Failed(IoError::Unavailable("on purpose".into()));
            }
        }
        if self.random.one_in(3) && !matches!(request, Deferred::Read(..)) {
            self.carry_out(request);
            return Started::Done;
        }
        self.late.push((token, request));
        Started::Pending
    }

    fn carry_out(&mut self, request: Deferred) -> Outcome {
        let mut platter = self.platter.borrow_mut();
        match request {
            Deferred::Read(at, length) => Outcome::Data(platter.live[at..at + length].to_vec()),
            Deferred::Write(at, data, durability) => {
                platter.live[at..at + data.len()].copy_from_slice(&data);
                if durability == Durability::Durable {
                    platter.durable[at..at + data.len()].copy_from_slice(&data);
                }
                platter.unflushed.push((at, data));
                platter.writes += 1;
                Outcome::Done
            }
            Deferred::FailingFlush => Outcome::Done,
            Deferred::Flush => {
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
            Op::Read { offset, out } => {
                self.later(token, Deferred::Read(offset as usize, out.len()))
            }
            Op::Write {
                offset,
                data,
                durability,
            } => self.later(
                token,
                Deferred::Write(offset as usize, data.to_vec(), durability),
            ),
            Op::Flush => self.later(token, Deferred::Flush),
            Op::Trim { .. } => panic!("a journal writes zeroes instead"),
            Op::Prefetch { .. } => Started::Done,
            Op::WriteZeroes {
                offset,
                length,
                mode,
            } => {
                let zeroes = vec![0; length as usize];
                self.later(
                    token,
                    Deferred::Write(offset as usize, zeroes, mode.durability),
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
            let (token, request) = self.late.swap_remove(at);
            let result = match request {
                Deferred::FailingFlush => {
                    let mut platter = self.platter.borrow_mut();
                    if platter.flushes_lose {
                        platter.crash(&self.random);
                    }
                    Err(IoError::Unavailable("on purpose".into()))
                }
                request => Ok(self.carry_out(request)),
            };
            completions.push(Completion { token, result });
        }
    }
}

/// A journal, the disk below, and the machine of both.
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
                Opening::Ready if matches!(self.journal.lifecycle.stage, Stage::Open(_)) => return,
                Opening::Ready => {
                    self.journal.resume();
                    self.turn();
                }
                Opening::Pending => self.turn(),
                Opening::Failed(reason) => panic!("{reason}"),
            }
        }
        panic!("it does not open");
    }

    /// Kills the process, or with `power` the machines of the journal and of the disk below.
    fn die(&mut self, power: bool) {
        let random = self.simulation.random.split();
        if power {
            self.simulation.crash();
            self.platter.borrow_mut().crash(&random);
        } else {
            // Requests of the process may still be carried out.
            for (_, request) in std::mem::take(&mut self.below.late) {
                if random.one_in(2) {
                    self.below.carry_out(request);
                }
            }
            self.simulation.kill();
        }
        let parts = Self::parts(&self.simulation, &self.platter, self.flush);
        (self.journal, self.below) = parts;
        self.answers.clear();
        self.open();
    }

    /// Starts a request. Returns `None` if the journal is busy.
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
                self.journal.commit(&mut self.below).expect("it commits");
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
        panic!("no answer")
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

#[test]
fn a_removed_journal_is_empty_and_overwrites_nothing_later() {
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
        // Another program writes to the disk meanwhile.
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

/// A trim has no data, but it takes room in the journal and in memory.
#[test]
fn changes_without_data_are_bounded_too() {
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
    assert_eq!(count, 40_000 / super::changes::CHANGE_BYTES);
    machine.platter.borrow_mut().fails = false;
    let flushed = machine.ask(|journal, below, token| journal.start(below, Request::flush(token)));
    assert_eq!(flushed, Ok(Outcome::Done));
    assert_eq!(machine.journal.write_back.backlog.changes.memory_bytes, 0);
}

/// A server that accepts only blocks of 4096 bytes would refuse acknowledged changes for ever.
#[test]
fn a_change_that_the_disk_below_would_refuse_is_not_acknowledged() {
    let mut machine = Machine::new(10, FlushMode::Through);
    let config = JournalConfig {
        block_min: 4096,
        ..machine.journal.lifecycle.config.clone()
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
    // Only the whole blocks of a trim count.
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

/// Opens the journal over a disk of `bytes` bytes with the number `disk`. Returns its content, or
/// why the journal is refused.
fn opened_over(
    machine: &Machine,
    bytes: usize,
    (disk, has_moved): (Option<u32>, bool),
) -> Result<Vec<u8>, String> {
    let config = JournalConfig {
        disk,
        has_moved,
        ..machine.journal.lifecycle.config.clone()
    };
    let mut journal = Journal::new(config, machine.simulation.world(), Wake::noop());
    let mut below = nbd::memory::MemoryDevice::new(bytes);
    loop {
        match journal.open(&mut below) {
            Opening::Failed(reason) => return Err(reason),
            Opening::Ready if matches!(journal.lifecycle.stage, Stage::Open(_)) => {
                return Ok(below.bytes().to_vec());
            }
            Opening::Ready => journal.resume(),
            Opening::Pending => {}
        }
        machine.simulation.pool.run_all(&machine.simulation.random);
        journal.poll(&mut below, &mut Vec::new());
        // A failure is returned by `open`.
        let _ = journal.commit(&mut below);
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
        let reason = opened_over(&machine, bytes, disk).expect_err("it is another disk");
        assert!(reason.contains(why), "{reason}");
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

#[test]
fn extents_of_the_journal_are_data_or_holes() {
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
    assert_eq!(run(0), None, "the disk below answers");
    let mut out = vec![7; 2048];
    let read = machine
        .ask(|journal, below, token| journal.start(below, Request::read(token, 1024, &mut out)));
    assert_eq!(read, Ok(Outcome::Done), "the journal has all of it");
    assert_eq!(out, [vec![1; 1024], vec![0; 512], vec![1; 512]].concat());
}

/// Found by the fuzzer: the position of the first record, rounded up to a multiple of the ring,
/// did not fit 64 bits.
#[test]
fn a_start_page_with_impossible_numbers_is_refused() {
    use super::file::{self, JournalSpec};
    use super::origin::Origin;
    use super::record::{LogPosition, StartPage};

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

    use crate::filters::journal::origin::Origin;

    let disk = world::simulated::SimulatedDisk::new(1);
    let folder = std::path::Path::new("/journals");
    disk.create_directory(folder).expect("made");
    disk.set_capacity(folder, 4 << 20);
    let spec = super::file::JournalSpec {
        ring_bytes: 8 << 20,
        disk_bytes: 1 << 20,
        origin: Origin::default(),
    };
    let opened = super::file::open(&disk, &folder.join("a.journal"), &spec);
    let error = opened.map(|_| ()).expect_err("there is no room");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let reason = "its 8 MiB cannot be reserved: No space left on device";
    assert!(error.to_string().starts_with(reason), "{error}");
    assert_eq!(disk.list(folder).expect("listed").len(), 0);
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
