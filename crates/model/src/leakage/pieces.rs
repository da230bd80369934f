//! [`Pieces`]: files whose blocks are dealt to sets in pieces, and to few sets.
//!
//! A *piece* is what is dealt as one: `granularity` rows. A file begins at any place of a piece,
//! each as likely:
//!
//! ```text
//!   k = 4, rows of 4 blocks, each with places 0 1 2 3 of its set
//!   │· · · f│f f f f│f f f f│f f · ·│    a file of 11 blocks: one at the end of a row,
//!     first     two whole      last       two whole rows, two at the beginning of one
//! ```
//!
//! Each piece lies on one of the sets that are dealt to, any of which is as likely. With x blocks
//! of a file in it, it is readable on a set with c captured members with ρ_min(x, k)(c); a whole
//! one if c ≥ k. So with R of D sets that have k captured members the file is with
//!
//! ```text
//!   E[ Σ_s ρ_first(s)/D · (R/D)^whole · Σ_t ρ_last(t)/D ]
//! ```
//!
//! where for s = t the places of both count together: they are different ones, as far as there
//! are enough. That is summed up exactly, set by set: with each number of sets that were looked at, of
//! these chosen and of these whole, three sums are kept ([`Sums`]) which have in them what the
//! first and the last piece would find on one of the chosen.

use super::placement::{Placement, Sets, Spread, convolved, hypergeometric};
use super::shares::power;

/// See the module's head.
#[derive(Debug, Clone, PartialEq)]
pub struct Pieces {
    spread: Spread,
    /// How many blocks one has.
    blocks: u64,
    dealt: Dealt,
}

/// To what pieces are dealt.
#[derive(Debug, Clone, PartialEq)]
enum Dealt {
    /// Each to a set of its own: how likely it is that 0, 1 … k blocks of a row are readable.
    Any(Vec<f64>),
    /// To some sets: by how many of them are whole, from none to all.
    Some(Vec<Sums>),
}

/// How likely a number of whole sets is: by itself, multiplied with what a file's first or last
/// piece of so many blocks finds on the sets, and with what both find, each summed over the sets.
#[derive(Debug, Clone, PartialEq)]
struct Sums {
    none: f64,
    /// By blocks less one.
    one: Vec<f64>,
    /// By blocks of the first and of the last, each less one.
    both: Vec<Vec<f64>>,
}

impl Sums {
    /// Of rows of so many blocks.
    fn zero(row_blocks: usize) -> Self {
        let marks = row_blocks - 1;
        Self {
            none: 0.0,
            one: vec![0.0; marks],
            both: vec![vec![0.0; marks]; marks],
        }
    }

    fn is_zero(&self) -> bool {
        self.none == 0.0
    }

    /// Those of more cases.
    fn add(&mut self, other: &Self, p: f64) {
        self.none += p * other.none;
        for (sum, more) in self.one.iter_mut().zip(&other.one) {
            *sum += p * more;
        }
        let both = self.both.iter_mut().flatten();
        for (sum, more) in both.zip(other.both.iter().flatten()) {
            *sum += p * more;
        }
    }

    /// With one more set, on which 1, 2 … k blocks are readable so.
    fn with_set(&self, readable: &[f64]) -> Self {
        let row_blocks = readable.len();
        let mut next = self.clone();
        for first in 0..row_blocks - 1 {
            next.one[first] += readable[first] * self.none;
            for last in 0..row_blocks - 1 {
                let together = (first + last + 2).min(row_blocks) - 1;
                next.both[first][last] += readable[last] * self.one[first]
                    + readable[first] * self.one[last]
                    + readable[together] * self.none;
            }
        }
        next
    }

    /// With sets that have nothing to do with these.
    fn with_others(&self, others: &Self) -> Self {
        let mut next = Self::zero(self.one.len() + 1);
        next.none = self.none * others.none;
        for first in 0..self.one.len() {
            next.one[first] = self.one[first] * others.none + self.none * others.one[first];
            for last in 0..self.one.len() {
                next.both[first][last] = self.both[first][last] * others.none
                    + self.one[first] * others.one[last]
                    + self.one[last] * others.one[first]
                    + self.none * others.both[first][last];
            }
        }
        next
    }
}

/// By how many sets were chosen, and how many of those are whole.
type Table = Vec<Vec<Sums>>;

fn empty(chosen_max: usize, row_blocks: usize) -> Table {
    let zero = Sums::zero(row_blocks);
    (0..=chosen_max)
        .map(|chosen| vec![zero.clone(); chosen + 1])
        .collect()
}

