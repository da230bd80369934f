//! The journal's bytes: two start pages, and records (docs/internals/filter-formats.md).

use base::ByteRange;
use base::checksum::{crc32c, crc32c_append};
use base::codec::{OutOfBytes, Reader, Writer};

use super::origin::Origin;

/// The offset of the ring in the file, in bytes: behind the two start pages.
pub const RING_OFFSET: u64 = 2 * PAGE_BYTES;

/// The length of a start page, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// The bytes at the front of a start page that its checksum covers.
pub const CHECKED_BYTES: usize = 88;

/// The first bytes of a start page. The format follows in the next byte.
const START_MAGIC: &[u8; 7] = b"SCRFJNL";
const FORMAT: u8 = 1;

const RECORD_MAGIC: u32 = 0x6c6a_7263;

/// Records begin at multiples of it, in bytes.
pub const ALIGNMENT: u64 = 16;

/// The length of a record without its payload, in bytes.
pub const HEADER_BYTES: u64 = 48;

/// The maximal payload of a record, in bytes. A longer write becomes several records.
pub const PAYLOAD_BYTES_MAX: u64 = 256 << 10;

/// No journal lives long enough to count beyond this, and the sum of two such numbers fits 64
/// bits.
const NUMBER_MAX: u64 = 1 << 62;

/// A position in the log between two records. Positions grow for ever; the ring wraps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPosition {
    /// In bytes.
    pub offset: u64,
    /// The sequence of the record that begins here.
    pub sequence: u64,
}

/// Where the record of a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The position at which the record ends; 0 of a replayed change, for which it does not matter.
    pub end: u64,
    pub sequence: u64,
}

/// The content of a start page: where the log begins, and the disk that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPage {
    /// Of the two pages, the valid one with the higher number counts.
    pub number: u64,
    /// Grows with each opening. Records of another epoch do not count.
    pub epoch: u64,
    /// The first record.
    pub tail: LogPosition,
    /// The length of the ring, in bytes.
    pub ring_bytes: u64,
    /// The size of the disk, in bytes.
    pub disk_bytes: u64,
    pub origin: Origin,
}

/// A start page of a format that this build cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has format {0}; this build reads format {format}", format = FORMAT)]
pub struct UnknownFormat(u8);

/// A number that may be unknown, as a word: 0, or one more than the number.
fn word_of<T: Into<u64>>(number: Option<T>) -> u64 {
    number.map_or(0, |number| number.into() + 1)
}

impl StartPage {
    /// The page's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE_BYTES as usize);
        page.put_bytes(START_MAGIC);
        page.put_u8(FORMAT);
        for word in [
            self.number,
            self.epoch,
            self.tail.offset,
            self.tail.sequence,
            self.ring_bytes,
            self.disk_bytes,
            word_of(self.origin.lease),
            word_of(self.origin.restores),
            word_of(self.origin.below),
            word_of(self.origin.disk),
        ] {
            page.put_u64(word);
        }
        let checksum = crc32c(&page);
        page.put_u64(checksum.into());
        page.resize(PAGE_BYTES as usize, 0);
        page
    }

    /// Decodes a page; `None` if it is not a valid start page.
    ///
    /// # Errors
    /// [`UnknownFormat`] for a valid page of another format.
    pub fn decode(page: &[u8]) -> Result<Option<Self>, UnknownFormat> {
        match Self::parse(page) {
            Ok(Some((FORMAT, start))) => Ok(start),
            Ok(Some((format, _))) => Err(UnknownFormat(format)),
            Ok(None) | Err(OutOfBytes { .. }) => Ok(None),
        }
    }

    /// The format and the content of a page whose magic and checksum are right.
    fn parse(page: &[u8]) -> Result<Option<(u8, Option<Self>)>, OutOfBytes> {
        let mut reader = Reader::new(page);
        let is_magic = reader.bytes(START_MAGIC.len())? == START_MAGIC;
        let format = reader.u8()?;
        let mut words = [0; 10];
        for word in &mut words {
            *word = reader.u64()?;
        }
        let is_intact = reader.u64()? == u64::from(crc32c(&page[..CHECKED_BYTES]));
        if !is_magic || !is_intact {
            return Ok(None);
        }
        let [number, epoch, offset, sequence, ring_bytes, disk_bytes, ..] = words;
        let [.., lease, restores, below, disk] = words;
        let small = |word: u64| word.checked_sub(1).map(u32::try_from).transpose();
        let (Ok(lease), Ok(below), Ok(disk)) = (small(lease), small(below), small(disk)) else {
            return Ok(Some((format, None)));
        };
        let start = Self {
            number,
            epoch,
            tail: LogPosition { offset, sequence },
            ring_bytes,
            disk_bytes,
            origin: Origin {
                lease,
                restores: restores.checked_sub(1),
                below,
                disk,
            },
        };
        Ok(Some((format, (ring_bytes > 0).then_some(start))))
    }

    /// Whether its numbers can be those of a journal. A page with a right checksum may have been
    /// made on purpose.
    pub fn is_sound(&self) -> bool {
        let LogPosition { offset, sequence } = self.tail;
        let numbers = [self.number, self.epoch, offset, sequence];
        let are_small = numbers.iter().all(|number| *number <= NUMBER_MAX);
        are_small
            && self.ring_bytes <= NUMBER_MAX
            && self.ring_bytes.is_multiple_of(ALIGNMENT)
            && offset.is_multiple_of(ALIGNMENT)
    }
}

