//! Restoring what was freed.
//!
//! ```text
//!  1. plan    what will be done, in `freed/restore`, durably
//!  2. move    stored segments back to where they were
//!  3. mark    KEPT into the tables, where content and checksum still agree, durably
//!  4. forget  the restored slots, in the logs
//!  5. end     `freed/restore` is removed
//! ```
//!
//! Each step can be repeated, and the next restore or the next start completes a plan. So no
//! log names a slot that was restored, as if it had been freed at that time, should it be freed
//! again.
//!
//! A segment that cannot be restored now is reported and left as it was, and the restore
//! continues: the machine in question has failed in some way already. Only the plan needs room.
//!
//! Nothing else may use the unit meanwhile.

mod logs;
mod move_back;
mod plan;
mod slots;

use std::collections::{BTreeMap, BTreeSet};

use base::SegmentId;
use unit::UnitError;
use world::{Millis, OpenMode};

use super::Undelete;
use super::name::FreedSegmentName;
use crate::is_not_found;
use plan::{Plan, SavedPlan};

/// Selects what is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreFilter {
    /// Freed at this time or later, by this machine's clock.
    pub since: Millis,
    /// Freed at this time or earlier.
    pub until: Millis,
    /// Only of this segment.
    pub segment: Option<SegmentId>,
    /// Whether segments that were replaced are restored too; the current one is stored then.
    pub replaced: bool,
}

impl RestoreFilter {
    fn selects(&self, wall: Millis, segment: SegmentId) -> bool {
        let is_segment = self.segment.is_none_or(|own| own == segment);
        is_segment && self.since <= wall && wall <= self.until
    }
}

/// The outcome for one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredSegment {
    /// The segment.
    pub segment: SegmentId,
    /// The outcome for its file.
    pub whole: SegmentFate,
    /// Number of slots of it that were restored.
    pub slots: u32,
    /// Number of slots of it that were selected and are not stored any more.
    pub lost: u32,
}

/// The outcome for a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentFate {
    /// It was not deleted.
    Present,
    /// It was deleted, and is restored.
    Restored,
    /// It was replaced, and is restored in place of the other one.
    Reverted,
    /// It was replaced, and the other one was left in its place.
    Occupied,
    /// It is not stored any more.
    Lost,
    /// An error kept it or its slots from being restored. It was left as it was, as far as that
    /// is known.
    Failed,
}

/// What a restore did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreReport {
    /// Outcomes by segment.
    pub segments: Vec<RestoredSegment>,
    /// Some of what was freed up to this time was reclaimed before the restore.
    pub reclaimed_until: Option<Millis>,
    /// Number of logs that cannot be read: nothing that they named was restored. The walk after
    /// the next start finds it, and it counts as freed then.
    pub unreadable_logs: u32,
}

impl RestoreReport {
    /// Whether all that is selected and still stored was restored.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let failed = |segment: &RestoredSegment| segment.whole == SegmentFate::Failed;
        self.unreadable_logs == 0 && !self.segments.iter().any(failed)
    }
}

/// One run of a restore.
struct Restore<'a> {
    undelete: &'a Undelete<'a>,
    plan: &'a Plan,
    /// Changes nothing and only reports.
    dry_run: bool,
    outcomes: BTreeMap<SegmentId, RestoredSegment>,
}

