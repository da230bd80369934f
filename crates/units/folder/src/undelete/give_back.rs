//! Giving back the room of what was kept: what is over, what is too much, and what
//! is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::SegmentId;
use unit::UnitError;
use world::OpenMode;

use super::record::log_name;
use super::state::{Aside, Oldest, path_of, read_log};
use super::{FolderUnit, Keep};
use crate::format::SlotState;
use crate::{OpenTable, is_not_found};

/// More segments than this are not kept: each takes some memory, and all are in one
/// folder.
pub(super) const ASIDES_MAX: usize = 1 << 18;

/// The log that is being given back.
#[derive(Default)]
pub(super) struct Giving {
    log: Option<u64>,
    /// The moment of the newest that it names.
    newest: u64,
    /// What it names that was not looked at yet.
    named: BTreeMap<SegmentId, Named>,
    /// Before its time.
    is_early: bool,
}

/// What a log names of one segment.
#[derive(Default)]
struct Named {
    /// First and last slot of each run, in any order.
    runs: Vec<(u16, u16)>,
    /// The room of that, in bytes.
    bytes: u64,
}

impl FolderUnit {
    /// Makes the logs durable, notes how long the unit has run, and gives back what
    /// is over or too much until `end`. True if there is more to do.
    pub(crate) fn settle_kept(&self, end: Duration) -> Result<bool, UnitError> {
        let Some(keep) = &self.keep else {
            return Ok(false);
        };
        self.sync_logs(keep)?;
        let noted = self.with_kept(keep, |state| {
            state.note_running(&*self.place.disk, &*self.clock)
        });
        match noted {
            // What makes room must not wait for room.
            Ok(()) | Err(UnitError::Full { .. }) => {}
            Err(why) => return Err(why),
        }
        if self.read_logs(keep, end)? {
            return Ok(true);
        }
        loop {
            let is_early = self.is_too_much(keep)?;
            let mut giving = keep.giving.lock();
            if self.give_back(keep, &mut giving, is_early)?.is_none() {
                return Ok(false);
            }
            if self.clock.monotonic() >= end {
                return Ok(true);
            }
        }
    }

    /// Reads what logs of earlier processes have, until `end`. True if some are left.
    fn read_logs(&self, keep: &Keep, end: Duration) -> Result<bool, UnitError> {
        while let Some(begun) = self.with_kept(keep, |state| Ok(state.unread()))? {
            self.take_in_log(keep, begun)?;
            if self.clock.monotonic() >= end {
                return self.with_kept(keep, |state| Ok(state.unread().is_some()));
            }
        }
        Ok(false)
    }

    /// Reads a log, while others go on.
    fn take_in_log(&self, keep: &Keep, begun: u64) -> Result<(), UnitError> {
        let records = read_log(&*self.place.disk, begun).unwrap_or_default();
        self.with_kept(keep, |state| {
            state.take_in(begun, &records);
            Ok(())
        })
    }

    /// Whether it is known what all logs name.
    pub(crate) fn are_logs_read(&self) -> Result<bool, UnitError> {
        match &self.keep {
            Some(keep) => self.with_kept(keep, |state| Ok(state.unread().is_none())),
            None => Ok(true),
        }
    }

    fn sync_logs(&self, keep: &Keep) -> Result<(), UnitError> {
        let unsynced = self.with_kept(keep, |state| Ok(state.take_unsynced()))?;
        for log in unsynced {
            if let Err(error) = log.sync_data() {
                self.with_kept(keep, |state| {
                    state.lose_log();
                    Ok(())
                })?;
                return Err(self.place.meaning("note what was freed", error));
            }
        }
        self.sync_kept_names(keep)
    }

    /// Whether more is kept than may be.
    pub(super) fn is_too_much(&self, keep: &Keep) -> Result<bool, UnitError> {
        if !self.is_keeping() {
            return Ok(true);
        }
        let bytes = self.with_kept(keep, |state| Ok(state.bytes()))?;
        let percent = u128::from(keep.keeping.room_percent);
        let space = self.place.disk.space(Path::new(""));
        // Where that is not known, a put that finds no room makes some.
        Ok(space
            .is_ok_and(|space| u128::from(bytes) * 100 > u128::from(space.total_bytes) * percent))
    }

    /// Does `act` again each time that it found the unit full and something was
    /// given back for it. It takes the locks that it needs itself. Where nothing can be
    /// given back, whatever the reason, the unit is full.
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

