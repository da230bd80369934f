//! What may go, and what deleted volumes have left.

use base::VolumeId;
use catalog::{Leftovers, VersionKey};
use serde::{Deserialize, Serialize};
use world::Millis;

/// Which versions may go, and what volumes left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleaning {
    /// Versions that nothing needs, in the order in which they should go.
    pub remove: Vec<VersionKey>,
    /// Their slots are not to be freed before.
    pub not_before: Option<Millis>,
    /// Deleted volumes whose last leases have left something.
    pub deleted: Vec<Deleted>,
}

/// A volume on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// Which.
    pub volume: VolumeId,
    /// What is to be swept before it is forgotten.
    pub leftovers: Leftovers,
}
