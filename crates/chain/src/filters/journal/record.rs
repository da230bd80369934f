//! The journal's bytes: two pages that say where it begins, and records
//! (docs/internals/filter-formats.md).

use base::checksum::{crc32c, crc32c_append};
use base::codec::{OutOfBytes, Reader, Writer};

use super::origin::Origin;

/// Where the ring begins in the file: behind two pages for [`Start`].
pub const RING_OFFSET: u64 = 2 * PAGE_BYTES;

/// A page's length.
pub const PAGE_BYTES: u64 = 4096;

/// Of a page, and of those of before: how many words there are before its checksum.
const START_MAGIC: u64 = 0x3474_7261_7473_656a;
const START_MAGICS: [(u64, usize); 4] = [
    (0x7472_6174_7365_656a, 7),
    (0x3274_7261_7473_656a, 8),
    (0x3374_7261_7473_656a, 10),
    (START_MAGIC, 11),
];
const RECORD_MAGIC: u32 = 0x6c6a_7263;

/// Records begin at multiples of it.
pub const ALIGNMENT: u64 = 16;

/// A record without its payload.
pub const HEADER_BYTES: u64 = 48;

/// The longest payload of one record: a longer write is several.
pub const PAYLOAD_BYTES_MAX: u64 = 256 << 10;

/// No journal lives to count so far: sums of two such numbers fit 64 bits.
const NUMBER_MAX: u64 = 1 << 62;

/// Where a journal begins, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Of two pages, the one with the higher number counts.
    pub number: u64,
    /// Grows with each opening: records of another one do not count.
    pub epoch: u64,
    /// The position of the first record.
    pub tail: u64,
    /// Its sequence.
    pub sequence: u64,
    /// The ring's length, in bytes.
    pub ring_bytes: u64,
    /// The size of the disk that it is of.
    pub size_bytes: u64,
    /// Whose.
    pub origin: Origin,
}

/// A number that may be missing, as a word.
fn word_of<T: Into<u64>>(number: Option<T>) -> u64 {
    number.map_or(0, |number| number.into() + 1)
}

impl Start {
    /// As a page.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE_BYTES as usize);
        page.put_u64(START_MAGIC);
        for word in [
            self.number,
            self.epoch,
            self.tail,
            self.sequence,
            self.ring_bytes,
            self.size_bytes,
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

    /// What a page says, if it is whole.
    pub fn decode(page: &[u8]) -> Option<Self> {
        let words = Self::words_of(page)?;
        let checked = page.get(..8 * words)?;
        let mut reader = Reader::new(page);
        let mut read = [0; 12];
        for word in &mut read[..=words] {
            *word = reader.u64().ok()?;
        }
        if read[words] != u64::from(crc32c(checked)) {
            return None;
        }
        read[words..].fill(0);
        let [_, number, epoch, tail, sequence, ring_bytes, size_bytes, ..] = read;
        let [.., lease, restores, below, disk, _] = read;
        let small = |word: u64| word.checked_sub(1).map(u32::try_from).transpose();
        let start = Self {
            number,
            epoch,
            tail,
            sequence,
            ring_bytes,
            size_bytes,
            origin: Origin {
                lease: small(lease).ok()?,
                restores: restores.checked_sub(1),
                below: small(below).ok()?,
                disk: small(disk).ok()?,
            },
        };
        (ring_bytes > 0).then_some(start)
    }

    /// How many words a page has before its checksum, by the magic number that it begins with.
    fn words_of(page: &[u8]) -> Option<usize> {
        let mut magics = START_MAGICS.iter();
        let magic = magics.find(|(magic, _)| page.starts_with(&magic.to_le_bytes()));
        magic.map(|(_, words)| *words)
    }

    /// How many bytes of a page its checksum is of.
    pub fn checked_bytes(page: &[u8]) -> usize {
        8 * Self::words_of(page).unwrap_or(START_MAGICS[0].1)
    }

    /// Whether its numbers can be those of a journal: one that is whole may be made, or be
    /// wrong where its checksum is not.
    pub fn is_sound(&self) -> bool {
        let numbers = [self.number, self.epoch, self.tail, self.sequence];
        let are_small = numbers.iter().all(|number| *number <= NUMBER_MAX);
        are_small
            && self.ring_bytes <= NUMBER_MAX
            && self.ring_bytes.is_multiple_of(ALIGNMENT)
            && self.tail.is_multiple_of(ALIGNMENT)
    }
}

/// What is done to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The payload is written.
    Write,
    /// It becomes zeroes.
    Zeroes {
        /// And may become a hole.
        may_punch: bool,
    },
}

/// A record without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Grows by one from record to record.
    pub sequence: u64,
    /// The opening that it was written in.
    pub epoch: u64,
    /// Where on the disk.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// What.
    pub kind: Kind,
    /// How far the end of what was durable lay behind the record when it was appended, plus
    /// 1, in units of [`ALIGNMENT`]; 0: that is not known.
    pub behind: u32,
}

impl Header {
    /// How many bytes of payload follow.
    pub fn payload_bytes(&self) -> u64 {
        match self.kind {
            Kind::Write => self.length,
            Kind::Zeroes { .. } => 0,
        }
    }

