//! Chains over a device in memory that is slow, busy or unavailable at times.

mod opening;
mod swaps;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op, Outcome,
    Request, Started, Token, ZeroMode,
};
use testkit::memory_device::{MemoryDevice, Misbehavior};
use world::simulated::{SimulatedClock, SimulatedRandom};
use world::{Clock, Millis, Wake};

use crate::{Chain, Filter, HotSwap, HotSwapError, Opening, SizeRule};

const SIZE: usize = 64 << 10;

/// Changes the content, so that a hole below is no hole above.
struct Xor(u8);

impl Xor {
    fn apply(&self, bytes: &mut [u8]) {
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
                    out.for_each_slice(|_, slice| self.apply(slice));
                }
                started
            }
            Op::Write {
                offset,
                data,
                durability,
            } => {
                let mut data = data.to_vec();
                self.apply(&mut data);
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
                self.apply(data);
            }
        }
    }
}

/// Chooses its own tokens below, and completes every request in a later poll. Reads while it opens.
#[derive(Default)]
struct OwnTokens {
    last: Token,
    pending: HashMap<Token, Token>,
    /// Requests that the device below completed at once, for the next poll.
    ready: Vec<Completion>,
    opening: Option<Token>,
    is_quiescent: bool,
}

impl OwnTokens {
    fn next(&mut self) -> Token {
        self.last += 1;
        self.last
    }

    fn track(&mut self, own: Token, token: Token, started: Started, done: Outcome) -> Started {
        match started {
            Started::Done => self.ready.push(Completion {
                token,
                result: Ok(done),
            }),
            Started::Pending => assert_eq!(self.pending.insert(own, token), None),
            other => return other,
        }
        Started::Pending
    }
}

impl Filter for OwnTokens {
    fn open(&mut self, below: &mut dyn BlockDevice) -> Opening {
        match self.opening {
            Some(0) => return Opening::Ready,
            Some(_) => return Opening::Pending,
            None => {}
        }
        let own = self.next();
        match below.start(Request::read(own, 0, &mut [0; 512])) {
            Started::Done => self.opening = Some(0),
            Started::Pending => self.opening = Some(own),
            Started::Busy => {}
            Started::Failed(error) => return Opening::Failed(error.to_string().into()),
        }
        match self.opening {
            Some(0) => Opening::Ready,
            _ => Opening::Pending,
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
                self.track(own, token, started, op.outcome())
            }
            op => below.start(Request { token, op }),
        }
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        completions.append(&mut self.ready);
        let mut below_completions = Vec::new();
        below.poll(&mut below_completions);
        for completion in below_completions {
            if self.opening == Some(completion.token) {
                self.opening = Some(0);
                continue;
            }
            let token = self
                .pending
                .remove(&completion.token)
                .expect("it is pending");
            completions.push(Completion {
                token,
                ..completion
            });
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        (!self.ready.is_empty()).then_some(Duration::ZERO)
    }

    fn quiesce(&mut self) -> bool {
        self.is_quiescent = true;
        self.pending.is_empty() && self.ready.is_empty()
    }

    fn resume(&mut self) {
        self.is_quiescent = false;
    }
}

/// Is 4096 bytes larger than the device below.
struct Larger;

impl Filter for Larger {
    fn geometry(&self, below: DeviceGeometry) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: below.size_bytes + 4096,
            ..below
        }
    }
}

/// Keeps the size that it had when it was opened.
#[derive(Default)]
struct KeepsSize {
    size_bytes: u64,
}

impl Filter for KeepsSize {
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
        Opening::Failed("no key".to_owned().into())
    }
}

type Ended = Rc<RefCell<Vec<Result<(), HotSwapError>>>>;

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

    fn begin_hot_swap(&mut self, filters: Vec<Box<dyn Filter>>, rule: SizeRule) {
        let ended = Rc::clone(&self.ended);
        self.chain.hot_swap(HotSwap {
            filters,
            rule,
            on_swapped: Box::new(move |result| ended.borrow_mut().push(result)),
        });
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.chain.poll(&mut completions);
        self.chain.end_batch().expect("the batch ends");
        completions
    }

    /// Swaps filters while no request is pending.
    fn hot_swap(&mut self, filters: Vec<Box<dyn Filter>>) -> Result<(), HotSwapError> {
        self.begin_hot_swap(filters, SizeRule::MayChange);
        for _ in 0..100 {
            assert_eq!(self.poll(), []);
            if let Some(ended) = self.ended.borrow_mut().pop() {
                return ended;
            }
        }
        panic!("the hot swap does not end");
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

/// A chain of filters that shows the same content as every other that this returns.
fn equivalent_filters(random: &SimulatedRandom) -> Vec<Box<dyn Filter>> {
    match random.below(4) {
        0 => vec![Box::new(Xor(0x5a))],
        1 => vec![Box::new(OwnTokens::default()), Box::new(Xor(0x5a))],
        2 => vec![
            Box::new(Xor(0x50)),
            Box::new(OwnTokens::default()),
            Box::new(Xor(0x0a)),
        ],
        _ => vec![
            Box::new(OwnTokens::default()),
            Box::new(OwnTokens::default()),
            Box::new(Xor(0x5a)),
        ],
    }
}

#[test]
fn a_chain_is_a_disk_whatever_filters_are_swapped_meanwhile() {
    for seed in 0..300 {
        let random = SimulatedRandom::new(seed);
        let mut rig = Rig::new(Misbehavior {
            pending_one_in: 2,
            busy_one_in: 5,
            seed,
            ..Misbehavior::default()
        });
        rig.hot_swap(equivalent_filters(&random)).expect("swapped");
        let mut model = vec![0x5a_u8; SIZE];
        // What is under way, and of reads what they are to bring.
        let mut waiting: HashMap<Token, (u64, Option<Vec<u8>>)> = HashMap::new();
        let mut swaps = 0;
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
                    rig.begin_hot_swap(equivalent_filters(&random), SizeRule::Keep);
                    swaps += 1;
                }
                _ => {
                    for completion in rig.poll() {
                        let pending = waiting.remove(&completion.token);
                        let (_, expected) = pending.expect("it is pending, and completes once");
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
                waiting.remove(&completion.token).expect("it is pending");
            }
        }
        for _ in 0..100 {
            rig.poll();
        }
        let ended = rig.ended.borrow();
        assert_eq!(ended.len(), swaps, "seed {seed}: each hot swap is reported");
        let is_well =
            |ended: &&Result<(), _>| matches!(ended, Ok(()) | Err(HotSwapError::InProgress));
        assert_eq!(ended.iter().find(|ended| !is_well(ended)), None);
        let below: Vec<u8> = model.iter().map(|byte| byte ^ 0x5a).collect();
        assert!(rig.chain.bottom().bytes() == below, "seed {seed}");
    }
}

/// An agent flushed a volume below its chain, and the completion was counted as one of the chain's,
/// which had no pending request.
#[test]
fn requests_that_bypass_the_chain_complete_no_request_of_it() {
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
    assert_eq!(rig.hot_swap(vec![Box::new(Xor(1))]), Ok(()));
}

#[test]
fn a_filter_forwards_operations_that_it_does_not_handle() {
    let mut rig = Rig::new(Misbehavior::default());
    assert_eq!(rig.hot_swap(vec![Box::new(Larger)]), Ok(()));
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
    // Errors below are reported above.
    rig.chain.bottom().misbehavior.damaged = 0..1;
    let (failed, _) = rig.read(6, 0);
    assert!(
        matches!(failed, Started::Failed(IoError::Damaged(_))),
        "{failed:?}"
    );
}
