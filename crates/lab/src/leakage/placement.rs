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
mod tests;
