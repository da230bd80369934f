//! What is to be done once on a host, and what came of it.

use base::AttachmentId;
use serde::{Deserialize, Serialize};

use super::{HostUnit, WrappingKey};

/// Something to be done once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its number.
    pub id: i64,
    /// What.
    pub what: TaskKind,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "kebab-case")]
pub enum TaskKind {
    /// To make a place a unit.
    AddUnit {
        /// Where it is, as somebody wrote it.
        url: String,
        /// In which zone; for the controller, when it is done.
        zone: Option<String>,
    },
    /// To say what the filters of an attachment have told.
    ReadEvents {
        /// Of which.
        attachment: AttachmentId,
        /// What came after this; what comes from now on, if nothing is said.
        after: Option<u64>,
        /// At most so many.
        count_max: u32,
        /// As soon as there is something, or after so many milliseconds.
        wait_ms: u64,
    },
    /// To found the wrapping key that the host's `keys.toml` has under a name.
    AddKey {
        /// The name.
        name: String,
    },
}

/// What came of a task, or why it is not done.
pub type TaskAnswer = Result<TaskDone, Refusal>;

/// What came of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "kebab-case")]
pub enum TaskDone {
    /// A unit.
    Unit(HostUnit),
    /// A wrapping key, which the controllers know by now.
    Key(WrappingKey),
    /// What filters have told.
    Events(EventLines),
}

/// What filters have told, as lines of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLines {
    /// In order.
    pub lines: Vec<String>,
    /// After what to ask for more.
    pub next: u64,
    /// Some that came before are not kept for this any more.
    pub missed: bool,
}

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was asked makes no sense, and this field of it is meant.
    pub field: Option<String>,
    /// Why, and what to do.
    pub reason: String,
}
