//! [`grown`]: the sets that Scree plans, of which the model's equations have another plan.
//!
//! Permutations are cut into sets until each unit shares blocks with as many others as it should
//! ("scatter width"). Of each only sets are taken that have a unit which lacks some, and none
//! twice; what the last one lacks is taken from the beginning. So some units are in more sets than
//! others, and where there are few units that makes a difference. (In Scree it is
//! `catalog::copysets`, which knows zones and what was planned before as well.)

use std::collections::BTreeSet;

use rand::Rng;
use rand::seq::SliceRandom as _;

/// Permutations are tried so many times for each other unit that one is to share with: one may
/// bring nothing new.
const TRIES: u32 = 64;

/// Sets of so many members, 2 at least and no more than there are units.
pub fn grown(units: u32, members: u32, scatter_width: u32, random: &mut impl Rng) -> Vec<Vec<u32>> {
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
                // Parity lies on all units alike.
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
    fn each_unit_shares_with_as_many_others_as_it_should() {
        let mut random = SmallRng::seed_from_u64(4);
        for (units, members, width) in [(6, 3, 8), (20, 3, 4), (10, 2, 8), (7, 6, 1), (3, 3, 8)] {
            for _ in 0..50 {
                let sets = grown(units, members, width, &mut random);
                let mut sorted = BTreeSet::new();
                for set in &sets {
                    let is_in: BTreeSet<u32> = set.iter().copied().collect();
                    assert_eq!(
                        (set.len(), is_in.len()),
                        (members as usize, members as usize)
                    );
                    assert!(sorted.insert(is_in), "{set:?} twice");
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