impl Pieces {
    /// Of a placement that is one, with so many captured units.
    pub(super) fn of(placement: &Placement, captured: u32) -> Self {
        let spread = placement.spread;
        let row_blocks = spread.row_blocks();
        let dealt = match (placement.sets_dealt_to(), placement.deal.width) {
            (Sets::Any, None) => Dealt::Any(
                (0..=row_blocks)
                    .map(|blocks| mean_readable(placement, captured, blocks))
                    .collect(),
            ),
            (Sets::Any, Some(width)) => Dealt::Some(of_any(placement, captured, width)),
            (Sets::Planned { sets_per_unit }, width) => {
                let sets = placement.units / spread.members() * sets_per_unit;
                let chosen = width.map_or(sets, |width| width.min(sets));
                Dealt::Some(match row_blocks {
                    1 => of_copies(placement, captured, sets_per_unit, chosen),
                    _ => of_rows(placement, captured, (sets_per_unit, sets), chosen),
                })
            }
        };
        Self {
            spread,
            blocks: u64::from(row_blocks) * u64::from(placement.deal.granularity),
            dealt,
        }
    }

    /// Whether all of a piece is readable, if anything of it is.
    pub(super) fn are_read_as_one(&self) -> bool {
        self.spread.row_blocks() == 1
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
            match &self.dealt {
                Dealt::Any(readable) => power(1.0 - readable[1], pieces),
                Dealt::Some(sums) => mean(sums, |share| power(1.0 - share, pieces)),
            }
        })
    }

    /// The mean over where a file begins: of so many blocks in its first piece and in its last
    /// one, no more than a row has, and so many whole pieces.
    fn mean_of(&self, blocks: u64, of: impl Fn(u64, u64, u64) -> f64) -> f64 {
        if blocks == 0 {
            return of(0, 0, 0);
        }
        let row = u64::from(self.spread.row_blocks());
        let in_row = |blocks: u64| blocks.min(row);
        let mut sum = 0.0;
        for begin in 0..self.blocks {
            let first = (self.blocks - begin).min(blocks);
            let (whole, last) = (
                (blocks - first) / self.blocks,
                (blocks - first) % self.blocks,
            );
            let ends = [in_row(first), in_row(last)];
            let is_whole = |end: &u64| *end == row;
            let whole = whole + ends.iter().filter(|end| is_whole(end)).count() as u64;
            let part = |end: u64| if end == row { 0 } else { end };
            sum += of(part(ends[0]), whole, part(ends[1]));
        }
        sum / self.blocks as f64
    }

    fn readable(&self, first: u64, whole: u64, last: u64) -> f64 {
        match &self.dealt {
            Dealt::Any(readable) => {
                let row = &readable[readable.len() - 1];
                readable[first as usize] * power(*row, whole) * readable[last as usize]
            }
            Dealt::Some(sums) => {
                let sets = (sums.len() - 1) as f64;
                let weight = |sums: &Sums| match (first as usize, last as usize) {
                    (0, 0) => sums.none,
                    (blocks, 0) | (0, blocks) => sums.one[blocks - 1] / sets,
                    (first, last) => sums.both[first - 1][last - 1] / (sets * sets),
                };
                let each = sums.iter().enumerate();
                each.map(|(count, sums)| weight(sums) * power(count as f64 / sets, whole))
                    .sum()
            }
        }
    }
}

/// The mean over how many of the sets are whole.
fn mean(sums: &[Sums], of: impl Fn(f64) -> f64) -> f64 {
    let sets = (sums.len() - 1) as f64;
    let each = sums.iter().enumerate();
    each.map(|(count, sums)| sums.none * of(count as f64 / sets))
        .sum()
}

/// How likely it is that so many blocks of a row are readable, on any set.
fn mean_readable(placement: &Placement, captured: u32, blocks: u32) -> f64 {
    let spread = placement.spread;
    let of_set = hypergeometric(placement.units, captured, spread.members());
    let counts = (0..).zip(of_set);
    counts
        .map(|(count, p)| p * spread.readable(count, blocks))
        .sum()
}

/// On which 1, 2 … k blocks are readable.
fn on_set(spread: Spread, captured: u32) -> Vec<f64> {
    (1..=spread.row_blocks())
        .map(|blocks| spread.readable(captured, blocks))
        .collect()
}

/// Of so many sets of any units, each drawn by itself.
fn of_any(placement: &Placement, captured: u32, width: u32) -> Vec<Sums> {
    let spread = placement.spread;
    let row_blocks = spread.row_blocks();
    let of_set = hypergeometric(placement.units, captured, spread.members());
    let mut now = vec![Sums::zero(row_blocks as usize)];
    now[0].none = 1.0;
    for _ in 0..width {
        let mut next = vec![Sums::zero(row_blocks as usize); now.len() + 1];
        for (count, p) in (0..).zip(&of_set).filter(|(_, p)| **p > 0.0) {
            let readable = on_set(spread, count);
            let whole = usize::from(count >= row_blocks);
            for (before, sums) in now.iter().enumerate() {
                next[before + whole].add(&sums.with_set(&readable), *p);
            }
        }
        now = next;
    }
    now
}

