//! The units and copysets, as the engine sees them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use base::{CopysetId, SegmentId, Slot, UnitId};
use unit::{ReadDone, SlotRun, Tag, TrackedUnit, Unit, UnitError, UnitState};
use world::Pool;

use super::ledger::OpenSegments;
use crate::catalog::{Copyset, MemberState};

/// A unit in a copyset.
#[derive(Clone)]
pub struct Member {
    /// Its id.
    pub id: UnitId,
    /// The unit, and what is known of its health.
    pub unit: Arc<TrackedUnit>,
    /// How it stands in the copyset.
    pub state: MemberState,
}

impl Member {
    /// Whether what is put into the copyset is put on it.
    #[must_use]
    pub fn is_put_on(&self) -> bool {
        self.state != MemberState::Leaving
    }
}

/// One state of the cluster: which units there are and how they are combined.
#[derive(Default)]
pub struct Table {
    copysets: HashMap<CopysetId, Arc<[Member]>>,
    units: Vec<Member>,
    joined: u64,
}

impl Table {
    /// The units that may hold segments of a copyset: those that are put on, in
    /// their order, and then those that leave; none if it is not known.
    #[must_use]
    pub fn members(&self, copyset: CopysetId) -> &[Member] {
        self.copysets.get(&copyset).map_or(&[], |members| members)
    }

    /// The units that hold a segment, in the order in which to ask them. Those
    /// that are not well come last: their copy may still be the only one.
    #[must_use]
    pub fn best_first(&self, segment: SegmentId) -> Vec<&Member> {
        let mut members: Vec<&Member> = self.in_turn(segment).collect();
        members.sort_by_key(|member| member.unit.state().read_rank());
        members
    }

    /// The same order, if all are well: copies share the load by segment, and those
    /// that may lack something come last.
    fn in_turn(&self, segment: SegmentId) -> impl Iterator<Item = &Member> {
        let members = self.members(segment.copyset());
        let start = segment.serial() as usize % members.len().max(1);
        let (last, first) = members.split_at(start);
        let states = [
            MemberState::Whole,
            MemberState::Leaving,
            MemberState::Filling,
        ];
        let in_state = move |state| {
            let members = first.iter().chain(last);
            members.filter(move |member| member.state == state)
        };
        states.into_iter().flat_map(in_state)
    }

    /// The members of a copyset that are put on, in their order.
    pub fn put_on(&self, copyset: CopysetId) -> impl Iterator<Item = &Member> {
        let members = self.members(copyset).iter();
        members.filter(|member| member.is_put_on())
    }

