//! Volumes, and the requests on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::{Tags, VolumeCache};
use crate::described::{BlockSizeSchema, TagsSchema};
use crate::message::Message;
use crate::words::{Encryption, ImageMark, VolumeState};

/// The largest number of copies of a segment. The database schema checks the same limit.
pub const REPLICAS_MAX: u8 = 4;

/// A volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// `vol-…`.
    #[schema(pattern = "^vol-[0-9a-f]{17}$", example = "vol-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// The volume's name, unique among its owner's volumes.
    pub name: String,
    /// The name of the user who owns it.
    pub owner: Option<String>,
    /// The name of the project it is charged to. Shown to its owner and to the project's members.
    pub project: Option<String>,
    /// The volume's tags.
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// Size in bytes.
    pub size: u64,
    /// The volume's state.
    #[schema(value_type = VolumeState)]
    pub state: String,
    /// Block size in bytes.
    pub block_size: u64,
    /// How its blocks are encrypted.
    #[schema(value_type = Encryption)]
    pub encryption: String,
    /// The number of copies of each segment.
    pub replicas: u8,
    /// Erasure coding in place of copies, `k+m`: k units hold data and m hold parity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^[2-8]\+[1-3]$", example = "4+2")]
    pub erasure: Option<String>,
    /// Size of its journal in bytes, effective from the next attachment. The host's default
    /// applies if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_bytes: Option<u64>,
    /// Its largest share of each host's read cache in bytes. A fair share applies if it is left
    /// out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_max_bytes: Option<u64>,
    /// How it is used as a base image. Left out if it is not one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ImageMark>)]
    pub image: Option<String>,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created: String,
    /// The id of the snapshot it was cloned from, which may have been deleted.
    #[schema(pattern = "^snap-[0-9a-f]{17}$")]
    pub from: Option<String>,
    /// Where it is served, if it is.
    pub export: Option<Export>,
    /// In state `error`: what is wrong. In the answer to a request that created or grew the volume:
    /// what its owner should know.
    pub message: Option<Message>,
    /// The state of its engine while it is attached. Lists leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
}

/// A volume in a list: one that cannot be read keeps no other from being listed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ListedVolume {
    /// A volume.
    Readable(Box<Volume>),
    /// A volume whose row in the database is damaged.
    Damaged(DamagedVolume),
}

impl ListedVolume {
    /// The volume's id.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Readable(volume) => &volume.id,
            Self::Damaged(volume) => &volume.id,
        }
    }
}

/// A volume whose row in the database is damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedVolume {
    /// The id that the row has.
    pub id: String,
    /// The name that the row has.
    pub name: String,
    /// `error`.
    #[schema(value_type = VolumeState)]
    pub state: String,
    /// What is wrong with the row.
    pub message: Message,
}

/// The state of an attached volume's engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Engine {
    /// The newest version's number.
    pub version: Option<u64>,
    /// Size of the journal in bytes.
    pub journal_bytes: u64,
    /// How much of the journal waits to be destaged, in bytes.
    pub journal_used_bytes: u64,
    /// Blocks written since the volume was attached.
    pub blocks_written: u64,
    /// Blocks destaged since the volume was attached.
    pub blocks_destaged: u64,
    /// Open client connections.
    pub connections: u64,
    /// Why destaging fails, if it does.
    pub destage_error: Option<String>,
    /// Why reads wait for unavailable units, if any do.
    pub read_error: Option<String>,
    /// Statistics of the host's cache for this volume, if the host has a cache.
    pub cache: Option<VolumeCache>,
}

/// Where a volume is served.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// The URI for clients on the same host: `nbd+unix:///…`.
    pub uri: String,
    /// The URI over TCP, if the server listens there: `nbd://…` or `nbds://…`.
    pub tcp_uri: Option<String>,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// A request to create a volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// The volume's name.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "disk")]
    pub name: String,
    /// Charge it to this project (name or id); the caller's own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The volume's tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// Size in bytes. A clone has its snapshot's size by default.
    #[schema(
        minimum = 4096,
        maximum = 70_368_744_177_664_u64,
        multiple_of = 4096,
        example = 1_073_741_824
    )]
    pub size: Option<u64>,
    /// Clone this snapshot (name or id).
    pub from: Option<String>,
    /// Block size in bytes. By default 4096, or that of the snapshot.
    #[schema(value_type = Option<BlockSizeSchema>)]
    pub block_size: Option<u64>,
    /// How its blocks are encrypted; `aes-256-gcm` by default.
    #[schema(value_type = Option<Encryption>)]
    pub encryption: Option<String>,
    /// The number of copies of each segment. By default 2, or 1 if there is one unit.
    #[schema(minimum = 1, maximum = 4)]
    pub replicas: Option<u8>,
    /// Refuse to create it if two copies would have to be in one zone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_zones: bool,
    /// Erasure coding in place of copies, `k+m`: 2 to 8 units hold data and 1 to 3 hold parity; any
    /// m of them may be lost.
    #[schema(pattern = r"^[2-8]\+[1-3]$", example = "4+2")]
    pub erasure: Option<String>,
    /// Size of its journal in bytes, as in `SetSettings`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 8_388_608, maximum = 274_877_906_944_u64)]
    pub journal_bytes: Option<u64>,
    /// Its largest share of each host's read cache in bytes, as in `SetSettings`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1_048_576, maximum = 9_223_372_036_854_775_807_u64)]
    pub cache_max_bytes: Option<u64>,
}

/// The settings of a volume to change. A setting that is left out stays as it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetSettings {
    /// Size of its journal in bytes, 8 MiB to 256 GiB, effective from the next attachment; null
    /// for the host's default. Only administrators may set it.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>, minimum = 8_388_608, maximum = 274_877_906_944_u64)]
    pub journal_bytes: Option<Option<u64>>,
    /// Its largest share of each host's read cache in bytes, at least 1 MiB; null for a fair share.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(
        value_type = Option<u64>,
        minimum = 1_048_576,
        maximum = 9_223_372_036_854_775_807_u64
    )]
    pub cache_max_bytes: Option<Option<u64>>,
}

impl SetSettings {
    /// The smallest share of a cache that a volume may be limited to, in bytes.
    pub const CACHE_MAX_BYTES_MIN: u64 = 1 << 20;
}

/// A request to grow a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// The new size in bytes, larger than the current one.
    #[schema(
        minimum = 4096,
        maximum = 70_368_744_177_664_u64,
        multiple_of = 4096,
        example = 2_147_483_648_u64
    )]
    pub size: u64,
}

/// The state to restore: exactly one of the two fields.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(max_properties = 1)]
pub struct RestoreVolume {
    /// The newest version that existed at this past time (RFC 3339).
    #[schema(format = DateTime, nullable = false)]
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub time: Option<String>,
    /// The version with this number.
    #[schema(nullable = false, maximum = 9_223_372_036_854_775_807_u64)]
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub version: Option<u64>,
}

/// Deserializes a field that is present: `null` is a value only if `T` is an option.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A request to serve a volume without a VM.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportVolume {
    /// The host (name or id). May be left out if the caller may use one host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
}

/// A request to transfer a volume to another user.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TransferVolume {
    /// The name of the new owner.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "alice")]
    pub user: String,
    /// Charge it to this project of the new owner (name or id); their own by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// A kept version of a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// The version's number.
    pub version: u64,
    /// When it was committed.
    #[schema(format = DateTime)]
    pub created: String,
    /// Whether it is the volume's current state, apart from what is in the journal.
    pub head: bool,
    /// The names of the snapshots that hold it.
    pub snapshots: Vec<String>,
}
