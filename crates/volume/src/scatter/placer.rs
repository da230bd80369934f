//! Dealing blocks over open segments.
//!
//! Which copysets are open and which block goes where is chosen at random from
//! the world's randomness. A placer belongs to one job at a time; it decides
//! and never writes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use base::{CopysetId, SegmentId, UnitId, VolumeId};
use world::Random;

use super::candidates::{best_copysets, could_take_writes, writable_members};
use super::layout::Layout;
use super::ledger::{Ledger, PlacementSummary};
use super::progress::Progress;
use super::store::Table;
use crate::catalog::copysets::shuffle;
use crate::catalog::{Catalog, CatalogError, DegradedShare};

/// How many segment serials are asked for at once: a destage uses some ten.
const SERIALS_AT_ONCE: u32 = 64;

/// Where a put makes a whole segment, a deal is not divided into segments that
/// are shorter, in bytes: a store takes nearly as long for less.
const WHOLE_BYTES_MIN: usize = 1 << 20;

/// The segment serials of a lease, shared by its placers.
pub struct Serials {
    catalog: Arc<dyn Catalog>,
    volume: VolumeId,
    epoch: u32,
    reserved: Mutex<Range<u64>>,
}

impl Serials {
    /// No serials yet; they are reserved as they are needed.
    pub fn new(catalog: Arc<dyn Catalog>, volume: VolumeId, epoch: u32) -> Self {
        Self {
            catalog,
            volume,
            epoch,
            reserved: Mutex::new(0..0),
        }
    }

    /// A serial nobody ever had. May wait for the catalog.
    fn take(&self) -> Result<u64, CatalogError> {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if reserved.is_empty() {
            *reserved = self
                .catalog
                .reserve_serials(self.volume, self.epoch, SERIALS_AT_ONCE)?;
        }
        reserved.next().ok_or_else(|| CatalogError::Refused {
            reason: "the catalog handed out no segment serials".to_owned(),
        })
    }

    /// Serials from here on have not been used by this lease.
    pub fn next(&self) -> u64 {
        self.reserved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .start
    }
}

/// What a placer deals.
#[derive(Debug, Clone, Copy)]
pub struct PlacerConfig {
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// Slots in a full segment.
    pub slots_max: u32,
    /// On how many copysets segments are kept open: what is written together
    /// lands on that many.
    pub width: usize,
    /// Copies of each segment.
    pub replicas: u8,
    /// How its slots lie on its copyset. With parity they are dealt by rows, and
    /// `slots_max` is of whole ones.
    pub layout: Layout,
    /// Whether slots within a segment are dealt in random order, too. If not,
    /// what is adjacent in the volume and lands in one segment stays adjacent,
    /// and is read back in one piece; sealed blocks give nothing away by it.
    pub shuffle: bool,
}

/// The part of a deal that goes to one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The segment.
    pub segment: SegmentId,
    /// The first slot.
    pub first: u32,
    /// What goes into it and the slots after it: indexes into what was dealt.
    pub items: Vec<usize>,
    /// The slot after the last one that it takes: what its last row lacks is
    /// padded.
    pub end: u32,
    /// The units that it is put on: those of all of the segment.
    pub units: Vec<UnitId>,
}

#[derive(Debug)]
struct GrowingSegment {
    segment: SegmentId,
    next: u32,
    /// The members that took writes when it was begun. With others it is not gone
    /// on with: they would lack what came before.
    units: Vec<UnitId>,
}

/// Keeps segments open and deals blocks to them.
pub struct Placer {
    config: PlacerConfig,
    serials: Arc<Serials>,
    ledger: Arc<Ledger>,
    progress: Arc<Progress>,
    open: Vec<GrowingSegment>,
    /// Segments dealt to since the last settlement.
    touched: BTreeMap<SegmentId, Touched>,
    /// Segments given up since then although part of them will be committed.
    abandoned: BTreeMap<SegmentId, Abandoned>,
    /// How all that was dealt.
    dealt: PlacementSummary,
}

/// What a deal may choose from.
struct Choices<'a> {
    candidates: &'a [CopysetId],
    table: &'a Table,
    random: &'a dyn Random,
}

