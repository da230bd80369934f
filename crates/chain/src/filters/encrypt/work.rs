//! [`Work`]: the filter's own requests below, which write headers and re-encrypt the data.
//!
//! ```text
//!  1. hold      a zone at the boundary: pending requests in it end, and new ones are Busy
//!  2. check     for a hole, which is skipped: nothing was ever written there
//!  3. read      the zone
//!  4. save      it in the journal                                 flush
//!  5. rewrite   it with the new key                               flush
//!  6. advance   the boundary: the header's first copy             flush
//!               and the second one                                flush
//!  7. release   the zone
//! ```
//!
//! A crash before the end of step 4 changes nothing. After it the journal is valid: its content is
//! written back, and the zone is re-encrypted again. After step 6 the journal is no longer valid.
//!
//! Invariant: from the first byte of the journal to the end of step 6 the zone is held, even if a
//! step fails or the filter is quiesced: the journal would otherwise overwrite later writes.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use base::{
    BlockDevice, Durability, Extent, ExtentKind, IoError, Outcome, Request, Started, Token,
};
use world::Random;

use super::cipher::Cipher;
use super::{BLOCK_BYTES, Open, RETRY_EVERY, Tokens, data_bytes, overlap, unexpected};
use crate::FilterContext;
use luks::{DATA_OFFSET, Header, HeaderError, Saved, Step, ZONE_BYTES};

/// The longest hole that is skipped in one step, in bytes.
const HOLE_BYTES_MAX: u64 = 16 << 20;

/// The pause before a failed request is retried.
const RETRY_AFTER_ERROR: Duration = Duration::from_secs(1);

/// The work that the filter does besides its user's requests.
pub struct Work {
    header: Header,
    stage: Stage,
    /// The range of the data that no other request may touch, in bytes.
    held: Range<u64>,
    /// The disk has no header yet, so no other request may touch it.
    is_new: bool,
    /// The journal may be valid, so the range stays held.
    is_saved: bool,
    /// The token of the pending request.
    token: Option<Token>,
    /// The outcome of the last request, until it is handled.
    outcome: Option<Outcome>,
    /// The error of the step that is being retried.
    failed: Option<IoError>,
    /// No request is started before, by the monotonic clock.
    not_before: Duration,
    usage: Usage,
}

/// Whether the filter may start requests of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    /// The filter is not in use yet: it may not.
    Opened,
    /// The filter is in use: it may.
    InUse,
    /// The filter is in use and quiesced: it ends the zone that it holds and begins no other.
    Quiesced,
}

/// The stage of the work on the range that is held.
enum Stage {
    /// No range is held.
    Idle,
    /// Waiting for pending requests in the range.
    Holding,
    /// Asking for the extents of the range.
    CheckingHole,
    /// Reading the range.
    Reading,
    /// Carrying out steps in order.
    Steps(VecDeque<Step>, AfterSteps),
    /// The header cannot be changed as needed.
    Stuck,
}

/// The action after a list of steps.
#[derive(Clone, Copy)]
enum AfterSteps {
    /// Release the range.
    Release,
    /// Re-encrypt the range, which was restored from the journal.
    Redo,
    /// Move the boundary behind the range, which has the new key.
    Advance,
    /// Drop the old key: all data has the new one.
    Finish,
}

impl Work {
    pub fn new(header: Header, mut steps: Vec<Step>, is_new: bool, saved: Option<Saved>) -> Self {
        let (mut held, mut after) = (0..0, AfterSteps::Release);
        if let Some(saved) = saved {
            held = saved.begin..saved.begin + saved.content.len() as u64;
            after = AfterSteps::Redo;
            steps.extend([
                Step::Write {
                    offset: DATA_OFFSET + saved.begin,
                    bytes: saved.content,
                },
                Step::Flush,
            ]);
        }
        let stage = match steps.is_empty() {
            true => Stage::Idle,
            false => Stage::Steps(steps.into(), after),
        };
        Self {
            header,
            stage,
            held,
            is_new,
            is_saved: matches!(after, AfterSteps::Redo),
            token: None,
            outcome: None,
            failed: None,
            not_before: Duration::ZERO,
            usage: Usage::Opened,
        }
    }

    /// The answer to a request that touches a range that is held; `None` if it may start.
    pub fn refusal(&self, sectors: &Range<u64>) -> Option<Started> {
        let is_held = self.is_new || overlap(&self.held, sectors);
        is_held.then(|| match &self.failed {
            Some(error) => Started::Failed(error.clone()),
            None => Started::Busy,
        })
    }

