//! What an agent asks of a controller, and tells it (docs/service.md): JSON
//! under `/v1/host`, in the name of the host that is asking.
//!
//! ```text
//! POST /v1/host/begin                         nothing is open here (any more);
//!                                             what it has to do with
//! GET  /v1/host/assignments?after=N&wait=S    what is wanted of it
//! PUT  /v1/host/report                        how it is doing
//! POST /v1/host/leases                        it is there, and renews what it has
//! PUT  /v1/host/attachments/{attachment}      how far one has come
//! POST /v1/host/snapshots/{snapshot}/cut      its moment has been taken
//! PUT  /v1/host/tasks/{task}                  what came of one
//! PUT  /v1/host/preloads/{volume}             how far one has come
//! PUT  /v1/host/audits/{audit}                how far one has come, or what was found
//! POST /v1/host/keys                          a wrapping key that it founded
//! POST /v1/host/units                         folders that it made units
//! POST /v1/host/cleaning                      what may go
//! POST /v1/host/ahead                         how many leases a unit knows of
//! POST /v1/host/catalog                       a call of the engine's catalog
//! POST /v1/host/certificate                   who it is to unit daemons, for a day
//! POST /v1/host/capabilities                  what it may do there
//! ```
//!
//! Each may be repeated: what was done already is done.

mod attachments;
mod audits;
mod calls;
mod capabilities;
mod cleaning;
mod images;
mod keys;
mod leases;
mod repair;
mod report;
mod tasks;

use base::{ClusterId, DatabaseId, UnitId};
use catalog::{Copyset, WrappedKey};
use serde::{Deserialize, Serialize};

pub use crate::words::{Access, AttachmentState, Encryption, KeyState};
pub use attachments::{Assignment, AttachmentReport, ChainKey, WantedChain};
pub use audits::{AuditEnd, AuditReport, WantedAudit};
pub use calls::{CatalogAnswer, CatalogCall, EncodedPlan, FREES_MAX, NOTED_MAX, ROWS_MAX};
pub use capabilities::{AskCapabilities, Capabilities, SignedBytes, WANTS_MAX, Want};
pub use cleaning::{AskCleaning, Cleaning, Deleted};
pub use images::{ImageOf, PreloadEnd, PreloadReport, WantedPreload};
pub use keys::{FIRST_KEY, FoundedKey, WrappedRow, WrappingKey};
pub use leases::{Fenced, HeldLease, JOURNALS_MAX, LEASES_MAX, Renewal, Renewed};
pub use repair::{REPAIR_TERM_MS, RepairEnd, RepairProgress, RepairTask, Suspicion};
pub use report::{Report, UnitReport, VolumeReport};
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
    #[serde(default)]
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
    #[serde(default)]
    pub compare: u64,
    /// The images that are to be read into its cache.
    #[serde(default)]
    pub preloads: Vec<WantedPreload>,
    /// The audits that it is to do.
    #[serde(default)]
    pub audits: Vec<WantedAudit>,
    /// When this is not what it was, an image does not stay any more.
    #[serde(default)]
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
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_disabled: bool,
}

/// Folders that a host has made units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedUnits {
    /// Which.
    pub units: Vec<HostUnit>,
}

/// Some unit knows of more leases than the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// How many.
    pub leases: u64,
}
