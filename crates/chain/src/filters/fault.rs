//! `fault`: injects errors, delays and torn writes at random, to test guests and other filters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, ByteRange, Completion, IoError, Op, OpKind, Outcome, Request, Started, Token,
};
use chain_policy::FaultConfig;
use world::Clock;
use world::simulated::SimulatedRandom;

use crate::Filter;

/// A write is torn at a multiple of this many bytes: disks write whole sectors.
const SECTOR_BYTES: usize = 512;

/// The largest number of busy requests that are remembered. The oldest are dropped: their requester
/// no longer retries them.
const OFFERED_MAX: usize = 1024;

/// Identifies a request that is retried after `Busy`, possibly with another token.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Offer {
    kind: OpKind,
    range: ByteRange,
}

impl Offer {
    fn of(op: &Op<'_>) -> Self {
        Self {
            kind: op.kind(),
            range: op.range(),
        }
    }
}

/// The faults of one request.
#[derive(Clone, Copy)]
struct Fate {
    fails: bool,
    /// Only this number of its sectors are written, and nothing after it.
    torn: Option<usize>,
    is_slow: bool,
}

/// A request with the faults that were drawn for it.
#[derive(Clone, Copy)]
struct Draw {
    offer: Offer,
    fate: Fate,
}

/// A completion that is delayed.
struct Delayed {
    due: Duration,
    completion: Completion,
}

/// The `fault` filter of a chain.
pub struct Fault {
    config: FaultConfig,
    random: SimulatedRandom,
    clock: Arc<dyn Clock>,
    delayed: VecDeque<Delayed>,
    /// Requests that found the device busy, with the faults that they get when they are retried.
    offered: VecDeque<Draw>,
    /// Tokens of pending requests whose completions will be delayed.
    slow: Vec<Token>,
    /// The torn write, whose completion is dropped.
    torn: Option<Token>,
    has_stopped: bool,
}

impl Fault {
    /// A filter that injects these faults.
    #[must_use]
    pub fn new(config: FaultConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            random: SimulatedRandom::new(config.seed),
            config,
            clock,
            delayed: VecDeque::new(),
            offered: VecDeque::new(),
            slow: Vec::new(),
            torn: None,
            has_stopped: false,
        }
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(self.config.delay_ms)
    }

    /// The faults of a request: drawn once, however often it is retried.
    fn draw_fate(&mut self, offer: Offer) -> Fate {
        let mut offered = self.offered.iter();
        if let Some(at) = offered.position(|draw| draw.offer == offer)
            && let Some(draw) = self.offered.remove(at)
        {
            return draw.fate;
        }
        let (config, random) = (&self.config, &self.random);
        let is_write = offer.kind == OpKind::Write;
        let errors = match is_write {
            true => config.write_errors_one_in,
            false => config.read_errors_one_in,
        };
        let fails = random.one_in(errors);
        let is_torn = is_write && random.one_in(config.torn_writes_one_in);
        let sectors = offer.range.length as usize / SECTOR_BYTES;
        Fate {
            fails,
            torn: is_torn.then(|| random.index(sectors + 1)),
            is_slow: random.one_in(config.delays_one_in),
        }
    }

    /// Remembers the faults of a request that found the device busy.
    fn remember(&mut self, draw: Draw) -> Started {
        if self.offered.len() == OFFERED_MAX {
            self.offered.pop_front();
        }
        self.offered.push_back(draw);
        Started::Busy
    }

    /// Delays the completion of a request that was started, if it is slow.
    fn answer(
        &mut self,
        token: Token,
        draw: Draw,
        started: Started,
        done: impl FnOnce() -> Outcome,
    ) -> Started {
        match started {
            Started::Busy => self.remember(draw),
            Started::Done if draw.fate.is_slow => {
                let completion = Completion {
                    token,
                    result: Ok(done()),
                };
                self.delay_completion(completion);
                Started::Pending
            }
            Started::Pending if draw.fate.is_slow => {
                self.slow.push(token);
                Started::Pending
            }
            other => other,
        }
    }

    /// Writes a part of a torn write, and fails every request after it.
    fn tear(&mut self, below: &mut dyn BlockDevice, part: Request<'_>, draw: Draw) -> Started {
        let token = part.token;
        if part.op.range().length > 0 {
            match below.start(part) {
                Started::Busy => return self.remember(draw),
                Started::Pending => self.torn = Some(token),
                Started::Done | Started::Failed(_) => {}
            }
        }
        self.has_stopped = true;
        Started::Failed(stopped())
    }

    fn delay_completion(&mut self, completion: Completion) {
        let due = self.clock.monotonic() + self.delay();
        self.delayed.push_back(Delayed { due, completion });
    }
}

