//! What came of a pass: who is whole, who lacks what, and what was in the way.

use base::{SegmentId, with_causes};
use unit::UnitError;

use super::copy::CopyError;
use super::pass::{Looked, Pass};
use super::report::{Found, Stopped};
use crate::catalog::MemberState;

/// So many things that are in the way are told.
const PROBLEMS_MAX: usize = 100;

impl Pass<'_> {
    pub(super) fn is_away(&mut self, member: usize, error: &UnitError) {
        if self.away.insert(member) {
            let id = self.members[member].id;
            let why = with_causes(error);
            self.problem(format!("{id}: {why}"));
        }
    }

    /// Something is in the way that may not be there next time.
    fn problem(&mut self, problem: String) {
        self.found.is_complete = false;
        self.tell(problem);
    }

    fn tell(&mut self, problem: String) {
        if self.found.problems.len() < PROBLEMS_MAX {
            self.found.problems.insert(problem);
        }
    }

    /// A member does not answer as it should about a segment: the member is left out,
    /// if that is how the unit is, and else is not whole yet.
    pub(super) fn no_answer(&mut self, segment: SegmentId, member: usize, error: &UnitError) {
        if error.affects_whole_unit() {
            return self.is_away(member, error);
        }
        self.unsound.insert(member);
        let id = self.members[member].id;
        let why = with_causes(error);
        self.problem(format!("{segment} on {id}: {why}"));
    }

    /// A member is not whole yet, and it is of no use to look again at once.
    pub(super) fn waits(&mut self, segment: SegmentId, member: usize, why: &str) {
        self.unsound.insert(member);
        let id = self.members[member].id;
        self.problem(format!("{segment} on {id} {why}"));
    }

    /// What came of bringing a segment to a member that `lacks` so many slots of it, or
    /// has some otherwise than they were put.
    pub(super) fn brought(
        &mut self,
        looked: &Looked,
        (to, lacks): (usize, usize),
        brought: Result<u64, CopyError>,
    ) -> Result<(), Stopped> {
        let segment = looked.segment;
        // Where enough are whole to know all that there is, what cannot be had was deleted,
        // and who has some of it was put back; or it is lost for good.
        let may_lack = self.members[to].state == MemberState::Whole || self.is_all_said(looked);
        match brought {
            Err(CopyError::Stopped) => return Err(Stopped),
            // Nothing that it lacks can be had: it has as much as there is.
            Err(CopyError::Rotten(slots)) if lacks == 0 || (may_lack && slots == lacks as u64) => {
                *self.worn.entry(to).or_default() |= lacks > 0;
                self.has_rotted(segment, to, slots);
                return Ok(());
            }
            _ => {}
        }
        self.found.lacking.insert(self.members[to].id);
        match brought {
            Ok(bytes) => {
                self.suspect.remove(&(self.members[to].id, segment));
                self.found.copied_bytes += bytes;
                if looked.is_closed {
                    self.brought.insert((self.members[to].id, segment));
                }
            }
            Err(error) => self.failed(segment, to, error)?,
        }
        Ok(())
    }

    fn has_rotted(&mut self, segment: SegmentId, to: usize, slots: u64) {
        // Copies are of the same slots.
        let counted = match self.rotted {
            Some((before, counted)) if before == segment && self.erasure.is_none() => counted,
            _ => 0,
        };
        self.found.rotten += slots.saturating_sub(counted);
        self.rotted = Some((segment, slots.max(counted)));
        let id = self.members[to].id;
        self.tell(format!(
            "{segment} cannot be brought to {id}: {slots} slots have rotted"
        ));
    }

    /// Bringing a segment to a member failed, or finding out what it lacks.
    ///
    /// # Errors
    /// [`Stopped`], if that is all: it says nothing of the member.
    pub(super) fn failed(
        &mut self,
        segment: SegmentId,
        to: usize,
        error: CopyError,
    ) -> Result<(), Stopped> {
        self.unsound.insert(to);
        let id = self.members[to].id;
        self.brought.remove(&(id, segment));
        self.suspect.insert((id, segment));
        match error {
            CopyError::Changed => self.waits(segment, to, "was changed meanwhile"),
            CopyError::Rotten(slots) => self.has_rotted(segment, to, slots),
            CopyError::Differs(slots) => self.tell(format!(
                "{segment} cannot be brought to {id}: others differ in {slots} slots"
            )),
            CopyError::Disputed => self.tell(format!(
                "{segment} cannot be brought to {id}: others differ on what it is"
            )),
            CopyError::Source(error) => {
                let why = with_causes(&error);
                self.problem(format!("{segment} cannot be read for {id}: {why}"));
            }
            CopyError::Target(error) => {
                if matches!(error, UnitError::Full { .. }) {
                    self.found.full.insert(id);
                }
                self.no_answer(segment, to, &error);
            }
            CopyError::Stopped => return Err(Stopped),
        }
        Ok(())
    }

    pub(super) fn end(mut self) -> Found {
        if !self.found.is_complete {
            // Somebody may have it who was not asked.
            let lack = self.worn.iter().filter(|(_, lacks)| **lacks);
            let ids = lack.map(|(index, _)| self.members[*index].id);
            self.found.lacking.extend(ids);
        }
        let there = |index: &usize| !self.away.contains(index);
        // Nobody knows what the others have that were not asked.
        if self.are_enough_there() {
            for (index, member) in self.members.iter().enumerate() {
                let is_sound = there(&index)
                    && !self.unsound.contains(&index)
                    && (self.found.is_complete || !self.worn.contains_key(&index));
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
