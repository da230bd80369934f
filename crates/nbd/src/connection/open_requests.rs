//! [`OpenRequests`]: the requests of a connection that have started and have no reply, and how
//! their replies are staged.

use std::ops::ControlFlow::{Break, Continue};
use std::ops::Deref;

use base::{Extent, IoError, Outcome, Started};

use super::{LongRequest, Pause, Step, Violation};
use crate::buffers::Output;
use crate::export_state::{ExportState, Operation};
use crate::reply::{self, DATA_CHUNK_BYTES};
use crate::request::Range;
use crate::slab::{Key, Slab};
use crate::wire::{Errno, Fault, chunk};

/// The form of a reply.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReplyKind {
    /// Success or an error, without data.
    NoData,
    /// The data of a read in one piece.
    Read(Range),
    /// The data of a long read, a chunk for each piece.
    ReadFragments,
    /// The data of a long read, after one header.
    ReadWhole(Range),
    /// The extents of a block status.
    Extents {
        /// The length of the range, in bytes.
        length: u32,
        /// Whether the client wants only the first extent.
        first_only: bool,
    },
}

/// A request without a reply.
#[derive(Debug)]
pub(super) struct Request {
    cookie: u64,
    pub(super) kind: ReplyKind,
    /// The number of its pieces that are pending in the device.
    pub(super) outstanding: usize,
    /// Whether further pieces will start.
    pub(super) unissued: bool,
    /// Whether part of its data is staged.
    pub(super) begun: bool,
    /// The first error of a piece.
    pub(super) fault: Option<Fault>,
}

/// The bytes of a reply before its data, at most [`DATA_CHUNK_BYTES`].
pub(super) struct ReplyHeader {
    bytes: [u8; DATA_CHUNK_BYTES],
    length: usize,
}

impl ReplyHeader {
    fn new(header: &[u8]) -> Self {
        let mut bytes = [0; DATA_CHUNK_BYTES];
        bytes[..header.len()].copy_from_slice(header);
        Self {
            bytes,
            length: header.len(),
        }
    }
}

impl Deref for ReplyHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Request {
    pub(super) fn new(cookie: u64, kind: ReplyKind) -> Self {
        Self {
            cookie,
            kind,
            outstanding: 0,
            unissued: false,
            begun: false,
            fault: None,
        }
    }

    /// The bytes before the data of `piece`.
    pub(super) fn head(&self, structured: bool, piece: Range) -> ReplyHeader {
        let (flags, range) = match self.kind {
            ReplyKind::ReadWhole(_) if self.begun => return ReplyHeader::new(&[]),
            _ if !structured => return ReplyHeader::new(&reply::simple(self.cookie, 0)),
            ReplyKind::ReadWhole(range) => (chunk::DONE, range),
            ReplyKind::Read(range) => (chunk::DONE, range),
            _ => (0, piece),
        };
        ReplyHeader::new(&reply::data_header(
            self.cookie,
            flags,
            range.offset,
            range.length,
        ))
    }
}

/// The requests of a connection that have started and have no reply, and the staged replies.
#[derive(Debug)]
pub struct OpenRequests {
    /// The key of the connection's link, to which completions are passed.
    link: Key,
    /// Whether replies are structured.
    structured: bool,
    /// Staged replies.
    pub output: Output,
    pub(super) entries: Slab<Request>,
    /// The memory that pending operations hold, in bytes.
    operation_bytes: usize,
    /// Why the connection has to end.
    pub(super) broken: Option<Violation>,
}

impl OpenRequests {
    pub(super) fn new(link: Key, structured: bool) -> Self {
        Self {
            link,
            structured,
            output: Output::default(),
            entries: Slab::default(),
            operation_bytes: 0,
            broken: None,
        }
    }

