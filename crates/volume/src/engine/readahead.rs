//! Reading ahead of streams, into the memory of the host's cache (docs/cache.md).
//!
//! ```text
//!  a read ─▶ streams ─▶ a range ─▶ pieces of it, each parked like a request that nobody waits
//!    │                             for ─▶ map pages, units ─▶ memory
//!    └─ of what is under way so: waits until that has ended, and is read from memory then
//! ```
//!
//! What fails was nothing: whoever wants it reads it, and waits or hears why.

use std::ops::Range;

use super::reader::{PendingRequest, Reader};
use super::streams::Streams;

/// So many blocks of a window are one reading: whoever wants the first of them does not wait
/// for all.
const PIECE_BLOCKS: usize = 64;

/// A window is no larger, in bytes.
const WINDOW_MAX_BYTES: u64 = 4 << 20;

/// What is read ahead of a volume's readers.
#[derive(Default)]
pub struct Readahead {
    streams: Streams,
    next: u64,
    /// Which pieces are under way.
    under_way: Vec<(u64, Range<u64>)>,
    /// Requests that wait for some of these.
    waiting: Vec<PendingRequest>,
    /// How much had gone unread when windows were last made smaller.
    unread: u64,
}

impl Readahead {
    fn has_under_way(&self, blocks: &Range<u64>) -> bool {
        let touches =
            |(_, piece): &(u64, Range<u64>)| piece.start < blocks.end && blocks.start < piece.end;
        self.under_way.iter().any(touches)
    }

    /// Nothing is under way any more. Brings who waits for that.
    pub fn end(&mut self) -> impl Iterator<Item = PendingRequest> + '_ {
        self.under_way.clear();
        self.waiting.drain(..)
    }
}

impl Reader {
    /// A request cannot be answered at once: parks it, or lets it wait for what is under way.
    pub fn park_behind(&mut self, waiting: PendingRequest, blocks: &Range<u64>) {
        match self.readahead.has_under_way(blocks) {
            true => self.readahead.waiting.push(waiting),
            false => self.park(waiting),
        }
    }

    /// Some blocks are read, at least one; `has_waited`: they were not at hand. Reads ahead
    /// what is likely to be wanted next, if there is where to keep it.
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

    /// A piece has been read, or cannot be: who waits for it goes on.
    pub fn end_ahead(&mut self, piece: u64) {
        self.readahead
            .under_way
            .retain(|(other, _)| *other != piece);
        let waiting = std::mem::take(&mut self.readahead.waiting);
        for waiting in waiting {
            let blocks = waiting.blocks(self);
            self.park_behind(waiting, &blocks);
        }
    }
}
