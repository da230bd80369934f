//! [`Linear`]: so much for each byte, and so much for each operation.

use serde::{Deserialize, Serialize};

/// One of each direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Both<T> {
    /// Of reads.
    pub read: T,
    /// Of writes.
    pub write: T,
}

/// What goes one way. Of `f64`, since parts of it are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Bytes.
    pub bytes: f64,
    /// Requests.
    pub operations: f64,
}

impl Flow {
    /// So many bytes in requests of so many each; the last one may be shorter. None of no bytes.
    ///
    /// # Panics
    /// If requests have no bytes.
    #[must_use]
    pub fn of(bytes: u64, request_bytes: u64) -> Self {
        Self {
            bytes: bytes as f64,
            operations: bytes.div_ceil(request_bytes) as f64,
        }
    }

    /// A part of it, of 1.
    #[must_use]
    pub fn part(self, ratio: f64) -> Self {
        Self {
            bytes: self.bytes * ratio,
            operations: self.operations * ratio,
        }
    }

    /// As requests of no more bytes than this each.
    #[must_use]
    pub fn cut(self, request_bytes_max: f64) -> Self {
        Self {
            bytes: self.bytes,
            operations: self.operations.max(self.bytes / request_bytes_max),
        }
    }

    /// As few requests as there can be of so many bytes: of few bytes, one.
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

/// Seconds: of a CPU, or of a clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Linear {
    /// For each byte.
    pub byte_s: f64,
    /// For each operation besides.
    pub operation_s: f64,
}

impl Linear {
    /// What a flow takes, in seconds.
    #[must_use]
    pub fn of(&self, flow: Flow) -> f64 {
        self.byte_s * flow.bytes + self.operation_s * flow.operations
    }

    /// The line through what operations of several sizes took: pairs of bytes and seconds. Each
    /// counts by how far off it is in proportion to itself, so that small ones are not drowned by
    /// large ones. Neither term is below 0: nothing costs less than nothing, and where noise says
    /// so the other term alone is fitted. Without pairs that are above 0 it is 0.
    #[must_use]
    pub fn through(points: &[(f64, f64)]) -> Self {
        let usable = |&&(bytes, seconds): &&(f64, f64)| bytes > 0.0 && seconds > 0.0;
        // Relative errors are least for the line 1 = a·(1/s) + b·(bytes/s).
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
        // Sizes that do not differ tell no two terms.
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

    /// Neither term is below 0 or no number.
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
        // There is no part of a request, but of a part of a flow.
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
        fn what_lies_on_a_line_is_found(
            byte in 1e-11_f64..1e-7,
            operation in 1e-7_f64..1e-3,
            sizes in prop::collection::btree_set(1_u32..1_000_000, 2..6),
        ) {
            // As far apart as a calibration has them.
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
