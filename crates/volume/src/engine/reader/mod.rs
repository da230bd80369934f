//! [`Reader`]: a volume's layers, and the requests that wait to read from them.
//!
//! A reader knows the layers, the units and the keys; it changes nothing but
//! its caches. A writable volume has one and changes the layers in it; a
//! read-only volume is little else.

mod extents;
pub mod fetch;
mod hedge;
mod parked;
mod read;
mod readahead;
mod streams;
mod unavailable;
pub mod unavailable_queue;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{ByteRange, Completion, Extent, IoError, Started, Token, VolumeId};
use cache::host::Tally;
use unit::Tag;

use self::fetch::Fetcher;
use self::hedge::{HedgeQueue, UnwrittenRead};
use self::readahead::Readahead;
use self::unavailable_queue::WaitingReads;
use super::layers::{Layers, Source};
use super::request::{ParkedRequest, PendingRequest, blocks_of};
use crate::map::{BlockMap, Entry};
use crate::scatter::Table;

/// The reading half of a volume: it looks up blocks, reads them, and parks requests.
pub struct Reader {
    pub size_bytes: u64,
    pub layers: Layers,
    /// The table of units as of the last poll.
    pub table: Arc<Table>,
    /// Shared with the reads that it starts.
    pub fetcher: Arc<Fetcher>,
    pub scratch: Scratch,
    /// Requests that wait for a read, by the number of that read.
    pub parked: BlockMap<ParkedRequest>,
    pub parked_next: u64,
    pub hedges: HedgeQueue,
    /// Reads that start once the journal's batch is in its file.
    pub unwritten: Vec<UnwrittenRead>,
    /// Requests that wait for unavailable units.
    pub unavailable: WaitingReads,
    /// Blocks that are read ahead of requests.
    pub readahead: Readahead,
    /// Completed requests that `poll` will return.
    pub ready: Vec<Completion>,
}

/// Buffers an owner keeps between reads.
#[derive(Default)]
pub struct Scratch {
    pub sources: Vec<(u64, Source)>,
    pub slots: Vec<(Entry, usize)>,
    pub sealed: Vec<u8>,
    pub tags: Vec<Tag>,
    pub plain: Vec<u8>,
    /// Hits in the host's cache.
    pub tally: Tally,
}

impl Reader {
    /// A reader of `layers`; the log calls it `volume`.
    pub fn new(
        size_bytes: u64,
        layers: Layers,
        fetcher: Fetcher,
        volume: Option<VolumeId>,
    ) -> Self {
        Self {
            size_bytes,
            layers,
            table: fetcher.store.table(),
            fetcher: Arc::new(fetcher),
            scratch: Scratch::default(),
            parked: BlockMap::default(),
            parked_next: 0,
            hedges: HedgeQueue::default(),
            unwritten: Vec::new(),
            unavailable: WaitingReads::new(volume),
            readahead: Readahead::default(),
            ready: Vec::new(),
        }
    }

    /// Updates the table of units.
    pub fn refresh(&mut self) {
        self.table = self.fetcher.store.table();
    }

    /// The delay until the reader must be polled.
    pub fn timer(&self) -> Option<Duration> {
        let (hedge, retry) = (self.hedge_timer(), self.retry_timer());
        hedge.into_iter().chain(retry).min()
    }

    /// Checks that a range is within the volume.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] if it does not.
    pub fn check_range(&self, range: ByteRange) -> Result<(), IoError> {
        range.check(self.size_bytes)
    }

    /// Starts [`base::Op::Extents`] of a range within the volume.
    pub fn start_extents(
        &mut self,
        token: Token,
        offset: u64,
        length: u64,
        runs: &mut Vec<Extent>,
    ) -> Started {
        if length == 0 {
            let (offset, size) = (offset, self.size_bytes);
            return Started::Failed(IoError::OutOfRange {
                offset,
                length,
                size,
            });
        }
        if self.extents_now(offset, length, runs) {
            return Started::Done;
        }
        self.park(PendingRequest::Extents {
            token,
            offset,
            length,
        });
        Started::Pending
    }

    /// Starts [`base::Op::Prefetch`] of a range within the volume.
    pub fn start_prefetch(&mut self, token: Token, offset: u64, length: u64) -> Started {
        // More than this would only evict what was prefetched first.
        let length = length.min(PREFETCH_BYTES_MAX);
        if length == 0 {
            return Started::Done;
        }
        self.park(PendingRequest::Prefetch {
            token,
            offset,
            length,
        });
        Started::Pending
    }

    /// The blocks that a range of bytes touches.
    #[inline]
    pub fn blocks_of(&self, offset: u64, length: u64) -> Range<u64> {
        blocks_of(self.fetcher.block_size, offset, length)
    }

    /// Where `block` is in a buffer for the bytes from `offset` on, and the offset
    /// within the block at which that part begins.
    #[inline]
    pub fn part_of(&self, offset: u64, length: usize, block: u64) -> (Range<usize>, usize) {
        let size = self.fetcher.block_size;
        let block_start = size.start_of(base::BlockIndex(block));
        let start = block_start.max(offset);
        let end = (block_start + size.bytes() as u64).min(offset + length as u64);
        let range = (start - offset) as usize..(end - offset) as usize;
        (range, (start - block_start) as usize)
    }

    /// The blocks whose content a parked request needs.
    pub fn blocks_wanted(&self, waiting: &PendingRequest) -> Vec<u64> {
        match waiting {
            PendingRequest::Read { .. }
            | PendingRequest::Prefetch { .. }
            | PendingRequest::Readahead { .. } => waiting.blocks(self.fetcher.block_size).collect(),
            PendingRequest::Extents { offset, .. } => {
                vec![self.fetcher.block_size.block_at(*offset).0]
            }
            PendingRequest::Change(change) => self.edges_of(change.op.range()),
        }
    }

    /// The blocks that a range covers in part: at most two.
    pub fn edges_of(&self, range: ByteRange) -> Vec<u64> {
        let ByteRange { offset, length } = range;
        let size = self.fetcher.block_size;
        let blocks = self.blocks_of(offset, length);
        let mut edges = Vec::new();
        if blocks.is_empty() {
            return edges;
        }
        if size.within(offset) != 0 {
            edges.push(blocks.start);
        }
        let last = blocks.end - 1;
        if size.within(offset + length) != 0 && edges.last() != Some(&last) {
            edges.push(last);
        }
        edges
    }
}

/// The longest prefetch, in bytes.
const PREFETCH_BYTES_MAX: u64 = 4 << 20;
