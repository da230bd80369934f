//! Tail pages: what one destage changed, in the map's terms.
//!
//! ```text
//!  page, as long as a block of the volume:
//!  0│ entries u32 │ 0 u32 │   the version record's format covers this, too
//!  8│ entry 0, entry 1, … │   24 bytes each
//!
//!  entry:
//!  0│ block                                   │
//!  8│ location         │ or  count of blocks  │
//! 16│ sequence, not 0  │ or  0: read as zeroes│
//! ```
//!
//! Entries apply in order. Zero ranges of a destage come before its blocks:
//! a block that was written before it was zeroed is not in the consistency point.

use base::BlockSize;
use base::codec::{OutOfBytes, Reader, Writer};
use base::{Location, Sequence};

use crate::map::{Entry, Overlay};

const HEADER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 24;

/// Why an opened page is not a valid tail page: a fault of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadTail {
    /// It ends early.
    #[error(transparent)]
    Short(#[from] OutOfBytes),
    /// A range of blocks is empty or too long.
    #[error("a zero range in a tail page has an impossible length")]
    Range,
}

/// The number of entries that fit in a page.
#[must_use]
pub fn tail_entries_per_page(block_size: BlockSize) -> usize {
    (block_size.bytes() - HEADER_BYTES) / ENTRY_BYTES
}

/// Encodes an overlay as pages, each as long as a block.
#[must_use]
pub fn encode_tail(overlay: &Overlay<Entry>, block_size: BlockSize) -> Vec<Vec<u8>> {
    let mut entries: Vec<(u64, u64, u64)> = overlay
        .zeroes()
        .map(|zero| (zero.start, zero.end - zero.start, 0))
        .collect();
    let mut blocks: Vec<_> = overlay
        .blocks()
        .map(|(block, entry)| (block, entry.location.bits(), entry.sequence.bits()))
        .collect();
    blocks.sort_unstable();
    entries.append(&mut blocks);
    entries
        .chunks(tail_entries_per_page(block_size))
        .map(|entries| {
            let mut page = Vec::with_capacity(block_size.bytes());
            page.put_u32(u32::try_from(entries.len()).expect("at most 2,730 in 64 KiB"));
            page.put_u32(0);
            for (block, where_or_count, sequence) in entries {
                page.put_u64(*block);
                page.put_u64(*where_or_count);
                page.put_u64(*sequence);
            }
            page.resize(block_size.bytes(), 0);
            page
        })
        .collect()
}

/// Applies a page to an overlay.
///
/// # Errors
/// [`BadTail`].
pub fn decode_tail_page(page: &[u8], overlay: &mut Overlay<Entry>) -> Result<(), BadTail> {
    let mut reader = Reader::new(page);
    let count = reader.u32()?;
    let _ = reader.u32()?;
    for _ in 0..count {
        let block = reader.u64()?;
        let where_or_count = reader.u64()?;
        let sequence = reader.u64()?;
        if sequence == 0 {
            let end = block.checked_add(where_or_count).ok_or(BadTail::Range)?;
            if where_or_count == 0 {
                return Err(BadTail::Range);
            }
            overlay.zero(block..end);
        } else {
            let entry = Entry {
                location: Location::from_bits(where_or_count),
                sequence: Sequence::from_bits(sequence),
            };
            overlay.insert(block, entry);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::map::Found;

    proptest! {
        #[test]
        fn a_tail_is_read_back(
            zeroes in proptest::collection::vec((0..3000_u64, 1..100_u64), 0..10),
            blocks in proptest::collection::vec(0..3000_u64, 0..600),
        ) {
            let mut overlay = Overlay::default();
            for (start, count) in zeroes {
                overlay.zero(start..start + count);
            }
            for (time, block) in blocks.into_iter().enumerate() {
                let time = time as u64 + 1;
                let sequence = Sequence::new(1, time).expect("small");
                overlay.insert(block, Entry { location: Location::from_bits(time), sequence });
            }
            let mut read = Overlay::default();
            for page in encode_tail(&overlay, BlockSize::DEFAULT) {
                prop_assert_eq!(page.len(), 4096);
                decode_tail_page(&page, &mut read).expect("a valid page");
            }
            for block in 0..3200 {
                let expected: Option<Found<Entry>> = overlay.get(block);
                prop_assert_eq!(read.get(block), expected);
            }
        }
    }

    /// A tail page of format 1: blocks 5 to 7 are zeroed, block 9 is written.
    const FIXTURE: [u8; 56] = [
        0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x34, 0x12, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
    ];

    #[test]
    fn a_tail_page_has_format_1() {
        let mut overlay = Overlay::default();
        overlay.zero(5..8);
        let entry = Entry {
            location: Location::from_bits(0x1234),
            sequence: Sequence::new(1, 7).expect("small"),
        };
        overlay.insert(9, entry);
        let pages = encode_tail(&overlay, BlockSize::DEFAULT);
        assert_eq!(pages.len(), 1);
        assert_eq!(pages[0][..FIXTURE.len()], FIXTURE);
        assert!(pages[0][FIXTURE.len()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_without_a_panic() {
        let mut overlay = Overlay::default();
        assert!(decode_tail_page(&[255; 4096], &mut overlay).is_err());
        assert!(decode_tail_page(&[], &mut overlay).is_err());
        assert_eq!(decode_tail_page(&[0; 4096], &mut overlay), Ok(()));
    }
}
