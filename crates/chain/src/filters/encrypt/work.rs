//! What the filter does by itself: headers that are to be written, and the re-encryption.
//!
//! ```text
//!  1. hold      a zone at the boundary; requests in it end, and new ones are Busy
//!  2. look      a hole is passed over: nothing was ever written there
//!  3. read      the zone
//!  4. save      it in the journal                                 flush
//!  5. rewrite   it with the new key                               flush
//!  6. advance   the boundary: the header's first copy             flush
//!               and the second one                                flush
//!  7. release   the zone
//! ```
//!
//! Killed before 4 has ended, nothing has happened. After it the journal counts: it is
//! written back, and the zone done anew. After 6 it counts no more.
//!
//! Invariant: from the journal's first byte to the end of step 6 the zone is held, whatever
//! fails or rests: what is in the journal would otherwise overwrite what came later.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use base::{
    BlockDevice, Durability, Extent, ExtentKind, IoError, Outcome, Request, Started, Token,
};
use world::Random;

use super::cipher::Cipher;
use super::{ASK_AGAIN_EVERY, BLOCK_BYTES, Open, Tokens, data_bytes, nonsense, overlap};
use crate::FilterContext;
use luks::{DATA_OFFSET, Header, HeaderError, Saved, Step, ZONE_BYTES};

/// A hole is passed over at once if it is no longer than this, in bytes.
const HOLE_BYTES_MAX: u64 = 16 << 20;

/// What failed below is tried again after this.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// See the module's head.
pub struct Work {
    header: Header,
    doing: Doing,
    /// Of the data: nobody else's request may touch it.
    held: Range<u64>,
    /// The disk has no header yet: nothing else may be done to it.
    is_new: bool,
    /// The journal may count: what is held stays so.
    is_saved: bool,
    /// Asked below, and not answered.
    token: Option<Token>,
    /// What it was answered.
    answer: Option<Outcome>,
    /// What the step that is tried again said.
    failed: Option<IoError>,
    /// Nothing is asked before, by the monotonic clock.
    not_before: Duration,
    has_begun: bool,
    is_resting: bool,
}

enum Doing {
    /// The next zone, if there is any.
    Nothing,
    /// Waiting until nobody uses what is held.
    Holding,
    /// Asking whether it is a hole.
    Looking,
    Reading,
    /// In order.
    Steps(VecDeque<Step>, Then),
    /// The header cannot say what is to be done.
    Stuck,
}

/// What comes after the steps.
#[derive(Clone, Copy)]
enum Then {
    Release,
    /// The zone that is held is done anew.
    Again,
    /// It has the new key.
    Advance,
    /// All of the data has.
    Finish,
}

impl Work {
    pub fn new(header: Header, mut steps: Vec<Step>, is_new: bool, saved: Option<Saved>) -> Self {
        let (mut held, mut then) = (0..0, Then::Release);
        if let Some(saved) = saved {
            held = saved.begin..saved.begin + saved.content.len() as u64;
            then = Then::Again;
            steps.extend([
                Step::Write {
                    offset: DATA_OFFSET + saved.begin,
                    bytes: saved.content,
                },
                Step::Flush,
            ]);
        }
        let doing = match steps.is_empty() {
            true => Doing::Nothing,
            false => Doing::Steps(steps.into(), then),
        };
        Self {
            header,
            doing,
            held,
            is_new,
            is_saved: matches!(then, Then::Again),
            token: None,
            answer: None,
            failed: None,
            not_before: Duration::ZERO,
            has_begun: false,
            is_resting: false,
        }
    }

    /// Why a request may not touch these sectors now.
    pub fn refuses(&self, sectors: &Range<u64>) -> Option<Started> {
        let is_held = self.is_new || overlap(&self.held, sectors);
        is_held.then(|| match &self.failed {
            Some(error) => Started::Failed(error.clone()),
            None => Started::Busy,
        })
    }

