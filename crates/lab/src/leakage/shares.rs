//! [`Shares`]: the readable share of all blocks, as a distribution.

use super::pieces::Pieces;

/// A distribution of shares, each from 0 to 1. Their probabilities add up to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    shares: Vec<(f64, f64)>,
    /// How files are cut into pieces, if consecutive blocks are not placed independently.
    pieces: Option<Pieces>,
}

impl Shares {
    /// A certain share.
    #[must_use]
    pub fn certain(share: f64) -> Self {
        Self {
            shares: vec![(share, 1.0)],
            pieces: None,
        }
    }

    /// Shares with their probabilities; impossible ones are left out.
    pub(super) fn new(shares: impl Iterator<Item = (f64, f64)>) -> Self {
        Self {
            shares: shares.filter(|(_, p)| *p > 0.0).collect(),
            pieces: None,
        }
    }

    /// The same shares for blocks in these pieces.
    pub(super) fn in_pieces(self, pieces: Pieces) -> Self {
        Self {
            pieces: Some(pieces),
            ..self
        }
    }

    /// The probability that `blocks` consecutive blocks are all readable. For one block this is the
    /// expected share.
    #[must_use]
    pub fn leaks(&self, blocks: u64) -> f64 {
        match &self.pieces {
            Some(pieces) => pieces.leaks(blocks),
            None => self.mean_of(|share| power(share, blocks)),
        }
    }

    /// The probability that some of `blocks` blocks are readable. With an erasure code, blocks
    /// count as independent.
    #[must_use]
    pub fn leaks_some(&self, blocks: u64) -> f64 {
        match &self.pieces {
            Some(pieces) if pieces.are_read_as_one() => pieces.leaks_some(blocks),
            _ => 1.0 - self.mean_of(|share| power(1.0 - share, blocks)),
        }
    }

    fn mean_of(&self, of: impl Fn(f64) -> f64) -> f64 {
        self.shares.iter().map(|(share, p)| p * of(*share)).sum()
    }
}

/// A share to the power of a number that may exceed 32 bits.
pub(super) fn power(share: f64, exponent: u64) -> f64 {
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
