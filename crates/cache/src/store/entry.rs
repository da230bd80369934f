//! [`Entry`]: the directory's entry for a slot.
//!
//! ```text
//!   0 ┌───────────────┬───────────────┐
//!     │ location      │ tag           │   segment and slot; 16 bytes
//!  24 ├───────┬───┬───┼───────────────┘
//!     │ CRC   │prt│are│ zeroes        2   of the rest, and of the slot's content
//!  32 └───────┴───┴───┘
//! ```
//!
//! An entry of zeroes belongs to an empty slot. The area's number is that of its
//! [`AreaKind`] plus one; 4 is the image area, for a pinned entry.

use base::Location;
use base::checksum::{crc32c, crc32c_append};
use base::codec::{OutOfBytes, Reader};

use super::head::SLOT_BYTES;

/// Length of an entry in bytes.
pub const ENTRY_BYTES: usize = 32;

/// The id of a content: a block, or a 4 KiB part of a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id {
    /// The block's location on units, which names one content for ever.
    pub location: Location,
    /// The number of the part.
    pub part: u8,
}

/// An id for tests.
#[cfg(test)]
pub fn id(number: u64) -> Id {
    Id {
        location: Location::from_bits(number),
        part: 0,
    }
}

/// The kind of area that a block is kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AreaKind {
    /// A map page.
    Metadata,
    /// A block of a base image.
    Image,
    /// Any other block.
    Active,
}

impl AreaKind {
    /// All of them, by their numbers.
    pub const ALL: [Self; 3] = [Self::Metadata, Self::Image, Self::Active];

    /// The area's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Image => "image",
            Self::Active => "active",
        }
    }
}

/// The area number of a pinned entry.
const PINNED: u8 = 4;

/// A block in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub id: Id,
    pub tag: [u8; 16],
    pub area: AreaKind,
    /// Whether it is never evicted; only blocks of images.
    pub is_pinned: bool,
    pub checksum: u32,
}

impl Entry {
    /// The entry of this content.
    pub fn of(id: Id, tag: [u8; 16], area: AreaKind, content: &[u8]) -> Self {
        let mut entry = Self {
            id,
            tag,
            area,
            is_pinned: false,
            checksum: 0,
        };
        entry.checksum = entry.sum(content);
        entry
    }

    /// The entry of the same content in another area, or pinned. The checksum stays valid for
    /// the same content only: the checksums of two entries differ by a constant for all contents.
    pub fn kept_as(&self, area: AreaKind, is_pinned: bool) -> Self {
        let mut entry = Self {
            area,
            is_pinned,
            ..*self
        };
        let zeroes = [0; SLOT_BYTES];
        entry.checksum = self.checksum ^ self.sum(&zeroes) ^ entry.sum(&zeroes);
        entry
    }

    /// Whether both are entries of the same content.
    pub fn is_same(&self, other: &Self) -> bool {
        self.kept_as(other.area, other.is_pinned) == *other
    }

    fn sum(&self, content: &[u8]) -> u32 {
        let bytes = self.with_checksum(0);
        crc32c_append(crc32c(&bytes), content)
    }

    /// Whether a slot's content matches the checksum.
    pub fn is_of(&self, content: &[u8]) -> bool {
        self.checksum == self.sum(content)
    }

    fn with_checksum(&self, checksum: u32) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.id.location.bits().to_le_bytes());
        bytes[8..24].copy_from_slice(&self.tag);
        bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
        bytes[28] = self.id.part;
        // Not zero, so that no entry is all zeroes.
        bytes[29] = match self.is_pinned {
            true => PINNED,
            false => self.area as u8 + 1,
        };
        bytes
    }

    /// Encodes the entry for the directory.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        self.with_checksum(self.checksum)
    }

    /// Decodes an entry; `None` for an empty slot or an invalid entry.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let mut read = || -> Result<_, OutOfBytes> {
            let (location, tag, checksum) = (reader.u64()?, reader.array()?, reader.u32()?);
            let (part, area, rest) = (reader.u8()?, reader.u8()?, reader.array::<2>()?);
            Ok((location, tag, checksum, part, area, rest))
        };
        let (location, tag, checksum, part, area, rest) = read().ok()?;
        let is_pinned = area == PINNED;
        let area = match is_pinned {
            true => AreaKind::Image,
            false => *AreaKind::ALL.get(usize::from(area.checked_sub(1)?))?,
        };
        (rest == [0; 2]).then_some(Self {
            id: Id {
                location: Location::from_bits(location),
                part,
            },
            tag,
            area,
            is_pinned,
            checksum,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_round_trips_and_matches_its_content_only() {
        let id = Id {
            location: Location::from_bits(0x1234_5678_9abc_def0),
            part: 3,
        };
        let content = [5; 4096];
        let entry = Entry::of(id, [9; 16], AreaKind::Image, &content);
        for entry in [entry, entry.kept_as(AreaKind::Image, true)] {
            let bytes = entry.encode();
            assert_eq!(bytes.len(), ENTRY_BYTES);
            assert_eq!(Entry::decode(&bytes), Some(entry));
            assert!(entry.is_of(&content) && !entry.is_of(&[6; 4096]));
            for bit in 0..ENTRY_BYTES * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                let read = Entry::decode(&flipped);
                assert!(read.is_none_or(|read| !read.is_of(&content)), "bit {bit}");
            }
        }
        assert_eq!(Entry::decode(&[0; ENTRY_BYTES]), None);
    }

    #[test]
    fn a_moved_entry_matches_the_same_content_and_no_other() {
        let id = id(7);
        let content = [5; 4096];
        let entry = Entry::of(id, [9; 16], AreaKind::Active, &content);
        let pinned = entry.kept_as(AreaKind::Image, true);
        assert!(pinned.is_of(&content) && !pinned.is_of(&[6; 4096]));
        assert!(pinned != entry && pinned.is_same(&entry));
        let other = Entry::of(id, [9; 16], AreaKind::Active, &[6; 4096]);
        assert!(!pinned.is_same(&other));
        assert!(!other.kept_as(AreaKind::Image, true).is_of(&content));
    }
}
