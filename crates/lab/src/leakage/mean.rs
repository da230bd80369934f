//! [`Mean`]: the mean of numbers that are added one by one, with its confidence interval.

/// The mean of a sequence of numbers, and its confidence.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mean {
    count: u64,
    mean: f64,
    /// The sum of squared distances from the mean.
    pub(super) squares: f64,
}

impl Mean {
    /// Adds a number.
    pub fn add(&mut self, number: f64) {
        self.join(Self {
            count: 1,
            mean: number,
            squares: 0.0,
        });
    }

    /// Adds the numbers of another mean.
    pub fn join(&mut self, other: Self) {
        if other.count == 0 {
            return;
        }
        let (count, more) = (self.count as f64, other.count as f64);
        let distance = other.mean - self.mean;
        self.count += other.count;
        self.mean += distance * more / (count + more);
        self.squares += other.squares + distance.powi(2) * count * more / (count + more);
    }

    /// The mean; 0 without numbers.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Half the width of the 95 % confidence interval; infinite for fewer than two numbers.
    #[must_use]
    pub fn within(&self) -> f64 {
        self.within_deviations(1.959_964)
    }

    /// The same for `deviations` standard deviations of the mean.
    #[must_use]
    pub fn within_deviations(&self, deviations: f64) -> f64 {
        match self.count {
            0 | 1 => f64::INFINITY,
            count => {
                let variance = self.squares / (count - 1) as f64;
                deviations * (variance / count as f64).sqrt()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_does_not_depend_on_how_it_is_joined() {
        let numbers: Vec<f64> = (0..100).map(|number| f64::from(number * number)).collect();
        let mut all = Mean::default();
        numbers.iter().for_each(|number| all.add(*number));
        let mut parts = Mean::default();
        for part in numbers.chunks(7) {
            let mut mean = Mean::default();
            part.iter().for_each(|number| mean.add(*number));
            parts.join(mean);
        }
        assert!((all.mean() - parts.mean()).abs() < 1e-9);
        assert!((all.within() - parts.within()).abs() < 1e-9);
        assert_eq!(Mean::default().within(), f64::INFINITY);
    }
}
