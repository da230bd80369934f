//! The format of a segment file, as drawn in `docs/internals/formats.md`. It is parsed here and
//! nowhere else.
//!
//! ```text
//!  0                      header, written once
//!  TABLE_OFFSET           table: one entry of 24 bytes a slot
//!  data_offset()          slot 0, slot 1, …; a multiple of 4 KiB
//! ```
//!
//! Nothing here does I/O. Every parsed value is checked, and no function panics on
//! any bytes.
//!
//! Invariants: `1 ≤ capacity ≤ 65536`; `SLOT_BYTES_MIN ≤ slot_bytes ≤
//! SLOT_BYTES_MAX`, in whole sectors.

use base::codec::{Reader, Writer};
use base::{ClusterId, LineageTag, SegmentId, checksum};
use unit::Tag;
use unit::format::{FormatError, SLOTS_MAX, check, is_slot_size, wrong};

/// The first bytes of a segment file.
const MAGIC: &[u8; 8] = b"screeseg";

/// The version of the layout that this program reads and writes.
const VERSION: u16 = 1;

/// Length of the header in bytes, its checksum included.
pub const HEADER_BYTES: usize = 64;

/// Offset of the table in bytes: the header has a page of its own, so that no later write
/// touches that page.
pub(super) const TABLE_OFFSET: u64 = 4096;

/// Length of a table entry in bytes.
pub(super) const ENTRY_BYTES: usize = 24;

/// Alignment of the data in bytes, so that holes can be punched.
pub(super) const PAGE_BYTES: u64 = 4096;

/// A header that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The segment.
    pub segment: SegmentId,
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// Number of slots that there is room for.
    pub capacity: u32,
    /// Tag of the lineage that the segment belongs to, where a unit daemon serves the unit;
    /// [`LineageTag::NONE`] otherwise.
    pub lineage_tag: LineageTag,
    /// How often the segment was replaced; 0 for the first file.
    pub generation: u16,
}

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// Never put.
    Never,
    /// Put and not freed.
    Kept,
    /// Freed, and still takes room.
    Freed,
    /// Freed, and its room was reclaimed.
    Hole,
    /// The entry is damaged: bits have changed, or a put was torn.
    Unknown,
}

impl SlotState {
    /// The state's mark in the file. Any two differ in many bits, so that a
    /// flipped bit makes none of them into another.
    fn mark(self) -> [u8; 4] {
        match self {
            Self::Never => [0; 4],
            Self::Kept => *b"KEPT",
            Self::Freed => *b"FREE",
            Self::Hole => *b"HOLE",
            Self::Unknown => unreachable!("it is never written"),
        }
    }

    fn from_mark(mark: [u8; 4]) -> Self {
        [Self::Never, Self::Kept, Self::Freed, Self::Hole]
            .into_iter()
            .find(|state| state.mark() == mark)
            .unwrap_or(Self::Unknown)
    }

    /// Whether the slot was freed.
    #[must_use]
    pub fn is_free(self) -> bool {
        matches!(self, Self::Freed | Self::Hole)
    }
}

/// The table's entry of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The tag that was put with the slot.
    pub tag: Tag,
    /// CRC-32C of tag and content.
    pub crc: u32,
    /// The slot's state.
    pub state: SlotState,
}

impl Header {
    /// The header of a segment of up to `data_bytes` bytes; `None` if the slot size is invalid.
    #[must_use]
    pub fn new(
        segment: SegmentId,
        cluster: ClusterId,
        slot_bytes: u32,
        data_bytes: u64,
    ) -> Option<Self> {
        let slots = data_bytes / u64::from(slot_bytes.max(1));
        is_slot_size(slot_bytes).then(|| Self {
            segment,
            cluster,
            slot_bytes,
            capacity: slots.clamp(1, u64::from(SLOTS_MAX)) as u32,
            lineage_tag: LineageTag::NONE,
            generation: 0,
        })
    }

    /// The same header with `lineage_tag`.
    #[must_use]
    pub fn with_lineage_tag(self, lineage_tag: LineageTag) -> Self {
        Self {
            lineage_tag,
            ..self
        }
    }

    /// The same header with `generation`.
    #[must_use]
    pub fn of_generation(self, generation: u16) -> Self {
        Self { generation, ..self }
    }

