//! Decodes requests: 28 bytes of a client become a [`Header`], and a valid header becomes a
//! [`Command`]. Every number of a client is checked here.
//!
//! ```text
//!  0        4      6      8                16               24        28
//!  | magic  | flags| type |     cookie     |     offset     | length  | payload of a WRITE…
//! ```

use base::codec::Reader;
use base::{Capabilities, Durability, Op, ZeroMode};

use super::wire::{
    Errno, Fault, PAYLOAD_BYTES_MAX, REQUEST_MAGIC, command, command_flags as flags,
};

/// The fixed part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The flags; see [`command_flags`](flags).
    pub flags: u16,
    /// The command; see [`command`].
    pub command: u16,
    /// The client's number of the request, which the reply repeats.
    pub cookie: u64,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

/// A request with the wrong magic number. Client and server no longer agree where requests begin,
/// so the connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request begins with {found:#010x} instead of {REQUEST_MAGIC:#010x}")]
pub struct MalformedRequest {
    /// The first four bytes.
    pub found: u32,
}

impl Header {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 28;

    /// Decodes a header.
    ///
    /// # Errors
    /// [`MalformedRequest`] if it does not begin with the magic number.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, MalformedRequest> {
        let mut reader = Reader::new(bytes);
        let mut fields = || -> Result<_, base::codec::OutOfBytes> {
            Ok((
                u32::from_be_bytes(reader.array()?),
                Self {
                    flags: u16::from_be_bytes(reader.array()?),
                    command: u16::from_be_bytes(reader.array()?),
                    cookie: u64::from_be_bytes(reader.array()?),
                    offset: u64::from_be_bytes(reader.array()?),
                    length: u32::from_be_bytes(reader.array()?),
                },
            ))
        };
        let (magic, header) = fields().expect("the array is as long as the fields");
        if magic == REQUEST_MAGIC {
            Ok(header)
        } else {
            Err(MalformedRequest { found: magic })
        }
    }

    /// Encodes the header, as a client sends it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// The length of the payload that follows, in bytes.
    #[must_use]
    pub fn payload(&self) -> u32 {
        if self.command == command::WRITE {
            self.length
        } else {
            0
        }
    }
}

/// The rules by which requests are checked.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The device's size, in bytes.
    pub size_bytes: u64,
    /// The device's capabilities.
    pub capabilities: Capabilities,
    /// Whether this client may not write.
    pub read_only: bool,
    /// Whether this client uses structured replies.
    pub structured: bool,
    /// Whether this client selected `base:allocation`.
    pub allocation: bool,
    /// Whether the export refuses new requests.
    pub stopping: bool,
}

/// A range within the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