    pub fn quiesce(&mut self) -> bool {
        self.is_resting = true;
        let is_done = match &self.doing {
            Doing::Nothing | Doing::Stuck => true,
            Doing::Steps(..) => !self.has_begun,
            Doing::Holding | Doing::Looking | Doing::Reading => false,
        };
        is_done && self.token.is_none()
    }

    pub fn resume(&mut self) {
        self.has_begun = true;
        self.is_resting = false;
    }

    pub fn next_timer(&self, now: Duration) -> Option<Duration> {
        let is_asking = match &self.doing {
            Doing::Nothing => self.has_begun && !self.is_resting && self.is_under_way(),
            Doing::Stuck => false,
            // Nothing rings when the last request there ends.
            Doing::Holding => return Some(ASK_AGAIN_EVERY),
            Doing::Steps(..) | Doing::Looking | Doing::Reading => self.has_begun,
        };
        let is_free = is_asking && self.token.is_none();
        is_free.then(|| self.not_before.saturating_sub(now))
    }

    /// Whether the data is being re-encrypted.
    pub fn is_under_way(&self) -> bool {
        self.header.layout().run.is_some()
    }

    /// What was asked for has begun: its answer, if that is there.
    fn started(&mut self, own: Token, started: Started, done: Outcome, now: Duration) {
        match started {
            Started::Done => self.answer = Some(done),
            Started::Pending => self.token = Some(own),
            Started::Busy => self.not_before = now + ASK_AGAIN_EVERY,
            Started::Failed(error) => self.fail(error, now),
        }
    }

    /// The device below has answered.
    pub fn answered(&mut self, own: Token, result: Result<Outcome, IoError>, now: Duration) {
        // Whatever else it is was asked by nobody.
        if self.token == Some(own) {
            self.token = None;
            match result {
                Ok(answer) => self.answer = Some(answer),
                Err(error) => self.fail(error, now),
            }
        }
    }

    fn fail(&mut self, error: IoError, now: Duration) {
        self.not_before = now + TRY_AGAIN_AFTER;
        if self.is_saved || matches!(self.doing, Doing::Steps(..)) {
            self.failed = Some(error);
        } else {
            // Nothing was written yet: the zone is as it was.
            self.release();
        }
    }

    fn release(&mut self) {
        self.held = 0..0;
        self.is_new = false;
        self.is_saved = false;
        self.doing = Doing::Nothing;
    }

    /// Begins with steps, if the header can say what they make of it.
    fn begin(&mut self, steps: Result<Vec<Step>, HeaderError>, then: Then) {
        self.doing = match steps {
            Ok(steps) => Doing::Steps(steps.into(), then),
            Err(error) if self.is_saved => {
                self.failed = Some(IoError::Stopped(error.to_string()));
                Doing::Stuck
            }
            Err(_) => {
                self.held = 0..0;
                Doing::Stuck
            }
        };
    }

    /// Holds what comes next, if anything does, of so many bytes of data.
    fn hold(&mut self, size: u64) {
        let Some(run) = &self.header.layout().run else {
            return;
        };
        let begin = run.boundary;
        // Behind the end there may be more before it is said that this was all.
        self.held = match begin < size {
            true => begin..size.min(begin + HOLE_BYTES_MAX),
            false => begin..u64::MAX,
        };
        self.doing = Doing::Holding;
    }

    /// What lies at the beginning of what is held.
    fn looked(&mut self, runs: &[Extent], random: &dyn Random) {
        let begin = self.held.start;
        let holes = runs.iter().take_while(|run| run.kind == ExtentKind::Hole);
        let hole: u64 = holes.map(|run| run.length).sum();
        let hole_end = begin.saturating_add(hole / BLOCK_BYTES * BLOCK_BYTES);
        let zone_end = self.held.end.min(begin + ZONE_BYTES);
        if hole_end >= zone_end {
            self.held.end = self.held.end.min(hole_end);
            let steps = self.header.advance(self.held.end, random);
            self.begin(steps, Then::Advance);
        } else {
            self.held.end = zone_end;
            self.doing = Doing::Reading;
        }
    }

