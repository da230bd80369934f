//! The units and copysets, as the engine sees them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use base::{CopysetId, SegmentId, Slot, UnitId};
use unit::{SlotRun, Tag, TrackedUnit, Unit, UnitError};
use world::Pool;

use super::ledger::OpenSegments;
use crate::catalog::Copyset;

/// A unit in a copyset.
#[derive(Clone)]
pub struct Member {
    /// Its id.
    pub id: UnitId,
    /// The unit, and what is known of its health.
    pub unit: Arc<TrackedUnit>,
}

/// One state of the cluster: which units there are and how they are combined.
#[derive(Default)]
pub struct Table {
    copysets: HashMap<CopysetId, Arc<[Member]>>,
    units: Vec<Member>,
}

impl Table {
    /// The members of a copyset; none if it is not known.
    #[must_use]
    pub fn members(&self, copyset: CopysetId) -> &[Member] {
        self.copysets.get(&copyset).map_or(&[], |members| members)
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
            .map(|(id, unit)| Member { id, unit })
            .collect();
        let members = |copyset: &Copyset| -> Arc<[Member]> {
            let find = |id: &UnitId| units.iter().find(|member| member.id == *id).cloned();
            copyset.members.iter().filter_map(find).collect()
        };
        let copysets = copysets.iter().map(|set| (set.id, members(set))).collect();
        let table = Arc::new(Table { copysets, units });
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

    /// Reads a run of slots from the first copy that is said to be well, if
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
        let members = table.members(run.segment.copyset());
        // Copies share the load by segment; a unit that is down is not asked.
        let start = run.segment.serial() as usize;
        for turn in 0..members.len() {
            let member = &members[(start + turn) % members.len()];
            if member.unit.can_read() {
                return matches!(member.unit.read_now(run, slot_bytes, tags, data), Ok(true));
            }
        }
        false
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
        for member in table.members(segment.copyset()) {
            let result = act(&member.unit);
            first_failure = first_failure.and(result);
        }
        first_failure
    }
}
