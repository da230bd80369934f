//! A page of the map.

use base::{Location, Sequence};

use super::entry::{ENTRY_BYTES, Entry};

/// Entries of a page.
pub const PAGE_ENTRIES: usize = 256;
/// Size of a page in bytes.
pub const PAGE_BYTES: usize = PAGE_ENTRIES * ENTRY_BYTES;

/// 256 entries, in the bytes in which they are sealed.
#[derive(Clone, PartialEq, Eq)]
pub struct Page(Box<[u8; PAGE_BYTES]>);

impl Default for Page {
    fn default() -> Self {
        Self(Box::new([0; PAGE_BYTES]))
    }
}

impl Page {
    /// The page with this content. Any 4096 bytes are a page; the seal proves that
    /// they are the right ones.
    #[must_use]
    pub fn from_bytes(bytes: Box<[u8; PAGE_BYTES]>) -> Self {
        Self(bytes)
    }

    /// The page's content.
    #[must_use]
    pub fn bytes(&self) -> &[u8; PAGE_BYTES] {
        &self.0
    }

    /// Entry `index`, below 256; `None` for a hole.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Entry> {
        let (location, sequence) = self.halves(index);
        let location = u64::from_le_bytes(location);
        (location != 0).then(|| Entry {
            location: Location::from_bits(location),
            sequence: Sequence::from_bits(u64::from_le_bytes(sequence)),
        })
    }

    fn halves(&self, index: usize) -> ([u8; 8], [u8; 8]) {
        let field = &self.0[index * ENTRY_BYTES..][..ENTRY_BYTES];
        let (location, sequence) = field.split_at(8);
        (
            location.try_into().expect("half of sixteen bytes"),
            sequence.try_into().expect("half of sixteen bytes"),
        )
    }

    /// Sets entry `index`, below 256.
    pub fn set(&mut self, index: usize, entry: Option<Entry>) {
        let mut field = Vec::with_capacity(ENTRY_BYTES);
        Entry::write(entry, &mut field);
        self.0[index * ENTRY_BYTES..][..ENTRY_BYTES].copy_from_slice(&field);
    }

    /// Whether every entry is a hole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    /// The entries that are not holes.
    pub fn entries(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        (0..PAGE_ENTRIES).filter_map(|index| Some((index, self.get(index)?)))
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_map().entries(self.entries()).finish()
    }
}

#[cfg(test)]
mod tests {
    use base::{CopysetId, SegmentId, Slot};

    use super::*;

    /// An entry of format 1.
    const FIXTURE: [u8; 16] = [
        0x34, 0x12, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00,
        0x00,
    ];

    #[test]
    fn a_page_has_format_1() {
        let mut page = Page::default();
        let entry = Entry {
            location: Location::from_bits(0x1234),
            sequence: Sequence::new(1, 7).expect("small"),
        };
        page.set(2, Some(entry));
        assert_eq!(page.bytes()[32..48], FIXTURE);
        let others = page.bytes().iter().enumerate();
        let mut others = others.filter(|(at, _)| !(32..48).contains(at));
        assert!(others.all(|(_, byte)| *byte == 0));
    }

    #[test]
    fn entries_are_kept_apart() {
        let segment = SegmentId::new(CopysetId::new(3).expect("12 bits"), 9).expect("36 bits");
        let entry = |slot| Entry {
            location: Location::new(segment, Slot(slot)),
            sequence: Sequence::new(1, u64::from(slot)).expect("small"),
        };
        let mut page = Page::default();
        assert!(page.is_empty());
        page.set(0, Some(entry(1)));
        page.set(255, Some(entry(2)));
        assert_eq!(page.get(0), Some(entry(1)));
        assert_eq!(page.get(1), None);
        assert_eq!(
            page.entries().collect::<Vec<_>>(),
            [(0, entry(1)), (255, entry(2))]
        );
        page.set(0, None);
        page.set(255, None);
        assert!(page.is_empty());
    }
}
