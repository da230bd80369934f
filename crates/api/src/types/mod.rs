//! The JSON bodies of requests and responses. The command line reads these same types.
//!
//! From 0.1.0 on, fields are only added. Sizes are in bytes, times in RFC 3339.

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

pub use crate::message::Message;
use crate::words::ProblemCode;

pub use attachments::{
    Attachment, CreateAttachment, MoveAttachment, READ_ONLY_ATTACHMENTS_MAX, Successor,
};
pub use audits::{
    AUDIT_FILES_MAX, AUDIT_UNITS_MAX, Audit, AuditBytes, AuditFile, AuditFileSystem, AuditFiles,
    AuditKey, AuditLength, AuditListing, AuditPlacement, AuditResult, AuditSealed, AuditVolume,
};
pub use certificates::{AuthorityView, Certificate, Join, Renew, Token};
pub use chains::{ApplyChain, Chain, ChainFilter, ChainUse, Events};
pub use cluster::{
    AddKey, AddUnit, DrainUnits, Key, QueuedCopysets, RemoveUnit, RepairJob, RotateKey, Scrub,
    SetZone, Status, Unit, UnitChange, UnitFact, UnitZone,
};
pub use images::{Image, MarkImage, Preload, PreloadImage};
pub use load::{
    CACHE_BLOCK_BYTES, CacheArea, CacheFile, CacheLookups, HostCache, HostLoad, LookupsByArea,
    VolumeCache, VolumeLoad,
};
pub use parties::{AddGrant, AddParty, AddProject, AuditEntry, Grant, Party, Project, Quota};
pub use snapshots::{CreateSnapshot, Snapshot};
pub use tags::{SetTags, TAG_KEY_LENGTH_MAX, TAG_VALUE_LENGTH_MAX, TAGS_MAX, Tags};
pub use volumes::{
    CreateVolume, DamagedVolume, Engine, Export, ExportVolume, GrowVolume, ListedVolume,
    REPLICAS_MAX, RestoreVolume, SetSettings, TransferVolume, Version, Volume,
};

/// One page of a list, ordered by id.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items of this page.
    pub items: Vec<T>,
    /// The value of `after` that requests the next page; null on the last page.
    pub next: Option<String>,
}

/// Why a request failed (RFC 9457).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A URI for the kind of problem.
    #[serde(rename = "type")]
    #[schema(
        pattern = "^urn:scree:problem:[a-z_]+$",
        example = "urn:scree:problem:not_found"
    )]
    pub kind: String,
    /// The kind of problem in words.
    pub title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599, example = 404)]
    pub status: u16,
    /// What went wrong, and what to do about it.
    pub detail: String,
    /// The kind of problem, for programs.
    #[schema(value_type = ProblemCode)]
    pub code: String,
    /// The field of the request that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The id of the request, which the controller's log has beside each of its own failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9a-f]{16}$", example = "5f0c2a9e41d7b386")]
    pub request_id: Option<String>,
}
