//! A device in memory, for tests and measurements: it can be made to answer
//! late, to be busy, and to fail.

use std::collections::VecDeque;
use std::convert::Infallible;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, ExtentKind, IoError,
    Op, Outcome, Request, Started, Token,
};
use world::Wake;
use world::simulated::SimulatedRandom;

/// How a [`MemoryDevice`] misbehaves. All zero and empty: not at all.
#[derive(Debug, Clone, Default)]
pub struct Manners {
    /// One request in so many is answered later, in any order; 1 is each of
    /// them, 0 none.
    pub pending_one_in: u64,
    /// One request in so many finds the device busy.
    pub busy_one_in: u64,
    /// Requests that touch these bytes fail.
    pub damaged: std::ops::Range<u64>,
    /// The next commit that covers a write fails, and everything after it.
    pub stops_at_commit: bool,
    /// Pending requests wait until this is false again.
    pub holds_answers: bool,
    /// Pending requests wait, and fail when the device is to wait no more.
    pub is_away: bool,
    /// What chances are drawn from, from [`MemoryDevice::with`] on.
    pub seed: u64,
}

/// What a [`MemoryDevice`] was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Writes, in pieces as they came.
    pub writes: u64,
    /// Of writes, trims and write_zeroes, those that had to be durable.
    pub durable: u64,
    /// Flushes.
    pub flushes: u64,
    /// Prefetches.
    pub prefetches: u64,
    /// Commits.
    pub commits: u64,
}

/// See the module's head.
#[derive(Debug)]
pub struct MemoryDevice {
    bytes: Vec<u8>,
    /// One per block: something was written there.
    written: Vec<bool>,
    block_bytes: u32,
    capabilities: Capabilities,
    /// How it behaves; may be changed at any time.
    pub manners: Manners,
    /// What it was asked.
    pub calls: Calls,
    random: SimulatedRandom,
    pending: VecDeque<Completion>,
    wake: Wake,
    uncommitted: bool,
    stopped: bool,
}

impl MemoryDevice {
    /// A device of `size_bytes`, all hole, with every capability.
    #[must_use]
    pub fn new(size_bytes: usize) -> Self {
        let block_bytes = 4096;
        Self {
            bytes: vec![0; size_bytes],
            written: vec![false; size_bytes.div_ceil(block_bytes)],
            block_bytes: block_bytes as u32,
            capabilities: Capabilities::ALL,
            manners: Manners::default(),
            calls: Calls::default(),
            random: SimulatedRandom::new(0),
            pending: VecDeque::new(),
            wake: Wake::noop(),
            uncommitted: false,
            stopped: false,
        }
    }

    /// The same, told how to behave and whom to wake.
    #[must_use]
    pub fn with(mut self, manners: Manners, wake: Wake) -> Self {
        self.random = SimulatedRandom::new(manners.seed);
        self.manners = manners;
        self.wake = wake;
        self
    }

    /// The same, with these capabilities.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// For [`ExportThread::spawn`](crate::ExportThread::spawn), where a
    /// device may fail to be made.
    ///
    /// # Errors
    /// None.
    pub fn ok(self) -> Result<Self, Infallible> {
        Ok(self)
    }

    /// Makes it larger; the new bytes are a hole.
    pub fn grow(&mut self, size_bytes: usize) {
        assert!(size_bytes >= self.bytes.len(), "a device never shrinks");
        self.bytes.resize(size_bytes, 0);
        self.written
            .resize(size_bytes.div_ceil(self.block_bytes as usize), false);
    }

    /// All of its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many requests have not been answered.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// The answer to a request that is not carried out, if there is a reason for that.
    fn refuses(&mut self, op: &Op<'_>) -> Option<Started> {
        if op.is_change() && self.capabilities.read_only {
            return Some(Started::Failed(IoError::ReadOnly));
        }
        if self.stopped {
            return Some(Started::Failed(IoError::Stopped("it was told to".into())));
        }
        let range = op.range();
        if let Err(error) = range.check(self.bytes.len() as u64) {
            return Some(Started::Failed(error));
        }
        let bad = &self.manners.damaged;
        if range.length > 0 && range.offset < bad.end && bad.start < range.end() {
            return Some(Started::Failed(IoError::Damaged("on purpose".into())));
        }
        let is_busy = self.random.one_in(self.manners.busy_one_in);
        is_busy.then_some(Started::Busy)
    }

