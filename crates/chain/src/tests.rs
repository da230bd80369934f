//! Chains over a device in memory that is late, busy and away at times.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op, Outcome,
    Request, Started, Token, ZeroMode,
};
use nbd::memory::{MemoryDevice, Misbehavior};
use world::simulated::{SimulatedClock, SimulatedRandom};
use world::{Clock, Millis, Wake};

use crate::{Chain, Exchange, ExchangeError, Filter, Opening, SizeRule};

const SIZE: usize = 64 << 10;

/// Content is other below: what has a hole there has none above.
struct Xor(u8);

impl Xor {
    fn turn(&self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte ^= self.0);
    }
}

impl Filter for Xor {
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities {
            can_trim: false,
            can_write_zeroes: false,
            can_extents: false,
            ..below
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { offset, mut out } => {
                let op = Op::Read {
                    offset,
                    out: out.reborrow(),
                };
                let started = below.start(Request { token, op });
                if started == Started::Done {
                    out.for_each_slice(|_, slice| self.turn(slice));
                }
                started
            }
            Op::Write {
                offset,
                data,
                durability,
            } => {
                let mut data = data.to_vec();
                self.turn(&mut data);
                below.start(Request::write(token, offset, &data, durability))
            }
            op => below.start(Request { token, op }),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        below.poll(completions);
        for completion in &mut completions[before..] {
            if let Ok(Outcome::Data(data)) = &mut completion.result {
                self.turn(data);
            }
        }
    }
}

/// Chooses the tokens below itself, and answers everything late. While it begins it reads.
#[derive(Default)]
struct Renames {
    last: Token,
    asked: HashMap<Token, Token>,
    /// Answered in the call; handed up by the next poll.
    ready: Vec<Completion>,
    opening: Option<Token>,
    is_resting: bool,
}

impl Renames {
    fn next(&mut self) -> Token {
        self.last += 1;
        self.last
    }

    fn renamed(&mut self, own: Token, token: Token, started: Started, done: Outcome) -> Started {
        match started {
            Started::Done => self.ready.push(Completion {
                token,
                result: Ok(done),
            }),
            Started::Pending => assert_eq!(self.asked.insert(own, token), None),
            other => return other,
        }
        Started::Pending
    }
}

impl Filter for Renames {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        match self.opening {
            Some(0) => return Opening::Ready,
            Some(_) => return Opening::UnderWay,
            None => {}
        }
        let own = self.next();
        match below.start(Request::read(own, 0, &mut [0; 512])) {
            Started::Done => self.opening = Some(0),
            Started::Pending => self.opening = Some(own),
            Started::Busy => {}
            Started::Failed(error) => return Opening::Failed(error.to_string()),
        }
        match self.opening {
            Some(0) => Opening::Ready,
            _ => Opening::UnderWay,
        }
    }

    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            mut op @ (Op::Read { .. } | Op::Write { .. } | Op::Flush) => {
                let own = self.next();
                let started = below.start(Request {
                    token: own,
                    op: op.reborrow(),
                });
                self.renamed(own, token, started, op.outcome())
            }
            op => below.start(Request { token, op }),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        completions.append(&mut self.ready);
        let mut answered = Vec::new();
        below.poll(&mut answered);
        for completion in answered {
            if self.opening == Some(completion.token) {
                self.opening = Some(0);
                continue;
            }
            let token = self.asked.remove(&completion.token).expect("it was asked");
            completions.push(Completion {
                token,
                ..completion
            });
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        (!self.ready.is_empty()).then_some(Duration::ZERO)
    }

    fn rest(&mut self) -> bool {
        self.is_resting = true;
        self.asked.is_empty() && self.ready.is_empty()
    }

    fn resume(&mut self) {
        self.is_resting = false;
    }
}

/// Is larger than what is below it.
struct Larger;

impl Filter for Larger {
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: below.size_bytes + 4096,
            ..below
        }
    }
}

