//! Logging the slots that were freed.

use std::collections::BTreeSet;

use base::SegmentId;
use unit::UnitError;
use world::File;

use super::Undelete;
use super::index::FreedSlots;
use crate::table::Table;

impl Undelete<'_> {
    /// Logs slots of a segment that were marked free durably. If that fails, a later `reclaim`
    /// logs them.
    pub(crate) fn log_freed(&self, id: SegmentId, table: &Table, slots: &[u32]) {
        if slots.is_empty() {
            return;
        }
        match self.log(id, table, slots) {
            Ok(()) => {
                // Logging works again: retry what failed.
                let unlogged = self.store.unlogged.lock();
                self.punches.extend(unlogged.keys().copied());
            }
            Err(_) => {
                self.add_unlogged(id, slots);
                self.punches.push(id);
            }
        }
    }

    fn log(&self, id: SegmentId, table: &Table, slots: &[u32]) -> Result<(), UnitError> {
        let freed = FreedSlots {
            segment: id,
            slot_bytes: table.header.slot_bytes,
            slots,
        };
        self.with_index(|index| {
            let window = self.store.policy.window;
            index.log(&*self.segments.root.disk, self.clock, window, &freed)
        })
    }

    /// Records slots that may be free and that no log names. The segment is to be queued.
    pub(crate) fn add_unlogged(&self, id: SegmentId, slots: &[u32]) {
        let mut unlogged = self.store.unlogged.lock();
        unlogged.entry(id).or_default().extend(slots);
    }

    /// Whether slots of the segment could not be logged.
    pub(crate) fn is_unlogged(&self, id: SegmentId) -> bool {
        self.store.unlogged.lock().contains_key(&id)
    }

    /// Logs the slots of a segment that are free, still have their content, and are named by
    /// no log. The segment's writer's lock is held.
    pub(crate) fn log_unlogged(
        &self,
        id: SegmentId,
        file: &dyn File,
        table: &Table,
    ) -> Result<(), UnitError> {
        if !self.is_enabled() {
            return Ok(());
        }
        let freed = table.freed_with_content();
        let unnamed = self.with_index(|index| Ok(index.logs.unnamed(id, &freed)))?;
        let unlogged = self.store.unlogged.lock().get(&id).cloned();
        let unlogged = unlogged.unwrap_or_default();
        let mut slots: BTreeSet<u32> = unnamed.into_iter().collect();
        slots.extend(freed.iter().filter(|slot| unlogged.contains(slot)));
        let slots: Vec<u32> = slots.into_iter().collect();
        if !slots.is_empty() {
            // A process that died before its sync may have marked them.
            let synced = file.sync_data();
            synced.map_err(|error| self.segments.root.segment_error(id, "sync", error))?;
            self.log(id, table, &slots)?;
        }
        self.store.unlogged.lock().remove(&id);
        Ok(())
    }

    /// Records that the walk after the start has seen all segments.
    pub(crate) fn end_walk(&self) {
        if let Some(index) = &mut *self.store.index.lock() {
            index.logs.end_walk();
        }
    }
}
