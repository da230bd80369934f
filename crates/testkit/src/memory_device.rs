//! [`MemoryDevice`]: a device in memory for tests and measurements. It can answer later, be busy,
//! and fail on purpose.

use std::collections::VecDeque;
use std::convert::Infallible;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, ExtentKind, IoError,
    Op, Outcome, Request, Started, Token,
};
use world::Wake;
use world::simulated::SimulatedRandom;

/// How a [`MemoryDevice`] misbehaves. The default is that it does not.
#[derive(Debug, Clone, Default)]
pub struct Misbehavior {
    /// One request in this number is pending and completes in any order; 0 means none.
    pub pending_one_in: u64,
    /// The device is busy for one request in this number; 0 means none.
    pub busy_one_in: u64,
    /// Requests that overlap these bytes fail.
    pub damaged: std::ops::Range<u64>,
    /// Whether the next batch with a write fails, and everything after it.
    pub fails_batch: bool,
    /// Whether pending requests wait until this is false again.
    pub holds_completions: bool,
    /// Whether pending requests wait, and fail after [`BlockDevice::stop_waiting`].
    pub is_unavailable: bool,
    /// The seed of random decisions after [`MemoryDevice::with`].
    pub seed: u64,
}

/// The calls of a [`MemoryDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of writes, each piece counted.
    pub writes: u64,
    /// The number of changes that had to be durable.
    pub durable: u64,
    /// The number of flushes.
    pub flushes: u64,
    /// The number of prefetches.
    pub prefetches: u64,
    /// The number of batches that were ended.
    pub batches: u64,
}

/// A device in memory.
#[derive(Debug)]
pub struct MemoryDevice {
    bytes: Vec<u8>,
    /// Whether each block was written.
    written: Vec<bool>,
    block_bytes: u32,
    capabilities: Capabilities,
    /// How the device misbehaves; may be changed at any time.
    pub misbehavior: Misbehavior,
    /// The calls so far.
    pub calls: Calls,
    random: SimulatedRandom,
    pending: VecDeque<Completion>,
    wake: Wake,
    has_batch: bool,
    stopped: bool,
}

impl MemoryDevice {
    /// A device of `size_bytes`, all holes, with every capability.
    #[must_use]
    pub fn new(size_bytes: usize) -> Self {
        let block_bytes = 4096;
        Self {
            bytes: vec![0; size_bytes],
            written: vec![false; size_bytes.div_ceil(block_bytes)],
            block_bytes: block_bytes as u32,
            capabilities: Capabilities::ALL,
            misbehavior: Misbehavior::default(),
            calls: Calls::default(),
            random: SimulatedRandom::new(0),
            pending: VecDeque::new(),
            wake: Wake::noop(),
            has_batch: false,
            stopped: false,
        }
    }

    /// The same device, which misbehaves and wakes its thread for completions.
    #[must_use]
    pub fn with(mut self, misbehavior: Misbehavior, wake: Wake) -> Self {
        self.random = SimulatedRandom::new(misbehavior.seed);
        self.misbehavior = misbehavior;
        self.wake = wake;
        self
    }

    /// The same device with these capabilities.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The device as a result, as an export's thread makes its device.
    ///
    /// # Errors
    /// None.
    pub fn ok(self) -> Result<Self, Infallible> {
        Ok(self)
    }

    /// Makes the device larger. The new bytes are a hole.
    pub fn grow(&mut self, size_bytes: usize) {
        assert!(size_bytes >= self.bytes.len(), "a device never shrinks");
        self.bytes.resize(size_bytes, 0);
        self.written
            .resize(size_bytes.div_ceil(self.block_bytes as usize), false);
    }

    /// The content of the device.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of pending requests.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// The answer to a request that is not carried out; `None` if it is.
    fn refuses(&mut self, op: &Op<'_>) -> Option<Started> {
        if op.is_change() && self.capabilities.read_only {
            return Some(Started::Failed(IoError::ReadOnly));
        }
        if self.stopped {
            return Some(Started::Failed(IoError::Stopped("on purpose".into())));
        }
        let range = op.range();
        if let Err(error) = range.check(self.bytes.len() as u64) {
            return Some(Started::Failed(error));
        }
        let damaged = &self.misbehavior.damaged;
        if range.length > 0 && range.offset < damaged.end && damaged.start < range.end() {
            return Some(Started::Failed(IoError::Damaged("on purpose".into())));
        }
        let is_busy = self.random.one_in(self.misbehavior.busy_one_in);
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
                self.has_batch = true;
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

    fn is_pending(&self) -> bool {
        self.random.one_in(self.misbehavior.pending_one_in)
    }

    fn add_pending(&mut self, token: Token, outcome: Outcome) -> Started {
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
        match self.is_pending() {
            true => self.add_pending(token, op.outcome()),
            false => Started::Done,
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        self.calls.batches += 1;
        self.stopped |= self.misbehavior.fails_batch && self.has_batch;
        self.has_batch = false;
        if self.stopped {
            return Err(IoError::Stopped("on purpose".into()));
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if !self.misbehavior.holds_completions && !self.misbehavior.is_unavailable {
            completions.extend(self.pending.drain(..));
        }
    }

    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.misbehavior.is_unavailable) {
            let unavailable = || Err(IoError::Unavailable("on purpose".into()));
            self.pending
                .iter_mut()
                .for_each(|pending| pending.result = unavailable());
        }
    }
}
