//! The input of a repair pass ([`RepairMember`], [`Depth`], [`Pace`]) and its result
//! ([`PassReport`]).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use base::{SegmentId, UnitId};
use unit::Unit;

use catalog::MemberState;

/// A member of the copyset that is repaired.
#[derive(Clone)]
pub struct RepairMember {
    /// The unit's id.
    pub id: UnitId,
    /// Its index among the members; for a draining member, that of its replacement.
    pub place: u8,
    /// Its state.
    pub state: MemberState,
    /// The unit.
    pub unit: Arc<dyn Unit>,
    /// If it is being rebuilt: the segments whose content is not trusted.
    pub suspect: SuspectUnit,
}

impl RepairMember {
    /// Whether its slots of a segment may differ from what was written.
    pub(super) fn is_suspect(&self, segment: SegmentId) -> bool {
        self.state == MemberState::Rebuilding && self.suspect.contains(segment)
    }
}

/// The segments of a rebuilding member that may differ from what was written, and must
/// be read therefore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SuspectUnit {
    /// All segments.
    #[default]
    All,
    /// Segments with these serials: those being written when it began to miss writes.
    Serials(Vec<Range<u64>>),
}

impl SuspectUnit {
    fn contains(&self, segment: SegmentId) -> bool {
        match self {
            Self::All => true,
            Self::Serials(ranges) => ranges.iter().any(|range| range.contains(&segment.serial())),
        }
    }
}

/// Repair was stopped: another host continues it, or it must not run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// How thorough a pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Restores what rebuilding members are missing. What neither an in-sync nor a
    /// draining member has counts as freed, if enough are in sync to know.
    Rebuild,
    /// Restores what any member is missing.
    Compare,
    /// Also reads every slot.
    Scrub,
}

/// Limits the speed of a pass, and receives its progress.
pub trait Pace: Sync {
    /// Called before this many bytes are moved. May wait.
    ///
    /// # Errors
    /// [`Stopped`] ends the pass.
    fn step(&self, bytes: u64) -> Result<(), Stopped>;

    /// Called when `done` of `all` segments have been compared.
    fn report_progress(&self, done: u64, all: u64);
}

/// The result of a pass.
#[derive(Debug, Default)]
pub struct PassReport {
    /// Members that are in sync: nothing was copied to them. Draining members are not
    /// listed.
    pub in_sync: Vec<UnitId>,
    /// Members that were incomplete, whether or not they have it now.
    pub incomplete: BTreeSet<UnitId>,
    /// Members that have no room for what they are missing.
    pub full: BTreeSet<UnitId>,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Slots that no member has intact and that cannot be recovered.
    pub rotten: u64,
    /// Problems, each once.
    pub problems: BTreeSet<String>,
    /// Whether all members answered: another pass would find the same problems.
    pub is_complete: bool,
}
