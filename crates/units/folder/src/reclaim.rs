//! Freeing slots, reclaiming their room, and deleting segments.
//!
//! ```text
//!  1. mark    FREE into the table, durably               free
//!             (stored for undelete, where there is a window)
//!  2. punch   holes where the slots were, durably        free, once a quarter of a
//!  3. note    HOLE into the table, at any time           segment waits; or reclaim
//! ```
//!
//! A crash after 1 or 2 leaves slots that are free and may still take room; the next `free`
//! in that segment, or the walk of `reclaim` after a start, punches them again.

use std::io;
use std::ops::Range;
use std::time::Duration;

use base::{SegmentId, Slot};
use unit::UnitError;
use world::{Clock, File, OpenMode, WrongKind};

use super::format::{Entry, Header, PAGE_BYTES, SlotState};
use super::is_not_found;
use super::queue::PunchQueue;
use super::replace::remove_drafts;
use super::root::segment_of;
use super::runs::runs;
use super::segments::{OpenTable, Segments};
use super::table::{Table, write_entries};
use super::undelete::Undelete;

/// Punch when one in this many of a segment's slots is free and still takes room. A hole
/// costs some microseconds, and slots that wait together often touch.
const PUNCH_ONE_IN: u32 = 4;

/// Time that one call of `reclaim` takes at most, in milliseconds.
const RECLAIM_MS_MAX: u64 = 200;

/// Marks `slots`, sorted, in the file with one write a run.
fn mark(file: &dyn File, slots: &[u32], state: SlotState) -> io::Result<()> {
    for run in runs(slots) {
        write_entries(file, run.start, &vec![Entry::free(state); run.len()])?;
    }
    Ok(())
}

/// Writes the table's entries of `slots`, sorted, into the file with one write a run.
fn write_some(file: &dyn File, table: &Table, slots: &[u32]) -> io::Result<()> {
    for run in runs(slots) {
        let entries = &table.entries[run.start as usize..run.end as usize];
        write_entries(file, run.start, entries)?;
    }
    Ok(())
}

/// Frees slots and reclaims their room.
pub(super) struct Reclaimer<'a> {
    pub(super) segments: &'a Segments,
    pub(super) punches: &'a PunchQueue,
    pub(super) undelete: Option<Undelete<'a>>,
    pub(super) clock: &'a dyn Clock,
}

