//! [`Simulation`]: leakage by trial. Each trial compromises one unit after another, and finds after
//! each of them which files have leaked.
//!
//! The positions of a file's blocks are not drawn block by block: for given compromised units and
//! sets, the files of a class are readable independently with the same probability, so the number
//! of those that leak is binomial. It is first drawn for all compromised units of a trial, because
//! it is 0 for most classes; then the unit with which each file leaks, and the files, are drawn:
//!
//! ```text
//!  units compromised   1        2        3        a file is readable with probability P1 ≤ P2 ≤ P3
//!  leaked so far    L1   ≤   L2   ≤   L3       L3 ~ B(files, P3), and of these
//!                                              L1 ~ B(L3, P1 / P3), L2 − L1 ~ B(L3 − L1, (P2 − P1) / (P3 − P1))
//! ```
//!
//! If a destage goes to few sets, files are written one after another, and those that fill the
//! segments of such sets together ([`SEGMENT_BYTES`]) share them: they are a *part* of all files.

use rand::seq::{SliceRandom as _, index::sample};
use rand::{Rng, RngExt as _};
use rand_distr::{Binomial, Distribution as _, StandardNormal};

use super::files::FileList;
use super::placement::{Placement, PlacementError, Sets};
use super::planned_sets::planned_sets;
use super::trial_sets::{Readable, TrialSets};

/// Bytes of a segment on each member; after that, another set is used.
const SEGMENT_BYTES: u64 = 8 << 20;

/// The most parts of files, each with its own sets. The mean leakage does not depend on it. The
/// spread of trials does: if there are more parts in reality, the simulated spread is too large.
const PARTS_MAX: u64 = 1024;

/// The most parts for each set of a part: the fewer sets a part has, the more often the whole part
/// leaks, and the longer a trial takes.
const PARTS_OF_SET_MAX: u64 = 64;

/// Up to this many files, the unit with which each leaks is drawn for each file.
const EACH_MAX: u64 = 16;

/// In classes of up to this many files, each leaking file is drawn.
const DRAWN_MAX: usize = 4096;

/// In larger classes, up to this many leaking files are drawn; of more, their sum is drawn, which
/// is normally distributed then up to a part in a thousand.
const SUMMED_MIN: u64 = 256;

/// Classes are left out if they and all classes with more blocks together leak fewer files than
/// this in the mean of a trial.
const FILES_MIN: f64 = 1e-12;

/// The files of one class.
#[derive(Debug, Clone)]
struct Files {
    blocks: u64,
    /// In bytes.
    lengths: Vec<u64>,
    mean: f64,
    variance: f64,
    /// Number of files with as many blocks, or more.
    and_longer: u64,
}

/// Trials of the leakage of files on a placement.
#[derive(Debug, Clone)]
pub struct Simulation {
    placement: Placement,
    compromised_max: u32,
    classes: Vec<Files>,
    /// Number of parts in which files are written.
    parts: u64,
    /// By class: the number of files that every part has, and the number of parts with one more.
    of_parts: Vec<(u64, u64)>,
    /// If set, a plan is drawn as Scree plans, until each unit shares blocks with this many others.
    scatter_width: Option<u32>,
    /// Probabilities that a file of each class is readable with 0, 1 … compromised units, if they
    /// are certain because each piece has a set of its own.
    certain: Option<Vec<Vec<f64>>>,
}

