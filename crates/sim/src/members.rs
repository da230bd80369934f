//! [`Members`]: the members of copysets as the database knows them. The controllers' part
//! of repair (docs/internals/repair.md), by the rules of `control::database`, without SQL.
//!
//! Invariants:
//!
//! * A member that missed writes by a commit's report, or that joined after the commit's
//!   units were chosen, is rebuilding from that commit on.
//! * The suspect segments of a rebuilding member are those that were being written when it
//!   began to miss writes. All of its segments are suspect after a repair that was
//!   interrupted, or that restored something without bringing the member in sync, and on a
//!   unit that was rolled back.
//! * A rebuilding member is in sync after a pass only if it has missed nothing since the
//!   pass began; the member that it replaces is removed then.

use std::collections::{BTreeMap, BTreeSet};

use base::{CopysetId, SegmentId, UnitId};
use catalog::{Copyset, DrainingMember, MemberState, VersionCommit};
use parking_lot::{Mutex, MutexGuard};
use volume::repair::{PassReport, SuspectUnit};

/// The members of all copysets.
#[derive(Debug, Default)]
pub struct Members {
    state: Mutex<State>,
}

/// How often each member has missed writes.
pub type MissedWrites = BTreeMap<UnitId, u64>;

#[derive(Debug, Default)]
struct State {
    copysets: Vec<Copyset>,
    missed: BTreeMap<(CopysetId, UnitId), u64>,
    /// The suspect segments of rebuilding members. Entries of other members mean nothing.
    suspect: BTreeMap<(CopysetId, UnitId), SuspectUnit>,
    /// Copysets with a repair that has begun and not ended.
    under_way: BTreeSet<CopysetId>,
    /// The members that joined an existing copyset, with the numbers of their joins.
    joined: BTreeMap<(CopysetId, UnitId), u64>,
    joined_last: u64,
    /// Segments that were ever degraded.
    was_degraded: BTreeSet<SegmentId>,
}

