//! [`SegmentState`]: a segment as the members report it, before anything is decided. Nothing
//! here writes to a unit.

use std::collections::{HashMap, HashSet};

use base::SegmentId;
use catalog::{Erasure, MemberState};
use unit::UnitError;

use super::compare::Copy;
use super::pass::Pass;
use super::report::{Depth, Pace, Stopped};
use super::spread::Rotten;
use crate::scatter::erasure::Masks;

/// A segment as the members report it.
pub(super) struct SegmentState {
    pub(super) segment: SegmentId,
    /// Whether the segment is closed: no host appends to it.
    pub(super) is_closed: bool,
    pub(super) copies: Vec<Option<Copy>>,
    /// Members whose copy is unreadable.
    pub(super) broken: HashSet<usize>,
    /// Members that cannot sync the segment: a write was lost.
    pub(super) lost: HashSet<usize>,
    /// Members that did not answer.
    pub(super) unresponsive: HashSet<usize>,
    pub(super) rotten: Rotten,
}

impl Pass<'_> {
    /// Asks the members how they hold a segment.
    pub(super) fn inspect(
        &mut self,
        segment: SegmentId,
        is_closed: bool,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<SegmentState, Stopped> {
        let mut state = SegmentState {
            segment,
            is_closed,
            copies: Vec::new(),
            broken: HashSet::new(),
            lost: HashSet::new(),
            unresponsive: HashSet::new(),
            rotten: Rotten::new(),
        };
        for index in 0..self.members.len() {
            let report = match self.unavailable.contains(&index) {
                true => None,
                false => Some(self.members[index].unit.segment_slots(segment)),
            };
            state.copies.push(match report {
                Some(Ok(report)) => Some(Copy::of(&report)),
                Some(Err(UnitError::Damaged { .. })) => {
                    state.broken.insert(index);
                    None
                }
                Some(Err(UnitError::NoSegment { .. })) | None => None,
                Some(Err(error)) => {
                    state.unresponsive.insert(index);
                    self.record_unit_error(segment, index, &error);
                    None
                }
            });
        }
        // Slots whose write a crash interrupted are kept there, and are damaged.
        self.scrub(&mut state, depth, pace)?;
        Ok(state)
    }

    /// The generation and masks of the parity members, by index. `None` if a parity was
    /// changed just now: the next pass sees the result.
    pub(super) fn read_masks(
        &mut self,
        erasure: Erasure,
        state: &mut SegmentState,
    ) -> Option<HashMap<usize, (u16, Masks)>> {
        let segment = state.segment;
        let mut all = HashMap::new();
        for (index, held) in state.copies.iter_mut().enumerate() {
            let Some(parity) = self.members[index].place.checked_sub(erasure.data()) else {
                continue;
            };
            let Some(copy) = held else { continue };
            let is_rebuilding = self.members[index].state == MemberState::Rebuilding;
            match Masks::read(&*self.members[index].unit, segment, erasure, parity) {
                Ok((generation, masks)) if generation == copy.generation => {
                    all.insert(index, (generation, masks));
                }
                Err(UnitError::Damaged { .. }) => {
                    state.broken.insert(index);
                    *held = None;
                }
                // All slots were freed, and a crash came before the segment was deleted.
                Err(UnitError::NoSlot { .. }) if is_rebuilding => {
                    state.broken.insert(index);
                    *held = None;
                }
                Ok(_) | Err(UnitError::NoSegment { .. } | UnitError::NoSlot { .. }) => {
                    self.postpone(segment, index, "was changed meanwhile");
                    return None;
                }
                Err(error) => {
                    state.unresponsive.insert(index);
                    self.record_unit_error(segment, index, &error);
                    *held = None;
                }
            }
        }
        Some(all)
    }

    /// Finds damaged slots: in a scrub, and where a rebuilding member is suspect. There,
    /// and where in-sync members are compared, the segment is synced first: its slots may
    /// come from a put or a sync that failed, or from a repair that was interrupted.
    fn scrub(
        &mut self,
        state: &mut SegmentState,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<(), Stopped> {
        let segment = state.segment;
        for index in 0..state.copies.len() {
            let Some(copy) = &state.copies[index] else {
                continue;
            };
            let member = &self.members[index];
            let is_suspect = self.suspect.contains(&(member.id, segment));
            let is_suspect = is_suspect || member.is_suspect(segment);
            let is_compared = depth > Depth::Rebuild && member.state == MemberState::InSync;
            let synced = match is_suspect || is_compared {
                true => member.unit.sync_found(&[segment]),
                false => Ok(()),
            };
            match synced {
                Ok(()) | Err(UnitError::NoSegment { .. }) => {}
                Err(error) if error.affects_whole_unit() => {
                    self.mark_unavailable(index, &error);
                    continue;
                }
                Err(_) => {
                    self.verified.remove(&(member.id, segment));
                    state.lost.insert(index);
                }
            }
            let is_verified = self.verified.contains(&(self.members[index].id, segment));
            if depth < Depth::Scrub && (!is_suspect || is_verified) {
                continue;
            }
            pace.step(copy.len() as u64 * u64::from(copy.slot_bytes))?;
            match self.members[index].unit.scrub(segment) {
                Ok(bad) => {
                    let bad: HashSet<u16> = bad.into_iter().map(|slot| slot.0).collect();
                    if bad.is_empty() && state.is_closed {
                        self.verified.insert((self.members[index].id, segment));
                    }
                    state.rotten.insert(index, bad);
                }
                // The segment has just been freed.
                Err(UnitError::NoSegment { .. }) => {}
                // The unit knew the segment from memory only.
                Err(UnitError::Damaged { .. }) => {
                    state.broken.insert(index);
                    state.copies[index] = None;
                }
                Err(error) => {
                    state.unresponsive.insert(index);
                    self.record_unit_error(segment, index, &error);
                }
            }
        }
        Ok(())
    }
}
