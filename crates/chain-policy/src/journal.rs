//! `journal`: a write-back journal, which acknowledges writes before they are carried out below.

use serde::{Deserialize, Serialize};

use crate::kind::FilterConfig;
use crate::out_of_process::Placement;

/// The length of the smallest ring, in bytes.
const SIZE_MIN: u64 = 4 << 20;
/// The length of the largest ring, in bytes.
const SIZE_MAX: u64 = 1 << 40;

/// The length of the ring unless the policy says otherwise, in bytes.
const SIZE: u64 = 256 << 20;

/// When a flush is acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlushRule {
    /// When all earlier writes are carried out and flushed below.
    #[default]
    Through,
    /// When the journal is on stable storage. The flush is then as durable as the disk that holds
    /// the journal.
    Journal,
}

/// The parameters of a `journal` filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalConfig {
    /// The length of the ring, in bytes.
    #[serde(deserialize_with = "crate::size::required", default = "size")]
    pub size: u64,
    /// When a flush is acknowledged.
    #[serde(default)]
    pub flush: FlushRule,
}

const fn size() -> u64 {
    SIZE
}

impl FilterConfig for JournalConfig {
    const NAME: &'static str = "journal";
    const PLACEMENT: Placement = Placement::Inline;
    const KEEPS_FILES: bool = true;
    const TRANSFORMS: bool = false;

    /// Checks the length of the ring.
    fn check(&self) -> Result<(), String> {
        match self.size {
            SIZE_MIN..=SIZE_MAX => Ok(()),
            _ => Err("size must be 4M to 1T".to_owned()),
        }
    }
}
