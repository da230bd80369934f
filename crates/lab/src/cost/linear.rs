//! [`Linear`]: a time per byte and a time per operation.

use serde::{Deserialize, Serialize};

/// A value for reads and one for writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Both<T> {
    /// The value for reads.
    pub read: T,
    /// The value for writes.
    pub write: T,
}

/// The requests in one direction, as `f64`, because fractions are computed with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Bytes.
    pub bytes: f64,
    /// Requests.
    pub operations: f64,
}

impl Flow {
    /// The flow of `bytes` bytes in requests of `request_bytes` each; the last one may be shorter.
    /// Without bytes there are no requests.
    ///
    /// # Panics
    /// If `request_bytes` is 0.
    #[must_use]
    pub fn of(bytes: u64, request_bytes: u64) -> Self {
        Self {
            bytes: bytes as f64,
            operations: bytes.div_ceil(request_bytes) as f64,
        }
    }

    /// A part of the flow, from 0 to 1.
    #[must_use]
    pub fn part(self, ratio: f64) -> Self {
        Self {
            bytes: self.bytes * ratio,
            operations: self.operations * ratio,
        }
    }

    /// The flow, split into requests of at most `request_bytes_max` bytes.
    #[must_use]
    pub fn cut(self, request_bytes_max: f64) -> Self {
        Self {
            bytes: self.bytes,
            operations: self.operations.max(self.bytes / request_bytes_max),
        }
    }

    /// The flow, merged into as few requests of at most `request_bytes_max` bytes as possible; at
    /// least one.
    #[must_use]
    pub fn merged(self, request_bytes_max: f64) -> Self {
        let fewest = (self.bytes / request_bytes_max).max(1.0);
        Self {
            bytes: self.bytes,
            operations: self.operations.min(fewest),
        }
    }
}

impl std::iter::Sum for Flow {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            bytes: sum.bytes + one.bytes,
            operations: sum.operations + one.operations,
        })
    }
}

/// Seconds of CPU time or of run time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Linear {
    /// Per byte.
    pub byte_s: f64,
    /// Per operation, in addition.
    pub operation_s: f64,
}

impl Linear {
    /// Seconds of a flow.
    #[must_use]
    pub fn of(&self, flow: Flow) -> f64 {
        self.byte_s * flow.bytes + self.operation_s * flow.operations
    }

    /// The line through measured operations: pairs of bytes and seconds. It minimizes relative
    /// errors, so that large operations do not outweigh small ones. Neither term is negative: if
    /// noise would make one negative, only the other is fitted. Without pairs above 0 it is 0.
    #[must_use]
    pub fn through(points: &[(f64, f64)]) -> Self {
        let usable = |&&(bytes, seconds): &&(f64, f64)| bytes > 0.0 && seconds > 0.0;
        // Relative errors are minimal for the line 1 = a·(1/s) + b·(bytes/s).
        let rows = points.iter().filter(usable);
        let rows: Vec<(f64, f64)> = rows
            .map(|(bytes, seconds)| (1.0 / seconds, bytes / seconds))
            .collect();
        let sum = |term: fn(&(f64, f64)) -> f64| rows.iter().map(term).sum::<f64>();
        let (one, two) = (sum(|row| row.0), sum(|row| row.1));
        let (one_one, two_two) = (sum(|row| row.0 * row.0), sum(|row| row.1 * row.1));
        let one_two = sum(|row| row.0 * row.1);
        if rows.is_empty() {
            return Self::default();
        }
        let determinant = one_one * two_two - one_two * one_two;
        // Equal sizes do not determine two terms.
        if determinant > 1e-9 * one_one * two_two {
            let operation_s = (one * two_two - two * one_two) / determinant;
            let byte_s = (two * one_one - one * one_two) / determinant;
            if operation_s >= 0.0 && byte_s >= 0.0 {
                return Self {
                    byte_s,
                    operation_s,
                };
            }
            if byte_s < 0.0 {
                return Self {
                    byte_s: 0.0,
                    operation_s: one / one_one,
                };
            }
        }
        Self {
            byte_s: two / two_two,
            operation_s: 0.0,
        }
    }

    /// Whether both terms are numbers of at least 0.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_one = |term: f64| term.is_finite() && term >= 0.0;
        is_one(self.byte_s) && is_one(self.operation_s)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flows_are_cut_and_merged() {
        let flow = Flow::of(10_000, 4096);
        assert_eq!(flow.operations, 3.0);
        assert_eq!(flow.cut(1000.0).operations, 10.0);
        assert_eq!(flow.merged(5000.0).operations, 2.0);
        assert_eq!(flow.merged(100.0).operations, 3.0);
        // Requests have no fractions, but flows do.
        assert_eq!(flow.merged(1e9).operations, 1.0);
        assert_eq!(
            flow.part(0.1).merged(1e9).operations,
            flow.part(0.1).operations
        );
        assert_eq!(Flow::of(0, 4096).operations, 0.0);
    }

    #[test]
    fn noise_makes_no_term_negative() {
        let falling = Linear::through(&[(4096.0, 10e-6), (65536.0, 9e-6)]);
        assert!(falling.is_valid() && falling.byte_s == 0.0, "{falling:?}");
        let steep = Linear::through(&[(4096.0, 1e-6), (65536.0, 100e-6)]);
        assert!(steep.is_valid() && steep.operation_s == 0.0, "{steep:?}");
        let same = Linear::through(&[(4096.0, 1e-6), (4096.0, 2e-6)]);
        assert!(same.is_valid() && same.byte_s > 0.0, "{same:?}");
        assert_eq!(
            Linear::through(&[(4096.0, 0.0), (0.0, 1.0)]),
            Linear::default()
        );
    }

    proptest! {
        #[test]
        fn points_on_a_line_yield_that_line(
            byte in 1e-11_f64..1e-7,
            operation in 1e-7_f64..1e-3,
            sizes in prop::collection::btree_set(1_u32..1_000_000, 2..6),
        ) {
            // As far apart as in a calibration.
            prop_assume!(sizes.last().unwrap() / sizes.first().unwrap() >= 8);
            let line = Linear { byte_s: byte, operation_s: operation };
            let points = sizes.iter().map(|size| {
                let bytes = f64::from(*size);
                (bytes, line.of(Flow { bytes, operations: 1.0 }))
            });
            let points: Vec<_> = points.collect();
            let found = Linear::through(&points);
            for (bytes, seconds) in points {
                let said = found.of(Flow { bytes, operations: 1.0 });
                prop_assert!((said / seconds - 1.0).abs() < 1e-3, "{said} {seconds}");
            }
        }
    }
}
