//! Requests to the device as NBD requests. Requests that the server cannot carry out are refused,
//! and requests that are too long for it are split.

use std::time::Duration;

use base::{
    BlockDevice, ByteRange, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op,
    OpKind, Request, Started, Token, WriteBuffer,
};

use super::super::request::Header;
use super::super::wire::{command, command_flags, transmission_flags as flags};
use super::ExportParameters;
use super::entry::{Entry, Requester};
use super::nbd_client::NbdClient;
use super::request_log::ENTRIES_MAX;

/// The maximal length of a request without a payload, in bytes. Some servers use signed numbers.
const PART_BYTES_MAX: u64 = 1 << 30;

/// The maximal number of parts of one request.
const PARTS_MAX: u64 = 4096;

/// A request as the server gets it, before it is split.
struct WireRequest<'a> {
    kind: OpKind,
    flags: u16,
    offset: u64,
    length: u64,
    payload: Option<WriteBuffer<'a>>,
    /// Whether a flush follows before the caller gets the result, since the server has no FUA.
    flush_after: bool,
}

impl<'a> WireRequest<'a> {
    /// The request for `op` on a server with these parameters.
    ///
    /// # Errors
    /// The answer to a request that is not sent.
    fn new(op: &'a Op<'_>, parameters: &ExportParameters) -> Result<Self, Started> {
        let range = op.range();
        let mut new = Self {
            kind: op.kind(),
            flags: 0,
            offset: range.offset,
            length: range.length,
            payload: op.data(),
            flush_after: false,
        };
        match op {
            Op::Trim { .. } => {
                // Only whole blocks are trimmed; the rest may keep its content.
                let block = u64::from(parameters.block_min);
                let from = range.offset.next_multiple_of(block);
                let to = range.end() / block * block;
                (new.offset, new.length) = match from < to {
                    true => (from, to - from),
                    false => (range.offset / block * block, 0),
                };
            }
            Op::WriteZeroes { mode, .. } => {
                if mode.fast_only {
                    if !parameters.can(flags::SEND_FAST_ZERO) {
                        return Err(Started::Failed(IoError::NotSupported));
                    }
                    new.flags |= command_flags::FAST_ZERO;
                }
                if !mode.may_punch {
                    new.flags |= command_flags::NO_HOLE;
                }
            }
            // The reply may cover less.
            Op::Extents { .. } => new.length = range.length.min(PART_BYTES_MAX),
            // A prefetch is a hint.
            Op::Prefetch { .. }
                if !parameters.can(flags::SEND_CACHE) || !new.is_aligned(parameters.block_min) =>
            {
                return Err(Started::Done);
            }
            Op::Read { .. } | Op::Write { .. } | Op::Flush | Op::Prefetch { .. } => {}
        }
        if op.durability() == Durability::Durable {
            new.make_durable(parameters)?;
        }
        Ok(new)
    }

    /// Requests durability: with the FUA flag, or with a flush after the change.
    fn make_durable(&mut self, parameters: &ExportParameters) -> Result<(), Started> {
        if parameters.can(flags::SEND_FUA) {
            self.flags |= command_flags::FUA;
        } else if parameters.can(flags::SEND_FLUSH) {
            self.flush_after = true;
        } else {
            return Err(Started::Failed(IoError::NotSupported));
        }
        Ok(())
    }

    /// Whether offset and length are multiples of `block_min` bytes.
    fn is_aligned(&self, block_min: u32) -> bool {
        let block_min = u64::from(block_min);
        self.offset.is_multiple_of(block_min) && self.length.is_multiple_of(block_min)
    }

    /// Whether the request or its reply carries data.
    fn has_data(&self) -> bool {
        matches!(self.kind, OpKind::Read | OpKind::Write)
    }
}

/// The NBD command of an operation.
const fn command_of(kind: OpKind) -> u16 {
    match kind {
        OpKind::Read => command::READ,
        OpKind::Write => command::WRITE,
        OpKind::Flush => command::FLUSH,
        OpKind::Trim => command::TRIM,
        OpKind::WriteZeroes => command::WRITE_ZEROES,
        OpKind::Extents => command::BLOCK_STATUS,
        OpKind::Prefetch => command::CACHE,
    }
}

impl NbdClient {
    /// The minimal block size, in bytes: offsets and lengths of requests have to be multiples of
    /// it. It is 1 before the first connection is ready.
    #[must_use]
    pub fn block_min(&self) -> u32 {
        self.connection
            .parameters()
            .map_or(1, |parameters| parameters.block_min)
    }

    /// The export's parameters, or the answer to any request now.
    fn server(&self) -> Result<ExportParameters, Started> {
        if let Some(lost) = &self.lost {
            return Err(Started::Failed(IoError::Stopped(lost.clone())));
        }
        if let Some(error) = self.connection.final_error() {
            return Err(Started::Failed(error));
        }
        self.connection.parameters().copied().ok_or(Started::Busy)
    }

