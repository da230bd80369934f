//! The journal record: many writes under one header.
//!
//! ```text
//!  0       4096                       4096 + payload_blocks * block
//!  ┌────────┬─────────┬─────────┬─────────┐
//!  │ header │ block 0 │ block 1 │ block … │   sealed, as they will be in
//!  └────────┴─────────┴─────────┴─────────┘   segments
//!
//!  header, 8 bytes to a row:
//!  ┌──────────────────────────────────────┐
//!  0│ magic "SCRJREC1"                     │  the digit is the format
//!  8│ position: this record's log position │  its name, and its offset
//! 16│ journal id, 16 bytes                 │  that of the first page
//! 32│ first sequence                       │  entry i has sequence first + i
//! 40│ entries u16 │ 0 u16 │ payload blks u32│
//! 48│ durable: a log position              │  all before it was synced by now
//! 56│ block bytes u32     │ CRC-32C u32    │  of all of the 4096 bytes, this
//!   ├──────────────────────────────────────┤  field counted as zero
//! 64│ entry 0 (32 bytes), entry 1, …       │  at most 126
//!   └──────────────────────────────────────┘
//!
//!  entry:
//!  ┌──────────────────────────────────────┐
//!  0│ block index                          │
//!  8│ kind u8 (1 data, 2 zero) │ 0 (7)     │
//! 16│ tag, 16 bytes  │ or  count u64, 0    │
//!   └──────────────────────────────────────┘
//! ```
//!
//! The CRC covers the header page alone; the tags in it authenticate the payload,
//! so a torn payload is detected without a second checksum on the hot path. A
//! record begins on a 4 KiB boundary: writing one never touches a page that holds
//! an older one. A file of a newer format is refused by its first page
//! (`files.rs`), before any record is read.

use base::checksum::crc32c;
use base::codec::{Reader, Writer};
use base::{BlockIndex, Sequence};
use unit::Tag;

/// Bytes of the header page.
pub const HEADER_BYTES: usize = 4096;
/// The number of entries that fit in the header page.
pub const ENTRIES_MAX: usize = (HEADER_BYTES - PREFIX_BYTES) / ENTRY_BYTES;

const MAGIC: &[u8; 8] = b"SCRJREC1";
const PREFIX_BYTES: usize = 64;
const ENTRY_BYTES: usize = 32;
const CRC_AT: usize = 60;

/// One write in a record. Entry `i` has the record's first sequence plus `i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A block whose ciphertext is the next one in the payload.
    Data {
        /// The block.
        block: BlockIndex,
        /// The tag of its seal.
        tag: Tag,
    },
    /// `count` blocks from `block` on read as zeroes.
    Zero {
        /// The first block.
        block: BlockIndex,
        /// The number of blocks, at least one.
        count: u64,
    },
}

/// A record's header, verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The record's log position in bytes.
    pub position: u64,
    /// The id of the journal that it belongs to.
    pub journal: u128,
    /// The sequence of entry 0.
    pub first: Sequence,
    /// Everything before this log position was durable when the record was
    /// written.
    pub durable: u64,
    /// Size of a payload block in bytes.
    pub block_bytes: u32,
    /// The writes, in order.
    pub entries: Vec<Entry>,
}

/// Why 4096 bytes are not a valid record header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// The magic is missing.
    #[error("no record begins here")]
    NoMagic,
    /// The magic is there, but the page is damaged.
    #[error("the header's checksum does not match")]
    Checksum,
    /// The checksum matches, but a field has an impossible value.
    #[error("field {0} has a value that no writer makes")]
    Field(&'static str),
}

impl Header {
    /// The number of payload blocks that follow the header.
    #[must_use]
    pub fn payload_blocks(&self) -> usize {
        self.entries
            .iter()
            .filter(|entry| matches!(entry, Entry::Data { .. }))
            .count()
    }

    /// Length of the whole record in bytes.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.payload_blocks() as u64 * u64::from(self.block_bytes)
    }

    fn prefix(&self) -> RecordPrefix {
        RecordPrefix {
            position: self.position,
            journal: self.journal,
            first: self.first,
            durable: self.durable,
            block_bytes: self.block_bytes,
        }
    }

    /// Writes the header into its page, for tests and fuzz seeds; the journal itself calls
    /// `encode_header`.
    ///
    /// # Panics
    /// If there are more than [`ENTRIES_MAX`] entries.
    pub fn encode(&self, page: &mut [u8; HEADER_BYTES]) {
        page.fill(0);
        encode_header(page, &self.prefix(), &self.entries);
    }

    /// Reads and checks a header page.
    ///
    /// # Errors
    /// [`BadHeader`].
    pub fn decode(page: &[u8; HEADER_BYTES]) -> Result<Self, BadHeader> {
        if !page.starts_with(MAGIC) {
            return Err(BadHeader::NoMagic);
        }
        let mut zeroed = *page;
        zeroed[CRC_AT..PREFIX_BYTES].fill(0);
        if crc32c(&zeroed).to_le_bytes() != page[CRC_AT..PREFIX_BYTES] {
            return Err(BadHeader::Checksum);
        }
        let mut reader = Reader::new(&page[8..]);
        let parsed = Self::parse(&mut reader).map_err(|_| BadHeader::Field("entries"))?;
        parsed.ok_or(BadHeader::Field("entry kind or count"))
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Option<Self>, base::codec::OutOfBytes> {
        let position = reader.u64()?;
        let journal = reader.u128()?;
        let first = Sequence::from_bits(reader.u64()?);
        let count = usize::from(reader.u16()?);
        let _ = reader.u16()?;
        let payload_blocks = reader.u32()?;
        let durable = reader.u64()?;
        let block_bytes = reader.u32()?;
        let _ = reader.u32()?;
        let mut entries = Vec::with_capacity(count.min(ENTRIES_MAX));
        for _ in 0..count {
            let block = BlockIndex(reader.u64()?);
            let kind = reader.u8()?;
            let _ = reader.bytes(7)?;
            entries.push(match kind {
                1 => Entry::Data {
                    block,
                    tag: reader.array()?,
                },
                2 => {
                    let zeroes = reader.u64()?;
                    let _ = reader.u64()?;
                    if zeroes == 0 || block.0.checked_add(zeroes).is_none() {
                        return Ok(None);
                    }
                    Entry::Zero {
                        block,
                        count: zeroes,
                    }
                }
                _ => return Ok(None),
            });
        }
        let header = Self {
            position,
            journal,
            first,
            durable,
            block_bytes,
            entries,
        };
        Ok((header.payload_blocks() as u64 == u64::from(payload_blocks)).then_some(header))
    }
}

