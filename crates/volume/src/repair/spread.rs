//! A segment as it lies on the members of a copyset: asking them, and putting it
//! there.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{LineageTag, SegmentId, Slot};
use unit::{Put, Tag, UnitError};

use super::compare::{Copy, most};
use super::copy::CopyError;
use super::report::{Pace, Repairable};
use crate::catalog::MemberState;

/// Bytes copied at once.
const AT_ONCE_BYTES: usize = 1 << 20;

/// Slots that are read at once, at most.
pub(super) const RUN_SLOTS_MAX: usize = u16::MAX as usize;

/// Slots whose content is not what was put, of the members that were asked.
pub(super) type Rotten = HashMap<usize, HashSet<u16>>;

/// A segment, where it lies, and where it is brought.
pub(super) struct Spread<'a> {
    pub segment: SegmentId,
    pub members: &'a [Repairable],
    /// The member that it is brought to.
    pub to: usize,
    /// How each holds it; `None` also for those whose slots have another size.
    pub copies: Vec<Option<Copy>>,
    /// To whom it belongs.
    pub lineage_tag: LineageTag,
    /// The size of its slots.
    pub slot_bytes: u32,
    pub pace: &'a dyn Pace,
    pub rotten: Rotten,
    /// Members that did not answer as they should.
    pub unresponsive: HashSet<usize>,
}

impl<'a> Spread<'a> {
    /// A segment that is to be brought to member `to`. Of what kind it is the member
    /// says that leaves its place, or most of those that are not filled.
    pub fn new(
        segment: SegmentId,
        (members, to): (&'a [Repairable], usize),
        copies: &[Option<Copy>],
        pace: &'a dyn Pace,
        rotten: &Rotten,
    ) -> Result<Self, CopyError> {
        let there = || {
            let there = members.iter().zip(copies);
            there.filter_map(|(member, copy)| Some((member, copy.as_ref()?)))
        };
        let leaving = there().find(|(member, _)| is_left_by(member, &members[to]));
        let is_filled = |member: &Repairable| member.state == MemberState::Filling;
        let asked: Vec<&Copy> = match there().any(|(member, _)| !is_filled(member)) {
            _ if leaving.is_some() => leaving.map(|(_, copy)| copy).into_iter().collect(),
            true => there()
                .filter(|(member, _)| !is_filled(member))
                .map(|(_, copy)| copy)
                .collect(),
            false => there().map(|(_, copy)| copy).collect(),
        };
        let sizes: Vec<u32> = asked.iter().map(|copy| copy.slot_bytes).collect();
        // Some units store no lineage tags.
        let tags_of = |copies: &mut dyn Iterator<Item = &Copy>| -> Vec<LineageTag> {
            let tags = copies.map(|copy| copy.lineage_tag);
            tags.filter(|tag| *tag != LineageTag::NONE).collect()
        };
        let mut lineage_tags = tags_of(&mut asked.into_iter());
        if lineage_tags.is_empty() {
            lineage_tags = tags_of(&mut there().map(|(_, copy)| copy));
        }
        let lineage_tag = match lineage_tags.is_empty() {
            true => Some(LineageTag::NONE),
            false => most(&lineage_tags),
        };
        let kind = most(&sizes)
            .or(sizes.is_empty().then_some(0))
            .zip(lineage_tag);
        let (slot_bytes, lineage_tag) = kind.ok_or(CopyError::Disputed)?;
        let is_its = |copy: &&Copy| copy.slot_bytes == slot_bytes;
        let copies = copies.iter();
        Ok(Self {
            segment,
            members,
            to,
            copies: copies
                .map(|copy| copy.as_ref().filter(is_its).cloned())
                .collect(),
            lineage_tag,
            slot_bytes,
            pace,
            rotten: rotten.clone(),
            unresponsive: HashSet::new(),
        })
    }

    /// Whether a member leaves the place that is filled.
    pub fn is_left_by(&self, member: usize) -> bool {
        is_left_by(&self.members[member], &self.members[self.to])
    }

    /// How many slots are copied at once.
    pub fn slots_at_once(&self) -> usize {
        (AT_ONCE_BYTES / self.slot_bytes.max(1) as usize).max(1)
    }

    /// Puts slots from `first` on. Returns how many bytes that were.
    pub fn put(&self, first: usize, tags: &[Tag], data: &[u8]) -> Result<u64, CopyError> {
        let target = &self.members[self.to].unit;
        let (lineage_tag, slot_bytes) = (self.lineage_tag, self.slot_bytes);
        let at_once = match target.can_append() {
            true => self.slots_at_once(),
            false => tags.len().max(1),
        };
        let parts = tags
            .chunks(at_once)
            .zip(data.chunks(at_once * slot_bytes as usize));
        for (first, (tags, data)) in (first..).step_by(at_once).zip(parts) {
            self.pace.step(data.len() as u64)?;
            let put = || {
                target.put(Put {
                    lineage_tag,
                    segment: self.segment,
                    slot_bytes,
                    first: number(first),
                    tags,
                    data,
                })
            };
            let had = self.copies[self.to].as_ref();
            let put = match put() {
                // A put that was cut short has left a file without anything in it.
                Err(UnitError::Misplaced { slots: 0, .. }) if had.is_none_or(Copy::is_nothing) => {
                    target.delete(self.segment).and_then(|()| put())
                }
                put => put,
            };
            put.map_err(CopyError::Target)?;
        }
        Ok(data.len() as u64)
    }

    /// How those hold it now that held it, but the one that it is brought to; `None`
    /// for those that cannot say.
    pub fn look_again(&self) -> BTreeMap<usize, Option<Copy>> {
        let others = (0..self.members.len()).filter(|index| *index != self.to);
        let others = others.filter(|index| self.copies[*index].is_some());
        let look = |index: usize| match self.members[index].unit.segment_slots(self.segment) {
            Ok(told) => (index, Some(Copy::of(&told))),
            Err(UnitError::NoSegment { .. }) => (index, Some(Copy::default())),
            Err(_) => (index, None),
        };
        others.map(look).collect()
    }

    /// What of a member has rotted. Why, if it cannot say, is left in `failed`.
    pub fn rotten(
        &mut self,
        member: usize,
        failed: &mut Option<UnitError>,
    ) -> Result<Option<&HashSet<u16>>, CopyError> {
        if self.unresponsive.contains(&member) {
            return Ok(None);
        }
        if !self.rotten.contains_key(&member) {
            self.pace.step(0)?;
            match self.members[member].unit.scrub(self.segment) {
                Ok(bad) => {
                    let bad = bad.into_iter().map(|slot| slot.0).collect();
                    self.rotten.insert(member, bad);
                }
                Err(error) => {
                    self.unresponsive.insert(member);
                    *failed = Some(error);
                }
            }
        }
        Ok(self.rotten.get(&member))
    }
}

/// A slot by its index, which is below [`SLOTS_MAX`](unit::format::SLOTS_MAX): no member
/// is believed to have more ([`Copy::of`]).
pub(super) fn number(slot: usize) -> Slot {
    Slot(u16::try_from(slot).expect("at most 2^16 slots"))
}

/// Whether `member` leaves the place at which `to` is filled.
fn is_left_by(member: &Repairable, to: &Repairable) -> bool {
    member.state == MemberState::Leaving && member.place == to.place && member.id != to.id
}
