//! The sums, compared with counts of all cases.

use std::collections::BTreeMap;

use super::super::Striping;
use super::*;
use crate::leakage::cases::permutations;

/// The readable positions of a row on a set.
type Set = Vec<bool>;

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-10 * one.abs().max(other.abs()).max(1e-6)
}

/// The readable positions of a row on these units, the first of which have its data.
fn set(redundancy: Redundancy, units: &[u32], compromised: u32) -> Set {
    let row = redundancy.row_blocks() as usize;
    let is_compromised = |unit: &u32| *unit < compromised;
    let is_whole = units.iter().filter(|unit| is_compromised(unit)).count() >= row;
    units[..row]
        .iter()
        .map(|unit| is_whole || is_compromised(unit))
        .collect()
}

/// Probability that a file of `blocks` blocks is readable if its pieces are on these sets: over all
/// alignments, and all sets for each piece.
fn leaks_on(sets: &[Set], granularity: u32, blocks: u64) -> f64 {
    let row = sets[0].len() as u64;
    let piece = row * u64::from(granularity);
    let of_beginning = |begin: u64| {
        let mut p = 1.0;
        let (mut at, end) = (begin, begin + blocks);
        while at < end {
            let next = (at / piece + 1) * piece;
            let part = at..next.min(end);
            let is_readable = |set: &&Set| part.clone().all(|block| set[(block % row) as usize]);
            p *= sets.iter().filter(is_readable).count() as f64 / sets.len() as f64;
            at = next;
        }
        p
    };
    (0..piece).map(of_beginning).sum::<f64>() / piece as f64
}

/// All choices of `count` sets.
fn choices(sets: &[Set], count: usize) -> Vec<Vec<Set>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in sets.iter().enumerate() {
        for mut rest in choices(&sets[at + 1..], count - 1) {
            rest.push(first.clone());
            all.push(rest);
        }
    }
    all
}

const SPREADS: [Redundancy; 4] = [
    Redundancy::Copies(2),
    Redundancy::Copies(3),
    Redundancy::Erasure { data: 2, parity: 1 },
    Redundancy::Erasure { data: 2, parity: 2 },
];

/// Compares with all pairs of permutations of the units, choices of sets, and alignments.
fn check_plan(units: u32, redundancy: Redundancy, compromised: u32) {
    let mut often = BTreeMap::<Vec<Set>, u32>::new();
    for order in permutations((0..units).collect()) {
        let sets = order.chunks_exact(redundancy.members() as usize);
        let sets = sets
            .map(|units| set(redundancy, units, compromised))
            .collect();
        *often.entry(sets).or_default() += 1;
    }
    for (width, granularity) in [(None, 1), (None, 2), (Some(1), 1), (Some(2), 1)] {
        let placement = Placement {
            units,
            redundancy,
            sets: Sets::Planned { sets_per_unit: 2 },
            striping: Striping { width, granularity },
        };
        let shares = placement.shares(compromised).expect("a valid placement");
        for blocks in [1, 2, 3, 5, 8] {
            let (mut expected, mut cases) = (0.0, 0.0);
            for (first, times) in &often {
                for (second, more_times) in &often {
                    let sets = [&first[..], second].concat();
                    let count = width.map_or(sets.len(), |width| width as usize);
                    let choices = choices(&sets, count);
                    let leaks = |sets: &Vec<Set>| leaks_on(sets, granularity, blocks);
                    let mean = choices.iter().map(leaks).sum::<f64>();
                    let weight = f64::from(*times) * f64::from(*more_times);
                    expected += weight * mean / choices.len() as f64;
                    cases += weight;
                }
            }
            let found = shares.leaks(blocks);
            let expected = expected / cases;
            assert!(
                close(found, expected),
                "{placement:?} {compromised} {blocks}: {found} {expected}"
            );
        }
    }
}

#[test]
fn files_on_a_plan_leak_as_often_as_in_all_cases_counted() {
    for redundancy in SPREADS {
        for compromised in 0..=6 {
            check_plan(6, redundancy, compromised);
        }
    }
}

/// One end of the files is longer than the other.
#[test]
fn long_rows_on_a_plan_leak_as_often_as_in_all_cases_counted() {
    for (units, data) in [(8, 3), (5, 4), (6, 4)] {
        for compromised in 0..=units {
            check_plan(units, Redundancy::Erasure { data, parity: 1 }, compromised);
        }
    }
}

