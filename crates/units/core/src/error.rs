//! [`UnitError`]: what can go wrong on a unit, divided by what the caller can do about it.

use std::io;
use std::sync::Arc;

use base::{SegmentId, Slot};

use crate::Owner;

/// Why a call on a unit has failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UnitError {
    /// The unit is not there: its folder does not exist, is not mounted or holds no unit.
    /// Use other units, and probe it again after a while.
    #[error("unit {url} is not there: {reason}")]
    Missing {
        /// The URL of the unit.
        url: String,
        /// What was found instead.
        reason: String,
    },
    /// The unit cannot be reached, as an error of the operating system or the network shows.
    /// Handle it as [`UnitError::Missing`].
    #[error("unit {url} is unavailable: cannot {doing}")]
    Unavailable {
        /// The URL of the unit.
        url: String,
        /// What the unit was doing, as a verb and its object.
        doing: String,
        /// The error of the operating system.
        #[source]
        source: Arc<io::Error>,
    },
    /// Another unit or other data is there. Using it would mix two clusters.
    #[error("{url} is not this unit: {reason}")]
    Foreign {
        /// The URL of the unit.
        url: String,
        /// What is there.
        reason: String,
    },
    /// Another copy of the database owns the unit. Changing it would destroy data that the
    /// owner needs.
    #[error("unit {url} is used by the Scree at {holder}")]
    Held {
        /// The URL of the unit.
        url: String,
        /// The owner.
        holder: Box<Owner>,
    },
    /// A newer Scree has written the unit. Upgrade this program.
    #[error("unit {url} has format {found}; this program reads formats up to {known}")]
    Newer {
        /// The URL of the unit.
        url: String,
        /// The format of the unit.
        found: u32,
        /// The newest format that this program reads.
        known: u32,
    },
    /// The unit is full. Write to other units; it can still be read.
    #[error("unit {url} is full")]
    Full {
        /// The URL of the unit.
        url: String,
    },
    /// The unit accepts no writes. Write to other units; it can still be read.
    #[error("unit {url} is read-only: {reason}")]
    ReadOnly {
        /// The URL of the unit.
        url: String,
        /// How it refused the write.
        reason: String,
    },
    /// The unit does not have the segment. Read another replica.
    #[error("unit {url} has no segment {segment}")]
    NoSegment {
        /// The URL of the unit.
        url: String,
        /// The requested segment.
        segment: SegmentId,
    },
    /// The unit does not have the slot, or it was freed. Read another replica.
    #[error("unit {url} has no slot {} of segment {segment}", slot.0)]
    NoSlot {
        /// The URL of the unit.
        url: String,
        /// The segment.
        segment: SegmentId,
        /// The requested slot.
        slot: Slot,
    },
    /// The put does not begin where the segment ends, or has another slot size. Nothing was
    /// written. This is a mistake of the caller.
    #[error(
        "segment {segment} has {slots} slots of {slot_bytes} bytes; the put does not continue it"
    )]
    Misplaced {
        /// The segment.
        segment: SegmentId,
        /// The number of slots that the segment has.
        slots: u32,
        /// The size of its slots in bytes.
        slot_bytes: u32,
    },
    /// The segment was replaced since the caller read its state. Read it again.
    #[error("segment {segment} on unit {url} was replaced: it has generation {generation}")]
    Replaced {
        /// The URL of the unit.
        url: String,
        /// The segment.
        segment: SegmentId,
        /// The generation that the segment has now.
        generation: u16,
    },
    /// The segment or its header is damaged. Read another replica.
    #[error("segment {segment} on unit {url} is damaged: {reason}")]
    Damaged {
        /// The URL of the unit.
        url: String,
        /// The segment.
        segment: SegmentId,
        /// What is damaged.
        reason: String,
    },
    /// A link, a pipe or the like lies where Scree expects a file or a folder. Nothing was
    /// changed. Handle it as [`UnitError::Io`].
    #[error("unit {url}: cannot {doing}: {found}")]
    Tampered {
        /// The URL of the unit.
        url: String,
        /// What the unit was doing, as a verb and its object.
        doing: String,
        /// What was found, and where.
        found: String,
    },
    /// The unit daemon refused the request, because the host has no capability for it or an
    /// expired one. Read another replica. Says nothing about the health of the unit.
    #[error("unit {url} refused the request: {reason}")]
    NotAllowed {
        /// The URL of the unit.
        url: String,
        /// The reason that the daemon gives.
        reason: String,
    },
    /// The unit daemon was restarted between a put and its sync, and may have lost the put.
    #[error("unit {url} was restarted, and may have lost unsynced slots")]
    Restarted {
        /// The URL of the unit.
        url: String,
    },
    /// The operating system returned an error. Read another replica, and write to other units
    /// for a while.
    #[error("unit {url}: cannot {doing}")]
    Io {
        /// The URL of the unit.
        url: String,
        /// What the unit was doing, as a verb and its object.
        doing: String,
        /// The error of the operating system.
        #[source]
        source: Arc<io::Error>,
    },
}

impl UnitError {
    /// Whether the same call may succeed later without anyone making room or repairing
    /// anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Unavailable { .. }
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

    /// Whether the error concerns the whole unit and not one segment: other calls would fail
    /// in the same way.
    #[must_use]
    pub fn affects_whole_unit(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Unavailable { .. }
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

    /// Whether the outcome is unknown: the unit may have carried out the call, or may still
    /// do so.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// The name of the error in metrics: `unavailable`, `full`, `no-slot`, …
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing",
            Self::Unavailable { .. } => "unavailable",
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
