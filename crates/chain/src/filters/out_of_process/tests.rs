//! Programs that die, hang and come back, in a simulated world.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op, Outcome,
    OwnedOp, Request, Started, Token,
};
use chain_policy::{FilterPolicy, Policy};
use world::simulated::{SimulatedClock, SimulatedRandom};
use world::{Clock, Millis, Wake, World};

use crate::filters::{Event, EventKind};
use crate::{
    Chain, EventSink, FilterContext, HotSwap, HotSwapError, LinkState, PendingQueue, Program,
    Programs, RemoteDisk, SizeRule, build_filters,
};

const SIZE: usize = 256 << 10;
const BLOCK: usize = 4096;
const BLOCKS: usize = SIZE / BLOCK;

/// What becomes of a program, as the test wishes.
#[derive(Default)]
struct Fate {
    /// It ends at once.
    dies: bool,
    /// It answers nothing.
    hangs: bool,
    /// It does not begin.
    is_missing: bool,
    /// It says that its disk is as large.
    size: Option<u64>,
    cannot_flush: bool,
    starts: u32,
}

type Shared = Arc<Mutex<Fate>>;

fn lock(fate: &Shared) -> MutexGuard<'_, Fate> {
    fate.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request on its way, or a change that no flush has covered.
#[derive(Debug)]
struct Entry {
    op: OwnedOp,
    /// Who waits for it.
    owner: Option<Token>,
    is_sent: bool,
    /// It was acknowledged before so many flushes.
    kept: Option<u64>,
}

enum Life {
    None,
    Starting,
    Runs,
    Bypassed,
}

/// A program that passes on what it is asked. What was not answered, and what no flush has
/// covered, it is asked once more by itself, as an NBD client would.
struct Loyal {
    queue: PendingQueue,
    fate: Shared,
    random: SimulatedRandom,
    life: Life,
    /// So large it was when it was there first; as another disk it is not there.
    served: Option<u64>,
    log: BTreeMap<u64, Entry>,
    next: u64,
    flushes: u64,
    /// In this life, by the queue's token.
    asked: HashMap<Token, u64>,
    last_token: Token,
    completions: Vec<Completion>,
}

impl Loyal {
    fn begin(&mut self, token: Token, op: OwnedOp) -> Started {
        if self.random.below(8) == 0 {
            return Started::Busy;
        }
        self.log.insert(
            self.next,
            Entry {
                op,
                owner: Some(token),
                is_sent: false,
                kept: None,
            },
        );
        self.next += 1;
        Started::Pending
    }

    fn interrupt(&mut self) {
        self.asked.clear();
        for entry in self.log.values_mut() {
            entry.is_sent = false;
        }
    }

    fn is_up(&self) -> bool {
        match self.life {
            Life::Runs => !lock(&self.fate).dies,
            Life::Bypassed => true,
            Life::None | Life::Starting => false,
        }
    }

    fn send(&mut self) {
        // What is kept goes first, one by one.
        let kept = self
            .log
            .iter()
            .find(|(_, entry)| entry.kept.is_some() && !entry.is_sent);
        let kept_is_under_way = self
            .asked
            .values()
            .any(|id| self.log.get(id).is_some_and(|entry| entry.kept.is_some()));
        let ids: Vec<u64> = match kept {
            _ if kept_is_under_way => return,
            Some((id, _)) => vec![*id],
            None => {
                let waiting = self.log.iter().filter(|(_, entry)| !entry.is_sent);
                waiting.map(|(id, _)| *id).collect()
            }
        };
        for id in ids {
            self.last_token += 1;
            let token = self.last_token;
            let entry = self.log.get_mut(&id).expect("it is there");
            entry.is_sent = true;
            self.flushes += u64::from(entry.op == OwnedOp::Flush);
            let (started, _) = entry.op.start_on(&mut self.queue, token);
            assert_eq!(started, Started::Pending);
            self.asked.insert(token, id);
        }
    }

