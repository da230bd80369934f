//! [`Shares`]: which share of all blocks is readable, and how likely each share is.

/// A distribution of shares, each from 0 to 1; their probabilities make up 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares(Vec<(f64, f64)>);

impl Shares {
    /// One share, for certain.
    #[must_use]
    pub fn certain(share: f64) -> Self {
        Self(vec![(share, 1.0)])
    }

    /// Shares with their probabilities; those that cannot be are left out.
    pub(super) fn new(shares: impl Iterator<Item = (f64, f64)>) -> Self {
        Self(shares.filter(|(_, p)| *p > 0.0).collect())
    }

    /// How likely it is that so many blocks are all readable: each is, by itself, with a
    /// probability that is the share. The expected share itself for one block.
    #[must_use]
    pub fn leaks(&self, blocks: u64) -> f64 {
        self.mean_of(|share| power(share, blocks))
    }

    /// How likely it is that some of so many blocks are.
    #[must_use]
    pub fn leaks_some(&self, blocks: u64) -> f64 {
        1.0 - self.mean_of(|share| power(1.0 - share, blocks))
    }

    fn mean_of(&self, of: impl Fn(f64) -> f64) -> f64 {
        self.0.iter().map(|(share, p)| p * of(*share)).sum()
    }
}

/// A share to a power that may be large.
fn power(share: f64, exponent: u64) -> f64 {
    match i32::try_from(exponent) {
        Ok(exponent) => share.powi(exponent),
        Err(_) if share >= 1.0 => 1.0,
        Err(_) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_files_need_all_blocks_and_parts_one() {
        let shares = Shares::new([(0.0, 0.5), (0.5, 0.5), (1.0, 0.0)].into_iter());
        assert_eq!(shares.leaks(1), 0.25);
        assert_eq!(shares.leaks(2), 0.125);
        assert_eq!(shares.leaks_some(2), 0.375);
        assert_eq!((shares.leaks(0), shares.leaks_some(0)), (1.0, 0.0));
        assert_eq!(Shares::certain(1.0).leaks(u64::MAX), 1.0);
        assert_eq!(Shares::certain(0.9).leaks(u64::MAX), 0.0);
    }
}
