//! Freeing dead slots of a segment with parity.
//!
//! ```text
//!  1. inspect   the members, and of which slots each parity is made
//!  2. rewrite   the parity of every parity member without the dead slots, in one
//!               step for each, if it is still the generation that was inspected
//!  3. verify    that every parity leaves the dead slots out
//!  4. free      the dead slots on the members that have them
//! ```
//!
//! Invariant: a slot's content is freed only when no parity is made of it, and only
//! while all members are in sync, so that no parity is being made of it at that
//! moment. A crash after any step leaves parities with different masks, each of
//! which is right for its content. Masks only shrink.
//!
//! Reclaiming one slot costs a rewrite of all parity. So it is done when half of a
//! segment's remaining slots are dead; a segment of dead slots alone is deleted at
//! no such cost.

use std::collections::{BTreeMap, BTreeSet};

use base::{SegmentId, Slot};
use catalog::{Erasure, MemberState};
use unit::{SegmentStat, Tag, Unit as _, UnitError};

use super::code::{Mask, add, recipe};
use super::masks::Masks;
use super::member_segment::{is_empty, kept_by, read_masks, read_slot, remove, stat_of};
use super::parity_rewrite::ParityRewrite;
use crate::scatter::Member;
use crate::scatter::layout::Layout;

/// One remaining slot in this many has to be dead before a segment is reclaimed.
const DEAD_ONE_IN: usize = 2;

/// As [`reclaim_if`], if these are known to be all members.
#[cfg(test)]
pub fn reclaim(
    members: &[Member],
    erasure: Erasure,
    segment: SegmentId,
    dead: &[Slot],
) -> Result<bool, UnitError> {
    reclaim_if(members, erasure, segment, dead, || true)
}

/// Reclaims the dead slots of a closed segment, if they are enough. `dead` is all that
/// was ever found dead in it. Returns whether the segment was deleted.
///
/// Slots are freed only if `are_all_members` then says that these are all of them: a new
/// member may have a parity that is made of them. One that joins after that finds no
/// parity that is.
///
/// # Errors
/// The error of the first unit that failed; then the call must be repeated, which is no
/// error.
pub fn reclaim_if(
    members: &[Member],
    erasure: Erasure,
    segment: SegmentId,
    dead: &[Slot],
    are_all_members: impl Fn() -> bool,
) -> Result<bool, UnitError> {
    let must_be_all = || match are_all_members() {
        true => Ok(()),
        false => Err(missing(segment, "it may have new members")),
    };
    let inspected = InspectedSegment::inspect(members, erasure, segment)?;
    let counted: BTreeSet<Slot> = dead
        .iter()
        .filter(|slot| inspected.counts(**slot))
        .copied()
        .collect();
    let dead: BTreeSet<Slot> = dead.iter().copied().collect();
    let living = inspected.living(&dead)?;
    // A repairer that crashed leaves empty slots of padding.
    let is_left_over = |(member, row, slot_bytes): &(&Member, Slot, u32)| {
        is_empty(member, segment, *row, *slot_bytes)
    };
    if living.in_parity == 0 && living.there.iter().all(is_left_over) {
        must_be_all()?;
        inspected.remove()?;
        return Ok(true);
    }
    let given_up = inspected.given_up(dead.difference(&counted))?;
    let left = living.in_parity + living.there.len() + counted.len();
    let is_enough = !counted.is_empty() && counted.len() * DEAD_ONE_IN >= left;
    if given_up.is_empty() && !is_enough {
        return Ok(false);
    }
    // A member that is being rebuilt is made of the present slots: they must stay.
    if let Some(member) = members
        .iter()
        .find(|member| member.state != MemberState::InSync)
    {
        return Err(UnitError::Missing {
            url: member.unit.url().to_owned(),
            reason: format!("copyset {} is being repaired", segment.copyset().number()),
        });
    }
    // Slots that no parity is made of may still exist, after a crash.
    if !given_up.is_empty() {
        must_be_all()?;
        inspected.free(&given_up)?;
    }
    let Some(slot_bytes) = living.slot_bytes.filter(|_| is_enough) else {
        return Ok(false);
    };
    inspected.leave_out(&counted, slot_bytes)?;
    let gone = inspected.left_out(counted)?;
    must_be_all()?;
    inspected.free(&gone)?;
    Ok(false)
}

fn missing(segment: SegmentId, reason: &str) -> UnitError {
    UnitError::Missing {
        url: format!("copyset {}", segment.copyset().number()),
        reason: reason.to_owned(),
    }
}

