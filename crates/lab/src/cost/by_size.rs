//! [`BySize`]: the duration of an operation, by its size.

use serde::{Deserialize, Serialize};

use super::{Flow, Linear};

/// Seconds of an operation, by its size in bytes: measured for some sizes, with linear
/// interpolation between them and linear extrapolation beyond the largest. An operation below the
/// smallest size takes as long as that, because encryption works on whole blocks. A value is
/// negative if encryption replaces work that takes longer, as an authenticated cipher replaces a
/// checksum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(f64, f64)>", into = "Vec<(f64, f64)>")]
pub struct BySize(Vec<(f64, f64)>);

/// Why points are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sizes must be different numbers above 0, at least one, and their times must be numbers")]
pub struct BySizeError;

impl BySize {
    /// Pairs of bytes and seconds, in any order.
    ///
    /// # Errors
    /// [`BySizeError`].
    pub fn new(mut points: Vec<(f64, f64)>) -> Result<Self, BySizeError> {
        points.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        let is_number = |(bytes, seconds): &(f64, f64)| {
            bytes.is_finite() && *bytes > 0.0 && seconds.is_finite()
        };
        let is_apart = points.windows(2).all(|two| two[0].0 < two[1].0);
        match !points.is_empty() && points.iter().all(is_number) && is_apart {
            true => Ok(Self(points)),
            false => Err(BySizeError),
        }
    }

    /// All operations take no time.
    #[must_use]
    pub fn nothing() -> Self {
        Self(vec![(1.0, 0.0)])
    }

    /// The points, in ascending order.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.0
    }

    /// Seconds of an operation of `bytes` bytes. If there is only one point, the time is
    /// proportional to the bytes.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        let [(first, seconds)] = self.0[..] else {
            let next = self.0.partition_point(|point| point.0 < bytes);
            let next = next.clamp(1, self.0.len() - 1);
            let (one, other) = (self.0[next - 1], self.0[next]);
            let more = (bytes - one.0).max(0.0);
            return one.1 + more * (other.1 - one.1) / (other.0 - one.0);
        };
        seconds * bytes / first
    }

    /// Seconds of a flow whose operations have the same size.
    #[must_use]
    pub fn of(&self, flow: Flow) -> f64 {
        if flow.operations > 0.0 {
            flow.operations * self.at(flow.bytes / flow.operations)
        } else {
            0.0
        }
    }

    /// The nearest line: E and D as a time per byte and a time per operation.
    #[must_use]
    pub fn line(&self) -> Linear {
        Linear::through(&self.0)
    }

    /// Adds `more_s` seconds for each byte.
    #[must_use]
    pub fn with_bytes(&self, more_s: f64) -> Self {
        let points = self.0.iter();
        Self(
            points
                .map(|(bytes, s)| (*bytes, s + more_s * bytes))
                .collect(),
        )
    }
}

impl TryFrom<Vec<(f64, f64)>> for BySize {
    type Error = BySizeError;

    fn try_from(points: Vec<(f64, f64)>) -> Result<Self, BySizeError> {
        Self::new(points)
    }
}

impl From<BySize> for Vec<(f64, f64)> {
    fn from(by_size: BySize) -> Self {
        by_size.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_linear_between_sizes_and_beyond_the_largest() {
        let by_size = BySize::new(vec![(30.0, 5.0), (10.0, 1.0), (20.0, 2.0)]).expect("sizes");
        for (bytes, seconds) in [
            (10.0, 1.0),
            (15.0, 1.5),
            (25.0, 3.5),
            (40.0, 8.0),
            (5.0, 1.0),
        ] {
            assert_eq!(by_size.at(bytes), seconds, "{bytes}");
        }
        let flow = Flow {
            bytes: 150.0,
            operations: 10.0,
        };
        assert_eq!(by_size.of(flow), 15.0);
        assert_eq!(by_size.of(Flow::default()), 0.0);
        assert_eq!(by_size.with_bytes(0.1).at(20.0), 4.0);
    }

    #[test]
    fn with_one_size_times_are_proportional_to_bytes() {
        let by_size = BySize::new(vec![(10.0, -1.0)]).expect("a size");
        assert_eq!(by_size.at(5.0), -0.5);
        assert_eq!(BySize::nothing().at(1e9), 0.0);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for bad in [
            vec![],
            vec![(0.0, 1.0)],
            vec![(1.0, f64::NAN)],
            vec![(1.0, 1.0), (1.0, 2.0)],
            vec![(f64::INFINITY, 1.0)],
        ] {
            assert_eq!(BySize::new(bad), Err(BySizeError));
        }
    }
}