/// The fields of a header before its entries.
pub(super) struct RecordPrefix {
    pub position: u64,
    pub journal: u128,
    pub first: Sequence,
    pub durable: u64,
    pub block_bytes: u32,
}

/// Fills a page front to back.
struct PageWriter<'a> {
    page: &'a mut [u8],
    used: usize,
}

impl Writer for PageWriter<'_> {
    #[inline]
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.page[self.used..][..bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

/// Writes a header into a page of zeroes. `Journal::close_record` calls it for every record,
/// with entries that it uses again, so it neither allocates nor copies.
pub(super) fn encode_header(page: &mut [u8], prefix: &RecordPrefix, entries: &[Entry]) {
    assert!(
        entries.len() <= ENTRIES_MAX,
        "{} entries in one record",
        entries.len()
    );
    assert_eq!(page.len(), HEADER_BYTES);
    debug_assert!(page.iter().all(|byte| *byte == 0), "the page is not empty");
    let payload = entries
        .iter()
        .filter(|entry| matches!(entry, Entry::Data { .. }))
        .count();
    let mut writer = PageWriter { page, used: 0 };
    writer.put_bytes(MAGIC);
    writer.put_u64(prefix.position);
    writer.put_u128(prefix.journal);
    writer.put_u64(prefix.first.bits());
    writer.put_u16(u16::try_from(entries.len()).expect("checked above"));
    writer.put_u16(0);
    writer.put_u32(u32::try_from(payload).expect("at most ENTRIES_MAX"));
    writer.put_u64(prefix.durable);
    writer.put_u32(prefix.block_bytes);
    writer.put_u32(0);
    for entry in entries {
        match *entry {
            Entry::Data { block, tag } => {
                writer.put_u64(block.0);
                writer.put_u64(1);
                writer.put_bytes(&tag);
            }
            Entry::Zero { block, count } => {
                writer.put_u64(block.0);
                writer.put_u64(2);
                writer.put_u64(count);
                writer.put_u64(0);
            }
        }
    }
    let crc = crc32c(page);
    page[CRC_AT..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            position: 40960,
            journal: 0x1234,
            first: Sequence::new(3, 77).expect("small"),
            durable: 8192,
            block_bytes: 4096,
            entries: vec![
                Entry::Data {
                    block: BlockIndex(9),
                    tag: [5; 16],
                },
                Entry::Zero {
                    block: BlockIndex(100),
                    count: 28,
                },
                Entry::Data {
                    block: BlockIndex(8),
                    tag: [6; 16],
                },
            ],
        }
    }

    #[test]
    fn a_header_is_read_back() {
        let mut page = [0; HEADER_BYTES];
        header().encode(&mut page);
        assert_eq!(Header::decode(&page), Ok(header()));
        assert_eq!(header().record_bytes(), 3 * 4096);
    }

    /// The page of [`header`] in format 1, up to where its zeroes begin.
    const FIXTURE: [u8; 160] = [
        0x53, 0x43, 0x52, 0x4a, 0x52, 0x45, 0x43, 0x31, 0x00, 0xa0, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x34, 0x12, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x4d, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x02,
        0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00,
        0xd2, 0x60, 0x11, 0x43, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x05, 0x05, 0x05, 0x05, 0x05, 0x05, 0x05, 0x05, 0x05,
        0x05, 0x05, 0x05, 0x05, 0x05, 0x05, 0x64, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x1c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x06, 0x06, 0x06, 0x06, 0x06, 0x06,
        0x06, 0x06, 0x06, 0x06, 0x06, 0x06, 0x06, 0x06, 0x06, 0x06,
    ];

    #[test]
    fn a_header_has_format_1() {
        let mut page = [0; HEADER_BYTES];
        header().encode(&mut page);
        assert_eq!(page[..FIXTURE.len()], FIXTURE);
        assert!(page[FIXTURE.len()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_header_of_another_format_is_not_followed() {
        let mut page = [0; HEADER_BYTES];
        header().encode(&mut page);
        page[7] = b'2';
        assert_eq!(Header::decode(&page), Err(BadHeader::NoMagic));
    }

    #[test]
    fn a_full_header_is_read_back() {
        let entries = vec![
            Entry::Data {
                block: BlockIndex(1),
                tag: [1; 16]
            };
            ENTRIES_MAX
        ];
        let full = Header {
            entries,
            ..header()
        };
        let mut page = [0; HEADER_BYTES];
        full.encode(&mut page);
        assert_eq!(Header::decode(&page), Ok(full));
    }

    #[test]
    fn every_flipped_byte_is_detected() {
        let mut page = [0; HEADER_BYTES];
        header().encode(&mut page);
        for position in 0..HEADER_BYTES {
            page[position] ^= 0x40;
            assert!(Header::decode(&page).is_err(), "byte {position}");
            page[position] ^= 0x40;
        }
    }
}
