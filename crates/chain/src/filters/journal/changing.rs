//! A change that is asked for: into the journal, and on its way.

use std::sync::Arc;

use base::{BlockDevice, Durability, IoError, Started, Token};

use super::FlushMode;
use super::active::Journal;
use super::carry::{CHANGE_BYTES, Change};
use super::opening::Stage;
use super::record::{ALIGNMENT, HEADER_BYTES, Kind, PAYLOAD_BYTES_MAX};
use super::waiting::Waiting;

impl Journal {
    /// A change of a range: in the batch, and on its way.
    pub(super) fn change(
        &mut self,
        below: &dyn BlockDevice,
        token: Token,
        (kind, offset, length): (Kind, u64, u64),
        data: &[u8],
        durability: Durability,
    ) -> Started {
        if let Some(refusal) = self.refuses() {
            return refusal;
        }
        if below.capabilities().read_only {
            return Started::Failed(IoError::ReadOnly);
        }
        let size = below.geometry().size_bytes;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Started::Failed(IoError::OutOfRange {
                offset,
                length,
                size,
            });
        }
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
        let pieces = (data.len() as u64).div_ceil(PAYLOAD_BYTES_MAX).max(1);
        let around = HEADER_BYTES + ALIGNMENT;
        let needed = data.len() as u64 + pieces * around;
        let longest = (data.len() as u64).min(PAYLOAD_BYTES_MAX) + around;
        if needed > ring.ring_bytes() / 2 {
            let words = format!("{length} bytes at once are too many for the journal");
            return Started::Failed(IoError::NoSpace(words));
        }
        let memory = self.carry.bytes;
        let more = data.len() as u64 + pieces * CHANGE_BYTES;
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
        if kind == Kind::Write {
            let mut at = offset;
            for piece in data.chunks(PAYLOAD_BYTES_MAX as usize) {
                let length = piece.len() as u64;
                let data: Arc<[u8]> = piece.into();
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
}
