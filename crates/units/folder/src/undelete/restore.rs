//! Bringing back what was freed.
//!
//! ```text
//!  1. note    what is to be done, in `freed/restore`, durably
//!  2. move    segments that were set aside to where they were
//!  3. mark    KEPT into the tables, where content and checksum still agree, durably
//!  4. forget  the slots that were brought back, in the logs
//!  5. end     `freed/restore` goes
//! ```
//!
//! Each step can be done again, and what was noted is done to its end by the next
//! restore or the next start: so no log names a slot that was brought back, and is
//! freed once more, as if it had been freed then.
//!
//! A segment that cannot be brought back now is told and left as it was, and what
//! follows goes on: of the machine that is to be saved something has failed already.
//! Nothing but the note needs room.
//!
//! Must not run while anybody uses the unit.

mod logs;
mod note;
mod slots;

use std::collections::{BTreeMap, BTreeSet};

use base::SegmentId;
use unit::UnitError;
use world::{Millis, OpenMode};

use super::record::AsideName;
use super::{FolderUnit, Keep};
use crate::is_not_found;
use note::{Note, Noted};

/// What of what was freed is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restorable {
    /// Freed at this time or later, by this machine's clock.
    pub since: Millis,
    /// Freed at this time or earlier.
    pub until: Millis,
    /// Only of this segment.
    pub segment: Option<SegmentId>,
    /// Segments in whose place there is another one, too: that one is kept instead.
    pub replaced: bool,
}

/// What became of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredSegment {
    /// Which.
    pub segment: SegmentId,
    /// As a whole.
    pub whole: SegmentFate,
    /// How many slots of it were brought back, besides.
    pub slots: u32,
    /// How many were meant and are gone.
    pub gone: u32,
}

/// What became of a segment as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentFate {
    /// It was there.
    There,
    /// It was deleted, and is brought back.
    BroughtBack,
    /// It was replaced, and is in its place again.
    PutBack,
    /// Another one is in its place, which was left there.
    OtherThere,
    /// It is gone.
    Gone,
    /// It could not be brought back now, as a whole or its slots: something there does
    /// not work. It was left as it was, as far as that is known.
    Failed,
}

/// What a restore did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// By segment.
    pub segments: Vec<RestoredSegment>,
    /// Of what was freed up to then, some was given back before.
    pub given_back: Option<Millis>,
    /// Logs that cannot be read: of what they named, nothing was brought back. It is
    /// found by the walk after the next start, and counts as freed then.
    pub unreadable_logs: u32,
}

impl Restored {
    /// Whether all that is meant, and still there, was brought back.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let failed = |one: &RestoredSegment| one.whole == SegmentFate::Failed;
        self.unreadable_logs == 0 && !self.segments.iter().any(failed)
    }
}

impl Restorable {
    fn has(&self, wall: Millis, segment: SegmentId) -> bool {
        let is_its = self.segment.is_none_or(|own| own == segment);
        is_its && self.since <= wall && wall <= self.until
    }
}

