//! [`CatalogError`]: why the catalog refused a call.

use base::VolumeId;
use serde::{Deserialize, Serialize};

/// Why the catalog refused a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CatalogError {
    /// Another host has the volume now, or its head has moved: this owner
    /// must stop (invariant 5).
    #[error("the lease on {volume} was lost: {reason}")]
    Fenced {
        /// The volume.
        volume: VolumeId,
        /// What was found.
        reason: String,
    },
    /// No such volume, version or snapshot.
    #[error("{what} does not exist")]
    NotFound {
        /// What was requested.
        what: String,
    },
    /// The last flushed writes are in a journal that this host cannot reach.
    #[error("the journal of {volume} is out of reach: {reason}")]
    JournalUnavailable {
        /// The volume.
        volume: VolumeId,
        /// Where the journal is.
        reason: String,
    },
    /// The change is refused, and will be until something is changed.
    #[error("{reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// The members of a copyset have changed since: the operation has to be repeated on
    /// the current members.
    #[error("the members of the copyset have changed: {reason}")]
    MembersChanged {
        /// The copyset, and what has changed.
        reason: String,
    },
    /// The database did not answer; trying again may help.
    #[error("the catalog is not available: {reason}")]
    Unavailable {
        /// The database's error.
        reason: String,
    },
}

impl CatalogError {
    /// Whether the lease was lost: trying again cannot help.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }
}
