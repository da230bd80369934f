//! Leases: a host renews those that it has, and hears of those that it has no more.

use base::{AttachmentId, VolumeId};
use serde::{Deserialize, Serialize};

/// A host has no more leases: each is looked up whenever they are renewed.
pub const LEASES_MAX: usize = 16_384;

/// Of so many journals at a time a host asks whether anybody wants them.
pub const JOURNALS_MAX: usize = 256;

/// A host is there, and renews what it has. Apart from its report: that waits
/// for its volumes and units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The leases it has, [`LEASES_MAX`] at most.
    pub leases: Vec<HeldLease>,
    /// Volumes of which it has a journal, or something that filters have kept, and nothing is
    /// wanted as it knows: some of them, [`JOURNALS_MAX`] at most.
    pub journals: Vec<VolumeId>,
}

/// A lease, as its holder knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLease {
    /// For which attachment.
    pub attachment: AttachmentId,
    /// Its epoch.
    pub epoch: u32,
}

/// What came of a renewal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// Leases that the host has no more. It has all others.
    pub lost: Vec<HeldLease>,
    /// Journals whose volumes were taken from the host.
    pub fenced: Vec<Fenced>,
    /// Of those that were asked for, the volumes that are no more.
    pub gone: Vec<VolumeId>,
}

/// A volume that was taken from a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// Which.
    pub volume: VolumeId,
    /// What is of this epoch or an earlier one is over.
    pub epoch: u32,
}
