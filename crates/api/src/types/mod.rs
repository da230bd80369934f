//! What the API says, as JSON. The command line reads these same types.
//!
//! Fields are only ever added. Sizes are in bytes, times in RFC 3339.

mod attachments;
mod audits;
mod certificates;
mod chains;
mod cluster;
mod images;
mod load;
mod parties;
mod snapshots;
mod tags;
mod volumes;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::ProblemCode;

pub use attachments::{
    Attachment, CreateAttachment, Follower, MoveAttachment, READ_ONLY_ATTACHMENTS_MAX,
};
pub use audits::{
    AUDIT_FILES_MAX, AUDIT_UNITS_MAX, Audit, AuditFile, AuditFileSystem, AuditFiles, AuditFound,
    AuditHeld, AuditKey, AuditLength, AuditListing, AuditPlacement, AuditSealed, AuditVolume,
};
pub use certificates::{AuthorityView, Certificate, Join, Renew, Token};
pub use chains::{ApplyChain, Chain, ChainFilter, ChainUse, Events};
pub use cluster::{
    AddKey, AddUnit, DrainUnits, Key, RemoveUnit, RepairJob, RotateKey, Scrub, SetZone, Status,
    Unit, UnitFact, UnitMoved, UnitZone, UnitsWanted,
};
pub use images::{Image, MarkImage, Preload, PreloadImage};
pub use load::{
    Asked, AskedByArea, CACHE_BLOCK_BYTES, CacheArea, CacheFile, HostCache, HostLoad, VolumeCache,
    VolumeLoad,
};
pub use parties::{AddGrant, AddParty, AddProject, AuditEntry, Grant, Party, Project, Quota};
pub use snapshots::{CreateSnapshot, Snapshot};
pub use tags::{SetTags, TAG_KEY_LENGTH_MAX, TAG_VALUE_LENGTH_MAX, TAGS_MAX, Tags};
pub use volumes::{
    CreateVolume, Engine, Export, ExportVolume, GrowVolume, REPLICAS_MAX, RestoreVolume, SetSizes,
    TransferVolume, Version, Volume,
};

/// A part of a list, in the order of ids.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// What to ask for as `after` to get the next page; null on the last one.
    pub next: Option<String>,
}

/// Why a request failed (RFC 9457).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A URI for the kind of problem.
    #[serde(rename = "type")]
    #[schema(
        pattern = "^urn:scree:problem:[a-z-]+$",
        example = "urn:scree:problem:not-found"
    )]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, example = 404)]
    pub status: u16,
    /// What happened this time, and what to do.
    pub detail: String,
    /// The kind, for programs.
    #[schema(value_type = ProblemCode)]
    pub code: String,
    /// Which field of the request is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}