    /// How much of the ring the record takes.
    pub fn record_bytes(&self) -> u64 {
        (HEADER_BYTES + self.payload_bytes()).next_multiple_of(ALIGNMENT)
    }

    fn fields(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES as usize - 8);
        for word in [self.sequence, self.epoch, self.offset, self.length] {
            bytes.put_u64(word);
        }
        bytes.put_u32(match self.kind {
            Kind::Write => 0,
            Kind::Zeroes { may_punch: false } => 1,
            Kind::Zeroes { may_punch: true } => 2,
        });
        bytes.put_u32(self.behind);
        bytes
    }

    /// Up to where all was durable when it was appended at `position`, if that is known.
    pub fn durable(&self, position: u64) -> Option<u64> {
        let behind = u64::from(self.behind.checked_sub(1)?) * ALIGNMENT;
        position.checked_sub(behind)
    }

    /// Appends the record without its payload.
    pub fn encode_head(&self, payload: &[u8], into: &mut Vec<u8>) {
        let fields = self.fields();
        into.put_u32(RECORD_MAGIC);
        into.put_u32(crc32c_append(crc32c(&fields), payload));
        into.put_bytes(&fields);
    }

    /// Appends the record.
    pub fn encode(&self, payload: &[u8], into: &mut Vec<u8>) {
        let end = into.len() + self.record_bytes() as usize;
        self.encode_head(payload, into);
        into.put_bytes(payload);
        into.resize(end, 0);
    }

    /// Reads the fixed part, and the checksum of the whole.
    fn decode(bytes: &[u8]) -> Result<Option<(Self, u32)>, OutOfBytes> {
        let mut reader = Reader::new(bytes);
        let magic = reader.u32()?;
        let checksum = reader.u32()?;
        let (sequence, epoch) = (reader.u64()?, reader.u64()?);
        let (offset, length) = (reader.u64()?, reader.u64()?);
        let kind = match reader.u32()? {
            0 => Kind::Write,
            1 => Kind::Zeroes { may_punch: false },
            2 => Kind::Zeroes { may_punch: true },
            _ => return Ok(None),
        };
        let header = Self {
            sequence,
            epoch,
            offset,
            length,
            kind,
            behind: reader.u32()?,
        };
        Ok((magic == RECORD_MAGIC).then_some((header, checksum)))
    }
}

/// The record at the front of `bytes`, if it is whole and the one that is expected.
pub fn parse(bytes: &[u8], sequence: u64, epoch: u64) -> Option<(Header, &[u8])> {
    parse_if(bytes, |header| {
        header.sequence == sequence && header.epoch == epoch
    })
}

/// The record at the front of `bytes`, if it is whole and one that comes later in the same
/// opening.
pub fn parse_later(bytes: &[u8], sequence: u64, epoch: u64) -> Option<Header> {
    let is_later = |header: &Header| header.sequence > sequence && header.epoch == epoch;
    parse_if(bytes, is_later).map(|(header, _)| header)
}

fn parse_if(bytes: &[u8], is_it: impl FnOnce(&Header) -> bool) -> Option<(Header, &[u8])> {
    let (header, checksum) = Header::decode(bytes).ok()??;
    let is_next = is_it(&header);
    let is_range = header.offset.checked_add(header.length).is_some();
    if !is_next || !is_range || header.payload_bytes() > PAYLOAD_BYTES_MAX {
        return None;
    }
    let payload = bytes.get(HEADER_BYTES as usize..)?;
    let payload = payload.get(..header.payload_bytes() as usize)?;
    let is_whole = crc32c_append(crc32c(&header.fields()), payload) == checksum;
    is_whole.then_some((header, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_before_are_read() {
        for (magic, words) in START_MAGICS {
            let mut page = Vec::new();
            page.put_u64(magic);
            (1..words as u64).for_each(|word| page.put_u64(word));
            let checksum = crc32c(&page);
            page.put_u64(checksum.into());
            page.resize(PAGE_BYTES as usize, 0);
            let start = Start::decode(&page).expect("it is whole");
            let origin = Origin {
                lease: (words > 7).then_some(6),
                restores: (words > 8).then_some(7),
                below: (words > 9).then_some(8),
                disk: (words > 10).then_some(9),
            };
            assert_eq!(
                (start.number, start.size_bytes, start.origin),
                (1, 6, origin)
            );
            page[16] ^= 1;
            assert_eq!(Start::decode(&page), None);
        }
    }

    #[test]
    fn a_record_and_a_start_come_back_and_a_flipped_bit_is_seen() {
        let start = Start {
            number: 3,
            epoch: 4,
            tail: 5,
            sequence: 6,
            ring_bytes: 7,
            size_bytes: 8,
            origin: Origin {
                lease: Some(u32::MAX),
                restores: Some(2),
                below: Some(u32::MAX),
                disk: Some(1),
            },
        };
        let page = start.encode();
        assert_eq!(Start::decode(&page), Some(start));
        for bit in 0..96 * 8 {
            let mut page = page.clone();
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Start::decode(&page), None, "bit {bit}");
        }
        let header = Header {
            sequence: 9,
            epoch: 4,
            offset: 70,
            length: 5,
            kind: Kind::Write,
            behind: 3,
        };
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