/// What a change does to its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Writes the payload.
    Write,
    /// Writes zeroes.
    Zeroes {
        /// Whether the range may become a hole.
        may_punch: bool,
    },
}

/// A record without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// One more than that of the record before.
    pub sequence: u64,
    /// The opening in which it was written.
    pub epoch: u64,
    /// The range on the disk.
    pub range: ByteRange,
    pub kind: ChangeKind,
    /// The distance from the end of what was durable to this record when it was appended, plus 1,
    /// in units of [`ALIGNMENT`]; 0 if unknown.
    pub durable_distance: u32,
}

impl RecordHeader {
    /// The length of the payload, in bytes.
    pub fn payload_bytes(&self) -> u64 {
        match self.kind {
            ChangeKind::Write => self.range.length,
            ChangeKind::Zeroes { .. } => 0,
        }
    }

    /// The length of the record in the ring, in bytes.
    pub fn record_bytes(&self) -> u64 {
        (HEADER_BYTES + self.payload_bytes()).next_multiple_of(ALIGNMENT)
    }

    fn fields(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES as usize - 8);
        let ByteRange { offset, length } = self.range;
        for word in [self.sequence, self.epoch, offset, length] {
            bytes.put_u64(word);
        }
        bytes.put_u32(match self.kind {
            ChangeKind::Write => 0,
            ChangeKind::Zeroes { may_punch: false } => 1,
            ChangeKind::Zeroes { may_punch: true } => 2,
        });
        bytes.put_u32(self.durable_distance);
        bytes
    }

    /// The position up to which the log was durable when the record was appended at `position`,
    /// if that is known.
    pub fn durable(&self, position: u64) -> Option<u64> {
        let distance = u64::from(self.durable_distance.checked_sub(1)?) * ALIGNMENT;
        position.checked_sub(distance)
    }

    /// Appends the header to `into`; the caller writes a long payload from where it is.
    pub fn encode_header(&self, payload: &[u8], into: &mut Vec<u8>) {
        let fields = self.fields();
        into.put_u32(RECORD_MAGIC);
        into.put_u32(crc32c_append(crc32c(&fields), payload));
        into.put_bytes(&fields);
    }

    /// Appends the whole record to `into`, with a copy of a short payload.
    pub fn encode(&self, payload: &[u8], into: &mut Vec<u8>) {
        let end = into.len() + self.record_bytes() as usize;
        self.encode_header(payload, into);
        into.put_bytes(payload);
        into.resize(end, 0);
    }

    /// Decodes the header, with the checksum of the whole record.
    fn decode(bytes: &[u8]) -> Result<Option<(Self, u32)>, OutOfBytes> {
        let mut reader = Reader::new(bytes);
        let magic = reader.u32()?;
        let checksum = reader.u32()?;
        let (sequence, epoch) = (reader.u64()?, reader.u64()?);
        let range = ByteRange::new(reader.u64()?, reader.u64()?);
        let kind = match reader.u32()? {
            0 => ChangeKind::Write,
            1 => ChangeKind::Zeroes { may_punch: false },
            2 => ChangeKind::Zeroes { may_punch: true },
            _ => return Ok(None),
        };
        let header = Self {
            sequence,
            epoch,
            range,
            kind,
            durable_distance: reader.u32()?,
        };
        Ok((magic == RECORD_MAGIC).then_some((header, checksum)))
    }
}

/// The record at the front of `bytes`, if it is valid and has this sequence and epoch.
pub fn parse(bytes: &[u8], sequence: u64, epoch: u64) -> Option<(RecordHeader, &[u8])> {
    parse_if(bytes, |header| {
        header.sequence == sequence && header.epoch == epoch
    })
}

