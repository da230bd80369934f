//! Confidence intervals of measurements.

use crate::measure::Run;

/// Half the width of the 95 % confidence interval of the mean CPU time in seconds, if the times are
/// normally distributed. `None` for fewer than three.
pub(crate) fn within(added: &[Run]) -> Option<f64> {
    let more = || added.iter().map(|run| run.cpu_s);
    let count = added.len() as f64;
    if count < 3.0 {
        return None;
    }
    let mean = more().sum::<f64>() / count;
    let squares: f64 = more().map(|one| (one - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0) / count).sqrt();
    Some(student(added.len() - 1) * deviation)
}

/// The quantile of Student's distribution that contains 95 % on both sides, by degrees of freedom.
fn student(degrees: usize) -> f64 {
    const OF_FEW: [f64; 9] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262,
    ];
    // An approximation within 0.01, which approaches the 1.96 of the normal distribution.
    let of_many = 1.96 + 2.4 / degrees as f64 + 3.0 / (degrees * degrees) as f64;
    OF_FEW.get(degrees - 1).copied().unwrap_or(of_many)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_rounds_have_wider_intervals() {
        let run = |cpu_s| Run {
            flow: crate::cost::Both::default(),
            returned_s: 1.0,
            run_s: 1.0,
            cpu_s,
            fetched_bytes: 0.0,
        };
        assert_eq!(within(&[0.5, 0.5].map(run)), None);
        assert_eq!(within(&[0.5, 0.5, 0.5].map(run)), Some(0.0));
        // The mean of 1, 2 and 3 has a standard deviation of 1 divided by the root of 3.
        let found = within(&[1.0, 2.0, 3.0].map(run)).expect("three");
        assert!((found - 4.303 / 3_f64.sqrt()).abs() < 1e-9, "{found}");
    }

    #[test]
    fn few_rounds_have_wide_intervals() {
        // From published tables.
        for (degrees, expected) in [
            (1, 12.706),
            (9, 2.262),
            (10, 2.228),
            (30, 2.042),
            (120, 1.980),
        ] {
            assert!((student(degrees) - expected).abs() < 0.01, "{degrees}");
        }
    }
}
