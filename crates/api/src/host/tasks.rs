//! What is to be done once on a host, and what came of it.

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
        #[serde(default, skip_serializing_if = "Option::is_none")]
        zone: Option<String>,
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
}

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was asked makes no sense, and this field of it is meant.
    pub field: Option<String>,
    /// Why, and what to do.
    pub reason: String,
}