    fn answered(&mut self, id: u64, result: Result<Outcome, IoError>) {
        let (flushes, entry) = (self.flushes, self.log.get_mut(&id).expect("it is there"));
        let is_ok = result.is_ok();
        match (entry.owner.take(), &entry.op) {
            (Some(token), OwnedOp::Write { .. }) if is_ok => {
                entry.kept = Some(flushes);
                self.completions.push(Completion { token, result });
            }
            (Some(token), op) => {
                let is_flush = *op == OwnedOp::Flush;
                self.log.remove(&id);
                if is_flush && is_ok {
                    // Of one flush at a time, which is what the test does.
                    self.log
                        .retain(|_, entry| entry.kept.is_none_or(|at| at >= flushes));
                }
                self.completions.push(Completion { token, result });
            }
            // It was made once more, and is kept still.
            (None, _) => assert!(
                is_ok,
                "a change that was acknowledged is refused: {result:?}"
            ),
        }
    }
}

impl Program for Loyal {
    fn launch(&mut self) {
        self.interrupt();
        self.life = Life::Starting;
        let mut fate = lock(&self.fate);
        fate.starts += 1;
        (fate.dies, fate.hangs) = (false, false);
    }

    fn bypass(&mut self) {
        self.interrupt();
        self.life = Life::Bypassed;
    }

    fn give_up(&mut self, why: &str) {
        self.interrupt();
        self.life = Life::None;
        let waiting: Vec<u64> = self
            .log
            .iter()
            .filter(|(_, entry)| entry.owner.is_some())
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.answered(id, Err(IoError::Unavailable(why.to_owned())));
        }
    }
}

impl RemoteDisk for Loyal {
    fn link_state(&self) -> LinkState {
        match self.life {
            Life::None => LinkState::Broken("it was given up".to_owned()),
            Life::Starting => LinkState::Connecting,
            Life::Runs if lock(&self.fate).dies => LinkState::Broken("it has died".to_owned()),
            Life::Runs | Life::Bypassed => LinkState::Ready,
        }
    }
}

impl BlockDevice for Loyal {
    fn geometry(&self) -> DeviceGeometry {
        let below = self.queue.geometry();
        DeviceGeometry {
            size_bytes: lock(&self.fate).size.unwrap_or(below.size_bytes),
            ..below
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            can_flush: !lock(&self.fate).cannot_flush,
            ..self.queue.capabilities()
        }
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { .. } | Op::Write { .. } | Op::Flush => self.begin(token, op.to_owned()),
            Op::Prefetch { .. } => Started::Done,
            Op::Trim { .. } | Op::WriteZeroes { .. } | Op::Extents { .. } => {
                Started::Failed(IoError::NotSupported)
            }
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let is_missing = lock(&self.fate).is_missing;
        if matches!(self.life, Life::Starting) && !is_missing && self.random.below(3) == 0 {
            let size = self.geometry().size_bytes;
            self.life = match *self.served.get_or_insert(size) == size {
                true => Life::Runs,
                false => Life::None,
            };
        }
        let mut came = Vec::new();
        self.queue.poll(&mut came);
        let answers = self.is_up() && !(matches!(self.life, Life::Runs) && lock(&self.fate).hangs);
        for completion in came {
            // Of an earlier life, or of one that is dead: nobody hears it, and it stays sent.
            let id = self.asked.remove(&completion.token);
            if let Some(id) = id.filter(|_| answers) {
                self.answered(id, completion.result);
            }
        }
        if answers {
            self.send();
        }
        completions.append(&mut self.completions);
    }

    fn next_timer(&self) -> Option<Duration> {
        let waits = self.is_up() && self.log.values().any(|entry| !entry.is_sent);
        let coming = matches!(self.life, Life::Starting);
        (waits || coming || !self.completions.is_empty()).then_some(Duration::from_millis(1))
    }
}

/// A disk on which a write happens when it is answered, and answers come in any order.
struct Late {
    bytes: Vec<u8>,
    /// It has grown by so much since, in bytes.
    grown: u64,
    pending: Vec<(Token, OwnedOp)>,
    /// Nothing is answered.
    holds: bool,
    random: SimulatedRandom,
}

impl Late {
    fn begin(&mut self, token: Token, op: OwnedOp) -> Started {
        if self.random.below(8) == 0 {
            return Started::Busy;
        }
        self.pending.push((token, op));
        Started::Pending
    }
}

