//! Freeing dead slots of a segment with parity.
//!
//! ```text
//!  1. look      what is there, and of which slots each parity is made
//!  2. parity    every parity member's is made anew without the dead slots, in
//!               one step for each, if it is still the one that was looked at
//!  3. look      that each is what was put there
//!  4. free      the dead slots on the members that have them
//! ```
//!
//! Invariant: a slot's content goes only when every parity member leaves it out, so
//! every parity is made of slots that are there. A crash after any step leaves
//! parities with different masks, each of which is right for what it says. Masks only
//! shrink.
//!
//! It takes a whole parity anew to give back one slot. So that is done when half of
//! what is left in a segment is dead; a segment of which all is dead goes as a whole,
//! at no such cost.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::{Erasure, MemberState};
use base::{SegmentId, Slot};
use unit::{Replacement, SegmentStat, SlotRun, Tag, Unit as _, UnitError};

use super::code::{Mask, add, encode, recipe};
use super::masks::Masks;
use crate::scatter::Member;
use crate::scatter::layout::Layout;

/// Of so many slots that are left one has to be dead.
const DEAD_ONE_IN: u32 = 2;

/// Rows that are read at once.
const ROWS_AT_ONCE: u32 = 128;

/// Gives back what is dead of a segment to which nothing is appended any more, if it
/// is enough. `dead` is all that was ever found dead there. Returns whether the
/// segment is gone.
///
/// # Errors
/// The first unit that could not; then it is to be done again. Doing it twice is no
/// error.
#[cfg(test)]
pub fn give_back(
    members: &[Member],
    erasure: Erasure,
    segment: SegmentId,
    dead: &[Slot],
) -> Result<bool, UnitError> {
    give_back_if(members, erasure, segment, dead, || true)
}

