//! [`Pieces`]: files whose blocks are striped to sets in pieces, and to few sets.
//!
//! A *piece* is what is striped as one: `granularity` rows. A file begins at any place of a piece,
//! each as likely:
//!
//! ```text
//!   k = 4, rows of 4 blocks, each with places 0 1 2 3 of its set
//!   │· · · f│f f f f│f f f f│f f · ·│    a file of 11 blocks: one at the end of a row,
//!     first     two whole      last       two whole rows, two at the beginning of one
//! ```
//!
//! Each piece lies on one of the sets that are striped to, any of which is as likely. With x blocks
//! of a file in it, it is readable on a set with c compromised members with ρ_min(x, k)(c); a whole
//! one if c ≥ k. So with R of D sets that have k compromised members the file is with
//!
//! ```text
//!   E[ Σ_s ρ_first(s)/D · (R/D)^whole · Σ_t ρ_last(t)/D ]
//! ```
//!
//! where for s = t the places of both count together: they are different ones, as far as there
//! are enough. [`Sums`] has the expectation.

mod sums;

use self::sums::{Sums, thinned};
use super::beginnings::beginnings;
use super::placement::{Placement, Redundancy, Sets, convolved, hypergeometric};
use super::shares::power;

/// See the module's head.
#[derive(Debug, Clone, PartialEq)]
pub struct Pieces {
    redundancy: Redundancy,
    /// How many blocks one has.
    blocks: u64,
    striped: Dealt,
}

/// To what pieces are striped.
#[derive(Debug, Clone, PartialEq)]
enum Dealt {
    /// Each to a set of its own: how likely it is that 0, 1 … k blocks of a row are readable.
    Any(Vec<f64>),
    /// To some sets.
    Some(Sums),
}

impl Pieces {
    /// Of a placement that is one, with so many compromised units.
    pub(super) fn of(placement: &Placement, compromised: u32) -> Self {
        let redundancy = placement.redundancy;
        let row_blocks = redundancy.row_blocks();
        let striped = match (placement.sets_striped_over(), placement.striping.width) {
            (Sets::Any, None) => Dealt::Any(
                (0..=row_blocks)
                    .map(|blocks| mean_readable(placement, compromised, blocks))
                    .collect(),
            ),
            (Sets::Any, Some(width)) => Dealt::Some(Sums::of_any(placement, compromised, width)),
            (Sets::Planned { sets_per_unit }, width) => {
                let sets = placement.units / redundancy.members() * sets_per_unit;
                let chosen = width.map_or(sets, |width| width.min(sets));
                Dealt::Some(match row_blocks {
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

    /// Whether all of a piece is readable, if anything of it is.
    pub(super) fn are_read_as_one(&self) -> bool {
        self.redundancy.row_blocks() == 1
    }

    /// How likely it is that a file of so many blocks is readable as a whole.
    pub(super) fn leaks(&self, blocks: u64) -> f64 {
        self.mean_of(blocks, |first, whole, last| {
            self.readable(first, whole, last)
        })
    }

    /// How likely it is that some of it is, where pieces are read as one.
    pub(super) fn leaks_some(&self, blocks: u64) -> f64 {
        1.0 - self.mean_of(blocks, |first, whole, last| {
            let pieces = whole + u64::from(first > 0) + u64::from(last > 0);
            match &self.striped {
                Dealt::Any(readable) => power(1.0 - readable[1], pieces),
                Dealt::Some(sums) => sums.mean(|share| power(1.0 - share, pieces)),
            }
        })
    }

    /// The mean over where a file begins: of so many blocks in its first piece and in its last
    /// one, no more than a row has, and so many whole pieces.
    fn mean_of(&self, blocks: u64, of: impl Fn(u64, u64, u64) -> f64) -> f64 {
        if blocks == 0 {
            return of(0, 0, 0);
        }
        let row = u64::from(self.redundancy.row_blocks());
        let part = |end: u64| if end == row { 0 } else { end };
        let each = beginnings(blocks, self.blocks, row).map(|one| {
            let ends = [one.first, one.last];
            let whole = one.whole + ends.iter().filter(|end| **end == row).count() as u64;
            one.count as f64 * of(part(one.first), whole, part(one.last))
        });
        each.sum::<f64>() / self.blocks as f64
    }

    fn readable(&self, first: u64, whole: u64, last: u64) -> f64 {
        match &self.striped {
            Dealt::Any(readable) => {
                let row = &readable[readable.len() - 1];
                readable[first as usize] * power(*row, whole) * readable[last as usize]
            }
            Dealt::Some(sums) => sums.with_ends(first, last, |share| power(share, whole)),
        }
    }
}

/// How likely it is that so many blocks of a row are readable, on any set.
fn mean_readable(placement: &Placement, compromised: u32, blocks: u32) -> f64 {
    let redundancy = placement.redundancy;
    let of_set = hypergeometric(placement.units, compromised, redundancy.members());
    let counts = (0..).zip(of_set);
    counts
        .map(|(count, p)| p * redundancy.readable(count, blocks))
        .sum()
}

/// Of `chosen` of the sets of a plan with copies: of all sets so many are readable, and of the
/// chosen ones as many as a draw without replacement has.
fn of_copies(placement: &Placement, compromised: u32, sets_per_unit: u32, chosen: u32) -> Sums {
    let members = placement.redundancy.members();
    let all = match members {
        // Each unit is a set.
        1 => hypergeometric(placement.units, compromised, placement.units),
        _ => convolved(&placement.one_permutation(compromised), sets_per_unit),
    };
    let all: Vec<f64> = all.into_iter().step_by(members as usize).collect();
    let sets = all.len() as u32 - 1;
    Sums::of_copies(thinned(all, sets, chosen))
}

#[cfg(test)]
mod tests;
