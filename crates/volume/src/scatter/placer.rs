//! [`Placer`]: assigns blocks to open segments.
//!
//! The copysets and the segment of each block are chosen at random, from the
//! world's randomness. A placer belongs to one job at a time; it decides and
//! never writes. What it assigned is *unconfirmed* until [`Placer::confirm`],
//! which a destage calls just before it commits a version.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::{CopysetId, SegmentId, UnitId};
use catalog::copysets::shuffle;
use catalog::{CatalogError, DegradedShare};
use world::Random;

use super::candidates::{best_copysets, could_take_writes, writable_members};
use super::layout::Layout;
use super::ledger::{JoinedRange, Ledger, PlacementSummary};
use super::progress::Progress;
use super::serials::Serials;
use super::table::Table;

/// Units that take whole segments only get segments of at least this length, in
/// bytes, if there is that much: an object store takes nearly as long for less.
const WHOLE_BYTES_MIN: usize = 1 << 20;

/// How a placer places pieces.
#[derive(Debug, Clone, Copy)]
pub struct PlacerConfig {
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// Slots in a full segment.
    pub slots_max: u32,
    /// The greatest number of segments, each on a copyset of its own, over which pieces
    /// that are written together are scattered.
    pub destage_width: usize,
    /// Copies of each segment.
    pub replicas: u8,
    /// How a segment's slots are laid out on its copyset. With parity, pieces are assigned
    /// by rows, and `slots_max` is a multiple of a row.
    pub layout: Layout,
    /// Whether slots within a segment are assigned in random order, too. If not,
    /// blocks that are adjacent in the volume and land in one segment stay
    /// adjacent, and are read back at once; sealed blocks reveal nothing by it.
    pub shuffle: bool,
}

/// The pieces of one assignment that go to one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The segment.
    pub segment: SegmentId,
    /// The first slot.
    pub first: u32,
    /// The pieces for that slot and the following ones, as indexes.
    pub items: Vec<usize>,
    /// The slot after the last one. With parity it ends a row, whose missing
    /// slots are padding.
    pub end: u32,
    /// The units that it is written to: the same for all of the segment.
    pub units: Vec<UnitId>,
}

#[derive(Debug)]
struct GrowingSegment {
    segment: SegmentId,
    next: u32,
    /// The members that took writes when it was begun. If others do now, the
    /// segment is closed: they would miss what was written before.
    units: Vec<UnitId>,
}

/// Keeps segments open and assigns pieces to them.
pub struct Placer {
    config: PlacerConfig,
    serials: Arc<Serials>,
    ledger: Arc<Ledger>,
    progress: Arc<Progress>,
    open: Vec<GrowingSegment>,
    /// Segments with unconfirmed slots.
    touched: BTreeMap<SegmentId, Touched>,
    /// Segments whose put failed although part of them will be committed.
    abandoned: BTreeMap<SegmentId, Abandoned>,
    /// How the unconfirmed slots were placed.
    placement: PlacementSummary,
}

/// What an assignment may choose from.
struct Choices<'a> {
    candidates: &'a [CopysetId],
    table: &'a Table,
    random: &'a dyn Random,
}

/// How far a segment was assigned.
#[derive(Debug, Clone, Copy)]
struct Touched {
    /// The slot after the last one.
    end: u32,
    /// Whether the segment is closed: nothing more is assigned to it.
    is_full: bool,
}

/// A segment that failed after part of it had been put.
#[derive(Debug, Clone, Copy)]
struct Abandoned {
    /// How many of its slots will be committed.
    good: u32,
    /// How many slots may be there: `good` if the others were freed.
    put: u32,
}

