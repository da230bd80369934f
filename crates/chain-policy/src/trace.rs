//! `trace`: a recording of requests.

use serde::{Deserialize, Serialize};

use crate::kind::FilterConfig;
use crate::out_of_process::Placement;

/// The least that a policy may ask for, in bytes.
const BYTES_MIN: u64 = 1 << 20;
/// The most that a policy may ask for, in bytes.
const BYTES_MAX: u64 = 1 << 40;

/// How much is kept unless the policy says otherwise, in bytes.
const BYTES: u64 = 64 << 20;

/// The parameters of a `trace` filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceConfig {
    /// The maximal length of all files of the trace together, in bytes.
    #[serde(deserialize_with = "crate::size::required", default = "bytes_max")]
    pub bytes_max: u64,
}

const fn bytes_max() -> u64 {
    BYTES
}

impl FilterConfig for TraceConfig {
    const NAME: &'static str = "trace";
    const PLACEMENT: Placement = Placement::Inline;
    const KEEPS_FILES: bool = true;
    const TRANSFORMS: bool = false;

    /// Checks the maximal length.
    fn check(&self) -> Result<(), String> {
        match self.bytes_max {
            BYTES_MIN..=BYTES_MAX => Ok(()),
            _ => Err("bytes_max must be 1M to 1T".to_owned()),
        }
    }
}