impl BlockDevice for Late {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: SIZE as u64 + self.grown,
            block_bytes: BLOCK as u32,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { .. } | Op::Write { .. } | Op::Flush => self.begin(token, op.to_owned()),
            Op::Prefetch { .. } => Started::Done,
            Op::Trim { .. } | Op::WriteZeroes { .. } | Op::Extents { .. } => {
                Started::Failed(IoError::NotSupported)
            }
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if !self.holds && !self.pending.is_empty() && self.random.below(2) > 0 {
            let at = self.random.below(self.pending.len() as u64) as usize;
            let (token, op) = self.pending.swap_remove(at);
            let outcome = match op {
                OwnedOp::Read { offset, length } => {
                    Outcome::Data(self.bytes[offset as usize..][..length].to_vec())
                }
                OwnedOp::Write { offset, data, .. } => {
                    self.bytes[offset as usize..][..data.len()].copy_from_slice(&data);
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            completions.push(Completion {
                token,
                result: Ok(outcome),
            });
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        (!self.pending.is_empty()).then_some(Duration::from_millis(1))
    }
}

struct Makes(Shared);

impl Programs for Makes {
    fn program(
        &self,
        _: &FilterPolicy,
        _: &FilterContext,
        queue: PendingQueue,
    ) -> Result<Box<dyn Program>, String> {
        Ok(Box::new(Loyal {
            queue,
            fate: Arc::clone(&self.0),
            random: SimulatedRandom::new(7),
            life: Life::None,
            served: None,
            log: BTreeMap::new(),
            next: 0,
            flushes: 0,
            asked: HashMap::new(),
            last_token: 0,
            completions: Vec::new(),
        }))
    }
}

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl EventSink for Notes {
    fn report(&self, events: Vec<Event>) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            if let EventKind::Message(note) = event.kind {
                notes.push(note);
            }
        }
    }
}

struct Rig {
    chain: Chain<Late>,
    clock: Arc<SimulatedClock>,
    random: SimulatedRandom,
    fate: Shared,
    notes: Arc<Notes>,
    token: Token,
    context: FilterContext,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let fate = Shared::default();
        let notes = Arc::<Notes>::default();
        let mut context = FilterContext::simulated(World {
            clock: Arc::clone(&clock) as _,
            ..World::real(1)
        });
        context.host.programs = Arc::new(Makes(Arc::clone(&fate)));
        context.attachment.events = Arc::clone(&notes) as _;
        let device = Late {
            bytes: vec![0; SIZE],
            grown: 0,
            pending: Vec::new(),
            holds: false,
            random: SimulatedRandom::new(seed),
        };
        Self {
            chain: Chain::new(device, Arc::clone(&clock) as _, Wake::noop()),
            clock,
            random: SimulatedRandom::new(seed),
            fate,
            notes,
            token: 0,
            context,
        }
    }

    fn begin(&mut self, on_failure: &str) -> Result<(), HotSwapError> {
        let text = format!(
            "volume = \"disk\"\n[[filter]]\nkind = \"rate\"\nname = \"far\"\niops = 1\nruns = \
             \"process\"\non_failure = \"{on_failure}\"\n"
        );
        let policy = Policy::parse(&text).expect("it is one");
        let (tell, told) = mpsc::channel();
        self.chain.hot_swap(HotSwap {
            filters: build_filters(&policy, &self.context),
            rule: SizeRule::MayChange,
            told: Box::new(move |ended| tell.send(ended).expect("it is waited for")),
        });
        loop {
            self.poll();
            if let Ok(ended) = told.try_recv() {
                return ended;
            }
        }
    }

    /// A turn, after as long as nothing has to be done.
    fn poll(&mut self) -> Vec<Completion> {
        let timer = self.chain.next_timer().unwrap_or(Duration::from_millis(10));
        self.clock
            .advance(timer.clamp(Duration::from_micros(10), Duration::from_millis(20)));
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        self.chain.commit().expect("memory commits");
        completions
    }

    fn next(&mut self) -> Token {
        self.token += 1;
        self.token
    }

    /// Asks until it is begun, and waits for the answer.
    fn all(
        &mut self,
        mut ask: impl FnMut(&mut Chain<Late>, Token) -> Started,
    ) -> Result<Outcome, IoError> {
        let token = self.next();
        let mut early = loop {
            match ask(&mut self.chain, token) {
                Started::Busy => assert_eq!(self.poll(), []),
                Started::Failed(error) => return Err(error),
                Started::Done => panic!("a program is never so quick"),
                Started::Pending => break Vec::new(),
            }
        };
        loop {
            if let Some(at) = early.iter().position(|one: &Completion| one.token == token) {
                return early.swap_remove(at).result;
            }
            early.extend(self.poll());
        }
    }

    fn write(&mut self, block: usize, value: u8) -> Result<(), IoError> {
        let at = (block * BLOCK) as u64;
        let written = self.all(|chain, token| {
            chain.start(Request::write(
                token,
                at,
                &[value; BLOCK],
                Durability::Volatile,
            ))
        });
        written.map(|_| ())
    }

    fn read(&mut self, block: usize) -> Result<u8, IoError> {
        let at = (block * BLOCK) as u64;
        match self.all(|chain, token| chain.start(Request::read(token, at, &mut [0; BLOCK])))? {
            Outcome::Data(data) => {
                assert!(data.iter().all(|byte| *byte == data[0]), "torn");
                Ok(data[0])
            }
            other => panic!("a read brought {other:?}"),
        }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.all(|chain, token| chain.start(Request::flush(token)))
            .map(|_| ())
    }

    fn has_noted(&self, words: &str) -> bool {
        let notes = self.notes.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.iter().any(|note| note.contains(words))
    }
}

