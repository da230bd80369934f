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
//! Must not run while anybody uses the unit.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use base::SegmentId;
use serde::{Deserialize, Serialize};
use world::{File, Millis, OpenMode};

use super::record::{AsideName, DRAFT, FOLDER, RESTORE, Record, When, log_name};
use super::state::{path_of, read_log};
use super::{FolderUnit, Keep};
use crate::UnitError;
use crate::folder::format::{Entry, SlotState};
use crate::folder::place::segment_of;
use crate::folder::runs::runs;
use crate::folder::table::{Table, write_entries};
use crate::folder::{OpenTable, is_not_found};

/// A longer note is none that was written here, in bytes.
const NOTE_BYTES_MAX: u64 = 64 << 20;

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
}

/// What a restore did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// By segment.
    pub segments: Vec<RestoredSegment>,
    /// Of what was freed up to then, some was given back before.
    pub given_back: Option<Millis>,
}

/// What is to be done, as it is noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    since: i64,
    until: i64,
    segment: Option<String>,
    replaced: bool,
    /// The moment of the restore: what is freed later is not meant, also where
    /// this is done to its end much later.
    moment: u64,
    /// Files in `freed/` that are moved back.
    files: Vec<String>,
}

impl Note {
    fn means(&self, when: When, segment: SegmentId) -> bool {
        let meant = Restorable {
            since: Millis(self.since),
            until: Millis(self.until),
            segment: self.segment.as_deref().and_then(segment_of),
            replaced: self.replaced,
        };
        when.moment < self.moment && meant.has(when.wall, segment)
    }

    fn names(&self) -> impl Iterator<Item = AsideName> {
        self.files.iter().filter_map(|name| AsideName::parse(name))
    }
}

impl Restorable {
    fn has(&self, wall: Millis, segment: SegmentId) -> bool {
        let is_its = self.segment.is_none_or(|own| own == segment);
        is_its && self.since <= wall && wall <= self.until
    }
}