    /// Up to which [`Copyset::joined`] it knows the members.
    #[must_use]
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// All copysets.
    pub fn copysets(&self) -> impl Iterator<Item = (CopysetId, &[Member])> {
        self.copysets.iter().map(|(id, members)| (*id, &**members))
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
    /// Where waiting work on units runs.
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

    /// Replaces what is known of the cluster. Copysets with a unit that is not
    /// among `units` keep the members that are.
    pub fn set_table(&self, units: Vec<(UnitId, Arc<TrackedUnit>)>, copysets: &[Copyset]) {
        let units: Vec<Member> = units
            .into_iter()
            .map(|(id, unit)| Member {
                id,
                unit,
                state: MemberState::Whole,
            })
            .collect();
        let members = |copyset: &Copyset| -> Arc<[Member]> {
            let find = |(id, state): (UnitId, MemberState)| {
                let member = units.iter().find(|member| member.id == id)?;
                Some(Member {
                    state,
                    ..member.clone()
                })
            };
            copyset.standing().filter_map(find).collect()
        };
        let joined = copysets.iter().map(|set| set.joined).max().unwrap_or(0);
        let copysets = copysets.iter().map(|set| (set.id, members(set))).collect();
        let table = Arc::new(Table {
            copysets,
            units,
            joined,
        });
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
    }

    /// The cluster as it is now.
    #[must_use]
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The segments that are being appended to by this process.
    #[must_use]
    pub fn open_segments(&self) -> &Arc<OpenSegments> {
        &self.open
    }

    /// Reads a run of slots from the copy whose unit is said to be best, if
    /// that can be done without waiting. What comes back must be opened; if it
    /// does not open, the reading that waits tries the other copies.
    ///
    /// `Ok(false)`: it cannot, for whatever reason.
    #[inline]
    pub fn read_now(
        &self,
        table: &Table,
        run: SlotRun,
        slot_bytes: u32,
        tags: &mut [Tag],
        data: &mut [u8],
    ) -> bool {
        best_there(table, run.segment).is_some_and(|member| {
            matches!(member.unit.read_now(run, slot_bytes, tags, data), Ok(true))
        })
    }

    /// As [`Store::read_now`], where `done` is told what came of it, on any thread.
    /// `false` if nothing was begun, and nobody is told.
    pub fn read_later(&self, table: &Table, run: SlotRun, slot_bytes: u32, done: ReadDone) -> bool {
        let best = best_there(table, run.segment);
        best.is_some_and(|member| member.unit.read_later(run, slot_bytes, done))
    }

    /// Frees slots on every copy.
    ///
    /// # Errors
    /// The first unit that could not; the others were still asked.
    pub fn free(&self, segment: SegmentId, slots: &[Slot]) -> Result<(), UnitError> {
        let closed = !self.open.contains(segment);
        self.on_every_copy(segment, |unit| unit.free(segment, slots, closed))
    }

    /// Frees slots that were put and will never be committed, of a segment to
    /// which nothing more is appended.
    ///
    /// # Errors
    /// As [`Store::free`].
    pub fn free_orphans(&self, segment: SegmentId, slots: Range<u32>) -> Result<(), UnitError> {
        let number = |slot: u32| u16::try_from(slot).ok().map(Slot);
        let slots: Vec<Slot> = slots.filter_map(number).collect();
        self.on_every_copy(segment, |unit| unit.free(segment, &slots, true))
    }

    /// Removes a segment from every copy.
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
        // Those that are being filled come last: what was just copied to one is
        // looked up once more where it was copied from.
        for member in table.in_turn(segment) {
            let result = act(&member.unit);
            first_failure = first_failure.and(result);
        }
        first_failure
    }
}

/// The best copy's unit. One that is away is left to the reading that may wait for
/// it.
#[inline]
fn best_there(table: &Table, segment: SegmentId) -> Option<&Member> {
    let members = table.in_turn(segment);
    let best = members.min_by_key(|member| member.unit.state().read_rank());
    best.filter(|member| member.unit.state() != UnitState::Missing)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::ClusterId;
    use unit::{FaultyUnit, FolderUnit, InjectedFaults};
    use world::simulated::Simulation;

    use super::*;

    const SLOT_BYTES: u32 = 4096;

    /// Units called failing were to be asked last and were asked in turn: each
    /// read that began with one waited for its error first.
    #[test]
    fn a_failing_unit_is_read_after_the_others() {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let ids = [1, 2].map(UnitId::from_random);
        let faulty = ids.map(|id| {
            let path = format!("/{id}");
            let unit = FolderUnit::create(&world, Path::new(&path), ClusterId::from_random(1), id);
            Arc::new(FaultyUnit::new(Arc::new(unit.expect("made")), 1))
        });
        let units = faulty.clone().map(|unit| {
            let unit = TrackedUnit::new(unit, Arc::clone(&world.clock));
            Arc::new(unit)
        });
        let copyset = CopysetId::new(1).expect("small");
        let store = Store::new(Arc::clone(&world.pool));
        let copysets = [Copyset::new(copyset, ids.to_vec())];
        store.set_table(ids.into_iter().zip(units.clone()).collect(), &copysets);
        let segments = [1, 2].map(|serial| SegmentId::new(copyset, serial).expect("small"));
        for unit in &units {
            for segment in segments {
                let data = vec![7; SLOT_BYTES as usize];
                unit.put(segment, SLOT_BYTES, Slot(0), &[[1; 16]], &data)
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
            let order = table.best_first(segment);
            assert_eq!(order[0].id, ids[1]);
            assert_eq!(order.len(), 2, "its copy may be the only one");
            assert!(store.read_now(&table, run, SLOT_BYTES, &mut tags, &mut data));
        }
        assert_eq!(faulty[0].injected(), before, "it was not asked");
    }
}
