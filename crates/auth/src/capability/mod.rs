//! Floor 2: capabilities, by which a unit daemon knows what a host may do.
//!
//! A controller makes a [`Capability`] for one host and signs it
//! ([`SigningKey`]); a daemon verifies it ([`VerifyingKey`]) and heeds it.
//! docs/internals/capabilities.md says which there are and why,
//! docs/internals/unit-protocol.md how they are written.
//!
//! Nothing here names a volume or a lineage: [`LineageTag`](base::LineageTag) and [`Fence`] are hashes
//! of them, which say to a unit what belongs together and nothing else. It must
//! not know: who asks for a capability and why, sockets, clocks.

mod bytes;
mod scope;
mod sign;

pub use bytes::{BadCapability, ITEMS_MAX};
pub use scope::{Fence, Scope, lineage_tag_of};
pub use sign::{SIGNATURE_BYTES, SignedCapability, SigningKey, VerifyingKey};

use base::ClusterId;
use world::Millis;

/// What one host may do for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// On units of this cluster.
    pub cluster: ClusterId,
    /// The SHA-256 of the public key in the host's certificate.
    pub holder: [u8; 32],
    /// When it was made, by the controller's clock.
    pub made: Millis,
    /// When it ends, by the controller's clock.
    pub ends: Millis,
    /// The generation of the database that it was made from.
    pub generation: u32,
    /// What.
    pub scope: Scope,
}
