//! The format of the objects, as drawn in `docs/internals/formats.md`. They are parsed here and
//! nowhere else.
//!
//! ```text
//!  segments/…   head: 64 bytes, and a bit a slot: set if the object has the slot
//!               a record for each of these: tag, checksum, number, content
//!  freed/…      48 bytes, and a bit a slot: set if it was freed
//! ```
//!
//! Nothing here does I/O. Every parsed value is checked, and no function panics on
//! any bytes.
//!
//! Invariants: `1 ≤ slots ≤ 65536`; `SLOT_BYTES_MIN ≤ slot_bytes ≤
//! SLOT_BYTES_MAX`, in whole sectors; the head states the length of the object.

use std::ops::Range;

use base::codec::{Reader, Writer as _};
use base::{ClusterId, LineageTag, SegmentId, checksum};
use unit::Tag;
use unit::format::{FormatError, SLOTS_MAX, check, is_slot_size, wrong};

use crate::bitmap::Bitmap;

/// The first bytes of a segment's object.
const MAGIC: &[u8; 8] = b"screeobj";

/// The first bytes of a `freed` object.
const FREED_MAGIC: &[u8; 8] = b"screefre";

/// The version of both layouts that this program reads and writes.
const VERSION: u16 = 1;

/// Length of a head without its bits, in bytes.
const FIXED_BYTES: usize = 64;

/// Length of a `freed` object without its bits, in bytes.
const FREED_FIXED_BYTES: usize = 48;

/// Length of tag, checksum and number before the content of a slot, in bytes.
pub(crate) const RECORD_HEAD_BYTES: usize = 24;

/// Maximum length of a head, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = FIXED_BYTES + SLOTS_MAX as usize / 8;

/// Maximum length of a `freed` object, in bytes.
pub(crate) const FREED_BYTES_MAX: usize = FREED_FIXED_BYTES + SLOTS_MAX as usize / 8;

/// The checked head of a segment's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) segment: SegmentId,
    pub(crate) cluster: ClusterId,
    /// Size of a slot in bytes.
    pub(crate) slot_bytes: u32,
    /// Tag of the lineage that the segment belongs to.
    pub(crate) lineage_tag: LineageTag,
    /// How often the segment was replaced.
    pub(crate) generation: u16,
    /// The slots that the object has.
    pub(crate) present: Bitmap,
}

impl Head {
    /// The head of a segment of `slots` slots; `None` if that number or the slot size is
    /// invalid.
    pub(crate) fn whole(
        segment: SegmentId,
        cluster: ClusterId,
        lineage_tag: LineageTag,
        slot_bytes: u32,
        slots: usize,
    ) -> Option<Self> {
        let slots = u32::try_from(slots).ok()?;
        let is_size = is_slot_size(slot_bytes) && (1..=SLOTS_MAX).contains(&slots);
        is_size.then(|| Self {
            segment,
            cluster,
            slot_bytes,
            lineage_tag,
            generation: 0,
            present: Bitmap::all(slots),
        })
    }

    /// Number of slots that were put.
    pub(crate) fn slots(&self) -> u32 {
        self.present.slots()
    }

    /// Length of the encoded head in bytes.
    pub(crate) fn head_bytes(&self) -> usize {
        FIXED_BYTES + Bitmap::bytes_of(self.slots())
    }

    /// Length of a record in bytes.
    pub(crate) fn record_bytes(&self) -> usize {
        RECORD_HEAD_BYTES + self.slot_bytes as usize
    }

    /// Length of the whole object in bytes.
    pub(crate) fn object_bytes(&self) -> u64 {
        self.offset(self.present.count())
    }

    /// Offset of the record that has `before` records before it.
    fn offset(&self, before: u32) -> u64 {
        self.head_bytes() as u64 + u64::from(before) * self.record_bytes() as u64
    }

    /// The bytes of the records of `count` slots from `first` on, all of which are present.
    pub(crate) fn range(&self, first: u32, count: u32) -> Range<u64> {
        let before = self.present.rank(first);
        self.offset(before)..self.offset(before + count)
    }

