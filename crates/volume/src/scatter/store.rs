//! [`Store`]: access to the units through the current [`Table`].

use std::ops::Range;
use std::sync::Arc;

use base::{SegmentId, Slot, UnitId};
use catalog::Copyset;
use parking_lot::RwLock;
use unit::{Read, ReadDone, SlotRun, Tag, TrackedUnit, Unit, UnitError};
use world::Pool;

use super::ledger::OpenSegments;
use super::table::{Member, MemberRun, Table};

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
        let table = Arc::new(Table::new(units, copysets));
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
            let there = table.available_at(run.segment, home.member_index, &[]);
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
    pub fn free_leftovers(&self, segment: SegmentId, slots: Range<u32>) -> Result<(), UnitError> {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::{ClusterId, CopysetId, LineageTag};
    use testkit::units::{FaultyUnit, InjectedFaults};
    use unit::{Put, UnitState};
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
