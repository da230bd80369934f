//! What can go wrong on a unit, told apart by what the caller can do.

use std::io;
use std::sync::Arc;

use base::{SegmentId, Slot};

use crate::Owner;

/// Why a unit could not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UnitError {
    /// The unit itself is not there (folder gone, not mounted, not a unit).
    /// Pass it over, and look again after a while.
    #[error("unit {url} is not there: {reason}")]
    Missing {
        /// The unit's URL.
        url: String,
        /// What was found instead.
        reason: String,
    },
    /// As [`UnitError::Missing`], learnt from what the operating system said.
    #[error("unit {url} is not there: cannot {doing}")]
    Away {
        /// The unit's URL.
        url: String,
        /// What was being done.
        doing: String,
        /// What the operating system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The folder is somebody else's; using it would mix two clusters.
    #[error("{url} is not to be used: {reason}")]
    Foreign {
        /// The unit's URL.
        url: String,
        /// Whose it is.
        reason: String,
    },
    /// The copy of the database that says what lies on the unit is another
    /// one; changing it would destroy what that one needs.
    #[error("unit {url} is used by the Scree at {holder}")]
    Held {
        /// The unit's URL.
        url: String,
        /// Who has it.
        holder: Box<Owner>,
    },
    /// It was written by a newer Scree; this one must not touch it.
    #[error("unit {url} has format {found}; this program knows formats up to {known}")]
    Newer {
        /// The unit's URL.
        url: String,
        /// The format that was found.
        found: u32,
        /// The newest format that is known here.
        known: u32,
    },
    /// No room. Pass it over for writes; it can still be read.
    #[error("unit {url} is full")]
    Full {
        /// The unit's URL.
        url: String,
    },
    /// It takes no writes. Pass it over for writes; it can still be read.
    #[error("unit {url} is read-only")]
    ReadOnly {
        /// The unit's URL.
        url: String,
    },
    /// The unit does not hold the segment: read another replica.
    #[error("unit {url} has no segment {segment}")]
    NoSegment {
        /// The unit's URL.
        url: String,
        /// The segment that was asked for.
        segment: SegmentId,
    },
    /// The unit does not hold the slot, or it was freed: read another replica.
    #[error("unit {url} has no slot {} of segment {segment}", slot.0)]
    NoSlot {
        /// The unit's URL.
        url: String,
        /// The segment.
        segment: SegmentId,
        /// The slot that is not there.
        slot: Slot,
    },
    /// A put that does not continue the segment where it ends, or has another
    /// slot size: a mistake of the caller, and nothing was written.
    #[error(
        "segment {segment} has {slots} slots of {slot_bytes} bytes; the put does not continue it"
    )]
    Misplaced {
        /// The segment.
        segment: SegmentId,
        /// How many slots it has.
        slots: u32,
        /// Their size in bytes.
        slot_bytes: u32,
    },
    /// Somebody has put another segment in the place of the one that was
    /// expected: look again.
    #[error("segment {segment} on unit {url} was replaced: it has generation {generation}")]
    Replaced {
        /// The unit's URL.
        url: String,
        /// The segment.
        segment: SegmentId,
        /// The generation that it has.
        generation: u16,
    },
    /// What lies there is not a segment, or its header is damaged: read
    /// another replica.
    #[error("segment {segment} on unit {url} is damaged: {reason}")]
    Damaged {
        /// The unit's URL.
        url: String,
        /// The segment.
        segment: SegmentId,
        /// What is wrong with it.
        reason: String,
    },
    /// A link, a pipe or the like lies where Scree makes a file or a folder.
    /// Nothing was done to it. Treat as [`UnitError::Io`].
    #[error("unit {url}: cannot {doing}: {found}")]
    Tampered {
        /// The unit's URL.
        url: String,
        /// What was being done.
        doing: String,
        /// What was found, and where.
        found: String,
    },
    /// The unit does not let this host do that: it was shown no capability for
    /// it, or one that has ended. Read another replica. It says nothing about how the
    /// unit is.
    #[error("unit {url} does not allow it: {reason}")]
    NotAllowed {
        /// The unit's URL.
        url: String,
        /// What it says.
        reason: String,
    },
    /// The unit's daemon was restarted after a put and before its sync, and may
    /// have lost what was put.
    #[error("unit {url} was restarted, and may have lost what was put")]
    Restarted {
        /// The unit's URL.
        url: String,
    },
    /// The operating system failed: read another replica, pass it over for
    /// writes for a while.
    #[error("unit {url}: cannot {doing}")]
    Io {
        /// The unit's URL.
        url: String,
        /// What was being done.
        doing: String,
        /// What the operating system said.
        #[source]
        source: Arc<io::Error>,
    },
}

impl UnitError {
    /// Whether the same may succeed later although nobody makes room or repairs
    /// anything: the unit is out of reach, was restarted, or fails for now.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Away { .. }
            | Self::NotAllowed { .. }
            | Self::Restarted { .. }
            | Self::Io { .. } => true,
            Self::Foreign { .. }
            | Self::Held { .. }
            | Self::Newer { .. }
            | Self::Full { .. }
            | Self::ReadOnly { .. }
            | Self::NoSegment { .. }
            | Self::NoSlot { .. }
            | Self::Misplaced { .. }
            | Self::Replaced { .. }
            | Self::Damaged { .. }
            | Self::Tampered { .. } => false,
        }
    }

    /// Whether it is one of the whole unit, and not of one segment there: what else is
    /// asked of it now ends alike.
    #[must_use]
    pub fn is_of_unit(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Away { .. }
            | Self::Foreign { .. }
            | Self::Held { .. }
            | Self::Newer { .. }
            | Self::Full { .. }
            | Self::ReadOnly { .. }
            | Self::NotAllowed { .. } => true,
            Self::NoSegment { .. }
            | Self::NoSlot { .. }
            | Self::Misplaced { .. }
            | Self::Replaced { .. }
            | Self::Damaged { .. }
            | Self::Tampered { .. }
            | Self::Restarted { .. }
            | Self::Io { .. } => false,
        }
    }

    /// Whether what was asked may be carried out later all the same: nobody has said
    /// that it was not, and it may still be on its way.
    #[must_use]
    pub fn may_still_be_done(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    /// What it is called in metrics: `away`, `full`, `no-slot`, …
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing",
            Self::Away { .. } => "away",
            Self::Foreign { .. } => "foreign",
            Self::Held { .. } => "held",
            Self::Newer { .. } => "newer",
            Self::Full { .. } => "full",
            Self::ReadOnly { .. } => "read-only",
            Self::NoSegment { .. } => "no-segment",
            Self::NoSlot { .. } => "no-slot",
            Self::Misplaced { .. } => "misplaced",
            Self::Replaced { .. } => "replaced",
            Self::Damaged { .. } => "damaged",
            Self::Tampered { .. } => "tampered",
            Self::NotAllowed { .. } => "not-allowed",
            Self::Restarted { .. } => "restarted",
            Self::Io { .. } => "io",
        }
    }
}