/// Is as large as it was when it began.
#[derive(Default)]
struct Stays {
    size_bytes: u64,
}

impl Filter for Stays {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        self.size_bytes = below.geometry().size_bytes;
        Opening::Ready
    }

    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.size_bytes,
            ..below
        }
    }
}

struct Fails;

impl Filter for Fails {
    fn open(&mut self, _: &mut dyn BlockDevice) -> Opening {
        Opening::Failed("no key".to_owned())
    }
}

type Ended = Rc<RefCell<Vec<Result<(), ExchangeError>>>>;

struct Rig {
    chain: Chain<MemoryDevice>,
    clock: Arc<SimulatedClock>,
    ended: Ended,
}

impl Rig {
    fn new(misbehavior: Misbehavior) -> Self {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        let device = MemoryDevice::new(SIZE).with(misbehavior, Wake::noop());
        Self {
            chain: Chain::new(device, Arc::clone(&clock) as Arc<dyn Clock>, Wake::noop()),
            clock,
            ended: Ended::default(),
        }
    }

    fn begin_exchange(&mut self, filters: Vec<Box<dyn Filter>>, rule: SizeRule) {
        let ended = Rc::clone(&self.ended);
        self.chain.exchange(Exchange {
            filters,
            rule,
            told: Box::new(move |result| ended.borrow_mut().push(result)),
        });
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        self.chain.commit().expect("committed");
        completions
    }

    /// Exchanges filters while nothing else goes on.
    fn exchange(&mut self, filters: Vec<Box<dyn Filter>>) -> Result<(), ExchangeError> {
        self.begin_exchange(filters, SizeRule::MayChange);
        for _ in 0..100 {
            assert_eq!(self.poll(), []);
            if let Some(ended) = self.ended.borrow_mut().pop() {
                return ended;
            }
        }
        panic!("it does not end");
    }

    fn write(&mut self, token: Token, offset: u64, byte: u8) -> Started {
        let data = [byte; 512];
        self.chain
            .start(Request::write(token, offset, &data, Durability::Volatile))
    }

    fn read(&mut self, token: Token, offset: u64) -> (Started, Vec<u8>) {
        let mut out = vec![0; 512];
        let started = self.chain.start(Request::read(token, offset, &mut out));
        (started, out)
    }
}

/// All of these make the same of what is below them.
fn filters_alike(random: &SimulatedRandom) -> Vec<Box<dyn Filter>> {
    match random.below(4) {
        0 => vec![Box::new(Xor(0x5a))],
        1 => vec![Box::new(Renames::default()), Box::new(Xor(0x5a))],
        2 => vec![
            Box::new(Xor(0x50)),
            Box::new(Renames::default()),
            Box::new(Xor(0x0a)),
        ],
        _ => vec![
            Box::new(Renames::default()),
            Box::new(Renames::default()),
            Box::new(Xor(0x5a)),
        ],
    }
}

