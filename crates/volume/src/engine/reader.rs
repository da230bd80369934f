//! [`Reader`]: a volume's layers, and the requests that wait to read from them.
//!
//! A reader knows the layers, the units and the keys; it changes nothing but
//! its caches. A writable volume has one and changes the layers in it; a
//! read-only volume is little else.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{ByteRange, Completion, Extent, IoError, Started, Token, VolumeId};

use super::fetch::Fetcher;
use super::hedge::{FetchTarget, HedgeQueue, ReadTargets, UnwrittenRead};
use super::layers::Layers;
use super::read::Scratch;
use super::readahead::Readahead;
use super::unavailable::UnavailableReads;
use super::write::Change;
use crate::map::BlockMap;
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
    pub unavailable: UnavailableReads,
    /// Blocks that are read ahead of requests.
    pub readahead: Readahead,
    /// Completed requests that `poll` will return.
    pub ready: Vec<Completion>,
}

/// A request for which blocks or map pages are being read.
pub struct ParkedRequest {
    pub waiting: PendingRequest,
    pub attempts: u32,
    /// When it began to wait for unavailable units; `None` if it does not.
    pub unavailable_since: Option<Duration>,
    pub wanted: FetchTarget,
    pub targets: ReadTargets,
    /// The number of reads that have not ended: the first one that succeeds counts.
    pub under_way: u32,
}

/// A request that could not be completed at once.
pub enum PendingRequest {
    Read {
        token: Token,
        offset: u64,
        length: usize,
    },
    Prefetch {
        token: Token,
        offset: u64,
        length: u64,
    },
    Extents {
        token: Token,
        offset: u64,
        length: u64,
    },
    /// A piece of readahead: no client waits for it.
    Readahead {
        piece: u64,
        blocks: Range<u64>,
    },
    Change(Change),
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
            unavailable: UnavailableReads::new(volume),
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
    pub fn blocks_of(&self, offset: u64, length: u64) -> Range<u64> {
        let size = self.fetcher.block_size;
        if length == 0 {
            return 0..0;
        }
        size.block_at(offset).0..size.block_at(offset + length - 1).0 + 1
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
            | PendingRequest::Readahead { .. } => waiting.blocks(self).collect(),
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

impl ParkedRequest {
    /// When it was first read.
    pub fn since(&self) -> Duration {
        self.unavailable_since.unwrap_or(self.targets.started_at)
    }
}

impl PendingRequest {
    /// The client's token; `None` for readahead.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Read { token, .. }
            | Self::Prefetch { token, .. }
            | Self::Extents { token, .. } => Some(*token),
            Self::Change(change) => Some(change.token),
            Self::Readahead { .. } => None,
        }
    }

    /// The blocks that the request touches.
    pub fn blocks(&self, reader: &Reader) -> Range<u64> {
        match self {
            Self::Read { offset, length, .. } => reader.blocks_of(*offset, *length as u64),
            Self::Prefetch { offset, length, .. } | Self::Extents { offset, length, .. } => {
                reader.blocks_of(*offset, *length)
            }
            Self::Readahead { blocks, .. } => blocks.clone(),
            Self::Change(change) => {
                let ByteRange { offset, length } = change.op.range();
                reader.blocks_of(offset, length)
            }
        }
    }

    /// Whether the request may be dropped.
    pub fn is_hint(&self) -> bool {
        matches!(self, Self::Prefetch { .. } | Self::Readahead { .. })
    }
}

/// The longest prefetch, in bytes.
const PREFETCH_BYTES_MAX: u64 = 4 << 20;
