//! What was freed is kept for a while: the unit's side of the grace period that
//! `docs/internals/undelete.md` promises and draws.
//!
//! ```text
//!  1. mark    FREE into the table, durably, with tag and checksum left there
//!  2. log     which slots, and when; durable with the next `settle`
//!             (a segment: its file is moved to `freed/` instead)
//!  3. hold    until its time is over, or its room is needed
//!  4. punch   holes, durably; then the log goes (a segment: its file)
//! ```
//!
//! To readers a slot is free from 1 on. What is needed to bring it back is in the
//! table itself, so the log may lose its end in a crash: the walk after the next
//! start finds slots that no log names, and logs them anew.
//!
//! Invariants:
//!
//! * What a log names was marked durably before. So nothing that is freed later
//!   is destroyed by an older record.
//! * Time is how long the unit has run, which no clock that is set can change:
//!   nothing goes early, and nothing stays for ever while the unit runs.
//! * What is needed before its time is over goes by its age. The name of a file goes
//!   after all logs that were begun before it was moved, so that their records are not
//!   taken for those of its successor.
//! * One process has the folder, as a daemon does.
//!
//! Locks: a writer's before the state's; whoever gives back holds no writer's lock
//! when it begins.

mod aside;
mod copy;
mod give_back;
mod put_back;
mod record;
mod restore;
mod state;

pub(super) use copy::SegmentCopy;
pub use restore::{Restorable, Restored, RestoredSegment, SegmentFate};

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::SegmentId;
use parking_lot::Mutex;
use unit::UnitError;
use world::File;

use super::FolderUnit;
use super::format::{Entry, SlotState};
use super::table::Table;
use give_back::{ASIDES_MAX, Giving};
use state::State;

/// How long what was freed is kept, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keeping {
    /// For so long, of the time that the unit runs; zero: not at all, and what was
    /// kept before is given back.
    pub time: Duration,
    /// At most so much of the unit's file system, in percent.
    pub room_percent: u8,
}

impl Default for Keeping {
    /// A day, and a tenth.
    fn default() -> Self {
        Self {
            time: Duration::from_secs(24 * 3600),
            room_percent: 10,
        }
    }
}

/// How much of what was freed is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeptFreed {
    /// The room that it takes, in bytes.
    pub bytes: u64,
    /// How many segments of it were deleted or replaced as a whole.
    pub segments: u64,
    /// Bytes that were given back before their time, since this was opened,
    /// because the room was needed.
    pub given_up_bytes: u64,
    /// Whether that is more than may be: settle more often.
    pub is_too_much: bool,
}

/// A unit that keeps what was freed.
pub(super) struct Keep {
    keeping: Keeping,
    /// So many segments at most.
    pub(super) asides_max: usize,
    /// None until it is first needed, and when the folder may have become another.
    state: Mutex<Option<State>>,
    /// Held while names in the folder are made durable.
    pub(super) syncing_names: Mutex<()>,
    /// Held while something is given back.
    giving: Mutex<Giving>,
    given_up_bytes: AtomicU64,
    /// Bytes that were given back because a put found no room.
    made_room_bytes: AtomicU64,
    /// Slots that are free, or may be, and that could not be logged.
    unlogged: Mutex<BTreeMap<SegmentId, BTreeSet<u32>>>,
}

impl FolderUnit {
    /// Keeps what is freed for a while. For a unit that one process has to itself.
    #[must_use]
    pub fn keeping(mut self, keeping: Keeping) -> Self {
        self.keep = Some(Keep {
            keeping,
            asides_max: ASIDES_MAX,
            state: Mutex::default(),
            syncing_names: Mutex::default(),
            giving: Mutex::default(),
            given_up_bytes: AtomicU64::new(0),
            made_room_bytes: AtomicU64::new(0),
            unlogged: Mutex::default(),
        });
        self
    }

