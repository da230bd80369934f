//! Base images: volumes whose blocks hosts cache once for all their clones.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::message::Message;
use crate::words::PreloadState;

/// A base image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// The volume's id.
    #[schema(pattern = "^vol-[0-9a-f]{17}$", example = "vol-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The volume's name.
    pub name: String,
    /// The name of the user who owns it.
    pub owner: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// Whether its blocks stay in the hosts' caches, as far as there is space for pinned blocks.
    pub pinned: bool,
    /// The number of volumes that descend from it. Shown to those who administer it.
    pub clones: Option<u64>,
    /// The last preload on each host. Shown to those who administer it.
    pub preloads: Vec<Preload>,
}

/// A request to read an image into one host's cache, and its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preload {
    /// The host's name.
    pub host: String,
    /// The preload's state.
    #[schema(value_type = PreloadState)]
    pub state: String,
    /// How much was read, in bytes.
    pub done_bytes: u64,
    /// How much there is to read, in bytes, once that is known.
    pub total_bytes: Option<u64>,
    /// In states `error` and `skipped`: why it was not done.
    pub message: Option<Message>,
    /// When it was requested.
    #[schema(format = DateTime)]
    pub created: String,
    /// When it ended.
    #[schema(format = DateTime)]
    pub ended: Option<String>,
}

/// A request to mark a volume as a base image.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MarkImage {
    /// Whether its blocks stay in the hosts' caches; unchanged if it is left out. Only
    /// administrators may pin. `false` is refused for a volume that is not an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

/// A request to read an image into the caches of hosts.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreloadImage {
    /// The hosts (names or ids). By default, all responsive hosts that the caller may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}
