//! [`Sums`]: the probabilities of the two ends of a file, by the number of whole sets among the
//! striped ones.
//!
//! Of D sets, R are whole: all of a row is readable there. Besides the probability of each R,
//! [`Sums`] has its products with Σ_s ρ_a(c_s), and with Σ_s Σ_t, where for s = t the positions of
//! both ends count together. By symmetry all sets, and all pairs of sets, have the same
//! distribution, so it is enough to know the joint distribution of one set, and of two sets, with
//! the number of whole sets among the others:
//!
//! ```text
//!   Σ_s   = D · (one set) × (D − 1 others)
//!   Σ_s≠t = D(D − 1) · (two sets) × (D − 2 others)
//! ```
//!
//! Two sets are from one permutation, or from two. [`Cuts`] has the number of whole sets among the
//! remaining sets of a permutation.

use super::super::distributions::{binomial, convolved, folded, hypergeometric};
use super::super::placement::{Placement, Redundancy};

/// Expectations by the number of whole sets. The first and the last piece of a file have 1 to k − 1
/// blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Sums {
    none: Vec<f64>,
    /// By number of blocks less one.
    one: Vec<Vec<f64>>,
    /// By the number of blocks of the longer and of the shorter end, each less one.
    both: Vec<Vec<Vec<f64>>>,
}

/// Probabilities by the number of whole sets among some sets, jointly with the state of one other
/// set.
struct Others {
    /// The other set has j readable blocks of a row and is not whole; by j less one.
    part: Vec<Vec<f64>>,
    /// The other set is whole.
    whole: Vec<f64>,
}

/// The same, jointly with the state of two other sets.
struct Pairs {
    /// Neither set is whole; by readable blocks of both, as in [`Sums::both`].
    parts: Vec<Vec<Vec<f64>>>,
    /// The second set is whole, the first is not.
    part: Vec<Vec<f64>>,
    whole: Vec<f64>,
}

impl Sums {
    /// Number of sets.
    fn sets(&self) -> f64 {
        (self.none.len() - 1) as f64
    }

    /// The mean of `of` over the number of whole sets.
    pub fn mean(&self, of: impl Fn(f64) -> f64) -> f64 {
        weighted(&self.none, of)
    }

    /// The mean of `of`, multiplied by the probability that ends of `first` and `last` blocks, 0 to
    /// k − 1, are readable.
    pub fn with_ends(&self, first: u64, last: u64, of: impl Fn(f64) -> f64) -> f64 {
        let sets = self.sets();
        match (first.max(last) as usize, first.min(last) as usize) {
            (0, 0) => self.mean(of),
            (blocks, 0) => weighted(&self.one[blocks - 1], of) / sets,
            (more, fewer) => weighted(&self.both[more - 1][fewer - 1], of) / (sets * sets),
        }
    }

    /// The sums of sets that are readable as a whole or not at all.
    pub fn of_copies(none: Vec<f64>) -> Self {
        Self {
            none,
            one: Vec::new(),
            both: Vec::new(),
        }
    }

    /// The sums of `width` sets of any units, drawn independently.
    pub fn of_any(placement: &Placement, compromised: u32, width: u32) -> Self {
        let redundancy = placement.redundancy;
        let of_set = hypergeometric(placement.units, compromised, redundancy.members());
        let (mut part, mut whole) = (vec![0.0; redundancy.row_blocks() as usize], 0.0);
        for (count, p) in (0..).zip(of_set) {
            match count >= redundancy.row_blocks() {
                true => whole += p,
                false => add_scaled(&mut part, &on_set(redundancy, count), p),
            }
        }
        let none = binomial(width, whole);
        let scaled = |numbers: &[f64], by: f64| numbers.iter().map(|p| p * by).collect();
        let rest = binomial(width - 1, whole);
        let one = Others {
            part: part.iter().map(|p| scaled(&rest, *p)).collect(),
            whole: scaled(&rest, whole),
        };
        let two = (width > 1).then(|| {
            let rest = binomial(width - 2, whole);
            let ends = &part[..part.len() - 1];
            let with = |p: f64| move |q: &f64| p * q;
            Pairs {
                parts: (1..=ends.len())
                    .map(|to| ends[..to].iter().map(with(ends[to - 1])))
                    .map(|products| products.map(|p| scaled(&rest, p)).collect())
                    .collect(),
                part: ends.iter().map(|p| scaled(&rest, p * whole)).collect(),
                whole: scaled(&rest, whole * whole),
            }
        });
        Self::of(none, &one, two.as_ref())
    }

