//! Audits: what some units alone reveal of a volume.

use base::{AuditId, BlockSize, UnitId, VolumeId};
use catalog::VersionKey;
use serde::{Deserialize, Serialize};

use crate::types::AuditResult;

/// An audit that a host should run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredAudit {
    /// The id.
    pub id: AuditId,
    /// The volume.
    pub volume: VolumeId,
    /// The version that is audited.
    pub version: VersionKey,
    /// The size of the version, in bytes.
    pub size_bytes: u64,
    /// Its block size.
    pub block_size: BlockSize,
    /// The units that are assumed to be compromised.
    pub units: Vec<UnitId>,
    /// Whether files are listed.
    pub files: bool,
}

/// The progress of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// How much of the volume was audited, in bytes.
    pub done_bytes: u64,
    /// The outcome; `None` while it runs.
    pub end: Option<AuditOutcome>,
}

/// The outcome of an audit: the result, or why it failed.
pub type AuditOutcome = Result<AuditResult, String>;
