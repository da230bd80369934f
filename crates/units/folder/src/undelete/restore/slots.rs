//! The slots that a restore means, and bringing them back.

use std::collections::{BTreeMap, BTreeSet};

use base::SegmentId;
use unit::UnitError;
use world::{File, OpenMode};

use super::is_its_own;
use super::note::Note;
use crate::OpenTable;
use crate::format::{Entry, SlotState};
use crate::runs::runs;
use crate::table::{Table, write_entries};
use crate::undelete::record::AsideName;
use crate::undelete::state::{path_of, read_log};
use crate::undelete::{FolderUnit, Keep};

/// The slots of one segment that are meant.
#[derive(Default)]
pub(super) struct Meant {
    pub slots: BTreeSet<u32>,
    /// Of them, those that belong to a segment that is not brought back.
    pub elsewhere: u32,
}

/// The slots that are kept now, and how many of them were not.
#[derive(Default)]
pub(super) struct Back {
    pub kept: BTreeSet<u32>,
    pub new: u32,
}

impl FolderUnit {
    /// The slots that logs name of the time that is meant, and how many logs cannot
    /// be read.
    pub(super) fn meant_slots(
        &self,
        keep: &Keep,
        note: &Note,
    ) -> Result<(BTreeMap<SegmentId, Meant>, u32), UnitError> {
        let mut slots: BTreeMap<SegmentId, Meant> = BTreeMap::new();
        // Of what is moved back: the slots that were freed at other times.
        let mut others: BTreeMap<SegmentId, BTreeSet<u32>> = BTreeMap::new();
        for name in note.names() {
            others.entry(name.segment).or_default();
        }
        let unreadable = self.with_kept(keep, |state| {
            let mut unreadable = 0;
            for begun in state.logs().keys() {
                let Ok(records) = read_log(&*self.place.disk, *begun) else {
                    unreadable += 1;
                    continue;
                };
                for record in records {
                    let id = record.segment;
                    let after = state.aside_after(id, record.when.moment);
                    let is_here = note.is_of_restored(&record, after);
                    if !note.means(record.when, id) {
                        if let Some(others) = others.get_mut(&id).filter(|_| is_here) {
                            others.extend(record.slots());
                        }
                        continue;
                    }
                    let segment = slots.entry(id).or_default();
                    match is_here {
                        true => segment.slots.extend(record.slots()),
                        false => segment.elsewhere += record.count() as u32,
                    }
                }
            }
            Ok(unreadable)
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
        Ok((slots, unreadable))
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
            // Whoever marks them is told.
            Err(why) if is_its_own(&why) => return Ok(Vec::new()),
            Err(why) => return Err(why),
        };
        let freed = table.slots_that(|state| state == SlotState::Freed);
        Ok(Self::with_content(&table, &freed))
    }

    /// Marks slots kept whose content is there, and returns them; none if the segment
    /// is not there.
    pub(super) fn mark_kept(
        &self,
        segment: SegmentId,
        from: Option<&AsideName>,
        slots: &BTreeSet<u32>,
        dry_run: bool,
    ) -> Result<Option<Back>, UnitError> {
        let opened = match from {
            Some(name) => self.table_aside(name),
            None if dry_run => self.read_table(segment, OpenMode::Read),
            None => self.read_table(segment, OpenMode::Write),
        };
        let OpenTable { file, table } = match opened {
            Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => {
                return Ok(None);
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
        Ok(Some(back))
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
}

fn has_content(file: &dyn File, table: &Table, slot: u32, entry: &Entry) -> bool {
    let mut content = vec![0; table.header.slot_bytes as usize];
    entry.is_freed_with_content()
        && file
            .read_at(&mut content, table.header.slot_offset(slot))
            .is_ok()
        && entry.vouches_for(&content)
}
