//! Trials, compared with the equations and with trials that place every block.

use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::super::distributions::binomial;
use super::super::mean::Mean;
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
        let simulation = Simulation::new(placement, 6, &files(), 4096).expect("a valid placement");
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
