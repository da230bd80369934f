//! [`decide`]: what happens to the copysets of a unit that is drained, removed or missing. It is a
//! pure function of what is desired and what is observed.
//!
//! Invariant: unless data loss is accepted, no step removes the last member of a copyset that is
//! in sync and reachable, or leaves fewer such members than there are data units.
//!
//! ```text
//!   desired    in each copyset of the unit
//!   drained    another unit replaces it; it stays until its replacement is in sync
//!   replaced   as drained, but only where reachable members hold all data
//!   removed    another unit replaces it, and it leaves at once; refused if only it holds some data
//! ```

use std::collections::{HashMap, HashSet};

use base::UnitId;
use catalog::{Copyset, MemberState, copysets};

use crate::database::UnitRow;
use crate::database::repair::members::{Departure, Replacement, Used};
use crate::units::{name_of, zones_of};

/// The largest number of copysets that a refusal names.
const NAMED_MAX: usize = 3;

/// Why a unit may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is a member of no copyset.
    Empty,
    /// It is lost for good, and other available units hold everything it held.
    Lost,
    /// It is lost for good, and the loss of what only it held is accepted.
    DataLossAccepted,
}

/// What is desired of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::database) enum DesiredUnit {
    /// Other units take over what it holds.
    Drained,
    /// Other units take over what it holds, as it has been missing for longer than
    /// `replace_after`.
    Replaced,
    /// It is removed.
    Removed(Removal),
}

/// What is observed of the cluster, in one transaction.
pub(in crate::database) struct ObservedUnits {
    /// All copysets.
    pub copysets: Vec<Copyset>,
    /// All units.
    pub units: Vec<UnitRow>,
    /// The kinds of copysets that may hold data.
    pub used: Used,
    /// The units that may take over copysets.
    pub usable: HashSet<UnitId>,
    /// The units that some host reaches.
    pub reachable: HashSet<UnitId>,
}

/// The step that brings a unit to its desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::database) enum ReplacementStep {
    /// Nothing changes; the text says why and what to do.
    Refuse(String),
    /// Members are replaced.
    Replace {
        /// The replacements, at most one for each copyset.
        replacements: Vec<Replacement>,
        /// The number of copysets whose data only this unit held.
        copysets_lost: u64,
    },
}

/// Decides what happens to the copysets of `unit`.
pub(in crate::database) fn decide(
    unit: UnitId,
    desired: DesiredUnit,
    observed: &ObservedUnits,
) -> ReplacementStep {
    match desired {
        DesiredUnit::Drained => replace_all(unit, Departure::Draining, 0, observed),
        DesiredUnit::Replaced => replace_safely(unit, observed),
        DesiredUnit::Removed(removal) => remove(unit, removal, observed),
    }
}

/// Replaces `unit` in all copysets, or in none if there are too few usable units.
fn replace_all(
    unit: UnitId,
    departure: Departure,
    copysets_lost: u64,
    observed: &ObservedUnits,
) -> ReplacementStep {
    let mut loads = observed.loads();
    loads.remove(&unit);
    let zones = zones_of(&observed.units);
    let mut replacements = Vec::new();
    let its = observed.copysets.iter();
    for copyset in its.filter(|set| set.members.contains(&unit)) {
        let Some(new) = copysets::replacement(copyset, unit, &loads, &zones) else {
            return ReplacementStep::Refuse(format!(
                "no healthy unit with free space can replace {} in copyset {}, which has {} \
                 members; add a unit (`scree unit add`) and try again",
                name_of(&observed.units, unit),
                copyset.id.number(),
                copyset.members.len()
            ));
        };
        *loads.entry(new).or_default() += 1;
        replacements.push(Replacement {
            copyset: copyset.id,
            old: unit,
            new,
            departure: observed.used.departure(copyset, departure),
        });
    }
    ReplacementStep::Replace {
        replacements,
        copysets_lost,
    }
}

