//! What goes below, and what is heard from there.
//!
//! A change is kept in memory until a flush below has covered it: if that fails nobody knows
//! what of it is there, and a flush that succeeds afterwards does not say. So all of it is
//! carried out once more, in its order.

use std::time::Duration;

use base::{BlockDevice, Completion, IoError, Outcome, Request, Started};

use super::active::{Asked, Failing, Journal};
use super::opening::Stage;
use super::overlay::Overlay;
use super::waiting::Waiting;

/// What failed below is tried again so often.
const RETRY: Duration = Duration::from_secs(1);

/// What was acknowledged is carried out when it is as old, or there is as much of it: whoever
/// asked is told meanwhile, and has the processor, and what comes in quick succession goes
/// below together.
pub(super) const GATHER: Duration = Duration::from_micros(100);
const GATHER_BYTES: u64 = 128 << 10;

/// With so many bytes carried out that no flush has covered one is asked for; with less, if
/// memory is small.
const HELD_BYTES_MAX: u64 = 32 << 20;

impl Journal {
    /// Goes on with all that may go on. What it has begun below it commits.
    pub(super) fn go_on(&mut self, below: &mut dyn BlockDevice) {
        self.hear(below);
        self.redo();
        let written = match &self.stage {
            Stage::Open(ring) => ring.written(),
            Stage::Replaying(..) => u64::MAX,
            _ => 0,
        };
        let now = self.world.clock.monotonic();
        let may_try = self.retry_at.is_none_or(|at| at <= now);
        // While it rests it carries out what somebody waits for.
        let may_carry = !self.is_resting
            || self.begins()
            || self.empties_alone()
            || self.waiting.iter().any(|one| one.below);
        let gathers = self.gathers(now);
        if let (false, Stage::Open(ring)) = (gathers, &self.stage) {
            // What may not be carried out now waits for something else.
            self.news = None;
            self.gathered_upto = ring.written();
        }
        if may_try {
            // Also where there is nothing to carry out: what failed may have been a flush.
            self.retry_at = None;
            if may_carry && written > 0 && !gathers && !self.redoes {
                self.carry_out(below, written);
            }
        }
        self.flush_below(below);
        if let Err(error) = below.commit() {
            return self.fail(error.to_string());
        }
        for sequence in std::mem::take(&mut self.done_at_once) {
            self.carried(sequence);
        }
        self.answer();
        self.sync_or_trim();
        self.go_on_opening();
    }

    /// Whether what there is to be carried out may wait for more.
    pub(super) fn gathers(&self, now: Duration) -> bool {
        let (Some(since), Stage::Open(ring)) = (self.news, &self.stage) else {
            return false;
        };
        let is_free = self.waiting.is_empty() && !self.is_resting && !self.is_ending;
        let is_little = ring.written() - self.gathered_upto < GATHER_BYTES;
        is_free && is_little && now < since + GATHER
    }

    fn carry_out(&mut self, below: &mut dyn BlockDevice, written: u64) {
        let (asked, last) = (&mut self.asked, &mut self.last);
        let done_at_once = &mut self.done_at_once;
        let mut stuck = None;
        self.carry.start(written, |change| {
            *last += 1;
            let started = change.start(below, *last);
            match &started {
                Started::Done => done_at_once.push(change.sequence),
                Started::Pending => {
                    asked.insert(*last, Asked::Carry(change.sequence));
                }
                Started::Busy | Started::Failed(_) => {
                    stuck = Some((started, change.sequence));
                    return false;
                }
            }
            true
        });
        match stuck {
            Some((Started::Failed(error), sequence)) => {
                self.failed_below(error, Failing::Change(sequence));
            }
            Some(_) => self.was_busy = true,
            None => {}
        }
    }

    fn failed_below(&mut self, error: IoError, what: Failing) {
        if let IoError::Stopped(why) = &error {
            // It answers nothing any more; what the file has it keeps.
            return self.fail(format!("what lies below the journal is stopped: {why}"));
        }
        if self.failing.is_none() {
            tracing::warn!(%error, "what a journal has cannot be carried out; it is tried again");
        }
        self.retry_at = Some(self.world.clock.monotonic() + RETRY);
        // The journal has it still.
        self.tell_who_flushes(&error);
        if self.failing.is_none() || what == Failing::Flush {
            self.failing = Some((error, what));
        }
    }

    fn has_succeeded(&mut self, what: Failing) {
        if self
            .failing
            .as_ref()
            .is_some_and(|(_, failing)| *failing == what)
        {
            self.failing = None;
        }
    }