fn failed(kind: OpKind) -> Started {
    let message = format!("the fault filter fails this {kind}");
    Started::Failed(IoError::Unavailable(message))
}

fn stopped() -> IoError {
    IoError::Stopped("the fault filter has torn a write and stopped the disk".to_owned())
}

impl Filter for Fault {
    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, mut op } = request;
        if self.has_stopped && op.kind() != OpKind::Prefetch {
            return Started::Failed(stopped());
        }
        if !matches!(op, Op::Read { .. } | Op::Write { .. }) {
            return below.start(Request { token, op });
        }
        let offer = Offer::of(&op);
        let fate = self.draw_fate(offer);
        if fate.fails {
            return failed(offer.kind);
        }
        if let (Some(sectors), Op::Write { data, .. }) = (fate.torn, &mut op) {
            *data = data.part(0..sectors * SECTOR_BYTES);
            return self.tear(below, Request { token, op }, Draw { offer, fate });
        }
        let started = below.start(Request {
            token,
            op: op.reborrow(),
        });
        self.answer(token, Draw { offer, fate }, started, || op.outcome())
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        below.poll(completions);
        if let Some(torn) = self.torn {
            let mine = completions.split_off(before);
            completions.extend(
                mine.into_iter()
                    .filter(|completion| completion.token != torn),
            );
        }
        if !self.slow.is_empty() {
            let mut at = before;
            while at < completions.len() {
                let token = completions[at].token;
                match self.slow.iter().position(|slow| *slow == token) {
                    Some(slow) => {
                        self.slow.swap_remove(slow);
                        let completion = completions.remove(at);
                        self.delay_completion(completion);
                    }
                    None => at += 1,
                }
            }
        }
        let now = self.clock.monotonic();
        while self
            .delayed
            .front()
            .is_some_and(|delayed| delayed.due <= now)
        {
            completions.extend(self.delayed.pop_front().map(|delayed| delayed.completion));
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        let first = self.delayed.front()?;
        Some(first.due.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use base::Durability;
    use testkit::memory_device::{MemoryDevice, Misbehavior};
    use world::simulated::SimulatedClock;
    use world::{Millis, Wake};

    use super::*;

    fn with(config: FaultConfig) -> (Fault, Arc<SimulatedClock>) {
        let clock = Arc::new(SimulatedClock::new(Millis(0)));
        (
            Fault::new(config, Arc::clone(&clock) as Arc<dyn Clock>),
            clock,
        )
    }

    fn write(fault: &mut Fault, below: &mut MemoryDevice, token: Token, byte: u8) -> Started {
        let offset = token * 4096;
        fault.start(
            below,
            Request::write(token, offset, &[byte; 4096], Durability::Volatile),
        )
    }

    #[test]
    fn requests_fail_at_the_configured_rate_and_are_not_carried_out() {
        let (mut fault, _) = with(FaultConfig {
            read_errors_one_in: 10,
            write_errors_one_in: 5,
            seed: 7,
            ..FaultConfig::default()
        });
        let mut below = MemoryDevice::new(4096 * 1000);
        let (mut writes, mut reads) = (0, 0);
        for token in 0..1000 {
            let there = token as usize * 4096;
            match write(&mut fault, &mut below, token, 1) {
                Started::Done => assert_eq!(below.bytes()[there], 1),
                failed => {
                    writes += 1;
                    assert!(matches!(failed, Started::Failed(_)), "{failed:?}");
                    assert_eq!(below.bytes()[there], 0);
                }
            }
            let read = fault.start(&mut below, Request::read(token, 0, &mut [0; 512]));
            reads += u64::from(read != Started::Done);
        }
        assert!((150..250).contains(&writes), "{writes}");
        assert!((60..140).contains(&reads), "{reads}");
    }

    /// The faults were drawn again for each retry, so a request that found the device busy failed
    /// more often.
    #[test]
    fn a_retried_request_keeps_its_faults() {
        let config = FaultConfig {
            write_errors_one_in: 10,
            read_errors_one_in: 10,
            seed: 3,
            ..FaultConfig::default()
        };
        let fates = |busy_one_in: u64| {
            let (mut fault, _) = with(config.clone());
            let misbehavior = Misbehavior {
                busy_one_in,
                seed: 5,
                ..Misbehavior::default()
            };
            let mut below = MemoryDevice::new(4096 * 500).with(misbehavior, Wake::noop());
            let mut offers = 0;
            let mut fails = Vec::new();
            for number in 0..500 {
                fails.push(loop {
                    offers += 1;
                    // The requester may choose another token each time.
                    let started = match number % 2 {
                        0 => {
                            let data = [1; 4096];
                            let at = number * 4096;
                            fault.start(
                                &mut below,
                                Request::write(offers, at, &data, Durability::Volatile),
                            )
                        }
                        _ => fault.start(
                            &mut below,
                            Request::read(offers, number * 4096, &mut [0; 512]),
                        ),
                    };
                    match started {
                        Started::Busy => {}
                        Started::Failed(_) => break true,
                        _ => break false,
                    }
                });
            }
            (fails, offers)
        };
        let (expected, _) = fates(0);
        let (found, offers) = fates(2);
        assert!(offers > 800, "{offers}");
        assert_eq!(found, expected);
    }

    #[test]
    fn a_delayed_request_completes_once_and_after_the_delay() {
        for pending_one_in in [0, 1] {
            let (mut fault, clock) = with(FaultConfig {
                delays_one_in: 1,
                delay_ms: 30,
                ..FaultConfig::default()
            });
            let misbehavior = Misbehavior {
                pending_one_in,
                ..Misbehavior::default()
            };
            let mut below = MemoryDevice::new(1 << 20).with(misbehavior, Wake::noop());
            assert_eq!(write(&mut fault, &mut below, 3, 9), Started::Pending);
            let read = fault.start(&mut below, Request::read(4, 4096 * 3, &mut [0; 512]));
            assert_eq!(read, Started::Pending);
            let mut completions = Vec::new();
            fault.poll(&mut below, &mut completions);
            assert_eq!(completions, []);
            assert_eq!(fault.next_timer(), Some(Duration::from_millis(30)));
            clock.advance(Duration::from_millis(30));
            fault.poll(&mut below, &mut completions);
            completions.sort_by_key(|completion| completion.token);
            let read = completions.pop().expect("two completions");
            assert_eq!(read.result, Ok(Outcome::Data(vec![9; 512])));
            assert_eq!(completions.len(), 1);
            fault.poll(&mut below, &mut completions);
            assert_eq!(completions.len(), 1, "each completes once");
        }
    }

    #[test]
    fn a_torn_write_is_the_last_one() {
        for seed in 0..50 {
            let (mut fault, _) = with(FaultConfig {
                torn_writes_one_in: 1,
                seed,
                ..FaultConfig::default()
            });
            let misbehavior = Misbehavior {
                pending_one_in: 2,
                seed,
                ..Misbehavior::default()
            };
            let mut below = MemoryDevice::new(1 << 20).with(misbehavior, Wake::noop());
            let torn = write(&mut fault, &mut below, 0, 5);
            assert!(matches!(torn, Started::Failed(_)), "{torn:?}");
            let written = below.bytes().iter().filter(|byte| **byte == 5).count();
            assert_eq!(written % SECTOR_BYTES, 0);
            assert!(below.bytes()[..written].iter().all(|byte| *byte == 5));
            let flushed = fault.start(&mut below, Request::flush(1));
            assert!(matches!(flushed, Started::Failed(_)), "{flushed:?}");
            let mut completions = Vec::new();
            fault.poll(&mut below, &mut completions);
            assert_eq!(completions, [], "no request is pending");
        }
    }
}