impl State {
    fn record_missed(&mut self, copyset: CopysetId, unit: UnitId, suspect: &SuspectUnit) {
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

    /// Makes all segments suspect on the members that `is_affected` selects.
    fn suspect_all(&mut self, copyset: CopysetId, is_affected: impl Fn(&UnitId) -> bool) {
        self.suspect
            .retain(|(set, unit), _| *set != copyset || !is_affected(unit));
    }
}

impl Members {
    /// Copysets whose members are all in sync.
    #[must_use]
    pub fn new(copysets: Vec<Copyset>) -> Self {
        Self {
            state: Mutex::new(State {
                copysets,
                ..State::default()
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The current copysets.
    #[must_use]
    pub fn copysets(&self) -> Vec<Copyset> {
        self.lock().copysets.clone()
    }

    /// Records a committed version. `in_flight` are the segments that were being written
    /// before.
    pub fn record_commit(&self, commit: &VersionCommit, in_flight: &SuspectUnit) {
        let mut state = self.lock();
        for share in &commit.degraded {
            state.was_degraded.insert(share.segment);
            for unit in &share.lacking {
                state.record_missed(share.segment.copyset(), *unit, in_flight);
            }
        }
        let later: Vec<(CopysetId, UnitId)> = state
            .joined
            .iter()
            .filter(|(_, joined)| **joined > commit.joined)
            .map(|(member, _)| *member)
            .collect();
        for (copyset, unit) in later {
            state.record_missed(copyset, unit, in_flight);
        }
    }

    /// Records that a unit was rolled back: it is rebuilt in each of its copysets that has
    /// another member.
    pub fn suspect_unit(&self, unit: UnitId) {
        let mut state = self.lock();
        let sets = state.copysets.iter();
        let its: Vec<CopysetId> = sets
            .filter(|set| set.members.contains(&unit) && set.member_states().count() > 1)
            .map(|set| set.id)
            .collect();
        its.into_iter()
            .for_each(|copyset| state.record_missed(copyset, unit, &SuspectUnit::All));
    }

    /// Replaces a member by another unit. The member drains, unless it `is_dead`.
    ///
    /// # Panics
    /// If `unit` is not a member of the copyset.
    pub fn replace(&self, copyset: CopysetId, unit: UnitId, by: UnitId, is_dead: bool) {
        let mut state = self.lock();
        state.joined_last += 1;
        let joined = state.joined_last;
        let sets = &mut state.copysets;
        let set = sets.iter_mut().find(|set| set.id == copyset);
        let set = set.expect("the copyset exists");
        let place = set.members.iter().position(|member| *member == unit);
        let place = place.expect("it is a member");
        set.members[place] = by;
        set.rebuilding.retain(|member| *member != unit);
        set.rebuilding.push(by);
        if !is_dead {
            let place = u8::try_from(place).expect("few");
            set.draining.push(DrainingMember { place, unit });
        }
        set.joined = joined;
        state.joined.remove(&(copyset, unit));
        state.joined.insert((copyset, by), joined);
    }

    /// How often each member of a copyset has missed writes.
    #[must_use]
    pub fn missed_writes(&self, copyset: CopysetId) -> MissedWrites {
        let state = self.lock();
        let its = state.missed.iter().filter(|((set, _), _)| *set == copyset);
        its.map(|((_, unit), missed)| (*unit, *missed)).collect()
    }

    /// The suspect segments of a rebuilding member.
    #[must_use]
    pub fn suspect(&self, copyset: CopysetId, unit: UnitId) -> SuspectUnit {
        let state = self.lock();
        let known = state.suspect.get(&(copyset, unit));
        known.cloned().unwrap_or_default()
    }

    /// Begins the repair of a copyset.
    pub fn begin_repair(&self, copyset: CopysetId) {
        let mut state = self.lock();
        if !state.under_way.insert(copyset) {
            // The last repair was interrupted, perhaps during a put.
            state.suspect_all(copyset, |_| true);
        }
    }

    /// Records the report of a repair's last pass. `missed` is
    /// [`Members::missed_writes`] from before that pass, `restored` are the members on which
    /// the repair restored something. Returns whether all members are in sync.
    pub fn end_repair(
        &self,
        copyset: CopysetId,
        missed: &MissedWrites,
        found: &PassReport,
        restored: &BTreeSet<UnitId>,
    ) -> bool {
        let mut state = self.lock();
        state.under_way.remove(&copyset);
        for unit in &found.incomplete {
            state.record_missed(copyset, *unit, &SuspectUnit::All);
        }
        state.suspect_all(copyset, |unit| {
            restored.contains(unit) && !found.in_sync.contains(unit)
        });
        let is_same = |unit: &UnitId| state.missed.get(&(copyset, *unit)) == missed.get(unit);
        let in_sync: Vec<UnitId> = found.in_sync.iter().copied().filter(is_same).collect();
        let Some(set) = state.copysets.iter_mut().find(|set| set.id == copyset) else {
            return false;
        };
        for unit in in_sync {
            let place = set.members.iter().position(|member| *member == unit);
            set.rebuilding.retain(|member| *member != unit);
            set.draining
                .retain(|draining| Some(usize::from(draining.place)) != place);
        }
        is_in_sync(set)
    }

    /// The copysets with a member that is not in sync.
    #[must_use]
    pub fn to_repair(&self) -> Vec<CopysetId> {
        let state = self.lock();
        let sets = state.copysets.iter().filter(|set| !is_in_sync(set));
        sets.map(|set| set.id).collect()
    }

    /// The segments of which some put has failed on a member.
    #[must_use]
    pub fn was_degraded(&self) -> BTreeSet<SegmentId> {
        self.lock().was_degraded.clone()
    }

    /// Whether each copyset of a unit has enough other members that are in sync.
    #[must_use]
    pub fn can_lose(&self, unit: UnitId) -> bool {
        let state = self.lock();
        let mut its = state
            .copysets
            .iter()
            .filter(|set| set.member_states().any(|(member, _)| member == unit));
        its.all(|set| {
            let in_sync = set
                .member_states()
                .filter(|(member, state)| *member != unit && *state == MemberState::InSync);
            in_sync.count() >= usize::from(set.data)
        })
    }
}

fn is_in_sync(set: &Copyset) -> bool {
    set.rebuilding.is_empty() && set.draining.is_empty()
}
