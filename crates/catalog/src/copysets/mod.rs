//! Choosing copysets: which sets of units hold segments together.
//!
//! With two copies on two random units out of N, every pair of units would hold
//! some block alone: any two failures would lose data. Limiting the pairs in use
//! to a few (copyset replication) makes that unlikely, at the price that fewer
//! units help to rebuild one. Copysets are added until each unit shares segments with
//! at least `scatter_width` others. Units in one zone may be lost together: they share no
//! segments, if that is possible.

mod replacement;

use std::collections::{BTreeMap, BTreeSet};

use base::{CopysetId, UnitId};
use world::Random;

pub use self::replacement::{rebalancing, replacement};
use crate::{Copyset, Erasure};

/// The number of other units that a unit shares segments with at least, if there are as
/// many: with up to 9 units every pair is used, as in HVSTO's independent placement.
pub const SCATTER_WIDTH: usize = 8;

/// The zone of each unit. A zone, such as a rack, may be lost at once. A unit that is
/// not listed is in a zone of its own.
pub type Zones = BTreeMap<UnitId, String>;

/// The number of zones that `units` are in.
#[must_use]
pub fn zone_count(units: &[UnitId], zones: &Zones) -> usize {
    let named: BTreeSet<&String> = units.iter().filter_map(|unit| zones.get(unit)).collect();
    let alone = units.iter().filter(|unit| !zones.contains_key(unit));
    named.len() + alone.count()
}

/// Plans the copysets to add to the existing ones so that every unit shares segments
/// with enough others. With one replica, a copyset is a unit. No two members are in
/// one zone if there are as many zones as members; existing copysets that violate this
/// do not count.
///
/// Returns nothing if there are fewer units than members, or no copyset numbers left.
#[must_use]
pub fn plan(
    units: &[UnitId],
    zones: &Zones,
    replicas: u8,
    erasure: Option<Erasure>,
    existing: &[Copyset],
    scatter_width: usize,
    random: &dyn Random,
) -> Vec<Copyset> {
    let size = usize::from(erasure.map_or(replicas, Erasure::members));
    let data = erasure.map_or(1, Erasure::data);
    if size == 0 || units.len() < size {
        return Vec::new();
    }
    let planner = Planner {
        units,
        zones,
        size,
        has_zones: zone_count(units, zones) >= size,
        scatter_width,
    };
    let mut sets: Vec<Vec<UnitId>> = existing
        .iter()
        .filter(|copyset| copyset.members.len() == size && copyset.data == data)
        .filter(|copyset| planner.is_sound(&copyset.members))
        .map(|copyset| sorted(copyset.members.clone()))
        .collect();
    let first_new = sets.len();
    match size {
        1 => planner.add_single_units(&mut sets),
        _ => planner.add_random_sets(&mut sets, random),
    }
    let mut numbers = (0..CopysetId::COUNT_MAX)
        .filter_map(CopysetId::new)
        .filter(|id| existing.iter().all(|copyset| copyset.id != *id));
    sets.drain(first_new..)
        .map_while(|mut members| {
            if data > 1 {
                // Parity is spread evenly over the units.
                shuffle(&mut members, random);
            }
            Some(Copyset {
                data,
                ..Copyset::of_copies(numbers.next()?, members)
            })
        })
        .collect()
}

/// What copysets of one size are planned from.
struct Planner<'a> {
    units: &'a [UnitId],
    zones: &'a Zones,
    /// The number of members.
    size: usize,
    /// Whether there are as many zones as members.
    has_zones: bool,
    scatter_width: usize,
}

impl Planner<'_> {
    /// Whether two units are in different zones.
    fn are_apart(&self, one: UnitId, other: UnitId) -> bool {
        let zones = self.zones;
        one != other && (zones.get(&one).is_none() || zones.get(&one) != zones.get(&other))
    }

    /// Whether two units may be members of one copyset.
    fn may_share(&self, one: UnitId, other: UnitId) -> bool {
        one != other && (!self.has_zones || self.are_apart(one, other))
    }

    /// Whether all members may share a copyset.
    fn is_sound(&self, set: &[UnitId]) -> bool {
        let pairs = set.iter().enumerate();
        pairs.fold(true, |sound, (place, one)| {
            let mut others = set[place + 1..].iter();
            sound && others.all(|other| self.may_share(*one, *other))
        })
    }

    /// Whether a unit shares segments with too few others.
    fn needs_partners(&self, unit: UnitId, sets: &[Vec<UnitId>]) -> bool {
        let others = self.units.iter();
        let others = others.filter(|other| self.may_share(unit, **other)).count();
        let least = self.scatter_width.max(self.size - 1).min(others);
        partners(unit, sets, self.units) < least
    }

    /// Adds each unit as a set of its own.
    fn add_single_units(&self, sets: &mut Vec<Vec<UnitId>>) {
        for unit in self.units {
            if !sets.contains(&vec![*unit]) {
                sets.push(vec![*unit]);
            }
        }
    }

    /// Divides random permutations into sets until every unit has enough partners. The
    /// number of permutations is bounded, since one may add no partner.
    fn add_random_sets(&self, sets: &mut Vec<Vec<UnitId>>, random: &dyn Random) {
        for _ in 0..64 * self.scatter_width.max(self.size) {
            let mut units = self.units.iter();
            if !units.any(|unit| self.needs_partners(*unit, sets)) {
                break;
            }
            let mut order = self.units.to_vec();
            shuffle(&mut order, random);
            for set in divide(&order, self.size, |one, other| self.are_apart(one, other)) {
                let is_wanted = set.iter().any(|unit| self.needs_partners(*unit, sets));
                let set = sorted(set);
                if is_wanted && self.is_sound(&set) && !sets.contains(&set) {
                    sets.push(set);
                }
            }
        }
    }
}

