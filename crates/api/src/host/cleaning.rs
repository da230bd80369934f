//! Cleaning: versions that may be removed, and leftovers of deleted volumes.

use base::VolumeId;
use catalog::{Leftovers, VersionKey};
use serde::{Deserialize, Serialize};
use world::Millis;

/// What a host may remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleaning {
    /// Versions that nothing needs, in the order of removal.
    pub remove: Vec<VersionKey>,
    /// Their slots are not freed before this time.
    pub not_before: Option<Millis>,
    /// Deleted volumes with leftovers of their last leases.
    pub deleted: Vec<Deleted>,
}

/// A volume that is being deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// The volume.
    pub volume: VolumeId,
    /// The segments to sweep before the volume is removed.
    pub leftovers: Leftovers,
}
