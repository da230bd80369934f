//! Snapshots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tags;
use crate::described::TagsSchema;
use crate::words::SnapshotState;

/// A snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// `snap-…`.
    #[schema(pattern = "^snap-[0-9a-f]{17}$", example = "snap-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Its name. An owner has it once.
    pub name: String,
    /// The name of the user whose it is.
    #[serde(default)]
    pub owner: Option<String>,
    /// Its tags.
    #[serde(default)]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// The name its volume had.
    pub volume: String,
    /// The id of its volume, which may be gone.
    #[schema(pattern = "^vol-[0-9a-f]{17}$")]
    pub volume_id: String,
    /// Size in bytes.
    pub size: u64,
    /// How far it has come.
    #[schema(value_type = SnapshotState)]
    pub state: String,
    /// Its moment is over: what is written from now on is not in it. Of a volume
    /// whose host does not answer in time, that comes later.
    #[serde(default)]
    pub taken: bool,
    /// What is wrong, in state `error`.
    pub reason: Option<String>,
    /// When it was asked for.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A snapshot to be taken.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Of this volume (name or id).
    #[schema(example = "disk")]
    pub volume: String,
    /// Its name; its id if left out.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "before-upgrade")]
    pub name: Option<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
}