#[test]
fn a_chain_is_a_disk_whatever_filters_are_exchanged_meanwhile() {
    for seed in 0..300 {
        let random = SimulatedRandom::new(seed);
        let mut rig = Rig::new(Misbehavior {
            pending_one_in: 2,
            busy_one_in: 5,
            seed,
            ..Misbehavior::default()
        });
        rig.exchange(filters_alike(&random)).expect("exchanged");
        let mut model = vec![0x5a_u8; SIZE];
        // What is under way, and of reads what they are to bring.
        let mut waiting: HashMap<Token, (u64, Option<Vec<u8>>)> = HashMap::new();
        let mut exchanges = 0;
        for token in 0..500 {
            let offset = random.below(SIZE as u64 / 512) * 512;
            let is_free = waiting.values().all(|(at, _)| *at != offset);
            let there = offset as usize..offset as usize + 512;
            match random.below(8) {
                0..=2 if is_free => {
                    let (started, out) = rig.read(token, offset);
                    match started {
                        Started::Done => assert_eq!(out, model[there], "seed {seed}"),
                        Started::Pending => {
                            waiting.insert(token, (offset, Some(model[there].to_vec())));
                        }
                        Started::Busy => {}
                        Started::Failed(error) => panic!("seed {seed}: {error}"),
                    }
                }
                3..=5 if is_free => {
                    let byte = random.below(256) as u8;
                    let started = rig.write(token, offset, byte);
                    match started {
                        Started::Done | Started::Pending => model[there].fill(byte),
                        Started::Busy => {}
                        Started::Failed(error) => panic!("seed {seed}: {error}"),
                    }
                    if started == Started::Pending {
                        waiting.insert(token, (offset, None));
                    }
                }
                6 if random.one_in(8) => {
                    rig.begin_exchange(filters_alike(&random), SizeRule::Keep);
                    exchanges += 1;
                }
                _ => {
                    for completion in rig.poll() {
                        let asked = waiting.remove(&completion.token);
                        let (_, expected) = asked.expect("it is under way, and answered once");
                        match (completion.result, expected) {
                            (Ok(Outcome::Data(data)), Some(expected)) => {
                                assert_eq!(data, expected, "seed {seed}");
                            }
                            (Ok(Outcome::Done), None) => {}
                            (other, _) => panic!("seed {seed}: {other:?}"),
                        }
                    }
                }
            }
        }
        while !waiting.is_empty() {
            for completion in rig.poll() {
                waiting.remove(&completion.token).expect("it is under way");
            }
        }
        for _ in 0..100 {
            rig.poll();
        }
        let ended = rig.ended.borrow();
        assert_eq!(ended.len(), exchanges, "seed {seed}: each is told of");
        let is_well =
            |ended: &&Result<(), _>| matches!(ended, Ok(()) | Err(ExchangeError::UnderWay));
        assert_eq!(ended.iter().find(|ended| !is_well(ended)), None);
        let below: Vec<u8> = model.iter().map(|byte| byte ^ 0x5a).collect();
        assert!(rig.chain.bottom().bytes() == below, "seed {seed}");
    }
}

#[test]
fn nothing_is_exchanged_while_something_is_under_way() {
    let mut rig = Rig::new(Misbehavior {
        pending_one_in: 1,
        holds_completions: true,
        ..Misbehavior::default()
    });
    assert_eq!(rig.write(7, 0, 1), Started::Pending);
    rig.begin_exchange(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.chain.next_timer(), Some(Duration::ZERO), "it begins");
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.write(8, 512, 2), Started::Busy);
    assert_eq!(rig.chain.next_timer(), Some(Duration::from_secs(10)));
    rig.begin_exchange(Vec::new(), SizeRule::Keep);
    assert_eq!(rig.ended.take(), [Err(ExchangeError::UnderWay)]);
    // It takes too long: the old filters go on, and what was refused is offered again.
    rig.clock.advance(Duration::from_secs(10));
    assert_eq!(rig.poll(), []);
    let ended = rig.ended.take();
    assert!(
        matches!(ended[..], [Err(ExchangeError::Late { .. })]),
        "{ended:?}"
    );
    assert_eq!(rig.chain.next_timer(), Some(Duration::ZERO));
    rig.chain.bottom().misbehavior.holds_completions = false;
    let answered: Vec<Token> = rig.poll().iter().map(|one| one.token).collect();
    assert_eq!(answered, [7]);
    assert_eq!(rig.exchange(vec![Box::new(Xor(1))]), Ok(()));
}

