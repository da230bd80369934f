//! Jobs that a host should run once, and their results.

use base::AttachmentId;
use serde::{Deserialize, Serialize};

use super::{HostUnit, ListedKey};

/// A job that should be run once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostJob {
    /// The job's number.
    pub id: i64,
    /// The kind, with its parameters.
    pub kind: JobKind,
}

/// The kinds of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "kebab-case")]
pub enum JobKind {
    /// Create a unit in an empty folder, bucket or pool.
    AddUnit {
        /// Its URL, as the requester wrote it.
        url: String,
        /// The unit's zone, which the controller stores when the job is done.
        zone: Option<String>,
    },
    /// Read the events of an attachment's filters.
    ReadEvents {
        /// The attachment.
        attachment: AttachmentId,
        /// The sequence after which to read; `None`: from now on.
        after: Option<u64>,
        /// The largest number of lines.
        count_max: u32,
        /// How long to wait for a line, in milliseconds.
        wait_ms: u64,
    },
    /// Create the wrapping key with this name in the host's `keys.toml`.
    AddKey {
        /// The name.
        name: String,
    },
}

/// The result of a job, or why it was not run.
pub type JobResult = Result<JobOutput, Refusal>;

/// The result of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "kebab-case")]
pub enum JobOutput {
    /// The new unit.
    Unit(HostUnit),
    /// The new wrapping key, which is registered with the controllers.
    Key(ListedKey),
    /// Events of filters.
    Events(EventLines),
}

/// Events of filters, as lines of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLines {
    /// The lines, in order.
    pub lines: Vec<String>,
    /// The sequence after which to read next.
    pub next: u64,
    /// Whether lines before these are not in memory any more.
    pub missed: bool,
}

/// Why a job was not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The field of the request that is wrong, if one is.
    pub field: Option<String>,
    /// What was wrong, and what to do.
    pub message: String,
}
