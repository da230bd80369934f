//! `trace`: a record of each request.

use serde::{Deserialize, Serialize};

/// The smallest trace that is kept, and the largest, in bytes.
const BYTES_MIN: u64 = 1 << 20;
const BYTES_MAX: u64 = 1 << 40;

/// As much is kept if nothing is said, in bytes.
const BYTES: u64 = 64 << 20;

/// How much is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceConfig {
    /// All files together, in bytes.
    #[serde(deserialize_with = "crate::size::required", default = "bytes_max")]
    pub bytes_max: u64,
}

const fn bytes_max() -> u64 {
    BYTES
}

impl TraceConfig {
    /// Whether its number makes sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.bytes_max {
            BYTES_MIN..=BYTES_MAX => Ok(()),
            _ => Err("bytes_max is 1M to 1T".to_owned()),
        }
    }
}