/// As [`give_back`]; what is about to be freed is only if `are_all` then says that
/// these are all the members: one that came later may have a parity of what is freed.
/// Whoever comes after that was asked finds none that counts it.
pub fn give_back_if(
    members: &[Member],
    erasure: Erasure,
    segment: SegmentId,
    dead: &[Slot],
    are_all: impl Fn() -> bool,
) -> Result<bool, UnitError> {
    let must_be_all = || match are_all() {
        true => Ok(()),
        false => Err(UnitError::Missing {
            url: format!("copyset {}", segment.copyset().number()),
            reason: "it may have other members by now".to_owned(),
        }),
    };
    let k = erasure.data();
    // Of one that leaves and the one that is filled in its place the former has all.
    let of = |place: u8| {
        let at = members.iter().filter(|member| member.place == place);
        at.min_by_key(|member| member.state)
    };
    let missing = || UnitError::Missing {
        url: format!("copyset {}", segment.copyset().number()),
        reason: "not all of its units are known".to_owned(),
    };
    let all: Option<Vec<&Member>> = (0..erasure.members()).map(of).collect();
    let all = all.ok_or_else(missing)?;
    let (of_data, of_parity) = all.split_at(usize::from(k));
    let layout = Layout::new(Some(erasure));

    let mut looked = Vec::new();
    for (parity, member) in (0..).zip(of_parity) {
        looked.push(look(member, segment, erasure, parity)?);
    }
    let mut filled = Vec::new();
    for member in members.iter().filter(|one| is_beside(one, &all)) {
        if let Some(parity) = member.place.checked_sub(k) {
            filled.push(look(member, segment, erasure, parity)?);
        }
    }
    let counts = |row: u32, place: u8| {
        let masks = looked.iter().chain(&filled).flatten();
        let mut bits = masks.map(|(_, masks)| masks.of(row) >> place & 1);
        bits.any(|bit| bit == 1)
    };
    let is_counted = |slot: &&Slot| {
        let home = layout.home(**slot);
        counts(u32::from(home.slot.0), home.place.unwrap_or(0))
    };
    let counted: BTreeSet<Slot> = dead.iter().filter(is_counted).copied().collect();
    // Those that every parity leaves out may still be there, after a crash.
    let given_up: Vec<Slot> = dead
        .iter()
        .filter(|slot| !counted.contains(slot))
        .copied()
        .collect();
    if !given_up.is_empty() {
        must_be_all()?;
        free_on(members, erasure, layout, segment, &given_up)?;
    }

    let mut left = 0;
    let mut slot_bytes = None;
    let rows = looked.iter().flatten().map(|(_, masks)| masks.rows());
    let rows = rows.max().unwrap_or(0);
    for (member, place) in of_data.iter().zip(0..) {
        let mut own = 0;
        if let Some(stat) = stat_of(member, segment)? {
            left += stat.slots - stat.freed;
            slot_bytes = Some(stat.slot_bytes);
            own = stat.slots;
        }
        // What a member never got, since it was away, lives in the parity.
        for row in (own..rows).filter(|row| counts(*row, place)) {
            let lives = lives_in_parity(&all, erasure, segment, &looked, (row, place))?;
            left += u32::from(lives);
        }
    }
    let dead_left = counted.len() as u32;
    if dead_left == left {
        must_be_all()?;
        // Parity first: as long as there is some, it says what lives.
        let mut all: Vec<&Member> = members.iter().collect();
        all.sort_by_key(|member| std::cmp::Reverse(member.place));
        for member in all {
            remove(member, segment)?;
        }
        return Ok(true);
    }
    let Some(slot_bytes) = slot_bytes else {
        return Ok(false);
    };
    if counted.is_empty() || dead_left * DEAD_ONE_IN < left {
        return Ok(false);
    }
    // What is rebuilt is made of what is there: that stays as it is meanwhile.
    if let Some(member) = members.iter().find(|one| one.state != MemberState::Whole) {
        return Err(UnitError::Missing {
            url: member.unit.url().to_owned(),
            reason: format!("copyset {} is being mended", segment.copyset().number()),
        });
    }
    for ((parity, member), found) in (0..).zip(of_parity).zip(&looked) {
        // One that was never put is made of nothing.
        let Some((generation, masks)) = found else {
            continue;
        };
        let mut after = masks.clone();
        for slot in &counted {
            let home = layout.home(*slot);
            let row = u32::from(home.slot.0);
            after.set(row, after.of(row) & !(1 << home.place.unwrap_or(0)));
        }
        if after == *masks {
            continue;
        }
        let made = Anew {
            of_data,
            member,
            erasure,
            parity,
            segment,
            slot_bytes,
        };
        made.replace(*generation, masks, &mut after)?;
    }
    // What was really put there counts, and what another host has put since.
    let mut gone: Vec<Slot> = counted.into_iter().collect();
    for (parity, member) in (0..).zip(of_parity) {
        let Some((_, masks)) = look(member, segment, erasure, parity)? else {
            continue;
        };
        gone.retain(|slot| {
            let home = layout.home(*slot);
            masks.of(u32::from(home.slot.0)) >> home.place.unwrap_or(0) & 1 == 0
        });
    }
    must_be_all()?;
    free_on(members, erasure, layout, segment, &gone)?;
    Ok(false)
}

/// The slots that the member at `place` has of these, as it numbers them.
fn own_slots(layout: Layout, place: u8, slots: &[Slot]) -> Vec<Slot> {
    let homes = slots.iter().map(|slot| layout.home(*slot));
    let own = homes.filter(|home| home.place == Some(place));
    own.map(|home| home.slot).collect()
}

/// Whether a member is not among those that were chosen for their places.
fn is_beside(member: &Member, chosen: &[&Member]) -> bool {
    chosen.iter().all(|one| one.id != member.id)
}

