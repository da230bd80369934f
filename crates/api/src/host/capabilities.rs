//! Capabilities: what a host may do on unit daemons. A controller signs them, hosts present them
//! (docs/internals/capabilities.md).

use base::{CopysetId, Lineage, VolumeId};
use serde::{Deserialize, Serialize};

/// The largest number of requests in one call.
pub const CAPABILITY_REQUESTS_MAX: usize = 256;

/// A request for the capabilities that allow a host something on unit daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "kebab-case")]
pub enum CapabilityRequest {
    /// To write a volume under a lease: what that has reserved, and what the
    /// leases before it left open.
    Lease {
        /// The volume.
        volume: VolumeId,
        /// The lease.
        epoch: u32,
    },
    /// To read what was written as this lineage, and as those above it.
    Read {
        /// The lineage.
        lineage: Lineage,
    },
    /// To carry out a plan of what is freed.
    Free {
        /// Its number.
        plan: i64,
    },
    /// To remove what the leases of a deleted volume left.
    Sweep {
        /// The volume.
        volume: VolumeId,
    },
    /// To note the lease count on units.
    Count,
    /// To repair a copyset that it has taken.
    Repair {
        /// Its number.
        copyset: CopysetId,
    },
}

/// For each [`CapabilityRequest`], in order: the capabilities that together allow it, or why this
/// host does not have the right.
pub type Capabilities = Vec<Result<Vec<SignedBytes>, String>>;

/// A capability and its signature, as docs/internals/unit-protocol.md draws them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedBytes {
    /// How long it is valid from when it was signed, in milliseconds.
    pub lasts_ms: u64,
    /// The bytes.
    #[serde(with = "catalog::bytes")]
    pub bytes: Vec<u8>,
}
