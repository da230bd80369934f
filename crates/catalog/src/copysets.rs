//! Which sets of units hold segments together.
//!
//! Two copies on two random units out of N would make every pair of units a
//! pair that holds some block alone: any two failures then lose something.
//! Limiting the pairs in use to a few (copyset replication) makes that
//! unlikely, at the price that fewer units help to rebuild one. Each unit
//! shares segments with about `scatter_width` others.

use std::collections::HashMap;

use base::{CopysetId, UnitId};
use world::Random;

use crate::Copyset;

/// With how many others a unit shares segments, unless there are fewer: at 8
/// units every pair is used, as HVSTO's independent placement would.
pub const SCATTER_WIDTH: usize = 8;

/// The copysets to add so that every unit of `units` shares segments with
/// `scatter_width` others (or all there are) at `replicas` copies, given those
/// that exist. With one replica a copyset is a unit.
///
/// Returns nothing if there are fewer units than replicas, or no copyset
/// numbers left.
#[must_use]
pub fn plan(
    units: &[UnitId],
    replicas: u8,
    existing: &[Copyset],
    scatter_width: usize,
    random: &dyn Random,
) -> Vec<Copyset> {
    let size = usize::from(replicas);
    if size == 0 || units.len() < size {
        return Vec::new();
    }
    let mut sets: Vec<Vec<UnitId>> = existing
        .iter()
        .filter(|copyset| copyset.members.len() == size)
        .map(|copyset| sorted(copyset.members.clone()))
        .collect();
    let first_new = sets.len();
    if size == 1 {
        for unit in units {
            if !sets.contains(&vec![*unit]) {
                sets.push(vec![*unit]);
            }
        }
    } else {
        let width = scatter_width.max(size - 1).min(units.len() - 1);
        // Random permutations cut into sets, until everyone knows enough
        // others; bounded, since a permutation may bring nothing new.
        for _ in 0..64 * width {
            if units
                .iter()
                .all(|unit| partners(*unit, &sets, units) >= width)
            {
                break;
            }
            let mut order = units.to_vec();
            shuffle(&mut order, random);
            // The last set is filled up from the start of the permutation.
            let cut = order.len().div_ceil(size) * size - order.len();
            order.extend_from_within(..cut);
            for set in order.chunks(size) {
                let needs = set.iter().any(|unit| partners(*unit, &sets, units) < width);
                let set = sorted(set.to_vec());
                if needs && !sets.contains(&set) {
                    sets.push(set);
                }
            }
        }
    }
    let mut numbers = (0..CopysetId::COUNT_MAX)
        .filter_map(CopysetId::new)
        .filter(|id| existing.iter().all(|copyset| copyset.id != *id));
    sets.drain(first_new..)
        .map_while(|members| Some(Copyset::new(numbers.next()?, members)))
        .collect()
}

/// The unit among `loads` that is to take a place in `copyset`: the one that is a
/// member of the fewest, by the count that comes with it. `None` if each has a place
/// there, or is leaving one.
#[must_use]
pub fn replacement(copyset: &Copyset, loads: &HashMap<UnitId, usize>) -> Option<UnitId> {
    let is_in = |unit: &UnitId| copyset.standing().any(|(member, _)| member == *unit);
    let others = loads.iter().filter(|(unit, _)| !is_in(unit));
    // Which of several is the same for whoever asks.
    let least = others.min_by_key(|(unit, load)| (**load, **unit));
    least.map(|(unit, _)| *unit)
}

