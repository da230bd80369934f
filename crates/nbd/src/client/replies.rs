//! [`Replies`]: decodes a server's replies, and checks each against its request in the
//! [`RequestLog`]. The bytes may arrive in any pieces. The data of reads are copied once, or
//! received where they stay.

use base::{Extent, ExtentKind, IoError};

use super::super::reply::{CHUNK_BYTES, SIMPLE_BYTES};
use super::super::wire::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, allocation, chunk, command};
use super::ConnectionError;
use super::entry::Entry;
use super::protocol_violation::{ProtocolViolation, printable};
use super::request_log::RequestLog;

/// The maximal length of an error chunk: an error number, an offset and a message.
const ERROR_BYTES_MAX: u32 = 4 + 2 + u16::MAX as u32 + 8;

/// The maximal length of a block status, in bytes. QEMU's and nbdkit's are shorter.
const STATUS_BYTES_MAX: u32 = 4 + (1 << 20);

/// The length of an extent: its length and state, 4 bytes each.
const EXTENT_BYTES: u32 = 8;

/// Error numbers of the protocol.
const EPERM: u32 = 1;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Header,
    /// The body of a chunk, or for data and extents only its fixed part.
    Body(Chunk),
    /// Data of a read.
    Data {
        cookie: u64,
        offset: usize,
        left: usize,
        is_last: bool,
    },
    /// Extents of 8 bytes each.
    Extents {
        cookie: u64,
        left: u32,
        /// The bytes of the disk that earlier extents cover.
        covered: u64,
        is_last: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk {
    cookie: u64,
    kind: u16,
    is_last: bool,
    length: u32,
}

impl Chunk {
    /// The length of its body, or for data and extents only of its fixed part.
    fn body_bytes(&self) -> usize {
        match self.kind {
            chunk::OFFSET_DATA => 8,
            chunk::BLOCK_STATUS => 4,
            _ => self.length as usize,
        }
    }
}

/// A decoder of a server's replies.
#[derive(Debug)]
pub struct Replies {
    stage: Stage,
    structured: bool,
    allocation: Option<u32>,
}

fn word<const N: usize>(bytes: &[u8]) -> Option<u64> {
    let bytes = bytes.get(..N)?;
    let add = |word, byte: &u8| word << 8 | u64::from(*byte);
    Some(bytes.iter().fold(0, add))
}

impl Replies {
    /// A decoder for a connection with this negotiated form of replies and `base:allocation`.
    pub fn new(structured: bool, allocation: Option<u32>) -> Self {
        Self {
            stage: Stage::Header,
            structured,
            allocation,
        }
    }

    /// Decodes received bytes. Returns the number of consumed bytes, and adds the cookies of
    /// the requests that they complete to `completed`.
    ///
    /// # Errors
    /// Why the connection ends.
    pub fn advance(
        &mut self,
        input: &[u8],
        log: &mut RequestLog,
        completed: &mut Vec<u64>,
    ) -> Result<usize, ConnectionError> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let step = match self.stage {
                Stage::Header => self.header(rest, log, completed)?,
                Stage::Body(chunk) => self.body(chunk, rest, log, completed)?,
                Stage::Data {
                    cookie,
                    offset,
                    left,
                    ..
                } => {
                    let count = left.min(rest.len());
                    if count > 0 {
                        let entry = log.sent_entry(cookie)?;
                        entry.data[offset..offset + count].copy_from_slice(&rest[..count]);
                    }
                    self.data_received(count, log, completed);
                    (count > 0).then_some(count)
                }
                Stage::Extents {
                    cookie,
                    left,
                    covered,
                    is_last,
                } => match extent(cookie, covered, rest, log)? {
                    None => None,
                    Some(length) => {
                        self.stage = Stage::Extents {
                            cookie,
                            left: left - EXTENT_BYTES,
                            covered: covered + length,
                            is_last,
                        };
                        if left == EXTENT_BYTES {
                            self.end(cookie, is_last, log, completed);
                        }
                        Some(EXTENT_BYTES as usize)
                    }
                },
            };
            match step {
                Some(count) => used += count,
                None => return Ok(used),
            }
        }
    }

    /// The space for the data of a read that arrive next.
    pub fn data_space<'a>(&self, log: &'a mut RequestLog) -> Option<&'a mut [u8]> {
        match self.stage {
            Stage::Data {
                cookie,
                offset,
                left,
                ..
            } => {
                let entry = log.sent_entry(cookie).ok()?;
                entry.data.get_mut(offset..offset + left)
            }
            _ => None,
        }
    }

    /// Records that `count` bytes were received into that space.
    pub fn data_received(&mut self, count: usize, log: &mut RequestLog, completed: &mut Vec<u64>) {
        if let Stage::Data {
            cookie,
            offset,
            left,
            is_last,
        } = &mut self.stage
        {
            *offset += count;
            *left -= count;
            if *left == 0 {
                let (cookie, is_last) = (*cookie, *is_last);
                self.end(cookie, is_last, log, completed);
            }
        }
    }

    /// The cookie of the request whose reply is arriving.
    pub fn current(&self) -> Option<u64> {
        match self.stage {
            Stage::Header => None,
            Stage::Body(Chunk { cookie, .. })
            | Stage::Data { cookie, .. }
            | Stage::Extents { cookie, .. } => Some(cookie),
        }
    }

    fn end(&mut self, cookie: u64, is_last: bool, log: &mut RequestLog, completed: &mut Vec<u64>) {
        self.stage = Stage::Header;
        if is_last {
            log.end(cookie);
            completed.push(cookie);
        }
    }

    fn header(
        &mut self,
        input: &[u8],
        log: &mut RequestLog,
        completed: &mut Vec<u64>,
    ) -> Result<Option<usize>, ConnectionError> {
        let Some(magic) = word::<4>(input) else {
            return Ok(None);
        };
        match magic as u32 {
            SIMPLE_REPLY_MAGIC if input.len() >= SIMPLE_BYTES => {
                let errno = word::<4>(&input[4..]).unwrap_or_default() as u32;
                let cookie = word::<8>(&input[8..]).unwrap_or_default();
                self.simple(cookie, errno, log, completed)?;
                Ok(Some(SIMPLE_BYTES))
            }
            CHUNK_MAGIC if !self.structured => {
                Err(ProtocolViolation::ReplyMagic(CHUNK_MAGIC).into())
            }
            CHUNK_MAGIC if input.len() >= CHUNK_BYTES => {
                let flags = word::<2>(&input[4..]).unwrap_or_default() as u16;
                let chunk = Chunk {
                    cookie: word::<8>(&input[8..]).unwrap_or_default(),
                    kind: word::<2>(&input[6..]).unwrap_or_default() as u16,
                    is_last: flags & chunk::DONE != 0,
                    length: word::<4>(&input[16..]).unwrap_or_default() as u32,
                };
                let entry = log.sent_entry(chunk.cookie)?;
                if !fits(&chunk, entry) {
                    return Err(violation(&chunk).into());
                }
                self.stage = Stage::Body(chunk);
                Ok(Some(CHUNK_BYTES))
            }
            SIMPLE_REPLY_MAGIC | CHUNK_MAGIC => Ok(None),
            other => Err(ProtocolViolation::ReplyMagic(other).into()),
        }
    }

    fn simple(
        &mut self,
        cookie: u64,
        errno: u32,
        log: &mut RequestLog,
        completed: &mut Vec<u64>,
    ) -> Result<(), ConnectionError> {
        let entry = log.sent_entry(cookie)?;
        let is_read = entry.header.command == command::READ;
        let is_status = entry.header.command == command::BLOCK_STATUS;
        if is_status || is_read && self.structured {
            return Err(ProtocolViolation::Form { cookie }.into());
        }
        if errno != 0 {
            entry.error = Some(io_error(errno, &[])?);
        } else if is_read {
            let length = u64::from(entry.header.length);
            entry.take_range(entry.header.offset, length)?;
            self.stage = Stage::Data {
                cookie,
                offset: 0,
                left: length as usize,
                is_last: true,
            };
            return Ok(());
        }
        self.end(cookie, true, log, completed);
        Ok(())
    }

    fn body(
        &mut self,
        chunk: Chunk,
        input: &[u8],
        log: &mut RequestLog,
        completed: &mut Vec<u64>,
    ) -> Result<Option<usize>, ConnectionError> {
        let needed = chunk.body_bytes();
        let Some(body) = input.get(..needed) else {
            return Ok(None);
        };
        let entry = log.sent_entry(chunk.cookie)?;
        match chunk.kind {
            chunk::OFFSET_DATA => {
                let disk_offset = word::<8>(body).unwrap_or_default();
                let left = chunk.length - 8;
                self.stage = Stage::Data {
                    cookie: chunk.cookie,
                    offset: entry.take_range(disk_offset, left.into())?,
                    left: left as usize,
                    is_last: false,
                };
            }
            chunk::OFFSET_HOLE => {
                let offset = word::<8>(body).unwrap_or_default();
                let length = word::<4>(&body[8..]).unwrap_or_default();
                entry.take_range(offset, length)?;
            }
            chunk::BLOCK_STATUS => {
                if word::<4>(body) != self.allocation.map(u64::from) || !entry.extents.is_empty() {
                    return Err(ProtocolViolation::Extents(chunk.cookie).into());
                }
                self.stage = Stage::Extents {
                    cookie: chunk.cookie,
                    left: chunk.length - 4,
                    covered: 0,
                    is_last: chunk.is_last,
                };
                if chunk.is_last {
                    return Ok(Some(needed));
                }
            }
            kind if kind & chunk::ERRORS != 0 => {
                let errno = word::<4>(body).unwrap_or_default() as u32;
                let length = word::<2>(&body[4..]).unwrap_or_default() as usize;
                let message = body.get(6..6 + length).ok_or(violation(&chunk))?;
                entry.error = Some(io_error(errno, message)?);
            }
            _ => {}
        }
        if chunk.is_last {
            check_complete(entry)?;
        }
        match &mut self.stage {
            Stage::Data { is_last, .. } => *is_last = chunk.is_last,
            Stage::Extents { .. } => {}
            _ => self.end(chunk.cookie, chunk.is_last, log, completed),
        }
        Ok(Some(needed))
    }
}

