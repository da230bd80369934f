//! `fault`: errors, delays and a sudden end, by chance: to find out what a guest, or
//! another filter, makes of them.

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

/// A write is torn at a multiple of this, in bytes: disks write sectors whole.
const SECTOR_BYTES: usize = 512;

/// So many requests wait at most to be offered again. The oldest are forgotten: whoever
/// asked them has gone.
const OFFERED_MAX: usize = 1024;

/// What a request is recognized by when it is offered again: its token may be another one then.
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

/// What chance has in store for a request.
#[derive(Clone, Copy)]
struct Fate {
    fails: bool,
    /// Only so many sectors of it are written, and nothing after it.
    torn: Option<usize>,
    is_slow: bool,
}

/// An answer that is kept back.
struct Kept {
    due: Duration,
    completion: Completion,
}

/// See the module's head.
pub struct Fault {
    config: FaultConfig,
    random: SimulatedRandom,
    clock: Arc<dyn Clock>,
    kept: VecDeque<Kept>,
    /// Requests that found the device busy, with what they meet when they do not.
    offered: VecDeque<(Offer, Fate)>,
    /// Tokens of requests below whose answers are to be kept back.
    slow: Vec<Token>,
    /// The request that was torn, whose answer is nobody's.
    torn: Option<Token>,
    has_ended: bool,
}

impl Fault {
    /// With these chances.
    #[must_use]
    pub fn new(config: FaultConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            random: SimulatedRandom::new(config.seed),
            config,
            clock,
            kept: VecDeque::new(),
            offered: VecDeque::new(),
            slow: Vec::new(),
            torn: None,
            has_ended: false,
        }
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(self.config.delay_ms)
    }

    /// What a request meets: drawn once, however often it is offered.
    fn fate(&mut self, offer: Offer) -> Fate {
        let mut offered = self.offered.iter();
        if let Some(at) = offered.position(|(one, _)| *one == offer)
            && let Some((_, fate)) = self.offered.remove(at)
        {
            return fate;
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

    /// It could not begin, and will be offered again.
    fn is_busy(&mut self, offer: Offer, fate: Fate) -> Started {
        if self.offered.len() == OFFERED_MAX {
            self.offered.pop_front();
        }
        self.offered.push_back((offer, fate));
        Started::Busy
    }

    /// Keeps an answer back, if chance wants it.
    fn answer(
        &mut self,
        token: Token,
        (offer, fate): (Offer, Fate),
        started: Started,
        done: impl FnOnce() -> Outcome,
    ) -> Started {
        match started {
            Started::Busy => self.is_busy(offer, fate),
            Started::Done if fate.is_slow => {
                let completion = Completion {
                    token,
                    result: Ok(done()),
                };
                self.keep(completion);
                Started::Pending
            }
            Started::Pending if fate.is_slow => {
                self.slow.push(token);
                Started::Pending
            }
            other => other,
        }
    }

    /// Writes what is left of a torn write, and ends: nothing is carried out after it.
    fn tear(
        &mut self,
        below: &mut dyn BlockDevice,
        part: Request<'_>,
        (offer, fate): (Offer, Fate),
    ) -> Started {
        let token = part.token;
        if part.op.range().length > 0 {
            match below.start(part) {
                Started::Busy => return self.is_busy(offer, fate),
                Started::Pending => self.torn = Some(token),
                Started::Done | Started::Failed(_) => {}
            }
        }
        self.has_ended = true;
        Started::Failed(ended())
    }

    fn keep(&mut self, completion: Completion) {
        let due = self.clock.monotonic() + self.delay();
        self.kept.push_back(Kept { due, completion });
    }
}

fn failed(kind: OpKind) -> Started {
    let words = format!("the fault filter fails this {kind}");
    Started::Failed(IoError::Unavailable(words))
}

fn ended() -> IoError {
    IoError::Stopped("a fault filter has ended it".to_owned())
}

impl Filter for Fault {
    fn start(&mut self, below: &mut dyn BlockDevice, request: Request<'_>) -> Started {
        let Request { token, mut op } = request;
        if self.has_ended && op.kind() != OpKind::Prefetch {
            return Started::Failed(ended());
        }
        if !matches!(op, Op::Read { .. } | Op::Write { .. }) {
            return below.start(Request { token, op });
        }
        let offer = Offer::of(&op);
        let fate = self.fate(offer);
        if fate.fails {
            return failed(offer.kind);
        }
        if let (Some(sectors), Op::Write { data, .. }) = (fate.torn, &mut op) {
            *data = data.part(0..sectors * SECTOR_BYTES);
            return self.tear(below, Request { token, op }, (offer, fate));
        }
        let started = below.start(Request {
            token,
            op: op.reborrow(),
        });
        self.answer(token, (offer, fate), started, || op.outcome())
    }

    fn poll(&mut self, below: &mut dyn BlockDevice, completions: &mut Vec<Completion>) {
        let before = completions.len();
        below.poll(completions);
        if let Some(torn) = self.torn {
            let mine = completions.split_off(before);
            completions.extend(mine.into_iter().filter(|one| one.token != torn));
        }
        if !self.slow.is_empty() {
            let mut at = before;
            while at < completions.len() {
                let token = completions[at].token;
                match self.slow.iter().position(|slow| *slow == token) {
                    Some(slow) => {
                        self.slow.swap_remove(slow);
                        let completion = completions.remove(at);
                        self.keep(completion);
                    }
                    None => at += 1,
                }
            }
        }
        let now = self.clock.monotonic();
        while self.kept.front().is_some_and(|kept| kept.due <= now) {
            completions.extend(self.kept.pop_front().map(|kept| kept.completion));
        }
    }

    fn next_timer(&self) -> Option<Duration> {
        let now = self.clock.monotonic();
        let first = self.kept.front()?;
        Some(first.due.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use base::Durability;
    use nbd::memory::{MemoryDevice, Misbehavior};
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
    fn one_in_so_many_fails_and_is_not_carried_out() {
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

    /// Chance was drawn for each offer: what found the device busy failed the more often.
    #[test]
    fn a_request_that_is_offered_again_meets_no_other_fate() {
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
                    // Whoever asks may choose another token each time.
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
    fn what_is_delayed_is_answered_once_and_late() {
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
            let mut answers = Vec::new();
            fault.poll(&mut below, &mut answers);
            assert_eq!(answers, []);
            assert_eq!(fault.next_timer(), Some(Duration::from_millis(30)));
            clock.advance(Duration::from_millis(30));
            fault.poll(&mut below, &mut answers);
            answers.sort_by_key(|answer| answer.token);
            let read = answers.pop().expect("two answers");
            assert_eq!(read.result, Ok(Outcome::Data(vec![9; 512])));
            assert_eq!(answers.len(), 1);
            fault.poll(&mut below, &mut answers);
            assert_eq!(answers.len(), 1, "each is answered once");
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
            let mut answers = Vec::new();
            fault.poll(&mut below, &mut answers);
            assert_eq!(answers, [], "nobody was promised one");
        }
    }
}
