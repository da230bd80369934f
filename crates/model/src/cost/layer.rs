//! [`Layer`]: what one more layer costs, in one place, with one cipher.

use serde::{Deserialize, Serialize};

use super::{Both, Linear};

/// A place where blocks are encrypted, with a cipher: E and D (equation 2), with a term for each
/// request, and what a request takes longer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// CPU seconds: D of reads and E of writes.
    pub cpu: Both<Linear>,
    /// What one request takes longer if it is alone, in seconds.
    pub latency: Both<Linear>,
    /// No request to it is larger, in bytes: more is cut.
    pub request_bytes_max: f64,
    /// It is above what remembers writes: each goes through it as it is made, in the requests of
    /// whoever makes it. If not, writes through memory reach it late, and merged.
    pub is_above_memory: bool,
}

impl Layer {
    /// No term is below 0 or no number.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let terms = [
            self.cpu.read,
            self.cpu.write,
            self.latency.read,
            self.latency.write,
        ];
        terms.iter().all(Linear::is_valid)
            && self.request_bytes_max.is_finite()
            && self.request_bytes_max >= 1.0
    }
}