/// A flush of the chain's own came after the exchange was given up, and was taken for an
/// answer of the guest's.
#[test]
fn a_flush_that_comes_late_is_nobodys() {
    let mut rig = Rig::new(Misbehavior {
        pending_one_in: 1,
        holds_completions: true,
        ..Misbehavior::default()
    });
    rig.begin_exchange(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.chain.bottom().calls.flushes, 1);
    rig.clock.advance(Duration::from_secs(10));
    assert_eq!(rig.poll(), []);
    assert!(matches!(
        rig.ended.take()[..],
        [Err(ExchangeError::Late { .. })]
    ));
    // Another exchange does not take it for its own either.
    rig.begin_exchange(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.chain.bottom().calls.flushes, 1);
    rig.chain.bottom().misbehavior.holds_completions = false;
    for _ in 0..10 {
        assert_eq!(rig.poll(), []);
    }
    assert_eq!(rig.ended.take(), [Ok(())]);
    assert_eq!(rig.chain.bottom().calls.flushes, 2);
}

/// An agent flushed a volume past its chain: the answer was counted as one of the
/// chain's, of which there were none.
#[test]
fn what_is_asked_past_the_chain_is_nobodys() {
    let mut rig = Rig::new(Misbehavior {
        pending_one_in: 1,
        ..Misbehavior::default()
    });
    assert_eq!(
        rig.chain.bottom().start(Request::flush(5)),
        Started::Pending
    );
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.write(5, 0, 1), Started::Pending);
    assert_eq!(rig.poll().len(), 1);
    assert_eq!(rig.exchange(vec![Box::new(Xor(1))]), Ok(()));
}

/// Whoever waited for it waited for ever.
#[test]
fn a_chain_that_is_closed_ends_its_exchange() {
    let away = Misbehavior {
        pending_one_in: 1,
        holds_completions: true,
        ..Misbehavior::default()
    };
    let mut rig = Rig::new(away.clone());
    rig.begin_exchange(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.poll(), []);
    rig.chain.stop_waiting();
    assert_eq!(rig.ended.take(), [Err(ExchangeError::Stopped)]);
    assert_eq!(
        rig.chain.start(Request::flush(1)),
        Started::Pending,
        "the last flush is taken"
    );
    rig.begin_exchange(vec![Box::new(Xor(1))], SizeRule::MayChange);
    assert_eq!(rig.ended.take(), [Err(ExchangeError::Stopped)]);
    let mut rig = Rig::new(away);
    rig.begin_exchange(vec![Box::new(Xor(1))], SizeRule::MayChange);
    drop(rig.chain.into_bottom());
    assert_eq!(rig.ended.take(), [Err(ExchangeError::Stopped)]);
}

/// The 256th that failed had the number of the filters in use: what it had asked was
/// answered to them.
#[test]
fn however_many_exchanges_fail_the_filters_in_use_are_told_apart() {
    let mut rig = Rig::new(Misbehavior::default());
    for _ in 0..600 {
        let failed = rig.exchange(vec![Box::new(Fails)]);
        assert!(
            matches!(failed, Err(ExchangeError::Filter { .. })),
            "{failed:?}"
        );
        assert_ne!(rig.chain.last_generation(), 1, "it is in use");
    }
}

#[test]
fn what_the_guest_knows_of_its_disk_stays() {
    let mut rig = Rig::new(Misbehavior::default());
    rig.begin_exchange(vec![Box::new(Larger)], SizeRule::Keep);
    rig.poll();
    let size = SIZE as u64;
    let would_be = size + 4096;
    let refused = Err(ExchangeError::Size { is: size, would_be });
    assert_eq!(rig.ended.take(), [refused]);
    rig.begin_exchange(vec![Box::new(Xor(1))], SizeRule::Keep);
    rig.poll();
    assert_eq!(rig.ended.take(), [Err(ExchangeError::Verbs("trim"))]);
    assert!(rig.chain.capabilities().can_trim);
    // Before anybody has seen it, it may be another.
    assert_eq!(rig.exchange(vec![Box::new(Larger)]), Ok(()));
    assert_eq!(rig.chain.geometry().size_bytes, would_be);
}

