//! One pass over a copyset: inspects each segment, decides what every member's copy
//! needs, and has it restored.
//!
//! The decision itself is [`decide`].

use std::collections::{BTreeSet, HashMap, HashSet};

use base::{CopysetId, SegmentId, UnitId};
use catalog::{Erasure, MemberState};

use super::compare::{Uncommitted, keepers, missing_slots};
use super::copy::CopyJob;
use super::decision::{Action, Observed, decide};
use super::inspection::SegmentState;
use super::report::{Depth, Pace, PassReport, RepairMember, Stopped};
use super::rows::Rows;
use super::spread::SegmentSpread;
use crate::scatter::Layout;

/// A series of passes over a copyset, with what they have verified so far.
#[derive(Debug)]
pub struct CopysetRepair {
    copyset: CopysetId,
    /// Segments that are known to be intact and durable: the pass that finds nothing
    /// left to copy does not read them again, which would take as long as copying them.
    verified: SegmentSet,
    /// Segments that may have been written in part: restoring them failed.
    suspect: SegmentSet,
}

/// Segments on members.
pub(super) type SegmentSet = HashSet<(UnitId, SegmentId)>;

impl CopysetRepair {
    /// The repair of `copyset`, before its first pass.
    #[must_use]
    pub fn new(copyset: CopysetId) -> Self {
        Self {
            copyset,
            verified: SegmentSet::new(),
            suspect: SegmentSet::new(),
        }
    }

    /// One pass: compares the members, best sources first, and restores what a member
    /// is missing: from copies, or from rows if the copyset has an `erasure` code. A
    /// scrub also rewrites damaged slots that other members have intact.
    ///
    /// # Errors
    /// [`Stopped`]; a pass may be started again at any time.
    pub fn pass(
        &mut self,
        erasure: Option<Erasure>,
        members: &[RepairMember],
        uncommitted: &Uncommitted,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<PassReport, Stopped> {
        let mut members = members.to_vec();
        members.sort_by_key(|member| member.state);
        let mut pass = Pass {
            erasure,
            members,
            found: PassReport {
                is_complete: true,
                ..PassReport::default()
            },
            unavailable: HashSet::new(),
            unsound: HashSet::new(),
            damaged: HashMap::new(),
            rotted: None,
            verified: &mut self.verified,
            suspect: &mut self.suspect,
        };
        let segments = pass.list(self.copyset, pace)?;
        let all = segments.len() as u64;
        for (done, segment) in (0..).zip(segments) {
            pace.report_progress(done, all);
            pace.step(0)?;
            let slots_max = uncommitted.slots_max(segment);
            if slots_max != Some(0) {
                pass.repair(segment, slots_max, depth, pace)?;
            }
        }
        pace.report_progress(all, all);
        Ok(pass.end())
    }
}

/// Why a member whose slots are damaged is not repaired yet.
const DAMAGED_AND_OPEN: &str = "is damaged, and will be rewritten when it is closed";

pub(super) struct Pass<'a> {
    pub(super) erasure: Option<Erasure>,
    pub(super) members: Vec<RepairMember>,
    pub(super) found: PassReport,
    /// Members that are unavailable.
    pub(super) unavailable: HashSet<usize>,
    /// Members on which something could not be restored.
    pub(super) unsound: HashSet<usize>,
    /// Members that have everything recoverable, and whether they are missing more.
    pub(super) damaged: HashMap<usize, bool>,
    /// The last damaged segment, and its number of damaged slots.
    pub(super) rotted: Option<(SegmentId, u64)>,
    /// The repair's verified segments.
    pub(super) verified: &'a mut SegmentSet,
    /// The repair's suspect segments.
    pub(super) suspect: &'a mut SegmentSet,
}