    /// A flush that succeeds afterwards says nothing of what one that failed was to cover.
    fn flush_failed(&mut self, error: IoError) {
        self.redoes = true;
        self.overlay = Overlay::default();
        for change in self.carry.changes() {
            let (offset, length) = (change.offset, change.length);
            let data = change.data.clone();
            self.overlay.insert(offset, length, change.sequence, data);
        }
        self.failed_below(error, Failing::Flush);
    }

    /// Begins once more with all that no flush has covered, after one has failed.
    fn redo(&mut self) {
        if !self.redoes || self.carry.under_way() > 0 {
            return;
        }
        self.redoes = false;
        self.carry.redo();
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Flushing(file, start, next) => {
                self.stage = Stage::Replaying(file, start, next);
            }
            stage => self.stage = stage,
        }
    }

    fn carried(&mut self, sequence: u64) {
        self.has_succeeded(Failing::Change(sequence));
        let finished = self.carry.finish(sequence);
        if let (Some((offset, length)), false) = (finished, self.redoes) {
            self.overlay.remove(offset, length, sequence);
        }
    }

    /// Asks for a flush below if somebody waits for one, or the ring has to begin later.
    fn flush_below(&mut self, below: &mut dyn BlockDevice) {
        let done = self.carry.done();
        let is_wanted = match &self.stage {
            Stage::Open(ring) => {
                // What is flushed already waits for the file only: another flush would not
                // have ended when the filter is left.
                let (flushed, done) = (self.flushed.0, done.0);
                let waits_for = |one: &Waiting| {
                    one.below && one.is_flush && flushed < one.upto && one.upto <= done
                };
                let waits = self.waiting.iter().any(waits_for);
                let is_failing = matches!(self.failing, Some((_, Failing::Flush)));
                let is_full = self.empties_alone()
                    || is_failing
                    || self.lacks_memory
                    || self.carry.held_bytes() >= HELD_BYTES_MAX.min(self.config.memory_max / 4)
                    || ring.used_bytes() > ring.ring_bytes() / 2;
                waits || is_full && done > flushed
            }
            Stage::Flushing(..) => true,
            _ => false,
        };
        if !is_wanted || self.flushes_below || self.redoes || self.retry_at.is_some() {
            return;
        }
        if !self.can_flush {
            return self.flushed_below(done);
        }
        let own = self.ask(Asked::Flush(done));
        match below.start(Request::flush(own)) {
            Started::Pending => self.flushes_below = true,
            Started::Done => {
                self.asked.remove(&own);
                match below.commit() {
                    Ok(()) => self.flushed_below(done),
                    Err(error) => self.fail(error.to_string()),
                }
            }
            Started::Busy => {
                self.asked.remove(&own);
                self.was_busy = true;
            }
            Started::Failed(error) => {
                self.asked.remove(&own);
                self.flush_failed(error);
            }
        }
    }

    fn flushed_below(&mut self, done: (u64, u64)) {
        self.flushed = done;
        self.has_succeeded(Failing::Flush);
        self.lacks_memory = false;
        self.carry.forget(done.1);
        if matches!(self.stage, Stage::Flushing(..)) {
            self.begin_start();
        }
    }

    /// Takes an answer of the disk below.
    pub(super) fn heard_below(&mut self, completion: Completion) {
        let Completion { token, result } = completion;
        match self.asked.remove(&token) {
            None => tracing::warn!(token, "the disk below answered nobody's request"),
            Some(Asked::Read(token, offset, mut patches)) => {
                let result = result.map(|outcome| match outcome {
                    Outcome::Data(mut data) => {
                        // Also what a flush that failed meanwhile may have lost below.
                        let length = data.len() as u64;
                        patches.append(&mut self.overlay.patches(offset, length));
                        let mut out = data.as_mut_slice().into();
                        patches.iter().for_each(|patch| patch.apply(&mut out));
                        Outcome::Data(data)
                    }
                    other => other,
                });
                self.completions.push(Completion { token, result });
            }
            Some(Asked::Extents(token) | Asked::Other(token)) => {
                self.completions.push(Completion { token, result });
            }
            Some(Asked::Carry(sequence)) => match result {
                Ok(_) => self.carried(sequence),
                Err(error) => {
                    self.carry.put_back(sequence);
                    self.failed_below(error, Failing::Change(sequence));
                }
            },
            Some(Asked::Flush(done)) => {
                self.flushes_below = false;
                match result {
                    Ok(_) => self.flushed_below(done),
                    Err(error) => self.flush_failed(error),
                }
            }
        }
    }
}
