//! The requests of a unit daemon to a controller (docs/internals/unit-daemons.md): JSON under
//! `/v1/unit`, authenticated as the unit.
//!
//! ```text
//! POST /v1/unit/begin     reports where it listens; answers with its configuration
//! ```
//!
//! A daemon repeats the request, since the answer may change.

use base::{ClusterId, UnitId};
use serde::{Deserialize, Serialize};
use world::Millis;

use crate::host::{HostUnit, Owner};

/// The report of a daemon that is running.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginUnit {
    /// `scree://ADDRESS:PORT`, where hosts reach it. The first such report makes it a unit of the
    /// cluster. Left out until it has a folder and listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The id of the folder that it has locked, 32 hex digits. Two daemons with a copied identity
    /// differ in it; a daemon that was restarted has the same. Left out until it has a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

/// A unit whose daemon reported within this time is not given to another daemon, in milliseconds:
/// four times the interval between two reports.
pub const SECOND_PLACE_MS: i64 = 120_000;

/// The configuration of a daemon. The daemon keeps it for starts at which no controller answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitCluster {
    /// The cluster.
    pub id: ClusterId,
    /// The unit that the daemon serves.
    pub unit: UnitId,
    /// The owner as which it uses its folder.
    pub owner: Owner,
    /// Whether the operator has confirmed that the previous owner of the units is gone.
    pub takes_over: bool,
    /// The certificate of the authority that signs hosts, in PEM.
    pub authority: String,
    /// The keys with which controllers sign capabilities.
    pub keys: Vec<PublicKey>,
    /// All units: connections for other units are forwarded to them.
    pub units: Vec<HostUnit>,
    /// The time by the controllers' clock.
    pub now: Millis,
}

/// An Ed25519 public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicKey(#[serde(with = "catalog::bytes")] pub [u8; 32]);
