//! The slots that a restore selects, and marking them as kept.

use std::collections::{BTreeMap, BTreeSet};

use base::SegmentId;
use unit::UnitError;
use world::{File, OpenMode};

use super::{Restore, concerns_one_segment};
use crate::format::{Entry, SlotState};
use crate::runs::runs;
use crate::segments::OpenTable;
use crate::table::{Table, write_entries};
use crate::undelete::index::{path_of, read_log};
use crate::undelete::name::FreedSegmentName;

/// The slots of one segment that are selected.
#[derive(Default)]
pub(super) struct SelectedSlots {
    pub slots: BTreeSet<u32>,
    /// Number of selected slots of earlier segments of that id, which are not restored.
    pub of_others: u32,
}

/// All slots that are selected.
pub(super) struct Selection {
    pub by_segment: BTreeMap<SegmentId, SelectedSlots>,
    /// Number of logs that cannot be read.
    pub unreadable_logs: u32,
}

/// The selected slots of one segment that are kept now.
#[derive(Default)]
pub(super) struct MarkedSlots {
    pub kept: BTreeSet<u32>,
    /// Number of these that this restore marked.
    pub new: u32,
}

impl Restore<'_> {
    /// Selects the slots that logs name, and those of planned segments.
    pub(super) fn select_slots(&self) -> Result<Selection, UnitError> {
        let mut by_segment: BTreeMap<SegmentId, SelectedSlots> = BTreeMap::new();
        // Of planned segments: the slots that were freed at other times.
        let mut unselected: BTreeMap<SegmentId, BTreeSet<u32>> = BTreeMap::new();
        for name in self.plan.names() {
            unselected.entry(name.segment).or_default();
        }
        let unreadable_logs = self.undelete.with_index(|index| {
            let mut unreadable_logs = 0;
            for begun in index.logs.all().keys() {
                let Ok(records) = read_log(&*self.undelete.segments.root.disk, *begun) else {
                    unreadable_logs += 1;
                    continue;
                };
                for record in records {
                    let id = record.segment;
                    let freed = index.segments.next_after(id, record.freed_at.run_time_us);
                    let is_restored = self.plan.is_of_restored(&record, freed);
                    if !self.plan.selects(record.freed_at, id) {
                        if let Some(slots) = unselected.get_mut(&id).filter(|_| is_restored) {
                            slots.extend(record.slots());
                        }
                        continue;
                    }
                    let selected = by_segment.entry(id).or_default();
                    match is_restored {
                        true => selected.slots.extend(record.slots()),
                        false => selected.of_others += record.count() as u32,
                    }
                }
            }
            Ok(unreadable_logs)
        })?;
        for name in self.plan.names() {
            // No log may name slots that were freed just before a power failure, after which
            // the segment was deleted.
            let freed = self.freed_slots(&name)?;
            let unselected = unselected.remove(&name.segment).unwrap_or_default();
            let unlogged = freed.into_iter().filter(|slot| !unselected.contains(slot));
            let selected = by_segment.entry(name.segment).or_default();
            selected.slots.extend(unlogged);
        }
        Ok(Selection {
            by_segment,
            unreadable_logs,
        })
    }

    /// The slots of a planned segment that are free and still have their content.
    fn freed_slots(&self, name: &FreedSegmentName) -> Result<Vec<u32>, UnitError> {
        let open = match self.open_stored(name) {
            Err(UnitError::NoSegment { .. }) => {
                let segments = self.undelete.segments;
                segments.read_table(name.segment, OpenMode::Read)
            }
            other => other,
        };
        match open {
            Ok(open) => Ok(open.table.freed_with_content()),
            // Marking its slots reports the error.
            Err(why) if concerns_one_segment(&why) => Ok(Vec::new()),
            Err(why) => Err(why),
        }
    }

    /// Marks those of `slots` as kept whose content is there; `None` if the segment is not. A
    /// dry run finds the segment at `from`, if it is stored.
    pub(super) fn mark(
        &self,
        segment: SegmentId,
        from: Option<&FreedSegmentName>,
        slots: &BTreeSet<u32>,
    ) -> Result<Option<MarkedSlots>, UnitError> {
        let segments = self.undelete.segments;
        let opened = match from {
            Some(name) => self.open_stored(name),
            None if self.dry_run => segments.read_table(segment, OpenMode::Read),
            None => segments.read_table(segment, OpenMode::Write),
        };
        let OpenTable { file, table } = match opened {
            Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => return Ok(None),
            other => other?,
        };
        let mut marked = MarkedSlots::default();
        let mut new = Vec::new();
        for slot in slots {
            match table.entries.get(*slot as usize) {
                Some(entry) if entry.state == SlotState::Kept => {
                    marked.kept.insert(*slot);
                }
                Some(entry) if has_content(&*file, &table, *slot, entry) => {
                    marked.kept.insert(*slot);
                    new.push(*slot);
                }
                _ => {}
            }
        }
        marked.new = new.len() as u32;
        if !self.dry_run && !marked.kept.is_empty() {
            let mark = || {
                for run in runs(&new) {
                    let entries = &table.entries[run.start as usize..run.end as usize];
                    let kept: Vec<Entry> = entries.iter().map(|entry| entry.restored()).collect();
                    write_entries(&*file, run.start, &kept)?;
                }
                // Also syncs what an interrupted restore has marked.
                file.sync_data()
            };
            let failed = |error| {
                segments
                    .root
                    .segment_error(segment, "restore slots of", error)
            };
            mark().map_err(failed)?;
            segments.cache.remove(segment);
            segments.measure(segment, &*file);
        }
        Ok(Some(marked))
    }

    fn open_stored(&self, name: &FreedSegmentName) -> Result<OpenTable, UnitError> {
        let path = path_of(&name.to_string());
        let segments = self.undelete.segments;
        segments.open_table(name.segment, &path, OpenMode::Read)
    }
}

fn has_content(file: &dyn File, table: &Table, slot: u32, entry: &Entry) -> bool {
    let mut content = vec![0; table.header.slot_bytes as usize];
    entry.is_freed_with_content()
        && file
            .read_at(&mut content, table.header.slot_offset(slot))
            .is_ok()
        && entry.matches(&content)
}
