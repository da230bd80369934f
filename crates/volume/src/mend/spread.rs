//! A segment as it lies on the members of a copyset: asking them, and putting it
//! there.

use std::collections::{HashMap, HashSet};

use base::{SegmentId, Slot};
use unit::{Tag, UnitError};

use super::compare::Copy;
use super::copy::CopyError;
use super::pass::{Mendable, Pace};

/// Bytes copied at once.
const AT_ONCE_BYTES: usize = 1 << 20;

/// Slots whose content is not what was put, of the members that were asked.
pub(super) type Rotten = HashMap<usize, HashSet<u16>>;

/// A segment, and where it lies.
pub(super) struct Spread<'a> {
    pub segment: SegmentId,
    pub members: &'a [Mendable],
    /// How each holds it.
    pub copies: &'a [Option<Copy>],
    pub pace: &'a dyn Pace,
    pub rotten: Rotten,
}

impl Spread<'_> {
    pub fn slot_bytes(&self) -> u32 {
        let there = self.copies.iter().flatten();
        there.map(|copy| copy.slot_bytes).next().unwrap_or(0)
    }

    pub fn line(&self) -> u64 {
        let there = self.copies.iter().flatten();
        there.map(|copy| copy.line).max().unwrap_or(0)
    }

    /// How many slots are copied at once.
    pub fn slots_at_once(&self) -> usize {
        (AT_ONCE_BYTES / self.slot_bytes().max(1) as usize).max(1)
    }

    /// Puts slots from `first` on. Returns how many bytes that were.
    pub fn put(
        &self,
        to: usize,
        first: usize,
        tags: &[Tag],
        data: &[u8],
    ) -> Result<u64, CopyError> {
        let target = &self.members[to].unit;
        let (line, slot_bytes) = (self.line(), self.slot_bytes());
        let at_once = match target.can_append() {
            true => self.slots_at_once(),
            false => tags.len().max(1),
        };
        let parts = tags
            .chunks(at_once)
            .zip(data.chunks(at_once * slot_bytes as usize));
        for (first, (tags, data)) in (first..).step_by(at_once).zip(parts) {
            self.pace.step(data.len() as u64)?;
            let slot = Slot(u16::try_from(first).unwrap_or(u16::MAX));
            let put = target.put_for(line, self.segment, slot_bytes, slot, tags, data);
            put.map_err(CopyError::Target)?;
        }
        Ok(data.len() as u64)
    }

    /// What of a member has rotted. Why, if it cannot say, is left in `failed`.
    pub fn rotten(
        &mut self,
        member: usize,
        failed: &mut Option<UnitError>,
    ) -> Result<Option<&HashSet<u16>>, CopyError> {
        if !self.rotten.contains_key(&member) {
            self.pace.step(0)?;
            match self.members[member].unit.scrub(self.segment) {
                Ok(bad) => {
                    let bad = bad.into_iter().map(|slot| slot.0).collect();
                    self.rotten.insert(member, bad);
                }
                Err(error) => *failed = Some(error),
            }
        }
        Ok(self.rotten.get(&member))
    }
}
