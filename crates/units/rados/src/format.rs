//! The format of the objects, as drawn in `docs/internals/formats.md`. They are parsed here and
//! nowhere else.
//!
//! ```text
//!  segments/…   content   a record a slot: tag, checksum, position, content
//!               head      attribute, written once: the segment's id
//!               slots     attribute: number of slots that were put, and their size
//!               freed     attribute: a bit for each slot that was freed
//!               generation  attribute: how often it was replaced, if ever
//! ```
//!
//! Nothing here does I/O. Every parsed value is checked, and no function panics on
//! any bytes.

use base::codec::{Reader, Writer as _};
use base::{ClusterId, LineageTag, SegmentId, checksum};
use unit::Tag;
use unit::format::{FormatError, SLOT_BYTES_MIN, SLOTS_MAX, check, is_slot_size, wrong};

use crate::pool::Inspected;

/// The first bytes of a head.
const MAGIC: &[u8; 8] = b"screerad";

/// The version of the layout.
const VERSION: u16 = 1;

/// Length of a head in bytes.
const HEAD_BYTES: usize = 48;

/// Length of tag, checksum and position before the content of a slot, in bytes.
pub(crate) const RECORD_HEAD_BYTES: usize = 24;

/// Names of attributes.
pub(crate) const HEAD: &str = "head";
pub(crate) const SLOTS: &str = "slots";
pub(crate) const FREED: &str = "freed";
pub(crate) const GENERATION: &str = "generation";

/// Prefix of the names of segments' objects.
const SEGMENTS: &str = "segments/";

/// The head of a segment's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) segment: SegmentId,
    pub(crate) cluster: ClusterId,
    /// Tag of the lineage that the segment belongs to, or 0.
    pub(crate) lineage_tag: LineageTag,
}

impl Head {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::with_capacity(HEAD_BYTES);
        into.put_bytes(MAGIC);
        into.put_u16(VERSION);
        into.put_u16(0);
        into.put_u64(self.segment.bits());
        into.put_u128(self.cluster.as_u128());
        into.put_u64(self.lineage_tag.0);
        into.put_u32(checksum::crc32c(&into));
        into
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<8>()? != *MAGIC {
            return Err(FormatError::Magic);
        }
        let version = reader.u16()?;
        let reserved = reader.u16()?;
        let segment = reader.u64()?;
        let cluster = reader.u128()?;
        let lineage_tag = LineageTag(reader.u64()?);
        let crc = reader.u32()?;
        check(crc, checksum::crc32c(&bytes[..HEAD_BYTES - 4]))?;
        if version != VERSION {
            return Err(FormatError::Version {
                found: version,
                known: VERSION,
            });
        }
        if reserved != 0 {
            return Err(wrong("a reserved field", reserved));
        }
        let segment = SegmentId::from_bits(segment).ok_or(wrong("the segment", segment))?;
        Ok(Self {
            segment,
            cluster: ClusterId::from_u128(cluster),
            lineage_tag,
        })
    }
}

/// Number of slots that were put, and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) count: u32,
    /// In bytes.
    pub(crate) size: u32,
}

impl Slots {
    pub(crate) fn encode(self) -> [u8; 12] {
        let mut into = [0; 12];
        into[..4].copy_from_slice(&self.count.to_le_bytes());
        into[4..8].copy_from_slice(&self.size.to_le_bytes());
        let crc = checksum::crc32c(&into[..8]);
        into[8..].copy_from_slice(&crc.to_le_bytes());
        into
    }

    fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes);
        let (count, size, crc) = (reader.u32()?, reader.u32()?, reader.u32()?);
        check(crc, checksum::crc32c(&bytes[..8]))?;
        if !is_slot_size(size) {
            return Err(wrong("the slot size", size));
        }
        if !(1..=SLOTS_MAX).contains(&count) {
            return Err(wrong("the number of slots", count));
        }
        Ok(Self { count, size })
    }
}

/// The freed slots: a bit each, in as many words as the last of them needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Freed(Vec<u64>);

