//! How a host is doing, as it says.

use base::{AttachmentId, UnitId, VolumeId};
use serde::{Deserialize, Serialize};

/// How a host is doing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`Assignments::look`](super::Assignments::look), as it was when this was found out.
    pub look: u64,
    /// The units, as this host finds them.
    pub units: Vec<UnitReport>,
    /// What is open.
    pub volumes: Vec<VolumeReport>,
    /// Free room on the units' file systems, each counted once, in bytes.
    pub free_bytes: Option<u64>,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
    /// Its cache.
    pub cache: Option<crate::types::HostCache>,
}

/// A unit, as one host finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitReport {
    /// Which.
    pub id: UnitId,
    /// A word of [`UnitState`](crate::words::UnitState), as text: of a host of a
    /// later version it may be one that the controller does not know.
    pub state: String,
    /// What was found, if it is not healthy.
    pub reason: Option<String>,
    /// How many segments it holds, if that can be asked.
    pub segments: Option<u64>,
    /// The room they take, in bytes.
    pub bytes: Option<u64>,
    /// Free room in bytes, where that is known.
    pub free_bytes: Option<u64>,
    /// How many bytes of blocks this host has read from it.
    pub read_bytes: u64,
    /// How many it has written.
    pub written_bytes: u64,
    /// What was found out of the place that it is.
    pub facts: Vec<crate::types::UnitFact>,
}

/// An open volume's engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Of which attachment.
    pub attachment: AttachmentId,
    /// Of which volume.
    pub volume: VolumeId,
    /// How it is doing.
    pub engine: crate::types::Engine,
}