/// Replaces a missing unit in the copysets whose data reachable members hold. The unit may rejoin:
/// it is drained, and stays a member until its replacement is in sync.
fn replace_safely(unit: UnitId, observed: &ObservedUnits) -> ReplacementStep {
    let mut loads = observed.loads();
    let zones = zones_of(&observed.units);
    let mut replacements = Vec::new();
    for copyset in &observed.copysets {
        let departure = observed.used.departure(copyset, Departure::Draining);
        let is_safe = departure == Departure::Empty || observed.holds_all_without(copyset, unit);
        if copyset.members.contains(&unit)
            && is_safe
            && let Some(new) = copysets::replacement(copyset, unit, &loads, &zones)
        {
            *loads.entry(new).or_default() += 1;
            replacements.push(Replacement {
                copyset: copyset.id,
                old: unit,
                new,
                departure,
            });
        }
    }
    ReplacementStep::Replace {
        replacements,
        copysets_lost: 0,
    }
}

/// Removes a unit at once.
fn remove(unit: UnitId, removal: Removal, observed: &ObservedUnits) -> ReplacementStep {
    let name = name_of(&observed.units, unit);
    let is_member = |set: &&Copyset| set.member_states().any(|(member, _)| member == unit);
    let its: Vec<&Copyset> = observed.copysets.iter().filter(is_member).collect();
    if !its.is_empty() && removal == Removal::Empty {
        return ReplacementStep::Refuse(format!(
            "{name} is a member of {}; `scree unit drain` moves its data to other units, \
             and then removes it. If it is lost for good, use `scree unit remove --lost`",
            base::counted(its.len() as u64, "copyset")
        ));
    }
    let has_data =
        |set: &&&Copyset| observed.used.departure(set, Departure::Lost) == Departure::Lost;
    let lost: Vec<String> = its
        .iter()
        .filter(has_data)
        .filter(|set| !observed.holds_all_without(set, unit))
        .map(|set| observed.incomplete_members(set, unit))
        .collect();
    if !lost.is_empty() && removal != Removal::DataLossAccepted {
        let (first, rest) = lost.split_at(lost.len().min(NAMED_MAX));
        let more = match rest.len() {
            0 => String::new(),
            count => format!("; and in {count} more"),
        };
        return ReplacementStep::Refuse(format!(
            "{name} may hold the last complete copy of something: {}{more}. Make those units \
             available again, or wait until another member is in sync (`scree unit jobs`), and \
             try again; `scree unit remove --lost --accept-data-loss` gives up what no other unit \
             holds",
            first.join("; ")
        ));
    }
    replace_all(unit, Departure::Lost, lost.len() as u64, observed)
}

impl ObservedUnits {
    /// The usable units, with the number of copysets that each is a member of.
    ///
    /// The caller determined the usable units before the transaction began, and another transaction
    /// may have begun to drain one of them since.
    pub fn loads(&self) -> HashMap<UnitId, usize> {
        let accepts = |unit: &&UnitRow| !unit.is_draining && !unit.is_disabled;
        let usable = self.units.iter().filter(accepts).map(|unit| unit.id);
        let usable = usable.filter(|unit| self.usable.contains(unit));
        let load = |unit| {
            let its = self.copysets.iter();
            its.filter(|set| set.members.contains(&unit)).count()
        };
        usable.map(|unit| (unit, load(unit))).collect()
    }

    /// Whether enough members of a copyset other than `unit` are in sync and reachable to hold all
    /// of its data.
    fn holds_all_without(&self, copyset: &Copyset, unit: UnitId) -> bool {
        let complete = copyset.member_states().filter(|(other, state)| {
            *other != unit && *state == MemberState::InSync && self.reachable.contains(other)
        });
        complete.count() >= usize::from(copyset.data)
    }

