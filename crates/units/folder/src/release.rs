//! Freeing slots, giving their room back, and deleting segments.
//!
//! ```text
//!  1. name    FREE into the table, durably           free
//!             (and hold, where what is freed is kept: see `keep`)
//!  2. punch   holes where they were, durably         free, when a quarter
//!  3. note    HOLE into the table, whenever          gathered; or settle
//! ```
//!
//! A crash after 1 or 2 leaves slots that are free and may still take room;
//! the next `free` in that segment, or the walk that `settle` makes once after
//! a start, punches them again.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::time::Duration;

use base::{SegmentId, Slot};
use unit::UnitError;
use world::{File, OpenMode, WrongKind};

use super::format::{Entry, Header, PAGE_BYTES, SlotState};
use super::place::{FOLDERS, folder_of, segment_of};
use super::runs::runs;
use super::table::{Table, write_entries};
use super::{FolderUnit, OpenTable, is_not_found};

/// Punch when one in so many of a segment's slots is free and still takes
/// room. A hole costs some microseconds and gathered slots often touch.
const PUNCH_ONE_IN: u32 = 4;

/// How long one call of `settle` goes on, in milliseconds.
const SETTLE_MS_MAX: u64 = 200;

/// What is left to punch.
#[derive(Default)]
pub(super) struct Settling {
    /// Segments with slots that are free and still take room.
    pub(super) pending: BTreeSet<SegmentId>,
    /// The sub-folder whose segments the walk looks at next: a process before
    /// this one may have left some.
    pub(super) walked: usize,
}

/// Marks `slots`, sorted, in the file, a write a run.
fn mark(file: &dyn File, slots: &[u32], state: SlotState) -> io::Result<()> {
    for run in runs(slots) {
        write_entries(file, run.start, &vec![Entry::free(state); run.len()])?;
    }
    Ok(())
}

/// Writes what the table says of `slots`, sorted, into the file, a write a run.
fn write_some(file: &dyn File, table: &Table, slots: &[u32]) -> io::Result<()> {
    for run in runs(slots) {
        let entries = &table.entries[run.start as usize..run.end as usize];
        write_entries(file, run.start, entries)?;
    }
    Ok(())
}

impl FolderUnit {
    pub(super) fn free_slots(
        &self,
        id: SegmentId,
        slots: &[Slot],
        closed: bool,
        keeps: bool,
    ) -> Result<(), UnitError> {
        self.place.verify()?;
        let OpenTable { file, mut table } = match self.read_table(id, OpenMode::Write) {
            // Perhaps a delete that was cut short.
            Err(UnitError::NoSegment { .. }) if closed => {
                return self.delete_segment(id, keeps);
            }
            Err(UnitError::NoSegment { .. }) => return self.sync_names(id),
            other => other?,
        };
        let takes_part = |slot: &u32| {
            let entry = table.entries.get(*slot as usize);
            entry.is_some_and(|entry| matches!(entry.state, SlotState::Kept | SlotState::Unknown))
        };
        let is_freed = |slot: &u32| {
            let entry = table.entries.get(*slot as usize);
            entry.is_some_and(|entry| entry.state == SlotState::Freed)
        };
        let mut asked: Vec<u32> = slots.iter().map(|slot| u32::from(slot.0)).collect();
        asked.sort_unstable();
        asked.dedup();
        let freed: Vec<u32> = asked.iter().copied().filter(takes_part).collect();
        // Those marked before are marked again: the sync then may have failed,
        // and the system takes what it lost for written.
        asked.retain(|slot| takes_part(slot) || is_freed(slot));
        for slot in &freed {
            let entry = &mut table.entries[*slot as usize];
            *entry = match entry.state {
                SlotState::Kept if keeps => entry.freed_with_content(),
                _ => Entry::free(SlotState::Freed),
            };
        }
        if closed && table.count(|state| matches!(state, SlotState::Kept | SlotState::Unknown)) == 0
        {
            return self.delete_segment(id, keeps);
        }
        // Also when nothing is new: a process before this one may have been
        // killed between marking and syncing.
        let marked = write_some(&*file, &table, &asked).and_then(|()| file.sync_data());
        if let Err(error) = marked {
            self.lose_unsynced(id);
            self.leave_unlogged(id, &freed);
            return Err(self.place.meaning_at(id, "free slots of", error));
        }
        self.show(id, &freed, SlotState::Freed);
        if keeps {
            self.log_freed(id, &table, &Self::with_content(&table, &freed));
        }
        let waiting = self.not_kept(&table);
        if !waiting.is_empty() {
            self.settling.lock().pending.insert(id);
        }
        if !waiting.is_empty() && waiting.len() as u32 >= table.slots() / PUNCH_ONE_IN {
            self.punch(id, &*file, &table, &waiting)?;
            if !self.is_unlogged(id) {
                self.settling.lock().pending.remove(&id);
            }
        }
        Ok(())
    }

