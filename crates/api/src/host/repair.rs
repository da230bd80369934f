//! Repair of a copyset by a host (docs/internals/repair.md).

use std::ops::Range;

use base::UnitId;
use catalog::{Copyset, OpenSegment};
use serde::{Deserialize, Serialize};

/// How long a host keeps a copyset after its last report, in milliseconds.
pub const REPAIR_TERM_MS: u64 = 60_000;

/// A copyset that needs repair, with its state at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairJob {
    /// The copyset.
    pub copyset: Copyset,
    /// How many writes each member has missed: it is in sync only if it has missed none since.
    pub missed: Vec<(UnitId, u64)>,
    /// Its segments that are open under a lease, with the number of slots that belong to versions.
    pub open: Vec<OpenSegment>,
    /// Serials that no version names yet. Those from [`RepairJob::serial_next`] on are
    /// not handed out yet.
    pub uncommitted: Vec<Range<u64>>,
    /// No segment has this serial, or a later one.
    pub serial_next: u64,
    /// Rebuilding members, with the serials of the segments that may be wrong. Any segment of a
    /// member that is not listed may be wrong.
    pub suspect: Vec<(UnitId, Vec<Range<u64>>)>,
    /// Whether members that are in sync are compared as well.
    pub is_comparison: bool,
    /// Whether every slot is read as well.
    pub is_scrub: bool,
}

/// The progress of a repair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairProgress {
    /// The number of segments that were compared.
    pub done: u64,
    /// The number of all segments; 0 if it is not known.
    pub all: u64,
}

/// The outcome of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairOutcome {
    /// Members to which the last pass had nothing to copy, with the number of writes that each had
    /// missed when the pass began.
    pub in_sync: Vec<(UnitId, u64)>,
    /// Members that counted as in sync, and are not.
    pub out_of_sync: Vec<UnitId>,
    /// Members to which a pass copied, or should have copied, something; `None` if no pass was
    /// made.
    pub copied_to: Option<Vec<UnitId>>,
    /// Whether all members were compared.
    pub compared: bool,
    /// Whether every slot was read.
    pub scrubbed: bool,
    /// Members without free space for what they are missing.
    pub full: Vec<UnitId>,
    /// The number of slots without an intact copy.
    pub damaged: u64,
    /// Why it did not succeed, if it did not.
    pub problem: Option<String>,
}

/// What a rejoined unit may have lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspicion {
    /// Nothing: the same process answers again, and the unit was only unavailable.
    NothingLost,
    /// Writes that were not synced: the unit has restarted.
    Restarted,
    /// Everything since an earlier state to which the unit was restored.
    Older,
}
