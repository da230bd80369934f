//! Undelete: what was freed is stored for a while, as `docs/internals/undelete.md` promises
//! and draws.
//!
//! ```text
//!  1. mark    FREE into the table, durably, with tag and checksum left there
//!  2. log     the slots and the time; durable with the next `reclaim`
//!             (a segment: its file is moved to `freed/` instead)
//!  3. store   until the window has passed, or the room is needed
//!  4. punch   holes, durably; then the log is removed (a segment: its file)
//! ```
//!
//! To readers a slot is free from 1 on. The table itself has what is needed to restore it, so
//! a crash may cut off the end of a log: the walk after the next start finds free slots that
//! no log names, and logs them again.
//!
//! Invariants:
//!
//! * The slots that a log names were marked durably before. So an older record never destroys
//!   a slot that was freed later.
//! * Time is the run time of the unit, which setting a clock cannot change: nothing expires
//!   early, and nothing stays forever while the unit runs.
//! * When room is needed, the oldest is evicted first. The name of a file outlives all logs
//!   that were begun before it was moved, so that their records are not attributed to the
//!   segment that took its place.
//! * One process has the folder, as a daemon does.
//!
//! Locks: a segment's writer's lock is taken before the index's; no writer's lock is held when
//! an eviction begins.

mod copy;
mod expire;
mod index;
mod log;
mod name;
mod record;
mod restore;
mod store;

pub(super) use copy::SegmentCopy;
pub use restore::{RestoreFilter, RestoreReport, RestoredSegment, SegmentFate};

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::SegmentId;
use parking_lot::Mutex;
use unit::UnitError;
use world::Clock;

use super::queue::PunchQueue;
use super::segments::Segments;
use expire::{FREED_SEGMENTS_MAX, OpenedLog};
use index::Index;

/// How long what was freed is stored, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndeletePolicy {
    /// The undelete window, in run time of the unit; zero stores nothing and expires what is
    /// stored already.
    pub window: Duration,
    /// Maximum part of the unit's file system that is used for this, in percent.
    pub room_percent: u8,
}

impl Default for UndeletePolicy {
    /// A day, and a tenth of the file system.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(24 * 3600),
            room_percent: 10,
        }
    }
}

/// How much of what was freed is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UndeleteUsage {
    /// Room that it takes, in bytes.
    pub bytes: u64,
    /// Number of whole segments in it, which were deleted or replaced.
    pub segments: u64,
    /// Bytes that were evicted before the end of their window since the unit was opened,
    /// because the room was needed.
    pub evicted_bytes: u64,
    /// Whether more is stored than the policy allows: reclaim more often.
    pub is_over_limit: bool,
}

/// The state of undelete in one unit.
pub(super) struct Store {
    policy: UndeletePolicy,
    /// Maximum number of whole segments.
    pub(super) segments_max: usize,
    /// `None` until it is first needed, and after the folder may have become another.
    index: Mutex<Option<Index>>,
    /// Held while names in `freed/` are made durable.
    pub(super) syncing_names: Mutex<()>,
    /// The log whose slots are being punched. Held during each step of an expiry.
    expiring: Mutex<Option<OpenedLog>>,
    evicted_bytes: AtomicU64,
    /// Bytes that were evicted because a put found no room.
    made_room_bytes: AtomicU64,
    /// Slots that are free, or may be, and that could not be logged.
    unlogged: Mutex<BTreeMap<SegmentId, BTreeSet<u32>>>,
}

impl Store {
    pub(super) fn new(policy: UndeletePolicy) -> Self {
        Self {
            policy,
            segments_max: FREED_SEGMENTS_MAX,
            index: Mutex::default(),
            syncing_names: Mutex::default(),
            expiring: Mutex::default(),
            evicted_bytes: AtomicU64::new(0),
            made_room_bytes: AtomicU64::new(0),
            unlogged: Mutex::default(),
        }
    }

    /// Forgets the index: the folder may be another one now, or the logs were rewritten.
    pub(super) fn forget(&self) {
        *self.expiring.lock() = None;
        *self.index.lock() = None;
    }
}

/// Undelete, with the parts of the unit that it works on.
pub(super) struct Undelete<'a> {
    pub(super) store: &'a Store,
    pub(super) segments: &'a Segments,
    pub(super) punches: &'a PunchQueue,
    pub(super) clock: &'a dyn Clock,
}

impl Undelete<'_> {
    /// Whether what is freed now is stored.
    pub(super) fn is_enabled(&self) -> bool {
        let policy = &self.store.policy;
        !policy.window.is_zero() && policy.room_percent > 0
    }

    pub(super) fn usage(&self) -> Result<UndeleteUsage, UnitError> {
        let evicted_bytes = self.store.evicted_bytes.load(Ordering::Relaxed);
        let (bytes, segments) =
            self.with_index(|index| Ok((index.bytes(), index.segments.all().len() as u64)))?;
        Ok(UndeleteUsage {
            bytes,
            segments,
            evicted_bytes,
            is_over_limit: bytes > 0 && self.is_over_limit()?,
        })
    }

    /// Whether more is stored than the policy allows.
    fn is_over_limit(&self) -> Result<bool, UnitError> {
        if !self.is_enabled() {
            return Ok(true);
        }
        let bytes = self.with_index(|index| Ok(index.bytes()))?;
        let percent = u128::from(self.store.policy.room_percent);
        let space = self.segments.root.disk.space(Path::new(""));
        // If the file system does not report it, a put that finds no room evicts something.
        Ok(space
            .is_ok_and(|space| u128::from(bytes) * 100 > u128::from(space.total_bytes) * percent))
    }

    /// Does `act` with the index, which is loaded from the folder if it is not in memory.
    fn with_index<T>(&self, act: impl FnOnce(&mut Index) -> io::Result<T>) -> Result<T, UnitError> {
        let mut index = self.store.index.lock();
        let load_and_act = || {
            let loaded = match *index {
                Some(ref mut loaded) => loaded,
                ref mut empty => empty.insert(Index::load(&*self.segments.root.disk, self.clock)?),
            };
            act(loaded)
        };
        load_and_act().map_err(|error| self.segments.root.unit_error("access freed/", error))
    }
}
