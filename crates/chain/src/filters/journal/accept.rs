//! Accepting a change: into the batch of the journal, and into the backlog.

use std::sync::Arc;

use base::{BlockDevice, ByteRange, Durability, IoError, Op, OpKind, Started, Token, WriteBuffer};

use super::FlushMode;
use super::changes::{CHANGE_BYTES, Change};
use super::filter::Journal;
use super::record::{ALIGNMENT, ChangeKind, HEADER_BYTES, PAYLOAD_BYTES_MAX};
use super::stage::Stage;
use super::waiting::{Condition, Waiting};

/// What a change takes.
struct Footprint {
    /// The length of its records, in bytes.
    ring_bytes: u64,
    /// The length of its longest record, in bytes.
    longest: u64,
    memory_bytes: u64,
}

impl Footprint {
    /// Of a change with `data_bytes` bytes of content.
    fn new(data_bytes: u64) -> Self {
        let records = data_bytes.div_ceil(PAYLOAD_BYTES_MAX).max(1);
        let overhead = HEADER_BYTES + ALIGNMENT;
        Self {
            ring_bytes: data_bytes + records * overhead,
            longest: data_bytes.min(PAYLOAD_BYTES_MAX) + overhead,
            memory_bytes: data_bytes + records * CHANGE_BYTES,
        }
    }
}

impl Journal {
    /// Starts a change.
    pub(super) fn accept(&mut self, below: &dyn BlockDevice, token: Token, op: &Op<'_>) -> Started {
        match self.try_accept(below, token, op) {
            Ok(started) | Err(started) => started,
        }
    }

    /// Starts a change. An answer that ends it early is an error.
    fn try_accept(
        &mut self,
        below: &dyn BlockDevice,
        token: Token,
        op: &Op<'_>,
    ) -> Result<Started, Started> {
        let (kind, range) = self.check(below, op)?;
        let data = op.data();
        let data_bytes = data.as_ref().map_or(0, |data| data.len() as u64);
        self.reserve(&Footprint::new(data_bytes), range.length)?;
        let durability = op.durability();
        let written_as = match self.lifecycle.config.flush {
            FlushMode::Through => durability,
            FlushMode::Journal => Durability::Volatile,
        };
        self.append(kind, range, data, written_as);
        if durability == Durability::Volatile {
            return Ok(Started::Done);
        }
        let Stage::Open(ring) = &self.lifecycle.stage else {
            return Err(Started::Busy);
        };
        self.waiting.push_back(Waiting {
            token,
            end: ring.head(),
            condition: match self.lifecycle.config.flush {
                FlushMode::Through => Condition::WrittenBelow,
                FlushMode::Journal => Condition::Synced,
            },
        });
        Ok(Started::Pending)
    }

    /// How a change is recorded, and of which range; or the answer, if it is not recorded.
    fn check(
        &mut self,
        below: &dyn BlockDevice,
        op: &Op<'_>,
    ) -> Result<(ChangeKind, ByteRange), Started> {
        let capabilities = below.capabilities();
        if op.kind() != OpKind::Write && !capabilities.can_write_zeroes {
            return Err(Started::Failed(IoError::NotSupported));
        }
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        if capabilities.read_only {
            return Err(Started::Failed(IoError::ReadOnly));
        }
        let size_bytes = below.geometry().size_bytes;
        op.range().check(size_bytes).map_err(Started::Failed)?;
        let block_min = u64::from(self.lifecycle.config.block_min);
        let (kind, range) = recorded(op, block_min);
        if range.length == 0 {
            return Err(Started::Done);
        }
        if !self.may_acknowledge() {
            return Err(Started::Busy);
        }
        // A change that the disk below cannot take must not be acknowledged.
        if !range.offset.is_multiple_of(block_min) || !range.length.is_multiple_of(block_min) {
            return Err(Started::Failed(IoError::NotSupported));
        }
        Ok((kind, range))
    }

    /// Checks that ring and memory have room for a change of `length` bytes of the disk; otherwise
    /// returns the answer. If they are full because of an error below, that is the answer.
    fn reserve(&mut self, footprint: &Footprint, length: u64) -> Result<(), Started> {
        let Stage::Open(ring) = &self.lifecycle.stage else {
            return Err(Started::Busy);
        };
        if footprint.ring_bytes > ring.ring_bytes() / 2 {
            let reason = format!("a request of {length} bytes is too long for the journal");
            return Err(Started::Failed(IoError::NoSpace(reason)));
        }
        let has_room = ring.has_room(footprint.ring_bytes, footprint.longest);
        if self.write_back.backlog.admit(footprint.memory_bytes) && has_room {
            return Ok(());
        }
        self.was_busy = true;
        Err(match self.write_back.retry.error() {
            Some(error) => Started::Failed(error.clone()),
            None => Started::Busy,
        })
    }

    /// Appends the records of a change. There is room.
    fn append(
        &mut self,
        kind: ChangeKind,
        range: ByteRange,
        data: Option<WriteBuffer<'_>>,
        durability: Durability,
    ) {
        let Stage::Open(ring) = &mut self.lifecycle.stage else {
            return;
        };
        let Some(mut rest) = data else {
            let record = ring.append(kind, range, None);
            let change = Change::new(kind, range, None, durability, record);
            return self.write_back.backlog.push(change);
        };
        let mut offset = range.offset;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(PAYLOAD_BYTES_MAX as usize));
            rest = behind;
            let range = ByteRange::new(offset, piece.len() as u64);
            let data: Arc<[u8]> = (&*piece.contiguous()).into();
            let record = ring.append(kind, range, Some(&data));
            let change = Change::new(kind, range, Some(data), durability, record);
            self.write_back.backlog.push(change);
            offset = range.end();
        }
    }
}

/// How a change is recorded, and of which range. A trim is recorded as zeroes that may become
/// a hole, without the partial blocks, of `block_min` bytes, at its ends, which may keep their
/// content.
fn recorded(op: &Op<'_>, block_min: u64) -> (ChangeKind, ByteRange) {
    let range = op.range();
    match op {
        Op::Trim { .. } => {
            let from = range.offset.next_multiple_of(block_min);
            let to = range.end() / block_min * block_min;
            let kind = ChangeKind::Zeroes { may_punch: true };
            (kind, ByteRange::new(from, to.saturating_sub(from)))
        }
        Op::WriteZeroes { mode, .. } => {
            let may_punch = mode.may_punch;
            (ChangeKind::Zeroes { may_punch }, range)
        }
        _ => (ChangeKind::Write, range),
    }
}