/// Why pieces cannot be assigned.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AssignError {
    /// No copyset of the required size has a unit that takes writes.
    #[error("{}", match is_transient {
        true => "the storage units that could accept writes are unavailable",
        false => "no storage unit accepts writes",
    })]
    NoUnit {
        /// Whether one will, once unavailable or failing units recover.
        is_transient: bool,
    },
    /// The catalog reserved no serials.
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
            placement: PlacementSummary::default(),
        }
    }

    /// How it places pieces.
    #[must_use]
    pub fn config(&self) -> &PlacerConfig {
        &self.config
    }

    /// The progress of the lease's placements.
    #[must_use]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Assigns `count` pieces. Each, or each row of them, goes to a random open
    /// segment; a segment that fills up is replaced by a new one. A segment on
    /// units that cannot append is assigned to once ([`Table::can_append`]).
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
        self.placement.add(PlacementSummary {
            degraded: Vec::new(),
            joined: Some(JoinedRange::of(table.joined())),
        });
        self.close_unless(|growing| {
            let copyset = growing.segment.copyset();
            candidates.contains(&copyset) && writable_members(table, copyset) == growing.units
        });
        let is_whole = |id: &CopysetId| !table.can_append(*id);
        let mut segments = Vec::new();
        let choices = Choices {
            candidates: &candidates,
            table,
            random,
        };
        let assigned = if candidates.iter().any(is_whole) {
            self.choose_for_whole_segments(count, &choices, &mut segments)
                .and_then(|()| self.assign_among(&mut segments, count, false, &choices))
        } else {
            segments.append(&mut self.open);
            let rows = count.div_ceil(self.config.layout.row_slots() as usize);
            let width = self.config.destage_width.clamp(1, candidates.len());
            self.open_up_to(width.min(rows.max(1)), &choices, &mut segments)
                .and_then(|()| self.assign_among(&mut segments, count, true, &choices))
        };
        for growing in segments {
            if growing.next == 0 || !is_whole(&growing.segment.copyset()) {
                self.open.push(growing);
            } else if let Some(touched) = self.touched.get_mut(&growing.segment) {
                touched.is_full = true;
            }
        }
        assigned
    }

    /// Chooses copysets at random where some units take whole segments only: as
    /// few as possible, so that segments are long. Pieces are on random units all
    /// the same, since every assignment chooses again.
    fn choose_for_whole_segments(
        &mut self,
        count: usize,
        choices: &Choices<'_>,
        segments: &mut Vec<GrowingSegment>,
    ) -> Result<(), AssignError> {
        let wanted = segments_wanted(&self.config, count);
        let mut order = choices.candidates.to_vec();
        shuffle(&mut order, choices.random);
        for copyset in order.iter().cycle().take(wanted) {
            let is_its = |growing: &GrowingSegment| growing.segment.copyset() == *copyset;
            match self.open.iter().position(is_its) {
                Some(index) => segments.push(self.open.swap_remove(index)),
                None => segments.push(self.begin(*copyset, choices.table)?),
            }
        }
        Ok(())
    }

    /// Opens segments until `width` are open.
    fn open_up_to(
        &mut self,
        width: usize,
        choices: &Choices<'_>,
        segments: &mut Vec<GrowingSegment>,
    ) -> Result<(), AssignError> {
        while segments.len() < width {
            let another = self.open_another(choices, segments)?;
            segments.push(another);
        }
        Ok(())
    }

    /// Assigns rows to `segments`. A segment that fills up is replaced by another
    /// one if `are_replaced`; otherwise only when no other is left.
    fn assign_among(
        &mut self,
        segments: &mut Vec<GrowingSegment>,
        count: usize,
        are_replaced: bool,
        choices: &Choices<'_>,
    ) -> Result<Vec<Share>, AssignError> {
        let random = choices.random;
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
            let chosen = die % segments.len();
            let growing = &mut segments[chosen];
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
                segments.swap_remove(chosen);
                let another = match are_replaced {
                    true => self.open_another(choices, segments)?,
                    false if segments.is_empty() => self.begin(segment.copyset(), choices.table)?,
                    false => continue,
                };
                segments.push(another);
            }
        }
        Ok(shares.into_values().collect())
    }

    fn open_another(
        &mut self,
        choices: &Choices<'_>,
        segments: &[GrowingSegment],
    ) -> Result<GrowingSegment, AssignError> {
        let candidates = choices.candidates;
        let is_unused = |id: &CopysetId| {
            segments
                .iter()
                .all(|growing| growing.segment.copyset() != *id)
        };
        let unused: Vec<CopysetId> = candidates.iter().copied().filter(is_unused).collect();
        let chosen_from = if unused.is_empty() {
            candidates
        } else {
            &unused
        };
        let chosen = (choices.random.u64() % chosen_from.len() as u64) as usize;
        self.begin(chosen_from[chosen], choices.table)
    }

    /// Begins a new segment.
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

    /// Closes the open segments for which `keep` is false.
    fn close_unless(&mut self, keep: impl Fn(&GrowingSegment) -> bool) {
        let (open, closed) = std::mem::take(&mut self.open).into_iter().partition(keep);
        self.open = open;
        for GrowingSegment { segment, next, .. } in closed {
            if let Some(touched) = self.touched.get_mut(&segment) {
                // Confirming it closes it.
                touched.is_full = true;
            } else if next == self.ledger.confirmed_slots(segment) {
                self.ledger.closed(segment);
            }
        }
    }

    /// Records that some slots were written to fewer units than required. Their
    /// segment is closed, so that repair can copy it.
    pub fn record_degraded(&mut self, degraded: DegradedShare) {
        self.close(degraded.segment);
        self.placement.degraded.push(degraded);
    }

    /// Closes the segment of `share`, whose put failed. What was put there before
    /// will be committed. What is beyond is a leftover: it stays in the ledger
    /// for the next lease to free, unless `is_freed`.
    pub fn abandon(&mut self, share: &Share, is_freed: bool) {
        let segment = share.segment;
        self.open.retain(|growing| growing.segment != segment);
        self.touched.remove(&segment);
        if share.first > self.ledger.confirmed_slots(segment) {
            let put = if is_freed { share.first } else { share.end };
            let good = share.first;
            self.abandoned.insert(segment, Abandoned { good, put });
        } else if is_freed {
            self.ledger.closed(segment);
        }
    }

    /// Records that a failed put into `segment` may still be carried out: the
    /// segment may hold leftovers until a newer lease has swept it. After that no
    /// unit accepts the put.
    pub fn mark_unresolved(&self, segment: SegmentId) {
        self.ledger.mark_unresolved(segment);
    }

    /// Closes `segment`, which is intact and has no slots beyond those assigned.
    pub fn close(&mut self, segment: SegmentId) {
        self.open.retain(|growing| growing.segment != segment);
        if let Some(touched) = self.touched.get_mut(&segment) {
            touched.is_full = true;
        }
    }

    /// Takes the slots that are unconfirmed and will never be committed, as far
    /// as they were put: segments and ranges of slots.
    pub fn take_unconfirmed(&mut self) -> Vec<(SegmentId, Range<u32>)> {
        let touched = std::mem::take(&mut self.touched);
        let abandoned = std::mem::take(&mut self.abandoned);
        self.placement = PlacementSummary::default();
        self.open
            .retain(|growing| !touched.contains_key(&growing.segment));
        let abandoned = abandoned
            .into_iter()
            .map(|(segment, abandoned)| (segment, abandoned.put));
        touched
            .into_iter()
            .map(|(segment, touched)| (segment, touched.end))
            .chain(abandoned)
            .map(|(segment, end)| (segment, self.ledger.confirmed_slots(segment)..end))
            .collect()
    }

    /// The slots that [`Placer::take_unconfirmed`] named in `segment` were freed.
    pub fn forget(&self, segment: SegmentId) {
        self.ledger.closed(segment);
    }

    /// Confirms all slots: they are in the version about to be committed. If that commit
    /// fails, [`Ledger::retract`] undoes it.
    pub fn confirm(&mut self) {
        for (segment, Touched { end, is_full }) in std::mem::take(&mut self.touched) {
            self.ledger.confirm(segment, end, end, is_full);
        }
        self.ledger
            .add_placement(std::mem::take(&mut self.placement));
        for (segment, Abandoned { good, put }) in std::mem::take(&mut self.abandoned) {
            self.ledger.confirm(segment, good, put, put == good);
        }
    }

    /// Closes all segments: what was confirmed last will not be committed.
    pub fn close_segments(&mut self) {
        self.close_unless(|_| false);
    }
}

/// The number of segments for `count` pieces where some are written whole: each has at
/// least [`WHOLE_BYTES_MIN`] on every member, if there is that much. At most as many as the
/// destage width, unless more are needed so that hardly any fills up.
fn segments_wanted(config: &PlacerConfig, count: usize) -> usize {
    let row_slots = config.layout.row_slots() as usize;
    let slots_min = (WHOLE_BYTES_MIN / config.slot_bytes as usize).max(1) * row_slots;
    // Chance assigns more to some: at 15/16 on average, few are full.
    let needed = count.div_ceil((config.slots_max as usize * 15 / 16).max(1));
    (count / slots_min)
        .clamp(1, config.destage_width.max(1))
        .max(needed)
}

#[cfg(test)]
mod tests;
