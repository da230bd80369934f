//! [`SegmentSpread`]: a segment on the members of a copyset: reading their states, and
//! writing to the target.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{LineageTag, SegmentId, Slot};
use catalog::MemberState;
use unit::{Put, Tag, UnitError};

use super::compare::{Copy, majority};
use super::copy_error::CopyError;
use super::report::{Pace, RepairMember};

/// Bytes written at once.
const AT_ONCE_BYTES: usize = 1 << 20;

/// The most slots read at once.
pub(super) const RUN_SLOTS_MAX: usize = u16::MAX as usize;

/// Damaged slots, by the member that was scrubbed.
pub(super) type Rotten = HashMap<usize, HashSet<u16>>;

/// A segment, the members that hold it, and the member that it is restored on.
pub(super) struct SegmentSpread<'a> {
    pub segment: SegmentId,
    pub members: Vec<RepairMember>,
    /// The member that the segment is restored on.
    pub to: usize,
    /// Each member's copy; `None` also for copies with another slot size.
    pub copies: Vec<Option<Copy>>,
    /// The lineage tag of the segment.
    pub lineage_tag: LineageTag,
    /// Slot size in bytes.
    pub slot_bytes: u32,
    pub pace: &'a dyn Pace,
    pub rotten: Rotten,
    /// Members that failed to answer.
    pub unresponsive: HashSet<usize>,
}

impl<'a> SegmentSpread<'a> {
    /// A segment to restore on member `to`. Its slot size and lineage tag are those of
    /// the draining member at that place, or of most members that are not rebuilding.
    pub fn new(
        segment: SegmentId,
        members: &[RepairMember],
        to: usize,
        copies: &[Option<Copy>],
        pace: &'a dyn Pace,
        rotten: &Rotten,
    ) -> Result<Self, CopyError> {
        let there = || {
            let there = members.iter().zip(copies);
            there.filter_map(|(member, copy)| Some((member, copy.as_ref()?)))
        };
        let leaving = there().find(|(member, _)| is_left_by(member, &members[to]));
        let is_filled = |member: &RepairMember| member.state == MemberState::Rebuilding;
        let voters: Vec<&Copy> = match there().any(|(member, _)| !is_filled(member)) {
            _ if leaving.is_some() => leaving.map(|(_, copy)| copy).into_iter().collect(),
            true => there()
                .filter(|(member, _)| !is_filled(member))
                .map(|(_, copy)| copy)
                .collect(),
            false => there().map(|(_, copy)| copy).collect(),
        };
        let sizes: Vec<u32> = voters.iter().map(|copy| copy.slot_bytes).collect();
        // Not every unit keeps lineage tags.
        let tags_of = |copies: &mut dyn Iterator<Item = &Copy>| -> Vec<LineageTag> {
            let tags = copies.map(|copy| copy.lineage_tag);
            tags.filter(|tag| *tag != LineageTag::NONE).collect()
        };
        let mut lineage_tags = tags_of(&mut voters.into_iter());
        if lineage_tags.is_empty() {
            lineage_tags = tags_of(&mut there().map(|(_, copy)| copy));
        }
        let lineage_tag = match lineage_tags.is_empty() {
            true => Some(LineageTag::NONE),
            false => majority(&lineage_tags),
        };
        let kind = majority(&sizes)
            .or(sizes.is_empty().then_some(0))
            .zip(lineage_tag);
        let (slot_bytes, lineage_tag) = kind.ok_or(CopyError::Disputed)?;
        let is_its = |copy: &&Copy| copy.slot_bytes == slot_bytes;
        let copies = copies.iter();
        Ok(Self {
            segment,
            members: members.to_vec(),
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

    /// Whether a member drains the place that is being restored.
    pub fn is_left_by(&self, member: usize) -> bool {
        is_left_by(&self.members[member], &self.members[self.to])
    }

    /// The number of slots written at once.
    pub fn slots_at_once(&self) -> usize {
        (AT_ONCE_BYTES / self.slot_bytes.max(1) as usize).max(1)
    }

    /// Writes slots from `first` on. Returns the number of bytes.
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
            let own = self.copies[self.to].as_ref();
            let put = match put() {
                // An interrupted put has left an empty file.
                Err(UnitError::Misplaced { slots: 0, .. }) if own.is_none_or(Copy::is_nothing) => {
                    target.delete(self.segment).and_then(|()| put())
                }
                put => put,
            };
            put.map_err(CopyError::Target)?;
        }
        Ok(data.len() as u64)
    }

    /// The present copies of the other members that had one; `None` for those that do
    /// not answer.
    pub fn list_again(&self) -> BTreeMap<usize, Option<Copy>> {
        let others = (0..self.members.len()).filter(|index| *index != self.to);
        let others = others.filter(|index| self.copies[*index].is_some());
        let list = |index: usize| match self.members[index].unit.segment_slots(self.segment) {
            Ok(report) => (index, Some(Copy::of(&report))),
            Err(UnitError::NoSegment { .. }) => (index, Some(Copy::default())),
            Err(_) => (index, None),
        };
        others.map(list).collect()
    }

    /// The damaged slots of a member; if it does not answer, its error is put in `failed`.
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

/// A slot by its index, which is below [`SLOTS_MAX`](unit::format::SLOTS_MAX):
/// [`Copy::of`] ignores any beyond.
pub(super) fn number(slot: usize) -> Slot {
    Slot(u16::try_from(slot).expect("at most 2^16 slots"))
}

/// Whether `member` drains the place of `to`.
fn is_left_by(member: &RepairMember, to: &RepairMember) -> bool {
    member.state == MemberState::Draining && member.place == to.place && member.id != to.id
}