impl Freed {
    pub(crate) fn contains(&self, slot: u32) -> bool {
        let word = self.0.get(slot as usize / 64);
        word.is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    pub(crate) fn insert(&mut self, slot: u32) {
        let word = slot as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (slot % 64);
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The encoded set; empty if no slot was freed.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        if !self.0.is_empty() {
            into.put_u32(0);
            for word in &self.0 {
                into.put_u64(*word);
            }
            let crc = checksum::crc32c(&into[4..]);
            into[..4].copy_from_slice(&crc.to_le_bytes());
        }
        into
    }

    fn parse(bytes: &[u8], slots: u32) -> Result<Self, FormatError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut reader = Reader::new(bytes);
        let crc = reader.u32()?;
        check(crc, checksum::crc32c(&bytes[4..]))?;
        let mut words = Vec::new();
        for _ in 0..(bytes.len() - 4) / 8 {
            words.push(reader.u64()?);
        }
        let freed = Self(words);
        let end = freed.0.len() as u64 * 64;
        match (u64::from(slots)..end).find(|slot| freed.contains(*slot as u32)) {
            Some(beyond) => Err(wrong("a slot that was freed", beyond)),
            None => Ok(freed),
        }
    }
}

/// The value of the attribute of the generation; empty for generation 0.
pub(crate) fn encode_generation(generation: u16) -> Vec<u8> {
    let mut into = Vec::new();
    if generation > 0 {
        into.put_u16(generation);
        into.put_u32(checksum::crc32c(&into));
    }
    into
}

fn parse_generation(bytes: &[u8]) -> Result<u16, FormatError> {
    if bytes.is_empty() {
        return Ok(0);
    }
    let mut reader = Reader::new(bytes);
    let (generation, crc) = (reader.u16()?, reader.u32()?);
    check(crc, checksum::crc32c(&bytes[..2]))?;
    match generation {
        0 => Err(wrong("the generation", generation)),
        _ => Ok(generation),
    }
}

/// The checked attributes of a segment's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) head: Head,
    pub(crate) slots: Slots,
    pub(crate) freed: Freed,
    /// How often the segment was replaced.
    pub(crate) generation: u16,
}

impl State {
    pub(crate) fn parse(found: &Inspected) -> Result<Self, FormatError> {
        let head = Head::parse(found.attribute(HEAD))?;
        let slots = Slots::parse(found.attribute(SLOTS))?;
        let freed = Freed::parse(found.attribute(FREED), slots.count)?;
        let generation = parse_generation(found.attribute(GENERATION))?;
        // A cluster cuts off freed slots at the end.
        let live = (0..slots.count).rev().find(|slot| !freed.contains(*slot));
        let least = live.map_or(0, |last| offset_of(last + 1, slots.size));
        if !(least..=offset_of(slots.count, slots.size)).contains(&found.size) {
            return Err(wrong("its length", found.size));
        }
        Ok(Self {
            head,
            slots,
            freed,
            generation,
        })
    }

    /// Room that the segment takes, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let live = self.slots.count - self.freed.count();
        u64::from(live) * record_bytes(self.slots.size) as u64
    }
}

/// Length of a record in bytes.
pub(crate) fn record_bytes(slot_bytes: u32) -> usize {
    RECORD_HEAD_BYTES + slot_bytes as usize
}

/// Offset of a slot's record in bytes.
pub(crate) fn offset_of(slot: u32, slot_bytes: u32) -> u64 {
    u64::from(slot) * record_bytes(slot_bytes) as u64
}

/// The position of a record: slot and slot size in one number, never 0.
fn position_of(slot: u32, slot_bytes: u32) -> u32 {
    (slot & 0xffff) | (slot_bytes / SLOT_BYTES_MIN) << 16
}

/// The checksum of a record covers its position, so that a record in the wrong one is detected.
fn record_crc(position: u32, tag: &[u8], content: &[u8]) -> u32 {
    let crc = checksum::crc32c(&position.to_le_bytes());
    checksum::crc32c_append(checksum::crc32c_append(crc, tag), content)
}

/// Appends the record of a slot.
pub(crate) fn encode_record(slot: u32, tag: &Tag, content: &[u8], into: &mut Vec<u8>) {
    let size = u32::try_from(content.len()).expect("a slot has at most 1 MiB");
    let position = position_of(slot, size);
    into.put_bytes(tag);
    into.put_u32(record_crc(position, tag, content));
    into.put_u32(position);
    into.put_bytes(content);
}