/// Of `chosen` of the sets of a plan with copies: of all sets so many are readable, and of the
/// chosen ones as many as a draw without replacement has.
fn of_copies(placement: &Placement, captured: u32, sets_per_unit: u32, chosen: u32) -> Vec<Sums> {
    let members = placement.spread.members() as usize;
    let all = match members {
        // Each unit is a set.
        1 => hypergeometric(placement.units, captured, placement.units),
        _ => convolved(&placement.one_permutation(captured), sets_per_unit),
    };
    let sets = (all.len() - 1) / members;
    let mut sums = vec![Sums::zero(1); chosen as usize + 1];
    for (count, p) in all.into_iter().step_by(members).enumerate() {
        let drawn = hypergeometric(sets as u32, count as u32, chosen);
        for (sum, q) in sums.iter_mut().zip(drawn) {
            sum.none += p * q;
        }
    }
    sums
}

/// Of `chosen` of the sets of a plan with rows.
fn of_rows(
    placement: &Placement,
    captured: u32,
    (sets_per_unit, sets): (u32, u32),
    chosen: u32,
) -> Vec<Sums> {
    let row_blocks = placement.spread.row_blocks() as usize;
    let one = one_permutation(placement, captured, sets == chosen, chosen as usize);
    let mut all = empty(0, row_blocks);
    all[0][0].none = 1.0;
    for _ in 0..sets_per_unit {
        let most = (all.len() + one.len() - 2).min(chosen as usize);
        let mut next = empty(most, row_blocks);
        for (before, of_before) in all.iter().enumerate() {
            for (more, of_more) in one.iter().enumerate().take(most + 1 - before.min(most + 1)) {
                for (whole, sums) in of_before.iter().enumerate().filter(|(_, it)| !it.is_zero()) {
                    for (others, more_sums) in of_more.iter().enumerate() {
                        if !more_sums.is_zero() {
                            let into = &mut next[before + more][whole + others];
                            into.add(&sums.with_others(more_sums), 1.0);
                        }
                    }
                }
            }
        }
        all = next;
    }
    let mut sums = all.swap_remove(chosen as usize);
    // Each choice of sets is as likely as any other.
    let ways: f64 = sums.iter().map(|sums| sums.none).sum();
    for sum in &mut sums {
        let mut part = Sums::zero(row_blocks);
        part.add(sum, 1.0 / ways);
        *sum = part;
    }
    sums
}

/// The sets of one permutation of the units, each of which is chosen or not; or all are.
///
/// Set by set, as [`Placement::one_permutation`] goes through them.
fn one_permutation(
    placement: &Placement,
    captured: u32,
    are_all_chosen: bool,
    chosen_max: usize,
) -> Table {
    let (spread, members) = (placement.spread, placement.spread.members());
    let row_blocks = spread.row_blocks();
    let sets = placement.units / members;
    let most = chosen_max.min(sets as usize);
    // By how many captured units are left.
    let none = || vec![empty(most, row_blocks as usize); captured as usize + 1];
    let mut now = none();
    now[captured as usize][0][0].none = 1.0;
    for set in 0..sets {
        let units_left = placement.units - set * members;
        let mut next = none();
        for (left, table) in (0..).zip(&now).filter(|(left, _)| *left <= units_left) {
            if table.iter().flatten().all(Sums::is_zero) {
                continue;
            }
            let of_set = hypergeometric(units_left, left, members);
            for (count, p) in (0..).zip(of_set).filter(|(_, p)| *p > 0.0) {
                let (readable, is_whole) = (on_set(spread, count), count >= row_blocks);
                let into = &mut next[(left - count) as usize];
                for (chosen, by_whole) in table.iter().enumerate() {
                    for (whole, sums) in by_whole.iter().enumerate().filter(|(_, it)| !it.is_zero())
                    {
                        if !are_all_chosen {
                            into[chosen][whole].add(sums, p);
                        }
                        if chosen < most {
                            let whole = whole + usize::from(is_whole);
                            into[chosen + 1][whole].add(&sums.with_set(&readable), p);
                        }
                    }
                }
            }
        }
        now = next;
    }
    let mut all = empty(most, row_blocks as usize);
    for table in &now {
        for (into, from) in all.iter_mut().flatten().zip(table.iter().flatten()) {
            into.add(from, 1.0);
        }
    }
    all
}

#[cfg(test)]
mod tests;
