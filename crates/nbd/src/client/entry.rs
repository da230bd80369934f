//! [`Entry`]: one request of a client, with the part of its reply that has arrived.

use std::time::Duration;

use base::{Extent, IoError, Token};

use super::super::request::Header;
use super::super::slab::Key;
use super::super::wire::{command, command_flags};
use super::protocol_violation::ProtocolViolation;

/// The maximal number of separate ranges in which the data of a read may arrive.
const RANGES_MAX: usize = 1024;

/// Who receives the result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// The caller of the device, by its token.
    Caller(Token),
    /// A request of the caller that was split: its key, and the offset of this part within it.
    Part(Key, u64),
    /// The client itself.
    Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryState {
    /// It has not been sent, or only in part.
    Waiting,
    /// It has been sent.
    Sent,
    /// The whole reply has arrived.
    Answered,
    /// It was acknowledged when this number of flushes had been sent.
    Unflushed(u64),
    Removed,
}

/// A request.
#[derive(Debug)]
pub struct Entry {
    /// The header, as it is sent.
    pub header: Header,
    pub(super) encoded: [u8; Header::BYTES],
    /// The payload of a write, or the data of a read once some have arrived.
    pub data: Vec<u8>,
    pub(super) state: EntryState,
    /// Who receives the result; `None` if the request is a replay of an acknowledged change.
    pub requester: Option<Requester>,
    /// Whether a flush follows before the requester gets the result, since the server has no FUA.
    pub flush_after: bool,
    /// When the request last made progress.
    pub progress_at: Duration,
    /// The number of a flush that has been sent; otherwise 0.
    pub(super) flush: u64,
    /// The ranges of a read that have arrived, in order and not adjacent.
    arrived: Vec<(u64, u64)>,
    /// The extents of a block status.
    pub extents: Vec<Extent>,
    /// The error that the reply reports.
    pub error: Option<IoError>,
}

impl Entry {
    /// A request that begins at `now`.
    pub fn new(header: Header, data: Vec<u8>, requester: Requester, now: Duration) -> Self {
        Self {
            header,
            encoded: [0; Header::BYTES],
            data,
            state: EntryState::Waiting,
            requester: Some(requester),
            flush_after: false,
            progress_at: now,
            flush: 0,
            arrived: Vec::new(),
            extents: Vec::new(),
            error: None,
        }
    }

    pub(super) fn is_change(&self) -> bool {
        let changes = [command::WRITE, command::TRIM, command::WRITE_ZEROES];
        changes.contains(&self.header.command)
    }

    /// The bytes that count against the bound on data in memory.
    pub(super) fn bytes(&self) -> usize {
        match self.header.command {
            command::READ | command::WRITE => self.header.length as usize,
            _ => 0,
        }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let end = |header: &Header| header.offset + u64::from(header.length);
        self.header.offset < end(&other.header) && other.header.offset < end(&self.header)
    }

    /// The number of bytes of a read that have not arrived.
    pub fn missing(&self) -> u64 {
        let arrived: u64 = self.arrived.iter().map(|(from, to)| to - from).sum();
        u64::from(self.header.length) - arrived
    }

