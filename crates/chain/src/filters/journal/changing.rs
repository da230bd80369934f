//! A change that is asked for: into the journal, and on its way.

use std::sync::Arc;

use base::{BlockDevice, ByteRange, Durability, IoError, Op, OpKind, Started, Token};

use super::FlushMode;
use super::active::Journal;
use super::carry::{CHANGE_BYTES, Change};
use super::opening::Stage;
use super::record::{ALIGNMENT, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX};
use super::waiting::Waiting;

impl Journal {
    /// Starts a change: into the batch, and on its way.
    pub(super) fn change(&mut self, below: &dyn BlockDevice, token: Token, op: &Op<'_>) -> Started {
        let capabilities = below.capabilities();
        if op.kind() != OpKind::Write && !capabilities.can_write_zeroes {
            return Started::Failed(IoError::NotSupported);
        }
        if let Some(refusal) = self.refuses() {
            return refusal;
        }
        if capabilities.read_only {
            return Started::Failed(IoError::ReadOnly);
        }
        let size_bytes = below.geometry().size_bytes;
        if let Err(error) = op.range().check(size_bytes) {
            return Started::Failed(error);
        }
        let (kind, ByteRange { offset, length }) = self.recorded(op);
        let (data, durability) = (op.data(), op.durability());
        if length == 0 {
            return Started::Done;
        }
        if !self.may_acknowledge() {
            return Started::Busy;
        }
        // What the disk below cannot take may not be acknowledged.
        let block_min = u64::from(self.config.block_min);
        if !offset.is_multiple_of(block_min) || !length.is_multiple_of(block_min) {
            return Started::Failed(IoError::NotSupported);
        }
        let Stage::Open(ring) = &mut self.stage else {
            return Started::Busy;
        };
        let data_bytes = data.map_or(0, |data| data.len() as u64);
        let pieces = data_bytes.div_ceil(PAYLOAD_BYTES_MAX).max(1);
        let around = HEADER_BYTES + ALIGNMENT;
        let needed = data_bytes + pieces * around;
        let longest = data_bytes.min(PAYLOAD_BYTES_MAX) + around;
        if needed > ring.ring_bytes() / 2 {
            let words = format!("{length} bytes at once are too many for the journal");
            return Started::Failed(IoError::NoSpace(words));
        }
        let memory = self.carry.bytes;
        let more = data_bytes + pieces * CHANGE_BYTES;
        let is_full = memory > 0 && memory + more > self.config.memory_max;
        self.lacks_memory |= is_full;
        if is_full || !ring.has_room(needed, longest) {
            self.was_busy = true;
            return match self.failing.clone() {
                Some((error, _)) => Started::Failed(error),
                None => Started::Busy,
            };
        }
        let carried = match self.config.flush {
            FlushMode::Through => durability,
            FlushMode::Journal => Durability::Volatile,
        };
        if let Some(mut left) = data {
            let mut at = offset;
            while !left.is_empty() {
                let (piece, rest) = left.split_at(left.len().min(PAYLOAD_BYTES_MAX as usize));
                left = rest;
                let length = piece.len() as u64;
                let data: Arc<[u8]> = (&*piece.contiguous()).into();
                let end = ring.append(kind, (at, length), Some(&data));
                self.overlay
                    .insert(at, length, end.1, Some(Arc::clone(&data)));
                let change = Change::new((kind, at, length), Some(data), end, carried);
                self.carry.push(change);
                at += length;
            }
        } else {
            let end = ring.append(kind, (offset, length), None);
            self.overlay.insert(offset, length, end.1, None);
            let change = Change::new((kind, offset, length), None, end, carried);
            self.carry.push(change);
        }
        if durability == Durability::Volatile {
            return Started::Done;
        }
        self.waiting.push_back(Waiting {
            token,
            upto: ring.head(),
            below: self.config.flush == FlushMode::Through,
            is_flush: false,
            empties: false,
        });
        Started::Pending
    }
    /// As what a change is recorded, and of which range. A trim is recorded as zeroes that may
    /// become a hole, without the parts of blocks at its ends, which may keep their content.
    fn recorded(&self, op: &Op<'_>) -> (Kind, ByteRange) {
        let range = op.range();
        match op {
            Op::Trim { .. } => {
                let block_min = u64::from(self.config.block_min);
                let from = range.offset.next_multiple_of(block_min);
                let to = range.end() / block_min * block_min;
                let kind = Kind::Zeroes { may_punch: true };
                (kind, ByteRange::new(from, to.saturating_sub(from)))
            }
            Op::WriteZeroes { mode, .. } => {
                let may_punch = mode.may_punch;
                (Kind::Zeroes { may_punch }, range)
            }
            _ => (Kind::Write, range),
        }
    }
}
