//! [`Simulation`]: the same by trial. Each trial captures units one after another, and looks
//! after each which files have leaked.
//!
//! Where a file's blocks lie is not drawn block by block: with the captured units and the sets
//! given, each block is readable by itself with the same probability, so the number of files of
//! a class that leak with the next unit is binomial. Which of them they are is drawn as well:
//!
//! ```text
//!  units captured   1        2        3 …      share of blocks that is readable: f1 ≤ f2 ≤ f3
//!  leaked so far    L1   ≤   L2   ≤   L3       L2 − L1 ~ B(files − L1, (f2^b − f1^b) / (1 − f1^b))
//! ```

use rand::{Rng, RngExt as _, seq::SliceRandom as _};
use rand_distr::{Binomial, Distribution as _, StandardNormal};

use super::files::FileList;
use super::placement::{Placement, PlacementError, Sets};

/// Classes of so many files at most have each of those that leak drawn by itself.
const DRAWN_MAX: usize = 4096;

/// In larger ones so many are drawn by themselves; of more, the sum is drawn, which is normal
/// then to a part in a thousand.
const SUMMED_MIN: u64 = 256;

/// A class of which less than so many files leak in a trial on the mean is left out.
const FILES_MIN: f64 = 1e-12;

/// Files of one class.
#[derive(Debug, Clone)]
struct Files {
    blocks: u64,
    /// In bytes.
    lengths: Vec<u64>,
    mean: f64,
    variance: f64,
}

/// See the module's head.
#[derive(Debug, Clone)]
pub struct Simulation {
    placement: Placement,
    captured_max: u32,
    classes: Vec<Files>,
}

impl Simulation {
    /// Of files on blocks of `block_bytes`, of whose units up to `captured_max` are captured.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn new(
        placement: Placement,
        captured_max: u32,
        files: &FileList,
        block_bytes: u64,
    ) -> Result<Self, PlacementError> {
        let shares = placement.shares(captured_max)?;
        let mut rest = files.lengths();
        let mut classes = Vec::new();
        for class in files.classes(block_bytes) {
            let (lengths, later) = rest.split_at(class.files as usize);
            rest = later;
            if shares.leaks(class.blocks) * class.files as f64 >= FILES_MIN {
                classes.push(Files::new(class.blocks, lengths));
            }
        }
        Ok(Self {
            placement,
            captured_max,
            classes,
        })
    }

    /// One trial: how many bytes of whole files leak with 0, 1 … captured units.
    pub fn trial(&self, random: &mut impl Rng) -> Vec<f64> {
        let shares = self.readable_shares(random);
        let mut leaked = vec![0.0; shares.len()];
        for class in &self.classes {
            class.leak(&shares, &mut leaked, random);
        }
        leaked
    }

    /// Which share of all blocks is readable with 0, 1 … captured units.
    fn readable_shares(&self, random: &mut impl Rng) -> Vec<f64> {
        let counts = 0..=self.captured_max;
        let Sets::Planned { sets_per_unit } = self.placement.sets else {
            let shares = counts.map(|count| self.placement.shares(count));
            let certain = shares.map(|shares| shares.map_or(0.0, |shares| shares.leaks(1)));
            return certain.collect();
        };
        let members = self.placement.spread.members() as usize;
        let mut order: Vec<u32> = (0..self.placement.units).collect();
        // Units are captured in the order of their numbers; the sets are any.
        let (mut parts, mut most) = (vec![0; counts.count()], 0);
        for _ in 0..sets_per_unit {
            order.shuffle(random);
            for set in order.chunks_exact(members) {
                most += members;
                let mut set = set.to_vec();
                set.sort_unstable();
                for (captured, sum) in (0..).zip(&mut parts) {
                    let of_set = set.partition_point(|unit| *unit < captured);
                    *sum += self.placement.spread.readable_parts(of_set as u32);
                }
            }
        }
        let share = |parts: u32| f64::from(parts) / most as f64;
        parts.into_iter().map(share).collect()
    }
}

impl Files {
    fn new(blocks: u64, lengths: &[u64]) -> Self {
        let count = lengths.len() as f64;
        let mean = lengths.iter().map(|length| *length as f64).sum::<f64>() / count;
        let square = |length: &u64| (*length as f64 - mean).powi(2);
        Self {
            blocks,
            mean,
            variance: lengths.iter().map(square).sum::<f64>() / count,
            lengths: lengths.to_vec(),
        }
    }

