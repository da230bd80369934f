//! Renewal of leases: a host renews those that it has, and learns which it has lost.

use base::{AttachmentId, VolumeId};
use serde::{Deserialize, Serialize};

/// The largest number of leases of a host: each is looked up at every renewal.
pub const LEASES_MAX: usize = 16_384;

/// The largest number of journals that one renewal asks about.
pub const JOURNALS_MAX: usize = 256;

/// A host reports that it is alive, and renews its leases. This is apart from its report, which
/// waits for its volumes and units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The leases it has, [`LEASES_MAX`] at most.
    pub leases: Vec<HeldLease>,
    /// Volumes without an attachment of which it has a journal, or files of filters: some of them,
    /// [`JOURNALS_MAX`] at most.
    pub journals: Vec<VolumeId>,
}

/// A lease, as its holder knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLease {
    /// The attachment that has it.
    pub attachment: AttachmentId,
    /// Its epoch.
    pub epoch: u32,
}

/// The answer to a renewal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// Leases that the host has lost. It has all others.
    pub lost: Vec<HeldLease>,
    /// Of the volumes that were asked about, those that were taken from the host.
    pub fenced: Vec<Fenced>,
    /// Of the volumes that were asked about, those that are deleted.
    pub deleted: Vec<VolumeId>,
}

/// A volume that was taken from a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// The volume.
    pub volume: VolumeId,
    /// The last epoch in which the host may have had it.
    pub epoch: u32,
}
