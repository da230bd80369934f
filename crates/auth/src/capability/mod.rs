//! Capabilities: what a host may do on unit daemons, signed by controllers.
//!
//! A controller signs a [`Capability`] for one host ([`SigningKey`]); a daemon verifies it
//! ([`VerifyingKey`]) and allows what it covers. docs/internals/capabilities.md lists the kinds,
//! docs/internals/unit-protocol.md their encoding.
//!
//! A capability names no volume and no lineage: [`LineageTag`](base::LineageTag) and [`Fence`] are
//! hashes, from which a unit learns only what belongs together. This module must not know who
//! requests a capability and why, sockets, or clocks.

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
    /// The cluster of the units.
    pub cluster: ClusterId,
    /// The SHA-256 of the public key in the host's certificate.
    pub holder: [u8; 32],
    /// When it was signed, by the controller's clock.
    pub made: Millis,
    /// When it expires, by the controller's clock.
    pub ends: Millis,
    /// The generation of the database that it was made from.
    pub generation: u32,
    /// The allowed operations.
    pub scope: Scope,
}
