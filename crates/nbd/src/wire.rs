//! The numbers of the NBD protocol, with the names of its specification. All numbers are
//! big-endian in messages.
//!
//! Must not know sockets, devices, or the state of a connection.

use base::IoError;

/// The first eight bytes of a server: "NBDMAGIC".
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The second eight bytes of a server, and the first of each option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins each chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The maximal payload of a read or write, in bytes: the default maximum of the protocol, which
/// QEMU, libnbd and Linux do not exceed.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// The maximal length of a name or description, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;

/// The beginning of a message that fits into a string of the protocol, in whole characters.
pub fn string_of(message: &str) -> &[u8] {
    let end = message.floor_char_boundary(STRING_BYTES_MAX);
    &message.as_bytes()[..end]
}

/// The only metadata context of this server.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// The number by which replies refer to [`BASE_ALLOCATION`].
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Flags of the greeting, and the client's answer to it.
pub mod handshake_flags {
    /// Fixed newstyle: options get replies.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// `EXPORT_NAME` is answered without 124 bytes of padding.
    pub const NO_ZEROES: u16 = 2;
}

/// Options of the handshake.
pub mod option {
    /// Choose an export; the connection closes if that fails.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake.
    pub const ABORT: u32 = 2;
    /// List all exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and begin to serve it.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod option_reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit of replies that report an error.
    pub const ERROR: u32 = 1 << 31;
    /// The server does not know, or does not offer, the option.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// The server's configuration forbids it.
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// The option's data are malformed, or the option is not allowed now.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// TLS must come first.
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// The server, or the export, is stopping.
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    /// The option's data are too long.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
}

/// Facts about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Its canonical name.
    pub const NAME: u16 = 1;
    /// Its description.
    pub const DESCRIPTION: u16 = 2;
    /// The minimal block size, the preferred one, and the maximal payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what a client may send to an export.
pub mod transmission_flags {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag works (structured replies only).
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush covers all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows the header.
    pub const WRITE: u16 = 1;
    /// Complete the outstanding requests and close the connection; has no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard a range.
    pub const TRIM: u16 = 4;
    /// Prefetch a range.
    pub const CACHE: u16 = 5;
    /// Make a range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// List the extents of a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub mod command_flags {
    /// Reply when the change is durable.
    pub const FUA: u16 = 1 << 0;
    /// `WRITE_ZEROES` must not make a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// `READ` must be answered in one chunk.
    pub const DF: u16 = 1 << 2;
    /// `BLOCK_STATUS` should return one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// `WRITE_ZEROES` must fail rather than be slow.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of a structured reply.
pub mod chunk {
    /// Flag: the last chunk of a reply.
    pub const DONE: u16 = 1;
    /// No content.
    pub const NONE: u16 = 0;
    /// An offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// An offset and the length of a run of zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// A metadata context and its extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error number and a message.
    pub const ERROR: u16 = (1 << 15) | 1;
    /// The bit of kinds that report an error.
    pub const ERRORS: u16 = 1 << 15;
}

/// States of `base:allocation`.
pub mod allocation {
    /// Data that was written.
    pub const DATA: u32 = 0;
    /// A hole, which reads as zeroes.
    pub const HOLE_ZERO: u32 = 3;
    /// The bit of extents that read as zeroes.
    pub const ZERO: u32 = 2;
}

/// The error numbers of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// The request is invalid.
    Inval = 22,
    /// No space, or a write past the end.
    NoSpace = 28,
    /// Not supported, or not fast.
    NotSup = 95,
    /// The export is stopping, or has stopped.
    Shutdown = 108,
}

impl From<&IoError> for Errno {
    fn from(error: &IoError) -> Self {
        match error {
            IoError::OutOfRange { .. } => Self::Inval,
            IoError::ReadOnly => Self::Perm,
            IoError::NotSupported => Self::NotSup,
            IoError::NoSpace(_) => Self::NoSpace,
            // The protocol has no error for "try again", so both are EIO for a guest.
            IoError::Damaged(_) | IoError::Unavailable(_) => Self::Io,
            IoError::Stopped(_) => Self::Shutdown,
        }
    }
}

/// The error of a request or piece, for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The error number.
    pub errno: Errno,
    /// The message, which some clients show or log.
    pub message: String,
}

impl From<IoError> for Fault {
    fn from(error: IoError) -> Self {
        Self {
            errno: Errno::from(&error),
            message: error.to_string(),
        }
    }
}