    /// Slots that are free, still take room, and are not kept for anybody.
    fn not_kept(&self, table: &Table) -> Vec<u32> {
        let mut freed = table.slots_that(|state| state == SlotState::Freed);
        if self.is_keeping() {
            freed.retain(|slot| !table.entries[*slot as usize].is_freed_with_content());
        }
        freed
    }

    /// Shows readers of this process what has become of `slots`.
    fn show(&self, id: SegmentId, slots: &[u32], state: SlotState) {
        let cached = self.cache.get(id);
        let unsynced = self.unsynced.lock().get(id);
        for segment in cached.iter().chain(&unsynced) {
            for slot in slots {
                segment.set(*slot, &[Entry::free(state)]);
            }
        }
    }

    /// Gives back the room of slots that are free, sorted.
    pub(super) fn punch(
        &self,
        id: SegmentId,
        file: &dyn File,
        table: &Table,
        freed: &[u32],
    ) -> Result<(), UnitError> {
        let punch = || {
            // With the holes beside them: a slot may be smaller than a page.
            let mut holes = table.slots_that(|state| state == SlotState::Hole);
            holes.extend(freed);
            holes.sort_unstable();
            for run in runs(&holes) {
                let first = freed.partition_point(|slot| *slot < run.start);
                if freed.get(first).is_none_or(|slot| !run.contains(slot)) {
                    continue;
                }
                let hole = hole_of(&table.header, run);
                if !hole.is_empty() {
                    file.punch(hole.start, hole.end - hole.start)?;
                }
            }
            file.sync_data()?;
            mark(file, freed, SlotState::Hole)
        };
        punch().map_err(|error| {
            self.lose_unsynced(id);
            self.place.meaning_at(id, "give back room of", error)
        })?;
        self.show(id, freed, SlotState::Hole);
        self.measure(id, file);
        Ok(())
    }

    pub(super) fn delete_segment(&self, id: SegmentId, keeps: bool) -> Result<(), UnitError> {
        self.place.verify()?;
        self.cache.remove(id);
        if !(keeps && self.set_aside(id)?) {
            self.remove_segment(id)?;
        }
        self.sync_names(id)?;
        self.unsynced.lock().deleted(id);
        // A reader may have opened it again meanwhile.
        self.cache.remove(id);
        self.settling.lock().pending.remove(&id);
        self.account.remove(id);
        Ok(())
    }

