//! Wrapping keys, as hosts and controllers know them: never what they open.

use base::{KeyId, Lineage};
use catalog::WrappedKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::words::KeyState;

/// The name of the wrapping key that a new cluster begins with.
pub const FIRST_KEY: &str = "main";

/// A wrapping key, as all hosts know it. Where it is, each knows for itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappingKey {
    /// Its id.
    pub id: KeyId,
    /// Its name.
    pub name: String,
    /// How it is had, and known again: the agents' own, and not secret.
    pub parameters: Value,
    /// What is done with it.
    pub state: KeyState,
    /// What takes over what it still wraps, if it is retiring.
    pub replaced_by: Option<KeyId>,
}

/// A data key, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedRow {
    /// Whose.
    pub lineage: Lineage,
    /// The key.
    pub wrapped: WrappedKey,
}
