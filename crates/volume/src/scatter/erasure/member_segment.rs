//! What a single member has of a segment, and what is done with it there. Members are
//! queried one at a time; nothing here knows a row.

use std::collections::BTreeSet;

use base::{SegmentId, Slot};
use catalog::Erasure;
use unit::{Read, SegmentStat, SlotRun, Tag, Unit as _, UnitError};

use super::masks::Masks;
use crate::scatter::Member;

/// Reads one slot.
pub(super) fn read_slot(
    member: &Member,
    segment: SegmentId,
    slot: Slot,
    slot_bytes: u32,
) -> Result<(Tag, Vec<u8>), UnitError> {
    let run = SlotRun {
        segment,
        first: slot,
        count: 1,
    };
    let (mut tag, mut content) = ([[0; 16]], vec![0; slot_bytes as usize]);
    member.unit.read(Read {
        run,
        slot_bytes,
        tags: &mut tag,
        data: &mut content,
    })?;
    Ok((tag[0], content))
}

/// Whether a slot holds only zeroes, which no sealed slot does.
pub(super) fn is_empty(member: &Member, segment: SegmentId, slot: Slot, slot_bytes: u32) -> bool {
    let read = read_slot(member, segment, slot, slot_bytes);
    read.is_ok_and(|(tag, content)| tag.iter().chain(&content).all(|byte| *byte == 0))
}

/// A segment's status on a member; `None` if it has none, or only the unreadable
/// remains of a failed put.
pub(super) fn stat_of(
    member: &Member,
    segment: SegmentId,
) -> Result<Option<SegmentStat>, UnitError> {
    match member.unit.stat_segment(segment) {
        Ok(stat) => Ok(Some(stat)),
        Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// As [`stat_of`], with the slots that are not freed.
pub(super) fn kept_by(
    member: &Member,
    segment: SegmentId,
) -> Result<Option<(SegmentStat, Vec<Slot>)>, UnitError> {
    let slots = match member.unit.segment_slots(segment) {
        Ok(slots) => slots,
        Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let freed: BTreeSet<Slot> = slots.freed.into_iter().collect();
    let all = (0..slots.stat.slots).filter_map(|slot| u16::try_from(slot).ok().map(Slot));
    let kept = all.filter(|slot| !freed.contains(slot)).collect();
    Ok(Some((slots.stat, kept)))
}

/// Reads the generation and masks of a parity member; `None` if it has nothing of the segment.
pub(super) fn read_masks(
    member: &Member,
    segment: SegmentId,
    erasure: Erasure,
    parity: u8,
) -> Result<Option<(u16, Masks)>, UnitError> {
    if stat_of(member, segment)?.is_none() {
        return Ok(None);
    }
    match Masks::read(&*member.unit, segment, erasure, parity) {
        Err(UnitError::NoSegment { .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// Removes a segment from a member.
pub(super) fn remove(member: &Member, segment: SegmentId) -> Result<(), UnitError> {
    let slots = match member.unit.stat_segment(segment) {
        Ok(stat) => stat.slots,
        Err(UnitError::NoSegment { .. }) => 0,
        Err(UnitError::Damaged { .. }) => return member.unit.delete(segment),
        Err(error) => return Err(error),
    };
    // Freed rather than deleted: the right to free is enough for that.
    let all = (0..slots).filter_map(|slot| u16::try_from(slot).ok().map(Slot));
    member.unit.free(segment, &all.collect::<Vec<_>>(), true)
}