impl Pass<'_> {
    /// The copyset's segments on any member.
    fn list(&mut self, copyset: CopysetId, pace: &dyn Pace) -> Result<Vec<SegmentId>, Stopped> {
        let mut all = BTreeSet::new();
        for index in 0..self.members.len() {
            pace.step(0)?;
            match self.members[index].unit.list() {
                Ok(listed) => {
                    let its = listed.into_iter();
                    all.extend(its.filter(|segment| segment.copyset() == copyset));
                }
                Err(error) => self.mark_unavailable(index, &error),
            }
        }
        Ok(all.into_iter().collect())
    }

    fn repair(
        &mut self,
        segment: SegmentId,
        slots_max: Option<u32>,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<(), Stopped> {
        let state = self.inspect(segment, slots_max.is_none(), depth, pace)?;
        match self.erasure {
            Some(erasure) => self.repair_rows(erasure, state, slots_max, depth, pace),
            None => self.repair_copies(&state, slots_max, depth, pace),
        }
    }

    /// Whether the slots of a segment are known: an in-sync member has answered (with
    /// parity, as many as there is data), or all members have.
    fn is_known(&self, state: &SegmentState) -> bool {
        let says = |index: usize| self.has_reported(state, index);
        self.is_fully_reported(state) || (0..self.members.len()).all(says)
    }

    /// Whether slots that only rebuilding members keep were freed elsewhere.
    fn is_given_up(&self, state: &SegmentState, depth: Depth) -> bool {
        depth == Depth::Rebuild && self.is_fully_reported(state)
    }

    /// Whether enough in-sync members have answered to know all slots.
    pub(super) fn is_fully_reported(&self, state: &SegmentState) -> bool {
        self.are_enough_in_sync(|index| self.has_reported(state, *index))
    }

    fn has_reported(&self, state: &SegmentState, member: usize) -> bool {
        let is_unresponsive =
            self.unavailable.contains(&member) || state.unresponsive.contains(&member);
        // Where no member has anything, nothing can be missing.
        let is_anything = state.copies.iter().any(Option::is_some);
        !(is_unresponsive || is_anything && state.broken.contains(&member))
    }

    /// Whether the in-sync members that have answered are enough to know all slots.
    fn are_enough_in_sync(&self, says: impl Fn(&usize) -> bool) -> bool {
        let whole = (0..self.members.len())
            .filter(|index| says(index) && self.members[*index].state == MemberState::InSync);
        let places: HashSet<u8> = whole.map(|index| self.members[index].place).collect();
        places.len() >= self.erasure.map_or(1, |erasure| erasure.data().into())
    }

    /// Whether the available members are enough to know all slots.
    pub(super) fn are_enough_available(&self) -> bool {
        self.unavailable.is_empty()
            || self.are_enough_in_sync(|index| !self.unavailable.contains(index))
    }

    fn repair_copies(
        &mut self,
        state: &SegmentState,
        slots_max: Option<u32>,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<(), Stopped> {
        for to in self.targets(state, depth) {
            if let Some(on) = self.spread(state, to, pace)? {
                self.repair_copy(state, slots_max, depth, on)?;
            }
        }
        Ok(())
    }

    /// Restores a segment of copies on the target of `on`.
    fn repair_copy(
        &mut self,
        state: &SegmentState,
        slots_max: Option<u32>,
        depth: Depth,
        on: SegmentSpread<'_>,
    ) -> Result<(), Stopped> {
        let to = on.to;
        let is_freed_elsewhere = self.is_given_up(state, depth);
        let damaged = state.rotten.get(&to);
        let is_damaged = |slot: &u16| damaged.is_some_and(|damaged| damaged.contains(slot));
        // A member that is rewritten keeps its own intact slots.
        let believed = |index: usize, slot: usize| {
            let is_rebuilding = self.members[index].state == MemberState::Rebuilding;
            let is_own = index == to && !u16::try_from(slot).is_ok_and(|slot| is_damaged(&slot));
            !is_freed_elsewhere || !is_rebuilding || is_own
        };
        let keepers = keepers(&on.copies, believed, slots_max);
        let matters = |slot: &u16| {
            let keepers = keepers.get(usize::from(*slot));
            keepers.is_some_and(|keepers| keepers.contains(&to))
        };
        let observed = Observed {
            is_closed: slots_max.is_none(),
            is_broken: state.broken.contains(&to),
            is_damaged: state.lost.contains(&to)
                || damaged.is_some_and(|damaged| damaged.iter().any(matters)),
            is_outdated: false,
            missing: missing_slots(on.copies[to].as_ref(), &keepers),
            is_empty: keepers.is_empty(),
        };
        let mut job = CopyJob {
            on,
            keepers,
            is_closed: observed.is_closed,
        };
        let restored = match decide(&observed) {
            Action::Skip => return Ok(()),
            Action::Keep => {
                let freed = job.free_empty();
                if observed.is_damaged {
                    self.postpone(state.segment, to, DAMAGED_AND_OPEN);
                }
                return freed.or_else(|error| self.record_failure(state.segment, to, error));
            }
            Action::Append => job.restore(),
            Action::Rewrite => job.rewrite(),
        };
        self.record_result(state, to, observed.missing, restored)
    }

    /// As [`Pass::repair_copies`], for a segment with parity.
    fn repair_rows(
        &mut self,
        erasure: Erasure,
        mut state: SegmentState,
        slots_max: Option<u32>,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<(), Stopped> {
        let Some(masks) = self.read_masks(erasure, &mut state) else {
            return Ok(());
        };
        for to in self.targets(&state, depth) {
            let Some(on) = self.spread(&state, to, pace)? else {
                continue;
            };
            let is_member = |index: &usize| on.copies[*index].is_some();
            let its = masks.iter().filter(|(index, _)| is_member(index));
            let rows = Rows {
                erasure,
                masks: its.map(|(index, its)| (*index, its.clone())).collect(),
                rows_max: slots_max.map(|slots| Layout::new(Some(erasure)).rows(slots)),
                is_given_up: self.is_given_up(&state, depth),
                on,
            };
            self.repair_member_rows(&state, rows)?;
        }
        Ok(())
    }

    /// Restores a segment with parity on the target of `rows`.
    fn repair_member_rows(
        &mut self,
        state: &SegmentState,
        mut rows: Rows<'_>,
    ) -> Result<(), Stopped> {
        let to = rows.on.to;
        let damaged = state.rotten.get(&to);
        let mut observed = Observed {
            is_closed: rows.rows_max.is_none(),
            is_broken: state.broken.contains(&to),
            is_damaged: state.lost.contains(&to)
                || damaged.is_some_and(|damaged| damaged.iter().any(|slot| rows.counts(to, *slot))),
            is_outdated: false,
            missing: rows.needed().saturating_sub(rows.own(to)),
            is_empty: rows.needed() == 0,
        };
        if observed.is_closed && !observed.is_broken && !observed.is_damaged {
            match rows.is_outdated() {
                Ok(is_outdated) => observed.is_outdated = is_outdated,
                Err(error) => return self.record_result(state, to, 0, Err(error)),
            }
        }
        let restored = match decide(&observed) {
            Action::Skip => return Ok(()),
            Action::Keep => {
                if observed.is_damaged {
                    self.postpone(state.segment, to, DAMAGED_AND_OPEN);
                }
                return Ok(());
            }
            Action::Append => rows.restore(false),
            Action::Rewrite => rows.restore(true),
        };
        self.record_result(state, to, observed.missing, restored)
    }

    /// The members whose copy of the segment is repaired.
    fn targets(&self, state: &SegmentState, depth: Depth) -> Vec<usize> {
        let is_target =
            |to: &usize| self.is_repaired(*to, depth) && !state.unresponsive.contains(to);
        (0..self.members.len()).filter(is_target).collect()
    }

    /// The segment on its members, to be restored on `to`; `None` if that is disputed.
    fn spread<'s>(
        &mut self,
        state: &SegmentState,
        to: usize,
        pace: &'s dyn Pace,
    ) -> Result<Option<SegmentSpread<'s>>, Stopped> {
        if !self.is_known(state) && self.are_enough_available() {
            let why = "may be missing slots of members that did not answer";
            self.postpone(state.segment, to, why);
        }
        let (copies, rotten) = (&state.copies, &state.rotten);
        match SegmentSpread::new(state.segment, &self.members, to, copies, pace, rotten) {
            Ok(spread) => Ok(Some(spread)),
            Err(error) => self.record_failure(state.segment, to, error).map(|()| None),
        }
    }

    /// Whether a member's copies are repaired in a pass of this depth.
    fn is_repaired(&self, member: usize, depth: Depth) -> bool {
        let is_due = match self.members[member].state {
            MemberState::Draining => false,
            MemberState::Rebuilding => true,
            MemberState::InSync => depth > Depth::Rebuild,
        };
        is_due && !self.unavailable.contains(&member)
    }
}
