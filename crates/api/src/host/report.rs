//! The report of a host.

use base::{AttachmentId, UnitId, VolumeId};
use serde::{Deserialize, Serialize};

/// The state of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The [`Assignments::report_number`](super::Assignments::report_number) that this report
    /// answers.
    pub report_number: u64,
    /// The units, as this host sees them.
    pub units: Vec<UnitReport>,
    /// The open volumes.
    pub volumes: Vec<VolumeReport>,
    /// Free space on the units' file systems, each counted once, in bytes.
    pub free_bytes: Option<u64>,
    /// Problems, one sentence each.
    pub problems: Vec<String>,
    /// The state of its cache.
    pub cache: Option<crate::types::HostCache>,
}

/// A unit, as one host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitReport {
    /// The id.
    pub id: UnitId,
    /// The name of a [`UnitState`](crate::words::UnitState), as text: a host of a later version may
    /// report one that the controller does not know.
    pub state: String,
    /// Why it is not healthy, if it is not.
    pub problem: Option<String>,
    /// The number of segments, if it answers.
    pub segments: Option<u64>,
    /// The size of the segments, in bytes.
    pub bytes: Option<u64>,
    /// Free space in bytes, if it is known.
    pub free_bytes: Option<u64>,
    /// How many bytes of blocks this host has read from it.
    pub read_bytes: u64,
    /// How many bytes of blocks this host has written to it.
    pub written_bytes: u64,
    /// The probed properties of its storage.
    pub facts: Vec<crate::types::UnitFact>,
}

/// An open volume's engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// The attachment.
    pub attachment: AttachmentId,
    /// The volume.
    pub volume: VolumeId,
    /// The state of its engine.
    pub engine: crate::types::Engine,
}
