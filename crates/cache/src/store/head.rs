//! [`Head`]: the file's first two pages, and the layout of the file.
//!
//! ```text
//!      0 ┌───────────────┬───────────────┐
//!        │ magic, format │ cluster       │   "SCRCACHE", u64 = 1; 16 bytes
//!     32 ├───────┬───────┼───────────────┤
//!        │ slots │ CRC   │ zeroes        │   count u32; CRC-32C of the bytes before
//!   4096 ├───────┴───────┴───────────────┤
//!        │ the same again                │
//!   8192 ├───────────────────────────────┤
//!        │ directory: 32 bytes a slot    │   to a whole page
//!        ├───────────────────────────────┤
//!        │ slots of 4 KiB                │
//!        └───────────────────────────────┘
//! ```

use base::checksum::crc32c;
use base::codec::{Reader, Writer as _};

use super::entry::ENTRY_BYTES;

/// Length of a slot, and of a page, in bytes.
pub const SLOT_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"SCRCACHE";
const FORMAT: u64 = 1;
const HEAD_BYTES: usize = 40;

/// The offset of the directory, in bytes.
pub const DIRECTORY_AT: u64 = 2 * SLOT_BYTES as u64;

/// Entries in a page of the directory.
pub const PAGE_ENTRIES: usize = SLOT_BYTES / ENTRY_BYTES;

/// The most slots of a file: 8 TiB.
const SLOTS_MAX: u64 = 1 << 31;

/// The head of a cache's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The cluster whose blocks it holds.
    pub cluster: [u8; 16],
    /// The number of slots.
    pub slots: u32,
}

impl Head {
    /// The head of a file of at most `bytes`; `None` if that is too short for a slot.
    pub fn of_size(cluster: [u8; 16], bytes: u64) -> Option<Self> {
        let room = bytes.checked_sub(DIRECTORY_AT + SLOT_BYTES as u64)?;
        let slots = room / (SLOT_BYTES + ENTRY_BYTES) as u64;
        let slots = u32::try_from(slots.min(SLOTS_MAX)).ok()?;
        (slots > 0).then_some(Self { cluster, slots })
    }

    /// The number of pages of the directory.
    pub fn directory_pages(&self) -> usize {
        (self.slots as usize).div_ceil(PAGE_ENTRIES)
    }

    /// The offset of a slot, in bytes.
    pub fn slot_at(&self, slot: u32) -> u64 {
        let directory = (self.directory_pages() * SLOT_BYTES) as u64;
        DIRECTORY_AT + directory + u64::from(slot) * SLOT_BYTES as u64
    }

    /// The length of the file, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.slot_at(self.slots)
    }

    /// Encodes both pages.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(SLOT_BYTES);
        page.put_bytes(MAGIC);
        page.put_u64(FORMAT);
        page.put_bytes(&self.cluster);
        page.put_u32(self.slots);
        let checksum = crc32c(&page);
        page.put_u32(checksum);
        page.resize(SLOT_BYTES, 0);
        page.repeat(2)
    }

    /// Decodes the first intact page of the two.
    pub fn decode(pages: &[u8]) -> Option<Self> {
        pages.chunks(SLOT_BYTES).find_map(Self::decode_page)
    }

    /// Whether the pages are those of a cache of this format, damaged or not. A file of a
    /// newer format is not overwritten.
    pub fn is_of_cache(pages: &[u8]) -> bool {
        let mut both = pages.chunks(SLOT_BYTES);
        let format = FORMAT.to_le_bytes();
        both.any(|page| page.starts_with(MAGIC) && page[MAGIC.len()..].starts_with(&format))
    }

    fn decode_page(page: &[u8]) -> Option<Self> {
        let head = page.get(..HEAD_BYTES)?;
        let mut reader = Reader::new(head);
        let magic: [u8; 8] = reader.array().ok()?;
        let format = reader.u64().ok()?;
        let cluster = reader.array().ok()?;
        let slots = reader.u32().ok()?;
        let checksum = reader.u32().ok()?;
        let is_whole =
            magic == *MAGIC && format == FORMAT && checksum == crc32c(&head[..HEAD_BYTES - 4]);
        let is_possible = slots > 0 && u64::from(slots) <= SLOTS_MAX;
        (is_whole && is_possible).then_some(Self { cluster, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of a file of format 1 with 250 slots.
    const FIXTURE: [u8; 40] = [
        0x53, 0x43, 0x52, 0x43, 0x41, 0x43, 0x48, 0x45, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07, 0x07,
        0x07, 0x07, 0xfa, 0x00, 0x00, 0x00, 0xe6, 0x41, 0x9e, 0x0c,
    ];

    #[test]
    fn a_head_has_format_1_and_one_of_a_newer_format_is_refused() {
        let head = Head {
            cluster: [7; 16],
            slots: 250,
        };
        let pages = head.encode();
        for page in pages.chunks(SLOT_BYTES) {
            assert_eq!(page[..HEAD_BYTES], FIXTURE);
            assert!(page[HEAD_BYTES..].iter().all(|byte| *byte == 0));
        }
        assert!(Head::is_of_cache(&pages));
        let mut newer = pages;
        newer[8] = 2;
        newer[SLOT_BYTES + 8] = 2;
        assert_eq!(Head::decode(&newer), None);
        assert!(!Head::is_of_cache(&newer));
    }

    #[test]
    fn a_head_is_read_from_either_page_and_every_flipped_byte_is_detected() {
        let head = Head::of_size([7; 16], 10 << 30).expect("a slot fits");
        let pages = head.encode();
        assert_eq!(pages.len(), 2 * SLOT_BYTES);
        assert_eq!(Head::decode(&pages), Some(head));
        for at in 0..HEAD_BYTES {
            let mut one = pages.clone();
            one[at] ^= 1;
            assert_eq!(Head::decode(&one), Some(head), "the other page is intact");
            one[SLOT_BYTES + at] ^= 1;
            assert_eq!(Head::decode(&one), None, "byte {at}");
        }
        assert_eq!(Head::decode(&pages[..HEAD_BYTES - 1]), None);
    }

    #[test]
    fn a_file_is_within_its_size_and_wastes_little_of_it() {
        for bytes in [20 << 10, 1 << 20, 123_456_789, 10 << 30] {
            let head = Head::of_size([0; 16], bytes).expect("a slot fits");
            assert!(head.file_bytes() <= bytes, "{bytes}");
            assert!(head.file_bytes() + 3 * SLOT_BYTES as u64 > bytes, "{bytes}");
        }
        // The directory costs 0.8 % of the space.
        let head = Head::of_size([0; 16], 10 << 30).expect("a slot fits");
        assert!(u64::from(head.slots) * 4096 > (10 << 30) / 1000 * 991);
        assert_eq!(Head::of_size([0; 16], 12 << 10), None);
    }
}
