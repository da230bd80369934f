//! The verdict of a pass: which members are in sync, which are incomplete, and why.

use base::{SegmentId, with_causes};
use catalog::MemberState;
use unit::UnitError;

use super::copy_error::CopyError;
use super::inspection::SegmentState;
use super::pass::Pass;
use super::report::{PassReport, Stopped};

/// The most problems that a report contains.
const PROBLEMS_MAX: usize = 100;

impl Pass<'_> {
    pub(super) fn mark_unavailable(&mut self, member: usize, error: &UnitError) {
        if self.unavailable.insert(member) {
            let id = self.members[member].id;
            let why = with_causes(error);
            self.report_transient(format!("{id}: {why}"));
        }
    }

    /// Reports a problem that the next pass may not find again.
    fn report_transient(&mut self, problem: String) {
        self.found.is_complete = false;
        self.report(problem);
    }

    fn report(&mut self, problem: String) {
        if self.found.problems.len() < PROBLEMS_MAX {
            self.found.problems.insert(problem);
        }
    }

    /// A member failed to answer about a segment: it counts as unavailable if the unit
    /// itself fails, and otherwise is not in sync yet.
    pub(super) fn record_unit_error(
        &mut self,
        segment: SegmentId,
        member: usize,
        error: &UnitError,
    ) {
        if error.affects_whole_unit() {
            return self.mark_unavailable(member, error);
        }
        self.unsound.insert(member);
        let id = self.members[member].id;
        let why = with_causes(error);
        self.report_transient(format!("{segment} on {id}: {why}"));
    }

    /// A member is not in sync yet, and another pass at once would not help.
    pub(super) fn postpone(&mut self, segment: SegmentId, member: usize, why: &str) {
        self.unsound.insert(member);
        let id = self.members[member].id;
        self.report_transient(format!("{segment} on {id} {why}"));
    }

    /// Records the result of restoring a segment on member `to`, which was missing
    /// `missing` slots of it or had damaged ones.
    pub(super) fn record_result(
        &mut self,
        state: &SegmentState,
        to: usize,
        missing: usize,
        result: Result<u64, CopyError>,
    ) -> Result<(), Stopped> {
        let segment = state.segment;
        // If enough members are in sync to know all slots, unrecoverable ones were deleted,
        // and a member that has some of them was rolled back; or they are lost for good.
        let may_miss =
            self.members[to].state == MemberState::InSync || self.is_fully_reported(state);
        match result {
            Err(CopyError::Stopped) => return Err(Stopped),
            // None of the missing slots can be recovered: the member has all that there is.
            Err(CopyError::Rotten(slots))
                if missing == 0 || (may_miss && slots == missing as u64) =>
            {
                *self.damaged.entry(to).or_default() |= missing > 0;
                self.record_rotten(segment, to, slots);
                return Ok(());
            }
            _ => {}
        }
        self.found.incomplete.insert(self.members[to].id);
        match result {
            Ok(bytes) => {
                self.suspect.remove(&(self.members[to].id, segment));
                self.found.copied_bytes += bytes;
                if state.is_closed {
                    self.verified.insert((self.members[to].id, segment));
                }
            }
            Err(error) => self.record_failure(segment, to, error)?,
        }
        Ok(())
    }

    fn record_rotten(&mut self, segment: SegmentId, to: usize, slots: u64) {
        // Copies hold the same slots: each damaged slot is counted once.
        let counted = match self.rotted {
            Some((before, counted)) if before == segment && self.erasure.is_none() => counted,
            _ => 0,
        };
        self.found.rotten += slots.saturating_sub(counted);
        self.rotted = Some((segment, slots.max(counted)));
        let id = self.members[to].id;
        self.report(format!(
            "{segment} cannot be restored on {id}: {slots} slots are damaged on all members"
        ));
    }

    /// Records that a segment could not be restored on a member, or that it is unknown what
    /// the member is missing.
    ///
    /// # Errors
    /// [`Stopped`], if that is the failure.
    pub(super) fn record_failure(
        &mut self,
        segment: SegmentId,
        to: usize,
        error: CopyError,
    ) -> Result<(), Stopped> {
        self.unsound.insert(to);
        let id = self.members[to].id;
        self.verified.remove(&(id, segment));
        self.suspect.insert((id, segment));
        match error {
            CopyError::Changed => self.postpone(segment, to, "was changed meanwhile"),
            CopyError::Rotten(slots) => self.record_rotten(segment, to, slots),
            CopyError::Differs(slots) => self.report(format!(
                "{segment} cannot be restored on {id}: other members disagree on {slots} slots"
            )),
            CopyError::Disputed => self.report(format!(
                "{segment} cannot be restored on {id}: other members disagree on its slot size or lineage"
            )),
            CopyError::Source(error) => {
                let why = with_causes(&error);
                self.report_transient(format!("{segment} cannot be read for {id}: {why}"));
            }
            CopyError::Target(error) => {
                if matches!(error, UnitError::Full { .. }) {
                    self.found.full.insert(id);
                }
                self.record_unit_error(segment, to, &error);
            }
            CopyError::Stopped => return Err(Stopped),
        }
        Ok(())
    }

    pub(super) fn end(mut self) -> PassReport {
        if !self.found.is_complete {
            // A member that was not queried may have the missing slots.
            let incomplete = self.damaged.iter().filter(|(_, is_missing)| **is_missing);
            let ids = incomplete.map(|(index, _)| self.members[*index].id);
            self.found.incomplete.extend(ids);
        }
        let is_available = |index: &usize| !self.unavailable.contains(index);
        // Without enough available members, the missing slots are unknown.
        if self.are_enough_available() {
            for (index, member) in self.members.iter().enumerate() {
                let is_sound = is_available(&index)
                    && !self.unsound.contains(&index)
                    && (self.found.is_complete || !self.damaged.contains_key(&index));
                if is_sound
                    && member.state != MemberState::Draining
                    && !self.found.incomplete.contains(&member.id)
                {
                    self.found.in_sync.push(member.id);
                }
            }
        }
        self.found
    }
}
