//! Requests that could not be completed at once, and what is read for them. They know
//! neither the reader nor the volume.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockIndex, BlockSize, ByteRange, Location, OwnedOp, Token, UnitId};
use unit::TrackedUnit;

use super::layers::Source;
use crate::map::{Entry, Position};

/// A change that could not be admitted at once because it covers parts of
/// blocks whose other parts had to be read first.
pub struct Change {
    pub token: Token,
    /// A write, or zeroes.
    pub op: OwnedOp,
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

/// Blocks, and where each is read.
pub type BlockSources = Arc<[(BlockIndex, Source)]>;

/// Blocks that a change covers in part: where each was read, and its content.
pub type FetchedEdges = Vec<(BlockIndex, Source, Vec<u8>)>;

/// What is being read for a parked request.
#[derive(Clone)]
pub enum FetchTarget {
    /// Blocks.
    Blocks(BlockSources),
    /// Blocks that are read ahead.
    Readahead(BlockSources),
    /// Pages of the map.
    Pages(Vec<(Position, Entry)>),
}

impl FetchTarget {
    /// Whether a block of it is in the journal.
    pub fn is_of_journal(&self) -> bool {
        match self {
            Self::Blocks(blocks) | Self::Readahead(blocks) => {
                let mut sources = blocks.iter().map(|(_, source)| source);
                sources.any(|source| matches!(source, Source::Journal(_)))
            }
            Self::Pages(_) => false,
        }
    }

    /// The locations on units that are read.
    pub fn locations(&self) -> impl Iterator<Item = Location> + '_ {
        let (blocks, pages) = match self {
            Self::Blocks(blocks) | Self::Readahead(blocks) => (&blocks[..], &[][..]),
            Self::Pages(pages) => (&[][..], &pages[..]),
        };
        let blocks = blocks.iter().filter_map(|(_, source)| match source {
            Source::Slot(entry) => Some(entry.location),
            Source::Zero | Source::Journal(_) => None,
        });
        blocks.chain(pages.iter().map(|(_, entry)| entry.location))
    }
}

/// The units that a read was sent to first.
pub struct ReadTargets {
    pub units: Vec<(UnitId, Arc<TrackedUnit>)>,
    /// Whether the cache's file is read before the units: the delay may be its own.
    pub includes_cache_file: bool,
    pub started_at: Duration,
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
    pub fn blocks(&self, size: BlockSize) -> Range<u64> {
        match self {
            Self::Read { offset, length, .. } => blocks_of(size, *offset, *length as u64),
            Self::Prefetch { offset, length, .. } | Self::Extents { offset, length, .. } => {
                blocks_of(size, *offset, *length)
            }
            Self::Readahead { blocks, .. } => blocks.clone(),
            Self::Change(change) => {
                let ByteRange { offset, length } = change.op.range();
                blocks_of(size, offset, length)
            }
        }
    }

    /// Whether the request may be dropped.
    pub fn is_hint(&self) -> bool {
        matches!(self, Self::Prefetch { .. } | Self::Readahead { .. })
    }
}

impl ParkedRequest {
    /// When it was first read.
    pub fn since(&self) -> Duration {
        self.unavailable_since.unwrap_or(self.targets.started_at)
    }
}

/// The blocks of `size` bytes that a range of bytes touches.
#[inline]
pub fn blocks_of(size: BlockSize, offset: u64, length: u64) -> Range<u64> {
    if length == 0 {
        return 0..0;
    }
    size.block_at(offset).0..size.block_at(offset + length - 1).0 + 1
}