impl Simulation {
    /// A simulation of files on blocks of `block_bytes`, with up to `compromised_max` compromised
    /// units.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn new(
        placement: Placement,
        compromised_max: u32,
        files: &FileList,
        block_bytes: u64,
    ) -> Result<Self, PlacementError> {
        let shares = placement.shares(compromised_max)?;
        let (mut rest, mut classes) = (files.lengths(), Vec::new());
        for class in files.classes(block_bytes) {
            let and_longer = rest.len() as u64;
            // Longer files do not leak more often.
            if shares.leaks(class.blocks) * (and_longer as f64) < FILES_MIN {
                break;
            }
            let (lengths, later) = rest.split_at(class.files as usize);
            rest = later;
            classes.push(Files::new(class.blocks, lengths, and_longer));
        }
        let is_certain =
            (placement.sets_striped_over(), placement.striping.width) == (Sets::Any, None);
        let certain = match is_certain {
            false => None,
            true => {
                let counts = 0..=compromised_max;
                let shares = counts.map(|count| placement.shares(count));
                let shares = shares.collect::<Result<Vec<_>, _>>()?;
                let of_class = |class: &Files| {
                    let leaks = shares.iter().map(|shares| shares.leaks(class.blocks));
                    leaks.collect()
                };
                Some(classes.iter().map(of_class).collect())
            }
        };
        let row = u64::from(placement.redundancy.row_blocks());
        // If there are no more sets, all parts have the same ones.
        let is_choice = |width: &u32| match placement.sets_striped_over() {
            Sets::Any => true,
            Sets::Planned { sets_per_unit } => {
                *width < placement.units / placement.redundancy.members() * sets_per_unit
            }
        };
        let parts = placement
            .striping
            .width
            .filter(is_choice)
            .map_or(1, |width| {
                let of_part = u64::from(width) * row * SEGMENT_BYTES;
                let parts = files.bytes().div_ceil(u128::from(of_part));
                let most = PARTS_MAX.min(PARTS_OF_SET_MAX * u64::from(width));
                u64::try_from(parts).unwrap_or(u64::MAX).min(most)
            });
        let simulation = Self {
            placement,
            compromised_max,
            classes,
            parts: 1,
            of_parts: Vec::new(),
            scatter_width: None,
            certain,
        };
        Ok(simulation.in_parts(parts.max(1)))
    }

    /// The same simulation with files in `parts` parts, at least 1.
    fn in_parts(self, parts: u64) -> Self {
        let files = self.classes.iter().map(|class| class.lengths.len() as u64);
        Self {
            of_parts: files.map(|files| (files / parts, files % parts)).collect(),
            parts,
            ..self
        }
    }

    /// The same simulation with a plan as Scree plans, if it has a plan: each unit shares blocks
    /// with `scatter_width` others, or with all. The equations assume permutations, which is nearly
    /// the same; with few units it matters that some are in more sets than others.
    #[must_use]
    pub fn as_scree_plans(self, scatter_width: u32) -> Self {
        Self {
            scatter_width: (self.placement.redundancy.members() > 1).then_some(scatter_width),
            ..self
        }
    }

    /// Runs one trial: the bytes of whole files that leak with 0, 1 … compromised units.
    pub fn trial(&self, random: &mut impl Rng) -> Vec<f64> {
        // By class, the number of files that leak with each unit; empty if none does.
        let mut newly = vec![Vec::new(); self.classes.len()];
        match &self.certain {
            Some(certain) => {
                let classes = self.classes.iter().zip(certain).zip(&mut newly);
                for ((class, readable), newly) in classes {
                    let files = class.lengths.len() as u64;
                    let likely = readable.last().copied().unwrap_or(0.0);
                    let by_count = || readable.iter().copied().enumerate().collect();
                    leak(files, likely, by_count, newly, random);
                }
            }
            None => self.leak_in_parts(&mut newly, random),
        }
        let mut leaked = vec![0.0; self.compromised_max as usize + 1];
        for (class, newly) in self.classes.iter().zip(newly) {
            class.add_lengths(&newly, &mut leaked, random);
        }
        leaked
    }

    /// Draws the files of each part on sets of its own.
    fn leak_in_parts(&self, newly: &mut [Vec<u64>], random: &mut impl Rng) {
        let plan = self.plan(random).map(|sets| self.drawn(&sets));
        // The remainder of a division goes to as many consecutive parts, from a random one.
        let firsts = self.classes.iter();
        let firsts = firsts.map(|_| random.random_range(0..self.parts));
        let firsts: Vec<u64> = firsts.collect();
        for part in 0..self.parts {
            let own;
            let (drawn, chosen) = match &plan {
                Some(drawn) => (drawn, self.chosen(drawn[0].sets(), random)),
                None => {
                    let sets = self.any_sets(random);
                    own = self.drawn(&sets);
                    (&own, (0..sets.len()).collect())
                }
            };
            let with_all = drawn[drawn.len() - 1].readable(&chosen);
            let mut steps = None;
            let classes = self.classes.iter().zip(&self.of_parts).zip(&firsts);
            for (((class, (files, more)), first), newly) in classes.zip(&mut *newly) {
                // Most classes have fewer files than there are parts.
                let at = part + first;
                let at = if at < self.parts { at } else { at - self.parts };
                let files = files + u64::from(at < *more);
                if files == 0 {
                    continue;
                }
                let likely = with_all.leaks(class.blocks);
                if likely * (class.and_longer as f64) < FILES_MIN {
                    break;
                }
                let by_count = || {
                    let steps = steps.get_or_insert_with(|| readable_steps(drawn, &chosen));
                    let leaks = |(compromised, readable): &(usize, Readable)| {
                        (*compromised, readable.leaks(class.blocks))
                    };
                    steps.iter().map(leaks).collect()
                };
                leak(files, likely, by_count, newly, random);
            }
        }
    }

    /// The sets with 0, 1 … compromised units, which are compromised in the order of their numbers.
    fn drawn(&self, sets: &[Vec<u32>]) -> Vec<TrialSets<'_>> {
        let counts = 0..=self.compromised_max;
        counts
            .map(|compromised| TrialSets::new(&self.placement, sets, compromised))
            .collect()
    }

    /// The sets of a plan, if there is one.
    fn plan(&self, random: &mut impl Rng) -> Option<Vec<Vec<u32>>> {
        let Sets::Planned { sets_per_unit } = self.placement.sets_striped_over() else {
            return None;
        };
        let (units, members) = (self.placement.units, self.placement.redundancy.members());
        if let Some(scatter_width) = self.scatter_width {
            return Some(planned_sets(units, members, scatter_width, random));
        }
        let mut order: Vec<u32> = (0..units).collect();
        let mut sets = Vec::new();
        for _ in 0..sets_per_unit {
            order.shuffle(random);
            sets.extend(order.chunks_exact(members as usize).map(<[u32]>::to_vec));
        }
        Some(sets)
    }

    /// Draws the sets of a plan that a part uses.
    fn chosen(&self, sets: usize, random: &mut impl Rng) -> Vec<usize> {
        match self.placement.striping.width {
            Some(width) => sample(random, sets, sets.min(width as usize)).into_vec(),
            None => (0..sets).collect(),
        }
    }

    /// Draws the sets of a part, if any units may be a set.
    fn any_sets(&self, random: &mut impl Rng) -> Vec<Vec<u32>> {
        let (units, members) = (self.placement.units, self.placement.redundancy.members());
        let mut any = |_| {
            let of_set = sample(random, units as usize, members as usize);
            of_set.into_iter().map(|unit| unit as u32).collect()
        };
        (0..self.placement.striping.width.unwrap_or(0))
            .map(&mut any)
            .collect()
    }
}