/// Decodes the next extent of a block status, whose extents cover `covered` bytes so far. Returns
/// how many bytes it adds; `None` if it has not arrived.
fn extent(
    cookie: u64,
    covered: u64,
    input: &[u8],
    log: &mut RequestLog,
) -> Result<Option<u64>, ConnectionError> {
    let (Some(length), Some(state)) = (word::<4>(input), input.get(4..).and_then(word::<4>)) else {
        return Ok(None);
    };
    let entry = log.sent_entry(cookie)?;
    let requested = u64::from(entry.header.length);
    if length == 0 || covered >= requested {
        return Err(ProtocolViolation::Extents(cookie).into());
    }
    let kind = match state & u64::from(allocation::ZERO) {
        0 => ExtentKind::Data,
        _ => ExtentKind::Hole,
    };
    // The last extent may end behind the requested range.
    let length = length.min(requested - covered);
    match entry.extents.last_mut() {
        Some(last) if last.kind == kind => last.length += length,
        _ => entry.extents.push(Extent { length, kind }),
    }
    Ok(Some(length))
}

/// Checks after the last chunk of a reply that a read has all its data, and a block status its
/// extents, unless the request failed.
fn check_complete(entry: &Entry) -> Result<(), ProtocolViolation> {
    let (cookie, missing) = (entry.header.cookie, entry.missing());
    match entry.header.command {
        _ if entry.error.is_some() => Ok(()),
        command::READ if missing > 0 => Err(ProtocolViolation::Missing { cookie, missing }),
        command::BLOCK_STATUS if entry.extents.is_empty() => {
            Err(ProtocolViolation::Extents(cookie))
        }
        _ => Ok(()),
    }
}