    /// Does `act`, which frees and is told whether that is kept: if that finds the unit
    /// full and nothing else can go, what it frees goes itself.
    pub(crate) fn with_room_or_unkept(
        &self,
        act: impl Fn(bool) -> Result<(), UnitError>,
    ) -> Result<(), UnitError> {
        let keeps = self.is_keeping();
        match self.with_room(|| act(keeps)) {
            Err(UnitError::Full { .. }) if keeps => act(false),
            done => done,
        }
    }

    /// Gives back the oldest that is kept, about as much as a segment takes. Of many that
    /// find no room at once, all count what any of them gives back. False if nothing is
    /// left. No writer's lock is held.
    pub(crate) fn make_room(&self) -> Result<bool, UnitError> {
        let Some(keep) = &self.keep else {
            return Ok(false);
        };
        let before = keep.made_room_bytes.load(Ordering::Relaxed);
        let mut is_any = false;
        loop {
            // For one step each: whoever else waits for room has its turn.
            let mut giving = keep.giving.lock();
            let now = keep.made_room_bytes.load(Ordering::Relaxed);
            if now.wrapping_sub(before) >= self.segment_data_bytes {
                return Ok(true);
            }
            let waiting = giving.named.len();
            match self.give_back(keep, &mut giving, true) {
                Ok(None) => return Ok(is_any),
                Ok(Some(bytes)) => {
                    keep.made_room_bytes.fetch_add(bytes, Ordering::Relaxed);
                    is_any = true;
                }
                // One segment's file cannot be read, and is passed over.
                Err(UnitError::Io { .. } | UnitError::Tampered { .. })
                    if giving.named.len() < waiting => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// One step: a segment's slots, a log that is through, a segment that was set
    /// aside. Returns how many bytes that were; none if nothing is to be given back.
    fn give_back(
        &self,
        keep: &Keep,
        giving: &mut Giving,
        is_early: bool,
    ) -> Result<Option<u64>, UnitError> {
        if let Some(given_back) = self.give_back_at_once(keep)? {
            return Ok(Some(given_back));
        }
        if let Some(given_back) = self.give_back_surplus(keep)? {
            return Ok(Some(given_back));
        }
        if !is_early && giving.is_early {
            // What is left of it is kept until its time is over.
            *giving = Giving::default();
        }
        if let (Some((id, named)), Some(begun)) = (giving.named.pop_first(), giving.log) {
            let given_back = self.give_back_slots(keep, id, &named.runs, giving.newest);
            return match given_back {
                Ok(bytes) => {
                    self.count_given_up(keep, giving.is_early, bytes);
                    self.with_kept(keep, |state| {
                        state.names_less(begun, named.bytes);
                        Ok(())
                    })?;
                    Ok(Some(bytes))
                }
                // One file that cannot be read must not stop the others: what it
                // has of these is found after the next start.
                Err(why @ (UnitError::Io { .. } | UnitError::Tampered { .. })) => Err(why),
                Err(why) => {
                    giving.named.insert(id, named);
                    Err(why)
                }
            };
        }
        if let Some(begun) = giving.log {
            self.remove_kept(&log_name(begun))?;
            giving.log = None;
            self.with_kept(keep, |state| {
                state.remove_log(begun);
                Ok(())
            })?;
            return Ok(Some(0));
        }
        let oldest = self.with_kept(keep, |state| Ok(state.oldest()))?;
        if let Some(Oldest::Log(begun, _)) = oldest
            && self.with_kept(keep, |state| Ok(state.is_unread(begun)))?
        {
            self.take_in_log(keep, begun)?;
        }
        let oldest = self.with_kept(keep, |state| {
            let Some(oldest) = state.oldest() else {
                return Ok(None);
            };
            let when = match oldest {
                Oldest::Log(_, log) => log.newest,
                Oldest::Aside(aside) => aside.name.when,
            };
            let is_over = state.is_over(&*self.clock, keep.keeping, when.moment);
            if !(is_over || is_early) {
                return Ok(None);
            }
            state.gives_back(when);
            if let Oldest::Log(begun, _) = oldest {
                state.close_log(begun);
            }
            Ok(Some((oldest, is_over)))
        })?;
        match oldest {
            None => Ok(None),
            Some((Oldest::Aside(aside), is_over)) => {
                self.give_back_aside(keep, &aside)?;
                self.count_given_up(keep, !is_over, aside.bytes);
                Ok(Some(aside.bytes))
            }
            Some((Oldest::Log(begun, log), is_over)) => {
                giving.named = self.named_in(keep, begun)?;
                (giving.log, giving.is_early) = (Some(begun), !is_over);
                giving.newest = log.newest.moment;
                Ok(Some(0))
            }
        }
    }

    /// Gives back the smallest segment that was set aside if there are too many: whoever
    /// deletes many small ones gets no larger ones destroyed by that.
    fn give_back_surplus(&self, keep: &Keep) -> Result<Option<u64>, UnitError> {
        let smallest = self.with_kept(keep, |state| {
            let is_surplus = state.asides().len() > keep.asides_max;
            let smallest = state.smallest().filter(|_| is_surplus);
            if let Some(aside) = smallest {
                state.gives_back(aside.name.when);
            }
            Ok(smallest)
        })?;
        let Some(aside) = smallest else {
            return Ok(None);
        };
        self.give_back_aside(keep, &aside)?;
        self.count_given_up(keep, true, aside.bytes);
        Ok(Some(aside.bytes))
    }

    /// Gives back a segment that was set aside and whose time is over: that needs no more
    /// than its removal, so it does not wait for slots that are punched one by one.
    fn give_back_at_once(&self, keep: &Keep) -> Result<Option<u64>, UnitError> {
        let (unneeded, over) = self.with_kept(keep, |state| {
            let oldest = state.asides().first_key_value().map(|(_, aside)| *aside);
            let is_over =
                |aside: &Aside| state.is_over(&*self.clock, keep.keeping, aside.name.when.moment);
            let over = oldest.filter(is_over);
            if let Some(aside) = over {
                state.gives_back(aside.name.when);
            }
            Ok((state.unneeded(), over))
        })?;
        if let Some(name) = unneeded {
            self.remove_kept(&name.to_string())?;
            self.with_kept(keep, |state| {
                state.remove_emptied(&name);
                Ok(())
            })?;
            return Ok(Some(0));
        }
        match over {
            Some(aside) => self
                .give_back_aside(keep, &aside)
                .map(|()| Some(aside.bytes)),
            None => Ok(None),
        }
    }

    fn count_given_up(&self, keep: &Keep, is_early: bool, bytes: u64) {
        if is_early && self.is_keeping() {
            keep.given_up_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Its name stays, without content, while older logs may name slots of it, which
    /// would be taken for those of its successor.
    fn give_back_aside(&self, keep: &Keep, aside: &Aside) -> Result<(), UnitError> {
        let name = aside.name;
        let is_needed = self.with_kept(keep, |state| {
            Ok(state.has_log_before(name.when.moment) && state.emptied() < keep.asides_max)
        })?;
        let empty = || {
            let path = path_of(&name.to_string());
            let file = self.place.disk.open(&path, OpenMode::Write)?;
            file.set_length(0)
        };
        if is_needed && empty().is_ok() {
            return self.with_kept(keep, |state| {
                state.add_emptied(name);
                Ok(())
            });
        }
        self.remove_kept(&name.to_string())?;
        self.with_kept(keep, |state| {
            state.remove_aside(&aside.name);
            Ok(())
        })
    }

    fn remove_kept(&self, name: &str) -> Result<(), UnitError> {
        match self.place.disk.remove(&path_of(name)) {
            Err(error) if !is_not_found(&error) => {
                Err(self.place.meaning("give back what was kept", error))
            }
            _ => Ok(()),
        }
    }

    /// What a log names of segments that were not set aside since.
    fn named_in(&self, keep: &Keep, begun: u64) -> Result<BTreeMap<SegmentId, Named>, UnitError> {
        // What one named that cannot be read is found after the next start.
        let records = read_log(&*self.place.disk, begun).unwrap_or_default();
        self.with_kept(keep, |state| {
            let mut named: BTreeMap<SegmentId, Named> = BTreeMap::new();
            for record in records {
                let after = state.aside_after(record.segment, record.when.moment);
                if after.is_none() {
                    let named = named.entry(record.segment).or_default();
                    named.bytes += record.content_bytes();
                    named.runs.extend(record.runs);
                }
            }
            Ok(named)
        })
    }

    fn give_back_slots(
        &self,
        keep: &Keep,
        id: SegmentId,
        runs: &[(u16, u16)],
        newest: u64,
    ) -> Result<u64, UnitError> {
        let _alone = self.writer(id);
        // Since it was looked at, too.
        let is_aside = self.with_kept(keep, |state| Ok(state.aside_after(id, newest).is_some()))?;
        if is_aside {
            return Ok(0);
        }
        let OpenTable { file, table } = match self.read_table(id, OpenMode::Write) {
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
        self.punch(id, &*file, &table, &due)?;
        Ok(due.len() as u64 * u64::from(table.header.slot_bytes))
    }
}
