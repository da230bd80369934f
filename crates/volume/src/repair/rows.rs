//! Bringing a segment to a member of a copyset with parity.
//!
//! A slot comes from whoever has it at the same place, as the member that leaves does,
//! and else from the others of its row ([`rebuild`]).
//!
//! Of a row data is read before parity, and after it whether the parity is still the
//! one whose masks are known. A slot is only freed when every parity leaves it out: so
//! none that is found freed counts in a parity that is used. Who is filled may have been
//! put back to an earlier state: what it is made of is believed if nobody else says it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use base::Slot;
use unit::{Read, SlotRun, Tag, UnitError};

use super::compare::{Copy, Held as HeldBy};
use super::copy::CopyError;
use super::spread::{RUN_SLOTS_MAX, Spread, number};
use crate::catalog::{Erasure, MemberState};
use crate::scatter::erasure::{Held, HeldSlot, Masks, rebuild};

/// Rows that are worked out at once.
const ROWS_AT_ONCE: usize = 64;

/// A segment with parity.
pub(super) struct Rows<'a> {
    pub on: Spread<'a>,
    pub erasure: Erasure,
    /// Of members with parity, by their index: which generation, and of what it is
    /// made.
    pub masks: HashMap<usize, (u16, Masks)>,
    /// How many rows belong to versions, if not all do: then something is appended.
    pub rows_max: Option<u32>,
    /// Whether what only members have that are filled was given up.
    pub is_given_up: bool,
}

/// What a member is to hold, from some row on.
#[derive(Default)]
pub(super) struct Content {
    pub tags: Vec<Tag>,
    pub data: Vec<u8>,
    /// Rows that hold nothing.
    pub freed: Vec<Slot>,
    /// With parity: of what each row is made.
    pub masks: Option<Masks>,
    pub generation: u16,
}

