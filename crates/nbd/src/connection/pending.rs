//! Requests between their start and their reply.

use std::ops::Deref;

use base::{Extent, IoError, Outcome};

use super::Connection;
use crate::desk::{Desk, Operation};
use crate::reply::{self, DATA_CHUNK_BYTES};
use crate::request::Range;
use crate::slab::Key;
use crate::wire::{Errno, Fault, chunk};

/// How a request is answered.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Done or failed.
    Plain,
    /// A read in one piece.
    Read(Range),
    /// A long read whose pieces are chunks.
    ReadFragments,
    /// A long read whose pieces follow one header.
    ReadWhole(Range),
    /// A block status.
    Extents {
        /// Of how many bytes.
        length: u32,
        /// Only the first extent is wanted.
        one: bool,
    },
}

#[derive(Debug)]
pub(super) struct Request {
    cookie: u64,
    pub(super) kind: Kind,
    /// Pieces that the device has not answered.
    pub(super) outstanding: usize,
    /// There are pieces that it was not given yet.
    pub(super) unissued: bool,
    /// Some of its data are staged.
    pub(super) begun: bool,
    /// The first failure.
    pub(super) fault: Option<Fault>,
}

/// What stands before data: at most [`DATA_CHUNK_BYTES`].
pub(super) struct Head {
    bytes: [u8; DATA_CHUNK_BYTES],
    length: usize,
}

impl Head {
    fn new(header: &[u8]) -> Self {
        let mut bytes = [0; DATA_CHUNK_BYTES];
        bytes[..header.len()].copy_from_slice(header);
        Self {
            bytes,
            length: header.len(),
        }
    }
}

impl Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Request {
    pub(super) fn new(cookie: u64, kind: Kind) -> Self {
        Self {
            cookie,
            kind,
            outstanding: 0,
            unissued: false,
            begun: false,
            fault: None,
        }
    }

    /// What stands before the data of `piece`.
    pub(super) fn head(&self, structured: bool, piece: Range) -> Head {
        let (flags, range) = match self.kind {
            Kind::ReadWhole(_) if self.begun => return Head::new(&[]),
            _ if !structured => return Head::new(&reply::simple(self.cookie, 0)),
            Kind::ReadWhole(range) => (chunk::DONE, range),
            Kind::Read(range) => (chunk::DONE, range),
            _ => (0, piece),
        };
        Head::new(&reply::data_header(
            self.cookie,
            flags,
            range.offset,
            range.length,
        ))
    }
}

impl Connection {
    /// The device has ended something that was pending.
    pub fn complete<D>(
        &mut self,
        desk: &mut Desk<D>,
        operation: &Operation,
        result: Result<Outcome, IoError>,
    ) {
        self.operation_bytes -= operation.bytes;
        let Some(request) = self.requests.get_mut(operation.request) else {
            return;
        };
        request.outstanding -= 1;
        match (request.kind, result) {
            (_, Err(error)) => {
                let fault = desk.fault(error);
                request.fault.get_or_insert(fault);
            }
            (Kind::Plain, Ok(Outcome::Done)) => {}
            (Kind::Extents { length, one }, Ok(Outcome::Extents(runs))) => {
                if let Some(mut request) = self.requests.remove(operation.request) {
                    self.stage_extents(desk, &mut request, &runs, length, one);
                    self.answer(request, desk);
                }
                return;
            }
            (Kind::Read(_) | Kind::ReadFragments | Kind::ReadWhole(_), Ok(Outcome::Data(data)))
                if data.len() == operation.bytes =>
            {
                let piece = Range {
                    offset: operation.offset,
                    length: operation.bytes as u32,
                };
                let head = request.head(self.settings.structured, piece);
                request.begun = true;
                self.output.put(&head, &mut desk.pool);
                self.output.put(&data, &mut desk.pool);
            }
            (_, Ok(_)) => {
                request.fault.get_or_insert_with(odd_answer);
            }
        }
        self.end_if_over(operation.request, desk);
    }

    /// Answers a request if nothing of it is left to be done.
    pub(super) fn end_if_over<D>(&mut self, request: Key, desk: &mut Desk<D>) {
        let over = |entry: &Request| entry.outstanding == 0 && !entry.unissued;
        if self.requests.get(request).is_some_and(over)
            && let Some(entry) = self.requests.remove(request)
        {
            self.answer(entry, desk);
        }
    }

    pub(super) fn stage_extents<D>(
        &mut self,
        desk: &mut Desk<D>,
        request: &mut Request,
        runs: &[Extent],
        length: u32,
        one: bool,
    ) {
        match reply::block_status(request.cookie, runs, length, one) {
            Some(status) => self.output.put(&status, &mut desk.pool),
            None => request.fault = Some(odd_answer()),
        }
    }

    /// Stages what ends the reply to a request that is over.
    pub(super) fn answer<D>(&mut self, request: Request, desk: &mut Desk<D>) {
        desk.answered += 1;
        let (cookie, pool) = (request.cookie, &mut desk.pool);
        match (request.fault, request.kind) {
            (Some(fault), Kind::ReadWhole(_)) if request.begun => {
                self.broken = Some(super::Violation::HalfAReply(fault.message));
            }
            (Some(fault), _) if self.settings.structured => {
                self.output.put(&reply::error_chunk(cookie, &fault), pool);
            }
            (Some(fault), _) => {
                self.output
                    .put(&reply::simple(cookie, fault.errno as u32), pool);
            }
            (None, Kind::Plain) => self.output.put(&reply::simple(cookie, 0), pool),
            (None, Kind::ReadFragments) => {
                let last = reply::chunk_header(cookie, chunk::DONE, chunk::NONE, 0);
                self.output.put(&last, pool);
            }
            (None, Kind::Read(_) | Kind::ReadWhole(_) | Kind::Extents { .. }) => {}
        }
    }
}

/// A device's answer that does not belong to its question.
fn odd_answer() -> Fault {
    debug_assert!(false, "the device's answer does not fit the request");
    Fault {
        errno: Errno::Io,
        message: "the device's answer does not fit the request".into(),
    }
}