/// Which units are to take the place of others, and where, so that each is a member
/// of about as many copysets: one change a copyset at most, and none in one that has
/// a member which is not whole.
#[must_use]
pub fn rebalancing(
    copysets: &[Copyset],
    loads: &HashMap<UnitId, usize>,
) -> Vec<(CopysetId, UnitId, UnitId)> {
    let mut loads = loads.clone();
    let mut moves = Vec::new();
    for copyset in copysets {
        if !copyset.filling.is_empty() || !copyset.leaving.is_empty() {
            continue;
        }
        let members = copyset.members.iter();
        let known = members.filter_map(|unit| Some((*loads.get(unit)?, *unit)));
        let Some((most, old)) = known.max() else {
            continue;
        };
        let Some(new) = replacement(copyset, &loads) else {
            continue;
        };
        if loads.get(&new).is_some_and(|least| *least + 1 < most) {
            *loads.entry(old).or_default() -= 1;
            *loads.entry(new).or_default() += 1;
            moves.push((copyset.id, old, new));
        }
    }
    moves
}

fn sorted(mut members: Vec<UnitId>) -> Vec<UnitId> {
    members.sort_unstable();
    members
}

fn partners(unit: UnitId, sets: &[Vec<UnitId>], among: &[UnitId]) -> usize {
    let mut others: Vec<UnitId> = sets
        .iter()
        .filter(|set| set.contains(&unit))
        .flatten()
        .copied()
        .filter(|other| *other != unit && among.contains(other))
        .collect();
    others.sort_unstable();
    others.dedup();
    others.len()
}

/// Fisher and Yates.
/// Puts `items` into a random order.
pub fn shuffle<T>(items: &mut [T], random: &dyn Random) {
    let mut bytes = vec![0; items.len() * 8];
    random.fill(&mut bytes);
    for (last, word) in (1..items.len()).rev().zip(bytes.chunks_exact(8)) {
        let word = u64::from_le_bytes(word.try_into().expect("a chunk of eight"));
        items.swap(last, (word % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Counting(AtomicU64);

    impl Random for Counting {
        fn fill(&self, bytes: &mut [u8]) {
            for byte in bytes {
                let count = self.0.fetch_add(1, Ordering::Relaxed);
                *byte = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
            }
        }
    }

    fn units(count: u128) -> Vec<UnitId> {
        (0..count).map(UnitId::from_random).collect()
    }

    #[test]
    fn every_unit_gets_enough_partners_and_no_copyset_repeats_a_unit() {
        let random = Counting(AtomicU64::new(1));
        for (count, replicas, width) in [
            (1, 1, 8),
            (8, 1, 8),
            (2, 2, 8),
            (8, 2, 8),
            (8, 3, 8),
            (5, 4, 8),
            (30, 3, 8),
            (30, 2, 4),
        ] {
            let units = units(count);
            let copysets = plan(&units, replicas, &[], width, &random);
            let sets: Vec<_> = copysets
                .iter()
                .map(|copyset| copyset.members.clone())
                .collect();
            for set in &sets {
                let mut distinct = set.clone();
                distinct.dedup();
                assert_eq!(distinct.len(), usize::from(replicas), "{set:?}");
            }
            let width = if replicas == 1 {
                0
            } else {
                width.min(units.len() - 1)
            };
            for unit in &units {
                assert!(sets.iter().any(|set| set.contains(unit)));
                assert!(
                    partners(*unit, &sets, &units) >= width,
                    "{count} {replicas}"
                );
            }
            assert!(
                plan(&units, replicas, &copysets, width, &random).is_empty(),
                "settled"
            );
        }
    }

    #[test]
    fn a_new_unit_joins_and_old_copysets_keep_their_numbers() {
        let random = Counting(AtomicU64::new(7));
        let before = plan(&units(4), 2, &[], 8, &random);
        let added = plan(&units(5), 2, &before, 8, &random);
        assert!(!added.is_empty());
        for copyset in &added {
            assert!(copyset.members.contains(&UnitId::from_random(4)));
            assert!(before.iter().all(|old| old.id != copyset.id));
        }
    }

    #[test]
    fn too_few_units_make_no_copyset() {
        let random = Counting(AtomicU64::new(1));
        assert!(plan(&units(1), 2, &[], 8, &random).is_empty());
        assert!(plan(&[], 1, &[], 8, &random).is_empty());
    }
}
