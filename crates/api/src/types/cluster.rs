//! Units, wrapping keys, and the state of the whole cluster: what operators look after.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::message::Message;
use crate::words::{Health, KeyKind, KeyState, UnitState};

/// A storage unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Unit {
    /// `unit-…`.
    #[schema(pattern = "^unit-[0-9a-f]{17}$", example = "unit-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The unit's URL; empty if its daemon has never started.
    pub url: String,
    /// The name of its daemon, if it has one.
    pub daemon: Option<String>,
    /// `healthy`, or what is wrong, as reported by the host that finds the worst.
    #[schema(value_type = UnitState)]
    pub state: String,
    /// How many segments it holds, if that is known.
    pub segments: Option<u64>,
    /// The space that the segments take, in bytes.
    pub bytes: Option<u64>,
    /// Free space in bytes, if that is known.
    pub free_bytes: Option<u64>,
    /// Bytes of blocks read from it since the hosts' processes started, including reads that the
    /// page cache answered.
    pub read_bytes: u64,
    /// Bytes of blocks written to it since the hosts' processes started.
    pub written_bytes: u64,
    /// What is wrong, if it is not healthy.
    pub message: Option<Message>,
    /// The failure zone it is in, such as a rack, if one was set.
    pub zone: Option<String>,
    /// Properties of its storage that were probed when it was added. Empty if none were, or the
    /// host has not reported them yet.
    pub facts: Vec<UnitFact>,
}

/// A property of a unit's storage that was probed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnitFact {
    /// The property's name.
    #[schema(example = "holes")]
    pub name: String,
    /// Whether the storage has it.
    pub present: bool,
    /// The consequence if the storage does not have it.
    pub consequence: String,
}

/// A request to set the zone of a unit.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetZone {
    /// The zone's name; a zone of its own if it is left out.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "rack-3")]
    pub zone: Option<String>,
}

/// The zone of a unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnitZone {
    /// The unit's id.
    #[schema(pattern = "^unit-[0-9a-f]{17}$", example = "unit-0f3c5b7d9e1a2b4c6")]
    pub unit: String,
    /// The unit's zone; null for a zone of its own.
    pub zone: Option<String>,
    /// What the operator should know about copysets that do not respect it.
    pub message: Option<Message>,
}

/// A request to add a unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddUnit {
    /// `file:///path`, or an absolute path; `s3://bucket/prefix`, `gs://…`,
    /// `az://…`; `rados://[USER@]POOL[/NAMESPACE]`.
    #[schema(
        pattern = r"^((file|s3|gs|az|rados)://|/)[^\u0000]*$",
        example = "/srv/unit-9"
    )]
    pub url: String,
    /// The host (name or id) that reaches this URL. May be left out if there is one host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The unit's zone; a zone of its own if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "rack-3")]
    pub zone: Option<String>,
}

/// A request to drain units, or to cancel that.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainUnits {
    /// The units' ids, URLs, or daemons' names. Either all of them are drained, or none.
    #[schema(min_items = 1, max_items = 256, pattern = r"^[^\u0000]*$")]
    pub units: Vec<String>,
    /// Cancel draining: each unit stays a member where its replacement is not in sync yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

/// A request to remove a unit.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveUnit {
    /// The unit is lost for good: other units replace it and are rebuilt from the remaining copies.
    /// Refused if it may hold the last complete copy of anything, or if a host still reaches it.
    #[serde(default)]
    pub lost: bool,
    /// With `lost`: accept that what only this unit held is lost. Refused as well if a host still
    /// reaches the unit.
    #[serde(default)]
    pub accept_data_loss: bool,
}

/// The result of draining or removing a unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnitChange {
    /// `unit-…`.
    #[schema(pattern = "^unit-[0-9a-f]{17}$", example = "unit-0f3c5b7d9e1a2b4c6")]
    pub unit: String,
    /// The number of copysets in which another unit replaces it.
    pub copysets: u64,
    /// Whether it was removed. If not, it will be when the replacements are in sync.
    pub removed: bool,
    /// The number of copysets in which no other available unit had everything: what only this unit
    /// held there is lost.
    pub copysets_lost: u64,
}

/// A request to scrub: to read and compare every slot.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Scrub {
    /// Scrub the copysets of this unit (id, URL, or daemon's name); all copysets by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
}

/// The result of a request to scrub or repair.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct QueuedCopysets {
    /// The number of copysets that were queued.
    pub copysets: u64,
}

/// A copyset that is being repaired or waits for repair.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RepairJob {
    /// The copyset's number.
    pub copyset: u16,
    /// The units that may be incomplete and are being filled.
    pub rebuilding: Vec<String>,
    /// The units that are being replaced.
    pub draining: Vec<String>,
    /// The name of the host that repairs it now.
    pub host: Option<String>,
    /// The number of segments that were compared so far.
    pub segments_done: u64,
    /// The number of segments to compare; 0 if that is not known yet.
    pub segments: u64,
    /// Whether members that are in sync are compared as well, or all slots are read.
    pub compares: bool,
    /// The number of slots of which the last scrub found no intact copy.
    pub damaged: u64,
    /// Why the last attempt failed.
    pub problem: Option<String>,
}

/// A wrapping key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// `key-…`.
    #[schema(pattern = "^key-[0-9a-f]{17}$", example = "key-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The key's name.
    pub name: String,
    /// Where the key is kept.
    #[schema(value_type = KeyKind)]
    pub kind: String,
    /// The key's state.
    #[schema(value_type = KeyState)]
    pub state: String,
    /// How many data keys it wraps: one for each volume, and for each deleted volume that a clone
    /// or a snapshot needs.
    pub lineages: u64,
    /// If it is retiring: the id of the key that replaces it.
    #[schema(pattern = "^key-[0-9a-f]{17}$")]
    pub replaced_by: Option<String>,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A request to create a wrapping key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddKey {
    /// The key's name in the host's `keys.toml`.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "second")]
    pub name: String,
    /// The host (name or id). May be left out if there is one host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A request to replace a wrapping key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// The key that replaces it (name or id).
    pub to: String,
}

/// The state of the whole cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `ok`, or `degraded` if `problems` is not empty.
    #[schema(value_type = Health)]
    pub state: String,
    /// Scree's version.
    pub version: String,
    /// The cluster's id.
    #[schema(pattern = "^cluster-[0-9a-f]{32}$")]
    pub cluster: String,
    /// The controller's data directory.
    pub folder: String,
    /// The controller's process id.
    pub pid: u32,
    /// How many volumes there are.
    pub volumes: u64,
    /// How many of them are served.
    pub exported: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// How many units.
    pub units: u64,
    /// How many of them are healthy.
    pub units_healthy: u64,
    /// The space that segments take on all units, in bytes.
    pub bytes: u64,
    /// Journal bytes that wait to be destaged.
    pub journal_used_bytes: u64,
    /// The number of removed versions whose slots wait to be freed.
    pub pending_frees: u64,
    /// Segments with blocks that have fewer copies than they should, because units were unavailable
    /// when they were written.
    pub degraded_segments: u64,
    /// An upper bound of the number of such blocks: some may have been freed since.
    pub degraded_blocks: u64,
    /// What needs an operator's attention, one sentence each.
    pub problems: Vec<String>,
}
