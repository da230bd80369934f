//! What some units alone have of a volume, as hosts are asked for it and find it.

use base::{AuditId, BlockSize, UnitId, VolumeId};
use catalog::VersionKey;
use serde::{Deserialize, Serialize};

use crate::types::AuditFound;

/// An audit that a host is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedAudit {
    /// Which.
    pub id: AuditId,
    /// Of which volume.
    pub volume: VolumeId,
    /// What of it.
    pub version: VersionKey,
    /// How large it is, in bytes.
    pub size_bytes: u64,
    /// Its block size.
    pub block_size: BlockSize,
    /// The units that are taken for compromised.
    pub units: Vec<UnitId>,
    /// Files are to be listed.
    pub files: bool,
}

/// How far an audit has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Up to where it has gone through the volume, in bytes.
    pub done_bytes: u64,
    /// It has ended so; otherwise it goes on.
    pub end: Option<AuditEnd>,
}

/// How an audit has ended: what was found, or why nothing was.
pub type AuditEnd = Result<AuditFound, String>;