    /// The number of requests without a reply.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The memory of staged replies and pending operations, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.output.memory() + self.operation_bytes
    }

    /// Records that a piece of `request` is pending in the device.
    pub(super) fn add_operation<D>(
        &mut self,
        state: &mut ExportState<D>,
        request: Key,
        offset: u64,
        bytes: usize,
    ) {
        self.operation_bytes += bytes;
        state.operations.insert(Operation {
            link: self.link,
            request,
            offset,
            bytes,
        });
    }

    /// Adds a long request of which no piece has started.
    pub(super) fn add_long(&mut self, cookie: u64, kind: ReplyKind, range: Range) -> LongRequest {
        let mut request = Request::new(cookie, kind);
        request.unissued = true;
        LongRequest {
            request: self.entries.insert(request),
            next: range.offset,
            end: range.end(),
        }
    }

    /// Handles the device's answer to a piece.
    pub(super) fn issued<D>(
        &mut self,
        state: &mut ExportState<D>,
        request: Key,
        piece: Range,
        started: Started,
    ) -> Step {
        if started == Started::Busy {
            return Break(Pause::Stalled);
        }
        state.has_batch = true;
        if let Some(entry) = self.entries.get_mut(request) {
            match started {
                Started::Pending => {
                    entry.outstanding += 1;
                    self.add_operation(state, request, piece.offset, piece.length as usize);
                }
                Started::Failed(error) => entry.fault = Some(state.count_failure(error)),
                Started::Done | Started::Busy => {}
            }
        }
        Continue(())
    }

    /// Records that no further piece of a long request starts, so that it ends with the last
    /// pending one.
    pub(super) fn all_issued<D>(&mut self, request: Key, state: &mut ExportState<D>) {
        if let Some(entry) = self.entries.get_mut(request) {
            entry.unissued = false;
            self.end_if_over(request, state);
        }
    }

    /// Handles the completion of a pending operation.
    pub fn complete<D>(
        &mut self,
        state: &mut ExportState<D>,
        operation: &Operation,
        result: Result<Outcome, IoError>,
    ) {
        self.operation_bytes -= operation.bytes;
        let Some(request) = self.entries.get_mut(operation.request) else {
            return;
        };
        request.outstanding -= 1;
        match (request.kind, result) {
            (_, Err(error)) => {
                let fault = state.count_failure(error);
                request.fault.get_or_insert(fault);
            }
            (ReplyKind::NoData, Ok(Outcome::Done)) => {}
            (ReplyKind::Extents { length, first_only }, Ok(Outcome::Extents(runs))) => {
                if let Some(mut request) = self.entries.remove(operation.request) {
                    self.stage_extents(state, &mut request, &runs, length, first_only);
                    self.answer(request, state);
                }
                return;
            }
            (
                ReplyKind::Read(_) | ReplyKind::ReadFragments | ReplyKind::ReadWhole(_),
                Ok(Outcome::Data(data)),
            ) if data.len() == operation.bytes => {
                let piece = Range {
                    offset: operation.offset,
                    length: operation.bytes as u32,
                };
                let head = request.head(self.structured, piece);
                request.begun = true;
                self.output.put(&head, &mut state.pool);
                self.output.put(&data, &mut state.pool);
            }
            (_, Ok(_)) => {
                request.fault.get_or_insert_with(invalid_result);
            }
        }
        self.end_if_over(operation.request, state);
    }

    /// Stages the reply to a request if all its pieces have ended.
    fn end_if_over<D>(&mut self, request: Key, state: &mut ExportState<D>) {
        let over = |entry: &Request| entry.outstanding == 0 && !entry.unissued;
        if self.entries.get(request).is_some_and(over)
            && let Some(entry) = self.entries.remove(request)
        {
            self.answer(entry, state);
        }
    }

    pub(super) fn stage_extents<D>(
        &mut self,
        state: &mut ExportState<D>,
        request: &mut Request,
        runs: &[Extent],
        length: u32,
        first_only: bool,
    ) {
        match reply::block_status(request.cookie, runs, length, first_only) {
            Some(status) => self.output.put(&status, &mut state.pool),
            None => request.fault = Some(invalid_result()),
        }
    }

    /// Stages the end of the reply to a request.
    pub(super) fn answer<D>(&mut self, request: Request, state: &mut ExportState<D>) {
        state.answered += 1;
        let (cookie, pool) = (request.cookie, &mut state.pool);
        match (request.fault, request.kind) {
            (Some(fault), ReplyKind::ReadWhole(_)) if request.begun => {
                self.broken = Some(Violation::PartialReply(fault.message));
            }
            (Some(fault), _) if self.structured => {
                self.output.put(&reply::error_chunk(cookie, &fault), pool);
            }
            (Some(fault), _) => {
                self.output
                    .put(&reply::simple(cookie, fault.errno as u32), pool);
            }
            (None, ReplyKind::NoData) => self.output.put(&reply::simple(cookie, 0), pool),
            (None, ReplyKind::ReadFragments) => {
                let last = reply::chunk_header(cookie, chunk::DONE, chunk::NONE, 0);
                self.output.put(&last, pool);
            }
            (None, ReplyKind::Read(_) | ReplyKind::ReadWhole(_) | ReplyKind::Extents { .. }) => {}
        }
    }
}

/// The error for a result that does not fit its request.
fn invalid_result() -> Fault {
    debug_assert!(false, "the device's result does not fit the request");
    Fault {
        errno: Errno::Io,
        message: "the device's result does not fit the request".into(),
    }
}