    /// Removes a segment's file, if there is one.
    fn remove_segment(&self, id: SegmentId) -> Result<(), UnitError> {
        let path = self.place.file(id);
        // Another process may have the file open: it gives up its room now,
        // and not when that process closes it. Synced first, so that no write
        // from before shows after the cut. Not needed for the rest.
        if let Ok(file) = self.place.disk.open(&path, OpenMode::Write) {
            let _ = file.sync_data().and_then(|()| file.set_length(0));
        }
        match self.place.disk.remove(&path) {
            Err(error) if !is_not_found(&error) => {
                Err(self.place.meaning(&format!("delete segment {id}"), error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the absence of a segment durable.
    fn sync_names(&self, id: SegmentId) -> Result<(), UnitError> {
        let folder = self.place.folder(folder_of(id));
        match self.place.disk.sync_directory(&folder) {
            Err(error) if !is_not_found(&error) => Err(self.place.meaning("sync a folder", error)),
            _ => Ok(()),
        }
    }

    /// Gives back what was kept long enough, punches what waits, and walks on through
    /// the segments for what an earlier process left, each for its share of the time.
    /// True if there is more to do.
    pub(super) fn reclaim_some(&self) -> Result<bool, UnitError> {
        self.place.verify()?;
        let share = Duration::from_millis(SETTLE_MS_MAX) / 2;
        let begun = self.clock.monotonic();
        let kept = self.settle_kept(begun + share);
        if !self.are_logs_read()? {
            // Nobody knows yet what the walk is to find.
            return kept;
        }
        let waiting = self.settle_waiting(self.clock.monotonic() + share);
        Ok(kept? | waiting?)
    }

    fn settle_waiting(&self, end: Duration) -> Result<bool, UnitError> {
        loop {
            let next = self.settling.lock().pending.pop_first();
            match next {
                Some(id) => {
                    let settled = self.with_room(|| self.settle_segment(id));
                    // One file that cannot be read must not stop the others:
                    // its room is given back after the next start.
                    let is_only_its_own = matches!(
                        settled,
                        Ok(()) | Err(UnitError::Io { .. } | UnitError::Tampered { .. })
                    );
                    if !is_only_its_own {
                        self.settling.lock().pending.insert(id);
                    }
                    settled?;
                }
                None => {
                    let folder = self.settling.lock().walked;
                    if folder == FOLDERS {
                        self.walked();
                        return Ok(false);
                    }
                    self.walk(folder)?;
                }
            }
            if self.clock.monotonic() >= end {
                return Ok(true);
            }
        }
    }

    fn settle_segment(&self, id: SegmentId) -> Result<(), UnitError> {
        let _alone = self.writer(id);
        let OpenTable { file, table } = match self.read_table(id, OpenMode::Write) {
            // Others will report it; there is nothing to give back here.
            Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => return Ok(()),
            other => other?,
        };
        self.log_unlogged(id, &*file, &table)?;
        let freed = self.not_kept(&table);
        if !freed.is_empty() {
            // It may have been marked by a process that died before its sync.
            let synced = file.sync_data();
            synced.map_err(|error| self.place.meaning_at(id, "sync", error))?;
            self.punch(id, &*file, &table, &freed)?;
        }
        Ok(())
    }

    /// Puts all segments of a sub-folder on the list.
    fn walk(&self, folder: usize) -> Result<(), UnitError> {
        let names = match self.place.disk.list(&self.place.folder(folder)) {
            Err(error) if is_not_found(&error) => Vec::new(),
            Err(error) => {
                if WrongKind::of(&error).is_some() {
                    // The other folders go on.
                    self.settling.lock().walked = folder + 1;
                }
                return Err(self.place.meaning("list its segments", error));
            }
            Ok(names) => names,
        };
        self.remove_drafts(folder, &names);
        let ids = names.iter().filter_map(|entry| segment_of(&entry.name));
        let mut settling = self.settling.lock();
        settling.pending.extend(ids);
        settling.walked = folder + 1;
        Ok(())
    }
}

/// The whole pages within a run of slots.
fn hole_of(header: &Header, run: Range<u32>) -> Range<u64> {
    let start = header.slot_offset(run.start);
    let end = header.slot_offset(run.end);
    let end = if run.end == header.capacity {
        // Nothing follows it, so the last page is whole.
        end.next_multiple_of(PAGE_BYTES)
    } else {
        end - end % PAGE_BYTES
    };
    start.next_multiple_of(PAGE_BYTES)..end
}

#[cfg(test)]
mod tests {
    use base::ClusterId;

    use super::*;

    #[test]
    fn a_hole_never_touches_a_slot_beside_it() {
        let id = SegmentId::from_bits(1).expect("48 bits");
        let header = Header::new(id, ClusterId::from_u128(1), 1536, 16_384).expect("a size");
        for start in 0..header.capacity {
            for end in start + 1..=header.capacity {
                let hole = hole_of(&header, start..end);
                if hole.is_empty() {
                    continue;
                }
                assert!(hole.start >= header.slot_offset(start));
                let next = header.slot_offset(end);
                assert!(hole.end <= next || end == header.capacity);
                assert_eq!((hole.start % PAGE_BYTES, hole.end % PAGE_BYTES), (0, 0));
            }
        }
    }
}