/// Compares with all sets of five units, in every order, for each piece; and with all pairs of
/// sets.
#[test]
fn files_on_any_sets_leak_as_often_as_in_all_cases_counted() {
    for redundancy in SPREADS {
        for compromised in 0..=5 {
            let members = redundancy.members() as usize;
            let orders = permutations((0..5).collect());
            let sets: Vec<Set> = orders
                .iter()
                .map(|order| set(redundancy, &order[..members], compromised))
                .collect();
            let mut often = BTreeMap::<&Set, f64>::new();
            sets.iter()
                .for_each(|set| *often.entry(set).or_default() += 1.0 / sets.len() as f64);
            for (width, granularity) in [(None, 1), (None, 3), (Some(2), 1), (Some(2), 2)] {
                let placement = Placement {
                    units: 5,
                    redundancy,
                    sets: Sets::Any,
                    striping: Striping { width, granularity },
                };
                let shares = placement.shares(compromised).expect("a valid placement");
                for blocks in [1, 2, 3, 5, 7] {
                    let expected = match width {
                        // Of this many sets hardly any is drawn twice.
                        None => leaks_on(&sets, granularity, blocks),
                        Some(_) => {
                            let mut mean = 0.0;
                            for (one, p) in &often {
                                for (other, q) in &often {
                                    let two = [(*one).clone(), (*other).clone()];
                                    mean += p * q * leaks_on(&two, granularity, blocks);
                                }
                            }
                            mean
                        }
                    };
                    let found = shares.leaks(blocks);
                    assert!(
                        close(found, expected),
                        "{placement:?} {compromised} {blocks}: {found} {expected}"
                    );
                }
            }
        }
    }
}

/// Compares with all choices of two of five units.
#[test]
fn one_copy_is_striped_over_units() {
    let placement = Placement::on(5, Redundancy::Copies(1), None).striped(Striping {
        width: Some(2),
        granularity: 1,
    });
    for compromised in 0..=5_u32 {
        let sets: Vec<Set> = (0..5).map(|unit| vec![unit < compromised]).collect();
        let choices = choices(&sets, 2);
        let shares = placement.shares(compromised).expect("a valid placement");
        for blocks in [1, 2, 4] {
            let expected = choices
                .iter()
                .map(|sets| leaks_on(sets, 1, blocks))
                .sum::<f64>();
            let expected = expected / choices.len() as f64;
            assert!(
                close(shares.leaks(blocks), expected),
                "{compromised} {blocks}"
            );
            let none = choices.iter().map(|sets| {
                let free = sets.iter().filter(|set| !set[0]).count() as f64 / 2.0;
                free.powi(blocks as i32)
            });
            let some = 1.0 - none.sum::<f64>() / choices.len() as f64;
            assert!(
                close(shares.leaks_some(blocks), some),
                "{compromised} {blocks}"
            );
        }
    }
}

/// The same number of blocks leaks, but more whole files; fewer with rows, while fewer than k units
/// are compromised.
#[test]
fn few_sets_and_long_pieces_leak_more_files_and_rows_leak_fewer() {
    let one = Placement::on(100, Redundancy::Copies(1), None);
    let leaks = |placement: Placement, blocks| {
        let shares = placement.shares(10).expect("a valid placement");
        shares.leaks(blocks)
    };
    let striped = |width, granularity| one.striped(Striping { width, granularity });
    assert!(close(leaks(striped(Some(16), 1), 1), leaks(one, 1)));
    assert!(leaks(striped(Some(16), 1), 10) > 2.0 * leaks(one, 10));
    assert!(close(leaks(striped(Some(100), 1), 10), leaks(one, 10)));
    assert!(close(leaks(striped(None, 4), 1), leaks(one, 1)));
    assert!(leaks(striped(None, 4), 4) > 10.0 * leaks(one, 4));
    let rows = Placement::on(20, Redundancy::Erasure { data: 4, parity: 2 }, Some(8));
    let shares = rows.shares(3).expect("a valid placement");
    assert!(close(shares.leaks(1), 3.0 / 20.0));
    assert!(shares.leaks(2) < (3.0_f64 / 20.0).powi(2) * 1.5);
}

/// Regression: summing over all choices of sets took hours and gigabytes.
#[test]
fn sums_for_a_thousand_units_are_fast() {
    for (data, parity) in [(2, 1), (4, 2), (8, 3), (64, 64)] {
        let widths = [None, Some(16), Some(1024)];
        let scatter = [None, Some(8), Some(64)];
        let cases = widths
            .iter()
            .flat_map(|width| scatter.map(|scatter| (*width, scatter)));
        for (width, scatter) in cases {
            let redundancy = Redundancy::Erasure { data, parity };
            let striping = Striping {
                width,
                granularity: 4096,
            };
            let placement = Placement::on(1000, redundancy, scatter).striped(striping);
            let shares = placement.shares(250).expect("a valid placement");
            // The same share of all blocks is readable as of one set.
            let of_set = hypergeometric(1000, 250, redundancy.members());
            let readable = |count| f64::from(redundancy.readable_parts(count));
            let of_set = (0..).zip(of_set).map(|(count, p)| p * readable(count));
            let of_block = of_set.sum::<f64>() / f64::from(redundancy.members());
            assert!(close(shares.leaks(1), of_block), "{placement:?}");
            let (short, long) = (shares.leaks(10), shares.leaks(u64::MAX));
            assert!(
                short < of_block && long < short,
                "{placement:?} {short} {long}"
            );
        }
    }
}