impl FolderUnit {
    /// Brings back what is meant of what was freed, as far as it is still there;
    /// with `dry_run`, only says what that would be. A restore that was cut short
    /// is done to its end before. For a unit that nobody uses.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn restore(&self, meant: &Restorable, dry_run: bool) -> Result<Restored, UnitError> {
        let Some(keep) = &self.keep else {
            return Ok(Restored::default());
        };
        if !dry_run {
            self.end_restore()?;
        }
        self.place.verify()?;
        let (note, others) = self.planned(keep, meant)?;
        self.carry_out(keep, &note, &others, dry_run)
    }

    /// Does a restore that was cut short to its end. For a unit that nobody uses.
    ///
    /// A note that cannot be read is given up, and all logs with it: they may name what
    /// was brought back.
    ///
    /// # Errors
    /// [`UnitError`]; then what is held stays so for as long as the note does.
    pub fn end_restore(&self) -> Result<Restored, UnitError> {
        let Some(keep) = &self.keep else {
            return Ok(Restored::default());
        };
        let noted = self.noted()?;
        if !matches!(noted, Noted::Nothing) {
            self.place.verify()?;
        }
        match noted {
            Noted::Nothing => Ok(Restored::default()),
            Noted::Note(note) => self.carry_out(keep, &note, &BTreeSet::new(), false),
            Noted::Unreadable => Ok(Restored {
                unreadable_logs: self.give_up_note(keep)?,
                ..Restored::default()
            }),
        }
    }

    /// What is to be moved, and of which segments others are left in place.
    fn planned(
        &self,
        keep: &Keep,
        meant: &Restorable,
    ) -> Result<(Note, BTreeSet<SegmentId>), UnitError> {
        let mut first: BTreeMap<SegmentId, AsideName> = BTreeMap::new();
        let now = self.with_kept(keep, |state| {
            for aside in state.asides().values() {
                let name = aside.name;
                let is_passed = name.passed.is_some_and(|passed| meant.since <= passed);
                if !is_passed && meant.has(name.when.wall, name.segment) {
                    // What was there when the time begins that is meant.
                    first.entry(name.segment).or_insert(name);
                }
            }
            Ok(state.moment(&*self.clock))
        })?;
        let mut others = BTreeSet::new();
        let mut files = Vec::new();
        for (segment, name) in first {
            match self.is_there(segment) {
                Ok(true) if !meant.replaced => {
                    others.insert(segment);
                }
                // Of one that cannot be looked at whoever moves it tells.
                Err(why) if !is_its_own(&why) => return Err(why),
                _ => files.push(name.to_string()),
            }
        }
        let note = Note::new(meant, now, files);
        Ok((note, others))
    }

    fn is_there(&self, segment: SegmentId) -> Result<bool, UnitError> {
        match self
            .place
            .disk
            .open(&self.place.file(segment), OpenMode::Read)
        {
            // One that was cut to nothing is none.
            Ok(file) => Ok(!file.length().is_ok_and(|length| length == 0)),
            Err(error) if is_not_found(&error) => Ok(false),
            // Whatever it is, it is in the place.
            Err(error) if world::WrongKind::of(&error).is_some() => Ok(true),
            Err(error) => Err(self.place.meaning_at(segment, "open", error)),
        }
    }

    fn carry_out(
        &self,
        keep: &Keep,
        note: &Note,
        others: &BTreeSet<SegmentId>,
        dry_run: bool,
    ) -> Result<Restored, UnitError> {
        let (mut slots, unreadable_logs) = self.meant_slots(keep, note)?;
        if !dry_run {
            self.write_restore(keep, note)?;
        }
        let others = others.iter();
        let mut told: BTreeMap<_, _> = others
            .map(|segment| {
                (
                    *segment,
                    RestoredSegment::of(*segment, SegmentFate::OtherThere),
                )
            })
            .collect();
        let files = self.move_all(keep, note, dry_run, &mut told)?;
        slots.retain(|segment, _| {
            let told = told.get(segment).map(|one| one.whole);
            let is_noted = note.names().any(|name| name.segment == *segment);
            // They are those of the one that stays aside.
            let is_elsewhere = matches!(told, Some(SegmentFate::OtherThere | SegmentFate::Failed));
            !(is_noted && is_elsewhere)
        });
        let from = |segment: &SegmentId| files.get(segment).filter(|_| dry_run);
        let mut brought: BTreeMap<SegmentId, BTreeSet<u32>> = BTreeMap::new();
        for (segment, meant) in &slots {
            let entry = told.entry(*segment).or_insert_with(|| RestoredSegment {
                gone: meant.elsewhere,
                ..RestoredSegment::of(*segment, SegmentFate::There)
            });
            match self.mark_kept(*segment, from(segment), &meant.slots, dry_run) {
                Ok(Some(back)) => {
                    entry.slots = back.new;
                    entry.gone += (meant.slots.len() - back.kept.len()) as u32;
                    brought.insert(*segment, back.kept);
                }
                Ok(None) => {
                    entry.whole = SegmentFate::Gone;
                    entry.gone += meant.slots.len() as u32;
                }
                Err(why) if is_its_own(&why) => entry.whole = SegmentFate::Failed,
                Err(why) => return Err(why),
            }
        }
        if !dry_run {
            self.forget_brought(keep, note, &brought)?;
        }
        // What was brought back by the same words before.
        told.retain(|_, one| one.whole != SegmentFate::There || one.slots > 0 || one.gone > 0);
        let given_back = self.with_kept(keep, |state| Ok(state.given_back()))?;
        Ok(Restored {
            segments: told.into_values().collect(),
            given_back: Some(given_back).filter(|at| at.0 >= note.since() && at.0 != 0),
            unreadable_logs,
        })
    }

    /// Moves what is noted to where it was, durably. Returns what is there of it.
    fn move_all(
        &self,
        keep: &Keep,
        note: &Note,
        dry_run: bool,
        told: &mut BTreeMap<SegmentId, RestoredSegment>,
    ) -> Result<BTreeMap<SegmentId, AsideName>, UnitError> {
        let mut files = BTreeMap::new();
        for name in note.names() {
            let fate = match self.move_one(keep, note, &name, dry_run) {
                Err(why) if is_its_own(&why) => {
                    // Or the note stays, by which it is done later.
                    self.move_again(keep, &name, note.moment())?;
                    Some(SegmentFate::Failed)
                }
                moved => moved?,
            };
            if let Some(fate) = fate {
                told.insert(name.segment, RestoredSegment::of(name.segment, fate));
            }
            if !matches!(fate, Some(SegmentFate::OtherThere | SegmentFate::Failed)) {
                files.insert(name.segment, name);
            }
        }
        if !dry_run {
            let synced = self.sync_moved(&files);
            synced.map_err(|error| self.place.meaning("restore what was freed", error))?;
        }
        Ok(files)
    }

    /// What becomes of one segment that is noted; none if it was moved before it was
    /// cut short.
    fn move_one(
        &self,
        keep: &Keep,
        note: &Note,
        name: &AsideName,
        dry_run: bool,
    ) -> Result<Option<SegmentFate>, UnitError> {
        if !self.is_aside(name)? {
            return Ok(None);
        }
        let fate = match self.is_there(name.segment)? {
            // Put there after the restore was cut short.
            true if !note.replaced() => return Ok(Some(SegmentFate::OtherThere)),
            true => SegmentFate::PutBack,
            false => SegmentFate::BroughtBack,
        };
        if !dry_run {
            let was_there = fate == SegmentFate::PutBack;
            self.move_back(keep, name, was_there, note.replaced())?;
        }
        Ok(Some(fate))
    }
}

impl RestoredSegment {
    fn of(segment: SegmentId, whole: SegmentFate) -> Self {
        Self {
            segment,
            whole,
            slots: 0,
            gone: 0,
        }
    }
}

/// Whether an error says nothing of other segments.
fn is_its_own(why: &UnitError) -> bool {
    matches!(
        why,
        UnitError::Io { .. }
            | UnitError::Tampered { .. }
            | UnitError::Damaged { .. }
            | UnitError::NoSegment { .. }
            | UnitError::Full { .. }
    )
}
