//! The bytes of the objects, as drawn in `docs/internals/formats.md`: parsed here
//! once, and nowhere else.
//!
//! ```text
//!  segments/…   content   a record a slot: tag, checksum, place, content
//!               head      attribute, written once: which segment it is
//!               slots     attribute: how many were put, and their size
//!               freed     attribute: a bit for each that was freed
//!               generation  attribute: which of those in its place it is, if not the first
//! ```
//!
//! Nothing here does I/O, and nothing that is parsed here is believed before it was
//! checked: no function panics, whatever the bytes.

use base::codec::{Reader, Writer as _};
use base::{ClusterId, LineageTag, SegmentId, checksum};
use unit::Tag;
use unit::format::{FormatError, SLOT_BYTES_MIN, SLOTS_MAX, check, is_slot_size, wrong};

use crate::pool::Inspected;

/// What a head begins with.
const MAGIC: &[u8; 8] = b"screerad";

/// The version of the layout.
const VERSION: u16 = 1;

/// Length of a head in bytes.
const HEAD_BYTES: usize = 48;

/// Tag, checksum and place of a slot, in front of its content, in bytes.
pub(crate) const RECORD_HEAD_BYTES: usize = 24;

/// Names of attributes.
pub(crate) const HEAD: &str = "head";
pub(crate) const SLOTS: &str = "slots";
pub(crate) const FREED: &str = "freed";
pub(crate) const GENERATION: &str = "generation";

/// What names of segments begin with.
const SEGMENTS: &str = "segments/";

/// Which segment an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) segment: SegmentId,
    pub(crate) cluster: ClusterId,
    /// What segments have in common that belong together, or 0.
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

/// How many slots were put, and their size.
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

/// Which slots were freed: a bit each, in as many words as the last of them takes.
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

    /// Empty if none is.
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

/// The value of the attribute that says a generation; empty for the first.
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

/// A segment's object without its content, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) head: Head,
    pub(crate) slots: Slots,
    pub(crate) freed: Freed,
    /// Which of the segments that were in this one's place it is.
    pub(crate) generation: u16,
}

impl State {
    pub(crate) fn parse(found: &Inspected) -> Result<Self, FormatError> {
        let head = Head::parse(found.attribute(HEAD))?;
        let slots = Slots::parse(found.attribute(SLOTS))?;
        let freed = Freed::parse(found.attribute(FREED), slots.count)?;
        let generation = parse_generation(found.attribute(GENERATION))?;
        // What is freed at the end need not be there any more.
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

    /// The room that it takes, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let live = self.slots.count - self.freed.count();
        u64::from(live) * record_bytes(self.slots.size) as u64
    }
}

/// How long a slot and what goes with it is.
pub(crate) fn record_bytes(slot_bytes: u32) -> usize {
    RECORD_HEAD_BYTES + slot_bytes as usize
}

/// Where a slot's record lies.
pub(crate) fn offset_of(slot: u32, slot_bytes: u32) -> u64 {
    u64::from(slot) * record_bytes(slot_bytes) as u64
}

/// Slot and size in one number, never 0.
fn place_of(slot: u32, slot_bytes: u32) -> u32 {
    (slot & 0xffff) | (slot_bytes / SLOT_BYTES_MIN) << 16
}

/// The checksum of a record covers its place, so that one that lies in another's is
/// found out.
fn record_crc(place: u32, tag: &[u8], content: &[u8]) -> u32 {
    let crc = checksum::crc32c(&place.to_le_bytes());
    checksum::crc32c_append(checksum::crc32c_append(crc, tag), content)
}

/// Writes a slot and what goes with it.
pub(crate) fn encode_record(slot: u32, tag: &Tag, content: &[u8], into: &mut Vec<u8>) {
    let size = u32::try_from(content.len()).expect("a slot has at most 1 MiB");
    let place = place_of(slot, size);
    into.put_bytes(tag);
    into.put_u32(record_crc(place, tag, content));
    into.put_u32(place);
    into.put_bytes(content);
}

