//! What the database says of the members of copysets: the controllers' part of
//! repair (docs/internals/repair.md), by the rules of `control::database`, without SQL.
//!
//! Invariants:
//!
//! * Whoever a commit says has missed something, or became a member after what it was
//!   put on was chosen, is filling from that commit on.
//! * What of a filling member may be otherwise than it was put is known as it was when it
//!   began to lack something, or it is anything: after a task that was broken off, or that
//!   brought something and did not make it whole, and on a unit that is older.
//! * A filling member is whole after a pass only if it has missed nothing since that
//!   began; whom it replaces is no member from then on.

use std::collections::{BTreeMap, BTreeSet};

use base::{CopysetId, SegmentId, UnitId};
use parking_lot::{Mutex, MutexGuard};
use volume::catalog::{Copyset, DrainingMember, MemberState, VersionCommit};
use volume::repair::{PassReport, SuspectUnit};

/// The members of all copysets.
#[derive(Debug, Default)]
pub struct Members {
    state: Mutex<State>,
}

/// How many times members have missed something.
pub type Missed = BTreeMap<UnitId, u64>;

#[derive(Debug, Default)]
struct State {
    copysets: Vec<Copyset>,
    missed: BTreeMap<(CopysetId, UnitId), u64>,
    /// Of filling members; of others anything.
    suspect: BTreeMap<(CopysetId, UnitId), SuspectUnit>,
    /// Copysets whose repairer has not said that it is through.
    under_way: BTreeSet<CopysetId>,
    /// Who became a member of a copyset that was there already, and as which one.
    joined: BTreeMap<(CopysetId, UnitId), u64>,
    joined_last: u64,
    /// Segments that some member ever lacked a part of.
    was_degraded: BTreeSet<SegmentId>,
}

impl State {
    fn misses(&mut self, copyset: CopysetId, unit: UnitId, suspect: &SuspectUnit) {
        let Some(set) = self.copysets.iter_mut().find(|set| set.id == copyset) else {
            return;
        };
        if !set.members.contains(&unit) {
            return;
        }
        if !set.rebuilding.contains(&unit) {
            set.rebuilding.push(unit);
            self.suspect.insert((copyset, unit), suspect.clone());
        } else if *suspect == SuspectUnit::All {
            self.suspect.remove(&(copyset, unit));
        }
        *self.missed.entry((copyset, unit)).or_default() += 1;
    }

    /// Of those that are being filled, anything may be otherwise than it was put.
    fn know_nothing(&mut self, copyset: CopysetId, of: impl Fn(&UnitId) -> bool) {
        self.suspect
            .retain(|(set, unit), _| *set != copyset || !of(unit));
    }
}

