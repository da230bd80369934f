//! `fault`: how often what goes wrong.

use serde::{Deserialize, Serialize};

/// A guest gives a request up after 30 s; what is later than this tells it nothing new, in
/// milliseconds.
pub const DELAY_MS_MAX: u64 = 5000;

/// How often what happens; never, where nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// One read in so many fails.
    pub read_errors_one_in: u64,
    /// One write in so many fails, and nothing of it is written.
    pub write_errors_one_in: u64,
    /// One read or write in so many is answered `delay_ms` later than it could be.
    pub delays_one_in: u64,
    /// How much later, in milliseconds.
    pub delay_ms: u64,
    /// One write in so many is written in part, and is the last one: from then on
    /// everything fails, as if the power had failed.
    pub torn_writes_one_in: u64,
    /// What chance begins with: the same requests meet the same faults.
    pub seed: u64,
}

impl FaultConfig {
    /// Whether its numbers make sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.delays_one_in, self.delay_ms) {
            (_, DELAY_MS_MAX..) if self.delay_ms > DELAY_MS_MAX => {
                Err(format!("delay_ms is {DELAY_MS_MAX} at most"))
            }
            (1.., 0) => Err("delays_one_in needs a delay_ms".to_owned()),
            _ => Ok(()),
        }
    }
}