/// The slots of one segment that are meant.
#[derive(Default)]
struct Meant {
    slots: BTreeSet<u32>,
    /// Of them, those that belong to a segment that is not brought back.
    elsewhere: u32,
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
    /// # Errors
    /// [`UnitError`].
    pub fn end_restore(&self) -> Result<(), UnitError> {
        let Some(keep) = &self.keep else {
            return Ok(());
        };
        let failed = |error| self.place.meaning("end a restore", error);
        let file = match self.place.disk.open(&path_of(RESTORE), OpenMode::Read) {
            Err(error) if is_not_found(&error) => return Ok(()),
            other => other.map_err(failed)?,
        };
        self.place.verify()?;
        let read = || {
            let mut text = vec![0; file.length()?.min(NOTE_BYTES_MAX) as usize];
            file.read_at(&mut text, 0)?;
            let text = String::from_utf8(text).map_err(io::Error::other)?;
            toml::from_str(&text).map_err(io::Error::other)
        };
        let note: Note = read().map_err(failed)?;
        self.carry_out(keep, &note, &BTreeSet::new(), false)
            .map(drop)
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
                if !name.is_past && meant.has(name.when.wall, name.segment) {
                    // What was there when the time begins that is meant.
                    first.entry(name.segment).or_insert(name);
                }
            }
            Ok(state.moment(&*self.clock))
        })?;
        let mut others = BTreeSet::new();
        let mut files = Vec::new();
        for (segment, name) in first {
            if self.is_there(segment)? && !meant.replaced {
                others.insert(segment);
            } else {
                files.push(name.to_string());
            }
        }
        let note = Note {
            since: meant.since.0,
            until: meant.until.0,
            segment: meant.segment.map(|segment| segment.to_string()),
            replaced: meant.replaced,
            moment: now.moment,
            files,
        };
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
        let failed = |error| self.place.meaning("restore what was freed", error);
        let mut slots = self.meant_slots(keep, note)?;
        if !dry_run {
            self.write_restore(keep, note)?;
        }
        let mut restored: BTreeMap<SegmentId, RestoredSegment> = BTreeMap::new();
        let mut fate = |segment, whole| {
            let none = RestoredSegment {
                segment,
                whole,
                slots: 0,
                gone: 0,
            };
            restored.insert(segment, none);
        };
        for segment in others {
            fate(*segment, SegmentFate::OtherThere);
        }
        let mut files = BTreeMap::new();
        for name in note.names() {
            let was_there = self.is_there(name.segment)?;
            if was_there && !note.replaced {
                // Put there after the restore was cut short; or by that, which then
                // has nothing more to move.
                if self.is_aside(&name)? {
                    fate(name.segment, SegmentFate::OtherThere);
                    // They are the old one's.
                    slots.remove(&name.segment);
                } else {
                    files.insert(name.segment, name);
                }
                continue;
            }
            files.insert(name.segment, name);
            let is_moved = match dry_run {
                true => true,
                false => self.move_back(keep, &name, was_there, note.replaced)?,
            };
            match (is_moved, was_there) {
                (true, false) => fate(name.segment, SegmentFate::BroughtBack),
                (true, true) => fate(name.segment, SegmentFate::PutBack),
                // By the same restore, before it was cut short.
                (false, _) => {}
            }
        }
        if !dry_run {
            self.sync_moved(&files).map_err(failed)?;
        }
        let mut brought: BTreeMap<SegmentId, BTreeSet<u32>> = BTreeMap::new();
        for (segment, meant) in &slots {
            let from = files.get(segment).filter(|_| dry_run);
            let (back, gone) = self.mark_kept(*segment, from, &meant.slots, dry_run)?;
            let entry = restored.entry(*segment).or_insert(RestoredSegment {
                segment: *segment,
                whole: SegmentFate::There,
                slots: 0,
                gone: meant.elsewhere,
            });
            match gone {
                Some(gone) => entry.gone += gone,
                None => {
                    entry.whole = SegmentFate::Gone;
                    entry.gone += meant.slots.len() as u32;
                }
            }
            entry.slots = back.new;
            brought.insert(*segment, back.kept);
        }
        if !dry_run {
            self.forget_brought(keep, note, &brought)?;
        }
        // What was brought back by the same words before.
        restored.retain(|_, one| one.whole != SegmentFate::There || one.slots > 0 || one.gone > 0);
        let given_back = self.with_kept(keep, |state| Ok(state.given_back()))?;
        Ok(Restored {
            segments: restored.into_values().collect(),
            given_back: Some(given_back).filter(|at| at.0 >= note.since && at.0 != 0),
        })
    }

    /// The slots that logs name of the time that is meant.
    fn meant_slots(
        &self,
        keep: &Keep,
        note: &Note,
    ) -> Result<BTreeMap<SegmentId, Meant>, UnitError> {
        let mut slots: BTreeMap<SegmentId, Meant> = BTreeMap::new();
        // Of what is moved back: the slots that were freed at other times.
        let mut others: BTreeMap<SegmentId, BTreeSet<u32>> = BTreeMap::new();
        for name in note.names() {
            others.entry(name.segment).or_default();
        }
        self.with_kept(keep, |state| {
            for begun in state.logs().keys() {
                for record in read_log(&*self.place.disk, *begun)? {
                    let id = record.segment;
                    let after = state.aside_after(id, record.when.moment);
                    let is_here = is_of_restored(note, &record, after);
                    if !note.means(record.when, id) {
                        if let Some(others) = others.get_mut(&id).filter(|_| is_here) {
                            others.extend(record.slots());
                        }
                        continue;
                    }
                    let segment = slots.entry(id).or_default();
                    match is_here {
                        true => segment.slots.extend(record.slots()),
                        false => segment.elsewhere += record.slots().count() as u32,
                    }
                }
            }
            Ok(())
        })?;
        for name in note.names() {
            // What was freed just before a power failure, and deleted after it, may be
            // in no log.
            let freed = self.freed_with_content(&name)?;
            let others = others.remove(&name.segment).unwrap_or_default();
            let unlogged = freed.into_iter().filter(|slot| !others.contains(slot));
            let segment = slots.entry(name.segment).or_default();
            segment.slots.extend(unlogged);
        }
        Ok(slots)
    }

    /// The slots of a segment that is moved back, or was, that are free and keep
    /// their content.
    fn freed_with_content(&self, name: &AsideName) -> Result<Vec<u32>, UnitError> {
        let aside = match self.table_aside(name) {
            Err(UnitError::NoSegment { .. }) => self.read_table(name.segment, OpenMode::Read),
            other => other,
        };
        let table = match aside {
            Ok(open) => open.table,
            Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => return Ok(Vec::new()),
            Err(why) => return Err(why),
        };
        let freed = table.slots_that(|state| state == SlotState::Freed);
        Ok(Self::with_content(&table, &freed))
    }

    fn write_restore(&self, keep: &Keep, note: &Note) -> Result<(), UnitError> {
        self.with_kept(keep, |state| {
            state.make_folder(&*self.place.disk)?;
            let text = toml::to_string(note).map_err(io::Error::other)?;
            self.write_whole(RESTORE, text.as_bytes())
        })
    }

    /// Writes a file in `freed/` as a whole, durably.
    fn write_whole(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let disk = &*self.place.disk;
        let draft = path_of(&format!("{DRAFT}{name}"));
        match disk.remove(&draft) {
            Err(error) if !is_not_found(&error) => return Err(error),
            _ => {}
        }
        let file = disk.open(&draft, OpenMode::CreateNew)?;
        file.write_at(content, 0)?;
        file.sync_data()?;
        disk.rename(&draft, &path_of(name))?;
        disk.sync_directory(Path::new(FOLDER))
    }

    /// Marks slots kept whose content is there. Returns them, and how many are not;
    /// none if the segment is not there.
    fn mark_kept(
        &self,
        segment: SegmentId,
        from: Option<&AsideName>,
        slots: &BTreeSet<u32>,
        dry_run: bool,
    ) -> Result<(Back, Option<u32>), UnitError> {
        let opened = match from {
            Some(name) => self.table_aside(name),
            None if dry_run => self.read_table(segment, OpenMode::Read),
            None => self.read_table(segment, OpenMode::Write),
        };
        let OpenTable { file, table } = match opened {
            Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => {
                return Ok((Back::default(), None));
            }
            other => other?,
        };
        let mut back = Back::default();
        let mut marked = Vec::new();
        for slot in slots {
            match table.entries.get(*slot as usize) {
                Some(entry) if entry.state == SlotState::Kept => {
                    back.kept.insert(*slot);
                }
                Some(entry) if has_content(&*file, &table, *slot, entry) => {
                    back.kept.insert(*slot);
                    marked.push(*slot);
                }
                _ => {}
            }
        }
        back.new = marked.len() as u32;
        let gone = (slots.len() - back.kept.len()) as u32;
        if !dry_run && !back.kept.is_empty() {
            let mark = || {
                for run in runs(&marked) {
                    let entries = &table.entries[run.start as usize..run.end as usize];
                    let kept: Vec<Entry> = entries.iter().map(|entry| entry.kept()).collect();
                    write_entries(&*file, run.start, &kept)?;
                }
                // Also what a restore before this one may not have lived to sync.
                file.sync_data()
            };
            mark().map_err(|error| self.place.meaning_at(segment, "restore slots of", error))?;
            self.cache.remove(segment);
            self.measure(segment, &*file);
        }
        Ok((back, Some(gone)))
    }

    fn table_aside(&self, name: &AsideName) -> Result<OpenTable, UnitError> {
        let read = || {
            let path = path_of(&name.to_string());
            let file = self.place.disk.open(&path, OpenMode::Read)?;
            let table = Table::read(&*file)?;
            Ok(OpenTable { file, table })
        };
        read().map_err(|error| self.explain(name.segment, "open", error))
    }

    /// Writes the logs anew without the slots that were brought back, and ends the
    /// restore.
    fn forget_brought(
        &self,
        keep: &Keep,
        note: &Note,
        brought: &BTreeMap<SegmentId, BTreeSet<u32>>,
    ) -> Result<(), UnitError> {
        let disk = &*self.place.disk;
        self.with_kept(keep, |state| {
            for begun in state.logs().keys() {
                let records = read_log(disk, *begun)?;
                let mut left = Vec::with_capacity(records.len());
                for record in &records {
                    let after = state.aside_after(record.segment, record.when.moment);
                    let is_meant = note.means(record.when, record.segment)
                        && is_of_restored(note, record, after);
                    let kept = brought.get(&record.segment).filter(|_| is_meant);
                    let slots = record.slots();
                    let slots = slots.filter(|slot| kept.is_none_or(|kept| !kept.contains(slot)));
                    let slots: Vec<u32> = slots.collect();
                    if !slots.is_empty() {
                        left.push(record.clone().with_slots(&slots));
                    }
                }
                if left != records {
                    let content = left.iter().map(Record::encode).collect::<Vec<_>>();
                    self.write_whole(&log_name(*begun), &content.concat())?;
                }
            }
            match disk.remove(&path_of(RESTORE)) {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
            disk.sync_directory(Path::new(FOLDER))
        })?;
        // What logs name is another sum now.
        self.forget_kept();
        Ok(())
    }
}

