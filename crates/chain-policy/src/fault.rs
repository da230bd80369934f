//! `fault`: which faults are injected, and how often.

use serde::{Deserialize, Serialize};

use crate::kind::FilterConfig;
use crate::out_of_process::Placement;

/// The longest injected delay, in milliseconds. A guest gives a request up after 30 s, so a
/// longer delay would test the guest's timeout and not the disk.
pub const DELAY_MS_MAX: u64 = 5000;

/// The parameters of a `fault` filter. A fault with the number 0 never happens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// One read in this many fails.
    pub read_errors_one_in: u64,
    /// One write in this many fails without writing anything.
    pub write_errors_one_in: u64,
    /// One read or write in this many is answered `delay_ms` late.
    pub delays_one_in: u64,
    /// The length of a delay, in milliseconds.
    pub delay_ms: u64,
    /// One write in this many is written only in part. After it everything fails, as if the power
    /// had failed.
    pub torn_writes_one_in: u64,
    /// The seed of the random numbers: the same requests meet the same faults.
    pub seed: u64,
}

impl FilterConfig for FaultConfig {
    const NAME: &'static str = "fault";
    const PLACEMENT: Placement = Placement::InlineOrProcess;
    const KEEPS_FILES: bool = false;
    const TRANSFORMS: bool = false;

    /// Checks the delays.
    fn check(&self) -> Result<(), String> {
        match (self.delays_one_in, self.delay_ms) {
            (_, DELAY_MS_MAX..) if self.delay_ms > DELAY_MS_MAX => {
                Err(format!("delay_ms must be at most {DELAY_MS_MAX}"))
            }
            (1.., 0) => Err("delays_one_in needs a delay_ms".to_owned()),
            _ => Ok(()),
        }
    }
}
