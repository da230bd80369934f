//! Snapshots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tags;
use crate::described::TagsSchema;
use crate::message::Message;
use crate::words::SnapshotState;

/// A snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// `snap-…`.
    #[schema(pattern = "^snap-[0-9a-f]{17}$", example = "snap-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The snapshot's name, unique among its owner's snapshots.
    pub name: String,
    /// The name of the user who owns it.
    pub owner: Option<String>,
    /// The snapshot's tags.
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// The name of its volume when it was taken.
    pub volume: String,
    /// The id of its volume, which may have been deleted.
    #[schema(pattern = "^vol-[0-9a-f]{17}$")]
    pub volume_id: String,
    /// Size in bytes.
    pub size: u64,
    /// The snapshot's state.
    #[schema(value_type = SnapshotState)]
    pub state: String,
    /// Whether its consistency point was taken: later writes are not in it. If the volume's host is
    /// slow to answer, that happens after the request has returned.
    pub taken: bool,
    /// In state `error`: what went wrong.
    pub message: Option<Message>,
    /// When it was requested.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A request to take a snapshot.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// The volume (name or id).
    #[schema(example = "disk")]
    pub volume: String,
    /// The snapshot's name; its id by default.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "before-upgrade")]
    pub name: Option<String>,
    /// The snapshot's tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
}