    pub fn quiesce(&mut self) -> bool {
        if self.usage == Usage::InUse {
            self.usage = Usage::Quiesced;
        }
        let is_done = match &self.stage {
            Stage::Idle | Stage::Stuck => true,
            Stage::Steps(..) => self.usage == Usage::Opened,
            Stage::Holding | Stage::CheckingHole | Stage::Reading => false,
        };
        is_done && self.token.is_none()
    }

    pub fn resume(&mut self) {
        self.usage = Usage::InUse;
    }

    pub fn next_timer(&self, now: Duration) -> Option<Duration> {
        let is_asking = match &self.stage {
            Stage::Idle => self.usage == Usage::InUse && self.is_reencrypting(),
            Stage::Stuck => false,
            // No event wakes the filter when the last request in the range ends.
            Stage::Holding => return Some(RETRY_EVERY),
            Stage::Steps(..) | Stage::CheckingHole | Stage::Reading => self.usage != Usage::Opened,
        };
        let is_free = is_asking && self.token.is_none();
        is_free.then(|| self.not_before.saturating_sub(now))
    }

    /// Whether the header says that the data is being re-encrypted.
    pub fn is_reencrypting(&self) -> bool {
        self.header.layout().run.is_some()
    }

    /// Handles the answer to the start of a request.
    fn started(&mut self, own: Token, started: Started, outcome: Outcome, now: Duration) {
        match started {
            Started::Done => self.outcome = Some(outcome),
            Started::Pending => self.token = Some(own),
            Started::Busy => self.not_before = now + RETRY_EVERY,
            Started::Failed(error) => self.fail(error, now),
        }
    }

    /// Handles a completion of the device below.
    pub fn completed(&mut self, own: Token, result: Result<Outcome, IoError>, now: Duration) {
        // Other tokens belong to requests of a filter that was never used.
        if self.token == Some(own) {
            self.token = None;
            match result {
                Ok(outcome) => self.outcome = Some(outcome),
                Err(error) => self.fail(error, now),
            }
        }
    }

    fn fail(&mut self, error: IoError, now: Duration) {
        self.not_before = now + RETRY_AFTER_ERROR;
        if self.is_saved || matches!(self.stage, Stage::Steps(..)) {
            self.failed = Some(error);
        } else {
            // Nothing was written yet, so the zone is unchanged.
            self.release();
        }
    }

    fn release(&mut self) {
        self.held = 0..0;
        self.is_new = false;
        self.is_saved = false;
        self.stage = Stage::Idle;
    }

    /// Begins to carry out steps, if the header could be changed.
    fn begin(&mut self, steps: Result<Vec<Step>, HeaderError>, after: AfterSteps) {
        self.stage = match steps {
            Ok(steps) => Stage::Steps(steps.into(), after),
            Err(error) if self.is_saved => {
                self.failed = Some(IoError::Stopped(error.to_string()));
                Stage::Stuck
            }
            Err(_) => {
                self.held = 0..0;
                Stage::Stuck
            }
        };
    }

    /// Holds the next range of the re-encryption, of `size` bytes of data in all.
    fn hold(&mut self, size: u64) {
        let Some(run) = &self.header.layout().run else {
            return;
        };
        let begin = run.boundary;
        // The range behind the end is held as well: the disk may grow before the header says that
        // all data is re-encrypted.
        self.held = match begin < size {
            true => begin..size.min(begin + HOLE_BYTES_MAX),
            false => begin..u64::MAX,
        };
        self.stage = Stage::Holding;
    }

    /// Begins with the range, which no request uses: behind the end of the data the re-encryption
    /// is finished.
    fn begin_range(&mut self, can_extents: bool, random: &dyn Random) {
        match self.held.end == u64::MAX {
            true => {
                let steps = self.header.finish(random);
                self.begin(steps, AfterSteps::Finish);
            }
            false if can_extents => self.stage = Stage::CheckingHole,
            false => self.checked_hole(&[], random),
        }
    }

    /// Handles the extents at the beginning of the range: skips a hole, or reads the zone.
    fn checked_hole(&mut self, runs: &[Extent], random: &dyn Random) {
        let begin = self.held.start;
        let holes = runs.iter().take_while(|run| run.kind == ExtentKind::Hole);
        let hole: u64 = holes.map(|run| run.length).sum();
        let hole_end = begin.saturating_add(hole / BLOCK_BYTES * BLOCK_BYTES);
        let zone_end = self.held.end.min(begin + ZONE_BYTES);
        if hole_end >= zone_end {
            self.held.end = self.held.end.min(hole_end);
            let steps = self.header.advance(self.held.end, random);
            self.begin(steps, AfterSteps::Advance);
        } else {
            self.held.end = zone_end;
            self.stage = Stage::Reading;
        }
    }