    /// Reads a header from the front of `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] says which field is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(MAGIC.len())? != MAGIC {
            return Err(FormatError::Magic);
        }
        let version = reader.u16()?;
        let generation = reader.u16()?;
        let slot_bytes = reader.u32()?;
        let segment = reader.u64()?;
        let capacity = reader.u32()?;
        let data_offset = reader.u32()?;
        let cluster = reader.u128()?;
        let lineage_tag = LineageTag(reader.u64()?);
        let reserved_end: [u8; 4] = reader.array()?;
        let found = reader.u32()?;
        check(found, checksum::crc32c(&bytes[..HEADER_BYTES - 4]))?;
        if version != VERSION {
            return Err(FormatError::Version {
                found: version,
                known: VERSION,
            });
        }
        let id = SegmentId::from_bits(segment).ok_or(wrong("the segment's number", segment))?;
        let data_bytes = u64::from(slot_bytes) * u64::from(capacity);
        let header = Self::new(id, ClusterId::from_u128(cluster), slot_bytes, data_bytes)
            .ok_or(wrong("the slot size", slot_bytes))?;
        if header.capacity != capacity {
            return Err(wrong("the capacity", capacity));
        }
        if u64::from(data_offset) != header.data_offset() {
            return Err(wrong("the data's offset", data_offset));
        }
        if reserved_end != [0; 4] {
            let reserved = u32::from_le_bytes(reserved_end);
            return Err(wrong("a reserved field", reserved));
        }
        Ok(header
            .with_lineage_tag(lineage_tag)
            .of_generation(generation))
    }

    /// The header's bytes at the front of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.put_bytes(MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_u16(self.generation);
        bytes.put_u32(self.slot_bytes);
        bytes.put_u64(self.segment.bits());
        bytes.put_u32(self.capacity);
        bytes.put_u32(self.data_offset() as u32);
        bytes.put_u128(self.cluster.as_u128());
        bytes.put_u64(self.lineage_tag.0);
        bytes.put_bytes(&[0; 4]);
        bytes.put_u32(checksum::crc32c(&bytes));
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        bytes
    }

    /// Length of the table in bytes.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.capacity as usize * ENTRY_BYTES
    }

    /// Offset of slot 0 in bytes. At most 4 KiB + 1.5 MiB, rounded up.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        (TABLE_OFFSET + self.table_bytes() as u64).next_multiple_of(PAGE_BYTES)
    }

    pub(super) fn slot_offset(&self, slot: u32) -> u64 {
        self.data_offset() + u64::from(slot) * u64::from(self.slot_bytes)
    }

    pub(super) fn entry_offset(slot: u32) -> u64 {
        TABLE_OFFSET + u64::from(slot) * ENTRY_BYTES as u64
    }
}

impl Entry {
    /// The entry of a slot that is put with `tag` and `content`.
    #[must_use]
    pub fn of(tag: &Tag, content: &[u8]) -> Self {
        Self {
            tag: *tag,
            crc: Self::crc_of(tag, content),
            state: SlotState::Kept,
        }
    }

    /// The entry of a free slot without content.
    pub(super) fn free(state: SlotState) -> Self {
        debug_assert!(state.is_free());
        Self {
            tag: [0; 16],
            crc: 0,
            state,
        }
    }

    /// The entry of the same slot once it is freed, with what is needed to restore it.
    pub(super) fn freed_with_content(self) -> Self {
        let state = SlotState::Freed;
        Self { state, ..self }
    }

    /// The entry of the same slot once it is restored.
    pub(super) fn restored(self) -> Self {
        let state = SlotState::Kept;
        Self { state, ..self }
    }

    /// Whether the slot is free and may still have its content.
    pub(super) fn is_freed_with_content(&self) -> bool {
        self.state == SlotState::Freed && (self.crc != 0 || self.tag != [0; 16])
    }

    /// Whether `content` matches the checksum of what was put.
    #[must_use]
    pub fn matches(&self, content: &[u8]) -> bool {
        self.crc == Self::crc_of(&self.tag, content)
    }

    fn crc_of(tag: &Tag, content: &[u8]) -> u32 {
        checksum::crc32c_append(checksum::crc32c(tag), content)
    }

    /// Reads the entries in `bytes` and ignores a partial one at the end.
    pub fn parse_all(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.chunks_exact(ENTRY_BYTES).map_while(|chunk| {
            let mut reader = Reader::new(chunk);
            Some(Self {
                tag: reader.array().ok()?,
                crc: reader.u32().ok()?,
                state: SlotState::from_mark(reader.array().ok()?),
            })
        })
    }

    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        into.put_bytes(&self.tag);
        into.put_u32(self.crc);
        into.put_bytes(&self.state.mark());
    }
}

/// Parses the header and as much of the table as `bytes` has. For fuzzing: it must return for
/// any bytes.
///
/// # Errors
/// [`FormatError`] if the header is invalid.
pub fn parse(bytes: &[u8]) -> Result<(Header, Vec<Entry>), FormatError> {
    let header = Header::parse(bytes)?;
    let table = bytes.get(TABLE_OFFSET as usize..).unwrap_or_default();
    let table = &table[..table.len().min(header.table_bytes())];
    Ok((header, Entry::parse_all(table).collect()))
}

#[cfg(test)]
mod tests {
    use testkit::damage::{assert_flipped_bits_are_detected, of_version_2};

    use super::*;

