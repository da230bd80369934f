//! [`Layer`]: the cost of encryption in one place with one cipher.

use serde::{Deserialize, Serialize};

use super::{Both, BySize, Linear};

/// The cost of encryption in a place: E and D (equation 2) per byte and per request, and the added
/// latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// CPU seconds: D for reads and E for writes.
    pub cpu: Both<BySize>,
    /// Added latency of a request at queue depth 1, in seconds.
    pub latency: Both<BySize>,
    /// Largest request in bytes; larger ones are split.
    pub request_bytes_max: f64,
    /// Size of read-ahead and write-back requests, in bytes.
    pub merged_bytes: f64,
    /// Added CPU seconds of an isolated request, for which a sleeping thread has to wake up.
    pub apart_s: Both<f64>,
    /// Whether the layer is above the page cache, so that it sees each write as the program makes
    /// it. Otherwise it sees writes late and merged.
    pub is_above_memory: bool,
}

impl Layer {
    /// The layer with another cipher, computed from the speeds of both ciphers for blocks of
    /// `block_bytes`; costs that are not the cipher's stay.
    ///
    /// # Panics
    /// If the block size is zero.
    #[must_use]
    pub fn exchanged(&self, old: &Both<Linear>, new: &Both<Linear>, block_bytes: f64) -> Self {
        assert!(block_bytes > 0.0, "blocks have bytes");
        let byte_s = |line: &Linear| line.byte_s + line.operation_s / block_bytes;
        let both = |lines: &Both<BySize>| Both {
            read: lines.read.with_bytes(byte_s(&new.read) - byte_s(&old.read)),
            write: lines
                .write
                .with_bytes(byte_s(&new.write) - byte_s(&old.write)),
        };
        Self {
            cpu: both(&self.cpu),
            latency: both(&self.latency),
            ..self.clone()
        }
    }

    /// Whether sizes are positive and costs are numbers.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_size = |bytes: f64| bytes.is_finite() && bytes >= 1.0;
        is_size(self.request_bytes_max)
            && is_size(self.merged_bytes)
            && self.apart_s.read.is_finite()
            && self.apart_s.write.is_finite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(byte_s: f64, operation_s: f64) -> Both<Linear> {
        let line = Linear {
            byte_s,
            operation_s,
        };
        Both {
            read: line,
            write: line,
        }
    }

    #[test]
    fn another_cipher_changes_the_cost_of_bytes_only() {
        let by_size = |seconds| {
            let one = || BySize::new(vec![(1000.0, seconds)]).expect("a size");
            Both {
                read: one(),
                write: one(),
            }
        };
        let layer = Layer {
            cpu: by_size(3e-6),
            latency: by_size(4e-6),
            request_bytes_max: 131_072.0,
            merged_bytes: 131_072.0,
            apart_s: Both::default(),
            is_above_memory: true,
        };
        let (old, new) = (both(1e-9, 0.0), both(2e-9, 4096.0 * 1e-9));
        let moved = layer.exchanged(&old, &new, 4096.0);
        assert!((moved.cpu.write.at(1000.0) - 5e-6).abs() < 1e-15);
        assert!((moved.latency.read.at(1000.0) - 6e-6).abs() < 1e-15);
        assert!(moved.is_above_memory && moved.is_valid());
    }
}
