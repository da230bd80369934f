//! Audits: what some units alone have of a volume (docs/explanation/leakage.md).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::message::Message;
use crate::words::AuditState;

/// The largest number of units in one request.
pub const AUDIT_UNITS_MAX: usize = 1000;

/// The largest number of files listed. Those of which most is readable come first.
pub const AUDIT_FILES_MAX: usize = 10_000;

/// A request to audit a volume.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditVolume {
    /// The units that are assumed compromised: ids, daemons' names, or the last part of a URL if it
    /// is unique.
    #[schema(min_items = 1, max_items = 1000, pattern = r"^[^\u0000]*$")]
    pub units: Vec<String>,
    /// Audit this snapshot of the volume (name or id) instead of its newest version.
    #[schema(pattern = r"^[^\u0000]*$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Whether to list the files of which these units hold a part.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files: bool,
}

/// An audit of a volume: what it covers, its progress, and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// `audit-…`.
    #[schema(pattern = "^audit-[0-9a-f]{17}$")]
    pub id: String,
    /// The volume's id.
    #[schema(pattern = "^vol-[0-9a-f]{17}$", example = "vol-0f3c5b7d9e1a2b4c6")]
    pub volume: String,
    /// The id of the audited snapshot, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The number of the audited version. Later writes, and what is in a journal, are not in it.
    pub version: u64,
    /// How much the journal of the volume's host held that was in no version when the audit was
    /// requested, in bytes: it was on no unit. Left out for a snapshot, and if the volume was not
    /// in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_bytes: Option<u64>,
    /// The ids of the units that are assumed compromised.
    pub units: Vec<String>,
    /// How the volume's blocks were placed on units when the audit was requested, for comparison
    /// with the model.
    pub placement: AuditPlacement,
    /// The name of the user who requested it. Shown to that user and to those who administer the
    /// volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The name of the host that runs it.
    pub host: String,
    /// The audit's state.
    #[schema(value_type = AuditState)]
    pub state: String,
    /// How much of the volume it has covered, in bytes.
    pub done_bytes: u64,
    /// How much there is to cover, in bytes.
    pub total_bytes: u64,
    /// In state `error`: why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    /// When it was requested.
    #[schema(format = DateTime)]
    pub created: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub ended: Option<String>,
    /// In state `done`: the result. Shown to those who may read the volume; lists leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<AuditResult>,
    /// The wrapped data key that decrypts the sealed part of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<AuditKey>,
}

/// How a volume's blocks are placed on units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPlacement {
    /// The number of units that hold segments like this volume's, including draining ones.
    pub units: u32,
    /// How many of those are assumed compromised.
    pub compromised: u32,
    /// The number of copies of each segment.
    pub replicas: u8,
    /// Erasure coding in place of copies: `k+m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erasure: Option<String>,
    /// The planned number of other units with which each unit shares segments.
    pub scatter_width: u32,
    /// The number of copysets that hold segments like these.
    pub sets: u32,
    /// Block size in bytes.
    pub block_size: u64,
}

/// How much of something the compromised units hold, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditBytes {
    /// The total.
    pub total: u64,
    /// Readable on those units.
    pub readable: u64,
    /// Present on those units, but sealed.
    pub sealed: u64,
    /// Present, but not as it was written: damaged, or replaced by something else.
    pub altered: u64,
}

/// The result of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditResult {
    /// All blocks of the volume that are on units.
    pub blocks: AuditBytes,
    /// The pages that locate blocks: leaves of the map, and tail pages.
    pub map: AuditBytes,
    /// Regular files with content on units.
    pub files: AuditFiles,
    /// Details of files. Empty for an encrypted volume.
    #[serde(flatten)]
    pub listing: AuditListing,
    /// For an encrypted volume: the same details, sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealed: Option<AuditSealed>,
}

/// Details of files: everything that reveals a volume's content.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditListing {
    /// The file systems that were looked for, one for each partition.
    pub file_systems: Vec<AuditFileSystem>,
    /// The files of which these units hold a part, if they were requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listed: Vec<AuditFile>,
    /// How many more such files there are.
    pub unlisted: u64,
    /// The distribution of file lengths over all files.
    pub lengths: Vec<AuditLength>,
}

/// Details of the files of an encrypted volume, sealed with a key that is derived from the volume's
/// data key (docs/reference/key-providers.md).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditSealed {
    /// The lineage whose data key it is derived from: `lineage-…`.
    pub lineage: String,
    /// The salt of the derivation: base64.
    #[serde(with = "catalog::bytes")]
    #[schema(value_type = String)]
    pub salt: [u8; 32],
    /// The sealed JSON of an `AuditListing`: base64.
    #[serde(with = "catalog::bytes")]
    #[schema(value_type = String)]
    pub sealed_report: Vec<u8>,
}

/// A wrapped data key, and the wrapping key that unwraps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditKey {
    /// The lineage whose data key it is: `lineage-…`.
    pub lineage: String,
    /// The data key, wrapped: base64.
    #[serde(with = "catalog::bytes")]
    #[schema(value_type = String)]
    pub wrapped: Vec<u8>,
    /// The wrapping key's id: `key-…`.
    pub key: String,
    /// The wrapping key's name.
    pub name: String,
    /// How the wrapping key is derived and verified; not secret.
    #[schema(value_type = Object)]
    pub parameters: serde_json::Value,
}

/// The files of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLength {
    /// Length of each file in bytes.
    pub bytes: u64,
    /// The number of files.
    pub files: u64,
}

/// A partition, and the file system in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditFileSystem {
    /// Offset in the volume in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Why its files could not be read: there is no known file system, or it is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// How many damaged structures were skipped.
    pub damaged: u64,
    /// The number of regular files with content on units.
    pub files: u64,
}

/// Files, by how much of their content is readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditFiles {
    /// The number of files that are readable in full.
    pub readable: u64,
    /// Total length of those in bytes.
    pub readable_bytes: u64,
    /// The number of files that are readable in part.
    pub partly_readable: u64,
    /// The number of files of which nothing is readable.
    pub unreadable: u64,
    /// The content of all files together.
    pub content: AuditBytes,
}

/// A file of which the compromised units hold a part.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditFile {
    /// One of its paths; left out if no directory names it. Bytes that are not UTF-8 are escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The inode number.
    pub inode: u32,
    /// Index of its file system, from 0.
    pub file_system: u32,
    /// The file's content.
    pub content: AuditBytes,
}