    /// Parses the head at the front of `object`.
    pub(crate) fn parse(object: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(object);
        if reader.array::<8>()? != *MAGIC {
            return Err(FormatError::Magic);
        }
        let version = reader.u16()?;
        let generation = reader.u16()?;
        let slot_bytes = reader.u32()?;
        let segment = reader.u64()?;
        let slots = reader.u32()?;
        let present = reader.u32()?;
        let cluster = reader.u128()?;
        let lineage_tag = LineageTag(reader.u64()?);
        let bits_crc = reader.u32()?;
        let crc = reader.u32()?;
        check(crc, checksum::crc32c(&object[..FIXED_BYTES - 4]))?;
        if version != VERSION {
            return Err(FormatError::Version {
                found: version,
                known: VERSION,
            });
        }
        if !is_slot_size(slot_bytes) {
            return Err(wrong("the slot size", slot_bytes));
        }
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(wrong("the number of slots", slots));
        }
        let segment = SegmentId::from_bits(segment).ok_or(wrong("the segment", segment))?;
        let mut bits = reader.clone();
        check(
            bits_crc,
            checksum::crc32c(bits.bytes(Bitmap::bytes_of(slots))?),
        )?;
        let present_slots = Bitmap::decode(&mut reader, slots)?
            .filter(|bitmap| bitmap.count() == present)
            .ok_or(wrong("the number of slots present", present))?;
        Ok(Self {
            segment,
            cluster: ClusterId::from_u128(cluster),
            slot_bytes,
            lineage_tag,
            generation,
            present: present_slots,
        })
    }

    /// Appends the head to `into`, which is empty.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        debug_assert!(into.is_empty());
        let mut bits = Vec::with_capacity(Bitmap::bytes_of(self.slots()));
        self.present.encode(&mut bits);
        into.put_bytes(MAGIC);
        into.put_u16(VERSION);
        into.put_u16(self.generation);
        into.put_u32(self.slot_bytes);
        into.put_u64(self.segment.bits());
        into.put_u32(self.slots());
        into.put_u32(self.present.count());
        into.put_u128(self.cluster.as_u128());
        into.put_u64(self.lineage_tag.0);
        into.put_u32(checksum::crc32c(&bits));
        into.put_u32(checksum::crc32c(into));
        into.put_bytes(&bits);
    }
}

/// The checksum of a record covers its slot's number, so that a record in the wrong position is
/// detected.
fn record_crc(slot: u32, tag: &[u8], content: &[u8]) -> u32 {
    let crc = checksum::crc32c(&slot.to_le_bytes());
    checksum::crc32c_append(checksum::crc32c_append(crc, tag), content)
}

/// Appends the record of a slot.
pub(crate) fn encode_record(slot: u32, tag: &Tag, content: &[u8], into: &mut Vec<u8>) {
    into.put_bytes(tag);
    into.put_u32(record_crc(slot, tag, content));
    into.put_u32(slot);
    into.put_bytes(content);
}

/// The tag and the content in a record, without checking them.
pub(crate) fn split_record(record: &[u8]) -> Option<(&Tag, &[u8])> {
    let tag = record.first_chunk::<16>()?;
    Some((tag, record.get(RECORD_HEAD_BYTES..)?))
}

/// Whether a record belongs to `slot` and matches its checksum.
pub(crate) fn is_valid_record(slot: u32, record: &[u8]) -> bool {
    let Some((tag, content)) = split_record(record) else {
        return false;
    };
    let mut reader = Reader::new(&record[size_of::<Tag>()..]);
    reader.u32() == Ok(record_crc(slot, tag, content)) && reader.u32() == Ok(slot)
}

/// The freed slots of a segment, with their object's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) segment: SegmentId,
    pub(crate) cluster: ClusterId,
    pub(crate) slots: Bitmap,
}

