//! One pass over a copyset.

use std::collections::{BTreeSet, HashMap, HashSet};

use base::{CopysetId, SegmentId, UnitId};
use unit::UnitError;

use super::compare::{Copy, Uncommitted, keepers, lacking};
use super::copy::Bringing;
use super::report::{Depth, Found, Pace, Repairable, Stopped};
use super::rows::Rows;
use super::spread::{Rotten, Spread};
use crate::catalog::{Erasure, MemberState};
use crate::scatter::Layout;
use crate::scatter::erasure::Masks;

/// Passes over a copyset that follow one another, with what they have brought.
#[derive(Debug)]
pub struct Task {
    copyset: CopysetId,
    /// What was read as it had been put, and is durable: it is not read once more by
    /// the pass that finds nothing left to bring, which else took as long as bringing it.
    brought: Brought,
    /// What may have been put in part: bringing it failed.
    suspect: Brought,
}

/// Segments that nothing is appended to any more, and that members have whole: put there,
/// or read, by the same task.
pub(super) type Brought = HashSet<(UnitId, SegmentId)>;

impl Task {
    /// The first pass is still to come.
    #[must_use]
    pub fn new(copyset: CopysetId) -> Self {
        Self {
            copyset,
            brought: Brought::new(),
            suspect: Brought::new(),
        }
    }

    /// One pass. Compares the members, those first that are best read from, and copies
    /// what one lacks, or works it out, if its segments lie there with `erasure`. In a
    /// scrub, slots that have rotted are put anew on members that are not the only ones
    /// to have them.
    ///
    /// # Errors
    /// [`Stopped`]; it may be begun again at any time.
    pub fn pass(
        &mut self,
        erasure: Option<Erasure>,
        members: &[Repairable],
        uncommitted: &Uncommitted,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<Found, Stopped> {
        let mut members = members.to_vec();
        members.sort_by_key(|member| member.state);
        let mut pass = Pass {
            erasure,
            members,
            found: Found {
                is_complete: true,
                ..Found::default()
            },
            away: HashSet::new(),
            unsound: HashSet::new(),
            worn: HashMap::new(),
            rotted: None,
            brought: &mut self.brought,
            suspect: &mut self.suspect,
        };
        let segments = pass.list(self.copyset, pace)?;
        let all = segments.len() as u64;
        for (done, segment) in (0..).zip(segments) {
            pace.compared(done, all);
            pace.step(0)?;
            let slots_max = uncommitted.slots_max(segment);
            if slots_max != Some(0) {
                pass.repair(segment, slots_max, depth, pace)?;
            }
        }
        pace.compared(all, all);
        Ok(pass.end())
    }
}

/// How a segment was found.
pub(super) struct Looked {
    pub(super) segment: SegmentId,
    /// No host appends to it any more.
    pub(super) is_closed: bool,
    copies: Vec<Option<Copy>>,
    /// Those whose copy is no segment.
    broken: HashSet<usize>,
    /// Those that cannot make it durable: a write to it was lost.
    lost: HashSet<usize>,
    /// Those that did not say how they hold it, or what of it has rotted.
    unresponsive: HashSet<usize>,
    rotten: Rotten,
}

pub(super) struct Pass<'a> {
    pub(super) erasure: Option<Erasure>,
    pub(super) members: Vec<Repairable>,
    pub(super) found: Found,
    /// Members that do not answer.
    pub(super) away: HashSet<usize>,
    /// Members to which something could not be brought.
    pub(super) unsound: HashSet<usize>,
    /// Those that have what others have that can be had; whether they lack anything else.
    pub(super) worn: HashMap<usize, bool>,
    /// Of the segment that was last found to have rotted: how many slots.
    pub(super) rotted: Option<(SegmentId, u64)>,
    /// What passes of the same task have brought so far.
    pub(super) brought: &'a mut Brought,
    /// And what may have been put in part.
    pub(super) suspect: &'a mut Brought,
}

