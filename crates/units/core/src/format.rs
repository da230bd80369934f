//! What the formats of segments on all kinds of units share: errors, checks, and names by
//! serial.

use base::codec::OutOfBytes;
use base::{CopysetId, SegmentId};

/// Minimum size of a slot, in bytes: a sector. Sizes are whole sectors.
pub const SLOT_BYTES_MIN: u32 = 512;

/// Maximum size of a slot, in bytes: 16 times the largest block.
pub const SLOT_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of slots of a segment: slots are numbered by 16 bits.
pub const SLOTS_MAX: u32 = 1 << 16;

/// Why bytes cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There are too few bytes.
    #[error("it is too short: {0}")]
    Short(#[from] OutOfBytes),
    /// The first bytes are not those of the format.
    #[error("the first bytes are not those of the format")]
    Magic,
    /// It was written by a newer Scree.
    #[error("it has format {found}; this program reads formats up to {known}")]
    Version {
        /// The version that was found.
        found: u16,
        /// The newest version that this program reads.
        known: u16,
    },
    /// Bits have changed.
    #[error("a checksum is {found:08x} and should be {expected:08x}")]
    Checksum {
        /// The stored checksum.
        found: u32,
        /// The checksum of the stored bytes.
        expected: u32,
    },
    /// A field has an invalid value.
    #[error("{field} is {value}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// The error of a field with an invalid value.
pub fn wrong(field: &'static str, value: impl Into<u64>) -> FormatError {
    FormatError::Value {
        field,
        value: value.into(),
    }
}

/// Compares a stored checksum with that of the stored bytes.
///
/// # Errors
/// [`FormatError::Checksum`], if they differ.
pub fn check(found: u32, expected: u32) -> Result<(), FormatError> {
    match found == expected {
        true => Ok(()),
        false => Err(FormatError::Checksum { found, expected }),
    }
}

/// Whether a slot size is valid.
#[must_use]
pub fn is_slot_size(slot_bytes: u32) -> bool {
    (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes)
        && slot_bytes.is_multiple_of(SLOT_BYTES_MIN)
}

/// Name of a segment's object. The serial comes first, so that segments are listed in the order
/// of their creation.
#[must_use]
pub fn name_of(segment: SegmentId) -> String {
    let (serial, copyset) = (segment.serial(), segment.copyset().number());
    format!("{serial:09x}-{copyset:03x}")
}

/// A string that sorts before the names of all segments with this serial or a higher one, and
/// behind all others.
#[must_use]
pub fn name_before(serial: u64) -> String {
    format!("{serial:09x}")
}

/// The segment whose object is named `name`, if that is the name of one. Each has one spelling
/// only.
#[must_use]
pub fn segment_of(name: &str) -> Option<SegmentId> {
    let (serial, copyset) = name.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let copyset = CopysetId::new(u16::try_from(number(copyset)?).ok()?)?;
    let segment = SegmentId::new(copyset, number(serial)?)?;
    (name_of(segment) == name).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_sort_by_serial() {
        let segment = |bits| SegmentId::from_bits(bits).expect("48 bits");
        let known = segment(0x0abc_1234_5678);
        assert_eq!(name_of(known), "c12345678-0ab");
        for bits in [1, 0x0abc_1234_5678, (1 << 48) - 1] {
            let name = name_of(segment(bits));
            assert_eq!(segment_of(&name), Some(segment(bits)), "{name}");
        }
        for name in [
            "",
            "leases",
            "1-1",
            "c12345678-",
            "c1234567-0ab",
            "C12345678-0ab",
            "000000001-1000",
            "c12345678-0ab.tmp",
            "+12345678-0ab",
        ] {
            assert_eq!(segment_of(name), None, "{name}");
        }
        assert!(name_before(0xc_1234_5678) < name_of(known));
        assert!(name_before(0xc_1234_5679) > name_of(known));
    }

    #[test]
    fn slots_are_whole_sectors() {
        for size in [512, 4096, 1 << 20] {
            assert!(is_slot_size(size), "{size}");
        }
        for size in [0, 1, 4097, (1 << 20) + 512] {
            assert!(!is_slot_size(size), "{size}");
        }
    }
}
