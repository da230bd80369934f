//! [`Curve`]: F, by the size of the data relative to memory (equation 4).

use serde::{Deserialize, Serialize};

/// The effect of memory on data of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Size of the data relative to memory.
    pub data_ratio: f64,
    /// F: the speed relative to the target alone.
    pub speedup: f64,
    /// Part of the bytes that are requested from the target, from 0 to 1.
    pub missed: f64,
}

/// Points in ascending order of data, with linear interpolation between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<CurvePoint>", into = "Vec<CurvePoint>")]
pub struct Curve(Vec<CurvePoint>);

/// Why points are not a curve.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// There are no points.
    #[error("a curve has at least one point")]
    Empty,
    /// A value is not a number, or out of range.
    #[error(
        "for data of {0} times the memory, the speedup is not above 0 or the missed part is not from 0 to 1"
    )]
    Range(f64),
    /// Two points have the same data size.
    #[error("there are two points for data of {0} times the memory")]
    Twice(f64),
}

impl Curve {
    /// A curve of points in any order.
    ///
    /// # Errors
    /// [`CurveError`].
    pub fn new(mut points: Vec<CurvePoint>) -> Result<Self, CurveError> {
        for point in &points {
            let is_one = point.data_ratio.is_finite()
                && point.data_ratio >= 0.0
                && point.speedup.is_finite()
                && point.speedup > 0.0
                && (0.0..=1.0).contains(&point.missed);
            if !is_one {
                return Err(CurveError::Range(point.data_ratio));
            }
        }
        points.sort_by(|one, other| one.data_ratio.total_cmp(&other.data_ratio));
        let twice = points
            .windows(2)
            .find(|two| two[0].data_ratio == two[1].data_ratio);
        match (points.is_empty(), twice) {
            (true, _) => Err(CurveError::Empty),
            (_, Some(two)) => Err(CurveError::Twice(two[0].data_ratio)),
            _ => Ok(Self(points)),
        }
    }

    /// Memory has no effect: F is 1, and everything is requested from the target.
    #[must_use]
    pub fn flat() -> Self {
        Self(vec![CurvePoint {
            data_ratio: 1.0,
            speedup: 1.0,
            missed: 1.0,
        }])
    }

    /// The points, in ascending order of data.
    #[must_use]
    pub fn points(&self) -> &[CurvePoint] {
        &self.0
    }

    /// F and the missed part for data of this size relative to memory. Outside of the points, the
    /// nearest point applies.
    #[must_use]
    pub fn at(&self, data_ratio: f64) -> CurvePoint {
        let next = self
            .0
            .partition_point(|point| point.data_ratio < data_ratio);
        let (one, other) = (
            self.0[next.saturating_sub(1)],
            self.0[next.min(self.0.len() - 1)],
        );
        let span = other.data_ratio - one.data_ratio;
        let part = match span > 0.0 {
            true => (data_ratio - one.data_ratio) / span,
            false => 0.0,
        };
        let between = |from: f64, to: f64| from + part * (to - from);
        CurvePoint {
            data_ratio,
            // Interpolated as times, which add up; a mean of speeds would be wrong.
            speedup: 1.0 / between(1.0 / one.speedup, 1.0 / other.speedup),
            missed: between(one.missed, other.missed),
        }
    }
}

impl TryFrom<Vec<CurvePoint>> for Curve {
    type Error = CurveError;

    fn try_from(points: Vec<CurvePoint>) -> Result<Self, CurveError> {
        Self::new(points)
    }
}

impl From<Curve> for Vec<CurvePoint> {
    fn from(curve: Curve) -> Self {
        curve.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(data_ratio: f64, speedup: f64, missed: f64) -> CurvePoint {
        CurvePoint {
            data_ratio,
            speedup,
            missed,
        }
    }

    #[test]
    fn times_are_linear_between_points_and_constant_beyond_them() {
        let curve = Curve::new(vec![point(1.0, 1.0, 1.0), point(0.5, 4.0, 0.0)]).expect("a curve");
        assert_eq!(curve.at(0.1), point(0.1, 4.0, 0.0));
        assert_eq!(curve.at(0.5), point(0.5, 4.0, 0.0));
        // A quarter of the time, and the whole time: in the middle, five eighths.
        assert_eq!(curve.at(0.75), point(0.75, 1.6, 0.5));
        assert_eq!(curve.at(9.0), point(9.0, 1.0, 1.0));
        assert_eq!(Curve::flat().at(0.0).speedup, 1.0);
    }

    #[test]
    fn invalid_points_are_refused() {
        assert_eq!(Curve::new(Vec::new()), Err(CurveError::Empty));
        for bad in [
            point(0.5, 0.0, 0.5),
            point(0.5, 1.0, 1.5),
            point(f64::NAN, 1.0, 1.0),
        ] {
            assert!(matches!(Curve::new(vec![bad]), Err(CurveError::Range(_))));
        }
        let twice = vec![point(0.5, 1.0, 1.0), point(0.5, 2.0, 1.0)];
        assert_eq!(Curve::new(twice), Err(CurveError::Twice(0.5)));
    }
}