/// A segment as it was inspected.
struct InspectedSegment<'a> {
    members: &'a [Member],
    /// One member for each place: of a draining member and its replacement the former,
    /// which has everything.
    chosen: Vec<&'a Member>,
    erasure: Erasure,
    layout: Layout,
    segment: SegmentId,
    /// The generation and masks of each parity member, by place; `None` if it has
    /// nothing of the segment.
    parities: Vec<Option<(u16, Masks)>>,
    /// The same of members that were not chosen.
    filled: Vec<Option<(u16, Masks)>>,
}

/// The slots of a segment that are not dead.
struct Living<'a> {
    /// Slots that exist on their data member: member, row, and slot size in bytes.
    there: Vec<(&'a Member, Slot, u32)>,
    /// The number of slots that exist in parity only.
    in_parity: usize,
    /// The slot size in bytes, if any slot exists.
    slot_bytes: Option<u32>,
}

impl<'a> InspectedSegment<'a> {
    /// Inspects the segment on its members.
    fn inspect(
        members: &'a [Member],
        erasure: Erasure,
        segment: SegmentId,
    ) -> Result<Self, UnitError> {
        let of = |place: u8| {
            let at = members.iter().filter(|member| member.place == place);
            at.min_by_key(|member| member.state)
        };
        let chosen: Option<Vec<&Member>> = (0..erasure.members()).map(of).collect();
        let chosen = chosen.ok_or_else(|| missing(segment, "not all of its units are known"))?;
        let mut parities = Vec::new();
        for (parity, member) in (0..).zip(&chosen[usize::from(erasure.data())..]) {
            parities.push(read_masks(member, segment, erasure, parity)?);
        }
        let mut filled = Vec::new();
        for member in members.iter().filter(|member| is_beside(member, &chosen)) {
            if let Some(parity) = member.place.checked_sub(erasure.data()) {
                filled.push(read_masks(member, segment, erasure, parity)?);
            }
        }
        Ok(Self {
            members,
            chosen,
            erasure,
            layout: Layout::new(Some(erasure)),
            segment,
            parities,
            filled,
        })
    }

    fn of_data(&self) -> &[&'a Member] {
        &self.chosen[..usize::from(self.erasure.data())]
    }

    fn of_parity(&self) -> &[&'a Member] {
        &self.chosen[usize::from(self.erasure.data())..]
    }

    /// Whether any parity is made of a slot.
    fn counts(&self, slot: Slot) -> bool {
        let home = self.layout.home(slot);
        self.counts_at(u32::from(home.slot.0), home.member_index.unwrap_or(0))
    }

    fn counts_at(&self, row: u32, place: u8) -> bool {
        let masks = self.parities.iter().chain(&self.filled).flatten();
        let mut bits = masks.map(|(_, masks)| masks.of(row) >> place & 1);
        bits.any(|bit| bit == 1)
    }

