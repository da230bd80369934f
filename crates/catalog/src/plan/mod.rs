//! [`FreePlan`]: a set of slots to free, as the catalog stores it.
//!
//! ```text
//!  0│ format u32 = 1 │ segments u32                      │
//!  8│ for each segment: number u64, form u16, count u16, │
//!   │ then, whichever is shorter,                        │
//!   │ form 0: count runs: first and last slot, u16 each, │
//!   │         in order and not touching each other       │
//!   │ form 1: count words u64: bit n of word w is        │
//!   │         slot 64 w + n                              │
//! ```
//!
//! So a version takes at most one bit for each slot of its segments, and hardly
//! anything where a whole segment is freed. Segments are in the order of their
//! numbers, none is without a slot, and nothing follows the last one.
//!
//! A plan names locations, not content; the catalog may read it.

use std::collections::BTreeMap;

use base::codec::{OutOfBytes, Reader, Writer};
use base::{Location, SegmentId, Slot};

use slots::Slots;

mod slots;

const FORMAT: u32 = 1;

/// The longest plan that is stored, in bytes; longer ones are split. A plan is
/// carried out at once, and is in memory meanwhile.
pub const PLAN_BYTES_MAX: usize = 1 << 20;

/// The most segments of a stored plan: each is one call to a unit.
const PLAN_SEGMENTS_MAX: usize = 1024;

/// Size of a plan's head and of a segment's number in it, in bytes.
const HEAD_BYTES: usize = 8;
const NUMBER_BYTES: usize = 8;

/// A set of slots to free, by segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FreePlan {
    segments: BTreeMap<SegmentId, Slots>,
}

/// Why bytes are not a valid plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPlan {
    /// The plan ends early.
    #[error(transparent)]
    Short(#[from] OutOfBytes),
    /// A newer build wrote it.
    #[error("the free plan has format {0}; this build reads format {FORMAT}")]
    Format(u32),
    /// A segment's number has over 48 bits, or is not above the one before.
    #[error("the free plan has an invalid segment number, or one out of order")]
    Segment,
    /// A segment has no slots, or an unknown encoding of them.
    #[error("the free plan has a segment with invalid slots, or without slots")]
    Slots,
    /// Bytes follow the last segment.
    #[error("the free plan has {0} bytes after its end")]
    Long(usize),
}

/// An iterator over the segments of an encoded plan.
struct Segments<'a> {
    reader: Reader<'a>,
    /// Segments that have not been read yet.
    left: u32,
    last: Option<SegmentId>,
}

impl<'a> Segments<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self, BadPlan> {
        let mut reader = Reader::new(bytes);
        match reader.u32()? {
            FORMAT => {}
            other => return Err(BadPlan::Format(other)),
        }
        let left = reader.u32()?;
        Ok(Self {
            reader,
            left,
            last: None,
        })
    }

    /// The next segment; `None` after the last.
    fn next(&mut self) -> Result<Option<(SegmentId, Slots)>, BadPlan> {
        if self.left == 0 {
            return match self.reader.remaining() {
                0 => Ok(None),
                more => Err(BadPlan::Long(more)),
            };
        }
        self.left -= 1;
        let segment = SegmentId::from_bits(self.reader.u64()?).ok_or(BadPlan::Segment)?;
        if self.last.is_some_and(|last| last >= segment) {
            return Err(BadPlan::Segment);
        }
        self.last = Some(segment);
        let slots = Slots::decode(&mut self.reader)?;
        match slots.is_empty() {
            true => Err(BadPlan::Slots),
            false => Ok(Some((segment, slots))),
        }
    }
}

impl FreePlan {
    /// Adds a slot.
    pub fn add(&mut self, location: Location) {
        self.segments
            .entry(location.segment())
            .or_default()
            .insert(location.slot().0);
    }

    /// Adds the slots of another plan.
    pub fn extend(&mut self, other: &Self) {
        for (segment, slots) in &other.segments {
            let all = self.segments.entry(*segment).or_default();
            slots.iter().for_each(|slot| all.insert(slot));
        }
    }

