//! [`CrashDisk`]: a disk that keeps live and durable bytes apart and can crash. After a crash each
//! sector that was not flushed has its old or its new content.

use base::{Durability, Extent, ExtentKind, Op, WriteBuffer};
use world::simulated::SimulatedRandom;

use super::*;

const SECTOR: usize = 512;

/// A disk that can crash, and is slow or busy at times.
pub(super) struct CrashDisk {
    pub live: Vec<u8>,
    durable: Vec<u8>,
    /// The writes since the last flush.
    volatile: Vec<(usize, Vec<u8>)>,
    /// The number of writes and flushes until the crash.
    pub left: u64,
    /// The number of writes and flushes so far.
    pub done: u64,
    random: SimulatedRandom,
    /// Each with the number of the poll that completes it.
    pending: Vec<(u64, Completion)>,
    polls: u64,
    /// One request in this many completes later, and one in twice as many finds the disk busy.
    late_one_in: u64,
    /// The blocks that were never written.
    pub holes: Vec<bool>,
    /// Requests that touch these bytes fail.
    pub damaged: Range<u64>,
}

impl CrashDisk {
    pub fn new(disk: Vec<u8>, seed: u64, late_one_in: u64) -> Self {
        let holes = vec![false; disk.len() / 4096];
        Self {
            live: disk.clone(),
            durable: disk,
            volatile: Vec::new(),
            left: u64::MAX,
            done: 0,
            random: SimulatedRandom::new(seed),
            pending: Vec::new(),
            polls: 0,
            late_one_in,
            holes,
            damaged: 0..0,
        }
    }

    /// The content after the crash.
    pub fn crashed(mut self) -> Vec<u8> {
        for (at, bytes) in &self.volatile {
            // All of the write, nothing, or some of its sectors.
            let keeps = self.random.below(3);
            for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                if keeps == 0 || keeps == 1 && self.random.one_in(2) {
                    let at = at + number * SECTOR;
                    self.durable[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        self.durable
    }

    fn refusal(&mut self, is_change: bool, range: Range<u64>) -> Option<Started> {
        if overlap(&self.damaged, &range) {
            return Some(Started::Failed(IoError::Damaged("on purpose".to_owned())));
        }
        if is_change && self.left == 0 {
            return Some(Started::Failed(IoError::Stopped(
                "the disk has crashed".to_owned(),
            )));
        }
        if self.random.one_in(self.late_one_in * 2) {
            return Some(Started::Busy);
        }
        self.left -= u64::from(is_change);
        self.done += u64::from(is_change);
        None
    }

    fn answer(&mut self, token: Token, outcome: impl FnOnce() -> Outcome) -> Started {
        if !self.random.one_in(self.late_one_in) {
            return Started::Done;
        }
        let result = Ok(outcome());
        // A few take so long that a whole zone is re-encrypted meanwhile.
        let longest = if self.random.one_in(8) { 60 } else { 3 };
        let due = self.polls + 1 + self.random.below(longest);
        self.pending.push((due, Completion { token, result }));
        Started::Pending
    }

    fn write(
        &mut self,
        token: Token,
        offset: u64,
        data: &WriteBuffer<'_>,
        durability: Durability,
    ) -> Started {
        let end = offset + data.len() as u64;
        if let Some(started) = self.refusal(true, offset..end) {
            return started;
        }
        let at = offset as usize;
        data.copy_to(&mut self.live[at..at + data.len()]);
        self.holes[at / 4096..(at + data.len()).div_ceil(4096)].fill(false);
        match durability {
            Durability::Durable => data.copy_to(&mut self.durable[at..at + data.len()]),
            Durability::Volatile => self.volatile.push((at, data.to_vec())),
        }
        self.answer(token, || Outcome::Done)
    }

    /// An extent for each block of a range.
    fn extents(&self, offset: u64, length: u64) -> Vec<Extent> {
        let blocks = offset as usize / 4096..(offset + length).div_ceil(4096) as usize;
        let extent = |block: usize| Extent {
            length: 4096,
            kind: match self.holes[block] {
                true => ExtentKind::Hole,
                false => ExtentKind::Data,
            },
        };
        blocks.map(extent).collect()
    }
}

impl BlockDevice for CrashDisk {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.live.len() as u64,
            block_bytes: 4096,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        match op {
            Op::Read { offset, mut out } => {
                let end = offset + out.len() as u64;
                if let Some(started) = self.refusal(false, offset..end) {
                    return started;
                }
                out.copy_from(&self.live[offset as usize..][..out.len()]);
                self.answer(token, || Outcome::Data(out.to_vec()))
            }
            Op::Write {
                offset,
                data,
                durability,
            } => self.write(token, offset, &data, durability),
            Op::Flush => {
                if let Some(started) = self.refusal(true, 0..0) {
                    return started;
                }
                for (at, bytes) in self.volatile.drain(..) {
                    self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                self.answer(token, || Outcome::Done)
            }
            Op::Extents {
                offset,
                length,
                runs,
            } => {
                if let Some(started) = self.refusal(false, 0..0) {
                    return started;
                }
                let found = self.extents(offset, length);
                runs.extend(&found);
                self.answer(token, || Outcome::Extents(found))
            }
            Op::Prefetch { .. } => Started::Done,
            Op::Trim { .. } | Op::WriteZeroes { .. } => unreachable!("encrypt starts none"),
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.polls += 1;
        let polls = self.polls;
        let (now, later) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|(due, _)| *due <= polls);
        self.pending = later;
        let now: Vec<(u64, Completion)> = now;
        completions.extend(now.into_iter().map(|(_, completion)| completion));
    }
}