    /// How much of what was freed is kept.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn kept_freed(&self) -> Result<KeptFreed, UnitError> {
        let Some(keep) = &self.keep else {
            return Ok(KeptFreed::default());
        };
        let given_up_bytes = keep.given_up_bytes.load(Ordering::Relaxed);
        let (bytes, segments) = self.with_kept(keep, |state| {
            Ok((state.bytes(), state.asides().len() as u64))
        })?;
        Ok(KeptFreed {
            bytes,
            segments,
            given_up_bytes,
            is_too_much: bytes > 0 && self.is_too_much(keep)?,
        })
    }

    /// Whether a put of so many bytes may have to give back what is kept, for want of
    /// room: a segment's length is left to what is put meanwhile.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn would_give_up(&self, bytes: u64) -> Result<bool, UnitError> {
        if self.keep.is_none() {
            return Ok(false);
        }
        let Ok(space) = self.place.disk.space(std::path::Path::new("")) else {
            return Ok(false);
        };
        let needed = bytes.saturating_add(self.segment_data_bytes);
        Ok(space.free_bytes < needed && self.kept_freed()?.bytes > 0)
    }

    /// Whether what is freed now is kept.
    pub(super) fn is_keeping(&self) -> bool {
        self.keep
            .as_ref()
            .is_some_and(|keep| !keep.keeping.time.is_zero() && keep.keeping.room_percent > 0)
    }

    /// Does something with the state, which is read from the folder if that was not
    /// done yet.
    fn with_kept<T>(
        &self,
        keep: &Keep,
        what: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> Result<T, UnitError> {
        let mut state = keep.state.lock();
        let act = || {
            if state.is_none() {
                *state = Some(State::load(&*self.place.disk, &*self.clock)?);
            }
            match state.as_mut() {
                Some(state) => what(state),
                None => unreachable!("it was just read"),
            }
        };
        act().map_err(|error| self.place.meaning("look after what was freed", error))
    }

    /// The folder may have become another.
    pub(super) fn forget_kept(&self) {
        if let Some(keep) = &self.keep {
            *keep.giving.lock() = Giving::default();
            *keep.state.lock() = None;
        }
    }

    /// The walk after the start has seen all segments.
    pub(super) fn walked(&self) {
        if let Some(keep) = &self.keep
            && let Some(state) = &mut *keep.state.lock()
        {
            state.walked();
        }
    }

    /// Slots that are free and keep their content, by the table.
    pub(super) fn with_content(table: &Table, slots: &[u32]) -> Vec<u32> {
        let has_content = |slot: &&u32| {
            let entry = table.entries.get(**slot as usize);
            entry.is_some_and(Entry::is_freed_with_content)
        };
        slots.iter().filter(has_content).copied().collect()
    }

    /// Logs slots of a segment that were marked free, durably. If that fails, they
    /// are logged by a later `settle`.
    pub(super) fn log_freed(&self, id: SegmentId, table: &Table, slots: &[u32]) {
        let Some(keep) = self.keep.as_ref().filter(|_| !slots.is_empty()) else {
            return;
        };
        let logged = self.with_kept(keep, |state| {
            state.log(
                &*self.place.disk,
                &*self.clock,
                keep.keeping,
                (id, table.header.slot_bytes),
                slots,
            )
        });
        match logged {
            Ok(()) => {
                // It works again.
                let unlogged = keep.unlogged.lock();
                self.settling.lock().pending.extend(unlogged.keys());
            }
            Err(_) => self.leave_unlogged(id, slots),
        }
    }

    /// These slots may be free, and no log names them.
    pub(super) fn leave_unlogged(&self, id: SegmentId, slots: &[u32]) {
        if let Some(keep) = &self.keep {
            let mut unlogged = keep.unlogged.lock();
            unlogged.entry(id).or_default().extend(slots);
        }
        self.settling.lock().pending.insert(id);
    }

    /// Whether a `settle` is to log slots of it.
    pub(super) fn is_unlogged(&self, id: SegmentId) -> bool {
        let keep = self.keep.as_ref();
        keep.is_some_and(|keep| keep.unlogged.lock().contains_key(&id))
    }

    /// Logs the slots of a segment that are free and that no log names; what of
    /// them keeps its content. The segment's writer's lock is held.
    pub(super) fn log_unlogged(
        &self,
        id: SegmentId,
        file: &dyn File,
        table: &Table,
    ) -> Result<(), UnitError> {
        let Some(keep) = self.keep.as_ref().filter(|_| self.is_keeping()) else {
            return Ok(());
        };
        let freed = table.slots_that(|state| state == SlotState::Freed);
        let freed = Self::with_content(table, &freed);
        let unnamed = self.with_kept(keep, |state| Ok(state.unnamed(id, &freed)))?;
        let left = keep.unlogged.lock().get(&id).cloned().unwrap_or_default();
        let mut unlogged: BTreeSet<u32> = unnamed.into_iter().collect();
        unlogged.extend(freed.iter().filter(|slot| left.contains(slot)));
        let unlogged: Vec<u32> = unlogged.into_iter().collect();
        if unlogged.is_empty() {
            keep.unlogged.lock().remove(&id);
            return Ok(());
        }
        // They may have been marked by a process that died before its sync.
        let synced = file.sync_data();
        synced.map_err(|error| self.place.meaning_at(id, "sync", error))?;
        self.with_kept(keep, |state| {
            state.log(
                &*self.place.disk,
                &*self.clock,
                keep.keeping,
                (id, table.header.slot_bytes),
                &unlogged,
            )
        })?;
        keep.unlogged.lock().remove(&id);
        Ok(())
    }
}