    /// The export's parameters if the server supports `op`; otherwise the answer to `op`.
    fn server_for(&self, op: &Op<'_>) -> Result<ExportParameters, Started> {
        let parameters = self.server()?;
        if op.is_change() && parameters.can(flags::READ_ONLY) {
            return Err(Started::Failed(IoError::ReadOnly));
        }
        let can = match op.kind() {
            OpKind::Flush => parameters.can(flags::SEND_FLUSH),
            OpKind::Trim => parameters.can(flags::SEND_TRIM),
            OpKind::WriteZeroes => parameters.can(flags::SEND_WRITE_ZEROES),
            OpKind::Extents => parameters.allocation.is_some(),
            OpKind::Read | OpKind::Write | OpKind::Prefetch => true,
        };
        match can {
            true => Ok(parameters),
            false => Err(Started::Failed(IoError::NotSupported)),
        }
    }

    /// Checks that the limits allow a request.
    fn check_room(&mut self, request: &WireRequest<'_>) -> Result<(), Started> {
        let (log, options) = (&self.log, &self.options);
        let bytes = match request.has_data() {
            true => request.length as usize,
            false => 0,
        };
        let is_full = log.unanswered() >= options.requests_max
            // A flush removes entries.
            || log.len() >= ENTRIES_MAX && request.kind != OpKind::Flush
            || bytes > 0
                && log.unanswered_bytes() > 0
                && log.unanswered_bytes() + bytes > options.bytes_max;
        if is_full {
            return Err(Started::Busy);
        }
        let stays = log.retains_unflushed && request.kind.is_change();
        if stays && log.unflushed_bytes() >= options.unflushed_bytes_max {
            // Only a flush makes room. If the last one failed, the caller gets its error.
            return Err(match self.early_flush.error.take() {
                None => Started::Busy,
                Some(error) => {
                    self.flush_early();
                    Started::Failed(error)
                }
            });
        }
        Ok(())
    }

    /// Adds a request to the log, in parts that the server accepts.
    fn push_parts(
        &mut self,
        token: Token,
        parameters: ExportParameters,
        request: &WireRequest<'_>,
    ) -> Result<(), Started> {
        let range = ByteRange::new(request.offset, request.length);
        range
            .check(parameters.size_bytes)
            .map_err(Started::Failed)?;
        if !request.is_aligned(parameters.block_min) {
            return Err(Started::Failed(IoError::NotSupported));
        }
        if request.length == 0 && request.kind != OpKind::Flush {
            return Err(Started::Done);
        }
        self.check_room(request)?;
        let part_bytes = match request.has_data() {
            true => u64::from(parameters.payload_max),
            false => PART_BYTES_MAX,
        };
        let count = request.length.div_ceil(part_bytes).max(1);
        if count > PARTS_MAX {
            return Err(Started::Failed(IoError::NotSupported));
        }
        let split = (count > 1).then(|| {
            let read_bytes = match request.kind {
                OpKind::Read => request.length as usize,
                _ => 0,
            };
            self.split_requests.add(token, count as usize, read_bytes)
        });
        for number in 0..count {
            let from = number * part_bytes;
            let length = part_bytes.min(request.length - from);
            let data = match request.payload {
                None => Vec::new(),
                Some(payload) => payload
                    .part(from as usize..(from + length) as usize)
                    .to_vec(),
            };
            let header = Header {
                flags: request.flags,
                command: command_of(request.kind),
                cookie: 0,
                offset: request.offset + from,
                length: length as u32,
            };
            let requester = match split {
                Some(key) => Requester::Part(key, from),
                None => Requester::Caller(token),
            };
            let mut entry = Entry::new(header, data, requester, self.now);
            entry.flush_after = request.flush_after;
            self.log.push(entry);
        }
        Ok(())
    }
}

impl BlockDevice for NbdClient {
    /// The size is 0 before the first connection is ready.
    fn geometry(&self) -> DeviceGeometry {
        let parameters = self.connection.parameters();
        DeviceGeometry {
            size_bytes: parameters.map_or(0, |parameters| parameters.size_bytes),
            block_bytes: parameters.map_or(4096, |parameters| parameters.block_preferred),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let parameters = self.connection.parameters();
        let can = |flag| parameters.is_some_and(|parameters| parameters.can(flag));
        let read_only = can(flags::READ_ONLY);
        Capabilities {
            read_only,
            can_flush: can(flags::SEND_FLUSH),
            can_trim: can(flags::SEND_TRIM) && !read_only,
            can_write_zeroes: can(flags::SEND_WRITE_ZEROES) && !read_only,
            can_extents: parameters.is_some_and(|parameters| parameters.allocation.is_some()),
            // All callers share the connection of this client.
            can_multi_conn: true,
        }
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        let sent = self.server_for(&op).and_then(|parameters| {
            let wire = WireRequest::new(&op, &parameters)?;
            self.push_parts(token, parameters, &wire)
        });
        match sent {
            Ok(()) => Started::Pending,
            Err(started) => started,
        }
    }

    fn end_batch(&mut self) -> Result<(), IoError> {
        self.send_now();
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.turn();
        completions.append(&mut self.completions);
    }

    fn stop_waiting(&mut self) {
        self.stop_reconnecting();
    }

    fn next_timer(&self) -> Option<Duration> {
        self.timer()
    }
}