impl Undelete<'_> {
    /// See [`FolderUnit::restore`](crate::FolderUnit::restore).
    pub(crate) fn restore(
        &self,
        filter: &RestoreFilter,
        dry_run: bool,
    ) -> Result<RestoreReport, UnitError> {
        if !dry_run {
            self.complete_restore()?;
        }
        self.segments.root.verify()?;
        let (plan, occupied) = self.plan_restore(filter)?;
        let occupied = occupied.into_iter().map(|segment| {
            let outcome = RestoredSegment::new(segment, SegmentFate::Occupied);
            (segment, outcome)
        });
        let restore = Restore {
            undelete: self,
            plan: &plan,
            dry_run,
            outcomes: occupied.collect(),
        };
        restore.run()
    }

    /// See [`FolderUnit::complete_restore`](crate::FolderUnit::complete_restore).
    pub(crate) fn complete_restore(&self) -> Result<RestoreReport, UnitError> {
        let saved = self.load_plan()?;
        if !matches!(saved, SavedPlan::None) {
            self.segments.root.verify()?;
        }
        match saved {
            SavedPlan::None => Ok(RestoreReport::default()),
            SavedPlan::Plan(plan) => {
                let restore = Restore {
                    undelete: self,
                    plan: &plan,
                    dry_run: false,
                    outcomes: BTreeMap::new(),
                };
                restore.run()
            }
            SavedPlan::Unreadable => Ok(RestoreReport {
                unreadable_logs: self.discard_plan()?,
                ..RestoreReport::default()
            }),
        }
    }

    /// The plan of a restore, and the segments of which others are left in place.
    fn plan_restore(
        &self,
        filter: &RestoreFilter,
    ) -> Result<(Plan, BTreeSet<SegmentId>), UnitError> {
        let mut first: BTreeMap<SegmentId, FreedSegmentName> = BTreeMap::new();
        let now = self.with_index(|index| {
            for segment in index.segments.all().values() {
                let name = segment.name;
                let is_superseded = name.superseded.is_some_and(|at| filter.since <= at);
                if !is_superseded && filter.selects(name.freed_at.wall, name.segment) {
                    // The segment that was there at the beginning of the selected time.
                    first.entry(name.segment).or_insert(name);
                }
            }
            Ok(index.clock.timestamp(self.clock))
        })?;
        let mut occupied = BTreeSet::new();
        let mut files = Vec::new();
        for (segment, name) in first {
            match self.is_present(segment) {
                Ok(true) if !filter.replaced => {
                    occupied.insert(segment);
                }
                // The move reports a segment that cannot be opened.
                Err(why) if !concerns_one_segment(&why) => return Err(why),
                _ => files.push(name.to_string()),
            }
        }
        Ok((Plan::new(filter, now, files), occupied))
    }

    fn is_present(&self, segment: SegmentId) -> Result<bool, UnitError> {
        let root = &self.segments.root;
        match root.disk.open(&root.file(segment), OpenMode::Read) {
            // An empty file is what an interrupted delete leaves.
            Ok(file) => Ok(!file.length().is_ok_and(|length| length == 0)),
            Err(error) if is_not_found(&error) => Ok(false),
            // Anything else occupies the name as well.
            Err(error) if world::WrongKind::of(&error).is_some() => Ok(true),
            Err(error) => Err(root.segment_error(segment, "open", error)),
        }
    }
}

impl Restore<'_> {
    fn run(mut self) -> Result<RestoreReport, UnitError> {
        let selected = self.select_slots()?;
        if !self.dry_run {
            self.undelete.save_plan(self.plan)?;
        }
        let files = self.move_all()?;
        let restored = self.mark_all(selected.by_segment, &files)?;
        if !self.dry_run {
            self.undelete.forget_restored(self.plan, &restored)?;
        }
        // Omits what an earlier restore with the same filter restored.
        self.outcomes
            .retain(|_, one| one.whole != SegmentFate::Present || one.slots > 0 || one.lost > 0);
        let newest = self
            .undelete
            .with_index(|index| Ok(index.newest_reclaimed()))?;
        Ok(RestoreReport {
            segments: self.outcomes.into_values().collect(),
            reclaimed_until: Some(newest).filter(|at| at.0 >= self.plan.since() && at.0 != 0),
            unreadable_logs: selected.unreadable_logs,
        })
    }

    /// Marks the selected slots as kept, where their content is there. Returns all of them that
    /// are kept now.
    fn mark_all(
        &mut self,
        mut selected: BTreeMap<SegmentId, slots::SelectedSlots>,
        files: &BTreeMap<SegmentId, FreedSegmentName>,
    ) -> Result<BTreeMap<SegmentId, BTreeSet<u32>>, UnitError> {
        selected.retain(|segment, _| {
            let fate = self.outcomes.get(segment).map(|one| one.whole);
            let is_planned = self.plan.names().any(|name| name.segment == *segment);
            // Then the slots are those of the segment that stays stored.
            let stays = matches!(fate, Some(SegmentFate::Occupied | SegmentFate::Failed));
            !(is_planned && stays)
        });
        let mut restored: BTreeMap<SegmentId, BTreeSet<u32>> = BTreeMap::new();
        for (segment, selected) in &selected {
            let from = files.get(segment).filter(|_| self.dry_run);
            let marked = self.mark(*segment, from, &selected.slots);
            let outcome = self.outcomes.entry(*segment).or_insert(RestoredSegment {
                lost: selected.of_others,
                ..RestoredSegment::new(*segment, SegmentFate::Present)
            });
            match marked {
                Ok(Some(marked)) => {
                    outcome.slots = marked.new;
                    outcome.lost += (selected.slots.len() - marked.kept.len()) as u32;
                    restored.insert(*segment, marked.kept);
                }
                Ok(None) => {
                    outcome.whole = SegmentFate::Lost;
                    outcome.lost += selected.slots.len() as u32;
                }
                Err(why) if concerns_one_segment(&why) => outcome.whole = SegmentFate::Failed,
                Err(why) => return Err(why),
            }
        }
        Ok(restored)
    }
}

impl RestoredSegment {
    fn new(segment: SegmentId, whole: SegmentFate) -> Self {
        Self {
            segment,
            whole,
            slots: 0,
            lost: 0,
        }
    }
}

/// Whether an error says nothing about other segments.
fn concerns_one_segment(why: &UnitError) -> bool {
    matches!(
        why,
        UnitError::Io { .. }
            | UnitError::Tampered { .. }
            | UnitError::Damaged { .. }
            | UnitError::NoSegment { .. }
            | UnitError::Full { .. }
    )
}
