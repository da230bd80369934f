//! Renewal of leases: a host renews its leases, and learns of those that it has lost.

use base::{AttachmentId, VolumeId};
use serde::{Deserialize, Serialize};

/// The largest number of leases of a host: each is looked up at every renewal.
pub const LEASES_MAX: usize = 16_384;

/// The largest number of journals that one renewal asks about.
pub const JOURNALS_MAX: usize = 256;

/// A sign of life of a host, which renews its leases. It is separate from the report, which waits
/// for volumes and units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The leases of the host, at most [`LEASES_MAX`].
    pub leases: Vec<HeldLease>,
    /// Some of the volumes without an attachment of which it has a journal or files of filters, at
    /// most [`JOURNALS_MAX`].
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
    /// The leases that the host has lost. It keeps all others.
    pub lost: Vec<HeldLease>,
    /// Of the requested volumes, those that were taken from the host.
    pub fenced: Vec<Fenced>,
    /// Of the requested volumes, those that are deleted.
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