impl Reclaimer<'_> {
    /// Frees slots, as [`Unit::free`](unit::Unit::free) does.
    pub(super) fn free(
        &self,
        id: SegmentId,
        slots: &[Slot],
        closed: bool,
    ) -> Result<(), UnitError> {
        self.with_room_or_unstored(|stores| {
            let _alone = self.segments.writer(id);
            self.free_slots(id, slots, closed, stores)
        })
    }

    /// Deletes a segment, as [`Unit::delete`](unit::Unit::delete) does.
    pub(super) fn delete(&self, id: SegmentId) -> Result<(), UnitError> {
        self.with_room_or_unstored(|stores| {
            let _alone = self.segments.writer(id);
            self.delete_segment(id, stores)
        })
    }

    /// Does `act` again each time that it found the unit full and something that was stored
    /// for undelete was evicted. `act` takes the locks that it needs itself. If nothing can
    /// be evicted, for any reason, the unit is full.
    pub(super) fn with_room<T>(
        &self,
        act: impl Fn() -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        match &self.undelete {
            Some(undelete) => undelete.with_room(act),
            None => act(),
        }
    }

    /// Does `act`, which frees; its argument says whether what is freed is stored. If the unit
    /// is full and nothing else can be evicted, what `act` frees is not stored.
    fn with_room_or_unstored(
        &self,
        act: impl Fn(bool) -> Result<(), UnitError>,
    ) -> Result<(), UnitError> {
        let stores = self.stores();
        match self.with_room(|| act(stores)) {
            Err(UnitError::Full { .. }) if stores => act(false),
            done => done,
        }
    }

    /// Whether what is freed now is stored for undelete.
    fn stores(&self) -> bool {
        self.undelete.as_ref().is_some_and(Undelete::is_enabled)
    }

    fn free_slots(
        &self,
        id: SegmentId,
        slots: &[Slot],
        closed: bool,
        stores: bool,
    ) -> Result<(), UnitError> {
        self.segments.root.verify()?;
        let OpenTable { file, mut table } = match self.segments.read_table(id, OpenMode::Write) {
            // Perhaps a delete that was interrupted.
            Err(UnitError::NoSegment { .. }) if closed => {
                return self.delete_segment(id, stores);
            }
            Err(UnitError::NoSegment { .. }) => return self.segments.sync_absence(id),
            other => other?,
        };
        let SlotsToFree { marked, new } = SlotsToFree::of(&table, slots);
        for slot in &new {
            let entry = &mut table.entries[*slot as usize];
            *entry = match entry.state {
                SlotState::Kept if stores => entry.freed_with_content(),
                _ => Entry::free(SlotState::Freed),
            };
        }
        if closed && table.count(|state| matches!(state, SlotState::Kept | SlotState::Unknown)) == 0
        {
            return self.delete_segment(id, stores);
        }
        // Also when nothing is new: an earlier process may have been killed between marking
        // and syncing.
        let written = write_some(&*file, &table, &marked).and_then(|()| file.sync_data());
        if let Err(error) = written {
            self.segments.lose_unsynced(id);
            if let Some(undelete) = &self.undelete {
                undelete.add_unlogged(id, &new);
            }
            self.punches.push(id);
            return Err(self.segments.root.segment_error(id, "free slots of", error));
        }
        self.segments.publish(id, &new, SlotState::Freed);
        if let Some(undelete) = self.undelete.as_ref().filter(|_| stores) {
            undelete.log_freed(id, &table, &table.with_content(&new));
        }
        self.punch_if_due(id, &*file, &table)
    }

    /// Punches the free slots of a segment if there are enough of them, and queues it
    /// otherwise.
    fn punch_if_due(&self, id: SegmentId, file: &dyn File, table: &Table) -> Result<(), UnitError> {
        let waiting = self.unstored(table);
        if waiting.is_empty() {
            return Ok(());
        }
        self.punches.push(id);
        if waiting.len() as u32 >= table.slots() / PUNCH_ONE_IN {
            punch(self.segments, id, file, table, &waiting)?;
            let is_unlogged =
                (self.undelete.as_ref()).is_some_and(|undelete| undelete.is_unlogged(id));
            if !is_unlogged {
                self.punches.remove(id);
            }
        }
        Ok(())
    }

    /// Slots that are free, still take room, and are not stored for undelete.
    fn unstored(&self, table: &Table) -> Vec<u32> {
        let mut freed = table.slots_in(|state| state == SlotState::Freed);
        if self.stores() {
            freed.retain(|slot| !table.entries[*slot as usize].is_freed_with_content());
        }
        freed
    }

    fn delete_segment(&self, id: SegmentId, stores: bool) -> Result<(), UnitError> {
        self.segments.root.verify()?;
        self.segments.cache.remove(id);
        let is_stored = match &self.undelete {
            Some(undelete) if stores => undelete.store_segment(id)?,
            _ => false,
        };
        if !is_stored {
            self.segments.remove_file(id)?;
        }
        self.segments.sync_absence(id)?;
        self.segments.unsynced.lock().deleted(id);
        // A reader may have opened it again meanwhile.
        self.segments.cache.remove(id);
        self.punches.remove(id);
        self.segments.account.remove(id);
        Ok(())
    }

    /// Removes what is stored beyond its window, punches holes in queued segments, and
    /// continues the walk over all segments, for a part of the time each. Returns whether
    /// there is more to do.
    pub(super) fn reclaim(&self) -> Result<bool, UnitError> {
        self.segments.root.verify()?;
        let share = Duration::from_millis(RECLAIM_MS_MAX) / 2;
        let mut stored = Ok(false);
        if let Some(undelete) = &self.undelete {
            stored = undelete.reclaim(self.clock.monotonic() + share);
            if !undelete.are_logs_read()? {
                // Which free slots the logs name is not known yet, so the walk must wait.
                return stored;
            }
        }
        let queued = self.punch_queued(self.clock.monotonic() + share);
        Ok(stored? | queued?)
    }

    fn punch_queued(&self, end: Duration) -> Result<bool, UnitError> {
        loop {
            match (self.punches.pop(), self.punches.next_folder()) {
                (Some(id), _) => {
                    let punched = self.with_room(|| self.punch_segment(id));
                    // One file that cannot be read must not block the others: its room is
                    // reclaimed after the next start.
                    let concerns_only_it = matches!(
                        punched,
                        Ok(()) | Err(UnitError::Io { .. } | UnitError::Tampered { .. })
                    );
                    if !concerns_only_it {
                        self.punches.push(id);
                    }
                    punched?;
                }
                (None, Some(folder)) => self.visit(folder)?,
                (None, None) => {
                    if let Some(undelete) = &self.undelete {
                        undelete.end_walk();
                    }
                    return Ok(false);
                }
            }
            if self.clock.monotonic() >= end {
                return Ok(true);
            }
        }
    }

    fn punch_segment(&self, id: SegmentId) -> Result<(), UnitError> {
        let _alone = self.segments.writer(id);
        let OpenTable { file, table } = match self.segments.read_table(id, OpenMode::Write) {
            // A read or a scrub reports it; there is nothing to reclaim.
            Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => return Ok(()),
            other => other?,
        };
        if let Some(undelete) = &self.undelete {
            undelete.log_unlogged(id, &*file, &table)?;
        }
        let freed = self.unstored(&table);
        if !freed.is_empty() {
            // A process that died before its sync may have marked them.
            let synced = file.sync_data();
            synced.map_err(|error| self.segments.root.segment_error(id, "sync", error))?;
            punch(self.segments, id, &*file, &table, &freed)?;
        }
        Ok(())
    }

    /// Queues all segments of a sub-folder.
    fn visit(&self, folder: usize) -> Result<(), UnitError> {
        let root = &self.segments.root;
        let names = match root.disk.list(&root.folder(folder)) {
            Err(error) if is_not_found(&error) => Vec::new(),
            Err(error) => {
                if WrongKind::of(&error).is_some() {
                    // Continue with the other folders.
                    self.punches.set_visited(folder);
                }
                return Err(root.unit_error("list its segments", error));
            }
            Ok(names) => names,
        };
        remove_drafts(root, folder, &names);
        self.punches
            .extend(names.iter().filter_map(|entry| segment_of(&entry.name)));
        self.punches.set_visited(folder);
        Ok(())
    }
}

