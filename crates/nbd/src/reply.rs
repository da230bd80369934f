//! Encodes replies: their headers, and the body of a block status.
//!
//! ```text
//!  simple       | magic  | errno  |     cookie     | data of a READ…
//!  structured   | magic  | flags | type |     cookie     | length  | body…
//!  OFFSET_DATA  body: offset 8, data
//!  BLOCK_STATUS body: context 4, then per extent: length 4, state 4
//!  ERROR        body: errno 4, message length 2, message
//! ```

use base::codec::Writer;
use base::{Extent, ExtentKind};

use super::wire::{
    BASE_ALLOCATION_ID, CHUNK_MAGIC, Fault, SIMPLE_REPLY_MAGIC, allocation, chunk, string_of,
};

/// The length of a simple reply's header, in bytes.
pub const SIMPLE_BYTES: usize = 16;
/// The length of a chunk's header, in bytes.
pub const CHUNK_BYTES: usize = 20;
/// The length of the bytes before the data of a read in a structured reply.
pub const DATA_CHUNK_BYTES: usize = CHUNK_BYTES + 8;

/// The maximal number of extents in one block status, so that it has at most 16 KiB. A client
/// requests the rest.
const EXTENTS_MAX: usize = 2048;

/// A simple reply. `errno` 0 means success.
#[must_use]
pub fn simple(cookie: u64, errno: u32) -> [u8; SIMPLE_BYTES] {
    let mut bytes = [0; SIMPLE_BYTES];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The header of a chunk with a body of `length` bytes.
#[must_use]
pub fn chunk_header(cookie: u64, flags: u16, kind: u16, length: u32) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..20].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The bytes before `length` bytes of data at `offset`.
#[must_use]
pub fn data_header(cookie: u64, flags: u16, offset: u64, length: u32) -> [u8; DATA_CHUNK_BYTES] {
    let mut bytes = [0; DATA_CHUNK_BYTES];
    let header = chunk_header(cookie, flags, chunk::OFFSET_DATA, 8 + length);
    bytes[..CHUNK_BYTES].copy_from_slice(&header);
    bytes[CHUNK_BYTES..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// The last chunk of a reply that failed.
#[must_use]
pub fn error_chunk(cookie: u64, fault: &Fault) -> Vec<u8> {
    let message = string_of(&fault.message);
    let mut bytes = Vec::with_capacity(CHUNK_BYTES + 6 + message.len());
    let length = 6 + message.len() as u32;
    bytes.put_bytes(&chunk_header(cookie, chunk::DONE, chunk::ERROR, length));
    bytes.put_bytes(&(fault.errno as u32).to_be_bytes());
    bytes.put_bytes(&(message.len() as u16).to_be_bytes());
    bytes.put_bytes(message);
    bytes
}

/// The reply to a block status of `length` bytes: `runs`, cut to that length and with equal
/// neighbors joined, or only the first of them if `first_only`. `None` if `runs` has no bytes.
#[must_use]
pub fn block_status(
    cookie: u64,
    runs: &[Extent],
    length: u32,
    first_only: bool,
) -> Option<Vec<u8>> {
    let mut extents: Vec<(u32, u32)> = Vec::new();
    let mut left = length;
    let extents_max = if first_only { 1 } else { EXTENTS_MAX };
    for run in runs {
        let state = match run.kind {
            ExtentKind::Data => allocation::DATA,
            ExtentKind::Hole => allocation::HOLE_ZERO,
        };
        let here = u32::try_from(run.length).unwrap_or(u32::MAX).min(left);
        left -= here;
        let count = extents.len();
        match extents.last_mut() {
            Some((joined, last)) if *last == state => *joined += here,
            _ if here == 0 || count == extents_max => break,
            _ => extents.push((here, state)),
        }
    }
    if extents.is_empty() {
        return None;
    }
    let body = 4 + 8 * extents.len();
    let mut bytes = Vec::with_capacity(CHUNK_BYTES + body);
    let header = chunk_header(cookie, chunk::DONE, chunk::BLOCK_STATUS, body as u32);
    bytes.put_bytes(&header);
    bytes.put_bytes(&BASE_ALLOCATION_ID.to_be_bytes());
    for (here, state) in extents {
        bytes.put_bytes(&here.to_be_bytes());
        bytes.put_bytes(&state.to_be_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Errno, STRING_BYTES_MAX};

    fn extents_of(reply: &[u8]) -> Vec<(u32, u32)> {
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(word(16) as usize, reply.len() - CHUNK_BYTES);
        assert_eq!(word(20), BASE_ALLOCATION_ID);
        (24..reply.len())
            .step_by(8)
            .map(|at| (word(at), word(at + 4)))
            .collect()
    }

    #[test]
    fn a_block_status_joins_equal_runs_and_ends_with_the_requested_range() {
        let run = |length, kind| Extent { length, kind };
        let runs = [
            run(10, ExtentKind::Data),
            run(20, ExtentKind::Data),
            run(5, ExtentKind::Hole),
            run(1 << 40, ExtentKind::Data),
        ];
        let status = |length, first_only| {
            extents_of(&block_status(7, &runs, length, first_only).expect("runs that begin"))
        };
        assert_eq!(status(1000, false), [(30, 0), (5, 3), (965, 0)]);
        assert_eq!(status(1000, true), [(30, 0)]);
        assert_eq!(status(15, false), [(15, 0)]);
        assert_eq!(
            status(u32::MAX, false),
            [(30, 0), (5, 3), (u32::MAX - 35, 0)]
        );
        assert_eq!(block_status(7, &[], 10, false), None);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let fault = Fault {
            errno: Errno::Io,
            message: "ä".repeat(4000),
        };
        let bytes = error_chunk(1, &fault);
        let length = u32::from_be_bytes(bytes[16..20].try_into().expect("4 bytes")) as usize;
        assert_eq!(length, bytes.len() - CHUNK_BYTES);
        let message = std::str::from_utf8(&bytes[CHUNK_BYTES + 6..]).expect("whole characters");
        assert_eq!(message.len(), STRING_BYTES_MAX);
    }
}