    /// The part of the plan for these segments.
    #[must_use]
    pub fn only(&self, segments: &[SegmentId]) -> Self {
        let named = |segment: &SegmentId| {
            let slots = self.segments.get(segment)?;
            Some((*segment, slots.clone()))
        };
        Self {
            segments: segments.iter().filter_map(named).collect(),
        }
    }

    /// Removes a segment from the plan.
    pub fn remove(&mut self, segment: SegmentId) {
        self.segments.remove(&segment);
    }

    /// Whether the plan is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The number of slots to free.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.segments.values().map(Slots::len).sum()
    }

    /// The slots of each segment, in order.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, Vec<Slot>)> + '_ {
        self.segments
            .iter()
            .map(|(id, slots)| (*id, slots.iter().map(Slot).collect()))
    }

    /// Encodes the plan.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u32(FORMAT);
        bytes.put_u32(u32::try_from(self.segments.len()).expect("far fewer than 2^32"));
        for (segment, slots) in &self.segments {
            bytes.put_u64(segment.bits());
            bytes.extend(slots.encode());
        }
        bytes
    }

    /// Splits an encoded plan into encoded plans of at most `bytes_max` bytes each, or
    /// of a single segment where that alone takes more (at most 8 KiB). Only one of
    /// them is decoded at a time.
    ///
    /// # Errors
    /// [`BadPlan`].
    pub fn split(bytes: &[u8], bytes_max: usize) -> Result<Vec<Vec<u8>>, BadPlan> {
        let mut segments = Segments::of(bytes)?;
        let mut parts = Vec::new();
        let mut part = Self::default();
        let mut taken = HEAD_BYTES;
        while let Some((segment, slots)) = segments.next()? {
            let needed = NUMBER_BYTES + slots.encode().len();
            let is_full = taken + needed > bytes_max || part.segments.len() == PLAN_SEGMENTS_MAX;
            if is_full && !part.is_empty() {
                parts.push(std::mem::take(&mut part).encode());
                taken = HEAD_BYTES;
            }
            taken += needed;
            part.segments.insert(segment, slots);
        }
        if !part.is_empty() {
            parts.push(part.encode());
        }
        Ok(parts)
    }

    /// Decodes a plan.
    ///
    /// # Errors
    /// [`BadPlan`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPlan> {
        let mut segments = Segments::of(bytes)?;
        let mut plan = Self::default();
        while let Some((segment, slots)) = segments.next()? {
            plan.segments.insert(segment, slots);
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_plan_has_the_same_slots_in_small_parts() {
        let mut plan = FreePlan::default();
        for segment in 0..100_u64 {
            for slot in 0..=segment {
                plan.add(Location::from_bits(segment << 16 | slot));
            }
        }
        assert_eq!(split(&plan, PLAN_BYTES_MAX), std::slice::from_ref(&plan));
        assert_eq!(split(&FreePlan::default(), PLAN_BYTES_MAX), []);
        let parts = split(&plan, 1000);
        assert!(parts.iter().all(|part| part.encode().len() <= 1000));
        assert!(parts.len() < 20, "no more parts than needed");
        let segments = |plan: &FreePlan| plan.segments().collect::<Vec<_>>();
        let all: Vec<_> = parts.iter().flat_map(segments).collect();
        assert_eq!(all, segments(&plan));
        assert_eq!(split(&plan, 1).len(), 100, "no segment is split");
    }

    fn split(plan: &FreePlan, bytes_max: usize) -> Vec<FreePlan> {
        let parts = FreePlan::split(&plan.encode(), bytes_max).expect("a plan");
        let parts = parts.iter().map(|part| FreePlan::decode(part));
        parts.collect::<Result<_, _>>().expect("plans")
    }

    fn of(slots: impl IntoIterator<Item = u16>) -> FreePlan {
        let mut plan = FreePlan::default();
        for slot in slots {
            plan.add(Location::from_bits(7 << 16 | u64::from(slot)));
        }
        plan
    }

    #[test]
    fn a_plan_of_many_segments_is_split_however_short_it_is() {
        let mut plan = FreePlan::default();
        for segment in 0..3000_u64 {
            plan.add(Location::from_bits(segment << 16));
        }
        let parts = split(&plan, PLAN_BYTES_MAX);
        let counts: Vec<_> = parts.iter().map(|part| part.segments.len()).collect();
        assert_eq!(counts, [1024, 1024, 952]);
    }

    /// A plan of format 1: segment 7 with the run 2 to 5 and slot 9, and segment 8 with
    /// the even slots 0 to 14.
    const FIXTURE: [u8; 56] = [
        1, 0, 0, 0, 2, 0, 0, 0, // format, segments
        7, 0, 0, 0, 0, 0, 0, 0, // segment 7
        0, 0, 2, 0, 2, 0, 5, 0, 9, 0, 9, 0, // form 0, two runs
        8, 0, 0, 0, 0, 0, 0, 0, // segment 8
        1, 0, 2, 0, // form 1, two words
        0x55, 0x55, 0, 0, 0, 0, 0, 0, // word 0
        1, 0, 0, 0, 0, 0, 0, 0, // word 1
    ];

    #[test]
    fn a_plan_has_format_1_and_a_newer_one_is_refused_by_its_number() {
        let mut plan = of([2, 3, 4, 5, 9]);
        for slot in (0..16).step_by(2).chain([64]) {
            plan.add(Location::from_bits(8 << 16 | slot));
        }
        assert_eq!(plan.encode(), FIXTURE);
        assert_eq!(FreePlan::decode(&FIXTURE), Ok(plan));
        let mut newer = FIXTURE;
        newer[0] = 2;
        assert_eq!(FreePlan::decode(&newer), Err(BadPlan::Format(2)));
    }

    #[test]
    fn invalid_plans_are_refused() {
        // Each with slot 5 alone, or none.
        let plan = |segments: &[(u64, u16)]| {
            let mut bytes = Vec::new();
            bytes.put_u32(FORMAT);
            bytes.put_u32(segments.len() as u32);
            for (segment, runs) in segments {
                bytes.put_u64(*segment);
                bytes.put_u16(0);
                bytes.put_u16(*runs);
                (0..2 * runs).for_each(|_| bytes.put_u16(5));
            }
            bytes
        };
        let bits = |word| {
            let mut bytes = Vec::new();
            bytes.put_u32(FORMAT);
            bytes.put_u32(1);
            bytes.put_u64(7);
            bytes.put_u16(1);
            bytes.put_u16(1);
            bytes.put_u64(word);
            bytes
        };
        for valid in [plan(&[(7, 1), (8, 1)]), bits(32)] {
            assert!(FreePlan::decode(&valid).is_ok());
            let longer = [valid.as_slice(), &[0]].concat();
            assert_eq!(FreePlan::decode(&longer), Err(BadPlan::Long(1)));
        }
        for (bytes, why) in [
            (plan(&[(7, 1), (7, 1)]), BadPlan::Segment),
            (plan(&[(8, 1), (7, 1)]), BadPlan::Segment),
            (plan(&[(1 << 48, 1)]), BadPlan::Segment),
            (plan(&[(7, 1), (8, 0)]), BadPlan::Slots),
            (bits(0), BadPlan::Slots),
        ] {
            assert_eq!(FreePlan::decode(&bytes), Err(why));
            assert_eq!(FreePlan::split(&bytes, PLAN_BYTES_MAX), Err(why));
        }
    }

    #[test]
    fn a_plan_is_read_back() {
        let mut plan = FreePlan::default();
        for bits in [70_000, 70_001, 1 << 40, 70_000] {
            plan.add(Location::from_bits(bits));
        }
        assert_eq!(plan.slots(), 3);
        let bytes = plan.encode();
        assert_eq!(FreePlan::decode(&bytes), Ok(plan));
        for length in 0..bytes.len() {
            assert!(FreePlan::decode(&bytes[..length]).is_err());
        }
        assert_eq!(
            FreePlan::decode(&[9; 64]),
            Err(BadPlan::Format(0x0909_0909))
        );
    }
}
