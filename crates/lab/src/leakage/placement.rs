//! [`Placement`]: how blocks are placed on units.

use super::distributions::{convolved, hypergeometric};
use super::pieces::Pieces;
use super::shares::Shares;

/// How the blocks of a segment are placed on the members of a set of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redundancy {
    /// Each member has all blocks; at least 1.
    Copies(u32),
    /// Each block is on one member; any `data` members determine the blocks of all others.
    Erasure {
        /// Number of members with data, at least 2.
        data: u32,
        /// Number of members with parity, at least 1.
        parity: u32,
    },
}

impl Redundancy {
    /// Number of units in a set.
    #[must_use]
    pub fn members(self) -> u32 {
        match self {
            Self::Copies(copies) => copies,
            Self::Erasure { data, parity } => data.saturating_add(parity),
        }
    }

    /// Number of consecutive blocks that make a row, which is on one set.
    #[must_use]
    pub fn row_blocks(self) -> u32 {
        match self {
            Self::Copies(_) => 1,
            Self::Erasure { data, .. } => data,
        }
    }

    /// Probability that `blocks` blocks of one row, at different positions, are all readable if
    /// `compromised` random members of its set are compromised.
    pub(super) fn readable(self, compromised: u32, blocks: u32) -> f64 {
        if compromised >= self.row_blocks() {
            return 1.0;
        }
        let members = f64::from(self.members());
        let each = |before: u32| {
            f64::from(compromised.saturating_sub(before)) / (members - f64::from(before))
        };
        (0..blocks).map(each).product()
    }

    /// Number of arbitrary units that may be lost without losing data.
    #[must_use]
    pub fn survives(self) -> u32 {
        match self {
            Self::Copies(copies) => copies.saturating_sub(1),
            Self::Erasure { parity, .. } => parity,
        }
    }

    /// Bytes stored and written on all units for each byte of data.
    #[must_use]
    pub fn space(self) -> f64 {
        match self {
            Self::Copies(copies) => f64::from(copies),
            Self::Erasure { data, .. } => f64::from(self.members()) / f64::from(data),
        }
    }

    /// Number of units that are read for a block whose own unit is lost; `None` if the block is
    /// lost, too.
    #[must_use]
    pub fn reads_when_lost(self) -> Option<u32> {
        match self {
            Self::Copies(1) => None,
            Self::Copies(_) => Some(1),
            Self::Erasure { data, .. } => Some(data),
        }
    }

    /// Probability that a block is readable on a set with `compromised` compromised members, in
    /// parts of [`Redundancy::members`].
    pub(super) fn readable_parts(self, compromised: u32) -> u32 {
        let is_all = match self {
            Self::Copies(_) => compromised > 0,
            Self::Erasure { data, .. } => compromised >= data,
        };
        match is_all {
            true => self.members(),
            false => match self {
                Self::Copies(_) => 0,
                Self::Erasure { .. } => compromised,
            },
        }
    }
}

/// The sets of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sets {
    /// Random units for each block, as in HVSTO.
    Any,
    /// A plan: each unit is in this number of sets, and in no others.
    Planned {
        /// Number of sets, at least 1.
        sets_per_unit: u32,
    },
}

/// How consecutive blocks are striped to sets, row by row: with copies a row is one block, with k+m
/// it is k blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Striping {
    /// Number of random sets to which one destage writes; `None`: any.
    pub width: Option<u32>,
    /// Number of consecutive rows on one set, at least 1.
    pub granularity: u32,
}

impl Default for Striping {
    fn default() -> Self {
        Self {
            width: None,
            granularity: 1,
        }
    }
}

/// How blocks are placed on units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Number of units: at least the members of a set, at most [`Placement::UNITS_MAX`].
    pub units: u32,
    /// How blocks are placed on a set.
    pub redundancy: Redundancy,
    /// The sets of units.
    pub sets: Sets,
    /// How blocks are striped over the sets.
    pub striping: Striping,
}

/// Why a placement, or a number of compromised units, is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There are no units.
    #[error("there are no units")]
    NoUnits,
    /// The sum over all cases would take too long.
    #[error("{units} units are more than the maximum of {max}")]
    ManyUnits {
        /// The number of units.
        units: u32,
        /// The largest number.
        max: u32,
    },
    /// There are fewer units than a set has members.
    #[error("a set has {members} members and needs as many units, but there are {units}")]
    FewUnits {
        /// The number of units.
        units: u32,
        /// The members of a set.
        members: u32,
    },
    /// The rows are too long.
    #[error("rows of {data} blocks are longer than the maximum of {max}")]
    LongRow {
        /// Blocks in a row.
        data: u32,
        /// The largest number.
        max: u32,
    },
    /// There is no copy, data, parity, set or row.
    #[error(
        "a placement needs at least one copy, two members with data, one with parity, one set, \
         and one row for each stripe"
    )]
    Nothing,
    /// More units are compromised than there are.
    #[error("{compromised} units cannot be compromised, as there are only {units}")]
    ManyCompromised {
        /// The number of compromised units.
        compromised: u32,
        /// The number of units.
        units: u32,
    },
}