/// The slots of one call of `free`, sorted.
struct SlotsToFree {
    /// The slots that hold something, or may.
    new: Vec<u32>,
    /// These and those that were marked before, which are marked again: the sync may have
    /// failed then, and the operating system takes what it lost for written.
    marked: Vec<u32>,
}

impl SlotsToFree {
    fn of(table: &Table, slots: &[Slot]) -> Self {
        let state = |slot: u32| table.entries.get(slot as usize).map(|entry| entry.state);
        let mut marked: Vec<u32> = slots.iter().map(|slot| u32::from(slot.0)).collect();
        marked.sort_unstable();
        marked.dedup();
        let is_new = |slot: u32| matches!(state(slot), Some(SlotState::Kept | SlotState::Unknown));
        let new = marked
            .iter()
            .copied()
            .filter(|slot| is_new(*slot))
            .collect();
        marked.retain(|slot| is_new(*slot) || state(*slot) == Some(SlotState::Freed));
        Self { new, marked }
    }
}

/// Reclaims the room of slots that are free, sorted. The segment's writer's lock is held.
pub(super) fn punch(
    segments: &Segments,
    id: SegmentId,
    file: &dyn File,
    table: &Table,
    freed: &[u32],
) -> Result<(), UnitError> {
    let punch = || {
        // With the holes beside them: a slot may be smaller than a page.
        let mut holes = table.slots_in(|state| state == SlotState::Hole);
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
        segments.lose_unsynced(id);
        segments.root.segment_error(id, "reclaim room of", error)
    })?;
    segments.publish(id, freed, SlotState::Hole);
    segments.measure(id, file);
    Ok(())
}

/// The whole pages within a run of slots, as a range of bytes in the file.
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