    fn count(&mut self, op: &Op<'_>) {
        let calls = &mut self.calls;
        match op {
            Op::Read { out, .. } => calls.read_bytes += out.len() as u64,
            Op::Write { .. } => calls.writes += 1,
            Op::Flush => calls.flushes += 1,
            Op::Prefetch { .. } => calls.prefetches += 1,
            Op::Trim { .. } | Op::WriteZeroes { .. } | Op::Extents { .. } => {}
        }
        calls.durable += u64::from(op.durability() == Durability::Durable);
    }

    fn carry_out(&mut self, op: &mut Op<'_>) {
        match op {
            Op::Read { offset, out } => {
                out.copy_from(&self.bytes[*offset as usize..][..out.len()]);
            }
            Op::Write { offset, data, .. } => {
                self.uncommitted = true;
                data.copy_to(&mut self.bytes[*offset as usize..][..data.len()]);
                self.mark(*offset, data.len() as u64, true);
            }
            Op::Trim { offset, length, .. } => {
                let block = u64::from(self.block_bytes);
                let first = offset.div_ceil(block) * block;
                let last = (*offset + *length) / block * block;
                if first < last {
                    self.bytes[first as usize..last as usize].fill(0);
                    self.mark(first, last - first, false);
                }
            }
            Op::WriteZeroes {
                offset,
                length,
                mode,
            } => {
                self.bytes[*offset as usize..][..*length as usize].fill(0);
                self.mark(*offset, *length, !mode.may_punch);
            }
            Op::Extents {
                offset,
                length,
                runs,
            } => self.find_extents(*offset, *length, runs),
            Op::Flush | Op::Prefetch { .. } => {}
        }
    }

    fn find_extents(&self, offset: u64, length: u64, runs: &mut Vec<Extent>) {
        let block = u64::from(self.block_bytes);
        let mut next = offset;
        while next < offset + length {
            let end = ((next / block + 1) * block).min(offset + length);
            runs.push(Extent {
                length: end - next,
                kind: match self.written[(next / block) as usize] {
                    true => ExtentKind::Data,
                    false => ExtentKind::Hole,
                },
            });
            next = end;
        }
    }

    fn answers_late(&self) -> bool {
        self.random.one_in(self.manners.pending_one_in)
    }

    fn later(&mut self, token: Token, outcome: Outcome) -> Started {
        let completion = Completion {
            token,
            result: Ok(outcome),
        };
        if self.random.one_in(2) {
            self.pending.push_back(completion);
        } else {
            self.pending.push_front(completion);
        }
        self.wake.wake();
        Started::Pending
    }

    fn mark(&mut self, offset: u64, length: u64, written: bool) {
        let block = u64::from(self.block_bytes);
        let (first, last) = if written {
            (offset / block, (offset + length).div_ceil(block))
        } else {
            (offset.div_ceil(block), (offset + length) / block)
        };
        if first < last {
            self.written[first as usize..last as usize].fill(written);
        }
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.bytes.len() as u64,
            block_bytes: self.block_bytes,
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, mut op } = request;
        if let Some(refusal) = self.refuses(&op) {
            return refusal;
        }
        self.count(&op);
        self.carry_out(&mut op);
        match self.answers_late() {
            true => self.later(token, op.outcome()),
            false => Started::Done,
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        self.calls.commits += 1;
        self.stopped |= self.manners.stops_at_commit && self.uncommitted;
        self.uncommitted = false;
        if self.stopped {
            return Err(IoError::Stopped("it was told to".into()));
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if !self.manners.holds_answers && !self.manners.is_away {
            completions.extend(self.pending.drain(..));
        }
    }

    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.manners.is_away) {
            let away = || Err(IoError::Unavailable("it is away".into()));
            self.pending
                .iter_mut()
                .for_each(|pending| pending.result = away());
        }
    }
}
