//! The requests and reports of an agent to a controller (docs/internals/desired-state.md).
//!
//! They are calls of one RPC. Each [`Call`] is a type with a typed answer; [`ControllerCall`] and
//! [`CatalogCall`] are all of them. The rest of this module is the content of calls and answers.

mod attachments;
mod audits;
pub mod calls;
mod capabilities;
pub mod catalog_calls;
mod cleaning;
mod images;
mod jobs;
mod keys;
mod leases;
mod repair;
mod report;
mod rpc;

use base::{ClusterId, DatabaseId, UnitId};
use catalog::Copyset;
use serde::{Deserialize, Serialize};

pub use crate::words::{Access, AttachmentState, Encryption, KeyState};
pub use attachments::{Assignment, AttachmentReport, ChainKey, DesiredChain};
pub use audits::{AuditOutcome, AuditReport, DesiredAudit};
pub use calls::{CatalogAnswer, ControllerCall, FOLLOW_SECONDS_MAX, HostCall};
pub use capabilities::{CAPABILITY_REQUESTS_MAX, Capabilities, CapabilityRequest, SignedBytes};
pub use catalog_calls::{CatalogCall, EncodedPlan, FREES_MAX, NOTED_MAX, ROWS_MAX};
pub use cleaning::{Cleaning, Deleted};
pub use images::{BaseImage, DesiredPreload, PreloadOutcome, PreloadReport};
pub use jobs::{EventLines, HostJob, JobKind, JobOutput, JobResult, Refusal};
pub use keys::{FIRST_KEY, LeaseCountKey, ListedKey, WrappedRow};
pub use leases::{Fenced, HeldLease, JOURNALS_MAX, LEASES_MAX, Renewal, Renewed};
pub use repair::{REPAIR_TERM_MS, RepairJob, RepairOutcome, RepairProgress, Suspicion};
pub use report::{Report, UnitReport, VolumeReport};
pub use rpc::{Call, RPC_PATH};

/// The cluster, as all hosts know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// The id.
    pub id: ClusterId,
    /// The owner as which hosts use its units.
    pub owner: Owner,
    /// Whether the operator has confirmed that any previous owner of the units is gone.
    pub takes_over: bool,
    /// The key with which hosts authenticate lease counts on units.
    pub lease_count_key: LeaseCountKey,
    /// The term of a lease after its host was last heard of, in milliseconds; `None` if leases do
    /// not end, as there is only one host.
    pub lease_ms: Option<u64>,
    /// The wrapping keys, as [`Assignments::keys`]; none in a new cluster.
    pub keys: Vec<ListedKey>,
}

/// The owner of units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The copy of the database.
    pub database: DatabaseId,
    /// The time in seconds at which the operator last confirmed that the other copies are gone.
    pub generation: u32,
    /// The location of that copy, as text for operators.
    pub location: String,
}

/// The desired state of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignments {
    /// The serial of this state: the next call waits until it changes.
    pub serial: u64,
    /// The attachments that are not detached.
    pub attachments: Vec<Assignment>,
    /// The units of the cluster.
    pub units: Vec<HostUnit>,
    /// The copysets of the cluster.
    pub copysets: Vec<Copyset>,
    /// The wrapping keys, in the order in which they were created.
    pub keys: Vec<ListedKey>,
    /// Jobs that should be run once.
    pub jobs: Vec<HostJob>,
    /// The number of the last request for a report.
    pub report_number: u64,
    /// When this changes, there may be something to clean.
    pub cleaning_serial: u64,
    /// The number of copysets whose members should be compared even if they are in sync.
    pub comparisons_requested: u64,
    /// The images that it should read into its cache.
    pub preloads: Vec<DesiredPreload>,
    /// The audits that it should run.
    pub audits: Vec<DesiredAudit>,
    /// When this changes, an image was unpinned.
    pub unpins: u64,
}

/// A unit, as hosts reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostUnit {
    /// The id.
    pub id: UnitId,
    /// The URL.
    pub url: String,
    /// Whether its daemon is disabled: it is read, and nothing more is put there.
    pub is_disabled: bool,
}
