//! [`Store`] and [`Table`]: the units and copysets, as the engine sees them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use base::{CopysetId, Location, SegmentId, Slot, UnitId};
use parking_lot::RwLock;
use unit::{Read, ReadDone, SlotRun, Tag, TrackedUnit, Unit, UnitError, UnitState};
use world::Pool;

use super::layout::Layout;
use super::ledger::OpenSegments;
use super::read::MemberRun;
use crate::catalog::{Copyset, MemberState};

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
    fn available_at(
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
        self.available_at(segment, home.place, &[])
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

/// Access to all units, shared by the volumes of a process.
pub struct Store {
    table: RwLock<Arc<Table>>,
    open: Arc<OpenSegments>,
    /// The pool for work that waits for units.
    pub(crate) pool: Arc<dyn Pool>,
}

impl Store {
    /// A store without units.
    #[must_use]
    pub fn new(pool: Arc<dyn Pool>) -> Arc<Self> {
        Arc::new(Self {
            table: RwLock::default(),
            open: Arc::default(),
            pool,
        })
    }

    /// Replaces the table. A copyset with a unit that is not among `units` keeps its
    /// other members.
    pub fn set_table(&self, units: Vec<(UnitId, Arc<TrackedUnit>)>, copysets: &[Copyset]) {
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
        let joined = copysets.iter().map(|one| one.joined).max().unwrap_or(0);
        let copysets = copysets.iter().map(|one| (one.id, set(one))).collect();
        let table = Arc::new(Table {
            copysets,
            units,
            joined,
        });
        *self.table.write() = table;
    }

    /// The current table.
    #[must_use]
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read())
    }

    /// The segments that this process appends to.
    #[must_use]
    pub fn open_segments(&self) -> &Arc<OpenSegments> {
        &self.open
    }

    /// Reads a run of slots from the best copy, if that needs no waiting. The caller
    /// opens the slots; if one does not open, a read that may wait tries the other
    /// copies.
    ///
    /// Returns `false` if nothing was read, for any reason.
    #[inline]
    pub fn read_now(
        &self,
        table: &Table,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> bool {
        let layout = table.layout(run.segment.copyset());
        if layout.erasure().is_none() {
            return table.best_available(run.segment).is_some_and(|member| {
                matches!(
                    member.unit.read_now(Read {
                        run,
                        slot_bytes,
                        tags,
                        data
                    }),
                    Ok(true)
                )
            });
        }
        // Consecutive slots are on consecutive members.
        let contents = data.chunks_exact_mut(slot_bytes as usize);
        let slots = (run.first.0..).zip(tags.chunks_exact_mut(1)).zip(contents);
        slots.into_iter().all(|((slot, tag), content)| {
            let home = layout.home(Slot(slot));
            let one = SlotRun {
                segment: run.segment,
                first: home.slot,
                count: 1,
            };
            let there = table.available_at(run.segment, home.place, &[]);
            there.is_some_and(|member| {
                matches!(
                    member.unit.read_now(Read {
                        run: one,
                        slot_bytes,
                        tags: tag,
                        data: content
                    }),
                    Ok(true)
                )
            })
        })
    }

    /// Starts to read a run of slots from the best copy that is not on a unit to
    /// `exclude`; `done` is called with the result, on any thread. Returns `false` if no
    /// read was started; then `done` is not called.
    pub fn start_read(
        &self,
        table: &Table,
        run: MemberRun,
        slot_bytes: u32,
        exclude: &[UnitId],
        done: ReadDone,
    ) -> bool {
        let MemberRun { place, slots } = run;
        let best = table.available_at(slots.segment, place, exclude);
        best.is_some_and(|member| member.unit.read_async(slots, slot_bytes, done))
    }

    /// Frees slots on every copy of a segment without parity.
    ///
    /// # Errors
    /// The error of the first unit that failed; the others were still queried.
    pub fn free(&self, segment: SegmentId, slots: &[Slot]) -> Result<(), UnitError> {
        let closed = !self.open.contains(segment);
        self.on_every_copy(segment, |unit| unit.free(segment, slots, closed))
    }

    /// Frees slots that will never be committed, in a segment that is closed.
    ///
    /// # Errors
    /// As [`Store::free`].
    pub fn free_orphans(&self, segment: SegmentId, slots: Range<u32>) -> Result<(), UnitError> {
        let number = |slot: u32| u16::try_from(slot).ok().map(Slot);
        let layout = self.table().layout(segment.copyset());
        let rows = layout.rows(slots.start)..layout.rows(slots.end);
        // The slots before them may be padding, which members report as freed until
        // the whole segment is deleted.
        let closed = layout.erasure().is_none() || rows.start == 0;
        let slots: Vec<Slot> = rows.filter_map(number).collect();
        self.on_every_copy(segment, |unit| unit.free(segment, &slots, closed))
    }

    /// Deletes every copy of a segment.
    ///
    /// # Errors
    /// As [`Store::free`].
    pub fn delete(&self, segment: SegmentId) -> Result<(), UnitError> {
        self.on_every_copy(segment, |unit| unit.delete(segment))
    }

    fn on_every_copy(
        &self,
        segment: SegmentId,
        act: impl Fn(&TrackedUnit) -> Result<(), UnitError>,
    ) -> Result<(), UnitError> {
        let table = self.table();
        let mut first_failure = Ok(());
        // Rebuilding members come last: repair looks once more at the members that
        // it copied from.
        let mut members: Vec<&Member> = table.members(segment.copyset()).iter().collect();
        members.sort_by_key(|member| member.state);
        for member in members {
            let result = act(&member.unit);
            first_failure = first_failure.and(result);
        }
        first_failure
    }
}