/// The slots that are kept now, and how many of them were not.
#[derive(Default)]
struct Back {
    kept: BTreeSet<u32>,
    new: u32,
}

/// Whether the slots of a record belong to the segment as it is there after the
/// restore, and not to one that was set aside since and stays so.
///
/// A record is of the segment that was set aside next after it, and if none was, of
/// the one that is there. `after`: when that was, of those that still are aside.
fn is_of_restored(note: &Note, record: &Record, after: Option<u64>) -> bool {
    // One that is noted may have been moved already.
    let planned = note
        .names()
        .filter(|name| name.segment == record.segment)
        .map(|name| name.when.moment)
        .find(|moment| *moment >= record.when.moment);
    let moved = note.names().any(|name| name.segment == record.segment);
    match (planned, after) {
        (Some(planned), Some(after)) => planned <= after,
        (Some(_), None) => true,
        // Of the one that another one is put in place of.
        (None, None) => !moved,
        (None, Some(_)) => false,
    }
}

fn has_content(file: &dyn File, table: &Table, slot: u32, entry: &Entry) -> bool {
    let mut content = vec![0; table.header.slot_bytes as usize];
    entry.is_freed_with_content()
        && file
            .read_at(&mut content, table.header.slot_offset(slot))
            .is_ok()
        && entry.vouches_for(&content)
}
