//! One pass over a copyset.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use base::{CopysetId, SegmentId, UnitId, with_causes};
use unit::{Unit, UnitError};

use super::compare::{Copy, Uncommitted, keepers, lacks};
use super::copy::{Bringing, CopyError};
use super::rows::Rows;
use super::spread::{Rotten, Spread};
use crate::catalog::{Erasure, MemberState};
use crate::scatter::Layout;
use crate::scatter::erasure::Masks;

/// A member of a copyset.
#[derive(Clone)]
pub struct Mendable {
    /// Its id.
    pub id: UnitId,
    /// Which one it is of the members, or in whose place another one comes.
    pub place: u8,
    /// How it stands.
    pub state: MemberState,
    /// The unit.
    pub unit: Arc<dyn Unit>,
}

/// Mending is not gone on with: somebody else does, or nobody should now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// How much is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// What members lack that are being filled. Of a segment that a whole one has not
    /// it is taken that it was deleted there, as it soon will be on the others.
    Fill,
    /// What any member lacks.
    Compare,
    /// As well, every slot is read.
    Scrub,
}

/// How fast it goes, and who is told how far it is.
pub trait Pace: Sync {
    /// So many bytes are about to be moved. May wait.
    ///
    /// # Errors
    /// [`Stopped`], if none are to be.
    fn step(&self, bytes: u64) -> Result<(), Stopped>;

    /// So many segments of so many have been compared.
    fn compared(&self, done: u64, all: u64);
}

/// What a pass has found.
#[derive(Debug, Default)]
pub struct Found {
    /// Members, not those that leave, that have all that they should have: nothing
    /// was copied to them.
    pub whole: Vec<UnitId>,
    /// Those that lacked something, whether or not they have it now.
    pub lacking: BTreeSet<UnitId>,
    /// Those that have no room for what they lack.
    pub full: BTreeSet<UnitId>,
    /// How many bytes were copied.
    pub copied_bytes: u64,
    /// Slots that no member has as they were put, and that cannot be worked out.
    pub rotten: u64,
    /// What was in the way, each once.
    pub problems: BTreeSet<String>,
}

/// Compares the members of `copyset`, those first that are best read from, and copies
/// what one lacks, or works it out, if its segments lie there with `erasure`. In a
/// scrub, slots that have rotted are put anew on members that are not the only ones to
/// have them.
///
/// # Errors
/// [`Stopped`]; it may be begun again at any time.
pub fn pass(
    copyset: CopysetId,
    erasure: Option<Erasure>,
    members: &[Mendable],
    uncommitted: &Uncommitted,
    depth: Depth,
    pace: &dyn Pace,
) -> Result<Found, Stopped> {
    let mut members = members.to_vec();
    members.sort_by_key(|member| member.state);
    let mut pass = Pass {
        erasure,
        members,
        found: Found::default(),
        away: HashSet::new(),
        unsound: HashSet::new(),
    };
    let segments = pass.list(copyset, pace)?;
    let all = segments.len() as u64;
    for (done, segment) in (0..).zip(segments) {
        pace.compared(done, all);
        pace.step(0)?;
        let slots_max = uncommitted.slots_max(segment);
        if slots_max != Some(0) {
            pass.mend(segment, slots_max, depth, pace)?;
        }
    }
    pace.compared(all, all);
    Ok(pass.end())
}

/// How a segment was found.
struct Looked {
    segment: SegmentId,
    copies: Vec<Option<Copy>>,
    /// Those whose copy is no segment.
    broken: HashSet<usize>,
    rotten: Rotten,
}

struct Pass {
    erasure: Option<Erasure>,
    members: Vec<Mendable>,
    found: Found,
    /// Members that do not answer.
    away: HashSet<usize>,
    /// Members to which something could not be brought.
    unsound: HashSet<usize>,
}

impl Pass {
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

    fn is_away(&mut self, member: usize, error: &UnitError) {
        if self.away.insert(member) {
            let id = self.members[member].id;
            let why = with_causes(error);
            self.found.problems.insert(format!("{id}: {why}"));
        }
    }

