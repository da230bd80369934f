//! [`Target`]: the storage below encryption.

use serde::{Deserialize, Serialize};

use super::{Both, Curve, Linear};

/// Throughput TP and speedup F (equations 2 to 4), and CPU time that is needed without encryption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// TP: highest throughput, in bytes per second.
    pub bytes_per_s: Both<f64>,
    /// F of reads of data that was read or written before, and may be in memory.
    pub reads: Curve,
    /// F of writes until the last one returns, as memory may buffer them.
    pub writes: Curve,
    /// CPU seconds of reads and writes through memory.
    pub cpu: Both<Linear>,
    /// CPU seconds of direct reads and writes.
    pub direct_cpu: Both<Linear>,
    /// Latency of a direct request at queue depth 1, in seconds.
    pub direct_latency: Both<Linear>,
}

impl Target {
    /// Whether all rates are positive and no term is negative.
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
