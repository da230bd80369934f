//! [`Client`]: the client of an attached volume. It follows the contract of the NBD server,
//! has several requests in flight, and compares every answer with the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, BlockSize, ByteRange, Completion, Durability, Extent, ExtentKind, IoError,
    Outcome, Request, Started, Token, ZeroMode,
};
use volume::{READS_WAIT_MAX, Volume};
use world::Clock;
use world::simulated::SimulatedClock;

use crate::Check;
use crate::model::{Edit, Timeline, content};

/// An attached volume and its requests.
pub struct Client {
    /// The volume.
    pub volume: Volume,
    block_size: BlockSize,
    clock: Arc<SimulatedClock>,
    requests: BTreeMap<Token, PendingRequest>,
    /// When these requests were started, and some that were answered at once.
    started: BTreeMap<Token, Duration>,
    token_next: Token,
    /// Operations up to this boundary are in the journal's file.
    pub in_journal: usize,
    /// Whether the volume is being closed: requests may fail.
    pub is_closing: bool,
    /// Whether reads may fail only after they have waited for unavailable units: nothing is
    /// damaged or lost.
    pub must_wait: bool,
}

/// A request that was not answered at once. `since` is the newest boundary when it was
/// started, `covers` the boundary that is durable once it is answered.
enum PendingRequest {
    Read {
        range: ByteRange,
        since: usize,
    },
    Extents {
        range: ByteRange,
        since: usize,
    },
    Prefetch,
    Flush {
        covers: usize,
    },
    /// A change that is admitted and waits to be durable.
    DurableWrite {
        covers: usize,
    },
    /// A change that waits for the rest of the blocks that it covers in part.
    Parked {
        edit: Edit,
        durability: Durability,
    },
}

/// The state of a volume that outlives an attachment.
#[derive(Debug, Default)]
pub struct VolumeHistory {
    /// The admitted operations.
    pub timeline: Timeline,
    /// Operations up to this boundary survive every crash.
    pub durable: usize,
    /// The volume's size in bytes.
    pub size_bytes: u64,
}

impl Client {
    /// A client of `volume`, whose content is the newest state of `history`.
    #[must_use]
    pub fn new(
        volume: Volume,
        block_size: BlockSize,
        history: &VolumeHistory,
        clock: Arc<SimulatedClock>,
    ) -> Self {
        Self {
            volume,
            block_size,
            clock,
            requests: BTreeMap::new(),
            started: BTreeMap::new(),
            token_next: 1,
            in_journal: history.timeline.len(),
            is_closing: false,
            must_wait: false,
        }
    }

