//! Requests to the device as NBD requests: what the server cannot do is refused, and what one NBD
//! request cannot carry is cut into several.

use std::time::Duration;

use base::{
    BlockDevice, ByteRange, Capabilities, Completion, DeviceGeometry, Durability, IoError, Op,
    OpKind, Request, Started, Token, WriteBuffer,
};

use super::super::request::Header;
use super::super::wire::{command, command_flags, transmission_flags as flags};
use super::device::{NbdClient, Phase, Whole};
use super::log::{ENTRIES_MAX, Entry, Owner};
use super::{Agreed, Reconnect};

/// The longest request without a payload, in bytes: some servers count in signed numbers.
const PIECE_BYTES: u64 = 1 << 30;

/// The most pieces that one request is cut into.
const PIECES_MAX: u64 = 4096;

/// A request as it goes to the server, before it is cut into pieces.
struct WireRequest<'a> {
    kind: OpKind,
    flags: u16,
    offset: u64,
    length: u64,
    payload: Option<WriteBuffer<'a>>,
    /// The server has no FUA: a flush follows before the caller is answered.
    flush_after: bool,
}

impl<'a> WireRequest<'a> {
    /// The request that carries out `op` on a server that can do what `agreed` says.
    ///
    /// # Errors
    /// The answer to a request that is not sent.
    fn of(op: &'a Op<'_>, agreed: &Agreed) -> Result<Self, Started> {
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
                // Parts of blocks at its ends may keep their content.
                let block = u64::from(agreed.block_min);
                let from = range.offset.next_multiple_of(block);
                let to = range.end() / block * block;
                (new.offset, new.length) = match from < to {
                    true => (from, to - from),
                    false => (range.offset / block * block, 0),
                };
            }
            Op::WriteZeroes { mode, .. } => {
                if mode.fast_only {
                    if !agreed.can(flags::SEND_FAST_ZERO) {
                        return Err(Started::Failed(IoError::NotSupported));
                    }
                    new.flags |= command_flags::FAST_ZERO;
                }
                if !mode.may_punch {
                    new.flags |= command_flags::NO_HOLE;
                }
            }
            // The answer may cover less.
            Op::Extents { .. } => new.length = range.length.min(PIECE_BYTES),
            // It is a hint.
            Op::Prefetch { .. }
                if !agreed.can(flags::SEND_CACHE) || !new.is_aligned(agreed.block_min) =>
            {
                return Err(Started::Done);
            }
            Op::Read { .. } | Op::Write { .. } | Op::Flush | Op::Prefetch { .. } => {}
        }
        if op.durability() == Durability::Durable {
            new.make_durable(agreed)?;
        }
        Ok(new)
    }

    /// Makes the server answer when the change is durable: with a flag, or a flush behind it.
    fn make_durable(&mut self, agreed: &Agreed) -> Result<(), Started> {
        if agreed.can(flags::SEND_FUA) {
            self.flags |= command_flags::FUA;
        } else if agreed.can(flags::SEND_FLUSH) {
            self.flush_after = true;
        } else {
            return Err(Started::Failed(IoError::NotSupported));
        }
        Ok(())
    }

    /// Whether the server takes it if it takes multiples of `block_min` bytes only.
    fn is_aligned(&self, block_min: u32) -> bool {
        let block_min = u64::from(block_min);
        self.offset.is_multiple_of(block_min) && self.length.is_multiple_of(block_min)
    }

    /// Whether it moves bytes of the disk over the connection.
    fn has_data(&self) -> bool {
        matches!(self.kind, OpKind::Read | OpKind::Write)
    }
}