impl Members {
    /// Copysets whose members are whole.
    #[must_use]
    pub fn new(copysets: Vec<Copyset>) -> Self {
        Self {
            state: Mutex::new(State {
                copysets,
                ..State::default()
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The copysets as they are now.
    #[must_use]
    pub fn copysets(&self) -> Vec<Copyset> {
        self.state().copysets.clone()
    }

    /// A version was committed; `in_flight` is what was on its way before.
    pub fn note(&self, commit: &VersionCommit, in_flight: &SuspectUnit) {
        let mut state = self.state();
        for share in &commit.degraded {
            state.was_degraded.insert(share.segment);
            for unit in &share.lacking {
                state.misses(share.segment.copyset(), *unit, in_flight);
            }
        }
        let later: Vec<(CopysetId, UnitId)> = state
            .joined
            .iter()
            .filter(|(_, joined)| **joined > commit.joined)
            .map(|(member, _)| *member)
            .collect();
        for (copyset, unit) in later {
            state.misses(copyset, unit, in_flight);
        }
    }

    /// A unit is older than it was: it may lack something in each of its copysets, but
    /// where it is alone.
    pub fn suspicion(&self, unit: UnitId) {
        let mut state = self.state();
        let sets = state.copysets.iter();
        let its: Vec<CopysetId> = sets
            .filter(|set| set.members.contains(&unit) && set.member_states().count() > 1)
            .map(|set| set.id)
            .collect();
        its.into_iter()
            .for_each(|copyset| state.misses(copyset, unit, &SuspectUnit::All));
    }

    /// Another unit takes the place of a member, which leaves, or is gone at once.
    ///
    /// # Panics
    /// If it is no member.
    pub fn replace(&self, copyset: CopysetId, unit: UnitId, by: UnitId, is_gone: bool) {
        let mut state = self.state();
        state.joined_last += 1;
        let joined = state.joined_last;
        let sets = &mut state.copysets;
        let set = sets.iter_mut().find(|set| set.id == copyset);
        let set = set.expect("it is one of them");
        let place = set.members.iter().position(|member| *member == unit);
        let place = place.expect("it is a member");
        set.members[place] = by;
        set.rebuilding.retain(|member| *member != unit);
        set.rebuilding.push(by);
        if !is_gone {
            let place = u8::try_from(place).expect("few");
            set.draining.push(DrainingMember { place, unit });
        }
        set.joined = joined;
        state.joined.remove(&(copyset, unit));
        state.joined.insert((copyset, by), joined);
    }

    /// How many times each member of a copyset has missed something.
    #[must_use]
    pub fn missed(&self, copyset: CopysetId) -> Missed {
        let state = self.state();
        let its = state.missed.iter().filter(|((set, _), _)| *set == copyset);
        its.map(|((_, unit), missed)| (*unit, *missed)).collect()
    }

    /// What of a member that is filled may be otherwise than it was put.
    #[must_use]
    pub fn suspect(&self, copyset: CopysetId, unit: UnitId) -> SuspectUnit {
        let state = self.state();
        let known = state.suspect.get(&(copyset, unit));
        known.cloned().unwrap_or_default()
    }

    /// Somebody begins to repair a copyset.
    pub fn begin(&self, copyset: CopysetId) {
        let mut state = self.state();
        if !state.under_way.insert(copyset) {
            // It was broken off, perhaps while it put something.
            state.know_nothing(copyset, |_| true);
        }
    }

    /// What the last pass of a task has found, which has `brought` something to those, that
    /// began when members had `missed` so much. Returns
    /// whether all are whole.
    pub fn end(
        &self,
        copyset: CopysetId,
        missed: &Missed,
        found: &PassReport,
        brought: &BTreeSet<UnitId>,
    ) -> bool {
        let mut state = self.state();
        state.under_way.remove(&copyset);
        for unit in &found.lacking {
            state.misses(copyset, *unit, &SuspectUnit::All);
        }
        state.know_nothing(copyset, |unit| {
            brought.contains(unit) && !found.in_sync.contains(unit)
        });
        let is_same = |unit: &UnitId| state.missed.get(&(copyset, *unit)) == missed.get(unit);
        let whole: Vec<UnitId> = found.in_sync.iter().copied().filter(is_same).collect();
        let Some(set) = state.copysets.iter_mut().find(|set| set.id == copyset) else {
            return false;
        };
        for unit in whole {
            let place = set.members.iter().position(|member| *member == unit);
            set.rebuilding.retain(|member| *member != unit);
            set.draining
                .retain(|leaving| Some(usize::from(leaving.place)) != place);
        }
        is_whole(set)
    }

    /// The copysets of which some member is not whole.
    #[must_use]
    pub fn to_repair(&self) -> Vec<CopysetId> {
        let state = self.state();
        let sets = state.copysets.iter().filter(|set| !is_whole(set));
        sets.map(|set| set.id).collect()
    }

    /// Segments of which some put has failed on a member.
    #[must_use]
    pub fn was_degraded(&self) -> BTreeSet<SegmentId> {
        self.state().was_degraded.clone()
    }

    /// Whether each copyset of a unit has enough whole members besides.
    #[must_use]
    pub fn can_lose(&self, unit: UnitId) -> bool {
        let state = self.state();
        let mut its = state
            .copysets
            .iter()
            .filter(|set| set.member_states().any(|(member, _)| member == unit));
        its.all(|set| {
            let whole = set
                .member_states()
                .filter(|(member, state)| *member != unit && *state == MemberState::InSync);
            whole.count() >= usize::from(set.data)
        })
    }
}

fn is_whole(set: &Copyset) -> bool {
    set.rebuilding.is_empty() && set.draining.is_empty()
}
