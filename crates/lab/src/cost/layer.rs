//! [`Layer`]: what one more layer costs, in one place, with one cipher.

use serde::{Deserialize, Serialize};

use super::{Both, BySize, Linear};

/// A place where blocks are encrypted, with a cipher: E and D (equation 2), with a term for each
/// request, and what a request takes longer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// CPU seconds: D of reads and E of writes.
    pub cpu: Both<BySize>,
    /// What one request takes longer if it is alone, in seconds.
    pub latency: Both<BySize>,
    /// No request to it is larger, in bytes: more is cut.
    pub request_bytes_max: f64,
    /// Requests that memory reads ahead or writes back are so large, in bytes.
    pub merged_bytes: f64,
    /// What a request to it takes of CPU in addition, in seconds, if it comes apart from others:
    /// what encrypts has gone to sleep, and wakes up for it.
    pub apart_s: Both<f64>,
    /// It is above what remembers writes: each goes through it as it is made, in the requests of
    /// whoever makes it. If not, writes through memory reach it late, and merged.
    pub is_above_memory: bool,
}

impl Layer {
    /// The same with another cipher, by what both take by themselves for blocks of so many
    /// bytes: what is not the cipher stays as it is.
    ///
    /// # Panics
    /// If blocks have no bytes.
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

    /// Requests have a size, and what they take is a number.
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
    fn another_cipher_moves_what_bytes_cost_and_nothing_else() {
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