impl Rows<'_> {
    /// How many rows a member has.
    pub fn own(&self, member: usize) -> usize {
        let slots = self.on.copies[member].as_ref().map_or(0, Copy::len);
        match self.masks.get(&member) {
            // One slot says of what they are made.
            Some((generation, _)) if *generation > 0 => slots.saturating_sub(1),
            _ => slots,
        }
    }

    /// How many rows there are to be: up to the last one of which any member keeps
    /// something that counts.
    pub fn needed(&self) -> usize {
        let last = (0..self.on.members.len()).filter_map(|member| {
            let copy = self.on.copies[member].as_ref()?;
            let most = self.rows_max.map_or(usize::MAX, |most| most as usize);
            let rows = 0..self.own(member).min(most);
            let counts =
                |row: usize| copy.held(row) == HeldBy::Kept && self.is_believed(member, row);
            rows.rev().find(|row| counts(*row))
        });
        last.max().map_or(0, |last| last + 1)
    }

    /// Whether a row counts because a member keeps it. What the one that is filled has of
    /// data it keeps, if it is put anew.
    fn is_believed(&self, member: usize, row: usize) -> bool {
        let its = &self.on.members[member];
        if !self.is_given_up || its.state != MemberState::Filling {
            return true;
        }
        let bad = self.on.rotten.get(&member);
        let is_bad = bad.is_some_and(|bad| bad.contains(&number(row).0));
        member == self.on.to && !self.is_parity(its.place) && !is_bad
    }

    /// Whether a slot that has rotted on a member is one that counts.
    pub fn counts(&self, member: usize, slot: u16) -> bool {
        let (slot, own) = (usize::from(slot), self.own(member));
        // The one after the rows says of what they are made.
        let copy = self.on.copies[member].as_ref();
        let is_kept = copy.is_some_and(|copy| copy.held(slot) == HeldBy::Kept);
        is_kept && (slot < self.needed() || slot == own)
    }

    /// Puts what the member lacks there, durably; all of it in the place of what it
    /// has, if that is to be `anew`. Returns how many bytes that were.
    pub fn bring(&mut self, anew: bool) -> Result<u64, CopyError> {
        let to = self.on.to;
        let target = &self.on.members[to];
        let own = self.own(to);
        let is_later = |(generation, _): &(u16, Masks)| *generation > 0;
        let says_of_what = self.is_parity(target.place) && self.masks.values().any(is_later);
        let first = match anew || says_of_what || !target.unit.can_append() {
            true => 0,
            false => own,
        };
        let mut content = self.content(first)?;
        if content.generation > 0 && first > 0 {
            content = self.content(0)?;
        }
        let bytes = content.data.len() as u64;
        let copy = self.on.copies[to].as_ref();
        if anew && copy.is_none() {
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

    /// Those at a place that hold something, the best first.
    pub(super) fn at(&self, place: u8) -> impl Iterator<Item = usize> + '_ {
        let members = self.on.members.iter().enumerate();
        let at = members.filter(move |(index, member)| {
            member.place == place && self.on.copies[*index].is_some()
        });
        at.map(|(index, _)| index)
    }

    /// What the member is to hold from row `first` on.
    fn content(&mut self, first: usize) -> Result<Content, CopyError> {
        let place = self.on.members[self.on.to].place;
        let needed = self.needed();
        let mut content = Content::default();
        if self.is_parity(place) {
            content.masks = Some(Masks::whole(self.erasure, 0));
            if let Some(from) = self.same_parity(needed)? {
                match self.copied(from, first, needed) {
                    Err(CopyError::Source(_)) => self.on.unresponsive.insert(from),
                    copied => return copied,
                };
            }
        }
        let (mut lost, mut failed) = (0, None);
        for begin in (first..needed).step_by(ROWS_AT_ONCE) {
            let rows = begin..needed.min(begin + ROWS_AT_ONCE);
            lost += self.make(rows, &mut content, &mut failed)?;
        }
        match (lost, failed) {
            (0, _) => Ok(content),
            (_, Some(error)) => Err(CopyError::Source(error)),
            (lost, None) => Err(CopyError::Rotten(lost)),
        }
    }

    /// The member whose parity the member should have, if it has all of it: the one that
    /// leaves.
    fn same_parity(&mut self, needed: usize) -> Result<Option<usize>, CopyError> {
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

    /// Parity as another member has it.
    fn copied(&self, from: usize, first: usize, needed: usize) -> Result<Content, CopyError> {
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
        // Rows that were swept after those are not brought.
        content.masks = Some(masks.first(needed));
        content.generation = generation;
        Ok(content)
    }

    /// Works out rows for the member. Returns how many of them cannot be; what is wrong
    /// with one that cannot say is left in `failed`.
    fn make(
        &mut self,
        rows: Range<usize>,
        content: &mut Content,
        failed: &mut Option<UnitError>,
    ) -> Result<u64, CopyError> {
        let place = self.on.members[self.on.to].place;
        let data = self.erasure.data();
        let mut columns: BTreeMap<u8, Vec<HeldSlot>> = BTreeMap::new();
        let own = match self.is_parity(place) {
            true => None,
            false => Some(self.column(place, &rows, failed)?),
        };
        let is_known = |slot: &HeldSlot| *slot != HeldSlot::Lost;
        let is_there = own.as_ref().is_some_and(|own| own.iter().all(is_known));
        if !is_there {
            for other in (0..data).filter(|other| *other != place) {
                if self.at(other).next().is_some() {
                    let column = self.column(other, &rows, failed)?;
                    columns.insert(other, column);
                }
            }
        }
        let mut parities: Vec<u8> = (data..self.erasure.members())
            .filter(|other| *other != place && self.parity_at(*other).is_some())
            .collect();
        // The last one is asked first.
        parities.sort_by_key(|other| std::cmp::Reverse((self.is_filled(*other), *other)));
        let mut lost = 0;
        for (at, row) in rows.clone().enumerate() {
            let known = own.as_ref().map(|own| own[at].clone()).filter(is_known);
            if let Some(slot) = known {
                // It keeps no padding, also of what is appended to.
                let slot = if slot.is_padding() {
                    HeldSlot::Freed
                } else {
                    slot
                };
                content.add(row, slot, self.on.slot_bytes);
                continue;
            }
            if self.was_swept(row) {
                content.add(row, HeldSlot::Freed, self.on.slot_bytes);
                content.made_of(&Masks::whole(self.erasure, 1));
                continue;
            }
            let made = loop {
                let enough = columns.len() >= usize::from(data);
                let made = enough.then(|| self.rebuilt((at, row), &columns));
                match (made.flatten(), parities.pop()) {
                    (Some(made), _) => break Some(made),
                    (None, Some(parity)) => {
                        let column = self.column(parity, &rows, failed)?;
                        columns.insert(parity, column);
                    }
                    (None, None) => break None,
                }
            };
            let Some(mut made) = made else {
                lost += 1;
                content.add(row, HeldSlot::Freed, self.on.slot_bytes);
                continue;
            };
            let slot = made.slots.pop().unwrap_or(HeldSlot::Freed);
            content.add(row, slot, self.on.slot_bytes);
            if let Some(masks) = &made.masks {
                content.made_of(masks);
                content.generation = content.generation.max(made.generation);
            }
        }
        Ok(lost)
    }

    /// Whether a row was put and never committed: its parity was freed as well.
    fn was_swept(&self, row: usize) -> bool {
        let held = |member: usize| {
            let copy = self.on.copies[member].as_ref();
            let is_its = row < self.own(member);
            copy.filter(|_| is_its)
                .map_or(HeldBy::Never, |copy| copy.held(row))
        };
        let mut all = 0..self.on.members.len();
        let is_kept = all.clone().any(|member| held(member) == HeldBy::Kept);
        let is_parity = |member: usize| self.is_parity(self.on.members[member].place);
        !is_kept && all.any(|member| is_parity(member) && held(member) == HeldBy::Freed)
    }

    /// The member at a place with parity that is asked.
    fn parity_at(&self, place: u8) -> Option<usize> {
        self.at(place)
            .find(|member| self.masks.contains_key(member))
    }

    /// Whether only a member that is filled has the parity of a place.
    fn is_filled(&self, place: u8) -> bool {
        let member = self.parity_at(place);
        member.is_some_and(|member| self.on.members[member].state == MemberState::Filling)
    }

    /// Row `row`, which is number `at` of `columns`, as the member is to have it.
    pub(super) fn rebuilt(
        &self,
        (at, row): (usize, usize),
        columns: &BTreeMap<u8, Vec<HeldSlot>>,
    ) -> Option<Held> {
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
                return Some(Held {
                    slots: Vec::new(),
                    masks: Some(masks),
                    generation,
                });
            }
            let slot = columns.get(&other).map(|column| column[at].clone());
            if !self.is_parity(other) {
                return Some(Held {
                    slots: vec![slot?],
                    masks: None,
                    generation: 0,
                });
            }
            if slot.is_none() && self.is_filled(other) {
                return None;
            }
            let (generation, masks) = its_masks(self.parity_at(other)?)?;
            Some(Held {
                // Its masks count, also if it is not needed.
                slots: vec![slot.unwrap_or(HeldSlot::Lost)],
                masks: Some(masks),
                generation,
            })
        };
        let members: Vec<Option<Held>> = (0..self.erasure.members()).map(held).collect();
        rebuild(self.erasure, place, self.on.slot_bytes, &members)
    }

    /// What there is at a place of some rows, each from a member whose own checksum is
    /// right.
    pub(super) fn column(
        &mut self,
        place: u8,
        rows: &Range<usize>,
        failed: &mut Option<UnitError>,
    ) -> Result<Vec<HeldSlot>, CopyError> {
        let mut column = vec![HeldSlot::Lost; rows.len()];
        let is_parity = self.is_parity(place);
        let asked: Vec<usize> = match is_parity {
            true => self.parity_at(place).into_iter().collect(),
            false => self.at(place).collect(),
        };
        for member in asked {
            if self.on.rotten(member, failed)?.is_none() {
                continue;
            }
            let lacks = |row: usize| column[row - rows.start] == HeldSlot::Lost;
            let slots = match self.read(member, rows.clone(), lacks) {
                Err(CopyError::Source(error)) => {
                    self.on.unresponsive.insert(member);
                    *failed = Some(error);
                    continue;
                }
                slots => slots?,
            };
            for (slot, found) in column.iter_mut().zip(slots) {
                if *slot == HeldSlot::Lost {
                    *slot = found;
                }
            }
        }
        if self.rows_max.is_some() && !is_parity {
            // Of what is appended to nothing is given up yet: it is padding.
            let padding = || HeldSlot::There([0; 16], vec![0; self.on.slot_bytes as usize]);
            for slot in &mut column {
                if *slot == HeldSlot::Freed {
                    *slot = padding();
                }
            }
        }
        Ok(column)
    }

    /// What a member has of those rows that are `wanted`.
    pub(super) fn read(
        &self,
        member: usize,
        rows: Range<usize>,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Vec<HeldSlot>, CopyError> {
        let mut slots = vec![HeldSlot::Lost; rows.len()];
        let Some(copy) = &self.on.copies[member] else {
            return Ok(slots);
        };
        let bad = self.on.rotten.get(&member);
        let is_bad = |row: usize| bad.is_some_and(|bad| bad.contains(&number(row).0));
        let own = self.own(member);
        let is_read =
            |row: usize| row < own && wanted(row) && copy.held(row) == HeldBy::Kept && !is_bad(row);
        let length = copy.slot_bytes as usize;
        let mut row = rows.start;
        while row < rows.end {
            if !is_read(row) {
                if row < own && copy.held(row) == HeldBy::Freed {
                    slots[row - rows.start] = HeldSlot::Freed;
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
            // One that was freed just now is seen by the next pass.
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
                *slot = HeldSlot::There(tag, content);
            }
            row = end;
        }
        Ok(slots)
    }
}

impl Content {
    fn add(&mut self, row: usize, slot: HeldSlot, slot_bytes: u32) {
        match slot {
            HeldSlot::There(tag, content) => {
                self.tags.push(tag);
                self.data.extend(content);
            }
            HeldSlot::Freed | HeldSlot::Lost => {
                self.tags.push([0; 16]);
                self.data.resize(self.data.len() + slot_bytes as usize, 0);
                self.freed.push(number(row));
            }
        }
    }

    /// The last row is made of these.
    fn made_of(&mut self, masks: &Masks) {
        if let Some(all) = &mut self.masks {
            all.extend(masks);
        }
    }
}