fn free_on(
    members: &[Member],
    erasure: Erasure,
    layout: Layout,
    segment: SegmentId,
    slots: &[Slot],
) -> Result<(), UnitError> {
    for member in members.iter().filter(|one| one.place < erasure.data()) {
        let own = own_slots(layout, member.place, slots);
        if !own.is_empty() {
            // It goes with the whole segment: until then it says what is padding.
            match member.unit.free(segment, &own, false) {
                Err(UnitError::Damaged { .. }) if stat_of(member, segment)?.is_none() => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// What a member has of a segment, if anything: a put that failed there may have left
/// something that cannot be read as one.
fn stat_of(member: &Member, segment: SegmentId) -> Result<Option<SegmentStat>, UnitError> {
    match member.unit.stat_segment(segment) {
        Ok(stat) => Ok(Some(stat)),
        Err(UnitError::NoSegment { .. } | UnitError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Of which slots a parity member's part is made, and its generation.
fn look(
    member: &Member,
    segment: SegmentId,
    erasure: Erasure,
    parity: u8,
) -> Result<Option<(u16, Masks)>, UnitError> {
    if stat_of(member, segment)?.is_none() {
        return Ok(None);
    }
    match Masks::ask(&*member.unit, segment, erasure, parity) {
        Err(UnitError::NoSegment { .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// Whether a slot that its member has not got is anything but padding, as far as the
/// others say. Of a row that was put and never committed no parity is left: it was
/// swept.
fn lives_in_parity(
    members: &[&Member],
    erasure: Erasure,
    segment: SegmentId,
    looked: &[Option<(u16, Masks)>],
    (row, wanted): (u32, u8),
) -> Result<bool, UnitError> {
    let data = usize::from(erasure.data());
    let (mut there, mut parities): (Mask, _) = (0, Vec::new());
    let mut fragments: BTreeMap<usize, (Tag, Vec<u8>)> = BTreeMap::new();
    for (place, member) in members.iter().enumerate() {
        let mask = match place.checked_sub(data) {
            Some(parity) => looked[parity].as_ref().map_or(0, |(_, it)| it.of(row)),
            None => 0,
        };
        let is_asked = place != usize::from(wanted) && (place < data || mask >> wanted & 1 == 1);
        let stat = stat_of(member, segment)?.filter(|stat| is_asked && stat.slots > row);
        let Some(stat) = stat else {
            continue;
        };
        let run = SlotRun {
            segment,
            first: Slot(u16::try_from(row).expect("at most 2^16 rows")),
            count: 1,
        };
        let (mut tags, mut content) = ([[0; 16]], vec![0; stat.slot_bytes as usize]);
        let read = member
            .unit
            .read(run, stat.slot_bytes, &mut tags, &mut content);
        match read {
            Ok(()) => {
                fragments.insert(place, (tags[0], content));
            }
            // Of a data member it is padding, or no parity has it any more.
            Err(UnitError::NoSlot { .. }) if place < data => {}
            Err(UnitError::NoSlot { .. } | UnitError::Damaged { .. }) => continue,
            Err(error) => return Err(error),
        }
        match place.checked_sub(data) {
            Some(parity) => parities.push((parity, mask)),
            None => there |= 1 << place,
        }
    }
    if parities.is_empty() {
        return Ok(false);
    }
    let Some(recipe) = recipe(usize::from(wanted), there, &parities) else {
        return Ok(true);
    };
    let (mut tag, mut content) = ([0; 16], Vec::new());
    let of_parity = recipe.parities.iter();
    let of_parity = of_parity.map(|(parity, times)| (data + parity, times));
    let of_data = recipe.data.iter().map(|(slot, times)| (*slot, times));
    for (place, times) in of_data.chain(of_parity) {
        if let Some((of_tag, of_content)) = fragments.get(&place) {
            content.resize(of_content.len(), 0);
            add(&mut tag, *times, of_tag);
            add(&mut content, *times, of_content);
        }
    }
    Ok(tag != [0; 16] || content.iter().any(|byte| *byte != 0))
}

/// Removes all that a member has of a segment.
fn remove(member: &Member, segment: SegmentId) -> Result<(), UnitError> {
    let slots = match member.unit.stat_segment(segment) {
        Ok(stat) => stat.slots,
        Err(UnitError::NoSegment { .. }) => 0,
        Err(UnitError::Damaged { .. }) => return member.unit.delete(segment),
        Err(error) => return Err(error),
    };
    // A free, and no delete: whoever may free may do that.
    let all = (0..slots).filter_map(|slot| u16::try_from(slot).ok().map(Slot));
    member.unit.free(segment, &all.collect::<Vec<_>>(), true)
}

/// A parity member's part of a segment, made anew.
struct Anew<'a> {
    of_data: &'a [&'a Member],
    member: &'a Member,
    erasure: Erasure,
    parity: u8,
    segment: SegmentId,
    slot_bytes: u32,
}

impl Anew<'_> {
    /// Puts it in the place of `generation`, whose masks are `before`. A row whose
    /// slots do not give the parity that is there keeps that, and its mask in
    /// `after`: some member is wrong about it, and what would come of its slots
    /// would be wrong, too.
    fn replace(&self, generation: u16, before: &Masks, after: &mut Masks) -> Result<(), UnitError> {
        let length = self.slot_bytes as usize;
        let rows = before.rows();
        let mut tags: Vec<Tag> = Vec::with_capacity(rows as usize + 1);
        let mut data = Vec::with_capacity((rows as usize + 1) * length);
        for first in (0..rows).step_by(ROWS_AT_ONCE as usize) {
            let count = ROWS_AT_ONCE.min(rows - first);
            let old = self.read_parity(first, count)?;
            let columns = self.columns(first, count, before)?;
            for (row, found) in (0..count).zip(old) {
                let number = first + row;
                // What cannot be read is of no use: it is made of nothing from now on.
                let Some(mut found) = found else {
                    after.set(number, 0);
                    tags.push([0; 16]);
                    data.resize(data.len() + length, 0);
                    continue;
                };
                let masks = (before.of(number), after.of(number));
                let mut made = self.made_anew(&columns, row as usize, masks, &found);
                if made.is_none() {
                    // Perhaps something was only read wrong.
                    let columns = self.columns(number, 1, before)?;
                    found = self
                        .read_parity(number, 1)?
                        .pop()
                        .flatten()
                        .unwrap_or(found);
                    made = self.made_anew(&columns, 0, masks, &found);
                }
                if made.is_none() {
                    after.set(number, masks.0);
                }
                let (tag, content) = made.unwrap_or(found);
                tags.push(tag);
                data.extend(content);
            }
        }
        if *after == *before {
            return Ok(());
        }
        tags.push([0; 16]);
        data.extend(after.encode(self.segment, self.erasure, self.parity, self.slot_bytes));
        let by = Replacement {
            expected: Some(generation),
            generation: generation.saturating_add(1),
            line: 0,
            slot_bytes: self.slot_bytes,
            tags: &tags,
            data: &data,
        };
        self.member.unit.replace(self.segment, by)
    }

    /// The parity of one row with the second of two masks, if what is `found` is that
    /// with the first.
    fn made_anew(
        &self,
        columns: &[Column],
        row: usize,
        (was, is): (u16, u16),
        found: &(Tag, Vec<u8>),
    ) -> Option<(Tag, Vec<u8>)> {
        let is_right = was == 0 || self.made(columns, row, was).as_ref() == Some(found);
        match is_right {
            true if was == is => Some(found.clone()),
            true => self.made(columns, row, is),
            false => None,
        }
    }

    /// A parity of one row.
    fn made(&self, columns: &[Column], row: usize, mask: u16) -> Option<(Tag, Vec<u8>)> {
        let is_there = |(place, column): (usize, &Column)| {
            mask >> place & 1 == 0 || column.get(row).is_some_and(Option::is_some)
        };
        if !columns.iter().enumerate().all(is_there) {
            return None;
        }
        let slot = |place: usize, column: &'_ Column| {
            let counts = mask >> place & 1 == 1;
            column
                .get(row)
                .and_then(Option::as_ref)
                .filter(|_| counts)
                .cloned()
        };
        let slots: Vec<Option<(Tag, Vec<u8>)>> = columns
            .iter()
            .enumerate()
            .map(|(place, column)| slot(place, column))
            .collect();
        let (mut tag, mut content) = ([0; 16], vec![0; self.slot_bytes as usize]);
        let parity = usize::from(self.parity);
        let tags = slots
            .iter()
            .map(|one| one.as_ref().map(|(tag, _)| &tag[..]));
        encode(parity, tags, &mut tag);
        let contents = slots
            .iter()
            .map(|one| one.as_ref().map(|(_, content)| &content[..]));
        encode(parity, contents, &mut content);
        Some((tag, content))
    }

    /// What each data member has of some rows, as far as they count.
    fn columns(&self, first: u32, count: u32, masks: &Masks) -> Result<Vec<Column>, UnitError> {
        let mut columns = Vec::new();
        for (place, member) in self.of_data.iter().enumerate() {
            let mut column: Column = vec![None; count as usize];
            let mut row = 0;
            while row < count {
                let counts = |row: u32| masks.of(first + row) >> place & 1 == 1;
                if !counts(row) {
                    row += 1;
                    continue;
                }
                let end = (row..count).find(|row| !counts(*row)).unwrap_or(count);
                let slots = match self.read(member, first + row, end - row) {
                    Ok((tags, data)) => self.column_of(tags, &data),
                    // Padding, which is zeroes, or what was freed too early.
                    Err(
                        UnitError::NoSlot { .. }
                        | UnitError::NoSegment { .. }
                        | UnitError::Damaged { .. },
                    ) => self.one_by_one(member, first + row, end - row)?,
                    Err(error) => return Err(error),
                };
                column.splice(row as usize..end as usize, slots);
                row = end;
            }
            columns.push(column);
        }
        Ok(columns)
    }

    /// The parity of some rows. Rows that were put and never committed were freed:
    /// they stay so, whatever is put in their place.
    fn read_parity(&self, first: u32, count: u32) -> Result<Column, UnitError> {
        match self.read(self.member, first, count) {
            Ok((tags, data)) => Ok(self.column_of(tags, &data)),
            Err(UnitError::NoSlot { .. } | UnitError::Damaged { .. }) => {
                self.one_by_one(self.member, first, count)
            }
            Err(error) => Err(error),
        }
    }

    fn column_of(&self, tags: Vec<Tag>, data: &[u8]) -> Column {
        let contents = data.chunks_exact(self.slot_bytes as usize);
        tags.into_iter()
            .zip(contents.map(<[u8]>::to_vec))
            .map(Some)
            .collect()
    }

    /// Slots that are not there as zeroes; none for those that cannot be read, as a
    /// put leaves them that a crash has cut short.
    fn one_by_one(&self, member: &Member, first: u32, count: u32) -> Result<Column, UnitError> {
        let zero = || Some(([0; 16], vec![0; self.slot_bytes as usize]));
        let mut slots = Vec::new();
        for row in first..first + count {
            slots.push(match self.read(member, row, 1) {
                Ok((tags, data)) => Some((tags[0], data)),
                Err(UnitError::NoSlot { .. } | UnitError::NoSegment { .. }) => zero(),
                Err(UnitError::Damaged { .. }) => None,
                Err(error) => return Err(error),
            });
        }
        Ok(slots)
    }

    fn read(
        &self,
        member: &Member,
        first: u32,
        count: u32,
    ) -> Result<(Vec<Tag>, Vec<u8>), UnitError> {
        let run = SlotRun {
            segment: self.segment,
            first: Slot(u16::try_from(first).expect("at most 2^16 rows")),
            count: u16::try_from(count).expect("few"),
        };
        let mut tags = vec![[0; 16]; count as usize];
        let mut data = vec![0; count as usize * self.slot_bytes as usize];
        let read = member.unit.read(run, self.slot_bytes, &mut tags, &mut data);
        match read {
            Ok(()) => Ok((tags, data)),
            Err(UnitError::Damaged { url, segment, .. }) if stat_of(member, segment)?.is_none() => {
                Err(UnitError::NoSegment { url, segment })
            }
            Err(error) => Err(error),
        }
    }
}

type Column = Vec<Option<(Tag, Vec<u8>)>>;
