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
//!                                              L1 ~ B(L3, P1 / P3) and
//!                                              L2 − L1 ~ B(L3 − L1, (P2 − P1) / (P3 − P1))
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

/// By class, the probabilities that a file is readable with 0, 1 … compromised units, if each piece
/// has a set of its own.
fn certain_leaks(
    placement: &Placement,
    compromised_max: u32,
    classes: &[Files],
) -> Result<Vec<Vec<f64>>, PlacementError> {
    let counts = 0..=compromised_max;
    let shares = counts.map(|count| placement.shares(count));
    let shares = shares.collect::<Result<Vec<_>, _>>()?;
    let of_class = |class: &Files| {
        let leaks = shares.iter().map(|shares| shares.leaks(class.blocks));
        leaks.collect()
    };
    Ok(classes.iter().map(of_class).collect())
}

/// The number of parts in which files are written; may be 0 if there are none.
fn parts_of(placement: &Placement, files: &FileList) -> u64 {
    let row = u64::from(placement.redundancy.row_blocks());
    // If there are no more sets, all parts have the same ones.
    let is_choice = |width: &u32| match placement.sets_striped_over() {
        Sets::Any => true,
        Sets::Planned { sets_per_unit } => {
            *width < placement.units / placement.redundancy.members() * sets_per_unit
        }
    };
    placement
        .striping
        .width
        .filter(is_choice)
        .map_or(1, |width| {
            let of_part = u64::from(width) * row * SEGMENT_BYTES;
            let parts = files.bytes().div_ceil(u128::from(of_part));
            let most = PARTS_MAX.min(PARTS_OF_SET_MAX * u64::from(width));
            u64::try_from(parts).unwrap_or(u64::MAX).min(most)
        })
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
            true => Some(certain_leaks(&placement, compromised_max, &classes)?),
        };
        let parts = parts_of(&placement, files);
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

#[cfg(test)]
mod tests;
