//! The bodies of successful answers.

use base::codec::{Reader, Writer};
use base::{LineageTag, SegmentId, Slot, UnitId};
use unit::format::{SLOTS_MAX, is_slot_size};
use unit::{SegmentSlots, SegmentStat, UnitStat};

use super::{Malformed, request};

/// Maximum content of a segment that a host believes, in bytes: 8 times the default.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// The answer to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// The version of the protocol.
    pub version: u16,
    /// Maximum length of a body that the daemon accepts, in bytes.
    pub body_bytes_max: u32,
    /// The unit of the daemon.
    pub unit: UnitId,
    /// Identifies this run of the daemon. Puts to another run that were not synced may be lost.
    pub incarnation: u64,
    /// Time of the daemon, in milliseconds since 1970.
    pub now_ms: i64,
    /// Maximum bytes of requests and answers that the daemon holds for one connection.
    pub held_bytes_max: u32,
}

impl Greeting {
    /// Appends the body.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.put_u16(self.version);
        to.put_u16(0);
        to.put_u32(self.body_bytes_max);
        to.put_u128(self.unit.as_u128());
        to.put_u64(self.incarnation);
        // Two's complement, as Rust casts.
        to.put_u64(self.now_ms as u64);
        to.put_u32(self.held_bytes_max);
        to.put_u32(0);
    }

    /// Parses the body. Fields that a later version appends are ignored.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let version = reader.u16()?;
        reader.u16()?;
        let body_bytes_max = reader.u32()?;
        let number = reader.u128()?;
        let unit = UnitId::from_u128(number);
        if unit.as_u128() != number {
            return Err(Malformed("the unit's id is invalid"));
        }
        Ok(Self {
            version,
            body_bytes_max,
            unit,
            incarnation: reader.u64()?,
            now_ms: reader.u64()? as i64,
            held_bytes_max: reader.u32()?,
        })
    }
}

/// Appends segments; about 260,000 fit in a frame.
pub fn encode_segments(segments: &[SegmentId], to: &mut Vec<u8>) {
    segments.iter().for_each(|id| to.put_u64(id.bits()));
}

/// Parses a body of segments.
///
/// # Errors
/// [`Malformed`].
pub fn decode_segments(body: &[u8]) -> Result<Vec<SegmentId>, Malformed> {
    segments(&mut Reader::new(body))
}

pub(super) fn segments(reader: &mut Reader<'_>) -> Result<Vec<SegmentId>, Malformed> {
    let mut segments = Vec::with_capacity(reader.remaining() / 8);
    while reader.remaining() > 0 {
        segments.push(request::segment(reader)?);
    }
    Ok(segments)
}

/// Appends slots.
pub fn encode_slots(slots: &[Slot], to: &mut Vec<u8>) {
    slots.iter().for_each(|slot| to.put_u16(slot.0));
}

/// Parses a body of slots.
///
/// # Errors
/// [`Malformed`].
pub fn decode_slots(body: &[u8]) -> Result<Vec<Slot>, Malformed> {
    match body.as_chunks() {
        (slots, []) => Ok(slots
            .iter()
            .map(|slot| Slot(u16::from_le_bytes(*slot)))
            .collect()),
        _ => Err(Malformed("the length of the slots is odd")),
    }
}

/// Length of an encoded [`SegmentStat`], in bytes.
const STAT_BYTES: usize = 24;

/// Appends the numbers of a segment whose lineage tag is `lineage_tag`, as the answer to a STAT.
pub fn encode_stat(stat: &SegmentStat, lineage_tag: LineageTag, to: &mut Vec<u8>) {
    to.put_u64(lineage_tag.0);
    to.put_u32(stat.slot_bytes);
    to.put_u32(stat.slots);
    to.put_u32(stat.freed);
    to.put_u16(stat.generation);
    to.put_u16(0);
}

/// Parses the numbers and the lineage tag of `segment`. Refuses impossible numbers, because the
/// caller allocates memory for the segment.
///
/// # Errors
/// [`Malformed`].
pub fn decode_stat(
    segment: SegmentId,
    body: &[u8],
) -> Result<(SegmentStat, LineageTag), Malformed> {
    let mut reader = Reader::new(body);
    let lineage_tag = LineageTag(reader.u64()?);
    let stat = SegmentStat {
        segment,
        slot_bytes: reader.u32()?,
        slots: reader.u32()?,
        freed: reader.u32()?,
        generation: reader.u16()?,
    };
    if !is_slot_size(stat.slot_bytes) {
        return Err(Malformed("the slot size is invalid"));
    }
    let bytes = u64::from(stat.slots) * u64::from(stat.slot_bytes);
    if stat.slots > SLOTS_MAX || stat.freed > stat.slots || bytes > SEGMENT_BYTES_MAX {
        return Err(Malformed("the number of slots is invalid"));
    }
    Ok((stat, lineage_tag))
}

/// Appends the answer to a STAT: the numbers of a segment, and a bit for each slot, which is set
/// if the slot was freed. Slot 0 is the lowest bit of the first byte.
pub fn encode_segment_slots(slots: &SegmentSlots, to: &mut Vec<u8>) {
    encode_stat(&slots.stat, slots.lineage_tag, to);
    let mut bits = vec![0_u8; (slots.stat.slots as usize).div_ceil(8)];
    for slot in &slots.freed {
        if let Some(byte) = bits.get_mut(usize::from(slot.0) / 8) {
            *byte |= 1 << (slot.0 % 8);
        }
    }
    to.put_bytes(&bits);
}