    /// Why the other members of a copyset do not count as complete copies.
    fn incomplete_members(&self, copyset: &Copyset, unit: UnitId) -> String {
        let others = copyset.member_states().filter(|(other, _)| *other != unit);
        let why = |(other, state): (UnitId, MemberState)| {
            let why = match (state, self.reachable.contains(&other)) {
                (MemberState::InSync, true) => return None,
                (MemberState::Rebuilding, true) => "may be incomplete",
                (MemberState::Draining, true) => {
                    "has no data that was written since its drain began"
                }
                (_, false) => "is not reached by any host",
            };
            Some(format!("{} {why}", name_of(&self.units, other)))
        };
        let why: Vec<String> = others.filter_map(why).collect();
        let number = copyset.id.number();
        match why.is_empty() {
            true => format!("copyset {number} has no other member"),
            false => format!("in copyset {number} {}", why.join(" and ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::CopysetId;
    use catalog::DrainingMember;

    use super::*;

    const A: UnitId = UnitId::from_u128(1);
    const B: UnitId = UnitId::from_u128(2);
    const C: UnitId = UnitId::from_u128(3);

    fn copyset(members: &[UnitId]) -> Copyset {
        Copyset {
            id: CopysetId::new(1).expect("a copyset"),
            members: members.to_vec(),
            data: 1,
            rebuilding: Vec::new(),
            draining: Vec::<DrainingMember>::new(),
            joined: 0,
        }
    }

    fn observed(copyset: Copyset) -> ObservedUnits {
        let all = [A, B, C];
        ObservedUnits {
            copysets: vec![copyset],
            units: all.map(|unit| UnitRow::new(unit, unit.to_string())).into(),
            used: Used::all(),
            usable: all.into(),
            reachable: all.into(),
        }
    }

    fn replaced_by_c(departure: Departure, copysets_lost: u64) -> ReplacementStep {
        let replacement = Replacement {
            copyset: CopysetId::new(1).expect("a copyset"),
            old: A,
            new: C,
            departure,
        };
        ReplacementStep::Replace {
            replacements: vec![replacement],
            copysets_lost,
        }
    }

    #[test]
    fn a_drained_unit_stays_until_its_replacement_is_in_sync() {
        let step = decide(A, DesiredUnit::Drained, &observed(copyset(&[A, B])));
        assert_eq!(step, replaced_by_c(Departure::Draining, 0));
    }

    #[test]
    fn a_member_without_data_is_replaced_at_once() {
        let empty = ObservedUnits {
            used: Used::none(),
            ..observed(copyset(&[A, B]))
        };
        let step = decide(A, DesiredUnit::Drained, &empty);
        assert_eq!(step, replaced_by_c(Departure::Empty, 0));
    }

    #[test]
    fn the_last_complete_copy_is_removed_only_if_data_loss_is_accepted() {
        let rebuilding = Copyset {
            rebuilding: vec![B],
            ..copyset(&[A, B])
        };
        let unreachable = ObservedUnits {
            reachable: [A, C].into(),
            ..observed(copyset(&[A, B]))
        };
        for observed in [observed(rebuilding), unreachable] {
            let lost = DesiredUnit::Removed(Removal::Lost);
            let refused = decide(A, lost, &observed);
            assert!(matches!(refused, ReplacementStep::Refuse(_)), "{refused:?}");
            let accepted = DesiredUnit::Removed(Removal::DataLossAccepted);
            let step = decide(A, accepted, &observed);
            assert_eq!(step, replaced_by_c(Departure::Lost, 1));
            // A missing unit is not replaced either: it may rejoin with the last copy.
            let nothing = ReplacementStep::Replace {
                replacements: Vec::new(),
                copysets_lost: 0,
            };
            assert_eq!(decide(A, DesiredUnit::Replaced, &observed), nothing);
        }
    }

    #[test]
    fn a_lost_unit_is_removed_where_another_member_is_in_sync() {
        let lost = DesiredUnit::Removed(Removal::Lost);
        let step = decide(A, lost, &observed(copyset(&[A, B])));
        assert_eq!(step, replaced_by_c(Departure::Lost, 0));
    }

    #[test]
    fn a_unit_is_not_drained_without_a_usable_replacement() {
        let full = ObservedUnits {
            usable: [A, B].into(),
            ..observed(copyset(&[A, B]))
        };
        let refused = decide(A, DesiredUnit::Drained, &full);
        assert!(matches!(refused, ReplacementStep::Refuse(_)), "{refused:?}");
    }
}
