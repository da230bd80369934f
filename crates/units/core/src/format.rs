//! What the formats of segments have in common, wherever these lie: why bytes are not
//! what they should be, what is checked of them, and names by serial.

use base::codec::OutOfBytes;
use base::{CopysetId, SegmentId};

/// The smallest slot, in bytes: a sector. Sizes are whole sectors.
pub const SLOT_BYTES_MIN: u32 = 512;

/// The largest slot, in bytes: 1 MiB, 16 times the largest block.
pub const SLOT_BYTES_MAX: u32 = 1 << 20;

/// A slot is numbered by 16 bits.
pub const SLOTS_MAX: u32 = 1 << 16;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There are too few of them.
    #[error("it is too short: {0}")]
    Short(#[from] OutOfBytes),
    /// It is something else.
    #[error("it does not begin as it should")]
    Magic,
    /// It was written by a newer Scree.
    #[error("it has format {found}; this program reads formats up to {known}")]
    Version {
        /// The version that was found.
        found: u16,
        /// The newest version that is known here.
        known: u16,
    },
    /// Bits have changed.
    #[error("a checksum is {found:08x} and should be {expected:08x}")]
    Checksum {
        /// The checksum that is stored.
        found: u32,
        /// The checksum of what is stored.
        expected: u32,
    },
    /// A number that no writer writes.
    #[error("{field} is {value}")]
    Value {
        /// Which number.
        field: &'static str,
        /// What it is.
        value: u64,
    },
}

/// A number that no writer writes.
pub fn wrong(field: &'static str, value: impl Into<u64>) -> FormatError {
    FormatError::Value {
        field,
        value: value.into(),
    }
}

/// Compares the checksum that is stored with that of what is stored.
///
/// # Errors
/// [`FormatError::Checksum`], if they differ.
pub fn check(found: u32, expected: u32) -> Result<(), FormatError> {
    match found == expected {
        true => Ok(()),
        false => Err(FormatError::Checksum { found, expected }),
    }
}

/// Whether slots may have that size.
#[must_use]
pub fn is_slot_size(slot_bytes: u32) -> bool {
    (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes)
        && slot_bytes.is_multiple_of(SLOT_BYTES_MIN)
}

/// What a segment's object is called: its serial first, so that segments that were made
/// one after the other are listed one after the other.
#[must_use]
pub fn name_of(segment: SegmentId) -> String {
    let (serial, copyset) = (segment.serial(), segment.copyset().number());
    format!("{serial:09x}-{copyset:03x}")
}

/// What is before the names of all segments with this serial or a higher one, and behind
/// those of all others.
#[must_use]
pub fn name_before(serial: u64) -> String {
    format!("{serial:09x}")
}

/// The segment whose object is called `name`, if it is a segment's. Each has one
/// spelling only.
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
    fn a_segment_is_found_again_by_its_name_and_names_are_in_order() {
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