impl Placement {
    /// The largest number of units.
    pub const UNITS_MAX: u32 = 1000;

    /// The longest row, in blocks: its positions are the bits of a word.
    pub const ROW_MAX: u32 = u64::BITS;

    /// A placement on `units` units, each of which shares blocks with `scatter_width` others, or
    /// with any. A single copy is on any unit.
    #[must_use]
    pub fn on(units: u32, redundancy: Redundancy, scatter_width: Option<u32>) -> Self {
        let others = redundancy.members().saturating_sub(1);
        let sets = match scatter_width {
            Some(width) if others > 0 => Sets::Planned {
                sets_per_unit: width.div_ceil(others),
            },
            _ => Sets::Any,
        };
        Self {
            units,
            redundancy,
            sets,
            striping: Striping::default(),
        }
    }

    /// The same placement with another striping.
    #[must_use]
    pub fn striped(self, striping: Striping) -> Self {
        Self { striping, ..self }
    }

    /// The readable share of all blocks if `compromised` random units are compromised, as a
    /// distribution.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn shares(&self, compromised: u32) -> Result<Shares, PlacementError> {
        self.check(compromised)?;
        let members = self.redundancy.members();
        let one_set = hypergeometric(self.units, compromised, members);
        let of_blocks = match self.sets {
            // Each block has a set of its own: over many blocks, the mean is certain.
            Sets::Any => {
                let parts = |count| f64::from(self.redundancy.readable_parts(count));
                let mean: f64 = (0..).zip(&one_set).map(|(count, p)| p * parts(count)).sum();
                Shares::certain(mean / f64::from(members))
            }
            Sets::Planned { sets_per_unit } => {
                let one = self.one_permutation(compromised);
                let all = convolved(&one, sets_per_unit);
                let most = (all.len() - 1) as f64;
                let share = |(parts, p)| (f64::from(parts) / most, p);
                Shares::new((0..).zip(all).map(share))
            }
        };
        let is_plain = self.striping == Striping::default() && self.redundancy.row_blocks() == 1;
        Ok(match is_plain {
            true => of_blocks,
            false => of_blocks.in_pieces(Pieces::of(self, compromised)),
        })
    }

    /// The sets for striping: [`Placement::sets`], except that a single copy is striped over units.
    pub(super) fn sets_striped_over(&self) -> Sets {
        match (self.sets, self.redundancy.members(), self.striping.width) {
            (Sets::Any, 1, Some(_)) => Sets::Planned { sets_per_unit: 1 },
            (sets, ..) => sets,
        }
    }

    fn check(&self, compromised: u32) -> Result<(), PlacementError> {
        let (units, members) = (self.units, self.redundancy.members());
        let is_nothing = match self.redundancy {
            Redundancy::Copies(copies) => copies == 0,
            Redundancy::Erasure { data, parity } => data < 2 || parity == 0,
        };
        let no_sets = matches!(self.sets, Sets::Planned { sets_per_unit: 0 })
            || self.striping.width == Some(0)
            || self.striping.granularity == 0;
        if units == 0 {
            Err(PlacementError::NoUnits)
        } else if is_nothing || no_sets {
            Err(PlacementError::Nothing)
        } else if units > Self::UNITS_MAX {
            let max = Self::UNITS_MAX;
            Err(PlacementError::ManyUnits { units, max })
        } else if self.redundancy.row_blocks() > Self::ROW_MAX {
            let (data, max) = (self.redundancy.row_blocks(), Self::ROW_MAX);
            Err(PlacementError::LongRow { data, max })
        } else if members > units {
            Err(PlacementError::FewUnits { units, members })
        } else if compromised > units {
            Err(PlacementError::ManyCompromised { compromised, units })
        } else {
            Ok(())
        }
    }

    /// Probabilities of the sum of the readable parts of all sets into which one permutation of the
    /// units is cut. Units that are left over belong to no set.
    ///
    /// It goes set by set: some of the remaining units are compromised, and the next set draws its
    /// members from them without replacement.
    pub(super) fn one_permutation(&self, compromised: u32) -> Vec<f64> {
        let members = self.redundancy.members();
        let sets = self.units / members;
        let most = (sets * members) as usize;
        // By the number of compromised units that remain, and the sum so far.
        let mut now = vec![vec![0.0; most + 1]; compromised as usize + 1];
        now[compromised as usize][0] = 1.0;
        for set in 0..sets {
            let units_left = self.units - set * members;
            let mut next = vec![vec![0.0; most + 1]; compromised as usize + 1];
            for (left, sums) in (0..).zip(&now) {
                let reachable = &sums[..=(set * members) as usize];
                if left > units_left || reachable.iter().all(|p| *p == 0.0) {
                    continue;
                }
                let of_set = hypergeometric(units_left, left, members);
                for (count, p) in (0..).zip(of_set).filter(|(_, p)| *p > 0.0) {
                    let parts = self.redundancy.readable_parts(count) as usize;
                    let into = &mut next[(left - count) as usize];
                    for (sum, before) in reachable.iter().enumerate() {
                        into[sum + parts] += p * before;
                    }
                }
            }
            now = next;
        }
        let mut all = vec![0.0; most + 1];
        for sums in now {
            for (sum, p) in sums.into_iter().enumerate() {
                all[sum] += p;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::distributions::binomial;
    use super::*;
    use crate::leakage::cases::permutations;

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() <= 1e-12 * one.abs().max(other.abs()).max(1e-3)
    }

    /// All ways to choose `count` of `units`, as bits.
    fn subsets(units: u32, count: u32) -> Vec<u32> {
        (0..1_u32 << units)
            .filter(|set| set.count_ones() == count)
            .collect()
    }

    /// The formula is a product of one fraction for each drawn unit.
    #[test]
    fn draws_are_as_likely_as_the_formula_says() {
        for (units, compromised, members) in
            [(10, 3, 4), (7, 7, 3), (9, 0, 2), (12, 6, 12), (5, 4, 3)]
        {
            let found = hypergeometric(units, compromised, members);
            let ways = |of: u32, count: u32| -> f64 {
                let factors = (0..count)
                    .map(|at| (f64::from(of) - f64::from(at)).max(0.0) / f64::from(at + 1));
                factors.product()
            };
            assert_eq!(found.len() as u32, members + 1);
            for (count, found) in (0..).zip(found) {
                let both = ways(compromised, count) * ways(units - compromised, members - count);
                assert!(close(found, both / ways(units, members)), "{units} {count}");
            }
        }
        let found = binomial(4, 0.25);
        for (count, expected) in [81.0, 108.0, 54.0, 12.0, 1.0].into_iter().enumerate() {
            assert!(close(found[count], expected / 256.0));
        }
        assert_eq!(binomial(2, 0.0), [1.0, 0.0, 0.0]);
        assert_eq!(binomial(2, 1.0), [0.0, 0.0, 1.0]);
        // For large numbers the tails underflow to 0, which affects nothing else.
        let many = hypergeometric(32_000, 16_000, 1024);
        let mean: f64 = (0..)
            .zip(&many)
            .map(|(count, p)| f64::from(count) * p)
            .sum();
        assert!(
            close(mean, 512.0) && close(many.iter().sum(), 1.0),
            "{mean}"
        );
    }

    #[test]
    fn one_copy_on_any_unit_is_the_papers_equation() {
        for compromised in 0..=100 {
            let placement = Placement {
                units: 100,
                redundancy: Redundancy::Copies(1),
                sets: Sets::Any,
                striping: Striping::default(),
            };
            let shares = placement.shares(compromised).expect("a valid placement");
            let q = f64::from(compromised) / 100.0;
            for blocks in [1, 2, 7] {
                assert!(close(shares.leaks(blocks), q.powi(blocks as i32)));
            }
        }
    }

    /// Compares with all sets of compromised units, and all sets on which a block may be.
    #[test]
    fn a_block_is_read_as_often_as_in_all_cases_counted() {
        let spreads = [
            Redundancy::Copies(1),
            Redundancy::Copies(2),
            Redundancy::Copies(3),
            Redundancy::Erasure { data: 2, parity: 1 },
            Redundancy::Erasure { data: 3, parity: 2 },
        ];
        for (units, redundancy) in
            (5..9).flat_map(|units| spreads.map(|redundancy| (units, redundancy)))
        {
            let members = redundancy.members();
            for compromised in 0..=units {
                let sets = subsets(units, members);
                let count: u32 = sets
                    .iter()
                    // By symmetry one compromised set stands for all.
                    .map(|set| (set & ((1 << compromised) - 1)).count_ones())
                    .map(|count| redundancy.readable_parts(count))
                    .sum();
                let expected = f64::from(count) / (sets.len() as f64 * f64::from(members));
                let placement = Placement {
                    units,
                    redundancy,
                    sets: Sets::Any,
                    striping: Striping::default(),
                };
                let found = placement
                    .shares(compromised)
                    .expect("a valid placement")
                    .leaks(1);
                assert!(close(found, expected), "{placement:?} {compromised}");
                // A plan has the same mean.
                let planned = Placement {
                    sets: Sets::Planned { sets_per_unit: 3 },
                    ..placement
                };
                let found = planned
                    .shares(compromised)
                    .expect("a valid placement")
                    .leaks(1);
                assert!(close(found, expected), "{planned:?} {compromised}");
            }
        }
    }

    /// Compares with all pairs of permutations of six units.
    #[test]
    fn files_on_a_plan_leak_as_often_as_in_all_cases_counted() {
        for redundancy in [
            Redundancy::Copies(2),
            Redundancy::Copies(3),
            Redundancy::Copies(4),
        ] {
            let members = redundancy.members() as usize;
            for compromised in 0..=6 {
                let sums: Vec<u32> = permutations((0..6).collect())
                    .iter()
                    .map(|order| {
                        let sets = order.chunks_exact(members);
                        let count = |set: &[u32]| {
                            let compromised = set.iter().filter(|unit| **unit < compromised);
                            redundancy.readable_parts(compromised.count() as u32)
                        };
                        sets.map(count).sum()
                    })
                    .collect();
                let most = 2.0 * f64::from(6 / members as u32 * members as u32);
                let how_often = |sum: u32| sums.iter().filter(|one| **one == sum).count() as f64;
                let often: Vec<f64> = (0..=6).map(how_often).collect();
                for blocks in [1, 2, 5] {
                    let mut expected = 0.0;
                    for (one, first) in often.iter().enumerate() {
                        for (other, second) in often.iter().enumerate() {
                            let share = (one + other) as f64 / most;
                            expected += first * second * share.powi(blocks);
                        }
                    }
                    expected /= (sums.len() * sums.len()) as f64;
                    let placement = Placement {
                        units: 6,
                        redundancy,
                        sets: Sets::Planned { sets_per_unit: 2 },
                        striping: Striping::default(),
                    };
                    let shares = placement.shares(compromised).expect("a valid placement");
                    let found = shares.leaks(blocks as u64);
                    assert!(
                        close(found, expected),
                        "{redundancy:?} {compromised} {blocks}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_plan_leaks_files_more_often_and_blocks_as_often() {
        let placement = |sets| Placement {
            units: 100,
            redundancy: Redundancy::Copies(3),
            sets,
            striping: Striping::default(),
        };
        let any = placement(Sets::Any).shares(5).expect("a valid placement");
        let mut before = f64::INFINITY;
        for sets_per_unit in [1, 2, 4, 8] {
            let planned = placement(Sets::Planned { sets_per_unit });
            let planned = planned.shares(5).expect("a valid placement");
            assert!(close(planned.leaks(1), any.leaks(1)));
            let leaks = planned.leaks(10);
            assert!(leaks > any.leaks(10) && leaks < before);
            before = leaks;
        }
    }

    #[test]
    fn an_impossible_placement_is_refused() {
        let placement = Placement {
            units: 4,
            redundancy: Redundancy::Copies(2),
            sets: Sets::Any,
            striping: Striping::default(),
        };
        let refused = |placement: Placement, compromised| {
            placement
                .shares(compromised)
                .expect_err("refused")
                .to_string()
        };
        assert!(refused(placement, 5).contains("as there are only 4"));
        let with = |redundancy| Placement {
            redundancy,
            ..placement
        };
        assert!(refused(with(Redundancy::Copies(5)), 1).contains("needs as many units"));
        assert!(refused(with(Redundancy::Copies(0)), 1).contains("at least one copy"));
        let erasure = |data, parity| with(Redundancy::Erasure { data, parity });
        assert!(refused(erasure(1, 1), 1).contains("two members with data"));
        assert!(refused(erasure(65, 1), 1).contains("longer than the maximum of 64"));
        assert!(refused(erasure(2, u32::MAX), 1).contains("needs as many units"));
        for (units, why) in [(0, "no units"), (100_000, "more than the maximum of 1000")] {
            assert!(refused(Placement { units, ..placement }, 0).contains(why));
        }
    }
}
