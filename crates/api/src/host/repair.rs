//! A copyset that a host repairs (docs/units.md, "Repair").

use std::ops::Range;

use base::UnitId;
use catalog::{Copyset, OpenSegment};
use serde::{Deserialize, Serialize};

/// For so long a copyset is one host's, from when that was last heard of it, in
/// milliseconds.
pub const REPAIR_TERM_MS: u64 = 60_000;

/// What is to be repaired, as it is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairTask {
    /// The copyset.
    pub copyset: Copyset,
    /// How many times each member has missed something: it becomes whole only if it
    /// has missed nothing since.
    pub missed: Vec<(UnitId, u64)>,
    /// Segments of it that leases have open: only so many of their slots belong to
    /// versions.
    pub open: Vec<OpenSegment>,
    /// Serials that no version names yet. Those from [`RepairTask::serial_next`] on are
    /// not handed out yet.
    pub uncommitted: Vec<Range<u64>>,
    /// No segment has this serial, or a later one.
    pub serial_next: u64,
    /// Members that are filled of which it is known what may be otherwise than it was put:
    /// segments with these serials. Of others anything may.
    pub suspect: Vec<(UnitId, Vec<Range<u64>>)>,
    /// Whether also members that are whole are compared.
    pub compare: bool,
    /// Whether, as well, every slot is to be read.
    pub scrub: bool,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairProgress {
    /// So many segments have been compared.
    pub done: u64,
    /// Of so many; 0 as long as that is not known.
    pub all: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairEnd {
    /// The last pass found nothing to copy to these, of which so much had been missed
    /// when it began.
    pub whole: Vec<(UnitId, u64)>,
    /// Members that were said to be whole, and are not.
    pub lacking: Vec<UnitId>,
    /// Members that something was brought to, or was to be, by any pass; hosts of an
    /// earlier build do not say that.
    pub brought: Option<Vec<UnitId>>,
    /// All members were compared.
    pub compared: bool,
    /// Every slot was read.
    pub scrubbed: bool,
    /// Members that have no room for what they lack.
    pub full: Vec<UnitId>,
    /// Slots of which no member has a copy that is as it was put.
    pub rotten: u64,
    /// What is in the way.
    pub problem: Option<String>,
}

/// What is to be said of a unit that was away, and is there again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspicion {
    /// It can have lost nothing that it had.
    Back,
    /// It may have.
    Restarted,
    /// It was put back to an earlier state.
    Older,
}
