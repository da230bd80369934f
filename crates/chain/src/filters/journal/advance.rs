//! The steps of a turn of [`Journal`]: what goes below, what comes back, and who is answered.

use std::time::Duration;

use base::{BlockDevice, Completion, IoError, Outcome, Request, Started};

use super::filter::Journal;
use super::flush_state::FlushPhase;
use super::pending::PendingRequest;
use super::record::LogPosition;
use super::retry::FailedRequest;
use super::stage::Stage;
use super::write_back::StoppedChange;

/// The data of changes that wait for a flush below, in bytes, at which one is started.
const HELD_BYTES_MAX: u64 = 32 << 20;

impl Journal {
    /// Takes all steps that can be taken now, and ends the batch that it started below.
    pub(super) fn advance(&mut self, below: &mut dyn BlockDevice) {
        let taken = self.lifecycle.take_job_result(below, &mut self.write_back);
        if let Err(reason) = taken {
            self.fail(reason);
        }
        self.redo_after_failed_flush();
        let now = self.lifecycle.world.clock.monotonic();
        let gathers = self.gathers(now);
        if let (false, Stage::Open(ring)) = (gathers, &self.lifecycle.stage) {
            self.gathering.end(ring.written());
        }
        let written = self.lifecycle.stage.may_write_back_to();
        // Ends the wait also if there is nothing to write: a flush may have failed.
        let may_try = self.write_back.retry.may_try(now);
        let done = match may_try && !gathers && written > 0 && self.may_write_back() {
            true => self.start_write_backs(below, written),
            false => Vec::new(),
        };
        self.flush_below(below);
        if let Err(error) = below.end_batch() {
            return self.fail(error.to_string());
        }
        for sequence in done {
            self.write_back.written_back(sequence);
        }
        self.answer();
        self.sync_or_trim();
        self.was_busy |= self.lifecycle.finish_replay(&self.write_back);
    }

    /// Whether acknowledged changes may wait for more.
    pub(super) fn gathers(&self, now: Duration) -> bool {
        let Stage::Open(ring) = &self.lifecycle.stage else {
            return false;
        };
        let is_free = self.waiting.is_empty() && !self.is_quiesced && !self.is_ending;
        is_free && self.gathering.is_open(ring.written(), now)
    }

    /// Whether changes may be written below. A quiesced filter writes only what a request
    /// waits for.
    fn may_write_back(&self) -> bool {
        let may_start = !self.is_quiesced
            || self.lifecycle.stage.is_starting()
            || self.must_empty_itself()
            || self
                .waiting
                .iter()
                .any(|request| request.condition.needs_write_back());
        may_start && self.write_back.flush.phase != FlushPhase::Failed
    }

    /// Starts to write changes up to `written`. Returns the sequences of those that were done at
    /// once, which count when the batch below has ended.
    fn start_write_backs(&mut self, below: &mut dyn BlockDevice, written: u64) -> Vec<u64> {
        let (done, stopped) = self.write_back.start(below, &mut self.pending, written);
        match stopped {
            Some(StoppedChange {
                answer: Started::Failed(error),
                sequence,
            }) => {
                self.failed_below(error, FailedRequest::Change(sequence));
            }
            Some(_) => self.was_busy = true,
            None => {}
        }
        done
    }

    fn failed_below(&mut self, error: IoError, request: FailedRequest) {
        if let IoError::Stopped(reason) = &error {
            // It answers no further requests. The file keeps the changes.
            return self.fail(format!("the disk below the journal stopped: {reason}"));
        }
        if self.write_back.retry.error().is_none() {
            tracing::warn!(%error, "journal cannot write back; retrying");
        }
        self.fail_flushes(&error);
        let now = self.lifecycle.world.clock.monotonic();
        self.write_back.retry.failed(error, request, now);
    }

    fn flush_failed(&mut self, error: IoError) {
        self.write_back.flush_failed();
        self.failed_below(error, FailedRequest::Flush);
    }

