//! [`Table`]: a snapshot of the units and copysets, and which member a read is sent to. It
//! reads and writes nothing.

use std::collections::HashMap;
use std::sync::Arc;

use base::{CopysetId, Location, SegmentId, UnitId};
use catalog::{Copyset, MemberState};
use unit::{SlotRun, TrackedUnit, Unit, UnitState};

use super::layout::Layout;

/// A unit in a copyset.
#[derive(Clone)]
pub struct Member {
    /// The unit's id.
    pub id: UnitId,
    /// The unit, with its health.
    pub unit: Arc<TrackedUnit>,
    /// Its index among the copyset's members; for a draining member, that of its
    /// replacement. 0 outside of a copyset.
    pub place: u8,
    /// Its state in the copyset.
    pub state: MemberState,
}

/// A copyset, as far as its units are known.
struct Set {
    /// All known members that may hold segments of it.
    members: Vec<Member>,
    /// The members that segments are written to, known or not.
    write_targets: Vec<UnitId>,
    layout: Layout,
}

/// A copy that is this much slower than the quickest, in µs, is not yet slow.
const SLACK_US: u32 = 500;

impl Member {
    /// Whether new slots of the copyset are written to it.
    #[must_use]
    pub fn is_write_target(&self) -> bool {
        self.state != MemberState::Draining
    }

    /// The sort key for reads: the copy with the lowest rank is read first.
    #[inline]
    fn rank(&self, slow_from_us: u32) -> (u8, MemberState, bool) {
        let is_slow = self.unit.read_cost_us() > slow_from_us;
        (self.unit.state().read_rank(), self.state, is_slow)
    }
}

/// A snapshot of the cluster: its units, and the copysets made of them.
#[derive(Default)]
pub struct Table {
    copysets: HashMap<CopysetId, Set>,
    units: Vec<Member>,
    joined: u64,
}

impl Table {
    /// A table of `units` and `copysets`. A copyset with a unit that is not among `units`
    /// keeps its other members.
    pub(super) fn new(units: Vec<(UnitId, Arc<TrackedUnit>)>, copysets: &[Copyset]) -> Self {
        let units: Vec<Member> = units
            .into_iter()
            .map(|(id, unit)| Member {
                id,
                unit,
                place: 0,
                state: MemberState::InSync,
            })
            .collect();
        let find = |(place, id, state): (u8, UnitId, MemberState)| {
            let member = units.iter().find(|member| member.id == id)?;
            Some(Member {
                place,
                state,
                ..member.clone()
            })
        };
        let set = |copyset: &Copyset| Set {
            members: copyset.members_by_place().filter_map(find).collect(),
            write_targets: copyset.members.clone(),
            layout: Layout::new(copyset.erasure()),
        };
        let joined = copysets
            .iter()
            .map(|copyset| copyset.joined)
            .max()
            .unwrap_or(0);
        let copysets = copysets
            .iter()
            .map(|copyset| (copyset.id, set(copyset)))
            .collect();
        Self {
            copysets,
            units,
            joined,
        }
    }

    /// The units that may hold segments of a copyset: the write targets in their
    /// order, then the draining members; empty if the copyset is not known.
    #[must_use]
    pub fn members(&self, copyset: CopysetId) -> &[Member] {
        self.copysets.get(&copyset).map_or(&[], |set| &set.members)
    }

    /// How the segments of a copyset are laid out on its members.
    #[inline]
    #[must_use]
    pub fn layout(&self, copyset: CopysetId) -> Layout {
        let set = self.copysets.get(&copyset);
        set.map_or_else(Layout::default, |set| set.layout)
    }

    /// The member to read from at this place of a copyset: the draining one, if it
    /// is available, while its replacement is rebuilt.
    #[inline]
    #[must_use]
    pub fn member_at(&self, copyset: CopysetId, place: u8) -> Option<&Member> {
        let members = self.members(copyset);
        // Members are listed by place, unless some unit is not known.
        let expected = members.get(usize::from(place));
        let is_it = |member: &&Member| member.place == place;
        let is_whole = |member: &&Member| is_it(member) && member.state == MemberState::InSync;
        expected.filter(is_whole).or_else(|| {
            let members = members.iter().filter(is_it);
            members.min_by_key(|member| (!is_available(member), member.state))
        })
    }

    /// All members at this place, best first. What was written while one drains is
    /// only on its replacement.
    #[must_use]
    pub fn members_at(&self, copyset: CopysetId, place: u8) -> Vec<&Member> {
        let members = self.members(copyset).iter();
        let mut at: Vec<&Member> = members.filter(|member| member.place == place).collect();
        at.sort_by_key(|member| (!is_available(member), member.state));
        at
    }

    /// The units that segments of a copyset are written to, in their order, known
    /// or not.
    #[must_use]
    pub fn write_target_ids(&self, copyset: CopysetId) -> &[UnitId] {
        self.copysets
            .get(&copyset)
            .map_or(&[], |set| &set.write_targets)
    }

    /// Whether the copyset and all its write targets are known.
    #[must_use]
    pub fn has_all(&self, copyset: CopysetId) -> bool {
        let members = self.members(copyset);
        let is_known = |id: &UnitId| members.iter().any(|member| member.id == *id);
        !members.is_empty() && self.write_target_ids(copyset).iter().all(is_known)
    }

