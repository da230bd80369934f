//! [`planned_sets`]: the sets that Scree plans; the equations of the model assume a simpler plan.
//!
//! Permutations are cut into sets until each unit shares blocks with as many others as desired (the
//! scatter width). From a permutation only new sets are taken that contain a unit with too few
//! others; missing members of the last set come from the start of the permutation. So some units
//! are in more sets than others, which matters if there are few units. (In Scree,
//! `catalog::copysets` does this, and also knows zones and earlier plans.)

use std::collections::BTreeSet;

use rand::Rng;
use rand::seq::SliceRandom as _;

/// Number of permutations that are tried for each other unit to share with: a permutation may bring
/// nothing new.
const TRIES: u32 = 64;

/// Sets of `members` members, at least 2 and at most `units`.
pub fn planned_sets(
    units: u32,
    members: u32,
    scatter_width: u32,
    random: &mut impl Rng,
) -> Vec<Vec<u32>> {
    let needed = scatter_width.max(members - 1).min(units - 1) as usize;
    let mut partners = vec![BTreeSet::new(); units as usize];
    let (mut sets, mut known) = (Vec::new(), BTreeSet::new());
    let mut order: Vec<u32> = (0..units).collect();
    for _ in 0..TRIES * scatter_width.max(members) {
        if partners.iter().all(|others| others.len() >= needed) {
            break;
        }
        order.shuffle(random);
        for cut in order.chunks(members as usize) {
            let mut set = cut.to_vec();
            let lacking = members as usize - cut.len();
            set.extend(
                order
                    .iter()
                    .filter(|unit| !cut.contains(unit))
                    .take(lacking),
            );
            let lacks = |unit: &u32| partners[*unit as usize].len() < needed;
            let mut sorted = set.clone();
            sorted.sort_unstable();
            if set.iter().any(lacks) && known.insert(sorted) {
                for unit in &set {
                    let others = set.iter().copied().filter(|other| other != unit);
                    partners[*unit as usize].extend(others);
                }
                // Parity is distributed evenly over all units.
                set.shuffle(random);
                sets.push(set);
            }
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::SmallRng;

    use super::*;

    #[test]
    fn each_unit_shares_with_as_many_others_as_desired() {
        let mut random = SmallRng::seed_from_u64(4);
        for (units, members, width) in [(6, 3, 8), (20, 3, 4), (10, 2, 8), (7, 6, 1), (3, 3, 8)] {
            for _ in 0..50 {
                let sets = planned_sets(units, members, width, &mut random);
                let mut sorted = BTreeSet::new();
                for set in &sets {
                    let is_in: BTreeSet<u32> = set.iter().copied().collect();
                    assert_eq!(
                        (set.len(), is_in.len()),
                        (members as usize, members as usize)
                    );
                    assert!(sorted.insert(is_in), "duplicate {set:?}");
                }
                for unit in 0..units {
                    let with = sorted.iter().filter(|set| set.contains(&unit));
                    let others: BTreeSet<u32> = with.flatten().copied().collect();
                    let needed = width.max(members - 1).min(units - 1) as usize;
                    assert!(others.len() > needed, "{units} {members} {width}: {sets:?}");
                }
            }
        }
    }
}
