//! Audits: what some units alone have of a volume (docs/models.md, "Audit").

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::AuditState;

/// So many units are named at once at most.
pub const AUDIT_UNITS_MAX: usize = 1000;

/// So many files are listed at most, those first of which most is readable.
pub const AUDIT_FILES_MAX: usize = 10_000;

/// What is to be audited.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditVolume {
    /// The units that are taken for compromised: ids, names of their daemons, or the last part of
    /// their URLs, where only one ends so.
    #[schema(min_items = 1, max_items = 1000, pattern = r"^[^\u0000]*$")]
    pub units: Vec<String>,
    /// This snapshot of the volume (name or id), in the place of its newest version.
    #[schema(pattern = r"^[^\u0000]*$")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// List the files of which something is on these units.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files: bool,
}

/// An audit of a volume. Who it is for, and how far it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// `audit-…`.
    #[schema(pattern = "^audit-[0-9a-f]{17}$")]
    pub id: String,
    /// The volume's id.
    #[schema(pattern = "^vol-[0-9a-f]{17}$", example = "vol-0f3c5b7d9e1a2b4c6")]
    pub volume: String,
    /// The snapshot's id, if one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The number of the version that is audited. What was written since, and what is in a
    /// journal, is not in it.
    pub version: u64,
    /// How much the journal of the volume's host had that was in no version when the audit was
    /// asked for, in bytes: it was on no unit. None of a snapshot, or if the volume was not in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_bytes: Option<u64>,
    /// The ids of the units that are taken for compromised.
    pub units: Vec<String>,
    /// How the volume's blocks came to lie on units when it was asked for, for who wants to compare
    /// it with the model.
    pub placement: AuditPlacement,
    /// Who has asked for it, by name: for who administers the volume, and for themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The name of the host that does it.
    pub host: String,
    /// How far it is.
    #[schema(value_type = AuditState)]
    pub state: String,
    /// Up to where it has gone through the volume, in bytes.
    pub done_bytes: u64,
    /// To where it goes, in bytes.
    pub all_bytes: u64,
    /// Why it has come to nothing, in state `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was asked for.
    #[schema(format = DateTime)]
    pub created: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub ended: Option<String>,
    /// What was found, in state `done`, for who may read the volume. Lists leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<AuditFound>,
    /// What opens what is sealed of that, for whoever has the wrapping key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<AuditKey>,
}

/// How a volume's blocks come to lie on units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPlacement {
    /// On how many units segments like this volume's lie, those included that are leaving.
    pub units: u32,
    /// How many of those are taken for compromised.
    pub compromised: u32,
    /// Copies of each segment.
    pub replicas: u8,
    /// What is in their place: `k+m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erasure: Option<String>,
    /// With how many others each unit shares segments, by the plan.
    pub scatter_width: u32,
    /// How many sets of units there are that hold segments like these.
    pub sets: u32,
    /// Block size in bytes.
    pub block_size: u64,
}

/// What some units alone have, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditHeld {
    /// Of so much.
    pub all: u64,
    /// Can be read there.
    pub readable: u64,
    /// Lies there, sealed.
    pub sealed: u64,
    /// In its place lies something else: it was damaged, or is not what the unit was given.
    pub other: u64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditFound {
    /// All blocks of the volume that were written and lie on units.
    pub blocks: AuditHeld,
    /// The pages that say where blocks lie: leaves of the map, and the tail's.
    pub map: AuditHeld,
    /// Regular files that have some content on units.
    pub files: AuditFiles,
    /// What else is known of files; nothing, of a volume that is sealed.
    #[serde(flatten)]
    pub listing: AuditListing,
    /// The same of a volume that is sealed, for whoever has its wrapping key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<AuditSealed>,
}

/// What is known of files, besides counts: what is of a volume's content.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditListing {
    /// The file systems that were looked for, one for each partition; nothing is known of files
    /// where there is none.
    #[serde(default)]
    pub file_systems: Vec<AuditFileSystem>,
    /// Those files of which something is on these units, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listed: Vec<AuditFile>,
    /// How many more there are than are listed.
    #[serde(default)]
    pub unlisted: u64,
    /// How much content each file has, in bytes, and how many have so much: of all files.
    #[serde(default)]
    pub lengths: Vec<AuditLength>,
}

/// What is known of files of a sealed volume. It is sealed with a key that is made of the
/// volume's (docs/keys.md, "What audits find").
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditSealed {
    /// Of whose key: `lineage-…`.
    pub lineage: String,
    /// What its key is made of, besides the volume's: base64.
    #[serde(with = "catalog::bytes")]
    #[schema(value_type = String)]
    pub salt: [u8; 32],
    /// The JSON of what is known, sealed: base64.
    #[serde(with = "catalog::bytes")]
    #[schema(value_type = String)]
    pub letter: Vec<u8>,
}

/// A wrapped data key, and what opens it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditKey {
    /// Whose: `lineage-…`.
    pub lineage: String,
    /// The data key, wrapped: base64.
    #[serde(with = "catalog::bytes")]
    #[schema(value_type = String)]
    pub wrapped: Vec<u8>,
    /// The wrapping key's id: `key-…`.
    pub key: String,
    /// Its name.
    pub name: String,
    /// How it is had, and known again; not secret.
    #[schema(value_type = Object)]
    pub parameters: serde_json::Value,
}

/// Files that have as much content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLength {
    /// How much, each, in bytes.
    pub bytes: u64,
    /// How many they are.
    pub files: u64,
}

/// A place for a file system, and what is there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditFileSystem {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub length: u64,
    /// Why nothing is known of its files: it is none, or damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// How many things in it made no sense, and were left out.
    #[serde(default)]
    pub damaged: u64,
    /// How many regular files it has with content on units.
    #[serde(default)]
    pub files: u64,
}

/// Files, by how much of their content can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditFiles {
    /// Of all of which it can.
    pub whole: u64,
    /// How long those are together, in bytes.
    pub whole_bytes: u64,
    /// Of a part of which it can.
    pub part: u64,
    /// Of nothing of which it can.
    pub none: u64,
    /// The content of all of them.
    pub content: AuditHeld,
}

/// A file of which something is on the units.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditFile {
    /// One of its names; none, if no directory has one. Bytes that are no text are told as such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its number.
    pub inode: u32,
    /// Which of the file systems it is in, from 0.
    #[serde(default)]
    pub file_system: u32,
    /// Its content.
    pub content: AuditHeld,
}