impl Range {
    /// The offset of its end, in bytes.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// A valid request: an operation on the device, or what NBD adds to one.
#[derive(Debug)]
pub enum Command {
    /// Read at most [`PAYLOAD_BYTES_MAX`] bytes.
    Read {
        /// The bytes to read.
        range: Range,
        /// Whether the reply may have several chunks, in any order.
        fragments: bool,
    },
    /// Write at most [`PAYLOAD_BYTES_MAX`] bytes; the payload follows.
    Write {
        /// The bytes to write.
        range: Range,
        /// Whether the reply waits until the write is durable.
        durability: Durability,
    },
    /// List the extents of a range.
    BlockStatus {
        /// The range, which is not empty.
        range: Range,
        /// Whether the client wants only the first extent.
        first_only: bool,
    },
    /// An operation without data, as the device gets it.
    NoData(Op<'static>),
    /// The client disconnects.
    Disconnect,
}

/// Why a request is invalid. The connection continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The command is unknown.
    #[error("command {0} is unknown")]
    UnknownCommand(u16),
    /// The command does not have these flags.
    #[error("command {command} has no flags {flags:#06x}")]
    UnknownFlags {
        /// The command.
        command: u16,
        /// The unknown flags.
        flags: u16,
    },
    /// The command was not negotiated in the handshake.
    #[error("command {0} was not negotiated")]
    NotNegotiated(u16),
    /// The range is not within the device.
    #[error("{length} bytes at offset {offset} exceed the export of {size} bytes")]
    OutOfRange {
        /// The offset of the range, in bytes.
        offset: u64,
        /// The length of the range, in bytes.
        length: u32,
        /// The device's size, in bytes.
        size: u64,
        /// Whether the command is a write.
        write: bool,
    },
    /// The data are too long.
    #[error("a request has {length} bytes of data; the maximum is {PAYLOAD_BYTES_MAX}")]
    TooLong {
        /// The length of the data, in bytes.
        length: u32,
    },
    /// The range of a block status is empty.
    #[error("the range of a block status is empty")]
    Empty,
    /// The export is read-only.
    #[error("the export is read-only")]
    ReadOnly,
    /// The export refuses new requests.
    #[error("the export is stopping")]
    Stopping,
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let errno = match refusal {
            Refusal::OutOfRange { write: true, .. } => Errno::NoSpace,
            Refusal::ReadOnly => Errno::Perm,
            Refusal::Stopping => Errno::Shutdown,
            Refusal::UnknownCommand(_)
            | Refusal::UnknownFlags { .. }
            | Refusal::NotNegotiated(_)
            | Refusal::OutOfRange { .. }
            | Refusal::TooLong { .. }
            | Refusal::Empty => Errno::Inval,
        };
        Self {
            errno,
            message: refusal.to_string(),
        }
    }
}

/// What the rules allow for one command.
struct CommandRules {
    /// The flags of the command, without FUA.
    flags: u16,
    is_negotiated: bool,
    is_change: bool,
}

impl CommandRules {
    /// The rules of a command other than `DISC`; `None` if the command is unknown.
    fn of(command: u16, rules: &Rules) -> Option<Self> {
        let can = &rules.capabilities;
        let (flags, is_negotiated, is_change) = match command {
            command::READ if rules.structured => (flags::DF, true, false),
            command::READ | command::CACHE => (0, true, false),
            command::WRITE => (0, true, true),
            command::FLUSH => (0, can.can_flush, false),
            command::TRIM => (0, can.can_trim, true),
            command::WRITE_ZEROES => (
                flags::NO_HOLE | flags::FAST_ZERO,
                can.can_write_zeroes,
                true,
            ),
            command::BLOCK_STATUS => (flags::REQ_ONE, rules.allocation, false),
            _ => return None,
        };
        Some(Self {
            flags,
            is_negotiated,
            is_change,
        })
    }
}

impl Command {
    /// Checks a header.
    ///
    /// # Errors
    /// The first of these reasons: the command or a flag is unknown, the export is stopping, it is
    /// read-only, the command was not negotiated, the data are too long, the range is not within
    /// the device, the range of a block status is empty.
    pub fn check(header: &Header, rules: &Rules) -> Result<Self, Refusal> {
        if header.command == command::DISC {
            return Ok(Self::Disconnect);
        }
        let allowed = CommandRules::of(header.command, rules);
        let allowed = allowed.ok_or(Refusal::UnknownCommand(header.command))?;
        // FUA is valid with every command, and has no effect on those that change nothing.
        let fua = match rules.capabilities.can_flush {
            true => flags::FUA,
            false => 0,
        };
        let unknown = header.flags & !(allowed.flags | fua);
        if unknown != 0 {
            return Err(Refusal::UnknownFlags {
                command: header.command,
                flags: unknown,
            });
        }
        if rules.stopping {
            return Err(Refusal::Stopping);
        }
        if allowed.is_change && rules.read_only {
            return Err(Refusal::ReadOnly);
        }
        if !allowed.is_negotiated {
            return Err(Refusal::NotNegotiated(header.command));
        }
        if header.command == command::FLUSH {
            return Ok(Self::NoData(Op::Flush));
        }
        let has_data = matches!(header.command, command::READ | command::WRITE);
        if has_data && header.length > PAYLOAD_BYTES_MAX {
            return Err(Refusal::TooLong {
                length: header.length,
            });
        }
        Self::new(header, header.range(rules.size_bytes)?, rules)
    }

