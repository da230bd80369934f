//! A journal over a disk that loses what was not flushed, killed or crashed at any time.

mod crashes;
mod failures;
mod files;
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

    fn end_batch(&mut self) -> Result<(), IoError> {
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
        let _ = self.journal.end_batch(&mut self.below);
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
                self.journal
                    .end_batch(&mut self.below)
                    .expect("the batch ends");
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