/// What lies where a slot's record should.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// The slot: what it is worth, its tag tells.
    Put(&'a Tag, &'a [u8]),
    /// Zeroes: it was freed.
    Freed,
    /// Something else: slots have another size, or it is damaged.
    Other,
}

/// Reads the record of `slot`, `slot_bytes` long.
pub(crate) fn parse_record(slot: u32, slot_bytes: u32, record: &[u8]) -> Record<'_> {
    let Some((tag, rest)) = record.split_first_chunk::<16>() else {
        return Record::Other;
    };
    let Some((numbers, content)) = rest.split_first_chunk::<8>() else {
        return Record::Other;
    };
    let place = u32::from_le_bytes([numbers[4], numbers[5], numbers[6], numbers[7]]);
    if place == place_of(slot, slot_bytes) && content.len() == slot_bytes as usize {
        Record::Put(tag, content)
    } else if place == 0 && *tag == [0; 16] && numbers[..4] == [0; 4] {
        Record::Freed
    } else {
        Record::Other
    }
}

/// Whether a record is as it was put.
pub(crate) fn is_sound(slot: u32, slot_bytes: u32, record: &[u8]) -> bool {
    let Record::Put(tag, content) = parse_record(slot, slot_bytes, record) else {
        return false;
    };
    let crc = record_crc(place_of(slot, slot_bytes), tag, content);
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

    #[test]
    fn attributes_round_trip_and_each_flipped_bit_is_found() {
        let (state, found) = state();
        assert_eq!(State::parse(&found).as_ref(), Ok(&state));
        assert_eq!(state.bytes(), 98 * 4120);
        for attribute in 0..4 {
            for bit in 0..found.attributes[attribute].1.len() * 8 {
                let mut flipped = found.clone();
                flipped.attributes[attribute].1[bit / 8] ^= 1 << (bit % 8);
                assert!(State::parse(&flipped).is_err(), "{attribute}, bit {bit}");
            }
        }
        for (size, is_well) in [(99, true), (98, false), (101, false)] {
            let mut cut = found.clone();
            cut.size = size * 4120;
            assert_eq!(State::parse(&cut).is_ok(), is_well, "{size}");
        }
    }

    #[test]
    fn a_newer_head_is_named_so() {
        let (state, _) = state();
        let mut bytes = state.head.encode();
        bytes[8] = 2;
        let crc = checksum::crc32c(&bytes[..HEAD_BYTES - 4]);
        bytes[HEAD_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            Head::parse(&bytes),
            Err(FormatError::Version { found: 2, known: 1 })
        );
    }

    #[test]
    fn a_record_is_of_its_slot_and_size_and_each_flipped_bit_is_found() {
        for slot in [0, 1, 65_535] {
            let mut record = Vec::new();
            encode_record(slot, &[7; 16], &[9; 512], &mut record);
            assert_eq!(record.len(), record_bytes(512));
            assert_eq!(
                parse_record(slot, 512, &record),
                Record::Put(&[7; 16], &[9; 512])
            );
            assert!(is_sound(slot, 512, &record));
            assert_eq!(parse_record(slot ^ 1, 512, &record), Record::Other);
            assert_eq!(parse_record(slot, 1024, &record), Record::Other);
            for bit in 0..record.len() * 8 {
                let mut flipped = record.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_sound(slot, 512, &flipped), "bit {bit}");
            }
        }
        assert_eq!(parse_record(0, 512, &[0; 536]), Record::Freed);
    }

    #[test]
    fn a_name_is_that_of_one_segment() {
        let known = segment(0x00a0_0000_0007);
        assert_eq!(name_of(known), "segments/000000007-00a");
        assert_eq!(segment_of("segments/000000007-00a"), Some(known));
        assert_eq!(segment_of("000000007-00a"), None);
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_nothing_panics(
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