    /// Saves, re-encrypts and writes the zone, which has this content below.
    fn rewrite(&mut self, content: Vec<u8>, cipher: &Cipher, random: &dyn Random) {
        let mut steps = self.header.save(&content);
        let mut bytes = content;
        cipher.reencrypt(self.held.start, &mut bytes);
        let offset = DATA_OFFSET + self.held.start;
        steps.extend([Step::Write { offset, bytes }, Step::Flush]);
        let advance = self.header.advance(self.held.end, random);
        let steps = advance.map(|advanced| steps.into_iter().chain(advanced).collect());
        self.begin(steps, AfterSteps::Advance);
    }

    /// Starts the request of the current stage.
    fn start(&mut self, below: &mut dyn BlockDevice, own: Token, now: Duration) {
        let begin = DATA_OFFSET + self.held.start;
        let length = self.held.end - self.held.start;
        let (started, outcome) = match &self.stage {
            Stage::Idle | Stage::Holding | Stage::Stuck => return,
            Stage::CheckingHole => {
                let mut runs = Vec::new();
                let started = below.start(Request::extents(own, begin, length, &mut runs));
                (started, Outcome::Extents(runs))
            }
            Stage::Reading => {
                let mut content = vec![0; length as usize];
                let started = below.start(Request::read(own, begin, &mut content));
                (started, Outcome::Data(content))
            }
            Stage::Steps(steps, _) => {
                let started = match steps.front() {
                    Some(Step::Write { offset, bytes }) => {
                        below.start(Request::write(own, *offset, bytes, Durability::Volatile))
                    }
                    Some(Step::Flush) if below.capabilities().can_flush => {
                        below.start(Request::flush(own))
                    }
                    Some(Step::Flush) | None => Started::Done,
                };
                // The next step relies on this one.
                let started = match (started, below.end_batch()) {
                    (Started::Done, Err(error)) => Started::Failed(error),
                    (started, _) => started,
                };
                (started, Outcome::Done)
            }
        };
        self.started(own, started, outcome, now);
    }
}

impl Open {
    /// Continues the filter's own work until it has to wait.
    pub fn continue_work(
        &mut self,
        below: &mut dyn BlockDevice,
        tokens: &mut Tokens,
        context: &FilterContext,
    ) {
        let now = context.host.clock.monotonic();
        let random = &*context.host.random;
        while self.work.usage != Usage::Opened && self.work.token.is_none() {
            let size = data_bytes(below.geometry());
            match (&mut self.work.stage, self.work.outcome.take()) {
                (Stage::Stuck, _) => return,
                (Stage::Idle, _) => {
                    let is_free = self.work.usage == Usage::InUse && now >= self.work.not_before;
                    if !is_free || !self.work.is_reencrypting() {
                        return;
                    }
                    self.work.hold(size);
                }
                (Stage::Holding, _) => {
                    if self.is_used(&self.work.held) {
                        return;
                    }
                    let can_extents = below.capabilities().can_extents;
                    self.work.begin_range(can_extents, random);
                }
                (Stage::CheckingHole, Some(Outcome::Extents(runs))) => {
                    self.work.checked_hole(&runs, random)
                }
                (Stage::Reading, Some(Outcome::Data(content)))
                    if content.len() as u64 == self.work.held.end - self.work.held.start =>
                {
                    self.work.rewrite(content, &self.cipher, random);
                }
                (Stage::Steps(steps, after), Some(Outcome::Done)) => {
                    steps.pop_front();
                    self.work.failed = None;
                    if steps.is_empty() {
                        let after = *after;
                        self.end(after);
                    }
                }
                (_, Some(other)) => self.work.fail(unexpected(&other), now),
                (_, None) if now < self.work.not_before => return,
                (_, None) => {
                    self.work.start(below, tokens.next(), now);
                    if self.work.outcome.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Acts after the last step.
    fn end(&mut self, after: AfterSteps) {
        match after {
            AfterSteps::Release => {}
            AfterSteps::Redo => {
                self.work.stage = Stage::Holding;
                return;
            }
            AfterSteps::Advance => self.cipher.advance(self.work.held.end),
            AfterSteps::Finish => self.cipher.finish(),
        }
        self.work.release();
    }
}