/// The numbers of compromised units at which more becomes readable of files on these sets, and what
/// is readable then.
fn readable_steps(drawn: &[TrialSets<'_>], chosen: &[usize]) -> Vec<(usize, Readable)> {
    let mut steps: Vec<(usize, Readable)> = Vec::new();
    for (compromised, drawn) in drawn.iter().enumerate() {
        if steps
            .last()
            .is_none_or(|(_, before)| !drawn.is_as(before, chosen))
        {
            steps.push((compromised, drawn.readable(chosen)));
        }
    }
    steps
}

/// Adds to `newly` the number of files that leak with each unit. Each of `files` leaks with any
/// unit with probability `likely`; `by_count` gives the probabilities after the first units, and
/// the counts at which they change. It is called only if some files leak.
fn leak(
    files: u64,
    likely: f64,
    by_count: impl FnOnce() -> Vec<(usize, f64)>,
    newly: &mut Vec<u64>,
    random: &mut impl Rng,
) {
    let mut left = draw(files, likely, random);
    if left == 0 {
        return;
    }
    let mut steps = by_count();
    let Some((last, _)) = steps.last() else {
        return;
    };
    newly.resize(newly.len().max(last + 1), 0);
    // Except for rounding, it does.
    let mut most = 0.0_f64;
    for (_, p) in &mut steps {
        most = most.max(*p);
        *p = most;
    }
    if left <= EACH_MAX {
        for _ in 0..left {
            let at = random.random::<f64>() * most;
            let step = steps.partition_point(|(_, p)| *p <= at);
            newly[steps[step.min(steps.len() - 1)].0] += 1;
        }
        return;
    }
    let mut before = 0.0;
    for (compromised, now) in steps {
        if now > before {
            let count = draw(left, (now - before) / (most - before), random);
            newly[compromised] += count;
            left -= count;
            before = now;
        }
    }
}

/// Draws how many of `things` events happen, each with probability `p`.
fn draw(things: u64, p: f64, random: &mut impl Rng) -> u64 {
    let mean = things as f64 * p;
    if p >= 1.0 {
        things
    } else if mean < 1.0 {
        few(things, p, random.random())
    } else {
        Binomial::new(things, p.max(0.0)).map_or(0, |count| count.sample(random))
    }
}

/// The same for a mean below 1, from a number drawn from 0 to 1.
fn few(things: u64, p: f64, mut at: f64) -> u64 {
    // No event is the most likely outcome, and usually the only one that must be computed.
    if at < 1.0 - things as f64 * p {
        return 0;
    }
    let (mut count, mut likely) = (0, (things as f64 * (-p).ln_1p()).exp());
    while at >= likely && count < things && likely > 0.0 {
        at -= likely;
        likely *= (things - count) as f64 / (count + 1) as f64 * p / (1.0 - p);
        count += 1;
    }
    count
}

impl Files {
    fn new(blocks: u64, lengths: &[u64], and_longer: u64) -> Self {
        let count = lengths.len() as f64;
        let mean = lengths.iter().map(|length| *length as f64).sum::<f64>() / count;
        let square = |length: &u64| (*length as f64 - mean).powi(2);
        Self {
            blocks,
            mean,
            variance: lengths.iter().map(square).sum::<f64>() / count,
            lengths: lengths.to_vec(),
            and_longer,
        }
    }

    /// Adds the lengths of leaking files to `leaked`, by the number of compromised units; `newly`
    /// has the number of files that leak with each unit.
    fn add_lengths(&self, newly: &[u64], leaked: &mut [f64], random: &mut impl Rng) {
        if newly.is_empty() {
            return;
        }
        let mut unread = Unread::of(self);
        let (mut left, mut bytes) = (self.lengths.len() as u64, 0.0);
        // With more units than it has entries, no more files leak.
        let newly = newly.iter().copied().chain(std::iter::repeat(0));
        for (count, leaked) in newly.zip(leaked) {
            bytes += unread.take(count, left, random);
            left -= count;
            *leaked += bytes;
        }
    }
}

/// The files of a class that have not leaked so far in a trial.
struct Unread<'a> {
    class: &'a Files,
    /// The remaining lengths of a small class, from the first leaking file on.
    lengths: Vec<u64>,
    /// The sum of the remaining lengths in bytes; for a large class, an estimate after sums were
    /// drawn.
    bytes: f64,
}