    /// The number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Whether the volume has stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.volume.status().stopped.is_some()
    }

    fn next_token(&mut self) -> Token {
        self.token_next += 1;
        self.started.insert(self.token_next, self.clock.monotonic());
        self.token_next
    }

    fn has_parked(&self) -> bool {
        self.requests
            .values()
            .any(|request| matches!(request, PendingRequest::Parked { .. }))
    }

    fn blocks_written(&self) -> u64 {
        self.volume.status().counters.blocks_written
    }

    /// Starts a change. Returns `false` if it was not started, or refused for a reason that
    /// is allowed.
    pub fn change(
        &mut self,
        history: &mut VolumeHistory,
        edit: &Edit,
        durability: Durability,
        may_fail: bool,
    ) -> Check<bool> {
        let resolved = edit.clone().resolved(self.block_size, history.size_bytes);
        let has_edges = resolved.has_edges(self.block_size);
        // The order in which several parked changes are admitted is not visible from
        // outside.
        if has_edges && self.has_parked() {
            return Ok(false);
        }
        let token = self.next_token();
        let was_stopped = self.is_stopped();
        let written = self.blocks_written();
        let started = self.start_change(token, edit, durability);
        let is_admitted = match &started {
            Started::Done => true,
            Started::Pending => !has_edges || self.blocks_written() != written,
            Started::Busy => false,
            // A part of it may be in the journal.
            Started::Failed(_) => !was_stopped && self.is_stopped(),
        };
        if is_admitted {
            self.admit(history, &resolved);
        }
        match started {
            Started::Done if durability == Durability::Durable => {
                Err("a durable write was done at once".to_owned())
            }
            Started::Done => Ok(true),
            Started::Pending => {
                let request = match is_admitted {
                    true => PendingRequest::DurableWrite {
                        covers: history.timeline.len(),
                    },
                    false => PendingRequest::Parked {
                        edit: resolved,
                        durability,
                    },
                };
                self.requests.insert(token, request);
                Ok(true)
            }
            Started::Busy => Ok(false),
            Started::Failed(IoError::Stopped(_)) if self.is_stopped() || self.is_closing => {
                Ok(false)
            }
            Started::Failed(IoError::NoSpace(_) | IoError::Unavailable(_)) if may_fail => Ok(false),
            Started::Failed(error) => Err(format!("{:?} failed: {error}", edit.range())),
        }
    }

    fn start_change(&mut self, token: Token, edit: &Edit, durability: Durability) -> Started {
        let request = match edit {
            Edit::Write { offset, data } => Request::write(token, *offset, data, durability),
            Edit::Zero(ByteRange { offset, length }) => {
                let mode = ZeroMode {
                    durability,
                    may_punch: true,
                    fast_only: false,
                };
                Request::write_zeroes(token, *offset, *length, mode)
            }
            Edit::Trim(ByteRange { offset, length }) => {
                Request::trim(token, *offset, *length, durability)
            }
        };
        self.volume.start(request)
    }

    fn admit(&self, history: &mut VolumeHistory, edit: &Edit) {
        let operation = history.timeline.operation(edit, self.block_size);
        history.timeline.push(operation);
    }

    /// Reads a range. The answer may come later.
    pub fn read(&mut self, history: &VolumeHistory, range: ByteRange, may_fail: bool) -> Check {
        let token = self.next_token();
        let mut out = vec![0xee; range.length as usize];
        let since = history.timeline.len();
        let request = Request::read(token, range.offset, &mut out);
        match self.volume.start(request) {
            Started::Done => self.check_data(history, range.offset, &out, since),
            Started::Pending => {
                self.requests
                    .insert(token, PendingRequest::Read { range, since });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.check_error(&error, may_fail, "a read"),
        }
    }

    /// Requests the extents of a range.
    pub fn extents(&mut self, history: &VolumeHistory, range: ByteRange, may_fail: bool) -> Check {
        let token = self.next_token();
        let mut runs = Vec::new();
        let since = history.timeline.len();
        let request = Request::extents(token, range.offset, range.length, &mut runs);
        match self.volume.start(request) {
            Started::Done => self.check_extents(history, range, &runs, since),
            Started::Pending => {
                self.requests
                    .insert(token, PendingRequest::Extents { range, since });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.check_error(&error, may_fail, "extents"),
        }
    }

    /// Prefetches a range.
    pub fn prefetch(&mut self, range: ByteRange, may_fail: bool) -> Check {
        let token = self.next_token();
        let request = Request::prefetch(token, range.offset, range.length);
        match self.volume.start(request) {
            Started::Pending => {
                self.requests.insert(token, PendingRequest::Prefetch);
                Ok(())
            }
            Started::Done | Started::Busy => Ok(()),
            Started::Failed(error) => self.check_error(&error, may_fail, "a prefetch"),
        }
    }

    /// Flushes everything that was acknowledged.
    pub fn flush(&mut self, history: &mut VolumeHistory) -> Check {
        let token = self.next_token();
        let covers = self.in_journal;
        match self.volume.start(Request::flush(token)) {
            Started::Done => {
                history.durable = history.durable.max(covers);
                Ok(())
            }
            Started::Pending => {
                self.requests
                    .insert(token, PendingRequest::Flush { covers });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.check_error(&error, false, "a flush"),
        }
    }

    /// Ends a batch.
    pub fn end_batch(&mut self, history: &VolumeHistory) {
        if self.volume.end_batch().is_ok() {
            self.in_journal = history.timeline.len();
        }
    }

    /// Polls the volume and checks its completions.
    pub fn poll(&mut self, history: &mut VolumeHistory, may_fail: bool) -> Check {
        let written = self.blocks_written();
        let mut completions = Vec::new();
        self.volume.poll(&mut completions);
        if self.blocks_written() != written {
            self.admit_parked(history)?;
        }
        if self.is_stopped() {
            // A stopped volume fails its requests in no particular order.
            completions.sort_by_key(|completion| completion.token);
        } else {
            self.in_journal = history.timeline.len();
        }
        completions
            .into_iter()
            .try_for_each(|completion| self.complete(history, completion, may_fail))
    }

    fn admit_parked(&mut self, history: &mut VolumeHistory) -> Check {
        let found = self
            .requests
            .iter()
            .find_map(|(token, request)| match request {
                PendingRequest::Parked { edit, durability } => {
                    Some((*token, edit.clone(), *durability))
                }
                _ => None,
            });
        let Some((token, edit, durability)) = found else {
            return Err("blocks were written without a request".to_owned());
        };
        self.admit(history, &edit);
        let covers = match durability {
            Durability::Durable => history.timeline.len(),
            Durability::Volatile => 0,
        };
        self.requests
            .insert(token, PendingRequest::DurableWrite { covers });
        Ok(())
    }

    fn complete(
        &mut self,
        history: &mut VolumeHistory,
        completion: Completion,
        may_fail: bool,
    ) -> Check {
        let Completion { token, result } = completion;
        let Some(request) = self.requests.remove(&token) else {
            return Err(format!(
                "request {token} was completed twice, or never started"
            ));
        };
        self.end_wait(token, &request, &result)?;
        match (request, result) {
            (PendingRequest::Read { range, since }, Ok(Outcome::Data(data))) => {
                if data.len() as u64 != range.length {
                    return Err(format!("{} bytes came of {}", data.len(), range.length));
                }
                self.check_data(history, range.offset, &data, since)
            }
            (PendingRequest::Extents { range, since }, Ok(Outcome::Extents(runs))) => {
                self.check_extents(history, range, &runs, since)
            }
            (
                PendingRequest::Flush { covers } | PendingRequest::DurableWrite { covers },
                Ok(Outcome::Done),
            ) => {
                history.durable = history.durable.max(covers);
                Ok(())
            }
            (PendingRequest::Prefetch, Ok(Outcome::Done)) => Ok(()),
            (PendingRequest::Parked { .. }, Ok(_)) => {
                Err("a change was acknowledged and not admitted".to_owned())
            }
            (_, Err(error)) => self.check_error(&error, may_fail, "a request"),
            (_, Ok(outcome)) => Err(format!("request {token} has the outcome {outcome:?}")),
        }
    }

    /// Forgets when a request was started, and checks that a read which failed has waited for
    /// unavailable units.
    fn end_wait(
        &mut self,
        token: Token,
        request: &PendingRequest,
        result: &Result<Outcome, IoError>,
    ) -> Check {
        let waited = self.clock.monotonic() - self.started[&token];
        let oldest = self.requests.keys().next().unwrap_or(&token);
        self.started = self.started.split_off(oldest);
        let reads = matches!(
            request,
            PendingRequest::Read { .. }
                | PendingRequest::Extents { .. }
                | PendingRequest::Parked { .. }
        );
        match result {
            Err(IoError::Unavailable(reason))
                if reads && self.must_wait && !self.is_closing && waited < READS_WAIT_MAX =>
            {
                Err(format!("a read failed after {waited:?}: {reason}"))
            }
            _ => Ok(()),
        }
    }

    fn check_error(&self, error: &IoError, may_fail: bool, what: &str) -> Check {
        let is_allowed = match error {
            IoError::Stopped(_) => self.is_stopped() || self.is_closing,
            IoError::Damaged(_) | IoError::Unavailable(_) | IoError::NoSpace(_) => may_fail,
            _ => false,
        };
        if is_allowed {
            Ok(())
        } else {
            Err(format!("{what} failed: {error}"))
        }
    }

    fn check_data(&self, history: &VolumeHistory, offset: u64, data: &[u8], since: usize) -> Check {
        let block_bytes = self.block_size.bytes() as u64;
        let until = history.timeline.len();
        let mut position = offset;
        while position < offset + data.len() as u64 {
            let block = position / block_bytes;
            let end = ((block + 1) * block_bytes).min(offset + data.len() as u64);
            let part = &data[(position - offset) as usize..(end - offset) as usize];
            let within = (position % block_bytes) as usize;
            let is_right = if part.len() == self.block_size.bytes() {
                history
                    .timeline
                    .matches(block, &content(part), since..=until)
            } else {
                history
                    .timeline
                    .matches_part(block, within, part, since..=until)
            };
            if !is_right {
                return Err(format!(
                    "block {block}, bytes {within}+{}: the content is that of no boundary from {since} to {until}",
                    part.len()
                ));
            }
            position = end;
        }
        Ok(())
    }

    fn check_extents(
        &self,
        history: &VolumeHistory,
        range: ByteRange,
        runs: &[Extent],
        since: usize,
    ) -> Check {
        if runs.is_empty() {
            return Err("no extents".to_owned());
        }
        let block_bytes = self.block_size.bytes() as u64;
        let mut position = range.offset;
        for run in runs {
            if run.length == 0 {
                return Err("an empty extent".to_owned());
            }
            let end = position + run.length;
            if end > range.end() {
                return Err(format!(
                    "an extent ends at byte {end}, beyond the requested range, which ends at {}",
                    range.end()
                ));
            }
            if run.kind == ExtentKind::Hole {
                let blocks = position / block_bytes..end.div_ceil(block_bytes);
                let until = history.timeline.len();
                for block in history.timeline.touched_in(blocks) {
                    if !history.timeline.matches(block, &None, since..=until) {
                        return Err(format!("block {block} has data and is reported as a hole"));
                    }
                }
            }
            position = end;
        }
        Ok(())
    }
}
