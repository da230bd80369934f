//! [`Binary`]: the binary header of 4096 bytes and its two copies (LUKS2 specification, 2.1).
//!
//! ```text
//!   0 magic[6] version[2]          "LUKS\xba\xbe", of the second copy "SKUL\xba\xbe"; 2
//!   8 header size                  with its JSON area, in bytes
//!  16 sequence number              the newer copy counts
//!  24 label[48]
//!  72 checksum algorithm[32]       "sha256"
//! 104 salt[64]                     differs in each copy and with each write
//! 168 uuid[40]
//! 208 subsystem[48]
//! 256 offset                       of this copy: a copy elsewhere is invalid
//! 264 0[184]
//! 448 checksum[64]                 of all of the copy, with 0 here
//! 512 0[3584]
//! ```
//!
//! Numbers are big-endian. The JSON area follows: text that ends with a zero byte and is padded
//! with zeroes.

use sha2::{Digest, Sha256};
use world::Random;

use super::HeaderError;

/// The length of a binary header, in bytes.
pub const BINARY_BYTES: usize = 4096;

/// The allowed lengths of a binary header with its JSON area, in bytes.
pub(super) const HEADER_BYTES: [u64; 9] = [
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
];

const FIRST_MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
const SECOND_MAGIC: &[u8; 6] = b"SKUL\xba\xbe";
const VERSION: u16 = 2;
const SALT: std::ops::Range<usize> = 104..168;
pub(super) const CHECKSUM: std::ops::Range<usize> = 448..512;
const ALGORITHM: &str = "sha256";

/// One of the two copies of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// The copy at the beginning of the disk.
    First,
    /// The copy after the first one.
    Second,
}

/// The content of one copy, without what differs between the copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// The length of a copy with its JSON area, in bytes.
    pub header_bytes: u64,
    /// The number of the change, which grows with each.
    pub sequence: u64,
    /// The UUID of the disk.
    pub uuid: [u8; 40],
    /// The label of the disk, for display.
    pub label: [u8; 48],
    /// The second label of the disk, for display.
    pub subsystem: [u8; 48],
    /// The JSON text, without the padding.
    pub json: String,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

pub(super) fn checksum(copy: &[u8]) -> [u8; 32] {
    let hash = Sha256::new()
        .chain_update(&copy[..CHECKSUM.start])
        .chain_update([0; CHECKSUM.end - CHECKSUM.start])
        .chain_update(&copy[CHECKSUM.end..]);
    hash.finalize().into()
}

impl Copy {
    pub(super) fn magic(self) -> &'static [u8; 6] {
        match self {
            Self::First => FIRST_MAGIC,
            Self::Second => SECOND_MAGIC,
        }
    }

    /// The offset of the copy if each copy has `header_bytes` bytes.
    pub fn offset(self, header_bytes: u64) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => header_bytes,
        }
    }
}

impl Binary {
    /// Reads a copy from the beginning of a disk.
    ///
    /// # Errors
    /// [`HeaderError`] of this copy.
    fn read_at(disk: &[u8], copy: Copy, offset: usize) -> Result<Self, HeaderError> {
        let fixed = disk.get(offset..).unwrap_or_default();
        if fixed.len() < BINARY_BYTES || !fixed.starts_with(copy.magic()) {
            return Err(HeaderError::None);
        }
        let version = u16::from_be_bytes(array(fixed, 6));
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let header_bytes = u64::from_be_bytes(array(fixed, 8));
        let is_there = u64::from_be_bytes(array(fixed, 256));
        if !HEADER_BYTES.contains(&header_bytes)
            || copy.offset(header_bytes) != offset as u64
            || is_there != offset as u64
        {
            return Err(HeaderError::Misplaced {
                offset: offset as u64,
            });
        }
        // The length is at most 4 MiB.
        let Some(whole) = fixed.get(..header_bytes as usize) else {
            return Err(HeaderError::Misplaced {
                offset: offset as u64,
            });
        };
        let algorithm: [u8; 32] = array(whole, 72);
        let is_known = algorithm.starts_with(ALGORITHM.as_bytes())
            && algorithm[ALGORITHM.len()..].iter().all(|byte| *byte == 0);
        let mut expected = [0; CHECKSUM.end - CHECKSUM.start];
        expected[..32].copy_from_slice(&checksum(whole));
        if !is_known || whole[CHECKSUM] != expected {
            return Err(HeaderError::Checksum {
                offset: offset as u64,
            });
        }
        let area = &whole[BINARY_BYTES..];
        let end = area.iter().position(|byte| *byte == 0);
        let json = end.map_or(area, |end| &area[..end]);
        if end.is_none() || area[json.len()..].iter().any(|byte| *byte != 0) {
            return Err(HeaderError::Json("the text has no end".to_owned()));
        }
        let json = String::from_utf8(json.to_vec());
        Ok(Self {
            header_bytes,
            sequence: u64::from_be_bytes(array(whole, 16)),
            uuid: array(whole, 168),
            label: array(whole, 24),
            subsystem: array(whole, 208),
            json: json.map_err(|error| HeaderError::Json(error.to_string()))?,
        })
    }