/// Divides a permutation into sets of `size`, each of units that are apart as far as
/// possible. The last sets are completed from the start of the permutation.
fn divide(
    order: &[UnitId],
    size: usize,
    are_apart: impl Fn(UnitId, UnitId) -> bool,
) -> Vec<Vec<UnitId>> {
    let mut left = order.to_vec();
    let mut sets = Vec::new();
    while !left.is_empty() {
        let mut set: Vec<UnitId> = Vec::with_capacity(size);
        for unit in left.iter().chain(order) {
            if set.len() < size && set.iter().all(|member| are_apart(*member, *unit)) {
                set.push(*unit);
            }
        }
        for unit in left.iter().chain(order) {
            if set.len() < size && !set.contains(unit) {
                set.push(*unit);
            }
        }
        left.retain(|unit| !set.contains(unit));
        sets.push(set);
    }
    sets
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

/// Shuffles `items` (Fisher and Yates).
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
    use std::collections::HashMap;

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
        (0..count).map(UnitId::from_u128).collect()
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
            let copysets = plan(&units, &Zones::new(), replicas, None, &[], width, &random);
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
                plan(
                    &units,
                    &Zones::new(),
                    replicas,
                    None,
                    &copysets,
                    width,
                    &random
                )
                .is_empty(),
                "settled"
            );
        }
    }

    #[test]
    fn a_new_unit_joins_and_old_copysets_keep_their_numbers() {
        let random = Counting(AtomicU64::new(7));
        let before = plan(&units(4), &Zones::new(), 2, None, &[], 8, &random);
        let added = plan(&units(5), &Zones::new(), 2, None, &before, 8, &random);
        assert!(!added.is_empty());
        for copyset in &added {
            assert!(copyset.members.contains(&UnitId::from_u128(4)));
            assert!(before.iter().all(|old| old.id != copyset.id));
        }
    }

    #[test]
    fn parity_copysets_are_separate_and_parity_lies_on_many_units() {
        let random = Counting(AtomicU64::new(3));
        let units = units(8);
        let copies = plan(&units, &Zones::new(), 3, None, &[], 8, &random);
        let erasure = Erasure::new(2, 1);
        let copysets = plan(&units, &Zones::new(), 1, erasure, &copies, 8, &random);
        assert!(copysets.iter().all(|copyset| copyset.erasure() == erasure));
        let mut with_parity: Vec<UnitId> = copysets.iter().map(|set| set.members[2]).collect();
        with_parity.sort_unstable();
        with_parity.dedup();
        assert!(with_parity.len() > 3, "{with_parity:?}");
        let all: Vec<Copyset> = copies.into_iter().chain(copysets).collect();
        assert!(plan(&units, &Zones::new(), 1, erasure, &all, 8, &random).is_empty());
        assert!(plan(&units, &Zones::new(), 3, None, &all, 8, &random).is_empty());
    }

    #[test]
    fn too_few_units_make_no_copyset() {
        let random = Counting(AtomicU64::new(1));
        assert!(plan(&units(1), &Zones::new(), 2, None, &[], 8, &random).is_empty());
        assert!(plan(&[], &Zones::new(), 1, None, &[], 8, &random).is_empty());
    }

    /// Units in zones named by letters, one letter a unit; `.` is in none.
    fn in_zones(letters: &str) -> (Vec<UnitId>, Zones) {
        let units = units(letters.len() as u128);
        let named = units.iter().zip(letters.chars());
        let zones = named.filter(|(_, letter)| *letter != '.');
        let zones = zones.map(|(unit, letter)| (*unit, letter.to_string()));
        let zones = zones.collect();
        (units, zones)
    }

    #[test]
    fn no_two_members_are_in_one_zone_where_there_are_enough() {
        let random = Counting(AtomicU64::new(5));
        for (letters, replicas) in [
            ("aabb", 2),
            ("aaaabc", 2),
            ("aaaabc", 3),
            ("aabbccdd", 3),
            ("abcdefghijkl", 11),
            ("aabbccddeeffgghhiijjkk", 11),
            ("aaa.", 2),
            ("aa...", 3),
            ("aabbcc......", 4),
        ] {
            let (units, zones) = in_zones(letters);
            let copysets = plan(&units, &zones, replicas, None, &[], 8, &random);
            for copyset in &copysets {
                let among = &copyset.members;
                assert_eq!(among.len(), usize::from(replicas), "{letters}");
                assert_eq!(
                    zone_count(among, &zones),
                    among.len(),
                    "{letters}: {among:?}"
                );
            }
            for unit in &units {
                let is_in = |copyset: &Copyset| copyset.members.contains(unit);
                assert!(copysets.iter().any(is_in), "{letters}: {unit} has none");
            }
            assert!(plan(&units, &zones, replicas, None, &copysets, 8, &random).is_empty());
        }
    }

    #[test]
    fn with_too_few_zones_copysets_are_as_far_apart_as_they_can() {
        let random = Counting(AtomicU64::new(5));
        let (units, zones) = in_zones("aaabbb");
        let copysets = plan(&units, &zones, 3, None, &[], 8, &random);
        assert!(!copysets.is_empty());
        for copyset in &copysets {
            assert_eq!(zone_count(&copyset.members, &zones), 2);
        }
    }

    #[test]
    fn zones_that_are_named_later_add_copysets_that_respect_them() {
        let random = Counting(AtomicU64::new(5));
        let (units, zones) = in_zones("aabb");
        let before = plan(&units, &Zones::new(), 2, None, &[], 8, &random);
        assert_eq!(before.len(), 6, "all pairs");
        assert!(
            plan(&units, &zones, 2, None, &before, 8, &random).is_empty(),
            "they exist"
        );
        let (wide, zones) = in_zones("aabbc");
        let added = plan(&wide, &zones, 2, None, &before, 8, &random);
        assert!(!added.is_empty());
        assert!(added.iter().all(|set| set.members.contains(&wide[4])));
    }

    fn copyset_of(number: u16, members: &[UnitId]) -> Copyset {
        let id = CopysetId::new(number).expect("12 bits");
        Copyset::of_copies(id, members.to_vec())
    }

    #[test]
    fn a_replacement_is_in_another_zone_first_and_least_loaded_second() {
        let units = units(6);
        let zone = |unit: usize, zone: &str| (units[unit], zone.to_owned());
        let zones: Zones = [zone(0, "a"), zone(1, "b"), zone(2, "b"), zone(3, "a")].into();
        let loads = |of: &[(usize, usize)]| -> HashMap<UnitId, usize> {
            of.iter()
                .map(|(unit, load)| (units[*unit], *load))
                .collect()
        };
        let copyset = copyset_of(1, &units[..2]);
        let taken = |of: &[(usize, usize)]| {
            let new = replacement(&copyset, units[0], &loads(of), &zones)?;
            units.iter().position(|unit| *unit == new)
        };
        // In the zone of the remaining member, and less loaded.
        assert_eq!(taken(&[(2, 0), (3, 7)]), Some(3), "the zone that is left");
        assert_eq!(taken(&[(2, 0), (4, 7)]), Some(4), "a zone of its own");
        assert_eq!(taken(&[(3, 7), (4, 6), (5, 8)]), Some(4), "the least");
        assert_eq!(taken(&[(2, 3)]), Some(2), "there is no other");
        assert_eq!(taken(&[(0, 0), (1, 0)]), None, "they are members");
        let leaving = Copyset {
            draining: vec![crate::DrainingMember {
                place: 0,
                unit: units[4],
            }],
            ..copyset.clone()
        };
        let new = replacement(&leaving, units[0], &loads(&[(4, 0)]), &zones);
        assert_eq!(new, None, "it has just left");
    }

    #[test]
    fn rebalancing_terminates_and_puts_no_two_members_into_one_zone() {
        let units = units(4);
        let mut copysets: Vec<Copyset> = (0..8).map(|at| copyset_of(at, &units[..2])).collect();
        let loads = |copysets: &[Copyset]| -> HashMap<UnitId, usize> {
            let load = |unit: &UnitId| {
                let its = copysets.iter().filter(|set| set.members.contains(unit));
                (*unit, its.count())
            };
            units.iter().map(load).collect()
        };
        // The new units are both in the zone of the second one.
        let zones: Zones = units[1..]
            .iter()
            .map(|unit| (*unit, "b".to_owned()))
            .collect();
        for _ in 0..8 {
            for (id, old, new) in rebalancing(&copysets, &loads(&copysets), &zones) {
                let set = copysets.iter_mut().find(|set| set.id == id).expect("known");
                assert!(old != units[0], "it would share a zone");
                let place = set.members.iter().position(|unit| *unit == old);
                set.members[place.expect("a member")] = new;
            }
        }
        let all = loads(&copysets);
        assert_eq!(all[&units[0]], 8);
        assert!(
            units[1..].iter().all(|unit| (2..=3).contains(&all[unit])),
            "{all:?}"
        );
        assert_eq!(rebalancing(&copysets, &all, &zones), []);
        copysets[0].rebuilding.push(units[0]);
        copysets.truncate(1);
        assert_eq!(
            rebalancing(&copysets, &all, &Zones::new()),
            [],
            "it is completed"
        );
    }
}
