//! Requests longer than a piece, and payloads that nobody wants.

use std::ops::ControlFlow::{Break, Continue};

use base::{BlockDevice, Durability, Started};

use super::pending::{Kind, Request};
use super::{Connection, Long, Pause, Stage, Step};
use crate::buffers::PIECE_BYTES;
use crate::desk::Desk;
use crate::request::Range;
use crate::slab::Key;

impl Long {
    /// The next piece: to the range's end, or to a block boundary before it.
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
    /// A long request that has been given no piece yet.
    pub(super) fn long(&mut self, cookie: u64, kind: Kind, range: Range) -> Long {
        let mut request = Request::new(cookie, kind);
        request.unissued = true;
        Long {
            request: self.requests.insert(request),
            next: range.offset,
            end: range.end(),
        }
    }

    pub(super) fn next_write_piece<D: BlockDevice>(
        &mut self,
        desk: &mut Desk<D>,
        long: Long,
        durability: Durability,
    ) -> Step {
        let failed = self
            .requests
            .get(long.request)
            .is_none_or(|request| request.fault.is_some());
        if long.next == long.end || failed {
            self.stage = match (long.end - long.next) as usize {
                0 => Stage::Header,
                left => Stage::Drain(left),
            };
            self.all_issued(long.request, desk);
            return Continue(());
        }
        let piece = long.piece(desk.geometry.block_bytes);
        let length = piece.length as usize;
        let Some(data) = self.input.bytes().get(..length) else {
            return Break(Pause::Input);
        };
        let token = desk.operations.next_key();
        let started =
            desk.device
                .start(base::Request::write(token, piece.offset, data, durability));
        self.issued(desk, long.request, piece, started)?;
        self.input.consume(length);
        let next = piece.end();
        self.stage = Stage::Write(Long { next, ..long }, durability);
        Continue(())
    }

    pub(super) fn next_read_piece<D: BlockDevice>(
        &mut self,
        desk: &mut Desk<D>,
        long: Long,
    ) -> Step {
        let others = self.requests.len() > 1;
        let Some(request) = self.requests.get_mut(long.request) else {
            self.stage = Stage::Header;
            return Continue(());
        };
        // Nothing may come between the pieces of one run of bytes.
        if matches!(request.kind, Kind::ReadWhole(_)) && (others || request.outstanding > 0) {
            return Break(Pause::Full);
        }
        if long.next == long.end || request.fault.is_some() {
            self.stage = Stage::Header;
            self.all_issued(long.request, desk);
            return Continue(());
        }
        let piece = long.piece(desk.geometry.block_bytes);
        let head = request.head(self.settings.structured, piece);
        let length = piece.length as usize;
        let (head_space, space) = self.output.space(head.len(), length, &mut desk.pool);
        let token = desk.operations.next_key();
        let started = desk
            .device
            .start(base::Request::read(token, piece.offset, space));
        if started == Started::Done {
            head_space.copy_from_slice(&head);
            request.begun = true;
            self.output.staged(head.len() + length);
        } else {
            self.output.release(&mut desk.pool);
        }
        self.issued(desk, long.request, piece, started)?;
        let next = piece.end();
        self.stage = Stage::Read(Long { next, ..long });
        Continue(())
    }

    /// Handles the device's answer to a piece.
    fn issued<D>(
        &mut self,
        desk: &mut Desk<D>,
        request: Key,
        piece: Range,
        started: Started,
    ) -> Step {
        if started == Started::Busy {
            return Break(Pause::Stalled);
        }
        desk.uncommitted = true;
        if let Some(entry) = self.requests.get_mut(request) {
            match started {
                Started::Pending => {
                    entry.outstanding += 1;
                    self.wait(desk, request, piece.offset, piece.length as usize);
                }
                Started::Failed(error) => entry.fault = Some(desk.fault(error)),
                Started::Done | Started::Busy => {}
            }
        }
        Continue(())
    }

    /// A long request gets no more pieces: it ends with the last of those it
    /// has.
    pub(super) fn all_issued<D>(&mut self, request: Key, desk: &mut Desk<D>) {
        if let Some(entry) = self.requests.get_mut(request) {
            entry.unissued = false;
            self.end_if_over(request, desk);
        }
    }

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
