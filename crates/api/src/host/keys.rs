//! Wrapping keys as hosts and controllers know them: their names and parameters, never the keys.

use std::fmt;

use base::{KeyId, Lineage};
use catalog::WrappedKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::words::KeyState;

/// The name of the first wrapping key of a new cluster.
pub const FIRST_KEY: &str = "main";

/// A wrapping key as the controllers list it for all hosts, without the key itself. Each host has
/// its own configuration of where the key is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedKey {
    /// Its id.
    pub id: KeyId,
    /// Its name.
    pub name: String,
    /// How it is derived and verified. Agents write it; it is not secret.
    pub parameters: Value,
    /// Its state.
    pub state: KeyState,
    /// The key that replaces it, if it is retiring.
    pub replaced_by: Option<KeyId>,
}

/// The secret with which the hosts of a cluster authenticate lease counts on units. It encrypts
/// nothing, so controllers may hold it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseCountKey(#[serde(with = "catalog::wire::bytes")] pub [u8; 32]);

impl fmt::Debug for LeaseCountKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LeaseCountKey(..)")
    }
}

/// A wrapped data key, and its lineage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedRow {
    /// The lineage.
    pub lineage: Lineage,
    /// The key.
    pub wrapped: WrappedKey,
}
