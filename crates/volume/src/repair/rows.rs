//! [`Rows`]: restores a segment on a member of a copyset with parity.
//!
//! A slot comes from another member at the same place, as the draining one, or else from
//! the others of its row ([`rebuild`]).
//!
//! The data of a row is read before its parity, and afterwards the parity's generation is
//! checked. A slot is only freed when no parity is made of it: so a slot that is found
//! freed counts in no parity that is used. A rebuilding member may have been rolled back:
//! its masks are trusted only if no other member has any.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use catalog::{Erasure, MemberState};
use unit::{Read, SlotRun, UnitError};

use super::compare::{Copy, SlotState};
use super::copy_error::CopyError;
use super::row_content::Content;
use super::spread::{RUN_SLOTS_MAX, SegmentSpread, number};
use crate::scatter::erasure::{Masks, MemberPart, SlotContent, rebuild};

/// Rows recovered at once.
const ROWS_AT_ONCE: usize = 64;

/// The restoration of a segment with parity.
pub(super) struct Rows<'a> {
    pub on: SegmentSpread<'a>,
    pub erasure: Erasure,
    /// The generation and masks of parity members, by index.
    pub masks: HashMap<usize, (u16, Masks)>,
    /// The number of committed rows if the segment is open; `None` if it is closed.
    pub rows_max: Option<u32>,
    /// Whether slots that only rebuilding members keep were freed elsewhere.
    pub is_given_up: bool,
}

/// What rows are recovered from.
struct RowSources {
    /// The slots that were read, by place.
    columns: BTreeMap<u8, Vec<SlotContent>>,
    /// The places of parity that was not read yet; the last one is read next.
    parities: Vec<u8>,
}

