//! What operators look after: units, wrapping keys, and how the whole is doing.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::{Health, KeyKind, KeyState, UnitState};

/// A storage unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Unit {
    /// `unit-…`.
    #[schema(pattern = "^unit-[0-9a-f]{17}$", example = "unit-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Where it is; empty if its daemon has not begun.
    pub url: String,
    /// What its daemon is called, if it has one.
    #[serde(default)]
    pub daemon: Option<String>,
    /// `healthy`, or what is wrong with it, as the host finds it that has the
    /// most trouble with it.
    #[schema(value_type = UnitState)]
    pub state: String,
    /// How many segments it holds, if that can be asked.
    pub segments: Option<u64>,
    /// The room they take, in bytes.
    pub bytes: Option<u64>,
    /// Free room in bytes, where that is known.
    pub free_bytes: Option<u64>,
    /// How many bytes of blocks were read from it since `scree up` began, its
    /// part of the page cache included.
    pub read_bytes: u64,
    /// How many bytes of blocks were written to it since then.
    pub written_bytes: u64,
    /// What was found, if it is not healthy.
    pub reason: Option<String>,
    /// In which zone it is, if that was said: what may be lost at once, as a rack
    /// is.
    #[serde(default)]
    pub zone: Option<String>,
    /// What was found out of the place when it was made a unit; empty if nothing
    /// was, or its host has not said so yet.
    #[serde(default)]
    pub facts: Vec<UnitFact>,
}

/// Something that was found out of the place that a unit is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnitFact {
    /// What was tried.
    #[schema(example = "holes")]
    pub what: String,
    /// Whether it is so.
    pub holds: bool,
    /// What follows, if it is not.
    pub otherwise: String,
}

/// In which zone a unit is to be.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetZone {
    /// Its name; in one of its own, if it is left out.
    #[serde(default)]
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "rack-3")]
    pub zone: Option<String>,
}

/// In which zone a unit is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnitZone {
    /// The unit's id.
    #[schema(pattern = "^unit-[0-9a-f]{17}$", example = "unit-0f3c5b7d9e1a2b4c6")]
    pub unit: String,
    /// Its zone.
    pub zone: Option<String>,
    /// What somebody should know about it.
    pub notice: Option<String>,
}

/// A unit to be added.
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
    /// As this host (name or id) sees it; the only one that there is, if it is
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// In this zone; in one of its own, if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "rack-3")]
    pub zone: Option<String>,
}

/// Which units are drained.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainUnits {
    /// Their ids, URLs, or daemons' names. Either all of them are, or none.
    #[schema(min_items = 1, max_items = 256, pattern = r"^[^\u0000]*$")]
    pub units: Vec<String>,
    /// They are not to be drained after all: each takes its places back, where what
    /// was to replace it is not whole yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

/// How a unit is removed.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveUnit {
    /// It is gone for good: others take its place, from what their other members
    /// have. Refused if it may have the last whole copy of anything that is there, or
    /// a host finds it there.
    #[serde(default)]
    pub lost: bool,
    /// With `lost`: what nobody else has is given up. Refused as well if a host finds the
    /// unit there.
    #[serde(default)]
    pub accept_data_loss: bool,
}

/// What came of draining or removing a unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnitMoved {
    /// `unit-…`.
    #[schema(pattern = "^unit-[0-9a-f]{17}$", example = "unit-0f3c5b7d9e1a2b4c6")]
    pub unit: String,
    /// In so many copysets another unit takes its place.
    pub copysets: u64,
    /// Whether it is a unit no more; else it will be when those are whole.
    pub removed: bool,
    /// In so many copysets nobody else that is there had all of it: what only this unit
    /// had there is lost.
    #[serde(default)]
    pub given_up: u64,
}

/// What is to be read and compared.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Scrub {
    /// The copysets of this unit (its id, URL, or daemon's name); all, if it is left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
}

/// What was begun.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnitsWanted {
    /// In how many copysets.
    pub copysets: u64,
}

/// A copyset that is repaired, or waits for it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RepairJob {
    /// Its number.
    pub copyset: u16,
    /// The units that may lack something.
    pub filling: Vec<String>,
    /// The units that are replaced.
    pub leaving: Vec<String>,
    /// The host that repairs it now.
    pub host: Option<String>,
    /// So many segments has it compared,
    pub segments_done: u64,
    /// of so many; 0 as long as that is not known.
    pub segments: u64,
    /// Whether also whole members are compared, or all slots read.
    pub compares: bool,
    /// Slots of which no unit has a copy that is as it was put, when they were read
    /// last.
    pub rotten: u64,
    /// What was in the way the last time.
    pub problem: Option<String>,
}

/// A wrapping key.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// `key-…`.
    #[schema(pattern = "^key-[0-9a-f]{17}$", example = "key-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// What holds it.
    #[schema(value_type = KeyKind)]
    pub kind: String,
    /// What is done with it.
    #[schema(value_type = KeyState)]
    pub state: String,
    /// How many lineages' data keys it wraps: each volume has one, and so have
    /// deleted ones that a clone or a snapshot needs.
    pub lineages: u64,
    /// The id of the key that takes these over, if it is retiring.
    #[schema(pattern = "^key-[0-9a-f]{17}$")]
    pub replaced_by: Option<String>,
    /// When it was founded.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A wrapping key to be founded.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddKey {
    /// What the host's `keys.toml` calls it.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "second")]
    pub name: String,
    /// On this host (name or id); on the only one that there is, if it is left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A wrapping key to be replaced.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// The one that takes its place: name or id.
    pub to: String,
}

/// How the whole is doing.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `ok`, or `degraded` if a unit or a volume is not well.
    #[schema(value_type = Health)]
    pub state: String,
    /// Scree's version.
    pub version: String,
    /// The cluster's id.
    #[schema(pattern = "^cluster-[0-9a-f]{32}$")]
    pub cluster: String,
    /// The folder it is served from.
    pub folder: String,
    /// Process id.
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
    /// The room that segments take on all units, in bytes.
    pub bytes: u64,
    /// Journal bytes that wait to be destaged.
    pub journal_used_bytes: u64,
    /// Removed versions whose slots wait to be freed.
    pub pending_frees: u64,
    /// Segments with blocks that have fewer copies than they should: units
    /// were away when those were written.
    #[serde(default)]
    pub degraded_segments: u64,
    /// How many such blocks there are at most: some may have been freed since.
    #[serde(default)]
    pub degraded_blocks: u64,
    /// What needs somebody's attention, one sentence each.
    pub problems: Vec<String>,
}
