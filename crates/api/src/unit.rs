//! What a unit daemon asks of a controller (docs/units.md, "Daemons"): JSON under
//! `/v1/unit`, in the name of the unit that is asking.
//!
//! ```text
//! POST /v1/unit/begin     where it listens, once it does; what it has to know
//! ```
//!
//! It asks again and again: what it is told may change.

use base::{ClusterId, UnitId};
use serde::{Deserialize, Serialize};
use world::Millis;

use crate::host::{HostUnit, Owner};

/// A daemon is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginUnit {
    /// `scree://ADDRESS:PORT`, where hosts reach it. From then on it is a unit of
    /// the cluster. Left out before it has a folder and listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// 32 hex digits, drawn for the folder that it has locked. Two daemons with one
    /// copied identity differ in them; one that was restarted has the same. A daemon of
    /// an earlier version does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// A unit whose daemon was heard of within so long is not given to another one, in
/// milliseconds: four times as long as between two of its calls.
pub const SECOND_PLACE_MS: i64 = 120_000;

/// What a daemon has to know of its cluster. It keeps that for starts at which no
/// controller answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitCluster {
    /// The cluster.
    pub id: ClusterId,
    /// Which unit the daemon keeps.
    pub unit: UnitId,
    /// As whom it uses its folder.
    pub owner: Owner,
    /// The operator has said that whoever else has the units is gone.
    pub takes_over: bool,
    /// By what hosts are known: the authority's certificate, in PEM.
    pub authority: String,
    /// Controllers sign capabilities with one of these.
    pub keys: Vec<PublicKey>,
    /// The units there are: where connections for others are passed on to.
    pub units: Vec<HostUnit>,
    /// What time it is, by the controllers' clock.
    pub now: Millis,
}

/// An Ed25519 key that verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicKey(#[serde(with = "catalog::bytes")] pub [u8; 32]);
