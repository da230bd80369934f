//! `journal`: acknowledged here, and carried out below later.

use serde::{Deserialize, Serialize};

/// The smallest ring, and the largest, in bytes.
const SIZE_MIN: u64 = 4 << 20;
const SIZE_MAX: u64 = 1 << 40;

/// The ring's length if nothing is said, in bytes.
const SIZE: u64 = 256 << 20;

/// When a flush is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlushRule {
    /// When all before it is carried out and flushed below.
    #[default]
    Through,
    /// When the journal is on stable storage: as good as the disk that it lies on.
    Journal,
}

/// How much it holds, and what a flush is worth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalConfig {
    /// The ring's length, in bytes.
    #[serde(deserialize_with = "crate::size::required", default = "size")]
    pub size: u64,
    /// When a flush is answered.
    #[serde(default)]
    pub flush: FlushRule,
}

const fn size() -> u64 {
    SIZE
}

impl JournalConfig {
    /// Whether its numbers make sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.size {
            SIZE_MIN..=SIZE_MAX => Ok(()),
            _ => Err("size is 4M to 1T".to_owned()),
        }
    }
}