    /// The sums of `chosen` of the sets of a plan with rows.
    pub fn of_plan(
        placement: &Placement,
        compromised: u32,
        sets_per_unit: u32,
        chosen: u32,
    ) -> Self {
        let cuts = Cuts::of(placement, compromised);
        let in_cut = placement.units / placement.redundancy.members();
        let sets = in_cut * sets_per_unit;
        let of_one_less = convolved(&cuts.all, sets_per_unit - 1);
        let none = sampled(folded(&of_one_less, &cuts.all), sets, chosen);
        let one = cuts.one.each(|alone| {
            let with_others = folded(&of_one_less, alone);
            sampled(with_others, sets - 1, chosen - 1)
        });
        let two = (chosen > 1).then(|| {
            // From one permutation, or from two.
            let of_pairs = f64::from(sets - 1);
            let alike = f64::from(in_cut - 1) / of_pairs;
            let apart = f64::from(sets - in_cut) / of_pairs;
            let of_two_less = (sets_per_unit > 1).then(|| convolved(&cuts.all, sets_per_unit - 2));
            let joined = |same: Option<&Vec<f64>>, one: &[f64], other: &[f64]| {
                let mut both = vec![0.0; sets as usize - 1];
                if let Some(same) = same {
                    add_scaled(&mut both, &folded(&of_one_less, same), alike);
                }
                if let Some(others) = &of_two_less {
                    add_scaled(&mut both, &folded(&folded(others, one), other), apart);
                }
                sampled(both, sets - 2, chosen - 2)
            };
            let (same, one) = (cuts.two.as_ref(), &cuts.one);
            let ends = 0..one.part.len() - 1;
            let parts_of = |first: usize| {
                let second = 0..=first;
                let pair = |second: usize| {
                    let same = same.map(|same| &same.parts[first][second]);
                    joined(same, &one.part[first], &one.part[second])
                };
                second.map(pair).collect()
            };
            let part_of = |end: usize| {
                let same = same.map(|same| &same.part[end]);
                joined(same, &one.part[end], &one.whole)
            };
            Pairs {
                parts: ends.clone().map(parts_of).collect(),
                part: ends.map(part_of).collect(),
                whole: joined(same.map(|same| &same.whole), &one.whole, &one.whole),
            }
        });
        Self::of(none, &one, two.as_ref())
    }

    /// The sums for the joint distributions of one and of two sets with the others.
    fn of(none: Vec<f64>, one: &Others, two: Option<&Pairs>) -> Self {
        let len = none.len();
        let (sets, row_blocks) = ((len - 1) as f64, one.part.len());
        let of_one = |blocks: usize| {
            let mut sum = vec![0.0; len];
            add_scaled(&mut sum, &one.part[blocks - 1], sets);
            add_scaled(&mut sum[1..], &one.whole, sets);
            sum
        };
        let of_both = |first: usize, second: usize| {
            let mut sum = of_one((first + second).min(row_blocks));
            if let Some(two) = two {
                let pairs = sets * (sets - 1.0);
                add_scaled(&mut sum, &two.parts[first - 1][second - 1], pairs);
                add_scaled(&mut sum[1..], &two.part[first - 1], pairs);
                add_scaled(&mut sum[1..], &two.part[second - 1], pairs);
                add_scaled(&mut sum[2..], &two.whole, pairs);
            }
            sum
        };
        Self {
            one: (1..row_blocks).map(of_one).collect(),
            both: (1..row_blocks)
                .map(|first| (1..=first).map(|second| of_both(first, second)).collect())
                .collect(),
            none,
        }
    }
}

/// The sets into which one permutation of the units is cut: probabilities of the number of whole
/// ones among all, all but one, and all but two.
struct Cuts {
    all: Vec<f64>,
    one: Others,
    /// `None` if there is only one set.
    two: Option<Pairs>,
}

impl Cuts {
    fn of(placement: &Placement, compromised: u32) -> Self {
        let (redundancy, members) = (placement.redundancy, placement.redundancy.members());
        let (units, row_blocks) = (placement.units, redundancy.row_blocks());
        let sets = units / members;
        let one_less = rest(placement, compromised, sets - 1);
        let mut one = Others {
            part: vec![vec![0.0; sets as usize]; row_blocks as usize],
            whole: vec![0.0; sets as usize],
        };
        let mut all = vec![0.0; sets as usize + 1];
        let first_set = hypergeometric(units, compromised, members);
        let firsts = || (0..).zip(&first_set).filter(|(_, p)| **p > 0.0);
        for (count, p) in firsts() {
            let others = &one_less[(compromised - count) as usize];
            if count >= row_blocks {
                add_scaled(&mut one.whole, others, *p);
                add_scaled(&mut all[1..], others, *p);
                continue;
            }
            add_scaled(&mut all, others, *p);
            for (part, readable) in one.part.iter_mut().zip(on_set(redundancy, count)) {
                add_scaled(part, others, p * readable);
            }
        }
        let two = (sets > 1).then(|| {
            let two_less = rest(placement, compromised, sets - 2);
            let ends = row_blocks as usize - 1;
            let zero = || vec![0.0; sets as usize - 1];
            let mut two = Pairs {
                parts: (1..=ends).map(|to| vec![zero(); to]).collect(),
                part: vec![zero(); ends],
                whole: zero(),
            };
            for (first, p) in firsts() {
                let second_set = hypergeometric(units - members, compromised - first, members);
                for (second, q) in (0..).zip(second_set).filter(|(_, q)| *q > 0.0) {
                    let others = &two_less[(compromised - first - second) as usize];
                    two.add(redundancy, (first, second), others, p * q);
                }
            }
            two
        });
        Self { all, one, two }
    }
}