/// Parses the answer to a STAT of `segment`.
///
/// # Errors
/// [`Malformed`].
pub fn decode_segment_slots(segment: SegmentId, body: &[u8]) -> Result<SegmentSlots, Malformed> {
    let (stat, lineage_tag) = decode_stat(segment, body)?;
    let bits = body.get(STAT_BYTES..).unwrap_or_default();
    if bits.len() < (stat.slots as usize).div_ceil(8) {
        return Err(Malformed("the bits of freed slots are missing"));
    }
    let is_freed = |slot: &u32| bits[*slot as usize / 8] & (1 << (slot % 8)) != 0;
    let freed = (0..stat.slots).filter(is_freed);
    Ok(SegmentSlots {
        stat,
        lineage_tag,
        freed: freed
            .filter_map(|slot| u16::try_from(slot).ok().map(Slot))
            .collect(),
    })
}

/// Stands for unknown free room.
const UNKNOWN_BYTES: u64 = u64::MAX;

/// Appends the answer to a UNIT-STAT.
pub fn encode_unit_stat(stat: &UnitStat, to: &mut Vec<u8>) {
    to.put_u64(stat.segments);
    to.put_u64(stat.bytes);
    to.put_u64(stat.free_bytes.unwrap_or(UNKNOWN_BYTES));
}

/// Parses the answer to a UNIT-STAT.
///
/// # Errors
/// [`Malformed`].
pub fn decode_unit_stat(body: &[u8]) -> Result<UnitStat, Malformed> {
    let mut reader = Reader::new(body);
    Ok(UnitStat {
        segments: reader.u64()?,
        bytes: reader.u64()?,
        free_bytes: Some(reader.u64()?).filter(|free| *free != UNKNOWN_BYTES),
        incarnation: None,
    })
}

#[cfg(test)]
mod tests {
    use base::CopysetId;

    use super::*;

    #[test]
    fn answers_round_trip_and_short_ones_are_refused() {
        let segment = SegmentId::new(CopysetId::new(3).expect("one"), 77).expect("one");
        let greeting = Greeting {
            version: 1,
            body_bytes_max: 5,
            unit: UnitId::from_u128(0x0_1234_5678_9abc_def0),
            incarnation: 6,
            now_ms: -7,
            held_bytes_max: 8,
        };
        let mut bytes = Vec::new();
        greeting.encode(&mut bytes);
        assert_eq!(Greeting::decode(&bytes), Ok(greeting));
        assert!(Greeting::decode(&bytes[..43]).is_err());
        bytes.extend([1; 9]);
        assert_eq!(Greeting::decode(&bytes), Ok(greeting), "of a later version");
        bytes[8..24].fill(0xff);
        assert!(Greeting::decode(&bytes).is_err(), "no unit's id");

        let stat = SegmentStat {
            segment,
            slot_bytes: 4096,
            slots: 7,
            freed: 3,
            generation: 4,
        };
        let mut bytes = Vec::new();
        encode_stat(&stat, LineageTag(9), &mut bytes);
        assert_eq!(decode_stat(segment, &bytes), Ok((stat, LineageTag(9))));
        assert!(decode_stat(segment, &bytes[..21]).is_err());
        let none = [
            (0, 7, 3),
            (511, 7, 3),
            (600, 7, 3),
            (u32::MAX - 511, 1, 0),
            ((1 << 20) + 512, 1, 0),
            (4096, (1 << 16) + 1, 0),
            (4096, 7, 8),
            // 64 MiB, and a slot.
            (4096, (1 << 14) + 1, 0),
            (1 << 20, 65, 0),
        ];
        for (slot_bytes, slots, freed) in none {
            let stat = SegmentStat {
                slot_bytes,
                slots,
                freed,
                ..stat
            };
            let mut bytes = Vec::new();
            encode_stat(&stat, LineageTag(9), &mut bytes);
            bytes.extend(vec![0; slots as usize / 8 + 1]);
            assert!(decode_stat(segment, &bytes).is_err(), "{stat:?}");
            assert!(decode_segment_slots(segment, &bytes).is_err(), "{stat:?}");
        }

        for free_bytes in [None, Some(0), Some(1 << 40)] {
            let stat = UnitStat {
                incarnation: None,
                segments: 1,
                bytes: 2,
                free_bytes,
            };
            let mut bytes = Vec::new();
            encode_unit_stat(&stat, &mut bytes);
            assert_eq!(decode_unit_stat(&bytes), Ok(stat));
            assert!(decode_unit_stat(&bytes[..23]).is_err());
        }

        let (segments, slots) = ([segment, segment], [Slot(1), Slot(u16::MAX)]);
        let mut bytes = Vec::new();
        encode_segments(&segments, &mut bytes);
        assert_eq!(decode_segments(&bytes).as_deref(), Ok(&segments[..]));
        assert!(decode_segments(&bytes[1..]).is_err());
        let mut bytes = Vec::new();
        encode_slots(&slots, &mut bytes);
        assert_eq!(decode_slots(&bytes).as_deref(), Ok(&slots[..]));
        assert!(decode_slots(&bytes[1..]).is_err());
    }
}
