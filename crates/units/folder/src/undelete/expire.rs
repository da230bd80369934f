//! Reclaiming the room of what is stored: what has expired, what exceeds the policy, and what
//! is evicted because the room is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::SegmentId;
use unit::UnitError;
use world::OpenMode;

use super::Undelete;
use super::index::{FreedSegment, Oldest, path_of, read_log};
use super::name::{FreedSegmentName, log_name};
use crate::format::SlotState;
use crate::is_not_found;
use crate::reclaim::punch;
use crate::segments::OpenTable;

/// Maximum number of whole segments that are stored: each takes some memory, and all are in one
/// folder.
pub(super) const FREED_SEGMENTS_MAX: usize = 1 << 18;

/// A log whose slots are being punched.
pub(super) struct OpenedLog {
    /// The log's name: the run time of its creation.
    begun: u64,
    /// The run time of its newest record.
    newest: u64,
    /// The slots that it names and that are not punched yet.
    named: BTreeMap<SegmentId, NamedSlots>,
    /// Whether it is evicted before its window has passed.
    is_evicted: bool,
}

/// The slots of one segment that a log names.
#[derive(Default)]
struct NamedSlots {
    /// First and last slot of each run, in any order.
    runs: Vec<(u16, u16)>,
    /// Room of these slots, in bytes.
    bytes: u64,
}

/// What the next step of an expiry is about.
enum Expired {
    Segment {
        segment: FreedSegment,
        is_evicted: bool,
    },
    Log(OpenedLog),
}