/// The bytes at the position of a slot's record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// The record of the slot. Its tag authenticates the content.
    Put(&'a Tag, &'a [u8]),
    /// Zeroes: the slot was freed.
    Freed,
    /// Anything else: slots have another size, or the record is damaged.
    Other,
}

/// Parses the record of `slot`, whose size is `slot_bytes`.
pub(crate) fn parse_record(slot: u32, slot_bytes: u32, record: &[u8]) -> Record<'_> {
    let Some((tag, rest)) = record.split_first_chunk::<16>() else {
        return Record::Other;
    };
    let Some((numbers, content)) = rest.split_first_chunk::<8>() else {
        return Record::Other;
    };
    let position = u32::from_le_bytes([numbers[4], numbers[5], numbers[6], numbers[7]]);
    if position == position_of(slot, slot_bytes) && content.len() == slot_bytes as usize {
        Record::Put(tag, content)
    } else if position == 0 && *tag == [0; 16] && numbers[..4] == [0; 4] {
        Record::Freed
    } else {
        Record::Other
    }
}

/// Whether a record belongs to `slot` and matches its checksum.
pub(crate) fn is_valid_record(slot: u32, slot_bytes: u32, record: &[u8]) -> bool {
    let Record::Put(tag, content) = parse_record(slot, slot_bytes, record) else {
        return false;
    };
    let crc = record_crc(position_of(slot, slot_bytes), tag, content);
    record[16..20] == crc.to_le_bytes()
}

/// The name of a segment's object.
pub(crate) fn name_of(segment: SegmentId) -> String {
    format!("{SEGMENTS}{}", unit::format::name_of(segment))
}

