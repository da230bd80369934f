//! [`TrialSets`]: the sets of units that a trial has drawn, and what they reveal of files.

use super::alignments::alignments;
use super::placement::Placement;
use super::shares::power;

/// Sets of units, some of which are compromised. For each set, the readable positions of a row, as
/// bits.
pub struct TrialSets<'a> {
    placement: &'a Placement,
    places: Vec<u64>,
}

/// What a striping over some sets, with some compromised units, reveals of files.
#[derive(Debug, Clone)]
pub struct Readable {
    /// Number of blocks in a piece, and in a row.
    piece: u64,
    row: u64,
    /// For each set, the readable positions of a row, as bits.
    places: Vec<u64>,
    /// Shares of sets on which the first 0, 1 … k positions are readable, and the last ones.
    starts: Vec<f64>,
    ends: Vec<f64>,
}

impl<'a> TrialSets<'a> {
    /// These sets, each with the numbers of its units by position; the first positions have the
    /// data. Units with numbers below `compromised` are compromised.
    pub fn new(placement: &'a Placement, sets: &[Vec<u32>], compromised: u32) -> Self {
        let row = placement.redundancy.row_blocks() as usize;
        let of_set = |set: &Vec<u32>| {
            let are_compromised = set.iter().map(|unit| *unit < compromised);
            if are_compromised.clone().filter(|is| *is).count() >= row {
                return all_places(placement);
            }
            // Of copies, a row is one block.
            let places = are_compromised.take(row).enumerate();
            places.fold(0, |bits, (place, is)| bits | u64::from(is) << place)
        };
        Self {
            places: sets.iter().map(of_set).collect(),
            placement,
        }
    }

    /// Number of sets.
    pub fn sets(&self) -> usize {
        self.places.len()
    }

    /// Whether files on `sets` are as readable as `readable`.
    pub fn is_as(&self, readable: &Readable, sets: &[usize]) -> bool {
        let places = sets.iter().map(|set| &self.places[*set]);
        places.eq(&readable.places)
    }

    /// What is readable of files on `sets`.
    pub fn readable(&self, sets: &[usize]) -> Readable {
        let row = self.placement.redundancy.row_blocks();
        let all = all_places(self.placement);
        let places: Vec<u64> = sets.iter().map(|set| self.places[*set]).collect();
        let share = |bits: u64| share(&places, bits);
        let first = |count: u32| match count {
            0 => 0,
            count => all >> (row - count),
        };
        Readable {
            piece: u64::from(row) * u64::from(self.placement.striping.granularity),
            row: row.into(),
            starts: (0..=row).map(|count| share(first(count))).collect(),
            ends: (0..=row)
                .map(|count| share(all & !first(row - count)))
                .collect(),
            places,
        }
    }
}

/// All positions of a row.
fn all_places(placement: &Placement) -> u64 {
    u64::MAX >> (u64::BITS - placement.redundancy.row_blocks())
}

/// Share of sets on which all positions in `bits` are readable.
fn share(places: &[u64], bits: u64) -> f64 {
    let has_all = places.iter().filter(|of_set| *of_set & bits == bits);
    has_all.count() as f64 / places.len() as f64
}

impl Readable {
    /// Probability that a file of `blocks` blocks is readable as a whole: the mean over its
    /// alignments, with each piece on a random one of the sets.
    pub fn leaks(&self, blocks: u64) -> f64 {
        let whole = self.ends[self.row as usize];
        let each = alignments(blocks, self.piece, self.row).map(|one| {
            let count = one.count as f64;
            if one.is_in_one() && one.first < self.row {
                return self.in_one(one.first, one.count);
            }
            let of_first = self.ends[one.first as usize];
            let of_last = self.starts[one.last as usize];
            count * of_first * power(whole, one.whole) * of_last
        });
        each.sum::<f64>() / self.piece as f64
    }

    /// The sum over the first `begin_count` positions of a piece of the probability that `blocks`
    /// blocks, fewer than a row has, are readable there.
    fn in_one(&self, blocks: u64, begin_count: u64) -> f64 {
        let each = (0..self.row.min(begin_count)).map(|begin| {
            let alike = (begin_count - begin).div_ceil(self.row);
            alike as f64 * share(&self.places, self.window(begin, blocks))
        });
        each.sum()
    }

    /// The positions of `blocks` blocks of a piece from `begin`, as bits.
    fn window(&self, begin: u64, blocks: u64) -> u64 {
        let places = (begin..begin + blocks).map(|block| block % self.row);
        places.fold(0, |bits, place| bits | 1 << place)
    }
}