impl Undelete<'_> {
    /// Makes the logs durable, saves the run time, and removes what has expired or exceeds the
    /// policy until `end`. Returns whether there is more to do.
    pub(crate) fn reclaim(&self, end: Duration) -> Result<bool, UnitError> {
        self.sync_logs()?;
        let saved =
            self.with_index(|index| index.save_run_time(&*self.segments.root.disk, self.clock));
        match saved {
            // Reclaiming room must not wait for room.
            Ok(()) | Err(UnitError::Full { .. }) => {}
            Err(why) => return Err(why),
        }
        if self.load_logs(end)? {
            return Ok(true);
        }
        loop {
            let evicts = self.is_over_limit()?;
            let mut expiring = self.store.expiring.lock();
            if self.expire_step(&mut expiring, evicts)?.is_none() {
                return Ok(false);
            }
            if self.clock.monotonic() >= end {
                return Ok(true);
            }
        }
    }

    /// Loads the logs of earlier processes until `end`. Returns whether some are left.
    fn load_logs(&self, end: Duration) -> Result<bool, UnitError> {
        while let Some(begun) = self.with_index(|index| Ok(index.logs.first_unread()))? {
            self.load_log(begun)?;
            if self.clock.monotonic() >= end {
                return Ok(!self.are_logs_read()?);
            }
        }
        Ok(false)
    }

    /// Loads a log. The index is not locked while it is read.
    fn load_log(&self, begun: u64) -> Result<(), UnitError> {
        let records = read_log(&*self.segments.root.disk, begun).unwrap_or_default();
        self.with_index(|index| {
            index.add_records(begun, &records);
            Ok(())
        })
    }

    /// Whether the index knows the slots that all logs name.
    pub(crate) fn are_logs_read(&self) -> Result<bool, UnitError> {
        self.with_index(|index| Ok(index.logs.first_unread().is_none()))
    }

    fn sync_logs(&self) -> Result<(), UnitError> {
        let unsynced = self.with_index(|index| Ok(index.logs.take_unsynced()))?;
        for log in unsynced {
            if let Err(error) = log.sync_data() {
                self.with_index(|index| {
                    index.logs.abandon_open();
                    Ok(())
                })?;
                return Err(self.segments.root.unit_error("sync a log in freed/", error));
            }
        }
        self.sync_names()
    }

    /// See [`Reclaimer::with_room`](crate::reclaim::Reclaimer).
    pub(crate) fn with_room<T>(
        &self,
        act: impl Fn() -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        loop {
            match act() {
                Err(UnitError::Full { .. }) if matches!(self.make_room(), Ok(true)) => {}
                other => return other,
            }
        }
    }

    /// Evicts the oldest that is stored, about as much as a segment takes. Concurrent callers
    /// count what any of them evicts. Returns `false` if nothing is left. No writer's lock is
    /// held.
    pub(super) fn make_room(&self) -> Result<bool, UnitError> {
        let before = self.store.made_room_bytes.load(Ordering::Relaxed);
        let mut has_evicted = false;
        loop {
            // Locked for one step at a time, so that concurrent callers take turns.
            let mut expiring = self.store.expiring.lock();
            let now = self.store.made_room_bytes.load(Ordering::Relaxed);
            if now.wrapping_sub(before) >= self.segments.data_bytes {
                return Ok(true);
            }
            let waiting = expiring.as_ref().map_or(0, |log| log.named.len());
            match self.expire_step(&mut expiring, true) {
                Ok(None) => return Ok(has_evicted),
                Ok(Some(bytes)) => {
                    self.store
                        .made_room_bytes
                        .fetch_add(bytes, Ordering::Relaxed);
                    has_evicted = true;
                }
                // One segment's file cannot be read; it was skipped.
                Err(UnitError::Io { .. } | UnitError::Tampered { .. })
                    if expiring.as_ref().map_or(0, |log| log.named.len()) < waiting => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// One step: punches a segment's slots, removes a finished log or a stored segment, or opens
    /// the next log. Returns the bytes that were reclaimed, or `None` if there is nothing to do.
    /// With `evicts`, what has not expired goes too.
    fn expire_step(
        &self,
        expiring: &mut Option<OpenedLog>,
        evicts: bool,
    ) -> Result<Option<u64>, UnitError> {
        if let Some(bytes) = self.remove_expired_segment()? {
            return Ok(Some(bytes));
        }
        if let Some(bytes) = self.evict_surplus_segment()? {
            return Ok(Some(bytes));
        }
        if !evicts {
            // What is left of an evicted log stays until its window has passed.
            expiring.take_if(|log| log.is_evicted);
        }
        if let Some(log) = expiring {
            if let Some((id, named)) = log.named.pop_first() {
                return self.punch_named(log, id, named).map(Some);
            }
            let begun = log.begun;
            self.remove_stored(&log_name(begun))?;
            *expiring = None;
            self.with_index(|index| {
                index.logs.remove(begun);
                Ok(())
            })?;
            return Ok(Some(0));
        }
        match self.next_expired(evicts)? {
            None => Ok(None),
            Some(Expired::Segment {
                segment,
                is_evicted,
            }) => {
                self.remove_segment(&segment)?;
                self.count_evicted(is_evicted, segment.bytes);
                Ok(Some(segment.bytes))
            }
            Some(Expired::Log(log)) => {
                *expiring = Some(OpenedLog {
                    named: self.named_in(log.begun)?,
                    ..log
                });
                Ok(Some(0))
            }
        }
    }

    /// The oldest that is stored, if it has expired or may be evicted.
    fn next_expired(&self, evicts: bool) -> Result<Option<Expired>, UnitError> {
        if let Some(Oldest::Log(begun, _)) = self.with_index(|index| Ok(index.oldest()))?
            && self.with_index(|index| Ok(index.logs.is_unread(begun)))?
        {
            self.load_log(begun)?;
        }
        let window = self.store.policy.window;
        self.with_index(|index| {
            let Some(oldest) = index.oldest() else {
                return Ok(None);
            };
            let freed_at = match oldest {
                Oldest::Log(_, log) => log.newest,
                Oldest::Segment(segment) => segment.name.freed_at,
            };
            let has_expired = index.has_expired(self.clock, window, freed_at.run_time_us);
            if !(has_expired || evicts) {
                return Ok(None);
            }
            index.count_reclaimed(freed_at);
            let expired = match oldest {
                Oldest::Segment(segment) => Expired::Segment {
                    segment,
                    is_evicted: !has_expired,
                },
                Oldest::Log(begun, log) => {
                    index.logs.close(begun);
                    Expired::Log(OpenedLog {
                        begun,
                        newest: log.newest.run_time_us,
                        named: BTreeMap::new(),
                        is_evicted: !has_expired,
                    })
                }
            };
            Ok(Some(expired))
        })
    }

    /// Punches the slots of one segment that a log names. Returns their bytes.
    fn punch_named(
        &self,
        log: &mut OpenedLog,
        id: SegmentId,
        named: NamedSlots,
    ) -> Result<u64, UnitError> {
        match self.punch_freed(id, &named.runs, log.newest) {
            Ok(bytes) => {
                self.count_evicted(log.is_evicted, bytes);
                self.with_index(|index| {
                    index.logs.subtract(log.begun, named.bytes);
                    Ok(())
                })?;
                Ok(bytes)
            }
            // One file that cannot be read must not block the others: its slots are found
            // after the next start.
            Err(why @ (UnitError::Io { .. } | UnitError::Tampered { .. })) => Err(why),
            Err(why) => {
                log.named.insert(id, named);
                Err(why)
            }
        }
    }

    /// Removes the smallest stored segment if there are too many: deleting many small ones then
    /// destroys no larger ones.
    fn evict_surplus_segment(&self) -> Result<Option<u64>, UnitError> {
        let smallest = self.with_index(|index| {
            let is_surplus = index.segments.all().len() > self.store.segments_max;
            let smallest = index.segments.smallest().filter(|_| is_surplus);
            if let Some(segment) = smallest {
                index.count_reclaimed(segment.name.freed_at);
            }
            Ok(smallest)
        })?;
        let Some(segment) = smallest else {
            return Ok(None);
        };
        self.remove_segment(&segment)?;
        self.count_evicted(true, segment.bytes);
        Ok(Some(segment.bytes))
    }

    /// Removes a stored segment whose window has passed. As that is cheap, it does not wait for
    /// slots that are punched one by one.
    fn remove_expired_segment(&self) -> Result<Option<u64>, UnitError> {
        let window = self.store.policy.window;
        let (unneeded, expired) = self.with_index(|index| {
            let oldest = index.segments.all().first_key_value();
            let oldest = oldest.map(|(_, segment)| *segment);
            let expired = oldest.filter(|segment| {
                index.has_expired(self.clock, window, segment.name.freed_at.run_time_us)
            });
            if let Some(segment) = expired {
                index.count_reclaimed(segment.name.freed_at);
            }
            Ok((index.unneeded_name(), expired))
        })?;
        if let Some(name) = unneeded {
            self.remove_stored(&name.to_string())?;
            self.with_index(|index| {
                index.segments.remove_emptied(&name);
                Ok(())
            })?;
            return Ok(Some(0));
        }
        match expired {
            Some(segment) => self.remove_segment(&segment).map(|()| Some(segment.bytes)),
            None => Ok(None),
        }
    }

    fn count_evicted(&self, is_evicted: bool, bytes: u64) {
        if is_evicted && self.is_enabled() {
            self.store.evicted_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Removes a stored segment. While older logs may name slots of it, its name stays without
    /// content: otherwise these would be taken for slots of the segment that took its place.
    fn remove_segment(&self, segment: &FreedSegment) -> Result<(), UnitError> {
        let FreedSegment { name, .. } = *segment;
        let is_name_needed = self.with_index(|index| {
            Ok(index.logs.has_before(name.freed_at.run_time_us)
                && index.segments.emptied() < self.store.segments_max)
        })?;
        if is_name_needed && self.empty(&name).is_ok() {
            return self.with_index(|index| {
                index.segments.set_emptied(name);
                Ok(())
            });
        }
        self.remove_stored(&name.to_string())?;
        self.with_index(|index| {
            index.segments.remove(&name);
            Ok(())
        })
    }

    fn empty(&self, name: &FreedSegmentName) -> std::io::Result<()> {
        let path = path_of(&name.to_string());
        let file = self.segments.root.disk.open(&path, OpenMode::Write)?;
        file.set_length(0)
    }

    fn remove_stored(&self, name: &str) -> Result<(), UnitError> {
        let root = &self.segments.root;
        match root.disk.remove(&path_of(name)) {
            Err(error) if !is_not_found(&error) => {
                Err(root.unit_error("remove from freed/", error))
            }
            _ => Ok(()),
        }
    }

    /// The slots that a log names of segments that were not deleted or replaced since.
    fn named_in(&self, begun: u64) -> Result<BTreeMap<SegmentId, NamedSlots>, UnitError> {
        // The slots of a log that cannot be read are found after the next start.
        let records = read_log(&*self.segments.root.disk, begun).unwrap_or_default();
        self.with_index(|index| {
            let mut named: BTreeMap<SegmentId, NamedSlots> = BTreeMap::new();
            for record in records {
                let run_time_us = record.freed_at.run_time_us;
                if index
                    .segments
                    .next_after(record.segment, run_time_us)
                    .is_none()
                {
                    let named = named.entry(record.segment).or_default();
                    named.bytes += record.content_bytes();
                    named.runs.extend(record.runs);
                }
            }
            Ok(named)
        })
    }

    fn punch_freed(
        &self,
        id: SegmentId,
        runs: &[(u16, u16)],
        newest: u64,
    ) -> Result<u64, UnitError> {
        let _alone = self.segments.writer(id);
        // Checked again under the lock: the segment may have been deleted since.
        let was_replaced =
            self.with_index(|index| Ok(index.segments.next_after(id, newest).is_some()))?;
        if was_replaced {
            return Ok(0);
        }
        let OpenTable { file, table } = match self.segments.read_table(id, OpenMode::Write) {
            Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => return Ok(0),
            other => other?,
        };
        let is_freed = |slot: &u32| {
            let entry = table.entries.get(*slot as usize);
            entry.is_some_and(|entry| entry.state == SlotState::Freed)
        };
        let slots = runs.iter().flat_map(|(first, last)| *first..=*last);
        let slots: BTreeSet<u32> = slots.map(u32::from).filter(is_freed).collect();
        let due: Vec<u32> = slots.into_iter().collect();
        if due.is_empty() {
            return Ok(0);
        }
        punch(self.segments, id, &*file, &table, &due)?;
        Ok(due.len() as u64 * u64::from(table.header.slot_bytes))
    }
}