    /// Records that a read's `length` bytes at `offset` of the disk arrive, and returns their
    /// offset within the data.
    ///
    /// # Errors
    /// [`ProtocolViolation::Range`], [`ProtocolViolation::Scattered`].
    pub fn take_range(&mut self, offset: u64, length: u64) -> Result<usize, ProtocolViolation> {
        let cookie = self.header.cookie;
        let violation = ProtocolViolation::Range {
            cookie,
            offset,
            length,
        };
        let from = offset.checked_sub(self.header.offset);
        let from = from.ok_or(violation.clone())?;
        let to = from.checked_add(length).ok_or(violation.clone())?;
        if length == 0 || to > u64::from(self.header.length) {
            return Err(violation);
        }
        let at = self.arrived.partition_point(|range| range.0 < from);
        let before = at.checked_sub(1).map(|before| self.arrived[before].1);
        let after = self.arrived.get(at).map(|range| range.0);
        if before.is_some_and(|end| end > from) || after.is_some_and(|start| start < to) {
            return Err(violation);
        }
        match (before == Some(from), after == Some(to)) {
            (true, true) => {
                self.arrived[at - 1].1 = self.arrived[at].1;
                self.arrived.remove(at);
            }
            (true, false) => self.arrived[at - 1].1 = to,
            (false, true) => self.arrived[at].0 = from,
            (false, false) => self.arrived.insert(at, (from, to)),
        }
        if self.arrived.len() > RANGES_MAX {
            return Err(ProtocolViolation::Scattered(cookie));
        }
        if self.data.is_empty() {
            self.data = vec![0; self.header.length as usize];
        }
        Ok(from as usize)
    }

    /// Takes from an entry that was sent what is needed to check its reply. The result of any
    /// other entry is removed already.
    pub(super) fn split_off_reply(&mut self) -> Self {
        let is_read = self.header.command == command::READ;
        let mut reply = Self {
            header: self.header,
            encoded: self.encoded,
            data: Vec::new(),
            state: EntryState::Removed,
            requester: None,
            flush_after: false,
            progress_at: self.progress_at,
            flush: 0,
            arrived: Vec::new(),
            extents: Vec::new(),
            error: None,
        };
        if self.state == EntryState::Sent {
            reply.state = EntryState::Sent;
            reply.arrived = std::mem::take(&mut self.arrived);
            reply.extents = std::mem::take(&mut self.extents);
            reply.error = self.error.take();
            if is_read {
                reply.data = std::mem::take(&mut self.data);
            }
        }
        reply
    }

    /// Discards the part of the reply that arrived over a lost connection.
    pub(super) fn discard_reply(&mut self) {
        if self.header.command == command::READ {
            self.data = Vec::new();
        }
        self.arrived = Vec::new();
        self.extents = Vec::new();
        self.error = None;
    }

    /// Moves the reply out, and the request's data if it is a read.
    pub(super) fn take_result(&mut self) -> RequestResult {
        self.arrived = Vec::new();
        RequestResult {
            requester: self.requester.take(),
            is_durable: self.header.flags & command_flags::FUA != 0,
            flush_after: self.flush_after,
            command: self.header.command,
            data: match self.header.command {
                command::READ => std::mem::take(&mut self.data),
                _ => Vec::new(),
            },
            extents: std::mem::take(&mut self.extents),
            error: self.error.take(),
        }
    }
}

/// The result of a request.
#[derive(Debug)]
pub struct RequestResult {
    /// Who receives it; `None` if the request was a replay.
    pub requester: Option<Requester>,
    /// Whether the request had the FUA flag.
    pub is_durable: bool,
    /// Whether the requester gets the result only after a flush.
    pub flush_after: bool,
    /// The request's command.
    pub command: u16,
    /// The data of a read.
    pub data: Vec<u8>,
    /// The extents of a block status.
    pub extents: Vec<Extent>,
    /// Why the request failed.
    pub error: Option<IoError>,
}

impl RequestResult {
    /// Whether the server tried to write acknowledged changes to stable storage, and failed. A
    /// server that caches as an operating system does tries only once, and reports success when
    /// it is asked again.
    pub fn is_failed_sync(&self) -> bool {
        match (self.command, &self.error) {
            (command::FLUSH, error) => error.is_some(),
            (_, Some(IoError::Damaged(_) | IoError::NoSpace(_))) => self.is_durable,
            _ => false,
        }
    }

    /// The result of a request that is given up without a reply.
    pub(super) fn without_reply(requester: Option<Requester>, command: u16) -> Self {
        Self {
            requester,
            is_durable: false,
            flush_after: false,
            command,
            data: Vec::new(),
            extents: Vec::new(),
            error: None,
        }
    }
}