/// Probabilities of the number of whole sets among the last `sets` sets of a permutation, by the
/// number of compromised units among the rest of it. Units that are left over come after them.
fn rest(placement: &Placement, compromised: u32, sets: u32) -> Vec<Vec<f64>> {
    let members = placement.redundancy.members();
    let row_blocks = placement.redundancy.row_blocks();
    let mut now = vec![vec![1.0]; compromised as usize + 1];
    for set in 1..=sets {
        let units = placement.units % members + set * members;
        let of_compromised = |left: u32| {
            let mut sum = vec![0.0; set as usize + 1];
            if left <= units {
                let of_set = hypergeometric(units, left, members);
                for (count, p) in (0..=left).zip(of_set).filter(|(_, p)| *p > 0.0) {
                    let is_whole = usize::from(count >= row_blocks);
                    add_scaled(&mut sum[is_whole..], &now[(left - count) as usize], p);
                }
            }
            sum
        };
        now = (0..=compromised).map(of_compromised).collect();
    }
    now
}

impl Others {
    fn each(&self, of: impl Fn(&Vec<f64>) -> Vec<f64>) -> Self {
        Self {
            part: self.part.iter().map(&of).collect(),
            whole: of(&self.whole),
        }
    }
}

impl Pairs {
    /// Adds a pair of sets with these numbers of compromised members.
    fn add(&mut self, redundancy: Redundancy, (first, second): (u32, u32), others: &[f64], p: f64) {
        let row_blocks = redundancy.row_blocks();
        let (on_first, on_second) = (on_set(redundancy, first), on_set(redundancy, second));
        match (first >= row_blocks, second >= row_blocks) {
            (true, true) => add_scaled(&mut self.whole, others, p),
            (false, true) => {
                for (part, readable) in self.part.iter_mut().zip(on_first) {
                    add_scaled(part, others, p * readable);
                }
            }
            // The reverse order is as frequent, and is counted here.
            (true, false) => {}
            (false, false) => {
                for (parts, readable) in self.parts.iter_mut().zip(on_first) {
                    for (part, more) in parts.iter_mut().zip(&on_second) {
                        let p = p * readable * more;
                        if p > 0.0 {
                            add_scaled(part, others, p);
                        }
                    }
                }
            }
        }
    }
}

/// Probabilities that 1, 2 … k blocks of a row are readable on a set.
fn on_set(redundancy: Redundancy, compromised: u32) -> Vec<f64> {
    (1..=redundancy.row_blocks())
        .map(|blocks| redundancy.readable(compromised, blocks))
        .collect()
}

/// Probabilities of the number of whole sets among `chosen` of `sets`, of which `of_all` are whole.
pub fn sampled(of_all: Vec<f64>, sets: u32, chosen: u32) -> Vec<f64> {
    if chosen == sets {
        return of_all;
    }
    let mut of_chosen = vec![0.0; chosen as usize + 1];
    for (count, p) in (0..).zip(of_all).filter(|(_, p)| *p > 0.0) {
        add_scaled(&mut of_chosen, &hypergeometric(sets, count, chosen), p);
    }
    of_chosen
}

/// Adds `from`, multiplied by `p`, to the first elements of `into`.
fn add_scaled(into: &mut [f64], from: &[f64], p: f64) {
    for (sum, more) in into.iter_mut().zip(from) {
        *sum += p * more;
    }
}

/// The weighted sum of `of`; weights of 0 are skipped.
fn weighted(weights: &[f64], of: impl Fn(f64) -> f64) -> f64 {
    let sets = (weights.len() - 1) as f64;
    let each = weights.iter().enumerate().filter(|(_, p)| **p > 0.0);
    each.map(|(count, p)| p * of(count as f64 / sets)).sum()
}
