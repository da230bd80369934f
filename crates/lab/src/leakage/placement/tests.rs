//! Shares of placements, compared with counts of all cases.

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
    for (units, compromised, members) in [(10, 3, 4), (7, 7, 3), (9, 0, 2), (12, 6, 12), (5, 4, 3)]
    {
        let found = hypergeometric(units, compromised, members);
        let ways = |of: u32, count: u32| -> f64 {
            let factors =
                (0..count).map(|at| (f64::from(of) - f64::from(at)).max(0.0) / f64::from(at + 1));
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
