//! Starting a request in pieces, and discarding a refused payload.

use std::ops::ControlFlow::{Break, Continue};

use base::{BlockDevice, Durability, Started};

use super::open_requests::ReplyKind;
use super::{Connection, LongRequest, Pause, Stage, Step};
use crate::buffers::PIECE_BYTES;
use crate::export_state::ExportState;
use crate::request::Range;

impl LongRequest {
    /// The next piece. It ends at the end of the range or at a block boundary.
    fn piece(&self, block_bytes: u32) -> Range {
        let far = self.next + PIECE_BYTES as u64;
        let aligned = far - far % u64::from(block_bytes.max(1));
        let until = if far >= self.end {
            self.end
        } else if aligned > self.next {
            aligned
        } else {
            far
        };
        Range {
            offset: self.next,
            length: (until - self.next) as u32,
        }
    }
}

impl Connection {
    /// Starts the next piece of a long write.
    pub(super) fn next_write_piece<D: BlockDevice>(
        &mut self,
        state: &mut ExportState<D>,
        long: LongRequest,
        durability: Durability,
    ) -> Step {
        let failed = self
            .requests
            .entries
            .get(long.request)
            .is_none_or(|request| request.fault.is_some());
        if long.next == long.end || failed {
            self.stage = match (long.end - long.next) as usize {
                0 => Stage::Header,
                left => Stage::Drain(left),
            };
            self.requests.all_issued(long.request, state);
            return Continue(());
        }
        let piece = long.piece(state.geometry.block_bytes);
        let length = piece.length as usize;
        let Some(data) = self.input.bytes().get(..length) else {
            return Break(Pause::Input);
        };
        let token = state.operations.next_key();
        let started =
            state
                .device
                .start(base::Request::write(token, piece.offset, data, durability));
        self.requests.issued(state, long.request, piece, started)?;
        self.input.consume(length);
        let next = piece.end();
        self.stage = Stage::Write(LongRequest { next, ..long }, durability);
        Continue(())
    }

    /// Starts the next piece of a long read.
    pub(super) fn next_read_piece<D: BlockDevice>(
        &mut self,
        state: &mut ExportState<D>,
        long: LongRequest,
    ) -> Step {
        let others = self.requests.len() > 1;
        let Some(request) = self.requests.entries.get_mut(long.request) else {
            self.stage = Stage::Header;
            return Continue(());
        };
        // No other reply may be staged between the pieces of a contiguous reply.
        if matches!(request.kind, ReplyKind::ReadWhole(_)) && (others || request.outstanding > 0) {
            return Break(Pause::Full);
        }
        if long.next == long.end || request.fault.is_some() {
            self.stage = Stage::Header;
            self.requests.all_issued(long.request, state);
            return Continue(());
        }
        let piece = long.piece(state.geometry.block_bytes);
        let head = request.head(self.settings.structured, piece);
        let length = piece.length as usize;
        let (head_space, space) = self
            .requests
            .output
            .space(head.len(), length, &mut state.pool);
        let token = state.operations.next_key();
        let started = state
            .device
            .start(base::Request::read(token, piece.offset, space));
        if started == Started::Done {
            head_space.copy_from_slice(&head);
            request.begun = true;
            self.requests.output.staged(head.len() + length);
        } else {
            self.requests.output.release(&mut state.pool);
        }
        self.requests.issued(state, long.request, piece, started)?;
        let next = piece.end();
        self.stage = Stage::Read(LongRequest { next, ..long });
        Continue(())
    }

    /// Discards `left` bytes of a refused payload.
    pub(super) fn drain(&mut self, left: usize) -> Step {
        let here = self.input.len().min(left);
        if here == 0 {
            return Break(Pause::Input);
        }
        self.input.consume(here);
        self.stage = match left - here {
            0 => Stage::Header,
            left => Stage::Drain(left),
        };
        Continue(())
    }
}