/// The number of an operation's NBD command.
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
    /// What the server takes multiples of only, in bytes; 1 if that is not known yet.
    #[must_use]
    pub fn block_min(&self) -> u32 {
        self.agreed.map_or(1, |agreed| agreed.block_min)
    }

    /// What the server can do, or why nothing can be asked now.
    fn server(&self) -> Result<Agreed, Started> {
        if let Some(lost) = &self.lost {
            return Err(Started::Failed(IoError::Stopped(lost.clone())));
        }
        if let Phase::Broken { why, .. } = &self.phase
            && self.options.reconnect == Reconnect::Never
        {
            return Err(Started::Failed(IoError::Unavailable(why.to_string())));
        }
        self.agreed.ok_or(Started::Busy)
    }

    /// What the server can do, if it has what `op` needs; otherwise the answer to `op`.
    fn server_for(&self, op: &Op<'_>) -> Result<Agreed, Started> {
        let agreed = self.server()?;
        if op.is_change() && agreed.can(flags::READ_ONLY) {
            return Err(Started::Failed(IoError::ReadOnly));
        }
        let can = match op.kind() {
            OpKind::Flush => agreed.can(flags::SEND_FLUSH),
            OpKind::Trim => agreed.can(flags::SEND_TRIM),
            OpKind::WriteZeroes => agreed.can(flags::SEND_WRITE_ZEROES),
            OpKind::Extents => agreed.allocation.is_some(),
            OpKind::Read | OpKind::Write | OpKind::Prefetch => true,
        };
        match can {
            true => Ok(agreed),
            false => Err(Started::Failed(IoError::NotSupported)),
        }
    }

    /// Checks that there is room for a request.
    fn check_room(&mut self, request: &WireRequest<'_>) -> Result<(), Started> {
        let (log, options) = (&self.log, &self.options);
        let bytes = match request.has_data() {
            true => request.length as usize,
            false => 0,
        };
        let is_full = log.unanswered() >= options.requests_max
            // A flush makes room.
            || log.len() >= ENTRIES_MAX && request.kind != OpKind::Flush
            || bytes > 0
                && log.unanswered_bytes() > 0
                && log.unanswered_bytes() + bytes > options.bytes_max;
        if is_full {
            return Err(Started::Busy);
        }
        let is_kept = log.keeps && request.kind.is_change();
        if is_kept && log.kept_bytes() >= options.kept_bytes_max {
            // Without a flush no more may be acknowledged.
            return Err(match self.flush_error.take() {
                None => Started::Busy,
                Some(error) => {
                    self.flush_early();
                    Started::Failed(error)
                }
            });
        }
        Ok(())
    }

    /// Puts a request into the log, in pieces that the server takes.
    fn send_pieces(
        &mut self,
        token: Token,
        agreed: Agreed,
        request: &WireRequest<'_>,
    ) -> Result<(), Started> {
        let range = ByteRange::new(request.offset, request.length);
        range.check(agreed.size_bytes).map_err(Started::Failed)?;
        if !request.is_aligned(agreed.block_min) {
            return Err(Started::Failed(IoError::NotSupported));
        }
        if request.length == 0 && request.kind != OpKind::Flush {
            return Err(Started::Done);
        }
        self.check_room(request)?;
        let piece = match request.has_data() {
            true => u64::from(agreed.payload_max),
            false => PIECE_BYTES,
        };
        let count = request.length.div_ceil(piece).max(1);
        if count > PIECES_MAX {
            return Err(Started::Failed(IoError::NotSupported));
        }
        let whole = (count > 1).then(|| {
            let is_read = request.kind == OpKind::Read;
            self.wholes.insert(Whole {
                token,
                left: count as usize,
                data: vec![0; if is_read { request.length as usize } else { 0 }],
                error: None,
            })
        });
        for number in 0..count {
            let from = number * piece;
            let length = piece.min(request.length - from);
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
            let owner = match whole {
                Some(key) => Owner::Part(key, from),
                None => Owner::Caller(token),
            };
            let mut entry = Entry::new(header, data, owner, self.now);
            entry.flush_after = request.flush_after;
            self.log.push(entry);
        }
        Ok(())
    }
}

impl BlockDevice for NbdClient {
    /// Nothing is known before the first connection is ready.
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.agreed.map_or(0, |agreed| agreed.size_bytes),
            block_bytes: self.agreed.map_or(4096, |agreed| agreed.block_preferred),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let can = |flag| self.agreed.is_some_and(|agreed| agreed.can(flag));
        let read_only = can(flags::READ_ONLY);
        Capabilities {
            read_only,
            can_flush: can(flags::SEND_FLUSH),
            can_trim: can(flags::SEND_TRIM) && !read_only,
            can_write_zeroes: can(flags::SEND_WRITE_ZEROES) && !read_only,
            can_extents: self
                .agreed
                .is_some_and(|agreed| agreed.allocation.is_some()),
            // All of them use the one connection of this client.
            can_multi_conn: true,
        }
    }

    fn start(&mut self, request: Request<'_>) -> Started {
        let Request { token, op } = request;
        let sent = self.server_for(&op).and_then(|agreed| {
            let wire = WireRequest::of(&op, &agreed)?;
            self.send_pieces(token, agreed, &wire)
        });
        match sent {
            Ok(()) => Started::Pending,
            Err(started) => started,
        }
    }

    fn commit(&mut self) -> Result<(), IoError> {
        self.send_now();
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.turn();
        completions.append(&mut self.completions);
    }

    fn stop_waiting(&mut self) {
        self.wait_no_more();
    }

    fn next_timer(&self) -> Option<Duration> {
        self.timer()
    }
}