#[inline]
fn is_available(member: &Member) -> bool {
    member.unit.state() != UnitState::Missing
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{ClusterId, LineageTag};
    use testkit::units::{FaultyUnit, InjectedFaults};
    use unit::Put;
    use unit_folder::FolderUnit;
    use world::simulated::Simulation;

    use super::*;

    const SLOT_BYTES: u32 = 4096;

    /// Failing units were read in turn with healthy ones: each read that began with
    /// one waited for its error first.
    #[test]
    fn a_failing_unit_is_read_after_the_others() {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let ids = [1, 2].map(UnitId::from_u128);
        let faulty = ids.map(|id| {
            let path = format!("/{id}");
            let unit = FolderUnit::create(&world, Path::new(&path), ClusterId::from_u128(1), id);
            Arc::new(FaultyUnit::new(Arc::new(unit.expect("made")), 1))
        });
        let units = faulty.clone().map(|unit| {
            let unit = TrackedUnit::new(unit, Arc::clone(&world.clock));
            Arc::new(unit)
        });
        let copyset = CopysetId::new(1).expect("small");
        let store = Store::new(Arc::clone(&world.pool));
        let copysets = [Copyset::of_copies(copyset, ids.to_vec())];
        store.set_table(ids.into_iter().zip(units.clone()).collect(), &copysets);
        let segments = [1, 2].map(|serial| SegmentId::new(copyset, serial).expect("small"));
        for unit in &units {
            for segment in segments {
                let data = vec![7; SLOT_BYTES as usize];
                unit.put(Put {
                    lineage_tag: LineageTag::NONE,
                    segment,
                    slot_bytes: SLOT_BYTES,
                    first: Slot(0),
                    tags: &[[1; 16]],
                    data: &data,
                })
                .expect("put");
            }
        }
        faulty[0].set(InjectedFaults {
            write_errors_one_in: 1,
            read_errors_one_in: 1,
            ..InjectedFaults::default()
        });
        units[0].sync(&segments).expect_err("it fails");
        assert_eq!(units[0].state(), UnitState::Failing);
        let before = faulty[0].injected();
        for segment in segments {
            let run = SlotRun {
                segment,
                first: Slot(0),
                count: 1,
            };
            let (mut tags, mut data) = ([[0; 16]], vec![0; SLOT_BYTES as usize]);
            let table = store.table();
            let order = table.best_first(segment, &[]);
            assert_eq!(order[0].id, ids[1]);
            assert_eq!(order.len(), 2, "its copy may be the only one");
            assert!(store.read_now(&table, run, SLOT_BYTES, &mut tags, &mut data));
        }
        assert_eq!(faulty[0].injected(), before, "it was not queried");
    }
}
