//! [`Pieces`]: files whose blocks are striped in pieces, and to few sets.
//!
//! A *piece* is the unit of striping: `granularity` rows. A file begins at a random position of a
//! piece:
//!
//! ```text
//!   k = 4, rows of 4 blocks, at the positions 0 1 2 3 of their set
//!   │· · · f│f f f f│f f f f│f f · ·│    a file of 11 blocks: one at the end of a row,
//!     first     two whole      last       two whole rows, two at the start of a row
//! ```
//!
//! Each piece is on a random one of the D striped sets. If it has x blocks of a file, these are
//! readable on a set with c compromised members with probability ρ_min(x, k)(c); all are if c ≥ k.
//! So if R of the D sets have at least k compromised members, the whole file is readable with
//! probability
//!
//! ```text
//!   E[ Σ_s ρ_first(s)/D · (R/D)^whole · Σ_t ρ_last(t)/D ]
//! ```
//!
//! where for s = t the positions of both ends count together: they differ, as far as there are
//! enough positions. [`Sums`] computes the expectation.

mod sums;

use self::sums::{Sums, sampled};
use super::alignments::alignments;
use super::distributions::{convolved, hypergeometric};
use super::placement::{Placement, Redundancy, Sets};
use super::shares::power;

/// The striping of files in pieces, and the probability that files striped in this way are
/// readable.
#[derive(Debug, Clone, PartialEq)]
pub struct Pieces {
    redundancy: Redundancy,
    /// Number of blocks in a piece.
    blocks: u64,
    striped: StripeTargets,
}

/// The sets to which pieces are striped.
#[derive(Debug, Clone, PartialEq)]
enum StripeTargets {
    /// Each piece goes to a set of its own: the probabilities that 0, 1 … k blocks of a row are
    /// readable.
    Independent(Vec<f64>),
    /// Pieces go to a few common sets.
    Common(Sums),
}

impl Pieces {
    /// The pieces of a valid placement with `compromised` units.
    pub(super) fn of(placement: &Placement, compromised: u32) -> Self {
        let redundancy = placement.redundancy;
        let row_blocks = redundancy.row_blocks();
        let striped = match (placement.sets_striped_over(), placement.striping.width) {
            (Sets::Any, None) => StripeTargets::Independent(
                (0..=row_blocks)
                    .map(|blocks| mean_readable(placement, compromised, blocks))
                    .collect(),
            ),
            (Sets::Any, Some(width)) => {
                StripeTargets::Common(Sums::of_any(placement, compromised, width))
            }
            (Sets::Planned { sets_per_unit }, width) => {
                let sets = placement.units / redundancy.members() * sets_per_unit;
                let chosen = width.map_or(sets, |width| width.min(sets));
                StripeTargets::Common(match row_blocks {
                    1 => of_copies(placement, compromised, sets_per_unit, chosen),
                    _ => Sums::of_plan(placement, compromised, sets_per_unit, chosen),
                })
            }
        };
        Self {
            redundancy,
            blocks: u64::from(row_blocks) * u64::from(placement.striping.granularity),
            striped,
        }
    }

    /// Whether a piece is readable either as a whole or not at all.
    pub(super) fn are_read_as_one(&self) -> bool {
        self.redundancy.row_blocks() == 1
    }

    /// Probability that a file of `blocks` blocks is readable as a whole.
    pub(super) fn leaks(&self, blocks: u64) -> f64 {
        self.mean_of(blocks, |first, whole, last| {
            self.readable(first, whole, last)
        })
    }

    /// Probability that a part of it is readable, if pieces are readable as a whole or not at all.
    pub(super) fn leaks_some(&self, blocks: u64) -> f64 {
        1.0 - self.mean_of(blocks, |first, whole, last| {
            let pieces = whole + u64::from(first > 0) + u64::from(last > 0);
            match &self.striped {
                StripeTargets::Independent(readable) => power(1.0 - readable[1], pieces),
                StripeTargets::Common(sums) => sums.mean(|share| power(1.0 - share, pieces)),
            }
        })
    }

    /// The mean over all alignments of a file of `of(first, whole, last)`: the blocks in its first
    /// and its last piece, at most a row each, and the number of whole pieces between.
    fn mean_of(&self, blocks: u64, of: impl Fn(u64, u64, u64) -> f64) -> f64 {
        if blocks == 0 {
            return of(0, 0, 0);
        }
        let row = u64::from(self.redundancy.row_blocks());
        let part = |end: u64| if end == row { 0 } else { end };
        let each = alignments(blocks, self.blocks, row).map(|one| {
            let ends = [one.first, one.last];
            let whole = one.whole + ends.iter().filter(|end| **end == row).count() as u64;
            one.count as f64 * of(part(one.first), whole, part(one.last))
        });
        each.sum::<f64>() / self.blocks as f64
    }

    fn readable(&self, first: u64, whole: u64, last: u64) -> f64 {
        match &self.striped {
            StripeTargets::Independent(readable) => {
                let row = &readable[readable.len() - 1];
                readable[first as usize] * power(*row, whole) * readable[last as usize]
            }
            StripeTargets::Common(sums) => sums.with_ends(first, last, |share| power(share, whole)),
        }
    }
}

/// Probability that `blocks` blocks of a row are readable, on a random set.
fn mean_readable(placement: &Placement, compromised: u32, blocks: u32) -> f64 {
    let redundancy = placement.redundancy;
    let of_set = hypergeometric(placement.units, compromised, redundancy.members());
    let counts = (0..).zip(of_set);
    counts
        .map(|(count, p)| p * redundancy.readable(count, blocks))
        .sum()
}

/// The number of readable sets among `chosen` of the sets of a plan with copies, which are drawn
/// without replacement.
fn of_copies(placement: &Placement, compromised: u32, sets_per_unit: u32, chosen: u32) -> Sums {
    let members = placement.redundancy.members();
    let all = match members {
        // Each unit is a set.
        1 => hypergeometric(placement.units, compromised, placement.units),
        _ => convolved(&placement.one_permutation(compromised), sets_per_unit),
    };
    let all: Vec<f64> = all.into_iter().step_by(members as usize).collect();
    let sets = all.len() as u32 - 1;
    Sums::of_copies(sampled(all, sets, chosen))
}

#[cfg(test)]
mod tests;