impl<'a> Unread<'a> {
    fn of(class: &'a Files) -> Self {
        Self {
            class,
            lengths: Vec::new(),
            bytes: class.mean * class.lengths.len() as f64,
        }
    }

    /// Draws `count` of the `left` files, and returns the sum of their lengths.
    fn take(&mut self, count: u64, left: u64, random: &mut impl Rng) -> f64 {
        let class = self.class;
        if count == 0 {
            return 0.0;
        }
        if class.lengths.len() <= DRAWN_MAX {
            if self.lengths.is_empty() {
                self.lengths.clone_from(&class.lengths);
            }
            let mut draw = |_| {
                let at = random.random_range(0..self.lengths.len());
                self.lengths.swap_remove(at) as f64
            };
            return (0..count).map(&mut draw).sum();
        }
        // If all are taken, the sum is certain.
        let sum = if count == left {
            self.bytes
        } else if count < SUMMED_MIN {
            let draw = |_| class.lengths[random.random_range(0..class.lengths.len())] as f64;
            (0..count).map(draw).sum()
        } else {
            // Without replacement.
            let (files, rest) = (count as f64, (left - count) as f64);
            let variance = files * class.variance * rest / (left as f64 - 1.0).max(1.0);
            let noise: f64 = StandardNormal.sample(random);
            files * self.bytes / left as f64 + variance.sqrt() * noise
        };
        let sum = sum.clamp(0.0, self.bytes.max(0.0));
        self.bytes -= sum;
        sum
    }
}

