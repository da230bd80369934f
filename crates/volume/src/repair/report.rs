//! What a pass is asked, and what it says.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use base::{SegmentId, UnitId};
use unit::Unit;

use crate::catalog::MemberState;

/// A member of a copyset.
#[derive(Clone)]
pub struct Repairable {
    /// Its id.
    pub id: UnitId,
    /// Which one it is of the members, or in whose place another one comes.
    pub place: u8,
    /// How it stands.
    pub state: MemberState,
    /// The unit.
    pub unit: Arc<dyn Unit>,
    /// Of what it has, if it is filled.
    pub suspect: SuspectUnit,
}

impl Repairable {
    /// Whether what it has of a segment may be otherwise than it was put.
    pub(super) fn is_suspect(&self, segment: SegmentId) -> bool {
        self.state == MemberState::Filling && self.suspect.contains(segment)
    }
}

/// What of a member that is filled may be otherwise than it was put, and is read
/// therefore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SuspectUnit {
    /// Anything.
    #[default]
    All,
    /// Segments with these serials: what was on its way when it began to lack something.
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

/// Repair is not gone on with: somebody else does, or nobody should now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// How much is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// What members lack that are being filled. Of what no member has that is whole or
    /// leaves it is taken that it was given up, if enough are whole to know that.
    Fill,
    /// What any member lacks.
    Compare,
    /// As well, every slot is read.
    Scrub,
}

/// How fast it goes, and who is told how far it is.
pub trait Pace: Sync {
    /// So many bytes are about to be moved. May wait.
    ///
    /// # Errors
    /// [`Stopped`], if none are to be.
    fn step(&self, bytes: u64) -> Result<(), Stopped>;

    /// So many segments of so many have been compared.
    fn compared(&self, done: u64, all: u64);
}

/// What a pass has found.
#[derive(Debug, Default)]
pub struct Found {
    /// Members, not those that leave, that have all that they should have: nothing
    /// was copied to them.
    pub whole: Vec<UnitId>,
    /// Those that lacked something, whether or not they have it now.
    pub lacking: BTreeSet<UnitId>,
    /// Those that have no room for what they lack.
    pub full: BTreeSet<UnitId>,
    /// How many bytes were copied.
    pub copied_bytes: u64,
    /// Slots that no member has as they were put, and that cannot be worked out.
    pub rotten: u64,
    /// What was in the way, each once.
    pub problems: BTreeSet<String>,
    /// Whether all members have answered: what is in the way is nothing that another
    /// pass would find otherwise.
    pub is_complete: bool,
}
