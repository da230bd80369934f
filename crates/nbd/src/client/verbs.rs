//! The verbs of a device, as requests: what a server cannot do is refused, and what is more
//! than one request can have is cut.

use std::time::Duration;

use base::{
    BlockDevice, Capabilities, Completion, DeviceGeometry, Durability, Extent, IoError, Started,
    Token, ZeroMode,
};

use super::super::request::Header;
use super::super::wire::{command, command_flags, transmission_flags as flags};
use super::device::{NbdClient, Phase, Whole};
use super::log::{ENTRIES_MAX, Entry, Owner};
use super::{Agreed, Reconnect};

/// What has no payload is asked for in pieces of that many bytes: some servers count in
/// signed numbers.
const PIECE_BYTES: u64 = 1 << 30;

/// More pieces are not made of one request.
const PIECES_MAX: u64 = 4096;

/// A request before it is cut.
struct Asked<'a> {
    command: u16,
    flags: u16,
    offset: u64,
    length: u64,
    payload: &'a [u8],
    flush_after: bool,
}

impl Asked<'_> {
    fn plain(command: u16, offset: u64, length: u64) -> Self {
        Self {
            command,
            flags: 0,
            offset,
            length,
            payload: &[],
            flush_after: false,
        }
    }

    /// Whether the same may be asked of the smallest block's multiples only.
    fn is_aligned(&self, block_min: u32) -> bool {
        let block_min = u64::from(block_min);
        self.offset.is_multiple_of(block_min) && self.length.is_multiple_of(block_min)
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

    /// What the server can do, of a change.
    fn server_to_change(&self, flag: u16) -> Result<Agreed, Started> {
        let agreed = self.server()?;
        if agreed.can(flags::READ_ONLY) {
            return Err(Started::Failed(IoError::ReadOnly));
        }
        if flag != 0 && !agreed.can(flag) {
            return Err(Started::Failed(IoError::NotSupported));
        }
        Ok(agreed)
    }

    /// Whether there is room for a request.
    fn check_room(&mut self, asked: &Asked<'_>) -> Result<(), Started> {
        let (log, options) = (&self.log, &self.options);
        let moves = matches!(asked.command, command::READ | command::WRITE);
        let bytes = if moves { asked.length as usize } else { 0 };
        let is_full = log.unanswered() >= options.requests_max
            // A flush makes room.
            || log.len() >= ENTRIES_MAX && asked.command != command::FLUSH
            || bytes > 0
                && log.unanswered_bytes() > 0
                && log.unanswered_bytes() + bytes > options.bytes_max;
        if is_full {
            return Err(Started::Busy);
        }
        let changes = [command::WRITE, command::TRIM, command::WRITE_ZEROES];
        let is_kept = log.keeps && changes.contains(&asked.command);
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

    fn begin(&mut self, token: Token, agreed: Agreed, asked: &Asked<'_>) -> Result<(), Started> {
        let end = asked.offset.checked_add(asked.length);
        if end.is_none_or(|end| end > agreed.size_bytes) {
            return Err(Started::Failed(IoError::OutOfRange {
                offset: asked.offset,
                length: asked.length,
                size: agreed.size_bytes,
            }));
        }
        if !asked.is_aligned(agreed.block_min) {
            return Err(Started::Failed(IoError::NotSupported));
        }
        if asked.length == 0 && asked.command != command::FLUSH {
            return Err(Started::Done);
        }
        self.check_room(asked)?;
        let piece = match asked.command {
            command::READ | command::WRITE => u64::from(agreed.payload_max),
            _ => PIECE_BYTES,
        };
        let count = asked.length.div_ceil(piece).max(1);
        if count > PIECES_MAX {
            return Err(Started::Failed(IoError::NotSupported));
        }
        let whole = (count > 1).then(|| {
            let is_read = asked.command == command::READ;
            self.wholes.insert(Whole {
                token,
                left: count as usize,
                data: vec![0; if is_read { asked.length as usize } else { 0 }],
                error: None,
            })
        });
        for number in 0..count {
            let from = number * piece;
            let length = piece.min(asked.length - from);
            let data = match asked.payload {
                [] => Vec::new(),
                payload => payload[from as usize..][..length as usize].to_vec(),
            };
            let header = Header {
                flags: asked.flags,
                command: asked.command,
                cookie: 0,
                offset: asked.offset + from,
                length: length as u32,
            };
            let owner = match whole {
                Some(key) => Owner::Part(key, from),
                None => Owner::Caller(token),
            };
            let mut entry = Entry::new(header, data, owner, self.now);
            entry.flush_after = asked.flush_after;
            self.log.push(entry);
        }
        Ok(())
    }

    /// What makes a change durable: a flag, or a flush behind it.
    fn durably(
        agreed: &Agreed,
        asked: &mut Asked<'_>,
        durability: Durability,
    ) -> Result<(), Started> {
        match durability {
            Durability::Volatile => {}
            Durability::Durable if agreed.can(flags::SEND_FUA) => {
                asked.flags |= command_flags::FUA;
            }
            Durability::Durable if agreed.can(flags::SEND_FLUSH) => asked.flush_after = true,
            Durability::Durable => return Err(Started::Failed(IoError::NotSupported)),
        }
        Ok(())
    }
}

fn started(begun: Result<(), Started>) -> Started {
    begun.err().unwrap_or(Started::Pending)
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

    fn read(&mut self, token: Token, offset: u64, out: &mut [u8]) -> Started {
        let asked = Asked::plain(command::READ, offset, out.len() as u64);
        started(
            self.server()
                .and_then(|agreed| self.begin(token, agreed, &asked)),
        )
    }

    fn write(&mut self, token: Token, offset: u64, data: &[u8], durability: Durability) -> Started {
        let mut asked = Asked {
            payload: data,
            ..Asked::plain(command::WRITE, offset, data.len() as u64)
        };
        started(self.server_to_change(0).and_then(|agreed| {
            Self::durably(&agreed, &mut asked, durability)?;
            self.begin(token, agreed, &asked)
        }))
    }

    fn flush(&mut self, token: Token) -> Started {
        let asked = Asked::plain(command::FLUSH, 0, 0);
        started(self.server().and_then(|agreed| {
            if !agreed.can(flags::SEND_FLUSH) {
                return Err(Started::Failed(IoError::NotSupported));
            }
            self.begin(token, agreed, &asked)
        }))
    }

    fn trim(&mut self, token: Token, offset: u64, length: u64, durability: Durability) -> Started {
        let server = self.server_to_change(flags::SEND_TRIM);
        started(server.and_then(|agreed| {
            // Parts of blocks at its ends may keep their content.
            let block = u64::from(agreed.block_min);
            let from = offset.next_multiple_of(block);
            let to = offset.saturating_add(length) / block * block;
            let mut asked = match from < to {
                true => Asked::plain(command::TRIM, from, to - from),
                false => Asked::plain(command::TRIM, offset / block * block, 0),
            };
            Self::durably(&agreed, &mut asked, durability)?;
            self.begin(token, agreed, &asked)
        }))
    }

    fn write_zeroes(&mut self, token: Token, offset: u64, length: u64, mode: ZeroMode) -> Started {
        let server = self.server_to_change(flags::SEND_WRITE_ZEROES);
        started(server.and_then(|agreed| {
            let mut asked = Asked::plain(command::WRITE_ZEROES, offset, length);
            if mode.fast_only {
                if !agreed.can(flags::SEND_FAST_ZERO) {
                    return Err(Started::Failed(IoError::NotSupported));
                }
                asked.flags |= command_flags::FAST_ZERO;
            }
            if !mode.may_punch {
                asked.flags |= command_flags::NO_HOLE;
            }
            Self::durably(&agreed, &mut asked, mode.durability)?;
            self.begin(token, agreed, &asked)
        }))
    }

    fn extents(
        &mut self,
        token: Token,
        offset: u64,
        length: u64,
        _runs: &mut Vec<Extent>,
    ) -> Started {
        // The answer may cover less.
        let asked = Asked::plain(command::BLOCK_STATUS, offset, length.min(PIECE_BYTES));
        started(self.server().and_then(|agreed| {
            if agreed.allocation.is_none() {
                return Err(Started::Failed(IoError::NotSupported));
            }
            self.begin(token, agreed, &asked)
        }))
    }

    fn prefetch(&mut self, token: Token, offset: u64, length: u64) -> Started {
        let asked = Asked::plain(command::CACHE, offset, length);
        started(self.server().and_then(|agreed| {
            // It is a hint.
            if !agreed.can(flags::SEND_CACHE) || !asked.is_aligned(agreed.block_min) {
                return Err(Started::Done);
            }
            self.begin(token, agreed, &asked)
        }))
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