/// The mean of a sequence of numbers, and its confidence.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mean {
    count: u64,
    mean: f64,
    /// The sum of squared distances from the mean.
    squares: f64,
}

impl Mean {
    /// Adds a number.
    pub fn add(&mut self, number: f64) {
        self.join(Self {
            count: 1,
            mean: number,
            squares: 0.0,
        });
    }

    /// Adds the numbers of another mean.
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

    /// The mean; 0 without numbers.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Half the width of the 95 % confidence interval; infinite for fewer than two numbers.
    #[must_use]
    pub fn within(&self) -> f64 {
        self.within_deviations(1.959_964)
    }

    /// The same for `deviations` standard deviations of the mean.
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

    use super::super::placement::binomial;
    use super::super::{Redundancy, Striping, estimate};
    use super::*;

    const FEW: Striping = Striping {
        width: Some(2),
        granularity: 1,
    };
    const LONG: Striping = Striping {
        width: Some(3),
        granularity: 2,
    };

    const PLACEMENTS: [(u32, Redundancy, Sets); 6] = [
        (10, Redundancy::Copies(1), Sets::Any),
        (10, Redundancy::Copies(2), Sets::Any),
        (9, Redundancy::Erasure { data: 2, parity: 1 }, Sets::Any),
        (
            10,
            Redundancy::Copies(2),
            Sets::Planned { sets_per_unit: 1 },
        ),
        (
            11,
            Redundancy::Copies(3),
            Sets::Planned { sets_per_unit: 2 },
        ),
        (
            9,
            Redundancy::Erasure { data: 2, parity: 1 },
            Sets::Planned { sets_per_unit: 2 },
        ),
    ];

    /// Each redundancy with all stripings.
    fn placements() -> Vec<Placement> {
        let ways = [Striping::default(), FEW, LONG];
        let all = PLACEMENTS
            .iter()
            .flat_map(|one| ways.map(|striping| (one, striping)));
        all.map(|((units, redundancy, sets), striping)| Placement {
            units: *units,
            redundancy: *redundancy,
            sets: *sets,
            striping,
        })
        .collect()
    }

    fn files() -> FileList {
        (1..200).map(|number| number * 100).collect()
    }

    #[test]
    fn trials_and_equations_agree() {
        let mut random = SmallRng::seed_from_u64(7);
        for placement in placements() {
            let simulation =
                Simulation::new(placement, 6, &files(), 4096).expect("a valid placement");
            let mut means = [Mean::default(); 7];
            for _ in 0..4000 {
                let leaked = simulation.trial(&mut random);
                assert!(leaked.is_sorted(), "more compromised units read more");
                for (mean, leaked) in means.iter_mut().zip(leaked) {
                    mean.add(leaked);
                }
            }
            for (compromised, mean) in (0..).zip(means) {
                let shares = placement.shares(compromised).expect("a valid placement");
                let expected = estimate(&files().classes(4096), &shares).bytes;
                let off = (mean.mean() - expected).abs();
                // This deviation has a probability of 1 in 15,000.
                assert!(
                    off <= mean.within_deviations(4.0) + 1e-9,
                    "{placement:?} {compromised}: {expected} {mean:?}"
                );
            }
        }
    }