    /// Lets everything that no flush has covered be written again, after a flush failed.
    fn redo_after_failed_flush(&mut self) {
        if self.write_back.redo_after_failed_flush() {
            self.lifecycle.replay_again();
        }
    }

    /// Whether a flush below is needed: a request waits for one, or memory or the ring is filling
    /// up.
    fn needs_flush_below(&self, written: LogPosition) -> bool {
        let ring = match &self.lifecycle.stage {
            Stage::Open(ring) => ring,
            Stage::Flushing { .. } => return true,
            _ => return false,
        };
        // A request whose changes are flushed waits for the file only. Another flush might still
        // be pending when the filter is removed.
        let flushed = self.write_back.flush.flushed.offset;
        let waits = self.waiting.iter().any(|request| {
            request.condition.needs_flush()
                && flushed < request.end
                && request.end <= written.offset
        });
        let is_filling_up = self.must_empty_itself()
            || self.write_back.retry.has_failed_flush()
            || self.write_back.backlog.needs_flush(HELD_BYTES_MAX)
            || ring.used_bytes() > ring.ring_bytes() / 2;
        waits || is_filling_up && written.offset > flushed
    }

    /// Starts a flush below, if one is needed.
    fn flush_below(&mut self, below: &mut dyn BlockDevice) {
        let written = self.write_back.backlog.changes.written();
        let may_start =
            self.write_back.flush.phase == FlushPhase::Idle && !self.write_back.retry.is_waiting();
        if !may_start || !self.needs_flush_below(written) {
            return;
        }
        if !self.write_back.flush.is_supported {
            return self.flushed_below(written);
        }
        let token = self.pending.next_token();
        match below.start(Request::flush(token)) {
            Started::Pending => {
                self.pending.insert(token, PendingRequest::Flush(written));
                self.write_back.flush.phase = FlushPhase::Pending;
            }
            Started::Done => match below.end_batch() {
                Ok(()) => self.flushed_below(written),
                Err(error) => self.fail(error.to_string()),
            },
            Started::Busy => self.was_busy = true,
            Started::Failed(error) => self.flush_failed(error),
        }
    }

    fn flushed_below(&mut self, flushed: LogPosition) {
        self.write_back.flushed(flushed);
        if matches!(self.lifecycle.stage, Stage::Flushing { .. }) {
            self.lifecycle.begin_start();
        }
    }

    /// Takes a completion of the disk below.
    pub(super) fn completed_below(&mut self, completion: Completion) {
        let Completion { token, result } = completion;
        match self.pending.take(token) {
            None => tracing::warn!(token, "disk below completed an unknown request"),
            Some(PendingRequest::Read {
                token,
                offset,
                mut patches,
            }) => {
                let result = result.map(|outcome| match outcome {
                    Outcome::Data(mut data) => {
                        // Also what the disk may have lost since, if a flush failed.
                        let range = base::ByteRange::new(offset, data.len() as u64);
                        patches.append(&mut self.write_back.backlog.overlay.patches(range));
                        let mut out = data.as_mut_slice().into();
                        patches.iter().for_each(|patch| patch.apply(&mut out));
                        Outcome::Data(data)
                    }
                    other => other,
                });
                self.completions.push(Completion { token, result });
            }
            Some(PendingRequest::Forwarded(token)) => {
                self.completions.push(Completion { token, result });
            }
            Some(PendingRequest::WriteBack(sequence)) => match result {
                Ok(_) => self.write_back.written_back(sequence),
                Err(error) => {
                    self.write_back.backlog.changes.retry(sequence);
                    self.failed_below(error, FailedRequest::Change(sequence));
                }
            },
            Some(PendingRequest::Flush(written)) => {
                self.write_back.flush.phase = FlushPhase::Idle;
                match result {
                    Ok(_) => self.flushed_below(written),
                    Err(error) => self.flush_failed(error),
                }
            }
        }
    }
}