    fn header() -> Header {
        let segment = SegmentId::from_bits(0x0abc_1234_5678).expect("48 bits");
        Header::new(segment, ClusterId::from_u128(9), 4096, 8 << 20).expect("a slot size")
    }

    /// Version 1 of the header, byte by byte: what is written today must stay readable.
    #[test]
    fn the_fixture_of_version_1_is_read_and_written() {
        #[rustfmt::skip]
        let fixture: [u8; 64] = [
            0x73, 0x63, 0x72, 0x65, 0x65, 0x73, 0x65, 0x67, 0x01, 0x00, 0x07, 0x00,
            0x00, 0x10, 0x00, 0x00, 0x78, 0x56, 0x34, 0x12, 0xbc, 0x0a, 0x00, 0x00,
            0x00, 0x08, 0x00, 0x00, 0x00, 0xd0, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0xd5, 0xbb, 0x0d, 0xe1,
        ];
        let header = header().with_lineage_tag(LineageTag(5)).of_generation(7);
        assert_eq!(Header::parse(&fixture), Ok(header));
        assert_eq!(header.encode(), fixture);
    }

    #[test]
    fn a_header_round_trips_and_its_data_is_page_aligned() {
        let header = header();
        assert_eq!(header.capacity, 2048);
        assert_eq!(header.data_offset(), 53_248);
        assert_eq!(Header::parse(&header.encode()), Ok(header));
        let with_lineage_tag = header.with_lineage_tag(LineageTag(u64::MAX - 5));
        assert_eq!(
            Header::parse(&with_lineage_tag.encode()),
            Ok(with_lineage_tag)
        );
        let replaced = header.of_generation(7);
        assert_eq!(Header::parse(&replaced.encode()), Ok(replaced));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_detected() {
        let bytes = header().encode();
        assert_eq!(bytes.len(), HEADER_BYTES);
        assert_flipped_bits_are_detected(&bytes, Header::parse);
        for length in 0..HEADER_BYTES {
            let short = Header::parse(&bytes[..length]);
            assert!(matches!(short, Err(FormatError::Short(_))), "{length}");
        }
    }

    #[test]
    fn a_newer_version_is_not_reported_as_damage() {
        assert_eq!(
            Header::parse(&of_version_2(&header().encode())),
            Err(FormatError::Version { found: 2, known: 1 })
        );
    }

    #[test]
    fn invalid_values_with_a_valid_checksum_are_refused() {
        // Offset and bytes of a field that no writer writes.
        let cases: [(usize, &[u8]); 6] = [
            (56, &[1]),                  // reserved
            (12, &[0, 0, 0, 0]),         // slot size
            (12, &[1, 16, 0, 0]),        // slot size, not in sectors
            (22, &[0xff, 0xff]),         // segment number
            (24, &[0, 0, 0, 0]),         // capacity
            (24, &[255, 255, 255, 255]), // capacity
        ];
        for (offset, field) in cases {
            let mut bytes = header().encode();
            bytes[offset..offset + field.len()].copy_from_slice(field);
            let crc = checksum::crc32c(&bytes[..HEADER_BYTES - 4]);
            bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            let error = Header::parse(&bytes).expect_err("odd");
            assert!(matches!(error, FormatError::Value { .. }), "{error}");
        }
    }

    #[test]
    fn no_flipped_bit_of_a_mark_makes_it_another_state() {
        let states = [
            SlotState::Never,
            SlotState::Kept,
            SlotState::Freed,
            SlotState::Hole,
        ];
        for state in states {
            for bit in 0..32 {
                let mut mark = state.mark();
                mark[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SlotState::from_mark(mark), SlotState::Unknown);
            }
        }
    }

    #[test]
    fn entries_round_trip_and_match_their_content_only() {
        let entry = Entry::of(&[3; 16], b"content");
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        Entry::free(SlotState::Hole).encode(&mut bytes);
        let entries: Vec<Entry> = Entry::parse_all(&bytes).collect();
        assert_eq!(entries, [entry, Entry::free(SlotState::Hole)]);
        assert!(entry.matches(b"content"));
        assert!(!entry.matches(b"c0ntent"));
    }

    /// Version 1 of two entries, byte by byte.
    #[test]
    fn the_fixture_of_entries_of_version_1_is_read_and_written() {
        #[rustfmt::skip]
        const FIXTURE: [u8; 48] = [
            0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03,
            0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03,
            0xb2, 0x69, 0x30, 0xf5, 0x4b, 0x45, 0x50, 0x54,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x48, 0x4f, 0x4c, 0x45,
        ];
        let entries = [
            Entry::of(&[3; 16], b"content"),
            Entry::free(SlotState::Hole),
        ];
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        assert_eq!(bytes, FIXTURE);
        assert!(Entry::parse_all(&FIXTURE).eq(entries));
        assert_eq!(SlotState::Freed.mark(), *b"FREE");
    }
}
