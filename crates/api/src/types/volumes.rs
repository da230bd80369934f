//! Volumes, and what is asked for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::{Tags, VolumeCache};
use crate::described::{BlockSizeSchema, TagsSchema};
use crate::words::{Encryption, EncryptionShown, ImageMark, VolumeState};

/// The most copies that a segment has. The database says so too.
pub const REPLICAS_MAX: u8 = 4;

/// A volume. Of one whose entry in the database is damaged, a list has id, name
/// and reason; its state is `error`, its encryption `unknown`, its numbers are 0, and so
/// is its moment (of 1970).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// `vol-…`.
    #[schema(pattern = "^vol-[0-9a-f]{17}$", example = "vol-0f3c5b7d9e1a2b4c6")]
    pub id: String,
    /// Its name. An owner has it once.
    pub name: String,
    /// The name of the user whose it is.
    #[serde(default)]
    pub owner: Option<String>,
    /// The name of the project on whose account it is, for its owner and those
    /// who are in that project.
    #[serde(default)]
    pub project: Option<String>,
    /// Its tags.
    #[serde(default)]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// Size in bytes.
    pub size: u64,
    /// How it is.
    #[schema(value_type = VolumeState)]
    pub state: String,
    /// Block size in bytes.
    pub block_size: u64,
    /// How its blocks are sealed.
    #[schema(value_type = EncryptionShown)]
    pub encryption: String,
    /// Copies of each segment.
    pub replicas: u8,
    /// How its segments are spread in the place of copies: k units with data and m
    /// with parity, `k+m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^[2-8]\+[1-3]$", example = "4+2")]
    pub erasure: Option<String>,
    /// How long its journal is from its next attachment on, in bytes; as its host has it for
    /// all, if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_size: Option<u64>,
    /// What it may have of each host's cache for what volumes read, in bytes; its fair share,
    /// if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_max: Option<u64>,
    /// How it is a base image; it is none, if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ImageMark>)]
    pub image: Option<String>,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created: String,
    /// The id of the snapshot it was cloned from, which may be gone.
    #[schema(pattern = "^snap-[0-9a-f]{17}$")]
    pub from: Option<String>,
    /// How it is served, if it is.
    pub export: Option<Export>,
    /// What is wrong, in state `error`.
    pub reason: Option<String>,
    /// What its owner should know, after it was made or grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// How its engine is doing, while it is attached. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
}

/// An attached volume's engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Engine {
    /// The newest version's number.
    pub version: Option<u64>,
    /// Size of the journal in bytes.
    pub journal_bytes: u64,
    /// How much of it waits to be destaged, in bytes.
    pub journal_used_bytes: u64,
    /// Blocks written since it was attached.
    pub blocks_written: u64,
    /// Blocks destaged since it was attached.
    pub blocks_destaged: u64,
    /// Client connections.
    pub connections: u64,
    /// Why destaging does not get on, if it does not.
    pub destage_error: Option<String>,
    /// Why reads wait for units that are away, if any do.
    #[serde(default)]
    pub read_error: Option<String>,
    /// What the host's cache does for it, if it has one.
    #[serde(default)]
    pub cache: Option<VolumeCache>,
}

/// How a volume is served.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// What to give to a client: `nbd+unix:///…`.
    pub uri: String,
    /// Over TCP, if the server listens there: `nbd://…` or `nbds://…`.
    pub tcp_uri: Option<String>,
    /// Writes are refused.
    pub read_only: bool,
}

/// A volume to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "disk")]
    pub name: String,
    /// On the account of this project (name or id); of the caller's own, if it
    /// is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = TagsSchema)]
    pub tags: Tags,
    /// Size in bytes. A clone has its snapshot's size if it is left out.
    #[schema(
        minimum = 4096,
        maximum = 70_368_744_177_664_u64,
        multiple_of = 4096,
        example = 1_073_741_824
    )]
    pub size: Option<u64>,
    /// Start from this snapshot (name or id).
    pub from: Option<String>,
    /// Block size in bytes; 4096 unless cloned.
    #[schema(value_type = Option<BlockSizeSchema>)]
    pub block_size: Option<u64>,
    /// How its blocks are sealed; `aes-256-gcm` if nothing is said.
    #[schema(value_type = Option<Encryption>)]
    pub encryption: Option<String>,
    /// Copies of each segment: 2 if there are two units, else 1.
    #[schema(minimum = 1, maximum = 4)]
    pub replicas: Option<u8>,
    /// Refuse to make it if two copies had to lie in one zone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_zones: bool,
    /// In the place of copies: 2 to 8 units with data and 1 to 3 with parity, any of
    /// which as many as have parity may be lost.
    #[serde(default)]
    #[schema(pattern = r"^[2-8]\+[1-3]$", example = "4+2")]
    pub erasure: Option<String>,
    /// How long its journal is, in bytes, as in `SetSizes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 8_388_608, maximum = 274_877_906_944_u64)]
    pub journal_size: Option<u64>,
    /// What it may have of each host's cache, in bytes, as in `SetSizes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1_048_576, maximum = 9_223_372_036_854_775_807_u64)]
    pub cache_max: Option<u64>,
}

/// What a volume may take of hosts. Both are put in the place of what was said before.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetSizes {
    /// How long its journal is from its next attachment on, in bytes: 8 MiB to 256 GiB. As its
    /// host has it for all, if it is left out. Only administrators say another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 8_388_608, maximum = 274_877_906_944_u64)]
    pub journal_size: Option<u64>,
    /// What it may have of each host's cache for what volumes read, in bytes; 1 MiB at least.
    /// Its fair share, if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1_048_576, maximum = 9_223_372_036_854_775_807_u64)]
    pub cache_max: Option<u64>,
}

/// A new size.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// Size in bytes, larger than now.
    #[schema(
        minimum = 4096,
        maximum = 70_368_744_177_664_u64,
        multiple_of = 4096,
        example = 2_147_483_648_u64
    )]
    pub size: u64,
}

/// Where to go back to: exactly one of the two.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(max_properties = 1)]
pub struct RestoreVolume {
    /// The newest version not younger than this moment (RFC 3339), which is past.
    #[schema(format = DateTime, nullable = false)]
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub time: Option<String>,
    /// This version.
    #[schema(nullable = false, maximum = 9_223_372_036_854_775_807_u64)]
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub version: Option<u64>,
}

/// What is there is a value: `null` is neither that nor left out.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// How to serve a volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportVolume {
    /// On this host (name or id); on the only one that there is for the caller,
    /// if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
}

/// A volume to be given away.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TransferVolume {
    /// To this user (name).
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "alice")]
    pub user: String,
    /// On the account of this project of theirs (name or id); of their own, if
    /// it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// A kept version of a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Its number.
    pub version: u64,
    /// When it was committed.
    #[schema(format = DateTime)]
    pub created: String,
    /// It is the volume's state (but for what is in the journal).
    pub head: bool,
    /// The snapshots that hold it.
    pub snapshots: Vec<String>,
}