/// The segment whose object has this name.
pub(crate) fn segment_of(name: &str) -> Option<SegmentId> {
    unit::format::segment_of(name.strip_prefix(SEGMENTS)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testkit::damage::{assert_flipped_bits_are_detected, of_version_2};

    use super::*;

    fn segment(bits: u64) -> SegmentId {
        SegmentId::from_bits(bits).expect("48 bits")
    }

    fn state() -> (State, Inspected) {
        let mut freed = Freed::default();
        freed.insert(3);
        freed.insert(99);
        let state = State {
            head: Head {
                segment: segment(0x00a0_0000_0007),
                cluster: ClusterId::from_u128(9),
                lineage_tag: LineageTag(5),
            },
            slots: Slots {
                count: 100,
                size: 4096,
            },
            freed,
            generation: 3,
        };
        let attributes = [
            (HEAD, state.head.encode()),
            (SLOTS, state.slots.encode().to_vec()),
            (FREED, state.freed.encode()),
            (GENERATION, encode_generation(state.generation)),
        ];
        let found = Inspected {
            size: 100 * 4120,
            attributes: attributes
                .map(|(name, value)| (name.to_owned(), value))
                .to_vec(),
        };
        (state, found)
    }

    /// Version 1 of the head, byte by byte: what is written today must stay readable.
    #[test]
    fn the_fixture_of_version_1_is_read_and_written() {
        #[rustfmt::skip]
        let fixture: [u8; 48] = [
            0x73, 0x63, 0x72, 0x65, 0x65, 0x72, 0x61, 0x64, 0x01, 0x00, 0x00, 0x00,
            0x78, 0x56, 0x34, 0x12, 0xbc, 0x0a, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x94, 0x23, 0x6d, 0xae,
        ];
        let head = Head {
            segment: SegmentId::from_bits(0x0abc_1234_5678).expect("48 bits"),
            cluster: ClusterId::from_u128(9),
            lineage_tag: LineageTag(5),
        };
        assert_eq!(Head::parse(&fixture), Ok(head));
        assert_eq!(head.encode(), fixture);
    }

    /// The attributes beside the head, and the beginning of a record, byte by byte.
    #[test]
    fn the_fixtures_of_attributes_and_of_a_record_are_read_and_written() {
        #[rustfmt::skip]
        const SLOTS: [u8; 12] = [
            0x64, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00,
            0xc6, 0xe3, 0x97, 0xca,
        ];
        let slots = Slots {
            count: 100,
            size: 4096,
        };
        assert_eq!(slots.encode(), SLOTS);
        assert_eq!(Slots::parse(&SLOTS), Ok(slots));
        #[rustfmt::skip]
        const FREED: [u8; 20] = [
            0xf4, 0xbc, 0x05, 0x05, 0x80, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x08, 0x00, 0x00, 0x00,
        ];
        let mut freed = Freed::default();
        freed.insert(7);
        freed.insert(99);
        assert_eq!(freed.encode(), FREED);
        assert_eq!(Freed::parse(&FREED, 100), Ok(freed));
        const GENERATION: [u8; 6] = [0x03, 0x00, 0x4b, 0xdf, 0x86, 0xc5];
        assert_eq!(encode_generation(3), GENERATION);
        assert_eq!(parse_generation(&GENERATION), Ok(3));
        #[rustfmt::skip]
        const RECORD: [u8; 24] = [
            0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03,
            0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03, 0x03,
            0x45, 0xc5, 0x79, 0x6a, 0x07, 0x00, 0x01, 0x00,
        ];
        let mut record = Vec::new();
        encode_record(7, &[3; 16], &[9; 512], &mut record);
        assert_eq!(record[..24], RECORD);
    }

    #[test]
    fn attributes_round_trip_and_every_flipped_bit_is_detected() {
        let (state, found) = state();
        assert_eq!(State::parse(&found).as_ref(), Ok(&state));
        assert_eq!(state.bytes(), 98 * 4120);
        for attribute in 0..4 {
            assert_flipped_bits_are_detected(&found.attributes[attribute].1, |value| {
                let mut found = found.clone();
                found.attributes[attribute].1 = value.to_vec();
                State::parse(&found)
            });
        }
        for (size, is_well) in [(99, true), (98, false), (101, false)] {
            let mut cut = found.clone();
            cut.size = size * 4120;
            assert_eq!(State::parse(&cut).is_ok(), is_well, "{size}");
        }
    }

    #[test]
    fn a_newer_version_is_not_reported_as_damage() {
        let (state, _) = state();
        assert_eq!(
            Head::parse(&of_version_2(&state.head.encode())),
            Err(FormatError::Version { found: 2, known: 1 })
        );
    }

    #[test]
    fn a_record_belongs_to_its_slot_and_size_and_every_flipped_bit_is_detected() {
        for slot in [0, 1, 65_535] {
            let mut record = Vec::new();
            encode_record(slot, &[7; 16], &[9; 512], &mut record);
            assert_eq!(record.len(), record_bytes(512));
            assert_eq!(
                parse_record(slot, 512, &record),
                Record::Put(&[7; 16], &[9; 512])
            );
            assert!(is_valid_record(slot, 512, &record));
            assert_eq!(parse_record(slot ^ 1, 512, &record), Record::Other);
            assert_eq!(parse_record(slot, 1024, &record), Record::Other);
            assert_flipped_bits_are_detected(&record, |record| {
                is_valid_record(slot, 512, record)
                    .then_some(())
                    .ok_or("invalid")
            });
        }
        assert_eq!(parse_record(0, 512, &[0; 536]), Record::Freed);
    }

    #[test]
    fn names_and_segments_round_trip() {
        let known = segment(0x00a0_0000_0007);
        assert_eq!(name_of(known), "segments/000000007-00a");
        assert_eq!(segment_of("segments/000000007-00a"), Some(known));
        assert_eq!(segment_of("000000007-00a"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(
            head in proptest::collection::vec(any::<u8>(), 0..80),
            slots in proptest::collection::vec(any::<u8>(), 0..16),
            freed in proptest::collection::vec(any::<u8>(), 0..80),
            generation in proptest::collection::vec(any::<u8>(), 0..8),
            size in any::<u64>(),
        ) {
            let attributes = vec![
                (HEAD.to_owned(), head.clone()),
                (SLOTS.to_owned(), slots),
                (FREED.to_owned(), freed.clone()),
                (GENERATION.to_owned(), generation.clone()),
            ];
            let _ = State::parse(&Inspected { size, attributes });
            let _ = Freed::parse(&freed, 10);
            let _ = parse_generation(&generation);
            let _ = parse_record(0, 512, &head);
        }
    }
}
