//! Which unit takes the place of another one in a copyset: for one that leaves, and so that
//! units are members of about equally many.

use std::collections::HashMap;

use base::{CopysetId, UnitId};

use super::Zones;
use crate::Copyset;

/// The unit among `loads` that should replace `old` in `copyset`: one that shares its
/// zone with the fewest other members, and of these the one that is a member of the
/// fewest copysets, by its count. `None` if all are members or draining.
#[must_use]
pub fn replacement(
    copyset: &Copyset,
    old: UnitId,
    loads: &HashMap<UnitId, usize>,
    zones: &Zones,
) -> Option<UnitId> {
    let is_in = |unit: &UnitId| copyset.member_states().any(|(member, _)| member == *unit);
    let others = loads.iter().filter(|(unit, _)| !is_in(unit));
    // A tie is broken by id, so that every controller chooses the same.
    let least = others.min_by_key(|(unit, load)| {
        let shared = neighbors(copyset, old, **unit, zones);
        (shared, **load, **unit)
    });
    least.map(|(unit, _)| *unit)
}

/// The number of remaining members in the zone of `unit`, if it replaced `old`.
fn neighbors(copyset: &Copyset, old: UnitId, unit: UnitId, zones: &Zones) -> usize {
    let Some(zone) = zones.get(&unit) else {
        return 0;
    };
    let stay = copyset.members.iter().filter(|member| **member != old);
    stay.filter(|member| zones.get(member) == Some(zone))
        .count()
}

/// The replacements after which units are members of about equally many copysets: at
/// most one for each copyset, and none in a copyset that has a rebuilding or draining
/// member, or that would have more members in one zone.
#[must_use]
pub fn rebalancing(
    copysets: &[Copyset],
    loads: &HashMap<UnitId, usize>,
    zones: &Zones,
) -> Vec<(CopysetId, UnitId, UnitId)> {
    let mut loads = loads.clone();
    let mut moves = Vec::new();
    for copyset in copysets {
        if !copyset.rebuilding.is_empty() || !copyset.draining.is_empty() {
            continue;
        }
        let members = copyset.members.iter();
        let known = members.filter_map(|unit| Some((*loads.get(unit)?, *unit)));
        let mut known: Vec<(usize, UnitId)> = known.collect();
        known.sort_unstable();
        let found = known.into_iter().rev().find_map(|(load, old)| {
            let new = replacement(copyset, old, &loads, zones)?;
            let near = |unit| neighbors(copyset, old, unit, zones);
            let has_fewer = loads.get(&new).is_some_and(|least| *least + 1 < load);
            (has_fewer && near(new) <= near(old)).then_some((old, new))
        });
        if let Some((old, new)) = found {
            *loads.entry(old).or_default() -= 1;
            *loads.entry(new).or_default() += 1;
            moves.push((copyset.id, old, new));
        }
    }
    moves
}
