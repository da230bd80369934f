//! Base images: volumes whose blocks hosts keep for all that are cloned from them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::PreloadState;

/// A base image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// The volume's id.
    #[schema(pattern = "^vol-[0-9a-f]{17}$", example = "vol-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The volume's name.
    pub name: String,
    /// The name of the user whose it is.
    #[serde(default)]
    pub owner: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// Its blocks stay in the caches of hosts, as far as there is room for what stays.
    pub pinned: bool,
    /// How many volumes descend from it, for those who administer it.
    #[serde(default)]
    pub clones: Option<u64>,
    /// How far hosts have read it into their caches, for those who administer it: of each
    /// host, what it was asked last.
    pub preloads: Vec<Preload>,
}

/// How far one host has read an image into its cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preload {
    /// The host's name.
    pub host: String,
    /// How far.
    #[schema(value_type = PreloadState)]
    pub state: String,
    /// How much of it was read, in bytes.
    pub done_bytes: u64,
    /// How much there is to be read, in bytes, once that is known.
    #[serde(default)]
    pub all_bytes: Option<u64>,
    /// Why it is not done, in the states `error` and `skipped`.
    #[serde(default)]
    pub reason: Option<String>,
    /// When it was asked for.
    #[schema(format = DateTime)]
    pub created: String,
    /// When it ended.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub ended: Option<String>,
}

/// How a volume is to be an image.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MarkImage {
    /// Whether its blocks are to stay, which only administrators say of one whose blocks do
    /// not; as before, if it is left out. `false` of what is no image is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

/// Where an image is to be read into caches.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreloadImage {
    /// On these hosts (names or ids); on all that are for the caller and were heard of a
    /// moment ago, if it is left out or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}
