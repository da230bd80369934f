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
    /// The same with another cipher, by what both take by themselves for blocks of so many
    /// bytes: what is not the cipher stays as it is.
    ///
    /// # Panics
    /// If blocks have no bytes.
    #[must_use]
    pub fn exchanged(&self, old: &Both<Linear>, new: &Both<Linear>, block_bytes: f64) -> Self {
        assert!(block_bytes > 0.0, "blocks have bytes");
        let byte_s = |line: &Linear| line.byte_s + line.operation_s / block_bytes;
        let moved = |line: Linear, more: f64| Linear {
            byte_s: (line.byte_s + more).max(0.0),
            ..line
        };
        let both = |lines: Both<Linear>| Both {
            read: moved(lines.read, byte_s(&new.read) - byte_s(&old.read)),
            write: moved(lines.write, byte_s(&new.write) - byte_s(&old.write)),
        };
        Self {
            cpu: both(self.cpu),
            latency: both(self.latency),
            ..self.clone()
        }
    }

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
        let layer = Layer {
            cpu: both(3e-9, 5e-6),
            latency: both(4e-9, 9e-6),
            request_bytes_max: 131_072.0,
            is_above_memory: true,
        };
        let (old, new) = (both(1e-9, 0.0), both(2e-9, 4096.0 * 1e-9));
        let moved = layer.exchanged(&old, &new, 4096.0);
        assert!((moved.cpu.write.byte_s - 5e-9).abs() < 1e-18);
        assert!((moved.latency.read.byte_s - 6e-9).abs() < 1e-18);
        assert_eq!(moved.cpu.write.operation_s, 5e-6);
        assert!(moved.is_above_memory);
        // Nothing costs less than nothing.
        let free = layer.exchanged(&both(9e-9, 0.0), &both(0.0, 0.0), 4096.0);
        assert!(free.is_valid() && free.cpu.read.byte_s == 0.0);
    }
}