    /// Adds what leaks of these to `leaked`, by captured units.
    fn leak(&self, shares: &[f64], leaked: &mut [f64], random: &mut impl Rng) {
        let power = |share: f64| share.powf(self.blocks as f64);
        let (mut before, mut left, mut bytes) = (0.0, self.lengths.len() as u64, 0.0);
        let mut unread = Unread::of(self);
        for (share, leaked) in shares.iter().zip(leaked) {
            let now = power(*share).max(before);
            if left > 0 && now > before {
                let p = ((now - before) / (1.0 - before)).clamp(0.0, 1.0);
                let drawn = Binomial::new(left, p).map_or(0, |files| files.sample(random));
                bytes += unread.take(drawn, left, random);
                left -= drawn;
                before = now;
            }
            *leaked += bytes;
        }
    }
}

/// Files of a class that have not leaked so far in a trial.
struct Unread<'a> {
    class: &'a Files,
    /// Those of a class that is small; none of another one.
    lengths: Vec<u64>,
}

impl<'a> Unread<'a> {
    fn of(class: &'a Files) -> Self {
        let is_small = class.lengths.len() <= DRAWN_MAX;
        Self {
            class,
            lengths: match is_small {
                true => class.lengths.clone(),
                false => Vec::new(),
            },
        }
    }

    /// How long `count` of those `left` are together, any of which are as likely.
    fn take(&mut self, count: u64, left: u64, random: &mut impl Rng) -> f64 {
        let class = self.class;
        if class.lengths.len() <= DRAWN_MAX {
            let mut draw = |_| {
                let at = random.random_range(0..self.lengths.len());
                self.lengths.swap_remove(at) as f64
            };
            return (0..count).map(&mut draw).sum();
        }
        if count < SUMMED_MIN {
            let draw = |_| class.lengths[random.random_range(0..class.lengths.len())] as f64;
            return (0..count).map(draw).sum();
        }
        // Without replacement: of all there are the sum is certain.
        let (files, rest) = (count as f64, (left - count) as f64);
        let variance = files * class.variance * rest / (left as f64 - 1.0).max(1.0);
        let noise: f64 = StandardNormal.sample(random);
        files * class.mean + variance.sqrt() * noise
    }
}

/// The mean of numbers that come one after another, and how sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mean {
    count: u64,
    mean: f64,
    /// The sum of squared distances from it.
    squares: f64,
}

impl Mean {
    /// One more.
    pub fn add(&mut self, number: f64) {
        self.join(Self {
            count: 1,
            mean: number,
            squares: 0.0,
        });
    }

    /// Those of another one as well.
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

    /// The mean; 0 of nothing.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// How far the true mean may be away, in 95 of 100 cases: infinitely far, for fewer than
    /// two numbers.
    #[must_use]
    pub fn within(&self) -> f64 {
        self.within_deviations(1.959_964)
    }

    /// The same for so many standard deviations of the mean.
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
    use rand::SeedableRng as _;
    use rand::rngs::SmallRng;

    use super::super::{Spread, estimate};
    use super::*;

    const PLACEMENTS: [(u32, Spread, Sets); 6] = [
        (10, Spread::Copies(1), Sets::Any),
        (10, Spread::Copies(2), Sets::Any),
        (9, Spread::Erasure { data: 2, parity: 1 }, Sets::Any),
        (10, Spread::Copies(2), Sets::Planned { sets_per_unit: 1 }),
        (11, Spread::Copies(3), Sets::Planned { sets_per_unit: 2 }),
        (
            9,
            Spread::Erasure { data: 2, parity: 1 },
            Sets::Planned { sets_per_unit: 2 },
        ),
    ];

    fn placement((units, spread, sets): (u32, Spread, Sets)) -> Placement {
        Placement {
            units,
            spread,
            sets,
        }
    }

    fn files() -> FileList {
        (1..200).map(|number| number * 100).collect()
    }