impl Rows<'_> {
    /// The number of rows that a member has.
    pub fn own(&self, member: usize) -> usize {
        let slots = self.on.copies[member].as_ref().map_or(0, Copy::len);
        match self.masks.get(&member) {
            // One slot holds the masks.
            Some((generation, _)) if *generation > 0 => slots.saturating_sub(1),
            _ => slots,
        }
    }

    /// The number of rows that the member must have: up to the last one of which any
    /// member keeps a slot that counts.
    pub fn needed(&self) -> usize {
        let last = (0..self.on.members.len()).filter_map(|member| {
            let copy = self.on.copies[member].as_ref()?;
            let most = self.rows_max.map_or(usize::MAX, |most| most as usize);
            let rows = 0..self.own(member).min(most);
            let counts =
                |row: usize| copy.held(row) == SlotState::Kept && self.row_counts(member, row);
            rows.rev().find(|row| counts(*row))
        });
        last.max().map_or(0, |last| last + 1)
    }

    /// Whether a row counts because a member keeps it. A rebuilding data member keeps its
    /// own slots if it is rewritten.
    fn row_counts(&self, member: usize, row: usize) -> bool {
        let info = &self.on.members[member];
        if !self.is_given_up || info.state != MemberState::Rebuilding {
            return true;
        }
        let bad = self.on.rotten.get(&member);
        let is_bad = bad.is_some_and(|bad| bad.contains(&number(row).0));
        member == self.on.to && !self.is_parity(info.place) && !is_bad
    }

    /// Whether a damaged slot of a member matters.
    pub fn counts(&self, member: usize, slot: u16) -> bool {
        let (slot, own) = (usize::from(slot), self.own(member));
        // The slot after the rows holds the masks.
        let copy = self.on.copies[member].as_ref();
        let is_kept = copy.is_some_and(|copy| copy.held(slot) == SlotState::Kept);
        is_kept && (slot < self.needed() || slot == own)
    }

    /// Writes what the member is missing, durably; replaces what it has if `rewrite`.
    /// Returns the number of bytes.
    pub fn restore(&mut self, rewrite: bool) -> Result<u64, CopyError> {
        let to = self.on.to;
        let target = self.on.members[to].clone();
        let own = self.own(to);
        let is_later = |(generation, _): &(u16, Masks)| *generation > 0;
        let has_masks = self.is_parity(target.place) && self.masks.values().any(is_later);
        let first = match rewrite || has_masks || !target.unit.can_append() {
            true => 0,
            false => own,
        };
        let mut content = self.content(first)?;
        if content.generation > 0 && first > 0 {
            content = self.content(0)?;
        }
        let bytes = content.data.len() as u64;
        let copy = self.on.copies[to].as_ref();
        if rewrite && copy.is_none() {
            target
                .unit
                .delete(self.on.segment)
                .map_err(CopyError::Target)?;
        }
        if content.generation > 0 || (first == 0 && copy.is_some()) {
            self.replace(&mut content)?;
        } else {
            self.on.put(first, &content.tags, &content.data)?;
        }
        self.finish(&content)?;
        Ok(bytes)
    }

    pub(super) fn is_parity(&self, place: u8) -> bool {
        place >= self.erasure.data()
    }

    /// The members at a place that hold the segment, best first.
    pub(super) fn at(&self, place: u8) -> impl Iterator<Item = usize> + '_ {
        let members = self.on.members.iter().enumerate();
        let at = members.filter(move |(index, member)| {
            member.place == place && self.on.copies[*index].is_some()
        });
        at.map(|(index, _)| index)
    }

    /// The content that the member is to hold from row `first` on.
    fn content(&mut self, first: usize) -> Result<Content, CopyError> {
        let place = self.on.members[self.on.to].place;
        let needed = self.needed();
        let mut content = Content::default();
        if self.is_parity(place) {
            content.masks = Some(Masks::whole(self.erasure, 0));
            if let Some(from) = self.current_parity(needed)? {
                match self.copy_rows(from, first, needed) {
                    Err(CopyError::Source(_)) => self.on.unresponsive.insert(from),
                    copied => return copied,
                };
            }
        }
        let (mut lost, mut failed) = (0, None);
        for begin in (first..needed).step_by(ROWS_AT_ONCE) {
            let rows = begin..needed.min(begin + ROWS_AT_ONCE);
            lost += self.recover_rows(rows, &mut content, &mut failed)?;
        }
        match (lost, failed) {
            (0, _) => Ok(content),
            (_, Some(error)) => Err(CopyError::Source(error)),
            (lost, None) => Err(CopyError::Rotten(lost)),
        }
    }

    /// A member with the same parity, complete and intact: the draining one.
    fn current_parity(&mut self, needed: usize) -> Result<Option<usize>, CopyError> {
        let to = self.on.to;
        let place = self.on.members[to].place;
        let others: Vec<usize> = self.at(place).filter(|member| *member != to).collect();
        for member in others {
            let is_long = self.own(member) >= needed && self.masks.contains_key(&member);
            if !is_long || self.on.rotten(member, &mut None)?.is_none() {
                continue;
            }
            let bad = &self.on.rotten[&member];
            if !bad.iter().any(|slot| self.counts(member, *slot)) {
                return Ok(Some(member));
            }
        }
        Ok(None)
    }

    /// The parity of another member, copied.
    fn copy_rows(&self, from: usize, first: usize, needed: usize) -> Result<Content, CopyError> {
        let mut content = Content::default();
        let (generation, masks) = self.masks[&from].clone();
        for begin in (first..needed).step_by(ROWS_AT_ONCE) {
            let rows = begin..needed.min(begin + ROWS_AT_ONCE);
            let all = |_: usize| true;
            let slots = self.read(from, rows.clone(), all)?;
            for (row, slot) in rows.zip(slots) {
                content.add(row, slot, self.on.slot_bytes);
            }
        }
        // Later rows were swept: they are not copied.
        content.masks = Some(masks.first(needed));
        content.generation = generation;
        Ok(content)
    }

    /// Adds rows of the member to `content`. Returns the number of rows that cannot be
    /// recovered; the error of a member that does not answer is put in `failed`.
    fn recover_rows(
        &mut self,
        rows: Range<usize>,
        content: &mut Content,
        failed: &mut Option<UnitError>,
    ) -> Result<u64, CopyError> {
        let place = self.on.members[self.on.to].place;
        let own = match self.is_parity(place) {
            true => None,
            false => Some(self.column(place, &rows, failed)?),
        };
        let is_known = |slot: &SlotContent| *slot != SlotContent::Lost;
        let is_there = own.as_ref().is_some_and(|own| own.iter().all(is_known));
        let columns = match is_there {
            true => BTreeMap::new(),
            false => self.data_columns(&rows, failed)?,
        };
        let mut sources = RowSources {
            columns,
            parities: self.other_parities(),
        };
        let mut lost = 0;
        for (at, row) in rows.clone().enumerate() {
            let known = own.as_ref().map(|own| own[at].clone()).filter(is_known);
            if let Some(slot) = known {
                // Padding is freed, also in an open segment.
                let slot = if slot.is_padding() {
                    SlotContent::Freed
                } else {
                    slot
                };
                content.add(row, slot, self.on.slot_bytes);
                continue;
            }
            if self.was_swept(row) {
                content.add(row, SlotContent::Freed, self.on.slot_bytes);
                content.apply_masks(&Masks::whole(self.erasure, 1));
                continue;
            }
            let Some(mut made) = self.rebuild_row(row, &rows, &mut sources, failed)? else {
                lost += 1;
                content.add(row, SlotContent::Freed, self.on.slot_bytes);
                continue;
            };
            let slot = made.slots.pop().unwrap_or(SlotContent::Freed);
            content.add(row, slot, self.on.slot_bytes);
            if let Some(masks) = &made.masks {
                content.apply_masks(masks);
                content.generation = content.generation.max(made.generation);
            }
        }
        Ok(lost)
    }

    /// The slots of some rows at the places of the other data members that hold the
    /// segment.
    fn data_columns(
        &mut self,
        rows: &Range<usize>,
        failed: &mut Option<UnitError>,
    ) -> Result<BTreeMap<u8, Vec<SlotContent>>, CopyError> {
        let place = self.on.members[self.on.to].place;
        let mut columns = BTreeMap::new();
        for other in (0..self.erasure.data()).filter(|other| *other != place) {
            if self.at(other).next().is_some() {
                let column = self.column(other, rows, failed)?;
                columns.insert(other, column);
            }
        }
        Ok(columns)
    }

    /// The places of the other members whose parity may be used, the best one last.
    fn other_parities(&self) -> Vec<u8> {
        let place = self.on.members[self.on.to].place;
        let mut parities: Vec<u8> = (self.erasure.data()..self.erasure.members())
            .filter(|other| *other != place && self.parity_at(*other).is_some())
            .collect();
        parities.sort_by_key(|other| std::cmp::Reverse((self.is_filled(*other), *other)));
        parities
    }

    /// Rebuilds row `row` of `rows`. Parity is read only as far as it is needed. `None` if
    /// the row cannot be recovered.
    fn rebuild_row(
        &mut self,
        row: usize,
        rows: &Range<usize>,
        sources: &mut RowSources,
        failed: &mut Option<UnitError>,
    ) -> Result<Option<MemberPart>, CopyError> {
        let at = row - rows.start;
        let mut made = self.rebuilt_from(at, row, &sources.columns);
        while made.is_none()
            && let Some(parity) = sources.parities.pop()
        {
            let column = self.column(parity, rows, failed)?;
            sources.columns.insert(parity, column);
            made = self.rebuilt_from(at, row, &sources.columns);
        }
        Ok(made)
    }

    /// As [`Rows::rebuilt`]; `None` if fewer columns are known than a row has data slots.
    fn rebuilt_from(
        &self,
        at: usize,
        row: usize,
        columns: &BTreeMap<u8, Vec<SlotContent>>,
    ) -> Option<MemberPart> {
        let is_enough = columns.len() >= usize::from(self.erasure.data());
        is_enough.then(|| self.rebuilt(at, row, columns)).flatten()
    }

    /// Whether a row was never committed: its parity was freed as well.
    fn was_swept(&self, row: usize) -> bool {
        let held = |member: usize| {
            let copy = self.on.copies[member].as_ref();
            let is_its = row < self.own(member);
            copy.filter(|_| is_its)
                .map_or(SlotState::Never, |copy| copy.held(row))
        };
        let mut all = 0..self.on.members.len();
        let is_kept = all.clone().any(|member| held(member) == SlotState::Kept);
        let is_parity = |member: usize| self.is_parity(self.on.members[member].place);
        !is_kept && all.any(|member| is_parity(member) && held(member) == SlotState::Freed)
    }

    /// The member whose parity at a place is used.
    fn parity_at(&self, place: u8) -> Option<usize> {
        self.at(place)
            .find(|member| self.masks.contains_key(member))
    }

    /// Whether only a rebuilding member has the parity of a place.
    fn is_filled(&self, place: u8) -> bool {
        let member = self.parity_at(place);
        member.is_some_and(|member| self.on.members[member].state == MemberState::Rebuilding)
    }

    /// The member's part of row `row`, which is number `at` of `columns`.
    pub(super) fn rebuilt(
        &self,
        at: usize,
        row: usize,
        columns: &BTreeMap<u8, Vec<SlotContent>>,
    ) -> Option<MemberPart> {
        let place = self.on.members[self.on.to].place;
        let its_masks = |member: usize| {
            let (generation, masks) = self.masks.get(&member)?;
            let row = u32::try_from(row).ok()?;
            let its = (row < masks.rows()).then(|| masks.row(row))?;
            Some((*generation, its))
        };
        let held = |other: u8| {
            if other == place {
                let (generation, masks) = its_masks(self.on.to)?;
                return Some(MemberPart {
                    slots: Vec::new(),
                    masks: Some(masks),
                    generation,
                });
            }
            let slot = columns.get(&other).map(|column| column[at].clone());
            if !self.is_parity(other) {
                return Some(MemberPart {
                    slots: vec![slot?],
                    masks: None,
                    generation: 0,
                });
            }
            if slot.is_none() && self.is_filled(other) {
                return None;
            }
            let (generation, masks) = its_masks(self.parity_at(other)?)?;
            Some(MemberPart {
                // Its masks count, also if it is not needed.
                slots: vec![slot.unwrap_or(SlotContent::Lost)],
                masks: Some(masks),
                generation,
            })
        };
        let members: Vec<Option<MemberPart>> = (0..self.erasure.members()).map(held).collect();
        rebuild(self.erasure, place, self.on.slot_bytes, &members)
    }

    /// The slots of some rows at a place, each from a member whose own checksum matches.
    pub(super) fn column(
        &mut self,
        place: u8,
        rows: &Range<usize>,
        failed: &mut Option<UnitError>,
    ) -> Result<Vec<SlotContent>, CopyError> {
        let mut column = vec![SlotContent::Lost; rows.len()];
        let is_parity = self.is_parity(place);
        let members: Vec<usize> = match is_parity {
            true => self.parity_at(place).into_iter().collect(),
            false => self.at(place).collect(),
        };
        for member in members {
            if self.on.rotten(member, failed)?.is_none() {
                continue;
            }
            let lacks = |row: usize| column[row - rows.start] == SlotContent::Lost;
            let slots = match self.read(member, rows.clone(), lacks) {
                Err(CopyError::Source(error)) => {
                    self.on.unresponsive.insert(member);
                    *failed = Some(error);
                    continue;
                }
                slots => slots?,
            };
            for (slot, found) in column.iter_mut().zip(slots) {
                if *slot == SlotContent::Lost {
                    *slot = found;
                }
            }
        }
        if self.rows_max.is_some() && !is_parity {
            // In an open segment nothing is reclaimed yet: a freed slot is padding.
            let padding = || SlotContent::Present([0; 16], vec![0; self.on.slot_bytes as usize]);
            for slot in &mut column {
                if *slot == SlotContent::Freed {
                    *slot = padding();
                }
            }
        }
        Ok(column)
    }

    /// Reads those rows of a member that are `wanted`.
    pub(super) fn read(
        &self,
        member: usize,
        rows: Range<usize>,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Vec<SlotContent>, CopyError> {
        let mut slots = vec![SlotContent::Lost; rows.len()];
        let Some(copy) = &self.on.copies[member] else {
            return Ok(slots);
        };
        let bad = self.on.rotten.get(&member);
        let is_bad = |row: usize| bad.is_some_and(|bad| bad.contains(&number(row).0));
        let own = self.own(member);
        let is_read = |row: usize| {
            row < own && wanted(row) && copy.held(row) == SlotState::Kept && !is_bad(row)
        };
        let length = copy.slot_bytes as usize;
        let mut row = rows.start;
        while row < rows.end {
            if !is_read(row) {
                if row < own && copy.held(row) == SlotState::Freed {
                    slots[row - rows.start] = SlotContent::Freed;
                }
                row += 1;
                continue;
            }
            let most = rows.end.min(row + RUN_SLOTS_MAX);
            let end = (row..most).find(|row| !is_read(*row));
            let end = end.unwrap_or(most);
            let run = SlotRun {
                segment: self.on.segment,
                first: number(row),
                count: u16::try_from(end - row).expect("at most RUN_SLOTS_MAX"),
            };
            let mut tags = vec![[0; 16]; end - row];
            let mut data = vec![0; (end - row) * length];
            self.on.pace.step(data.len() as u64)?;
            let unit = &self.on.members[member].unit;
            // A slot that was just freed is found by the next pass.
            unit.read(Read {
                run,
                slot_bytes: copy.slot_bytes,
                tags: &mut tags,
                data: &mut data,
            })
            .map_err(CopyError::Source)?;
            let contents = data.chunks_exact(length).map(<[u8]>::to_vec);
            let there = tags.into_iter().zip(contents);
            for (slot, (tag, content)) in slots[row - rows.start..].iter_mut().zip(there) {
                *slot = SlotContent::Present(tag, content);
            }
            row = end;
        }
        Ok(slots)
    }
}