/// How far a segment was dealt to.
#[derive(Debug, Clone, Copy)]
struct Touched {
    /// Up to which slot.
    end: u32,
    /// Whether nothing more comes into it.
    is_full: bool,
}

/// A segment that failed after part of it had been put.
#[derive(Debug, Clone, Copy)]
struct Abandoned {
    /// How many slots will be committed.
    good: u32,
    /// How many may lie there: no more than `good` if the others were freed.
    put: u32,
}

/// Nothing can be dealt.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AssignError {
    /// No copyset of the size has a unit that takes writes.
    #[error("{}", match is_transient {
        true => "the storage units that would take writes are away",
        false => "no storage unit takes writes",
    })]
    NoUnit {
        /// One would, if those that are not there or fail were well again.
        is_transient: bool,
    },
    /// The catalog gave no serials.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Placer {
    /// A placer with no segment open.
    pub fn new(
        config: PlacerConfig,
        serials: Arc<Serials>,
        ledger: Arc<Ledger>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            config,
            serials,
            ledger,
            progress,
            open: Vec::new(),
            touched: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            dealt: PlacementSummary::default(),
        }
    }

    /// What it deals.
    #[must_use]
    pub fn config(&self) -> &PlacerConfig {
        &self.config
    }

    /// How far the lease's placements have come.
    #[must_use]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Deals `count` items. Each, or each row of them, lands on a random open
    /// segment; segments that fill up are followed by new ones. Where a put makes a
    /// whole segment, one is dealt to once ([`Table::can_append`]).
    ///
    /// # Errors
    /// [`AssignError`].
    pub fn assign(
        &mut self,
        count: usize,
        table: &Table,
        random: &dyn Random,
    ) -> Result<Vec<Share>, AssignError> {
        let candidates = best_copysets(table, self.config.replicas, self.config.layout);
        if candidates.is_empty() {
            let is_transient = could_take_writes(table, self.config.replicas, self.config.layout);
            return Err(AssignError::NoUnit { is_transient });
        }
        self.dealt.add(PlacementSummary {
            degraded: Vec::new(),
            joined: Some((table.joined(), table.joined())),
        });
        self.close_unless(|growing| {
            let copyset = growing.segment.copyset();
            candidates.contains(&copyset) && writable_members(table, copyset) == growing.units
        });
        let is_whole = |id: &CopysetId| !table.can_append(*id);
        let mut dealing = Vec::new();
        let among = Choices {
            candidates: &candidates,
            table,
            random,
        };
        let dealt = if candidates.iter().any(is_whole) {
            self.choose_for_whole_segments(count, &among, &mut dealing)
                .and_then(|()| self.assign_among(&mut dealing, count, false, &among))
        } else {
            dealing.append(&mut self.open);
            let rows = count.div_ceil(self.config.layout.row_slots() as usize);
            let width = self.config.width.clamp(1, candidates.len());
            self.open_up_to(width.min(rows.max(1)), &among, &mut dealing)
                .and_then(|()| self.assign_among(&mut dealing, count, true, &among))
        };
        for growing in dealing {
            if growing.next == 0 || !is_whole(&growing.segment.copyset()) {
                self.open.push(growing);
            } else if let Some(touched) = self.touched.get_mut(&growing.segment) {
                touched.is_full = true;
            }
        }
        dealt
    }

    /// Chooses copysets at random for a deal of which some part is put as whole
    /// segments: as few as there can be, so that these are long. All lie on
    /// random units all the same, since every deal chooses anew.
    fn choose_for_whole_segments(
        &mut self,
        count: usize,
        among: &Choices<'_>,
        dealing: &mut Vec<GrowingSegment>,
    ) -> Result<(), AssignError> {
        let wanted = segments_wanted(&self.config, count);
        let mut order = among.candidates.to_vec();
        shuffle(&mut order, among.random);
        for copyset in order.iter().cycle().take(wanted) {
            let is_its = |growing: &GrowingSegment| growing.segment.copyset() == *copyset;
            match self.open.iter().position(is_its) {
                Some(place) => dealing.push(self.open.swap_remove(place)),
                None => dealing.push(self.begin(*copyset, among.table)?),
            }
        }
        Ok(())
    }

    /// Opens segments until there are `width`.
    fn open_up_to(
        &mut self,
        width: usize,
        among: &Choices<'_>,
        dealing: &mut Vec<GrowingSegment>,
    ) -> Result<(), AssignError> {
        while dealing.len() < width {
            let another = self.open_another(among, dealing)?;
            dealing.push(another);
        }
        Ok(())
    }

    /// Deals rows among `dealing`. What fills up is followed by another one if all
    /// `are_followed`; else only where nothing else is left.
    fn assign_among(
        &mut self,
        dealing: &mut Vec<GrowingSegment>,
        count: usize,
        are_followed: bool,
        among: &Choices<'_>,
    ) -> Result<Vec<Share>, AssignError> {
        let random = among.random;
        let row_slots = self.config.layout.row_slots();
        let rows = count.div_ceil(row_slots as usize);
        let mut order: Vec<usize> = (0..rows).collect();
        if self.config.shuffle {
            // A row that is not full stays the last one of its share.
            let full = count / row_slots as usize;
            shuffle(&mut order[..full], random);
        }
        let mut dice = vec![0; rows * 4];
        random.fill(&mut dice);
        let mut shares: BTreeMap<SegmentId, Share> = BTreeMap::new();
        for (row, die) in order.into_iter().zip(dice.chunks_exact(4)) {
            let die = u32::from_le_bytes(die.try_into().expect("a chunk of four")) as usize;
            let chosen = die % dealing.len();
            let growing = &mut dealing[chosen];
            let share = shares.entry(growing.segment).or_insert_with(|| Share {
                segment: growing.segment,
                first: growing.next,
                items: Vec::new(),
                end: growing.next,
                units: growing.units.clone(),
            });
            let items = row * row_slots as usize..;
            share.items.extend(
                items
                    .take(row_slots as usize)
                    .take_while(|item| *item < count),
            );
            growing.next += row_slots;
            share.end = growing.next;
            let (segment, end) = (growing.segment, growing.next);
            let is_full = end == self.config.slots_max;
            self.touched.insert(segment, Touched { end, is_full });
            if is_full {
                dealing.swap_remove(chosen);
                let another = match are_followed {
                    true => self.open_another(among, dealing)?,
                    false if dealing.is_empty() => self.begin(segment.copyset(), among.table)?,
                    false => continue,
                };
                dealing.push(another);
            }
        }
        Ok(shares.into_values().collect())
    }

    fn open_another(
        &mut self,
        among: &Choices<'_>,
        dealing: &[GrowingSegment],
    ) -> Result<GrowingSegment, AssignError> {
        let candidates = among.candidates;
        let is_unused = |id: &CopysetId| {
            dealing
                .iter()
                .all(|growing| growing.segment.copyset() != *id)
        };
        let unused: Vec<CopysetId> = candidates.iter().copied().filter(is_unused).collect();
        let chosen_from = if unused.is_empty() {
            candidates
        } else {
            &unused
        };
        let chosen = (among.random.u64() % chosen_from.len() as u64) as usize;
        self.begin(chosen_from[chosen], among.table)
    }

    /// Begins a segment.
    fn begin(&self, copyset: CopysetId, table: &Table) -> Result<GrowingSegment, AssignError> {
        let segment = self.ledger.begin(|| {
            let serial = self.serials.take()?;
            SegmentId::new(copyset, serial).ok_or_else(|| CatalogError::Refused {
                reason: "all 2^36 segment serials have been used".to_owned(),
            })
        })?;
        Ok(GrowingSegment {
            segment,
            next: 0,
            units: writable_members(table, copyset),
        })
    }

    /// Goes on with those open segments only for which `goes_on` holds.
    fn close_unless(&mut self, goes_on: impl Fn(&GrowingSegment) -> bool) {
        let (open, closed) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(goes_on);
        self.open = open;
        for GrowingSegment { segment, next, .. } in closed {
            if let Some(touched) = self.touched.get_mut(&segment) {
                // Its settlement closes it.
                touched.is_full = true;
            } else if next == self.ledger.committed_slots(segment) {
                self.ledger.closed(segment);
            }
        }
    }

    /// Part of what was dealt was put on fewer units than it should be: nothing
    /// more is dealt to that segment, so that what it has can be copied.
    pub fn record_degraded(&mut self, degraded: DegradedShare) {
        self.close(degraded.segment);
        self.dealt.degraded.push(degraded);
    }

    /// Nothing more is dealt to the segment of `share`, for its put failed.
    /// What was put there before will be committed; what lies beyond is
    /// nobody's, and stays in the ledger for the next lease to free unless
    /// `is_freed` says that nothing does.
    pub fn abandon(&mut self, share: &Share, is_freed: bool) {
        let segment = share.segment;
        self.open.retain(|growing| growing.segment != segment);
        self.touched.remove(&segment);
        if share.first > self.ledger.committed_slots(segment) {
            let put = if is_freed { share.first } else { share.end };
            let good = share.first;
            self.abandoned.insert(segment, Abandoned { good, put });
        } else if is_freed {
            self.ledger.closed(segment);
        }
    }

    /// A put into `segment` has failed that may be carried out later: until a newer
    /// lease has swept it, after which no unit takes it any more, it may hold more than
    /// was freed.
    pub fn mark_unresolved(&self, segment: SegmentId) {
        self.ledger.mark_unresolved(segment);
    }

    /// Nothing more is dealt to `segment`, which is good as far as it goes, and has no
    /// slot beyond.
    pub fn close(&mut self, segment: SegmentId) {
        self.open.retain(|growing| growing.segment != segment);
        if let Some(touched) = self.touched.get_mut(&segment) {
            touched.is_full = true;
        }
    }

    /// Nothing that was dealt since the last settlement will be committed.
    /// Returns where it lies, as far as it was put: segments, and from which
    /// slot to which.
    pub fn take_unconfirmed(&mut self) -> Vec<(SegmentId, Range<u32>)> {
        let touched = std::mem::take(&mut self.touched);
        let abandoned = std::mem::take(&mut self.abandoned);
        self.dealt = PlacementSummary::default();
        self.open
            .retain(|growing| !touched.contains_key(&growing.segment));
        let abandoned = abandoned
            .into_iter()
            .map(|(segment, abandoned)| (segment, abandoned.put));
        touched
            .into_iter()
            .map(|(segment, touched)| (segment, touched.end))
            .chain(abandoned)
            .map(|(segment, end)| (segment, self.ledger.committed_slots(segment)..end))
            .collect()
    }

    /// What [`Placer::take_unconfirmed`] said of `segment` has been freed.
    pub fn forget(&self, segment: SegmentId) {
        self.ledger.closed(segment);
    }

    /// Everything dealt so far is in the version about to be committed.
    pub fn confirm(&mut self) {
        for (segment, Touched { end, is_full }) in std::mem::take(&mut self.touched) {
            self.ledger.committed(segment, end, end, is_full);
        }
        self.ledger.dealt(std::mem::take(&mut self.dealt));
        for (segment, Abandoned { good, put }) in std::mem::take(&mut self.abandoned) {
            self.ledger.committed(segment, good, put, put == good);
        }
    }

    /// Goes on with no segment: what was settled last will not be committed.
    pub fn close_segments(&mut self) {
        self.close_unless(|_| false);
    }
}

/// Over how many segments a deal of `count` items goes, some of which are put
/// whole: so that each has [`WHOLE_BYTES_MIN`] on every member if there is that much,
/// on no more copysets than the width, but on so many that hardly one fills up.
fn segments_wanted(config: &PlacerConfig, count: usize) -> usize {
    let row_slots = config.layout.row_slots() as usize;
    let slots_min = (WHOLE_BYTES_MIN / config.slot_bytes as usize).max(1) * row_slots;
    // Chance deals more to some: at 15 of 16 on average few of them are full.
    let needed = count.div_ceil((config.slots_max as usize * 15 / 16).max(1));
    (count / slots_min)
        .clamp(1, config.width.max(1))
        .max(needed)
}

#[cfg(test)]
mod tests;
