//! What an agent asks of a controller, and reports to it (docs/service.md), in the name of the host
//! that asks.
//!
//! There is one way: the RPC. Each [`Call`] is a type with a typed answer; [`ControllerCall`] and
//! [`CatalogCall`] are all of them. The rest of this module is what they carry.

mod attachments;
mod audits;
pub mod calls;
mod capabilities;
pub mod catalog_calls;
mod cleaning;
mod images;
mod keys;
mod leases;
mod repair;
mod report;
mod rpc;
mod tasks;

use base::{ClusterId, DatabaseId, UnitId};
use catalog::{Copyset, WrappedKey};
use serde::{Deserialize, Serialize};

pub use crate::words::{Access, AttachmentState, Encryption, KeyState};
pub use attachments::{Assignment, AttachmentReport, ChainKey, WantedChain};
pub use audits::{AuditEnd, AuditReport, WantedAudit};
pub use calls::{CatalogAnswer, ControllerCall, FOLLOW_SECONDS_MAX, HostCall};
pub use capabilities::{Capabilities, SignedBytes, WANTS_MAX, Want};
pub use catalog_calls::{CatalogCall, EncodedPlan, FREES_MAX, NOTED_MAX, ROWS_MAX};
pub use cleaning::{Cleaning, Deleted};
pub use images::{ImageOf, PreloadEnd, PreloadReport, WantedPreload};
pub use keys::{FIRST_KEY, WrappedRow, WrappingKey};
pub use leases::{Fenced, HeldLease, JOURNALS_MAX, LEASES_MAX, Renewal, Renewed};
pub use repair::{REPAIR_TERM_MS, RepairEnd, RepairProgress, RepairTask, Suspicion};
pub use report::{Report, UnitReport, VolumeReport};
pub use rpc::{Call, RPC_PATH};
pub use tasks::{EventLines, Refusal, Task, TaskAnswer, TaskDone, TaskKind};

/// What is true of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Its id.
    pub id: ClusterId,
    /// As whom hosts use its units.
    pub owner: Owner,
    /// The operator has said that whoever else has the units is gone.
    pub takes_over: bool,
    /// With this, hosts vouch for what they leave on units. It opens nothing.
    pub vouch: WrappedKey,
    /// How long leases hold after a host was last heard of, in milliseconds;
    /// for ever, where there is only one host.
    pub lease_ms: Option<u64>,
    /// As [`Assignments::keys`]; none in a new cluster.
    pub keys: Vec<WrappingKey>,
}

/// Whose a unit is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Which copy of the database.
    pub database: DatabaseId,
    /// The second of the operator's last word that the others are gone.
    pub generation: u32,
    /// Where that is, for people.
    pub place: String,
}

/// All that is wanted of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignments {
    /// Ask for what comes after this.
    pub serial: u64,
    /// The attachments that are not detached.
    pub attachments: Vec<Assignment>,
    /// The units there are.
    pub units: Vec<HostUnit>,
    /// The sets of units that hold segments together.
    pub copysets: Vec<Copyset>,
    /// The wrapping keys there are, those first that were founded first.
    pub keys: Vec<WrappingKey>,
    /// What else is to be done.
    pub tasks: Vec<Task>,
    /// A report that says at least this is waited for.
    pub look: u64,
    /// When this is not what it was, there may be something to clean.
    pub clean: u64,
    /// So many copysets are to be compared, also if all of their members are whole.
    pub compare: u64,
    /// The images that are to be read into its cache.
    pub preloads: Vec<WantedPreload>,
    /// The audits that it is to do.
    pub audits: Vec<WantedAudit>,
    /// When this is not what it was, an image does not stay any more.
    pub unpins: u64,
}

/// A unit, as hosts find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostUnit {
    /// Its id.
    pub id: UnitId,
    /// Where it is.
    pub url: String,
    /// Its daemon is disabled: it is read, and nothing more is put there.
    pub is_disabled: bool,
}