#[test]
fn a_program_that_ends_or_hangs_is_started_anew_and_nobody_above_hears_of_it() {
    for seed in 0..60 {
        let mut rig = Rig::new(seed);
        rig.begin("fail-closed").expect("it begins");
        let mut now = [0_u8; BLOCKS];
        for step in 0..200_u32 {
            let block = rig.random.below(8) as usize;
            match rig.random.below(20) {
                0..9 => {
                    let value = (step % 250) as u8 + 1;
                    // It may die at any moment of it.
                    if rig.random.below(4) == 0 {
                        lock(&rig.fate).dies = true;
                    }
                    rig.write(block, value).expect("nobody hears of it");
                    now[block] = value;
                }
                9..15 => {
                    let read = rig.read(block).expect("nobody hears of it");
                    assert_eq!(read, now[block], "seed {seed}, step {step}: block {block}");
                }
                15..17 => rig.flush().expect("nobody hears of it"),
                17 => lock(&rig.fate).dies = true,
                18 => lock(&rig.fate).hangs = true,
                _ => {
                    // What is below takes its time, and the program dies meanwhile.
                    rig.chain.bottom().holds = true;
                    let (token, at) = (rig.next(), (block * BLOCK) as u64);
                    let value = (step % 250) as u8 + 1;
                    while rig.chain.start(Request::write(
                        token,
                        at,
                        &[value; BLOCK],
                        Durability::Volatile,
                    )) != Started::Pending
                    {
                        rig.poll();
                    }
                    let mut came = Vec::new();
                    for turn in 0..40 {
                        came.extend(rig.poll());
                        if turn == 20 {
                            lock(&rig.fate).dies = true;
                        }
                    }
                    // It may be made once more before its first self has ended, if anybody
                    // lets it.
                    let before = lock(&rig.fate).starts;
                    while lock(&rig.fate).starts == before {
                        came.extend(rig.poll());
                    }
                    for _ in 0..50 {
                        came.extend(rig.poll());
                    }
                    rig.chain.bottom().holds = false;
                    while came.is_empty() {
                        came.extend(rig.poll());
                    }
                    let newer = value ^ 0x80;
                    rig.write(block, newer).expect("nobody hears of it");
                    while !rig.chain.bottom().pending.is_empty() {
                        rig.poll();
                    }
                    now[block] = newer;
                }
            }
        }
        rig.flush().expect("nobody hears of it");
        for (block, value) in now.iter().enumerate() {
            assert_eq!(rig.read(block), Ok(*value), "seed {seed}: block {block}");
        }
        assert!(lock(&rig.fate).starts > 1, "it was started anew");
    }
}