    fn mend(
        &mut self,
        segment: SegmentId,
        slots_max: Option<u32>,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<(), Stopped> {
        let mut copies: Vec<Option<Copy>> = Vec::new();
        // Those whose copy is no segment.
        let mut broken = HashSet::new();
        for index in 0..self.members.len() {
            let told = match self.away.contains(&index) {
                true => None,
                false => Some(self.members[index].unit.slots_of(segment)),
            };
            copies.push(match told {
                Some(Ok(told)) => Some(Copy::of(&told)),
                Some(Err(UnitError::Damaged { .. })) => {
                    broken.insert(index);
                    None
                }
                Some(Err(UnitError::NoSegment { .. })) | None => None,
                Some(Err(error)) => {
                    self.is_away(index, &error);
                    None
                }
            });
        }
        // What a crash of a unit cut short is kept there, and is not what was put.
        let rotten = self.scrub(segment, &copies, depth, pace)?;
        if let Some(erasure) = self.erasure {
            let found = Looked {
                segment,
                copies,
                broken,
                rotten,
            };
            return self.mend_rows(erasure, found, slots_max, depth, pace);
        }
        for to in 0..self.members.len() {
            if !self.is_mended(to, depth) {
                continue;
            }
            let on = match Spread::new(segment, (&self.members, to), &copies, pace, &rotten) {
                Ok(on) => on,
                Err(error) => {
                    self.failed(segment, to, error);
                    continue;
                }
            };
            let keepers = keepers(&on.copies, slots_max);
            // What has rotted in an open segment is put anew when it is closed.
            let is_bad = |slot: &u16| {
                let keepers = keepers.get(usize::from(*slot));
                keepers.is_some_and(|keepers| keepers.contains(&to))
            };
            let bad = rotten
                .get(&to)
                .map_or(0, |bad| bad.iter().filter(|slot| is_bad(slot)).count());
            let anew = slots_max.is_none() && (broken.contains(&to) || bad > 0);
            if !anew && !lacks(on.copies[to].as_ref(), &keepers) {
                if bad > 0 {
                    self.waits(segment, to, "has rotted, and is put anew when it is closed");
                }
                continue;
            }
            if keepers.is_empty() {
                continue;
            }
            let mut bringing = Bringing {
                on,
                keepers,
                is_closed: slots_max.is_none(),
            };
            let brought = match anew {
                true => bringing.bring_anew(),
                false => bringing.bring(),
            };
            self.found.lacking.insert(self.members[to].id);
            self.brought(segment, to, brought)?;
        }
        Ok(())
    }

    /// As [`Pass::mend`], of a segment with parity.
    fn mend_rows(
        &mut self,
        erasure: Erasure,
        looked: Looked,
        slots_max: Option<u32>,
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<(), Stopped> {
        let Looked {
            segment,
            mut copies,
            mut broken,
            rotten,
        } = looked;
        let mut masks = HashMap::new();
        for (index, held) in copies.iter_mut().enumerate() {
            let Some(parity) = self.members[index].place.checked_sub(erasure.data()) else {
                continue;
            };
            let Some(copy) = held else { continue };
            match Masks::ask(&*self.members[index].unit, segment, erasure, parity) {
                Ok((generation, its)) if generation == copy.generation => {
                    masks.insert(index, (generation, its));
                }
                Err(UnitError::Damaged { .. }) => {
                    broken.insert(index);
                    *held = None;
                }
                // It was replaced or went just now: the next pass sees it as it is.
                Ok(_) | Err(UnitError::NoSegment { .. } | UnitError::NoSlot { .. }) => {
                    self.waits(segment, index, "was changed meanwhile");
                    return Ok(());
                }
                Err(error) => {
                    self.is_away(index, &error);
                    *held = None;
                }
            }
        }
        let layout = Layout::new(Some(erasure));
        for to in 0..self.members.len() {
            if !self.is_mended(to, depth) {
                continue;
            }
            let on = match Spread::new(segment, (&self.members, to), &copies, pace, &rotten) {
                Ok(on) => on,
                Err(error) => {
                    self.failed(segment, to, error);
                    continue;
                }
            };
            let its = |index: &usize| on.copies[*index].is_some();
            let its = masks.iter().filter(|(index, _)| its(index));
            let mut rows = Rows {
                erasure,
                masks: its.map(|(index, its)| (*index, its.clone())).collect(),
                rows_max: slots_max.map(|slots| layout.rows(slots)),
                on,
            };
            let bad = rotten.get(&to);
            let is_bad = bad.is_some_and(|bad| bad.iter().any(|slot| rows.counts(to, *slot)));
            let mut anew = slots_max.is_none() && (broken.contains(&to) || is_bad);
            if !anew && slots_max.is_none() {
                match rows.is_outdated() {
                    Ok(is_outdated) => anew = is_outdated,
                    Err(error) => {
                        self.brought(segment, to, Err(error))?;
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
            let brought = rows.bring(anew);
            self.found.lacking.insert(self.members[to].id);
            self.brought(segment, to, brought)?;
        }
        Ok(())
    }

    /// Whether it is looked at what a member lacks.
    fn is_mended(&self, member: usize, depth: Depth) -> bool {
        let is_looked_at = match self.members[member].state {
            MemberState::Leaving => false,
            MemberState::Filling => true,
            MemberState::Whole => depth > Depth::Fill,
        };
        is_looked_at && !self.away.contains(&member)
    }

    /// A member is not whole yet, and it is of no use to look again at once.
    fn waits(&mut self, segment: SegmentId, member: usize, why: &str) {
        self.unsound.insert(member);
        let id = self.members[member].id;
        self.found
            .problems
            .insert(format!("{segment} on {id} {why}"));
    }

    fn brought(
        &mut self,
        segment: SegmentId,
        to: usize,
        brought: Result<u64, CopyError>,
    ) -> Result<(), Stopped> {
        match brought {
            Ok(bytes) => self.found.copied_bytes += bytes,
            Err(CopyError::Stopped) => return Err(Stopped),
            Err(error) => self.failed(segment, to, error),
        }
        Ok(())
    }

    fn failed(&mut self, segment: SegmentId, to: usize, error: CopyError) {
        self.unsound.insert(to);
        let id = self.members[to].id;
        let problem = match error {
            CopyError::Stopped => return,
            CopyError::Changed => {
                return self.waits(segment, to, "was changed meanwhile");
            }
            CopyError::Rotten(slots) => {
                self.found.rotten += slots;
                format!("{segment} cannot be copied to {id}: {slots} slots have rotted")
            }
            CopyError::Differs(slots) => {
                format!("{segment} cannot be copied to {id}: of {slots} slots others differ")
            }
            CopyError::Disputed => {
                format!("{segment} cannot be copied to {id}: others differ on what it is")
            }
            CopyError::Source(error) => {
                let why = with_causes(&error);
                format!("{segment} cannot be read for {id}: {why}")
            }
            CopyError::Target(error) => {
                if matches!(error, UnitError::Full { .. }) {
                    self.found.full.insert(id);
                }
                self.is_away(to, &error);
                return;
            }
        };
        self.found.problems.insert(problem);
    }

    fn scrub(
        &mut self,
        segment: SegmentId,
        copies: &[Option<Copy>],
        depth: Depth,
        pace: &dyn Pace,
    ) -> Result<Rotten, Stopped> {
        let mut rotten = Rotten::new();
        for (index, copy) in copies.iter().enumerate() {
            let Some(copy) = copy else { continue };
            if depth < Depth::Scrub && self.members[index].state != MemberState::Filling {
                continue;
            }
            pace.step(copy.len() as u64 * u64::from(copy.slot_bytes))?;
            match self.members[index].unit.scrub(segment) {
                Ok(bad) => {
                    let bad = bad.into_iter().map(|slot| slot.0).collect();
                    rotten.insert(index, bad);
                }
                // It has just been freed.
                Err(UnitError::NoSegment { .. }) => {}
                Err(error) => self.is_away(index, &error),
            }
        }
        Ok(rotten)
    }

    fn end(mut self) -> Found {
        let there = |index: &usize| !self.away.contains(index);
        let whole = (0..self.members.len())
            .filter(|index| there(index) && self.members[*index].state == MemberState::Whole);
        let places: HashSet<u8> = whole.map(|index| self.members[index].place).collect();
        let enough = self.erasure.map_or(1, |erasure| erasure.data().into());
        // Nobody knows what the others have that were not asked.
        let is_known = places.len() >= enough || self.away.is_empty();
        if is_known {
            for (index, member) in self.members.iter().enumerate() {
                let is_sound = there(&index) && !self.unsound.contains(&index);
                if is_sound
                    && member.state != MemberState::Leaving
                    && !self.found.lacking.contains(&member.id)
                {
                    self.found.whole.push(member.id);
                }
            }
        }
        self.found
    }
}
