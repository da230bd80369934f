//! Reading ahead of streams, into the memory of the host's cache
//! (docs/internals/cache.md).
//!
//! ```text
//!  a read ─▶ streams ─▶ a range ─▶ its pieces, each parked like a request without a
//!    │                             client ─▶ map pages, units ─▶ memory
//!    └─ of a piece that is being read: waits for it, then reads from memory
//! ```
//!
//! A failed readahead is ignored: the request that needs the block reads it itself.

use std::ops::Range;

use super::Reader;
use super::streams::Streams;
use crate::engine::request::PendingRequest;

/// Blocks of a window that are read together: a request for the first of them does
/// not wait for the whole window.
const PIECE_BLOCKS: usize = 64;

/// The largest window, in bytes.
const WINDOW_MAX_BYTES: u64 = 4 << 20;

/// The readahead of one volume.
#[derive(Default)]
pub struct Readahead {
    streams: Streams,
    next: u64,
    /// The pieces that are being read: number and blocks.
    under_way: Vec<(u64, Range<u64>)>,
    /// Requests that wait for such pieces.
    waiting: Vec<PendingRequest>,
    /// Blocks evicted unread when windows were last shrunk.
    unread: u64,
}

impl Readahead {
    fn has_under_way(&self, blocks: &Range<u64>) -> bool {
        let touches =
            |(_, piece): &(u64, Range<u64>)| piece.start < blocks.end && blocks.start < piece.end;
        self.under_way.iter().any(touches)
    }

    /// Ends all readahead and takes the requests that wait for it.
    pub fn end(&mut self) -> impl Iterator<Item = PendingRequest> + '_ {
        self.under_way.clear();
        self.waiting.drain(..)
    }
}

impl Reader {
    /// Parks a request, or lets it wait for a piece that is being read.
    pub fn park_behind(&mut self, waiting: PendingRequest, blocks: &Range<u64>) {
        match self.readahead.has_under_way(blocks) {
            true => self.readahead.waiting.push(waiting),
            false => self.park(waiting),
        }
    }

    /// Reads ahead of a read of `blocks`, at least one, if the cache can keep it;
    /// `has_waited`: the read could not be completed at once.
    pub fn read_ahead_of(&mut self, blocks: Range<u64>, has_waited: bool) {
        let Some(view) = &self.fetcher.view else {
            return;
        };
        let Some(max) = view.ahead_max_bytes() else {
            return;
        };
        let window_max = max.min(WINDOW_MAX_BYTES) / u64::from(self.fetcher.slot_bytes());
        let unread = view.ahead_unread();
        if unread > self.readahead.unread {
            self.readahead.unread = unread;
            self.readahead.streams.shrink();
        }
        let wanted = self.readahead.streams.read(blocks, has_waited, window_max);
        let Some(wanted) = wanted else { return };
        let end = self.blocks_of(0, self.size_bytes).end;
        let wanted = wanted.start.min(end)..wanted.end.min(end);
        for first in wanted.clone().step_by(PIECE_BLOCKS) {
            let blocks = first..wanted.end.min(first + PIECE_BLOCKS as u64);
            let piece = self.readahead.next;
            self.readahead.next += 1;
            self.readahead.under_way.push((piece, blocks.clone()));
            self.park(PendingRequest::Readahead { piece, blocks });
        }
    }

    /// A piece has been read, or has failed: requests that wait for it continue.
    pub fn end_ahead(&mut self, piece: u64) {
        self.readahead
            .under_way
            .retain(|(other, _)| *other != piece);
        let waiting = std::mem::take(&mut self.readahead.waiting);
        for waiting in waiting {
            let blocks = waiting.blocks(self.fetcher.block_size);
            self.park_behind(waiting, &blocks);
        }
    }
}