    fn living(&self, dead: &BTreeSet<Slot>) -> Result<Living<'a>, UnitError> {
        let is_dead = |slot: &Option<Slot>| slot.is_some_and(|slot| dead.contains(&slot));
        let mut living = Living {
            there: Vec::new(),
            in_parity: 0,
            slot_bytes: None,
        };
        let rows = self
            .parities
            .iter()
            .flatten()
            .map(|(_, masks)| masks.rows());
        let rows = rows.max().unwrap_or(0);
        let mut stats = None;
        for (member, place) in self.of_data().iter().zip(0..) {
            let kept = kept_by(member, self.segment)?;
            let own = kept.as_ref().map_or(0, |(stat, _)| stat.slots);
            if let Some((stat, kept)) = kept {
                living.slot_bytes = Some(stat.slot_bytes);
                let kept = kept.into_iter();
                let its = kept.filter(|row| !is_dead(&self.layout.slot(row.0, place)));
                living
                    .there
                    .extend(its.map(|row| (*member, row, stat.slot_bytes)));
            }
            // A slot that a member missed while it was unavailable exists in parity only.
            for row in (own..rows).filter(|row| self.counts_at(*row, place)) {
                let slot = u16::try_from(row).ok();
                let slot = slot.and_then(|row| self.layout.slot(row, place));
                if is_dead(&slot) {
                    continue;
                }
                let stats = match &mut stats {
                    Some(stats) => stats,
                    none => none.insert(self.stats()?),
                };
                living.in_parity += usize::from(self.lives_in_parity(stats, row, place)?);
            }
        }
        Ok(living)
    }

    /// The segment's status on each chosen member.
    fn stats(&self) -> Result<Vec<Option<SegmentStat>>, UnitError> {
        let chosen = self.chosen.iter();
        chosen.map(|member| stat_of(member, self.segment)).collect()
    }

    /// Whether a slot that its member is missing is more than padding, judging by the
    /// others, which have `stats`. A row that was never committed has no parity: it was
    /// swept.
    fn lives_in_parity(
        &self,
        stats: &[Option<SegmentStat>],
        row: u32,
        wanted: u8,
    ) -> Result<bool, UnitError> {
        let data = usize::from(self.erasure.data());
        let (mut there, mut parities): (Mask, _) = (0, Vec::new());
        let mut fragments: BTreeMap<usize, (Tag, Vec<u8>)> = BTreeMap::new();
        for (place, (member, stat)) in self.chosen.iter().zip(stats).enumerate() {
            let mask = match place.checked_sub(data) {
                Some(parity) => self.parities[parity]
                    .as_ref()
                    .map_or(0, |(_, it)| it.of(row)),
                None => 0,
            };
            let is_needed =
                place != usize::from(wanted) && (place < data || mask >> wanted & 1 == 1);
            let Some(stat) = stat.as_ref().filter(|stat| is_needed && stat.slots > row) else {
                continue;
            };
            let slot = Slot(u16::try_from(row).expect("at most 2^16 rows"));
            match read_slot(member, self.segment, slot, stat.slot_bytes) {
                Ok(fragment) => {
                    fragments.insert(place, fragment);
                }
                // On a data member it is padding, or no parity is made of it any more.
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

    /// Removes the segment from all members.
    fn remove(&self) -> Result<(), UnitError> {
        // Parity first: while it exists, it says which slots live.
        let mut all: Vec<&Member> = self.members.iter().collect();
        all.sort_by_key(|member| std::cmp::Reverse(member.place));
        all.into_iter()
            .try_for_each(|member| remove(member, self.segment))
    }

    /// Those of the slots, which no parity is made of, that still exist after a crash.
    fn given_up<'s>(&self, slots: impl Iterator<Item = &'s Slot>) -> Result<Vec<Slot>, UnitError> {
        let slots: BTreeSet<Slot> = slots.copied().collect();
        let mut there = BTreeSet::new();
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        for member in self
            .members
            .iter()
            .filter(|member| member.place < self.erasure.data())
        {
            let kept = kept_by(member, self.segment)?.map_or_else(Vec::new, |(_, kept)| kept);
            let kept = kept
                .iter()
                .filter_map(|row| self.layout.slot(row.0, member.place));
            there.extend(kept.filter(|slot| slots.contains(slot)));
        }
        Ok(there.into_iter().collect())
    }

    /// Rewrites every parity without these slots.
    fn leave_out(&self, slots: &BTreeSet<Slot>, slot_bytes: u32) -> Result<(), UnitError> {
        for ((parity, member), found) in (0..).zip(self.of_parity()).zip(&self.parities) {
            // A parity that was never written is made of nothing.
            let Some((generation, masks)) = found else {
                continue;
            };
            let mut after = masks.clone();
            for slot in slots {
                let home = self.layout.home(*slot);
                let row = u32::from(home.slot.0);
                after.set(row, after.of(row) & !(1 << home.member_index.unwrap_or(0)));
            }
            if after == *masks {
                continue;
            }
            let made = ParityRewrite {
                of_data: self.of_data(),
                member,
                erasure: self.erasure,
                parity,
                segment: self.segment,
                slot_bytes,
            };
            made.replace(*generation, masks, &mut after)?;
        }
        Ok(())
    }

    /// Those of the slots that no parity is made of now, reading what was really written
    /// and what another host has written since.
    fn left_out(&self, slots: BTreeSet<Slot>) -> Result<Vec<Slot>, UnitError> {
        let mut gone: Vec<Slot> = slots.into_iter().collect();
        for (parity, member) in (0..).zip(self.of_parity()) {
            let Some((_, masks)) = read_masks(member, self.segment, self.erasure, parity)? else {
                continue;
            };
            gone.retain(|slot| {
                let home = self.layout.home(*slot);
                masks.of(u32::from(home.slot.0)) >> home.member_index.unwrap_or(0) & 1 == 0
            });
        }
        Ok(gone)
    }

    /// Frees slots on the members that have them.
    fn free(&self, slots: &[Slot]) -> Result<(), UnitError> {
        for member in self
            .members
            .iter()
            .filter(|member| member.place < self.erasure.data())
        {
            let own = own_slots(self.layout, member.place, slots);
            if !own.is_empty() {
                // The record of freed slots stays until the segment is deleted: it marks padding.
                match member.unit.free(self.segment, &own, false) {
                    Err(UnitError::Damaged { .. }) if stat_of(member, self.segment)?.is_none() => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }
}

/// Those of the slots that are on the member at `place`, by its own numbers.
fn own_slots(layout: Layout, place: u8, slots: &[Slot]) -> Vec<Slot> {
    let homes = slots.iter().map(|slot| layout.home(*slot));
    let own = homes.filter(|home| home.member_index == Some(place));
    own.map(|home| home.slot).collect()
}

/// Whether a member is not among the chosen ones.
fn is_beside(member: &Member, chosen: &[&Member]) -> bool {
    chosen.iter().all(|one| one.id != member.id)
}