    /// The zone that is held lies so below.
    fn rewrite(&mut self, content: Vec<u8>, cipher: &Cipher, random: &dyn Random) {
        let mut steps = self.header.save(&content);
        let mut bytes = content;
        cipher.renew(self.held.start, &mut bytes);
        let offset = DATA_OFFSET + self.held.start;
        steps.extend([Step::Write { offset, bytes }, Step::Flush]);
        let advanced = self.header.advance(self.held.end, random);
        let steps = advanced.map(|advanced| steps.into_iter().chain(advanced).collect());
        self.begin(steps, Then::Advance);
    }

    /// Asks for what is to be done now.
    fn ask(&mut self, below: &mut dyn BlockDevice, own: Token, now: Duration) {
        let begin = DATA_OFFSET + self.held.start;
        let length = self.held.end - self.held.start;
        let (started, done) = match &self.doing {
            Doing::Nothing | Doing::Holding | Doing::Stuck => return,
            Doing::Looking => {
                let mut runs = Vec::new();
                let started = below.start(Request::extents(own, begin, length, &mut runs));
                (started, Outcome::Extents(runs))
            }
            Doing::Reading => {
                let mut content = vec![0; length as usize];
                let started = below.start(Request::read(own, begin, &mut content));
                (started, Outcome::Data(content))
            }
            Doing::Steps(steps, _) => {
                let started = match steps.front() {
                    Some(Step::Write { offset, bytes }) => {
                        below.start(Request::write(own, *offset, bytes, Durability::Volatile))
                    }
                    Some(Step::Flush) if below.capabilities().can_flush => {
                        below.start(Request::flush(own))
                    }
                    Some(Step::Flush) | None => Started::Done,
                };
                // The next step counts on it.
                let started = match (started, below.commit()) {
                    (Started::Done, Err(error)) => Started::Failed(error),
                    (started, _) => started,
                };
                (started, Outcome::Done)
            }
        };
        self.started(own, started, done, now);
    }
}

impl Open {
    /// As far as there is nothing to wait for.
    pub fn go_on(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: &mut Tokens,
        context: &FilterContext,
    ) {
        let now = context.host.clock.monotonic();
        let random = &*context.host.random;
        while self.work.has_begun && self.work.token.is_none() {
            let size = data_bytes(below.geometry());
            match (&mut self.work.doing, self.work.answer.take()) {
                (Doing::Stuck, _) => return,
                (Doing::Nothing, _) => {
                    let is_free = !self.work.is_resting && now >= self.work.not_before;
                    if !is_free || !self.work.is_under_way() {
                        return;
                    }
                    self.work.hold(size);
                }
                (Doing::Holding, _) => {
                    if self.is_used(&self.work.held) {
                        return;
                    }
                    match self.work.held.end == u64::MAX {
                        true => {
                            let steps = self.work.header.finish(random);
                            self.work.begin(steps, Then::Finish);
                        }
                        false if below.capabilities().can_extents => {
                            self.work.doing = Doing::Looking;
                        }
                        false => self.work.looked(&[], random),
                    }
                }
                (Doing::Looking, Some(Outcome::Extents(runs))) => self.work.looked(&runs, random),
                (Doing::Reading, Some(Outcome::Data(content)))
                    if content.len() as u64 == self.work.held.end - self.work.held.start =>
                {
                    self.work.rewrite(content, &self.cipher, random);
                }
                (Doing::Steps(steps, then), Some(Outcome::Done)) => {
                    steps.pop_front();
                    self.work.failed = None;
                    if steps.is_empty() {
                        let then = *then;
                        self.end(then);
                    }
                }
                (_, Some(other)) => self.work.fail(nonsense(&other), now),
                (_, None) if now < self.work.not_before => return,
                (_, None) => {
                    self.work.ask(below, tokens.next(), now);
                    if self.work.answer.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// All steps were done.
    fn end(&mut self, then: Then) {
        match then {
            Then::Release => {}
            Then::Again => {
                self.work.doing = Doing::Holding;
                return;
            }
            Then::Advance => self.cipher.advance(self.work.held.end),
            Then::Finish => self.cipher.finish(),
        }
        self.work.release();
    }
}