#[test]
fn a_guest_sees_growth_that_a_filter_has_kept_from_it_and_no_other() {
    let size = SIZE as u64;
    let mut rig = Rig::new(Misbehavior::default());
    assert_eq!(rig.exchange(vec![Box::<Stays>::default()]), Ok(()));
    rig.chain.bottom().grow(SIZE + 8192);
    assert_eq!(rig.chain.geometry().size_bytes, size);
    let exchange = |rig: &mut Rig, filters| {
        rig.begin_exchange(filters, SizeRule::Keep);
        rig.poll();
        rig.ended.take()
    };
    // Neither less nor more than what came.
    let larger: Vec<Box<dyn Filter>> = vec![Box::new(Larger)];
    let would_be = size + 8192 + 4096;
    let refused = Err(ExchangeError::Size { is: size, would_be });
    assert_eq!(exchange(&mut rig, larger), [refused]);
    let stays = || -> Vec<Box<dyn Filter>> { vec![Box::<Stays>::default()] };
    assert_eq!(exchange(&mut rig, stays()), [Ok(())]);
    assert_eq!(rig.chain.geometry().size_bytes, size + 8192);
    rig.chain.bottom().grow(SIZE + 8192 + 4096);
    assert_eq!(exchange(&mut rig, Vec::new()), [Ok(())]);
    // None has kept anything.
    rig.chain.bottom().grow(SIZE + 8192 + 8192);
    let is = rig.chain.geometry().size_bytes;
    assert_eq!(is, size + 8192 + 8192);
    let would_be = is + 4096;
    let larger: Vec<Box<dyn Filter>> = vec![Box::new(Larger)];
    let refused = Err(ExchangeError::Size { is, would_be });
    assert_eq!(exchange(&mut rig, larger), [refused]);
}

#[test]
fn a_filter_that_cannot_begin_leaves_the_old_ones() {
    let mut rig = Rig::new(Misbehavior::default());
    assert_eq!(rig.exchange(vec![Box::new(Xor(3))]), Ok(()));
    assert_eq!(rig.write(1, 0, 7), Started::Done);
    let failed = rig.exchange(vec![Box::new(Fails), Box::new(Renames::default())]);
    let reason = "no key".to_owned();
    assert_eq!(failed, Err(ExchangeError::Filter { at: 0, reason }));
    assert_eq!(rig.read(2, 0), (Started::Done, vec![7; 512]));
    assert_eq!(rig.chain.bottom().bytes()[0], 7 ^ 3);
}

/// What a filter that never began has asked is answered to the next ones under their tokens.
#[test]
fn what_given_up_filters_have_asked_is_nobodys() {
    let mut rig = Rig::new(Misbehavior {
        pending_one_in: 1,
        ..Misbehavior::default()
    });
    rig.begin_exchange(vec![Box::new(Renames::default())], SizeRule::Keep);
    for _ in 0..2 {
        assert_eq!(rig.poll(), []);
        let is_reading = rig.chain.bottom().unanswered() > 0;
        rig.chain.bottom().misbehavior.holds_completions =
            is_reading && rig.chain.bottom().calls.flushes > 0;
    }
    // It reads, and is not answered.
    assert_eq!(rig.chain.bottom().unanswered(), 1);
    rig.clock.advance(Duration::from_secs(15));
    assert_eq!(rig.poll(), []);
    let ended = rig.ended.take();
    assert!(
        matches!(ended[..], [Err(ExchangeError::Late { .. })]),
        "{ended:?}"
    );
    // Its own token was 1.
    assert_eq!(rig.read(1, 4096).0, Started::Pending);
    rig.chain.bottom().misbehavior.holds_completions = false;
    let answered = rig.poll();
    assert_eq!(answered.len(), 1, "{answered:?}");
    assert_eq!(answered[0].token, 1);
}