impl Freed {
    pub(crate) fn parse(object: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(object);
        if reader.array::<8>()? != *FREED_MAGIC {
            return Err(FormatError::Magic);
        }
        let version = reader.u16()?;
        let reserved = reader.u16()?;
        let slots = reader.u32()?;
        let segment = reader.u64()?;
        let cluster = reader.u128()?;
        let reserved_end = reader.u32()?;
        let crc = reader.u32()?;
        let head_crc = checksum::crc32c(&object[..FREED_FIXED_BYTES - 4]);
        check(
            crc,
            checksum::crc32c_append(head_crc, &object[FREED_FIXED_BYTES..]),
        )?;
        if version != VERSION {
            return Err(FormatError::Version {
                found: version,
                known: VERSION,
            });
        }
        if reserved != 0 || reserved_end != 0 {
            let value = u32::from(reserved).max(reserved_end);
            return Err(wrong("a reserved field", value));
        }
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(wrong("the number of slots", slots));
        }
        let segment = SegmentId::from_bits(segment).ok_or(wrong("the segment", segment))?;
        let bits = Bitmap::decode(&mut reader, slots)?;
        let bits = bits.ok_or(wrong("the last word", slots))?;
        if reader.remaining() != 0 {
            return Err(wrong(
                "the number of surplus bytes",
                reader.remaining() as u64,
            ));
        }
        Ok(Self {
            segment,
            cluster: ClusterId::from_u128(cluster),
            slots: bits,
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let slots = self.slots.slots();
        let mut bits = Vec::with_capacity(Bitmap::bytes_of(slots));
        self.slots.encode(&mut bits);
        let mut bytes = Vec::with_capacity(FREED_FIXED_BYTES + bits.len());
        bytes.put_bytes(FREED_MAGIC);
        bytes.put_u16(VERSION);
        bytes.put_u16(0);
        bytes.put_u32(slots);
        bytes.put_u64(self.segment.bits());
        bytes.put_u128(self.cluster.as_u128());
        bytes.put_u32(0);
        bytes.put_u32(checksum::crc32c_append(checksum::crc32c(&bytes), &bits));
        bytes.put_bytes(&bits);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testkit::damage::assert_flipped_bits_are_detected;

    use super::*;

    fn head(slots: u32) -> Head {
        let segment = SegmentId::from_bits(0x0abc_1234_5678).expect("48 bits");
        let cluster = ClusterId::from_u128(9);
        Head::whole(segment, cluster, LineageTag(7), 4096, slots as usize).expect("a size")
    }

    fn encoded(head: &Head) -> Vec<u8> {
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        bytes
    }

    fn freed() -> Freed {
        let mut slots = Bitmap::none(100);
        slots.insert(3);
        Freed {
            segment: head(1).segment,
            cluster: ClusterId::from_u128(9),
            slots,
        }
    }

    /// Version 1 of the head, byte by byte: what is written today must stay readable.
    #[test]
    fn the_fixture_of_version_1_is_read_and_written() {
        #[rustfmt::skip]
        let fixture: [u8; 72] = [
            0x73, 0x63, 0x72, 0x65, 0x65, 0x6f, 0x62, 0x6a, 0x01, 0x00, 0x07, 0x00,
            0x00, 0x10, 0x00, 0x00, 0x78, 0x56, 0x34, 0x12, 0xbc, 0x0a, 0x00, 0x00,
            0x03, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x8e, 0xb7, 0x71, 0x76,
            0x8a, 0x9f, 0x75, 0xed, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        ];
        let head = Head {
            lineage_tag: LineageTag(5),
            generation: 7,
            ..head(3)
        };
        assert_eq!(Head::parse(&fixture), Ok(head.clone()));
        assert_eq!(encoded(&head), fixture);
    }

    /// Version 1 of the freed slots and of a record, byte by byte.
    #[test]
    fn the_fixtures_of_freed_slots_and_of_a_record_are_read_and_written() {
        #[rustfmt::skip]
        const FREED: [u8; 64] = [
            0x73, 0x63, 0x72, 0x65, 0x65, 0x66, 0x72, 0x65,
            0x01, 0x00, 0x00, 0x00, 0x64, 0x00, 0x00, 0x00,
            0x78, 0x56, 0x34, 0x12, 0xbc, 0x0a, 0x00, 0x00,
            0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x87, 0xa3, 0x27, 0x41,
            0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        ];
        assert_eq!(freed().encode(), FREED);
        assert_eq!(Freed::parse(&FREED), Ok(freed()));
        #[rustfmt::skip]
        const RECORD: [u8; 32] = [
            0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03,
            0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03,
            0x7e, 0x8e, 0xb3, 0xb9, 0x03, 0x00, 0x00, 0x00,
            0x05, 0x05, 0x05, 0x05, 0x05, 0x05, 0x05, 0x05,
        ];
        let mut record = Vec::new();
        encode_record(3, &[3; 16], &[5; 8], &mut record);
        assert_eq!(record, RECORD);
        assert!(is_valid_record(3, &RECORD));
    }

    #[test]
    fn a_head_round_trips_and_gives_the_offsets_of_slots() {
        let whole = head(2048);
        assert_eq!(whole.head_bytes(), 320);
        assert_eq!(whole.object_bytes(), 320 + 2048 * 4120);
        assert_eq!(whole.range(2, 3), 320 + 2 * 4120..320 + 5 * 4120);
        let mut odd = Bitmap::none(2048);
        (0..2048)
            .filter(|slot| slot % 2 == 1)
            .for_each(|slot| odd.insert(slot));
        let thin = Head {
            present: odd,
            ..whole.clone()
        };
        assert_eq!(thin.range(5, 1), 320 + 2 * 4120..320 + 3 * 4120);
        for head in [whole, thin] {
            let bytes = encoded(&head);
            assert_eq!(bytes.len(), head.head_bytes());
            assert_eq!(Head::parse(&bytes), Ok(head));
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        assert_flipped_bits_are_detected(&encoded(&head(100)), Head::parse);
        assert_flipped_bits_are_detected(&freed().encode(), Freed::parse);
        let content = [5; 512];
        let mut record = Vec::new();
        encode_record(3, &[7; 16], &content, &mut record);
        assert!(is_valid_record(3, &record) && !is_valid_record(4, &record));
        assert_eq!(split_record(&record), Some((&[7; 16], &content[..])));
        assert_flipped_bits_are_detected(&record, |record| {
            is_valid_record(3, record).then_some(()).ok_or("invalid")
        });
    }

    #[test]
    fn a_truncated_object_is_too_short() {
        let bytes = encoded(&head(100));
        for length in 0..bytes.len() {
            let short = Head::parse(&bytes[..length]);
            assert!(matches!(short, Err(FormatError::Short(_))), "{length}");
        }
        let bytes = freed().encode();
        for length in 0..bytes.len() {
            assert!(Freed::parse(&bytes[..length]).is_err(), "{length}");
        }
        let mut long = freed().encode();
        long.push(0);
        assert!(Freed::parse(&long).is_err());
        assert_eq!(Freed::parse(&freed().encode()), Ok(freed()));
    }

    /// The same bytes with the right checksums.
    fn with_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
        if let Some((fixed, bits)) = bytes.split_at_mut_checked(FIXED_BYTES) {
            let slots = u32::from_le_bytes(fixed[24..28].try_into().expect("4 bytes"));
            let words = Bitmap::bytes_of(slots.min(1 << 20)).min(bits.len());
            let crc = checksum::crc32c(&bits[..words]);
            fixed[56..60].copy_from_slice(&crc.to_le_bytes());
            let crc = checksum::crc32c(&fixed[..60]);
            fixed[60..].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn invalid_values_with_valid_checksums_are_refused() {
        // Offset and bytes of a field that no writer writes.
        let cases: [(usize, &[u8]); 8] = [
            (12, &[0, 0, 0, 0]),         // slot size
            (12, &[1, 16, 0, 0]),        // slot size, not in sectors
            (22, &[0xff, 0xff]),         // segment number
            (24, &[0, 0, 0, 0]),         // slots
            (24, &[255, 255, 255, 255]), // slots
            (24, &[99]),                 // fewer slots than there are bits
            (28, &[99]),                 // slots present
            (79, &[255]),                // bits beyond the last slot
        ];
        for (offset, field) in cases {
            let mut bytes = encoded(&head(100));
            bytes[offset..offset + field.len()].copy_from_slice(field);
            let parsed = Head::parse(&with_checksums(bytes));
            assert!(
                matches!(parsed, Err(FormatError::Value { .. })),
                "{offset}: {parsed:?}"
            );
        }
        let mut newer = encoded(&head(100));
        newer[8] = 2;
        let parsed = Head::parse(&with_checksums(newer));
        assert_eq!(parsed, Err(FormatError::Version { found: 2, known: 1 }));
    }

    proptest! {
        #[test]
        fn a_parsed_head_encodes_to_the_same_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            slots in 0u32..900,
            changes in proptest::collection::vec((0usize..200, any::<u8>()), 0..6),
        ) {
            let _ = (Head::parse(&bytes), Freed::parse(&bytes));
            // Near what is right.
            let right = encoded(&head(slots.max(1)));
            let kept = right.len().min(bytes.len());
            bytes[..kept].copy_from_slice(&right[..kept]);
            for (at, byte) in changes {
                if let Some(changed) = bytes.get_mut(at) {
                    *changed = byte;
                }
            }
            let bytes = with_checksums(bytes);
            if let Ok(head) = Head::parse(&bytes) {
                prop_assert_eq!(&encoded(&head)[..], &bytes[..head.head_bytes()]);
                prop_assert!(head.object_bytes() >= head.head_bytes() as u64);
                let _ = head.range(u32::from(u16::MAX), 1);
            }
        }
    }

    proptest! {
        #[test]
        fn a_parsed_freed_object_encodes_to_the_same_bytes(
            length in 0usize..80,
            changes in proptest::collection::vec((0usize..80, any::<u8>()), 0..4),
        ) {
            let mut bytes = freed().encode();
            bytes.resize(length, 0);
            for (at, byte) in changes {
                if let Some(changed) = bytes.get_mut(at) {
                    *changed = byte;
                }
            }
            if let Some((fixed, bits)) = bytes.split_at_mut_checked(FREED_FIXED_BYTES) {
                let crc = checksum::crc32c_append(checksum::crc32c(&fixed[..44]), bits);
                fixed[44..].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok(freed) = Freed::parse(&bytes) {
                prop_assert_eq!(freed.encode(), bytes);
            }
        }
    }
}