    /// The command of a valid header for a range within the device.
    fn new(header: &Header, range: Range, rules: &Rules) -> Result<Self, Refusal> {
        let (offset, length) = (range.offset, u64::from(range.length));
        let durability = if header.flags & flags::FUA != 0 {
            Durability::Durable
        } else {
            Durability::Volatile
        };
        Ok(match header.command {
            command::READ => Self::Read {
                range,
                fragments: rules.structured && header.flags & flags::DF == 0,
            },
            command::WRITE => Self::Write { range, durability },
            command::TRIM => Self::NoData(Op::Trim {
                offset,
                length,
                durability,
            }),
            command::CACHE => Self::NoData(Op::Prefetch { offset, length }),
            command::WRITE_ZEROES => Self::NoData(Op::WriteZeroes {
                offset,
                length,
                mode: ZeroMode {
                    durability,
                    may_punch: header.flags & flags::NO_HOLE == 0,
                    fast_only: header.flags & flags::FAST_ZERO != 0,
                },
            }),
            command::BLOCK_STATUS if header.length == 0 => return Err(Refusal::Empty),
            command::BLOCK_STATUS => Self::BlockStatus {
                range,
                first_only: header.flags & flags::REQ_ONE != 0,
            },
            other => return Err(Refusal::UnknownCommand(other)),
        })
    }
}

