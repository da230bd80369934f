//! The file's first two pages, and where what lies.
//!
//! ```text
//!      0 ┌───────────────┬───────────────┐
//!        │ magic         │ cluster       │   16 bytes each, the first one with zeroes behind it
//!     32 ├───────┬───────┼───────────────┤
//!        │ slots │ CRC   │ zeroes        │   how many; CRC-32C of the rest
//!   4096 ├───────┴───────┴───────────────┤
//!        │ the same once more            │
//!   8192 ├───────────────────────────────┤
//!        │ directory: 32 bytes a slot    │   to a whole page
//!        ├───────────────────────────────┤
//!        │ slots of 4 KiB                │
//!        └───────────────────────────────┘
//! ```

use base::checksum::crc32c;
use base::codec::{Reader, Writer as _};

use super::entry::ENTRY_BYTES;

/// A slot's length, in bytes, and a page's.
pub const SLOT_BYTES: usize = 4096;

const MAGIC: &[u8; 16] = b"SCRCACHE01\0\0\0\0\0\0";
const HEAD_BYTES: usize = 40;

/// Where the directory begins.
pub const DIRECTORY_AT: u64 = 2 * SLOT_BYTES as u64;

/// Entries in a page of the directory.
pub const PAGE_ENTRIES: usize = SLOT_BYTES / ENTRY_BYTES;

/// So many slots a file may have: 8 TiB.
const SLOTS_MAX: u64 = 1 << 31;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Whose blocks it has.
    pub cluster: [u8; 16],
    /// How many slots.
    pub slots: u32,
}

impl Head {
    /// Of a file of at most `bytes`; none, if that is too short for a slot.
    pub fn of_size(cluster: [u8; 16], bytes: u64) -> Option<Self> {
        let room = bytes.checked_sub(DIRECTORY_AT + SLOT_BYTES as u64)?;
        let slots = room / (SLOT_BYTES + ENTRY_BYTES) as u64;
        let slots = u32::try_from(slots.min(SLOTS_MAX)).ok()?;
        (slots > 0).then_some(Self { cluster, slots })
    }

    /// How many pages the directory has.
    pub fn directory_pages(&self) -> usize {
        (self.slots as usize).div_ceil(PAGE_ENTRIES)
    }

    /// Where a slot lies.
    pub fn slot_at(&self, slot: u32) -> u64 {
        let directory = (self.directory_pages() * SLOT_BYTES) as u64;
        DIRECTORY_AT + directory + u64::from(slot) * SLOT_BYTES as u64
    }

    /// How long the file is, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.slot_at(self.slots)
    }

    /// Both pages.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(SLOT_BYTES);
        page.put_bytes(MAGIC);
        page.put_bytes(&self.cluster);
        page.put_u32(self.slots);
        let checksum = crc32c(&page);
        page.put_u32(checksum);
        page.resize(SLOT_BYTES, 0);
        page.repeat(2)
    }

    /// What either of two pages says, if one is whole.
    pub fn decode(pages: &[u8]) -> Option<Self> {
        pages.chunks(SLOT_BYTES).find_map(Self::decode_page)
    }

    /// Whether pages are those of a cache, damaged or not.
    pub fn is_of_cache(pages: &[u8]) -> bool {
        let mut both = pages.chunks(SLOT_BYTES);
        both.any(|page| page.starts_with(MAGIC))
    }

    fn decode_page(page: &[u8]) -> Option<Self> {
        let head = page.get(..HEAD_BYTES)?;
        let mut reader = Reader::new(head);
        let magic: [u8; 16] = reader.array().ok()?;
        let cluster = reader.array().ok()?;
        let slots = reader.u32().ok()?;
        let checksum = reader.u32().ok()?;
        let is_whole = magic == *MAGIC && checksum == crc32c(&head[..HEAD_BYTES - 4]);
        let is_possible = slots > 0 && u64::from(slots) <= SLOTS_MAX;
        (is_whole && is_possible).then_some(Self { cluster, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_from_either_page_and_no_byte_may_differ() {
        let head = Head::of_size([7; 16], 10 << 30).expect("it is long enough");
        let pages = head.encode();
        assert_eq!(pages.len(), 2 * SLOT_BYTES);
        assert_eq!(Head::decode(&pages), Some(head));
        for at in 0..HEAD_BYTES {
            let mut one = pages.clone();
            one[at] ^= 1;
            assert_eq!(Head::decode(&one), Some(head), "the other one is whole");
            one[SLOT_BYTES + at] ^= 1;
            assert_eq!(Head::decode(&one), None, "byte {at}");
        }
        assert_eq!(Head::decode(&pages[..HEAD_BYTES - 1]), None);
    }

    #[test]
    fn a_file_is_no_longer_than_it_may_be_and_is_used_well() {
        for bytes in [20 << 10, 1 << 20, 123_456_789, 10 << 30] {
            let head = Head::of_size([0; 16], bytes).expect("it is long enough");
            assert!(head.file_bytes() <= bytes, "{bytes}");
            assert!(head.file_bytes() + 3 * SLOT_BYTES as u64 > bytes, "{bytes}");
        }
        // The paper's blocks cost no twice the room: 0.8 % more.
        let head = Head::of_size([0; 16], 10 << 30).expect("it is long enough");
        assert!(u64::from(head.slots) * 4096 > (10 << 30) / 1000 * 991);
        assert_eq!(Head::of_size([0; 16], 12 << 10), None);
    }
}