    /// Reads the newer valid copy. Also returns the copy that has to be repaired, if any.
    ///
    /// # Errors
    /// The error of the first copy if none is valid; [`HeaderError::Inconsistent`] if both are
    /// valid and differ.
    pub fn read(disk: &[u8]) -> Result<(Self, Option<Copy>), HeaderError> {
        let first = Self::read_at(disk, Copy::First, 0);
        let places: &[u64] = match &first {
            Ok(first) => &[first.header_bytes],
            Err(_) => &HEADER_BYTES,
        };
        let second = places.iter().find_map(|offset| {
            let at = usize::try_from(*offset).ok()?;
            Self::read_at(disk, Copy::Second, at).ok()
        });
        match (first, second) {
            (Ok(first), None) => Ok((first, Some(Copy::Second))),
            // One copy is left from another disk that lay there before.
            (Ok(first), Some(second)) if first.uuid != second.uuid => {
                Err(HeaderError::Inconsistent("uuid"))
            }
            (Ok(first), Some(second)) if first.sequence > second.sequence => {
                Ok((first, Some(Copy::Second)))
            }
            (Ok(first), Some(second)) if first.sequence < second.sequence => {
                Ok((second, Some(Copy::First)))
            }
            (Ok(first), Some(second)) if first == second => Ok((first, None)),
            (Ok(_), Some(_)) => Err(HeaderError::Inconsistent("content")),
            (Err(_), Some(second)) => Ok((second, Some(Copy::First))),
            (Err(error), None) => Err(error),
        }
    }

    /// The bytes of a copy. The JSON fits, as was checked before.
    pub fn write(&self, copy: Copy, random: &dyn Random) -> Vec<u8> {
        let mut bytes = vec![0; self.header_bytes as usize];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, copy.magic());
        put(6, &VERSION.to_be_bytes());
        put(8, &self.header_bytes.to_be_bytes());
        put(16, &self.sequence.to_be_bytes());
        put(24, &self.label);
        put(72, ALGORITHM.as_bytes());
        put(168, &self.uuid);
        put(208, &self.subsystem);
        put(256, &copy.offset(self.header_bytes).to_be_bytes());
        put(BINARY_BYTES, self.json.as_bytes());
        random.fill(&mut bytes[SALT]);
        let checksum = checksum(&bytes);
        bytes[CHECKSUM][..checksum.len()].copy_from_slice(&checksum);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use world::simulated::SimulatedRandom;

    use super::*;

    fn binary(sequence: u64) -> Binary {
        Binary {
            header_bytes: 16 << 10,
            sequence,
            uuid: [b'u'; 40],
            label: [b'l'; 48],
            subsystem: [0; 48],
            json: "{\"a\":1}".to_owned(),
        }
    }

    fn disk(first: u64, second: u64) -> Vec<u8> {
        let random = SimulatedRandom::new(1);
        let mut disk = binary(first).write(Copy::First, &random);
        disk.extend(binary(second).write(Copy::Second, &random));
        disk
    }

    #[test]
    fn the_newer_copy_is_read_and_the_other_one_has_to_be_repaired() {
        for (first, second, expected) in [
            (3, 3, (3, None)),
            (4, 3, (4, Some(Copy::Second))),
            (3, 4, (4, Some(Copy::First))),
        ] {
            let (read, repair) = Binary::read(&disk(first, second)).expect("valid");
            assert_eq!(read, binary(expected.0));
            assert_eq!(repair, expected.1);
        }
    }

    #[test]
    fn one_flipped_bit_invalidates_a_copy_and_two_invalidate_the_header() {
        let whole = disk(7, 7);
        for at in (0..16 << 10).step_by(61) {
            let mut disk = whole.clone();
            disk[at] ^= 1 << (at % 8);
            let (read, repair) = Binary::read(&disk).expect("the second is valid");
            assert_eq!((read, repair), (binary(7), Some(Copy::First)), "byte {at}");
            disk[(16 << 10) + at] ^= 1;
            Binary::read(&disk).expect_err("none is valid");
        }
    }

    #[test]
    fn two_valid_copies_that_differ_are_refused() {
        let random = SimulatedRandom::new(1);
        let mut other = binary(7);
        other.json = "{\"a\":2}".to_owned();
        let mut both = binary(7).write(Copy::First, &random);
        both.extend(other.write(Copy::Second, &random));
        let refused = Binary::read(&both).expect_err("they disagree");
        assert_eq!(refused, HeaderError::Inconsistent("content"));
        other.uuid = [b'v'; 40];
        other.sequence = 8;
        both.truncate(16 << 10);
        both.extend(other.write(Copy::Second, &random));
        let refused = Binary::read(&both).expect_err("they are of two disks");
        assert_eq!(refused, HeaderError::Inconsistent("uuid"));
    }

    #[test]
    fn a_copy_at_another_offset_is_not_found() {
        let random = SimulatedRandom::new(1);
        let second = binary(7).write(Copy::Second, &random);
        let mut disk = vec![0; 32 << 10];
        disk.extend(second);
        assert_eq!(Binary::read(&disk), Err(HeaderError::None));
        assert_eq!(Binary::read(&[]), Err(HeaderError::None));
        assert_eq!(Binary::read(b"LUKS\xba\xbe\0\x01"), Err(HeaderError::None));
    }
}
