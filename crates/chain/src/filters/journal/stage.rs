//! [`Stage`]: the phases of a journal's life, each with what it needs.
//!
//! ```text
//!  closed ─▶ opening ─▶ scanning ─▶ replaying ─▶ flushing ─▶ starting ─▶ open
//!                        │ ▲  found records          ▲           │
//!                        │ └─────────────────────────┼───────────┘ more records
//!                        └▶ idle ── filter in use ───┘ or, with records, scanning again
//!                             [resizing before it, replacing behind it]
//! ```
//!
//! A journal stays idle until its filter comes into use, even if it has records: filters below
//! forward no changes before that. Until the journal is open every request is answered `Busy`,
//! except reads while it is idle and empty.

use std::sync::Arc;

use world::File;

use super::file::JournalFile;
use super::record::StartPage;
use super::ring::Ring;
use crate::FilterError;

/// The phase that a journal is in.
pub(super) enum Stage {
    Closed,
    /// A job opens or creates the file, or quarantines it.
    Opening,
    /// A job reads records.
    Scanning {
        journal: JournalFile,
        /// No records of this file were read before.
        is_first: bool,
    },
    /// The records that were read are written back. With `next`, more records follow there.
    Replaying {
        journal: JournalFile,
        next: Option<StartPage>,
    },
    /// What was replayed is flushed below.
    Flushing {
        journal: JournalFile,
        next: Option<StartPage>,
    },
    /// A job writes the start page: of the remaining records (`next`), or of the empty ring.
    Starting {
        file: Arc<dyn File>,
        next: Option<StartPage>,
    },
    /// The ring is empty and has another length than configured. A job creates its replacement.
    Resizing {
        journal: JournalFile,
    },
    /// The filter is not in use yet.
    Idle {
        journal: JournalFile,
        content: IdleContent,
    },
    /// A job renames the replacement to the journal's name.
    Replacing {
        journal: JournalFile,
        replacement: JournalFile,
    },
    /// The disk below is read-only, so there is nothing to acknowledge.
    ReadOnly,
    Open(Ring),
    /// The journal stopped.
    Failed(FilterError),
}

/// What an idle journal has.
pub(super) enum IdleContent {
    Empty,
    /// Records, which are written back once the filter is in use.
    Leftover,
    /// No records, and a ring of the configured length that takes its place.
    Replaced(JournalFile),
}

impl Stage {
    /// Whether the journal replays or starts: the filter is not removed before that has ended.
    pub fn is_starting(&self) -> bool {
        matches!(
            self,
            Self::Scanning { .. }
                | Self::Replaying { .. }
                | Self::Flushing { .. }
                | Self::Replacing { .. }
                | Self::Starting { .. }
        )
    }

    /// Whether the journal is idle and empty, so that the disk below has everything.
    pub fn is_idle_and_empty(&self) -> bool {
        match self {
            Self::Idle { content, .. } => !matches!(content, IdleContent::Leftover),
            _ => false,
        }
    }

    /// The position up to which changes may be written back now; 0 if none may.
    pub fn may_write_back_to(&self) -> u64 {
        match self {
            Self::Open(ring) => ring.written(),
            Self::Replaying { .. } => u64::MAX,
            _ => 0,
        }
    }
}