    /// A trial that places each block.
    fn slow_trial(placement: &Placement, compromised: u32, random: &mut SmallRng) -> f64 {
        let members = placement.redundancy.members() as usize;
        let any = |random: &mut SmallRng| {
            let mut order: Vec<u32> = (0..placement.units).collect();
            order.shuffle(random);
            order.truncate(members);
            order
        };
        let mut sets: Vec<Vec<u32>> = Vec::new();
        if let Sets::Planned { sets_per_unit } = placement.sets_striped_over() {
            for _ in 0..sets_per_unit {
                let mut order: Vec<u32> = (0..placement.units).collect();
                order.shuffle(random);
                sets.extend(order.chunks_exact(members).map(<[u32]>::to_vec));
            }
        }
        match placement.striping.width {
            Some(width) if sets.is_empty() => sets.extend((0..width).map(|_| any(random))),
            Some(width) => {
                sets.shuffle(random);
                sets.truncate(width as usize);
            }
            None => {}
        }
        let row = u64::from(placement.redundancy.row_blocks());
        let piece = row * u64::from(placement.striping.granularity);
        let mut bytes = 0.0;
        for length in files().lengths() {
            let begin = random.random_range(0..piece);
            let (mut is_read, mut set, mut of) = (true, Vec::new(), None);
            for block in begin..begin + length.div_ceil(4096) {
                if of.replace(block / piece) != Some(block / piece) {
                    set = match sets.is_empty() {
                        true => any(random),
                        false => sets[random.random_range(0..sets.len())].clone(),
                    };
                }
                let of_set = set.iter().filter(|unit| **unit < compromised).count() as u64;
                let place = (block % row) as usize;
                is_read &= of_set >= row || (row > 1 && set[place] < compromised);
            }
            bytes += f64::from(u8::from(is_read)) * *length as f64;
        }
        bytes
    }

    /// Compares with trials in which every block has a position of its own.
    #[test]
    fn trials_equal_those_that_place_every_block() {
        let mut random = SmallRng::seed_from_u64(8);
        let (compromised, trials) = (4, 4000);
        for placement in placements() {
            let (mut slow, mut fast) = (Mean::default(), Mean::default());
            let simulation = Simulation::new(placement, compromised, &files(), 4096);
            let simulation = simulation.expect("a valid placement");
            for _ in 0..trials {
                slow.add(slow_trial(&placement, compromised, &mut random));
                fast.add(simulation.trial(&mut random)[compromised as usize]);
            }
            let off = (slow.mean() - fast.mean()).abs();
            let within = slow.within_deviations(4.0) + fast.within_deviations(4.0);
            assert!(off <= within, "{placement:?}: {slow:?} {fast:?}");
            // Their spread is the same.
            let ratio = slow.squares / fast.squares;
            assert!((0.8..1.25).contains(&ratio), "{placement:?} {ratio}");
        }
    }

    /// In a large class sums are drawn instead of files.
    #[test]
    fn large_classes_leak_as_much_as_small_ones() {
        let mut random = SmallRng::seed_from_u64(9);
        let placement = placements()[0];
        let files: FileList = (0..100_000_u64).map(|number| number % 4096 + 1).collect();
        let simulation = Simulation::new(placement, 5, &files, 4096).expect("a valid placement");
        let mut means = [Mean::default(); 6];
        for _ in 0..200 {
            let leaked = simulation.trial(&mut random);
            for (mean, leaked) in means.iter_mut().zip(leaked) {
                mean.add(leaked);
            }
        }
        for (compromised, mean) in means.iter().enumerate() {
            let expected = compromised as f64 / 10.0 * files.bytes() as f64;
            let off = (mean.mean() - expected).abs();
            assert!(off <= mean.within_deviations(4.0), "{compromised} {mean:?}");
        }
        // If all units are compromised, all files leak, whichever leaked first.
        let all = Simulation::new(placement, 10, &files, 4096).expect("a valid placement");
        let leaked = all.trial(&mut random)[10];
        assert!(
            (leaked / files.bytes() as f64 - 1.0).abs() < 1e-12,
            "{leaked}"
        );
    }

