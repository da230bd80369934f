//! What a volume holds, and the requests that wait to read some of it.
//!
//! A reader knows the layers, the units and the keys; it changes nothing but
//! its caches. A volume that is written has one and changes the layers in it;
//! a read-only one is little else.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use std::time::Duration;

use base::{Completion, Extent, IoError, Started, Token, VolumeId};

use super::fetch::Fetcher;
use super::hedge::{FetchTarget, HedgeQueue, ReadTargets, UnwrittenRead};
use super::layers::Layers;
use super::read::Scratch;
use super::readahead::Readahead;
use super::unavailable::UnavailableReads;
use super::write::Change;
use crate::scatter::Table;

/// See the module's head.
pub struct Reader {
    pub size_bytes: u64,
    pub layers: Layers,
    /// The units as they were at the last poll.
    pub table: Arc<Table>,
    pub fetcher: Fetcher,
    pub scratch: Scratch,
    pub parked: HashMap<u64, ParkedRequest>,
    pub parked_next: u64,
    pub hedges: HedgeQueue,
    /// Readings that begin when the journal's batch is in its file.
    pub unwritten: Vec<UnwrittenRead>,
    /// Requests that wait for units that are away.
    pub unavailable: UnavailableReads,
    /// What is read before anybody asks for it.
    pub readahead: Readahead,
    /// Finished requests that `poll` will hand over.
    pub ready: Vec<Completion>,
}

/// A request that waits for something to be read.
pub struct ParkedRequest {
    pub waiting: PendingRequest,
    pub attempts: u32,
    /// Since when it has waited for units that were away, if it has.
    pub unavailable_since: Option<Duration>,
    pub wanted: FetchTarget,
    pub targets: ReadTargets,
    /// How many readings of it have not ended: the first that succeeds counts.
    pub under_way: u32,
}

/// What a parked request is.
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
    /// What nobody has asked for yet.
    Readahead {
        piece: u64,
        blocks: Range<u64>,
    },
    Change(Change),
}

impl Reader {
    /// A reader of what `layers` say; of `volume`, in the log.
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
            fetcher,
            scratch: Scratch::default(),
            parked: HashMap::new(),
            parked_next: 0,
            hedges: HedgeQueue::default(),
            unwritten: Vec::new(),
            unavailable: UnavailableReads::new(volume),
            readahead: Readahead::default(),
            ready: Vec::new(),
        }
    }

    /// Looks which units there are now.
    pub fn refresh(&mut self) {
        self.table = self.fetcher.store.table();
    }

    /// How soon it is to be called although nothing happened.
    pub fn timer(&self) -> Option<Duration> {
        let (hedge, retry) = (self.hedge_timer(), self.retry_timer());
        hedge.into_iter().chain(retry).min()
    }

    pub fn check_range(&self, offset: u64, length: u64) -> Result<(), IoError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(IoError::OutOfRange {
                offset,
                length,
                size: self.size_bytes,
            }),
        }
    }

    /// Starts [`base::BlockDevice::extents`] of a range within the volume.
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

    /// Starts [`base::BlockDevice::prefetch`] of a range within the volume.
    pub fn start_prefetch(&mut self, token: Token, offset: u64, length: u64) -> Started {
        // More than this would only push out what was prefetched first.
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

    /// Where `block` lies in a buffer for the bytes from `offset` on, and how
    /// far into the block that begins.
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
            PendingRequest::Change(change) => self.edges_of(change.offset, change.content.length()),
        }
    }

    /// The blocks that a range covers in part: at most two.
    pub fn edges_of(&self, offset: u64, length: u64) -> Vec<u64> {
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
    /// Since when it waits, or is being read.
    pub fn since(&self) -> Duration {
        self.unavailable_since.unwrap_or(self.targets.started_at)
    }
}

impl PendingRequest {
    /// Whose request it is; nobody's, if it is read ahead.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Read { token, .. }
            | Self::Prefetch { token, .. }
            | Self::Extents { token, .. } => Some(*token),
            Self::Change(change) => Some(change.token),
            Self::Readahead { .. } => None,
        }
    }

    /// The blocks that it touches.
    pub fn blocks(&self, reader: &Reader) -> Range<u64> {
        match self {
            Self::Read { offset, length, .. } => reader.blocks_of(*offset, *length as u64),
            Self::Prefetch { offset, length, .. } | Self::Extents { offset, length, .. } => {
                reader.blocks_of(*offset, *length)
            }
            Self::Readahead { blocks, .. } => blocks.clone(),
            Self::Change(change) => reader.blocks_of(change.offset, change.content.length()),
        }
    }

    /// Whether nobody is harmed if it is not done.
    pub fn is_hint(&self) -> bool {
        matches!(self, Self::Prefetch { .. } | Self::Readahead { .. })
    }
}

/// The most that one prefetch reads, in bytes.
const PREFETCH_BYTES_MAX: u64 = 4 << 20;