fn violation(chunk: &Chunk) -> ProtocolViolation {
    ProtocolViolation::Chunk {
        cookie: chunk.cookie,
        kind: chunk.kind,
        length: chunk.length,
    }
}

/// Whether a chunk may be part of the reply to a request.
fn fits(chunk: &Chunk, entry: &Entry) -> bool {
    let (requested, length) = (entry.header.command, chunk.length);
    match chunk.kind {
        chunk::NONE => length == 0 && chunk.is_last,
        chunk::OFFSET_DATA => {
            let most = u64::from(entry.header.length) + 8;
            requested == command::READ && length > 8 && u64::from(length) <= most
        }
        chunk::OFFSET_HOLE => requested == command::READ && length == 12,
        chunk::BLOCK_STATUS => {
            let is_whole = length >= 12 && (length - 4).is_multiple_of(8);
            requested == command::BLOCK_STATUS && is_whole && length <= STATUS_BYTES_MAX
        }
        kind => kind & chunk::ERRORS != 0 && (6..=ERROR_BYTES_MAX).contains(&length),
    }
}

/// The device's error for an error number of the protocol.
///
/// # Errors
/// [`ConnectionError::ServerStopping`], after which the client sends the request again over
/// another connection.
fn io_error(errno: u32, message: &[u8]) -> Result<IoError, ConnectionError> {
    let words = match message.is_empty() {
        true => format!("the server reported error {errno}"),
        false => format!("the server reported error {errno}, {}", printable(message)),
    };
    Ok(match errno {
        ESHUTDOWN => return Err(ConnectionError::ServerStopping),
        EPERM => IoError::ReadOnly,
        ENOSPC => IoError::NoSpace(words),
        ENOTSUP => IoError::NotSupported,
        // EIO, and numbers that have no error of their own.
        _ => IoError::Damaged(words),
    })
}