impl Pass<'_> {
    /// The segments that any member has of the copyset.
    fn list(&mut self, copyset: CopysetId, pace: &dyn Pace) -> Result<Vec<SegmentId>, Stopped> {
        let mut all = BTreeSet::new();
        for index in 0..self.members.len() {
            pace.step(0)?;
            match self.members[index].unit.list() {
                Ok(listed) => {
                    let its = listed.into_iter();
                    all.extend(its.filter(|segment| segment.copyset() == copyset));
                }
                Err(error) => self.is_away(index, &error),
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
        let looked = self.look(segment, slots_max.is_none(), depth, pace)?;
        match self.erasure {
            Some(erasure) => self.repair_rows(erasure, looked, slots_max, depth, pace),
            None => self.repair_copies(&looked, slots_max, depth, pace),
        }
    }

    /// How the members hold a segment.
    fn look(
        &mut self,
        segment: SegmentId,
        is_closed: bool,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<Looked, Stopped> {
        let mut looked = Looked {
            segment,
            is_closed,
            copies: Vec::new(),
            broken: HashSet::new(),
            lost: HashSet::new(),
            unresponsive: HashSet::new(),
            rotten: Rotten::new(),
        };
        for index in 0..self.members.len() {
            let told = match self.away.contains(&index) {
                true => None,
                false => Some(self.members[index].unit.segment_slots(segment)),
            };
            looked.copies.push(match told {
                Some(Ok(told)) => Some(Copy::of(&told)),
                Some(Err(UnitError::Damaged { .. })) => {
                    looked.broken.insert(index);
                    None
                }
                Some(Err(UnitError::NoSegment { .. })) | None => None,
                Some(Err(error)) => {
                    looked.unresponsive.insert(index);
                    self.no_answer(segment, index, &error);
                    None
                }
            });
        }
        // What a crash of a unit cut short is kept there, and is not what was put.
        self.scrub(&mut looked, depth, pace)?;
        Ok(looked)
    }

    /// Whether it is known what there is of a segment: a whole member says so (with
    /// parity, as many as there is data), or all do.
    fn is_known(&self, looked: &Looked) -> bool {
        let says = |index: usize| self.says(looked, index);
        self.is_all_said(looked) || (0..self.members.len()).all(says)
    }

    /// Whether what only members have that are filled was deleted or freed elsewhere.
    fn is_given_up(&self, looked: &Looked, depth: Depth) -> bool {
        depth == Depth::Fill && self.is_all_said(looked)
    }

    /// Whether as many whole members say what they have as know all that there is.
    pub(super) fn is_all_said(&self, looked: &Looked) -> bool {
        self.are_enough_whole(|index| self.says(looked, *index))
    }

    fn says(&self, looked: &Looked, member: usize) -> bool {
        let is_unresponsive = self.away.contains(&member) || looked.unresponsive.contains(&member);
        // Where nobody has anything, nothing is missed.
        let is_anything = looked.copies.iter().any(Option::is_some);
        !(is_unresponsive || is_anything && looked.broken.contains(&member))
    }

    /// Whether as many whole members are among those that say what they have as know all
    /// that there is.
    fn are_enough_whole(&self, says: impl Fn(&usize) -> bool) -> bool {
        let whole = (0..self.members.len())
            .filter(|index| says(index) && self.members[*index].state == MemberState::Whole);
        let places: HashSet<u8> = whole.map(|index| self.members[index].place).collect();
        places.len() >= self.erasure.map_or(1, |erasure| erasure.data().into())
    }

    /// Whether the members that are there know all that there is.
    pub(super) fn are_enough_there(&self) -> bool {
        self.away.is_empty() || self.are_enough_whole(|index| !self.away.contains(index))
    }

    fn repair_copies(
        &mut self,
        looked: &Looked,
        slots_max: Option<u32>,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<(), Stopped> {
        let (segment, rotten) = (looked.segment, &looked.rotten);
        let is_known = self.is_known(looked) || !self.are_enough_there();
        let is_given_up = self.is_given_up(looked, depth);
        for to in 0..self.members.len() {
            if !self.is_repaired(to, depth) || looked.unresponsive.contains(&to) {
                continue;
            }
            if !is_known {
                self.waits(segment, to, "may lack what others have that do not say it");
            }
            let on = match Spread::new(segment, (&self.members, to), &looked.copies, pace, rotten) {
                Ok(on) => on,
                Err(error) => {
                    self.failed(segment, to, error)?;
                    continue;
                }
            };
            let is_rotten = |slot: usize| {
                let bad = rotten.get(&to);
                bad.is_some_and(|bad| u16::try_from(slot).is_ok_and(|slot| bad.contains(&slot)))
            };
            // What it has itself it keeps, if it is put anew.
            let believed = |index: usize, slot: usize| {
                let is_filled = self.members[index].state == MemberState::Filling;
                !is_given_up || !is_filled || (index == to && !is_rotten(slot))
            };
            let keepers = keepers(&on.copies, believed, slots_max);
            // What has rotted in an open segment is put anew when it is closed.
            let is_bad = |slot: &u16| {
                let keepers = keepers.get(usize::from(*slot));
                keepers.is_some_and(|keepers| keepers.contains(&to))
            };
            let bad = rotten
                .get(&to)
                .map_or(0, |bad| bad.iter().filter(|slot| is_bad(slot)).count());
            let is_lost = looked.lost.contains(&to);
            let is_bad = is_lost || bad > 0;
            let anew = slots_max.is_none() && (looked.broken.contains(&to) || is_bad);
            let lacks = lacking(on.copies[to].as_ref(), &keepers);
            let is_empty = keepers.is_empty();
            let mut bringing = Bringing {
                on,
                keepers,
                is_closed: slots_max.is_none(),
            };
            if !anew && lacks == 0 {
                let emptied = bringing.free_empty();
                if is_bad {
                    self.waits(segment, to, "has rotted, and is put anew when it is closed");
                }
                if let Err(error) = emptied {
                    self.failed(segment, to, error)?;
                }
                continue;
            }
            if is_empty {
                continue;
            }
            let brought = match anew {
                true => bringing.bring_anew(),
                false => bringing.bring(),
            };
            self.brought(looked, (to, lacks), brought)?;
        }
        Ok(())
    }

    /// As [`Pass::repair`], of a segment with parity.
    fn repair_rows(
        &mut self,
        erasure: Erasure,
        looked: Looked,
        slots_max: Option<u32>,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<(), Stopped> {
        let mut looked = looked;
        let segment = looked.segment;
        let mut masks = HashMap::new();
        for (index, held) in looked.copies.iter_mut().enumerate() {
            let Some(parity) = self.members[index].place.checked_sub(erasure.data()) else {
                continue;
            };
            let Some(copy) = held else { continue };
            match Masks::ask(&*self.members[index].unit, segment, erasure, parity) {
                Ok((generation, its)) if generation == copy.generation => {
                    masks.insert(index, (generation, its));
                }
                Err(UnitError::Damaged { .. }) => {
                    looked.broken.insert(index);
                    *held = None;
                }
                // All of it was freed, and a crash came before it was removed.
                Err(UnitError::NoSlot { .. })
                    if self.members[index].state == MemberState::Filling =>
                {
                    looked.broken.insert(index);
                    *held = None;
                }
                // It was replaced or went just now: the next pass sees it as it is.
                Ok(_) | Err(UnitError::NoSegment { .. } | UnitError::NoSlot { .. }) => {
                    self.waits(segment, index, "was changed meanwhile");
                    return Ok(());
                }
                Err(error) => {
                    looked.unresponsive.insert(index);
                    self.no_answer(segment, index, &error);
                    *held = None;
                }
            }
        }
        let is_known = self.is_known(&looked) || !self.are_enough_there();
        let is_given_up = self.is_given_up(&looked, depth);
        let rotten = &looked.rotten;
        let layout = Layout::new(Some(erasure));
        for to in 0..self.members.len() {
            if !self.is_repaired(to, depth) || looked.unresponsive.contains(&to) {
                continue;
            }
            if !is_known {
                self.waits(segment, to, "may lack what others have that do not say it");
            }
            let on = match Spread::new(segment, (&self.members, to), &looked.copies, pace, rotten) {
                Ok(on) => on,
                Err(error) => {
                    self.failed(segment, to, error)?;
                    continue;
                }
            };
            let its = |index: &usize| on.copies[*index].is_some();
            let its = masks.iter().filter(|(index, _)| its(index));
            let mut rows = Rows {
                erasure,
                masks: its.map(|(index, its)| (*index, its.clone())).collect(),
                rows_max: slots_max.map(|slots| layout.rows(slots)),
                is_given_up,
                on,
            };
            let bad = rotten.get(&to);
            let is_bad = bad.is_some_and(|bad| bad.iter().any(|slot| rows.counts(to, *slot)))
                || looked.lost.contains(&to);
            let mut anew = slots_max.is_none() && (looked.broken.contains(&to) || is_bad);
            if !anew && slots_max.is_none() {
                match rows.is_outdated() {
                    Ok(is_outdated) => anew = is_outdated,
                    Err(error) => {
                        self.brought(&looked, (to, 0), Err(error))?;
                        continue;
                    }
                }
            }
            if !anew && rows.own(to) >= rows.needed() {
                if is_bad {
                    self.waits(segment, to, "has rotted, and is put anew when it is closed");
                }
                continue;
            }
            if rows.needed() == 0 {
                continue;
            }
            let lacks = rows.needed().saturating_sub(rows.own(to));
            let brought = rows.bring(anew);
            self.brought(&looked, (to, lacks), brought)?;
        }
        Ok(())
    }

    /// Whether it is looked at what a member lacks.
    fn is_repaired(&self, member: usize, depth: Depth) -> bool {
        let is_looked_at = match self.members[member].state {
            MemberState::Leaving => false,
            MemberState::Filling => true,
            MemberState::Whole => depth > Depth::Fill,
        };
        is_looked_at && !self.away.contains(&member)
    }

    /// Looks what has rotted, on members that are filled too, where that may be. There, and
    /// where members that are whole are compared, it is made durable first: what is there
    /// may come of a put or a sync that failed, or of a task that was broken off.
    fn scrub(&mut self, looked: &mut Looked, depth: Depth, pace: &dyn Pace) -> Result<(), Stopped> {
        let segment = looked.segment;
        for index in 0..looked.copies.len() {
            let Some(copy) = &looked.copies[index] else {
                continue;
            };
            let member = &self.members[index];
            let is_suspect = self.suspect.contains(&(member.id, segment));
            let is_suspect = is_suspect || member.is_suspect(segment);
            let is_compared = depth > Depth::Fill && member.state == MemberState::Whole;
            let synced = match is_suspect || is_compared {
                true => member.unit.sync_found(&[segment]),
                false => Ok(()),
            };
            match synced {
                Ok(()) | Err(UnitError::NoSegment { .. }) => {}
                Err(error) if error.affects_whole_unit() => {
                    self.is_away(index, &error);
                    continue;
                }
                Err(_) => {
                    self.brought.remove(&(member.id, segment));
                    looked.lost.insert(index);
                }
            }
            let is_brought = self.brought.contains(&(self.members[index].id, segment));
            if depth < Depth::Scrub && (!is_suspect || is_brought) {
                continue;
            }
            pace.step(copy.len() as u64 * u64::from(copy.slot_bytes))?;
            match self.members[index].unit.scrub(segment) {
                Ok(bad) => {
                    let bad: HashSet<u16> = bad.into_iter().map(|slot| slot.0).collect();
                    if bad.is_empty() && looked.is_closed {
                        self.brought.insert((self.members[index].id, segment));
                    }
                    looked.rotten.insert(index, bad);
                }
                // It has just been freed.
                Err(UnitError::NoSegment { .. }) => {}
                // What it knew of it was in memory alone.
                Err(UnitError::Damaged { .. }) => {
                    looked.broken.insert(index);
                    looked.copies[index] = None;
                }
                Err(error) => {
                    looked.unresponsive.insert(index);
                    self.no_answer(segment, index, &error);
                }
            }
        }
        Ok(())
    }
}