/// The record at the front of `bytes`, if it is valid and has this epoch and a later sequence.
pub fn parse_later(bytes: &[u8], sequence: u64, epoch: u64) -> Option<RecordHeader> {
    let is_later = |header: &RecordHeader| header.sequence > sequence && header.epoch == epoch;
    parse_if(bytes, is_later).map(|(header, _)| header)
}

fn parse_if(
    bytes: &[u8],
    is_expected: impl FnOnce(&RecordHeader) -> bool,
) -> Option<(RecordHeader, &[u8])> {
    let (header, checksum) = RecordHeader::decode(bytes).ok()??;
    let is_expected = is_expected(&header);
    let is_range = header
        .range
        .offset
        .checked_add(header.range.length)
        .is_some();
    if !is_expected || !is_range || header.payload_bytes() > PAYLOAD_BYTES_MAX {
        return None;
    }
    let payload = bytes.get(HEADER_BYTES as usize..)?;
    let payload = payload.get(..header.payload_bytes() as usize)?;
    let is_intact = crc32c_append(crc32c(&header.fields()), payload) == checksum;
    is_intact.then_some((header, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A start page of format 1, up to where its zeroes begin.
    const START_FIXTURE: [u8; 96] = [
        0x53, 0x43, 0x52, 0x46, 0x4a, 0x4e, 0x4c, 0x01, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x06, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc9, 0x99,
        0x75, 0x88, 0x00, 0x00, 0x00, 0x00,
    ];

    /// A record of format 1.
    const RECORD_FIXTURE: [u8; 64] = [
        0x63, 0x72, 0x6a, 0x6c, 0x26, 0xd4, 0xfd, 0x45, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x46, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03,
        0x00, 0x00, 0x00, 0x68, 0x65, 0x6c, 0x6c, 0x6f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00,
    ];

    fn start() -> StartPage {
        StartPage {
            number: 3,
            epoch: 4,
            tail: LogPosition {
                offset: 16,
                sequence: 6,
            },
            ring_bytes: 64 << 10,
            disk_bytes: 1 << 20,
            origin: Origin {
                lease: Some(u32::MAX),
                restores: Some(2),
                below: Some(u32::MAX),
                disk: Some(1),
            },
        }
    }

    fn header() -> RecordHeader {
        RecordHeader {
            sequence: 9,
            epoch: 4,
            range: ByteRange::new(70, 5),
            kind: ChangeKind::Write,
            durable_distance: 3,
        }
    }

    #[test]
    fn a_start_page_and_a_record_have_format_1() {
        let page = start().encode();
        assert_eq!(page[..START_FIXTURE.len()], START_FIXTURE);
        assert!(page[START_FIXTURE.len()..].iter().all(|byte| *byte == 0));
        let mut record = Vec::new();
        header().encode(b"hello", &mut record);
        assert_eq!(record, RECORD_FIXTURE);
    }

    #[test]
    fn a_start_page_of_a_newer_format_is_refused_by_its_number() {
        let mut newer = start().encode();
        newer[7] = FORMAT + 1;
        let checksum = u64::from(crc32c(&newer[..CHECKED_BYTES]));
        newer[CHECKED_BYTES..CHECKED_BYTES + 8].copy_from_slice(&checksum.to_le_bytes());
        let refused = StartPage::decode(&newer).expect_err("it is newer");
        assert_eq!(
            refused.to_string(),
            "it has format 2; this build reads format 1"
        );
    }

    #[test]
    fn a_start_page_round_trips_and_a_flipped_bit_is_detected() {
        let start = start();
        let page = start.encode();
        assert_eq!(StartPage::decode(&page), Ok(Some(start)));
        for bit in 0..START_FIXTURE.len() * 8 {
            let mut page = page.clone();
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(StartPage::decode(&page), Ok(None), "bit {bit}");
        }
    }

    #[test]
    fn a_record_round_trips_and_a_flipped_bit_is_detected() {
        let header = header();
        assert_eq!((header.durable(40), header.durable(31)), (Some(8), None));
        let mut record = Vec::new();
        header.encode(b"hello", &mut record);
        assert_eq!(record.len() as u64, header.record_bytes());
        assert_eq!(parse(&record, 9, 4), Some((header, &b"hello"[..])));
        assert_eq!(parse(&record, 10, 4), None);
        assert_eq!(parse_later(&record, 8, 4), Some(header));
        assert_eq!(
            (parse_later(&record, 9, 4), parse_later(&record, 8, 5)),
            (None, None)
        );
        assert_eq!(parse(&record, 9, 5), None);
        for bit in 0..(HEADER_BYTES as usize + 5) * 8 {
            let mut record = record.clone();
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&record, 9, 4), None, "bit {bit}");
        }
        assert_eq!(parse(&record[..52], 9, 4), None);
    }
}