    /// The longest possible files, with blocks of one byte.
    #[test]
    fn the_longest_files_do_not_overflow() {
        let files: FileList = [u64::MAX, u64::MAX, u64::MAX - 1, 1].into_iter().collect();
        for placement in placements() {
            for compromised in [3, placement.units] {
                let simulation = Simulation::new(placement, compromised, &files, 1);
                let simulation = simulation.expect("a valid placement");
                let leaked = simulation.trial(&mut SmallRng::seed_from_u64(1));
                let shares = placement.shares(compromised).expect("a valid placement");
                let found = estimate(&files.classes(1), &shares);
                assert!(found.bytes_in_part <= found.bytes_all as f64 * 1.000_1);
                assert!(leaked.iter().all(|bytes| bytes.is_finite()));
                let is_all = compromised == placement.units;
                let all = files.bytes() as f64;
                assert_eq!(
                    leaked[compromised as usize] > all * 0.99,
                    is_all,
                    "{placement:?}"
                );
            }
        }
    }

    /// The leaking bytes in trials of files in `parts` parts.
    fn of_parts(placement: Placement, files: &FileList, parts: Option<u64>) -> Mean {
        let simulation = Simulation::new(placement, 3, files, 65_536).expect("a valid placement");
        let parts = parts.unwrap_or(simulation.parts);
        let simulation = simulation.in_parts(parts);
        let (mut random, mut mean) = (SmallRng::seed_from_u64(10), Mean::default());
        for _ in 0..400 {
            mean.add(simulation.trial(&mut random)[3]);
        }
        mean
    }

    /// The number of parts does not divide the number of files, and most parts have no files of
    /// some classes. Regression: trials with more than 32 parts used 32.
    #[test]
    fn trials_differ_less_if_files_are_in_more_parts() {
        let lengths = (0..3_400_u64).map(|number| 1 + number % 200 * 6_000);
        let files: FileList = lengths.collect();
        for redundancy in [
            Redundancy::Copies(2),
            Redundancy::Erasure { data: 2, parity: 1 },
        ] {
            let striping = Striping {
                width: Some(2),
                granularity: 2,
            };
            let placement = Placement::on(12, redundancy, None).striped(striping);
            let (all, few) = (
                of_parts(placement, &files, None),
                of_parts(placement, &files, Some(16)),
            );
            for mean in [all, few] {
                let shares = placement.shares(3).expect("a valid placement");
                let expected = estimate(&files.classes(65_536), &shares).bytes;
                let off = (mean.mean() - expected).abs();
                assert!(
                    off <= mean.within_deviations(4.0),
                    "{redundancy:?} {expected} {mean:?}"
                );
            }
            let parts = files.bytes() / u128::from(2 * redundancy.row_blocks()) / (8 << 20);
            let ratio = few.squares / all.squares;
            let expected = parts as f64 / 16.0;
            assert!(
                (0.6..1.5).contains(&(ratio / expected)),
                "{redundancy:?} {ratio} {expected}"
            );
        }
    }

    /// Of equally spaced draws, each number gets as many as the formula says.
    #[test]
    fn small_counts_are_drawn_with_their_probability() {
        const DRAWS: u32 = 1_000_000;
        for (things, p) in [(1, 0.3), (4, 0.2), (1000, 0.0009), (3, 0.0)] {
            let mut counts = [0.0; 16];
            for number in 0..DRAWS {
                let at = (f64::from(number) + 0.5) / f64::from(DRAWS);
                counts[few(things, p, at) as usize] += 1.0 / f64::from(DRAWS);
            }
            let expected = binomial(things as u32, p);
            for (count, found) in counts.iter().enumerate() {
                let expected = expected.get(count).copied().unwrap_or(0.0);
                assert!(
                    (found - expected).abs() < 3e-6,
                    "{things} {p} {count}: {found}"
                );
            }
        }
    }

    #[test]
    fn a_mean_does_not_depend_on_how_it_is_joined() {
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