    #[test]
    fn trials_and_equations_agree() {
        let mut random = SmallRng::seed_from_u64(7);
        for placement in PLACEMENTS.map(placement) {
            let simulation = Simulation::new(placement, 6, &files(), 4096).expect("it is one");
            let mut means = [Mean::default(); 7];
            for _ in 0..4000 {
                let leaked = simulation.trial(&mut random);
                assert!(leaked.is_sorted(), "who captures more reads more");
                for (mean, leaked) in means.iter_mut().zip(leaked) {
                    mean.add(leaked);
                }
            }
            for (captured, mean) in (0..).zip(means) {
                let shares = placement.shares(captured).expect("it is one");
                let expected = estimate(&files().classes(4096), &shares).bytes;
                let off = (mean.mean() - expected).abs();
                // So far off is one in 15,000.
                assert!(
                    off <= mean.within_deviations(4.0) + 1e-9,
                    "{placement:?} {captured}: {expected} {mean:?}"
                );
            }
        }
    }

    /// Every block at a place of its own, looked for one by one.
    #[test]
    fn trials_are_like_those_that_place_every_block() {
        let mut random = SmallRng::seed_from_u64(8);
        let (captured, trials) = (4, 4000);
        for placement in PLACEMENTS.map(placement) {
            let members = placement.spread.members() as usize;
            let (mut slow, mut fast) = (Mean::default(), Mean::default());
            let simulation = Simulation::new(placement, captured, &files(), 4096);
            let simulation = simulation.expect("it is one");
            for _ in 0..trials {
                let mut sets: Vec<Vec<u32>> = Vec::new();
                if let Sets::Planned { sets_per_unit } = placement.sets {
                    for _ in 0..sets_per_unit {
                        let mut order: Vec<u32> = (0..placement.units).collect();
                        order.shuffle(&mut random);
                        sets.extend(order.chunks_exact(members).map(<[u32]>::to_vec));
                    }
                }
                let mut is_read = || {
                    let set = match placement.sets {
                        Sets::Any => {
                            let mut order: Vec<u32> = (0..placement.units).collect();
                            order.shuffle(&mut random);
                            order.truncate(members);
                            order
                        }
                        Sets::Planned { .. } => sets[random.random_range(0..sets.len())].clone(),
                    };
                    let of_set = set.iter().filter(|unit| **unit < captured).count();
                    match placement.spread {
                        Spread::Copies(_) => of_set > 0,
                        Spread::Erasure { data, .. } => {
                            of_set >= data as usize
                                || set[random.random_range(0..members)] < captured
                        }
                    }
                };
                let mut bytes = 0.0;
                for length in files().lengths() {
                    if (0..length.div_ceil(4096)).all(|_| is_read()) {
                        bytes += *length as f64;
                    }
                }
                slow.add(bytes);
                fast.add(simulation.trial(&mut random)[captured as usize]);
            }
            let off = (slow.mean() - fast.mean()).abs();
            let within = slow.within_deviations(4.0) + fast.within_deviations(4.0);
            assert!(off <= within, "{placement:?}: {slow:?} {fast:?}");
            // And they differ from each other by as much.
            let ratio = slow.squares / fast.squares;
            assert!((0.8..1.25).contains(&ratio), "{placement:?} {ratio}");
        }
    }

    /// In a large class sums are drawn, and not files.
    #[test]
    fn large_classes_leak_as_much_as_small_ones() {
        let mut random = SmallRng::seed_from_u64(9);
        let placement = placement(PLACEMENTS[0]);
        let files: FileList = (0..100_000_u64).map(|number| number % 4096 + 1).collect();
        let simulation = Simulation::new(placement, 5, &files, 4096).expect("it is one");
        let mut means = [Mean::default(); 6];
        for _ in 0..200 {
            let leaked = simulation.trial(&mut random);
            for (mean, leaked) in means.iter_mut().zip(leaked) {
                mean.add(leaked);
            }
        }
        for (captured, mean) in means.iter().enumerate() {
            let expected = captured as f64 / 10.0 * files.bytes() as f64;
            let off = (mean.mean() - expected).abs();
            assert!(off <= mean.within_deviations(4.0), "{captured} {mean:?}");
        }
        // All of them, if all are captured.
        let all = Simulation::new(placement, 10, &files, 4096).expect("it is one");
        let leaked = all.trial(&mut random)[10];
        assert!(
            (leaked / files.bytes() as f64 - 1.0).abs() < 0.01,
            "{leaked}"
        );
    }

    #[test]
    fn a_mean_is_the_same_in_whatever_parts_it_comes() {
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
