//! A client of an attached volume: it keeps the contract of a frontend, has
//! several requests in flight, and compares every answer with the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::{
    BlockDevice, BlockSize, Completion, Durability, Extent, ExtentKind, IoError, Outcome, Started,
    Token, ZeroMode,
};
use volume::{READS_WAIT_MAX, Volume};
use world::Clock;
use world::simulated::SimulatedClock;

use crate::Check;
use crate::model::{Edit, Timeline, content};

/// A volume that is attached.
pub struct Client {
    /// The volume.
    pub volume: Volume,
    block_size: BlockSize,
    clock: Arc<SimulatedClock>,
    requests: BTreeMap<Token, Request>,
    /// When these were asked for, and some that were answered at once.
    asked: BTreeMap<Token, Duration>,
    token_next: Token,
    /// Operations up to here were acknowledged, or are at least in the
    /// journal's file.
    pub committed: usize,
    /// No further request is made.
    pub is_closing: bool,
    /// Nothing is lacking but what is away: what cannot be read has waited for it.
    pub must_wait: bool,
}

enum Request {
    Read {
        offset: u64,
        length: u64,
        since: usize,
    },
    Extents {
        offset: u64,
        since: usize,
    },
    Prefetch,
    Flush {
        covers: usize,
    },
    /// Admitted, and waiting to be durable.
    Durable {
        covers: usize,
    },
    /// Waiting for the rest of the blocks that it covers in part.
    Parked {
        edit: Edit,
        durability: Durability,
    },
}

/// What the client knows of the volume beyond one attachment.
#[derive(Debug, Default)]
pub struct Past {
    /// What was admitted, in order.
    pub timeline: Timeline,
    /// Operations up to here survive every crash.
    pub durable: usize,
    /// The volume's size in bytes.
    pub size_bytes: u64,
}

impl Client {
    /// A client of `volume`, which holds what `past` says.
    #[must_use]
    pub fn new(
        volume: Volume,
        block_size: BlockSize,
        past: &Past,
        clock: Arc<SimulatedClock>,
    ) -> Self {
        Self {
            volume,
            block_size,
            clock,
            requests: BTreeMap::new(),
            asked: BTreeMap::new(),
            token_next: 1,
            committed: past.timeline.len(),
            is_closing: false,
            must_wait: false,
        }
    }