#[test]
fn what_is_zeroed_or_trimmed_passes_through() {
    let mut rig = Rig::new(Misbehavior::default());
    assert_eq!(rig.exchange(vec![Box::new(Larger)]), Ok(()));
    assert_eq!(rig.write(1, 0, 9), Started::Done);
    let mode = ZeroMode {
        durability: Durability::Durable,
        may_punch: true,
        fast_only: false,
    };
    assert_eq!(
        rig.chain.start(Request::write_zeroes(2, 0, 100, mode)),
        Started::Done
    );
    assert_eq!(rig.chain.bottom().bytes()[99..101], [0, 9]);
    let trimmed = rig
        .chain
        .start(Request::trim(3, 0, 4096, Durability::Volatile));
    assert_eq!(trimmed, Started::Done);
    assert_eq!(rig.chain.bottom().bytes()[101], 0);
    let mut runs = Vec::new();
    assert_eq!(
        rig.chain.start(Request::extents(4, 0, 4096, &mut runs)),
        Started::Done
    );
    assert_eq!(runs.len(), 1);
    assert_eq!(
        rig.chain.start(Request::prefetch(5, 0, 4096)),
        Started::Done
    );
    assert_eq!(rig.chain.bottom().calls.prefetches, 1);
    // What is wrong below is told above.
    rig.chain.bottom().misbehavior.damaged = 0..1;
    let (failed, _) = rig.read(6, 0);
    assert!(
        matches!(failed, Started::Failed(IoError::Damaged(_))),
        "{failed:?}"
    );
}

/// It never begins.
struct Never;

impl Filter for Never {
    fn open(&mut self, _: &mut dyn BlockDevice) -> Opening {
        Opening::UnderWay
    }
}

/// A relay waits for an hour, and said that it had waited for 15 s.
#[test]
fn what_is_late_says_how_long_it_was_waited_for() {
    for (within, expected) in [
        (None, "a filter has not begun within 15 s"),
        (Some(3600), "a filter has not begun within 3600 s"),
    ] {
        let mut rig = Rig::new(Misbehavior::default());
        if let Some(within) = within {
            rig.chain.set_open_within(Duration::from_secs(within));
        }
        rig.begin_exchange(vec![Box::new(Never)], SizeRule::Keep);
        assert_eq!(rig.poll(), []);
        rig.clock
            .advance(Duration::from_secs(within.unwrap_or(15) - 1));
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.ended.take(), []);
        rig.clock.advance(Duration::from_secs(1));
        assert_eq!(rig.poll(), []);
        let [Err(late)] = &rig.ended.take()[..] else {
            panic!("it is late");
        };
        assert_eq!(late.to_string(), expected);
    }
}

/// It begins when it was asked so often.
struct After(u32);

impl Filter for After {
    fn open(&mut self, _: &mut dyn BlockDevice) -> Opening {
        self.0 = self.0.saturating_sub(1);
        match self.0 {
            0 => Opening::Ready,
            _ => Opening::UnderWay,
        }
    }
}

/// Asks for nothing before it is asked to begin.
#[derive(Default)]
struct Waits {
    was_asked: bool,
}

impl Filter for Waits {
    fn open(&mut self, _: &mut dyn BlockDevice) -> Opening {
        self.was_asked = true;
        Opening::Ready
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        assert!(self.was_asked, "what is below it has not begun");
        below.poll(completions);
    }

    fn next_timer(&self) -> Option<Duration> {
        assert!(self.was_asked, "what is below it has not begun");
        None
    }
}

#[test]
fn a_filter_does_nothing_before_those_below_it_have_begun() {
    for rule in [SizeRule::First, SizeRule::Keep] {
        let mut rig = Rig::new(Misbehavior::default());
        let filters: Vec<Box<dyn Filter>> = vec![
            Box::<Waits>::default(),
            Box::new(After(5)),
            Box::new(After(5)),
        ];
        rig.begin_exchange(filters, rule);
        for _ in 0..20 {
            assert_eq!(rig.poll(), []);
            rig.chain.next_timer();
        }
        assert_eq!(rig.ended.take(), [Ok(())]);
    }
}
