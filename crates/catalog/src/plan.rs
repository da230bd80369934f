//! A list of slots to free, as it lies in the catalog.
//!
//! ```text
//!  0│ format u32 = 1 │ segments u32              │
//!  8│ for each segment: number u64, slots u32,   │
//!   │ then that many slots, u16 each             │
//! ```
//!
//! It names places, not content; the catalog may know it.

use std::collections::{BTreeMap, BTreeSet};

use base::codec::{OutOfBytes, Reader, Writer};
use base::{Location, SegmentId, Slot};

const FORMAT: u32 = 1;

/// Longer plans are split before they are kept, in bytes: one is carried out in
/// one go and lies in memory meanwhile.
pub const PLAN_BYTES_MAX: usize = 1 << 20;

/// What the head of a plan takes, and that of a segment in it, in bytes.
const HEAD_BYTES: usize = 8;
const SEGMENT_BYTES: usize = 12;

/// Slots to free, by segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FreePlan {
    segments: BTreeMap<SegmentId, BTreeSet<u16>>,
}

/// Why bytes are not a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPlan {
    /// They end early.
    #[error(transparent)]
    Short(#[from] OutOfBytes),
    /// A newer program wrote them.
    #[error("the free plan has format {0}; this program knows format 1")]
    Format(u32),
    /// A segment's number has over 48 bits.
    #[error("the free plan names a segment that cannot be")]
    Segment,
}

impl FreePlan {
    /// Adds a slot.
    pub fn add(&mut self, location: Location) {
        self.segments
            .entry(location.segment())
            .or_default()
            .insert(location.slot().0);
    }

    /// Whether there is nothing to free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// How many slots there are to free.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.segments.values().map(BTreeSet::len).sum()
    }

    /// The slots of each segment, in order.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, Vec<Slot>)> + '_ {
        self.segments
            .iter()
            .map(|(id, slots)| (*id, slots.iter().copied().map(Slot).collect()))
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = |length: usize| u32::try_from(length).expect("far fewer than 2^32");
        let mut bytes = Vec::new();
        bytes.put_u32(FORMAT);
        bytes.put_u32(count(self.segments.len()));
        for (segment, slots) in &self.segments {
            bytes.put_u64(segment.bits());
            bytes.put_u32(count(slots.len()));
            for slot in slots {
                bytes.put_u16(*slot);
            }
        }
        bytes
    }

    /// The same slots in plans of at most `bytes_max` encoded bytes each, or of
    /// a single segment where that alone takes more (at most 128 KiB).
    #[must_use]
    pub fn split(self, bytes_max: usize) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        let mut room = 0;
        for (segment, slots) in self.segments {
            let needed = SEGMENT_BYTES + 2 * slots.len();
            if needed > room {
                parts.push(Self::default());
                room = bytes_max.saturating_sub(HEAD_BYTES);
            }
            room = room.saturating_sub(needed);
            if let Some(part) = parts.last_mut() {
                part.segments.insert(segment, slots);
            }
        }
        parts
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// [`BadPlan`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPlan> {
        let mut reader = Reader::new(bytes);
        let format = reader.u32()?;
        if format != FORMAT {
            return Err(BadPlan::Format(format));
        }
        let mut plan = Self::default();
        for _ in 0..reader.u32()? {
            let segment = SegmentId::from_bits(reader.u64()?).ok_or(BadPlan::Segment)?;
            let slots = plan.segments.entry(segment).or_default();
            for _ in 0..reader.u32()? {
                slots.insert(reader.u16()?);
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_plan_holds_the_same_slots_in_pieces_that_are_small() {
        let mut plan = FreePlan::default();
        for segment in 0..100_u64 {
            for slot in 0..=segment {
                plan.add(Location::from_bits(segment << 16 | slot));
            }
        }
        assert_eq!(plan.clone().split(PLAN_BYTES_MAX), [plan.clone()]);
        assert_eq!(FreePlan::default().split(PLAN_BYTES_MAX), []);
        let parts = plan.clone().split(1000);
        assert!(parts.iter().all(|part| part.encode().len() <= 1000));
        assert!(parts.len() < 20, "and not more of them than need be");
        let segments = |plan: &FreePlan| plan.segments().collect::<Vec<_>>();
        let all: Vec<_> = parts.iter().flat_map(segments).collect();
        assert_eq!(all, segments(&plan));
        assert_eq!(plan.split(1).len(), 100, "no segment is cut");
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