#[test]
fn who_stays_away_makes_a_closed_disk_fail_and_loses_nothing() {
    let mut rig = Rig::new(1);
    rig.begin("fail-closed").expect("it begins");
    rig.write(1, 11).expect("it is there");
    {
        let mut fate = lock(&rig.fate);
        (fate.dies, fate.is_missing) = (true, true);
    }
    let failed = rig.write(2, 22).expect_err("nobody is there");
    assert!(
        failed.to_string().contains("far does not answer"),
        "{failed}"
    );
    assert!(rig.read(1).is_err() && rig.flush().is_err());
    assert!(rig.has_noted("answers with errors"));
    lock(&rig.fate).is_missing = false;
    let is_back = |rig: &Rig| rig.has_noted("is back after");
    while !is_back(&rig) {
        rig.poll();
    }
    // What was acknowledged, and never flushed, is made once more.
    assert_eq!(rig.read(1), Ok(11));
    rig.flush().expect("it is there again");
}

#[test]
fn who_stays_away_is_gone_round_and_comes_back() {
    let mut rig = Rig::new(2);
    rig.begin("bypass").expect("it begins");
    rig.write(1, 11).expect("it is there");
    {
        let mut fate = lock(&rig.fate);
        (fate.dies, fate.is_missing) = (true, true);
    }
    rig.write(2, 22).expect("it goes round");
    assert!(rig.has_noted("goes on without it"));
    assert_eq!((rig.read(1), rig.read(2)), (Ok(11), Ok(22)));
    rig.flush().expect("all is below");
    // It is tried in vain, and nobody hears of it.
    for value in 0..200 {
        rig.write(3, value).expect("it goes round");
        rig.clock.advance(Duration::from_millis(300));
    }
    lock(&rig.fate).is_missing = false;
    while !rig.has_noted("is back after") {
        rig.poll();
    }
    assert_eq!(rig.read(3), Ok(199));
    rig.write(4, 44).expect("it is there");
    assert_eq!(rig.read(4), Ok(44));
}

#[test]
fn a_program_is_told_of_the_same_disk_when_that_has_grown() {
    let mut rig = Rig::new(6);
    rig.begin("fail-closed").expect("it begins");
    rig.write(1, 11).expect("it is there");
    rig.chain.bottom().grown = BLOCK as u64;
    lock(&rig.fate).dies = true;
    assert_eq!(rig.read(1), Ok(11), "its next life serves the same disk");
    assert_eq!(rig.chain.geometry().size_bytes, SIZE as u64);
}

#[test]
fn who_cannot_begin_or_lies_about_its_size_is_refused() {
    let mut rig = Rig::new(3);
    lock(&rig.fate).is_missing = true;
    let refused = rig.begin("fail-closed").expect_err("it is not there");
    assert!(refused.to_string().contains("within 15 s"), "{refused}");
    lock(&rig.fate).is_missing = false;
    lock(&rig.fate).size = Some(SIZE as u64 + 1);
    let refused = rig.begin("bypass").expect_err("it lies");
    assert!(
        refused.to_string().contains("there are 262144"),
        "{refused}"
    );
    lock(&rig.fate).size = None;
    lock(&rig.fate).cannot_flush = true;
    let refused = rig.begin("bypass").expect_err("it cannot flush");
    assert!(refused.to_string().contains("it cannot flush"), "{refused}");
    lock(&rig.fate).cannot_flush = false;
    rig.begin("bypass").expect("it begins");
    assert_eq!(rig.read(0), Ok(0));
}

#[test]
fn a_disk_that_is_closed_waits_for_no_program() {
    for rule in ["fail-closed", "bypass"] {
        let mut rig = Rig::new(4);
        rig.begin(rule).expect("it begins");
        rig.write(1, 11).expect("it is there");
        {
            let mut fate = lock(&rig.fate);
            (fate.dies, fate.is_missing) = (true, true);
        }
        rig.poll();
        rig.chain.stop_waiting();
        let begun = rig.clock.monotonic();
        let flushed = rig.flush();
        assert!(rig.clock.monotonic() - begun < Duration::from_secs(1));
        assert_eq!(flushed.is_ok(), rule == "bypass", "{rule}: {flushed:?}");
        let mut values = BTreeSet::new();
        for block in 0..4 {
            values.extend(rig.read(block).ok());
        }
        assert_eq!(values.contains(&11), rule == "bypass");
    }
}