    /// Whether a segment of the copyset may be written in several parts: only if
    /// all members can append, since they hold the same.
    #[must_use]
    pub fn can_append(&self, copyset: CopysetId) -> bool {
        let mut members = self.members(copyset).iter();
        members.all(|member| member.unit.can_append())
    }

    /// The units that hold a segment, best first. Units to `exclude` come last,
    /// before them unhealthy ones, and before these slow ones: any of them may have
    /// the only copy.
    #[must_use]
    pub fn best_first(&self, segment: SegmentId, exclude: &[UnitId]) -> Vec<&Member> {
        let mut members: Vec<&Member> = self.rotated(segment).collect();
        let slow = self.slow_from(segment);
        members.sort_by_cached_key(|member| (exclude.contains(&member.id), member.rank(slow)));
        members
    }

    /// The best member to read a segment from; `None` if all are unavailable, which
    /// only a read that may wait can handle.
    #[inline]
    #[must_use]
    pub fn best_available(&self, segment: SegmentId) -> Option<&Member> {
        self.best_available_except(segment, &[])
    }

    /// As [`Table::best_available`], without the units to `exclude`.
    #[inline]
    #[must_use]
    pub fn best_available_except(&self, segment: SegmentId, exclude: &[UnitId]) -> Option<&Member> {
        let slow = self.slow_from(segment);
        let members = self.rotated(segment);
        let members = members.filter(|member| !exclude.contains(&member.id));
        let best = members.min_by_key(|member| member.rank(slow));
        best.filter(|member| is_available(member))
    }

    /// The best member to read a slot from that the member at `place` has, or every
    /// member. `None` if it is unavailable or excluded.
    #[inline]
    pub(super) fn available_at(
        &self,
        segment: SegmentId,
        place: Option<u8>,
        exclude: &[UnitId],
    ) -> Option<&Member> {
        let Some(place) = place else {
            return self.best_available_except(segment, exclude);
        };
        let member = self.member_at(segment.copyset(), place);
        member.filter(|member| is_available(member) && !exclude.contains(&member.id))
    }

    /// The member that a read of `location` is sent to first. `None` as with
    /// [`Table::best_available`].
    #[must_use]
    pub fn first_choice(&self, location: Location) -> Option<&Member> {
        let segment = location.segment();
        let home = self.layout(segment.copyset()).home(location.slot());
        self.available_at(segment, home.member_index, &[])
    }

    /// Whether `location` can be read without the units to `exclude`: from another
    /// copy, or recovered from the rest of its row.
    #[must_use]
    pub fn has_alternative(&self, location: Location, exclude: &[UnitId]) -> bool {
        let segment = location.segment();
        let layout = self.layout(segment.copyset());
        if layout.erasure().is_none() {
            return self.best_available_except(segment, exclude).is_some();
        }
        let members = self.members(segment.copyset()).iter();
        let there = members.filter(|member| is_available(member) && !exclude.contains(&member.id));
        // A draining member and its replacement have the same place.
        let places = there.fold(0_u16, |places, member| places | 1 << member.place);
        places.count_ones() >= layout.row_slots()
    }

    /// The cost, in µs, above which a member is slow: twice that of the quickest and
    /// [`SLACK_US`]. Below it, copies share the load, and what a unit has in memory
    /// is read again from the same unit.
    #[inline]
    fn slow_from(&self, segment: SegmentId) -> u32 {
        let members = self.members(segment.copyset()).iter();
        let costs = members.map(|member| member.unit.read_cost_us());
        let least = costs.min().unwrap_or(0);
        least.saturating_mul(2).saturating_add(SLACK_US)
    }

    /// The members in an order that depends on the segment: copies share the load.
    fn rotated(&self, segment: SegmentId) -> impl Iterator<Item = &Member> {
        let members = self.members(segment.copyset());
        let start = segment.serial() as usize % members.len().max(1);
        let (last, first) = members.split_at(start);
        first.iter().chain(last)
    }

    /// The members of a copyset that segments are written to, in their order.
    pub fn write_targets(&self, copyset: CopysetId) -> impl Iterator<Item = &Member> {
        let members = self.members(copyset).iter();
        members.filter(|member| member.is_write_target())
    }

    /// The largest [`Copyset::joined`] that the table contains.
    #[must_use]
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// All copysets, with their layout and members.
    pub fn copysets(&self) -> impl Iterator<Item = (CopysetId, Layout, &[Member])> {
        let sets = self.copysets.iter();
        sets.map(|(id, set)| (*id, set.layout, &*set.members))
    }

    /// All units.
    #[must_use]
    pub fn units(&self) -> &[Member] {
        &self.units
    }
}

/// Consecutive slots on one member of a copyset, or on every member.
#[derive(Debug, Clone, Copy)]
pub struct MemberRun {
    /// The member's place; `None` if every member has the slots.
    pub place: Option<u8>,
    /// The slots, as members number them.
    pub slots: SlotRun,
}

#[inline]
fn is_available(member: &Member) -> bool {
    member.unit.state() != UnitState::Missing
}
