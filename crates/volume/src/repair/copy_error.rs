//! [`CopyError`]: why a segment was not restored.

use unit::UnitError;

use super::report::Stopped;

/// Why a segment was not restored.
#[derive(Debug)]
pub(super) enum CopyError {
    /// No member has an intact copy of this many slots.
    Rotten(u64),
    /// Members disagree on the content of this many slots, without a majority.
    Differs(u64),
    /// Members disagree on the segment's slot size or lineage tag, without a majority.
    Disputed,
    /// A source failed to answer.
    Source(UnitError),
    /// The target failed.
    Target(UnitError),
    /// A source was changed meanwhile.
    Changed,
    /// Repair was stopped.
    Stopped,
}

impl From<Stopped> for CopyError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}
