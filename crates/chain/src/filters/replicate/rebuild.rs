//! [`Rebuild`]: which piece of a member is copied, and how far the copy is.
//!
//! ```text
//!  excluded ── connected ──▶ rebuilding ── everything copied, flushed, and in the file ──▶ in sync
//!     ▲                       │
//!     └──── fails, stalls ────┘
//!
//!  region by region, piece by piece: 1. lock the piece  2. read it from a source
//!                                    3. write it        4. unlock it
//! ```

use std::ops::Range;

use base::{ByteRange, Token};

use super::region_map::RegionMap;
use super::regions::Regions;
use super::requests::RangeLocks;
use super::selection::Selection;
use crate::follow::Disk;

/// The maximal length of a piece, in bytes.
const PIECE_BYTES: u64 = 256 << 10;

/// The part of a partial replica's region that is searched at once for what it should have and
/// does not have, in bytes.
const WINDOW_BYTES: u64 = 1 << 20;

/// The maximal number of windows without a find in a poll, so that other disks get their turn.
pub(super) const WINDOWS_MAX: u32 = 64;

/// The rebuild of one member.
pub(super) struct Rebuild {
    pub member: usize,
    /// The region that is copied.
    pub region: usize,
    /// The regions that were copied. They are missing until that is flushed.
    pub copied: Regions,
    /// Whether the member has missed a write to `region` since its copy began.
    is_stale: bool,
    /// The number of bytes that were copied.
    pub bytes: u64,
    /// The number of windows without a find in this poll.
    pub windows: u32,
    /// Where the next piece begins.
    pub at: u64,
    pub step: Step,
}

/// The next step, or the one that is pending.
pub(super) enum Step {
    /// The next piece is read as soon as no change is pending there.
    Next,
    Reading {
        id: Token,
        length: u64,
    },
    /// The piece was read, and could not be written yet.
    Read {
        data: Vec<u8>,
    },
    Writing {
        id: Token,
        length: u64,
    },
    /// Everything is copied, and the flush could not be started yet.
    Flush,
    Flushing {
        id: Token,
    },
}

impl Rebuild {
    pub fn new(member: usize, map: &RegionMap) -> Self {
        let mut rebuild = Self {
            member,
            region: 0,
            copied: Regions::new(map.regions),
            is_stale: false,
            bytes: 0,
            windows: 0,
            at: 0,
            step: Step::Next,
        };
        rebuild.go_to_region(map, 0);
        rebuild
    }

    /// Continues with the next missing region from `from`, or with the flush.
    fn go_to_region(&mut self, map: &RegionMap, from: usize) {
        let next = map.missing[self.member].first(from, map.regions);
        (self.region, self.step) = match next {
            Some(region) => (region, Step::Next),
            None => (map.regions, Step::Flush),
        };
        self.at = self.region as u64 * map.region_bytes;
        self.is_stale = false;
    }

    /// All of a region is copied.
    pub fn finish_region(&mut self, map: &RegionMap, region: usize) {
        if !self.is_stale {
            self.copied.set(region);
        }
        self.go_to_region(map, region + 1);
    }

    /// The next piece of the rest of a region, of a member with this selection. `None` if nothing
    /// was found so far; the search continues behind it.
    pub fn next_piece(
        &mut self,
        selection: Option<&Selection>,
        disk: Option<&Disk>,
        rest: Range<u64>,
    ) -> Option<ByteRange> {
        let Some(selection) = selection else {
            let length = PIECE_BYTES.min(rest.end - rest.start);
            return Some(ByteRange::new(rest.start, length));
        };
        let window_bytes = WINDOW_BYTES.max(selection.has.bytes);
        let window = rest.start..rest.end.min(rest.start + window_bytes);
        let piece_max = PIECE_BYTES.max(selection.has.bytes);
        match selection.missing(disk, &window, piece_max) {
            Some(piece) => {
                self.at = piece.start;
                Some(ByteRange::new(piece.start, piece.end - piece.start))
            }
            None => {
                self.at = window.end;
                self.windows += 1;
                None
            }
        }
    }

    /// The member has the next `length` bytes, which are locked no longer. Returns where they
    /// begin.
    pub fn piece_written(&mut self, locks: &mut RangeLocks, length: u64) -> u64 {
        let at = self.at;
        locks.unlock(at);
        self.at = at + length;
        self.bytes += length;
        self.step = Step::Next;
        at
    }

    /// Whether the next step is taken by itself, and not when a request ends.
    pub fn is_waiting(&self) -> bool {
        matches!(self.step, Step::Next | Step::Read { .. } | Step::Flush)
    }

    /// The offset of the piece that is locked.
    pub fn locked(&self) -> Option<u64> {
        let is_locked = !matches!(self.step, Step::Next | Step::Flush | Step::Flushing { .. });
        is_locked.then_some(self.at)
    }

    /// Whether a piece or a flush is in the middle of its steps.
    pub fn is_pending(&self) -> bool {
        !matches!(self.step, Step::Next | Step::Flush)
    }

    /// Whether the member has the copy of a region, as far as it is copied.
    pub fn has_copied(&self, region: usize) -> bool {
        self.region == region || self.copied.has(region)
    }

    /// The member has missed a write to these regions: their copies are void.
    pub fn discard(&mut self, regions: Range<usize>) {
        self.is_stale |= regions.contains(&self.region);
        regions.for_each(|region| self.copied.clear(region));
    }

    /// All copies are void.
    pub fn discard_all(&mut self) {
        self.copied.clear_all();
        self.is_stale = true;
    }
}
