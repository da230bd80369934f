//! What a server answers: bytes become answers of requests in the [`Log`], however they are
//! cut. Data of reads go from where they were received to where they stay, in one copy.

use base::{Extent, ExtentKind, IoError};

use super::super::reply::{CHUNK_BYTES, SIMPLE_BYTES};
use super::super::wire::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, allocation, chunk, command};
use super::Broken;
use super::log::{Entry, Log};
use super::nonsense::Nonsense;

/// The longest error chunk: a number, an offset, and the longest message there is.
const ERROR_BYTES_MAX: u32 = 4 + 2 + u16::MAX as u32 + 8;

/// The longest block status that is looked at, in bytes. QEMU's and nbdkit's are shorter.
const STATUS_BYTES_MAX: u32 = 4 + (1 << 20);

/// Length and state.
const EXTENT_BYTES: u32 = 8;

/// Error numbers of the wire beyond those that this server uses.
const EPERM: u32 = 1;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

/// Where the next byte belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Header,
    /// The body of a chunk, which is short enough to be looked at whole; or its head.
    Body(Chunk),
    /// Data of a read.
    Data {
        cookie: u64,
        at: usize,
        left: usize,
        is_last: bool,
    },
    /// Extents of 8 bytes each.
    Extents {
        cookie: u64,
        left: u32,
        /// So many bytes of the disk are told of.
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

/// A server's side of the conversation, as far as it has come.
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
    /// What has been agreed upon.
    pub fn new(structured: bool, allocation: Option<u32>) -> Self {
        Self {
            stage: Stage::Header,
            structured,
            allocation,
        }
    }

    /// Takes the bytes in order as far as they make something whole; returns how many, and
    /// adds the cookies of what is answered.
    ///
    /// # Errors
    /// The connection is over.
    pub fn advance(
        &mut self,
        input: &[u8],
        log: &mut Log,
        done: &mut Vec<u64>,
    ) -> Result<usize, Broken> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let step = match self.stage {
                Stage::Header => self.header(rest, log, done)?,
                Stage::Body(chunk) => self.body(chunk, rest, log, done)?,
                Stage::Data {
                    cookie, at, left, ..
                } => {
                    let count = left.min(rest.len());
                    if count > 0 {
                        let entry = log.sent_one(cookie)?;
                        entry.data[at..at + count].copy_from_slice(&rest[..count]);
                    }
                    self.came(count, log, done);
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
                            self.end(cookie, is_last, log, done);
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

    /// Where data that are expected can be received, if they are many.
    pub fn room<'a>(&self, log: &'a mut Log) -> Option<&'a mut [u8]> {
        match self.stage {
            Stage::Data {
                cookie, at, left, ..
            } => {
                let entry = log.sent_one(cookie).ok()?;
                entry.data.get_mut(at..at + left)
            }
            _ => None,
        }
    }

    /// So many bytes were received there.
    pub fn came(&mut self, count: usize, log: &mut Log, done: &mut Vec<u64>) {
        if let Stage::Data {
            cookie,
            at,
            left,
            is_last,
        } = &mut self.stage
        {
            *at += count;
            *left -= count;
            if *left == 0 {
                let (cookie, is_last) = (*cookie, *is_last);
                self.end(cookie, is_last, log, done);
            }
        }
    }

    /// The request whose reply is being received.
    pub fn underway(&self) -> Option<u64> {
        match self.stage {
            Stage::Header => None,
            Stage::Body(Chunk { cookie, .. })
            | Stage::Data { cookie, .. }
            | Stage::Extents { cookie, .. } => Some(cookie),
        }
    }

    fn end(&mut self, cookie: u64, is_last: bool, log: &mut Log, done: &mut Vec<u64>) {
        self.stage = Stage::Header;
        if is_last {
            log.end(cookie);
            done.push(cookie);
        }
    }

    fn header(
        &mut self,
        input: &[u8],
        log: &mut Log,
        done: &mut Vec<u64>,
    ) -> Result<Option<usize>, Broken> {
        let Some(magic) = word::<4>(input) else {
            return Ok(None);
        };
        match magic as u32 {
            SIMPLE_REPLY_MAGIC if input.len() >= SIMPLE_BYTES => {
                let errno = word::<4>(&input[4..]).unwrap_or_default() as u32;
                let cookie = word::<8>(&input[8..]).unwrap_or_default();
                self.simple(cookie, errno, log, done)?;
                Ok(Some(SIMPLE_BYTES))
            }
            CHUNK_MAGIC if !self.structured => Err(Nonsense::ReplyMagic(CHUNK_MAGIC).into()),
            CHUNK_MAGIC if input.len() >= CHUNK_BYTES => {
                let flags = word::<2>(&input[4..]).unwrap_or_default() as u16;
                let chunk = Chunk {
                    cookie: word::<8>(&input[8..]).unwrap_or_default(),
                    kind: word::<2>(&input[6..]).unwrap_or_default() as u16,
                    is_last: flags & chunk::DONE != 0,
                    length: word::<4>(&input[16..]).unwrap_or_default() as u32,
                };
                let entry = log.sent_one(chunk.cookie)?;
                if !fits(&chunk, entry) {
                    return Err(odd(&chunk).into());
                }
                self.stage = Stage::Body(chunk);
                Ok(Some(CHUNK_BYTES))
            }
            SIMPLE_REPLY_MAGIC | CHUNK_MAGIC => Ok(None),
            other => Err(Nonsense::ReplyMagic(other).into()),
        }
    }

    fn simple(
        &mut self,
        cookie: u64,
        errno: u32,
        log: &mut Log,
        done: &mut Vec<u64>,
    ) -> Result<(), Broken> {
        let entry = log.sent_one(cookie)?;
        let is_read = entry.header.command == command::READ;
        let is_status = entry.header.command == command::BLOCK_STATUS;
        if is_status || is_read && self.structured {
            return Err(Nonsense::Form { cookie }.into());
        }
        if errno != 0 {
            entry.error = Some(error_of(errno, &[])?);
        } else if is_read {
            let length = u64::from(entry.header.length);
            entry.take_range(entry.header.offset, length)?;
            self.stage = Stage::Data {
                cookie,
                at: 0,
                left: length as usize,
                is_last: true,
            };
            return Ok(());
        }
        self.end(cookie, true, log, done);
        Ok(())
    }

    fn body(
        &mut self,
        chunk: Chunk,
        input: &[u8],
        log: &mut Log,
        done: &mut Vec<u64>,
    ) -> Result<Option<usize>, Broken> {
        let needed = match chunk.kind {
            chunk::OFFSET_DATA => 8,
            chunk::BLOCK_STATUS => 4,
            _ => chunk.length as usize,
        };
        let Some(body) = input.get(..needed) else {
            return Ok(None);
        };
        let entry = log.sent_one(chunk.cookie)?;
        match chunk.kind {
            chunk::OFFSET_DATA => {
                let offset = word::<8>(body).unwrap_or_default();
                let left = chunk.length - 8;
                let at = entry.take_range(offset, left.into())?;
                self.stage = Stage::Data {
                    cookie: chunk.cookie,
                    at,
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
                    return Err(Nonsense::Extents(chunk.cookie).into());
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
                let message = body.get(6..6 + length).ok_or(odd(&chunk))?;
                entry.error = Some(error_of(errno, message)?);
            }
            _ => {}
        }
        // A read is whole when its last chunk has come, unless it failed.
        if chunk.is_last {
            let missing = entry.missing();
            let is_read = entry.header.command == command::READ;
            if is_read && entry.error.is_none() && missing > 0 {
                return Err(Nonsense::Missing {
                    cookie: chunk.cookie,
                    missing,
                }
                .into());
            }
            let is_status = entry.header.command == command::BLOCK_STATUS;
            if is_status && entry.error.is_none() && entry.extents.is_empty() {
                return Err(Nonsense::Extents(chunk.cookie).into());
            }
        }
        match &mut self.stage {
            Stage::Data { is_last, .. } => *is_last = chunk.is_last,
            Stage::Extents { .. } => {}
            _ => self.end(chunk.cookie, chunk.is_last, log, done),
        }
        Ok(Some(needed))
    }
}

/// One extent of a block status that has told of `covered` bytes; returns how many it adds.
fn extent(cookie: u64, covered: u64, input: &[u8], log: &mut Log) -> Result<Option<u64>, Broken> {
    let (Some(length), Some(state)) = (word::<4>(input), input.get(4..).and_then(word::<4>)) else {
        return Ok(None);
    };
    let entry = log.sent_one(cookie)?;
    let asked = u64::from(entry.header.length);
    if length == 0 || covered >= asked {
        return Err(Nonsense::Extents(cookie).into());
    }
    let kind = match state & u64::from(allocation::ZERO) {
        0 => ExtentKind::Data,
        _ => ExtentKind::Hole,
    };
    // The last one may go further than was asked for.
    let length = length.min(asked - covered);
    match entry.extents.last_mut() {
        Some(last) if last.kind == kind => last.length += length,
        _ => entry.extents.push(Extent { length, kind }),
    }
    Ok(Some(length))
}

fn odd(chunk: &Chunk) -> Nonsense {
    Nonsense::Chunk {
        cookie: chunk.cookie,
        kind: chunk.kind,
        length: chunk.length,
    }
}

/// Whether such a chunk may answer such a request.
fn fits(chunk: &Chunk, entry: &Entry) -> bool {
    let (asked, length) = (entry.header.command, chunk.length);
    match chunk.kind {
        chunk::NONE => length == 0 && chunk.is_last,
        chunk::OFFSET_DATA => {
            let most = u64::from(entry.header.length) + 8;
            asked == command::READ && length > 8 && u64::from(length) <= most
        }
        chunk::OFFSET_HOLE => asked == command::READ && length == 12,
        chunk::BLOCK_STATUS => {
            let is_whole = length >= 12 && (length - 4).is_multiple_of(8);
            asked == command::BLOCK_STATUS && is_whole && length <= STATUS_BYTES_MAX
        }
        kind => kind & chunk::ERRORS != 0 && (6..=ERROR_BYTES_MAX).contains(&length),
    }
}

/// What an error number means to whoever asked.
///
/// # Errors
/// [`Broken::Stopping`]: the server is about to go, and what it did not do is asked again.
fn error_of(errno: u32, message: &[u8]) -> Result<IoError, Broken> {
    // What is logged is short, whatever the server says.
    let message = String::from_utf8_lossy(&message[..message.len().min(200)]);
    let words = match message.is_empty() {
        true => format!("the server says error {errno}"),
        false => format!("the server says error {errno}, {}", message.escape_debug()),
    };
    Ok(match errno {
        ESHUTDOWN => return Err(Broken::Stopping),
        EPERM => IoError::ReadOnly,
        ENOSPC => IoError::NoSpace(words),
        ENOTSUP => IoError::NotSupported,
        // EIO, and what has no word of its own: the wire says no more.
        _ => IoError::Damaged(words),
    })
}