impl Header {
    fn range(&self, size: u64) -> Result<Range, Refusal> {
        match self.offset.checked_add(u64::from(self.length)) {
            Some(end) if end <= size => Ok(Range {
                offset: self.offset,
                length: self.length,
            }),
            _ => Err(Refusal::OutOfRange {
                offset: self.offset,
                length: self.length,
                size,
                write: matches!(self.command, command::WRITE | command::WRITE_ZEROES),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        size_bytes: 1 << 20,
        capabilities: Capabilities::ALL,
        read_only: false,
        structured: true,
        allocation: true,
        stopping: false,
    };

    fn header(command: u16, flags: u16, offset: u64, length: u32) -> Header {
        Header {
            flags,
            command,
            cookie: 0x0123_4567_89ab_cdef,
            offset,
            length,
        }
    }

    fn errno(header: &Header, rules: &Rules) -> Errno {
        let refusal = Command::check(header, rules).expect_err("not allowed");
        Fault::from(refusal).errno
    }

    #[test]
    fn a_header_comes_back_as_it_was_sent_and_every_flipped_bit_shows() {
        let sent = header(
            command::WRITE,
            flags::FUA,
            0x1122_3344_5566_7788,
            0x99aa_bbcc,
        );
        let bytes = sent.encode();
        assert_eq!(Header::decode(&bytes), Ok(sent));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            match Header::decode(&flipped) {
                Ok(other) => assert!(bit >= 32 && other != sent),
                Err(_) => assert!(bit < 32, "only the magic is not free"),
            }
        }
    }

    /// Ranges that do not lie within the export.
    const OUTSIDE: [(u64, u32); 4] = [
        (RULES.size_bytes, 1),
        (RULES.size_bytes - 1, 2),
        (u64::MAX, 1),
        (1, u32::MAX),
    ];

    #[test]
    fn a_range_outside_the_export_is_refused() {
        for (offset, length) in OUTSIDE {
            for command in [command::TRIM, command::CACHE, command::BLOCK_STATUS] {
                let outside = header(command, 0, offset, length);
                assert_eq!(errno(&outside, &RULES), Errno::Inval, "{outside:?}");
            }
        }
        let read = header(command::READ, 0, RULES.size_bytes, 1);
        assert_eq!(errno(&read, &RULES), Errno::Inval);
    }

    #[test]
    fn a_write_outside_the_export_gets_no_space() {
        for (offset, length) in OUTSIDE {
            let zeroes = header(command::WRITE_ZEROES, 0, offset, length);
            assert_eq!(errno(&zeroes, &RULES), Errno::NoSpace, "{zeroes:?}");
        }
        let write = header(command::WRITE, 0, RULES.size_bytes, 1);
        assert_eq!(errno(&write, &RULES), Errno::NoSpace);
    }

    #[test]
    fn a_range_may_end_where_the_export_ends() {
        let end = RULES.size_bytes;
        for (offset, length) in [(end - 1, 1), (end, 0)] {
            for command in [command::READ, command::WRITE] {
                let command = Command::check(&header(command, 0, offset, length), &RULES);
                assert!(command.is_ok(), "{command:?}");
            }
        }
    }

    #[test]
    fn a_command_that_was_not_negotiated_is_refused() {
        let without = |change: fn(&mut Rules)| {
            let mut rules = RULES;
            change(&mut rules);
            rules
        };
        let no_allocation = without(|rules| rules.allocation = false);
        let status = header(command::BLOCK_STATUS, 0, 0, 1);
        assert_eq!(errno(&status, &no_allocation), Errno::Inval);
        let no_trim = without(|rules| rules.capabilities.can_trim = false);
        let trim = header(command::TRIM, 0, 0, 1);
        assert_eq!(errno(&trim, &no_trim), Errno::Inval);
        let no_zeroes = without(|rules| rules.capabilities.can_write_zeroes = false);
        let zeroes = header(command::WRITE_ZEROES, 0, 0, 1);
        assert_eq!(errno(&zeroes, &no_zeroes), Errno::Inval);
        let no_flush = without(|rules| rules.capabilities.can_flush = false);
        let flush = header(command::FLUSH, 0, 0, 0);
        assert_eq!(errno(&flush, &no_flush), Errno::Inval);
    }

    #[test]
    fn a_flag_that_was_not_negotiated_is_refused() {
        let mut rules = RULES;
        rules.structured = false;
        let read = header(command::READ, flags::DF, 0, 1);
        assert_eq!(errno(&read, &rules), Errno::Inval);
        let mut rules = RULES;
        rules.capabilities.can_flush = false;
        let write = header(command::WRITE, flags::FUA, 0, 1);
        assert_eq!(errno(&write, &rules), Errno::Inval);
    }

    #[test]
    fn changes_of_a_read_only_export_are_refused() {
        let rules = Rules {
            read_only: true,
            ..RULES
        };
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            let change = header(command, 0, 0, 1);
            assert_eq!(errno(&change, &rules), Errno::Perm, "{change:?}");
        }
    }

    #[test]
    fn an_unknown_command_is_refused() {
        for command in 8..20 {
            let refused = Command::check(&header(command, 0, 0, 1), &RULES);
            let is_unknown =
                matches!(refused, Err(Refusal::UnknownCommand(found)) if found == command);
            assert!(is_unknown, "{refused:?}");
        }
    }

    #[test]
    fn a_flag_that_its_command_does_not_know_is_refused() {
        let write = header(command::WRITE, flags::DF, 0, 1);
        assert_eq!(errno(&write, &RULES), Errno::Inval);
        let read = header(command::READ, 1 << 5, 0, 1);
        assert_eq!(errno(&read, &RULES), Errno::Inval);
    }

    #[test]
    fn block_status_of_an_empty_range_is_refused() {
        let status = header(command::BLOCK_STATUS, 0, 0, 0);
        assert_eq!(errno(&status, &RULES), Errno::Inval);
    }

    #[test]
    fn a_payload_that_is_too_long_is_refused() {
        let large = Rules {
            size_bytes: 1 << 40,
            ..RULES
        };
        for command in [command::READ, command::WRITE] {
            let long = header(command, 0, 0, PAYLOAD_BYTES_MAX + 1);
            assert_eq!(errno(&long, &large), Errno::Inval, "{long:?}");
        }
    }
}