    /// How many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Whether the volume has stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.volume.status().stopped.is_some()
    }

    fn token(&mut self) -> Token {
        self.token_next += 1;
        self.asked.insert(self.token_next, self.clock.monotonic());
        self.token_next
    }

    fn has_parked(&self) -> bool {
        self.requests
            .values()
            .any(|request| matches!(request, Request::Parked { .. }))
    }

    fn blocks_written(&self) -> u64 {
        self.volume.status().counters.blocks_written
    }

    /// Makes a change. Returns whether the volume took it.
    pub fn change(
        &mut self,
        past: &mut Past,
        edit: &Edit,
        durability: Durability,
        may_fail: bool,
    ) -> Check<bool> {
        let settled = edit.clone().settled(self.block_size, past.size_bytes);
        let has_edges = settled.has_edges(self.block_size);
        // The order in which several parked changes are admitted does not
        // show from outside.
        if has_edges && self.has_parked() {
            return Ok(false);
        }
        let token = self.token();
        let was_stopped = self.is_stopped();
        let written = self.blocks_written();
        let started = match edit {
            Edit::Write(offset, data) => self
                .volume
                .start(base::Request::write(token, *offset, data, durability)),
            Edit::Zero(offset, length) => {
                let mode = ZeroMode {
                    durability,
                    may_punch: true,
                    fast_only: false,
                };
                self.volume
                    .start(base::Request::write_zeroes(token, *offset, *length, mode))
            }
            Edit::Trim(offset, length) => self
                .volume
                .start(base::Request::trim(token, *offset, *length, durability)),
        };
        let is_admitted = match &started {
            Started::Done => true,
            Started::Pending => !has_edges || self.blocks_written() != written,
            Started::Busy => false,
            // It may lie in the journal in part.
            Started::Failed(_) => !was_stopped && self.is_stopped(),
        };
        if is_admitted {
            self.admit(past, &settled);
        }
        match started {
            Started::Done if durability == Durability::Durable => {
                Err("a durable write was done at once".to_owned())
            }
            Started::Done => Ok(true),
            Started::Pending if is_admitted => {
                self.requests.insert(
                    token,
                    Request::Durable {
                        covers: past.timeline.len(),
                    },
                );
                Ok(true)
            }
            Started::Pending => {
                let parked = Request::Parked {
                    edit: settled,
                    durability,
                };
                self.requests.insert(token, parked);
                Ok(true)
            }
            Started::Busy => Ok(false),
            Started::Failed(IoError::Stopped(_)) if self.is_stopped() || self.is_closing => {
                Ok(false)
            }
            Started::Failed(IoError::NoSpace(_) | IoError::Unavailable(_)) if may_fail => Ok(false),
            Started::Failed(error) => {
                Err(format!("{edit:.0?} failed: {error}", edit = edit.range()))
            }
        }
    }

    fn admit(&self, past: &mut Past, edit: &Edit) {
        let operation = past.timeline.operation(edit, self.block_size);
        past.timeline.push(operation);
    }

    /// Reads a range; the answer may come now or later.
    pub fn read(&mut self, past: &Past, offset: u64, length: u64, may_fail: bool) -> Check {
        let token = self.token();
        let mut out = vec![0xee; length as usize];
        let since = past.timeline.len();
        match self
            .volume
            .start(base::Request::read(token, offset, &mut out))
        {
            Started::Done => self.check_data(past, offset, &out, since),
            Started::Pending => {
                self.requests.insert(
                    token,
                    Request::Read {
                        offset,
                        length,
                        since,
                    },
                );
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.may_fail(&error, may_fail, "a read"),
        }
    }

    /// Asks for extents.
    pub fn extents(&mut self, past: &Past, offset: u64, length: u64, may_fail: bool) -> Check {
        let token = self.token();
        let mut runs = Vec::new();
        let since = past.timeline.len();
        match self
            .volume
            .start(base::Request::extents(token, offset, length, &mut runs))
        {
            Started::Done => self.check_extents(past, offset, &runs, since),
            Started::Pending => {
                self.requests
                    .insert(token, Request::Extents { offset, since });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.may_fail(&error, may_fail, "extents"),
        }
    }

    /// Hints at a read.
    pub fn prefetch(&mut self, offset: u64, length: u64, may_fail: bool) -> Check {
        let token = self.token();
        match self
            .volume
            .start(base::Request::prefetch(token, offset, length))
        {
            Started::Pending => {
                self.requests.insert(token, Request::Prefetch);
                Ok(())
            }
            Started::Done | Started::Busy => Ok(()),
            Started::Failed(error) => self.may_fail(&error, may_fail, "a prefetch"),
        }
    }

    /// Makes what was acknowledged durable.
    pub fn flush(&mut self, past: &mut Past) -> Check {
        let token = self.token();
        let covers = self.committed;
        match self.volume.start(base::Request::flush(token)) {
            Started::Done => {
                past.durable = past.durable.max(covers);
                Ok(())
            }
            Started::Pending => {
                self.requests.insert(token, Request::Flush { covers });
                Ok(())
            }
            Started::Busy => Ok(()),
            Started::Failed(error) => self.may_fail(&error, false, "a flush"),
        }
    }

    /// Ends a batch.
    pub fn commit(&mut self, past: &Past) {
        if self.volume.commit().is_ok() {
            self.committed = past.timeline.len();
        }
    }

    /// Collects answers.
    pub fn poll(&mut self, past: &mut Past, may_fail: bool) -> Check {
        let written = self.blocks_written();
        let mut completions = Vec::new();
        self.volume.poll(&mut completions);
        if self.blocks_written() != written {
            self.admit_parked(past)?;
        }
        if self.is_stopped() {
            // The order in which a stopped volume lets go is nobody's concern.
            completions.sort_by_key(|completion| completion.token);
        } else {
            self.committed = past.timeline.len();
        }
        completions
            .into_iter()
            .try_for_each(|completion| self.complete(past, completion, may_fail))
    }

    fn admit_parked(&mut self, past: &mut Past) -> Check {
        let found = self
            .requests
            .iter()
            .find_map(|(token, request)| match request {
                Request::Parked { edit, durability } => Some((*token, edit.clone(), *durability)),
                _ => None,
            });
        let Some((token, edit, durability)) = found else {
            return Err("blocks were written that nobody asked for".to_owned());
        };
        self.admit(past, &edit);
        let covers = match durability {
            Durability::Durable => past.timeline.len(),
            Durability::Volatile => 0,
        };
        self.requests.insert(token, Request::Durable { covers });
        Ok(())
    }

    fn complete(&mut self, past: &mut Past, completion: Completion, may_fail: bool) -> Check {
        let Completion { token, result } = completion;
        let Some(request) = self.requests.remove(&token) else {
            return Err(format!("request {token} was answered twice, or never made"));
        };
        self.check_wait(token, &request, &result)?;
        match (request, result) {
            (
                Request::Read {
                    offset,
                    length,
                    since,
                },
                Ok(Outcome::Data(data)),
            ) => {
                if data.len() as u64 != length {
                    return Err(format!("{} bytes came of {length}", data.len()));
                }
                self.check_data(past, offset, &data, since)
            }
            (Request::Extents { offset, since }, Ok(Outcome::Extents(runs))) => {
                self.check_extents(past, offset, &runs, since)
            }
            (Request::Flush { covers } | Request::Durable { covers }, Ok(Outcome::Done)) => {
                past.durable = past.durable.max(covers);
                Ok(())
            }
            (Request::Prefetch, Ok(Outcome::Done)) => Ok(()),
            (Request::Parked { .. }, Ok(_)) => {
                Err("a change was acknowledged and not admitted".to_owned())
            }
            (_, Err(error)) => self.may_fail(&error, may_fail, "a request"),
            (_, Ok(outcome)) => Err(format!("request {token} brought {outcome:?}")),
        }
    }

    /// What only units have that are away is waited for.
    fn check_wait(
        &mut self,
        token: Token,
        request: &Request,
        result: &Result<Outcome, IoError>,
    ) -> Check {
        let waited = self.clock.monotonic() - self.asked[&token];
        let oldest = self.requests.keys().next().unwrap_or(&token);
        self.asked = self.asked.split_off(oldest);
        let reads = matches!(
            request,
            Request::Read { .. } | Request::Extents { .. } | Request::Parked { .. }
        );
        match result {
            Err(IoError::Unavailable(why))
                if reads && self.must_wait && !self.is_closing && waited < READS_WAIT_MAX =>
            {
                Err(format!("a read failed after {waited:?}: {why}"))
            }
            _ => Ok(()),
        }
    }

    fn may_fail(&self, error: &IoError, may_fail: bool, what: &str) -> Check {
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

    fn check_data(&self, past: &Past, offset: u64, data: &[u8], since: usize) -> Check {
        let block_bytes = self.block_size.bytes() as u64;
        let until = past.timeline.len();
        let mut position = offset;
        while position < offset + data.len() as u64 {
            let block = position / block_bytes;
            let end = ((block + 1) * block_bytes).min(offset + data.len() as u64);
            let part = &data[(position - offset) as usize..(end - offset) as usize];
            let within = (position % block_bytes) as usize;
            let is_right = if part.len() == self.block_size.bytes() {
                past.timeline.held(block, &content(part), since..=until)
            } else {
                past.timeline.held_part(block, within, part, since..=until)
            };
            if !is_right {
                return Err(format!(
                    "block {block}, bytes {within}+{}, is wrong: it is not what it held between {since} and {until}",
                    part.len()
                ));
            }
            position = end;
        }
        Ok(())
    }

    fn check_extents(&self, past: &Past, offset: u64, runs: &[Extent], since: usize) -> Check {
        if runs.is_empty() {
            return Err("extents of nothing".to_owned());
        }
        let block_bytes = self.block_size.bytes() as u64;
        let mut position = offset;
        for run in runs {
            if run.length == 0 {
                return Err("an empty extent".to_owned());
            }
            let end = position + run.length;
            if run.kind == ExtentKind::Hole {
                let blocks = position / block_bytes..end.div_ceil(block_bytes);
                let until = past.timeline.len();
                for block in past.timeline.touched_in(blocks) {
                    if !past.timeline.held(block, &None, since..=until) {
                        return Err(format!("block {block} has data and is called a hole"));
                    }
                }
            }
            position = end;
        }
        Ok(())
    }
}
