//! [`Target`]: where data is kept, without encryption.

use serde::{Deserialize, Serialize};

use super::{Both, Curve, Linear};

/// TP and F (equations 2 to 4), and what the CPU has to do in any case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// TP: what it takes or gives, in bytes per second, as much as it can.
    pub bytes_per_s: Both<f64>,
    /// F of what is read that was read or written before: memory may have it still.
    pub reads: Curve,
    /// F of what is written, up to where the last write returns: memory may take it.
    pub writes: Curve,
    /// CPU seconds that reading and writing through memory takes by itself.
    pub cpu: Both<Linear>,
    /// The same past memory.
    pub direct_cpu: Both<Linear>,
    /// How long a request past memory takes if it is alone, in seconds.
    pub direct_latency: Both<Linear>,
}

impl Target {
    /// Rates are above 0, and terms no less.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        let lines = [self.cpu, self.direct_cpu, self.direct_latency];
        is_rate(self.bytes_per_s.read)
            && is_rate(self.bytes_per_s.write)
            && lines
                .iter()
                .all(|both| both.read.is_valid() && both.write.is_valid())
    }
}
