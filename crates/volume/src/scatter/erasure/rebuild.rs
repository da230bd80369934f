//! [`rebuild`]: the content that a lost member should hold, from the other members'.
//!
//! Pure: the caller reads the members and writes the result.

use crate::catalog::Erasure;
use base::SegmentId;
use unit::Tag;

use super::code::{Mask, add, encode, recipe, whole};
use super::masks::Masks;

/// The state of a slot on a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotContent {
    /// The slot's tag and content.
    Present(Tag, Vec<u8>),
    /// The slot was freed: no parity is made of it, or it is padding.
    Freed,
    /// The slot is unreadable or not what was written.
    Lost,
}

impl SlotContent {
    /// Whether the slot is padding of a row: content and tag are zeroes, which no
    /// sealed slot's are.
    #[must_use]
    pub fn is_padding(&self) -> bool {
        match self {
            Self::Present(tag, content) => tag.iter().chain(content).all(|byte| *byte == 0),
            Self::Freed | Self::Lost => false,
        }
    }
}

/// A member's part of a segment: its slots in order, without the slot of masks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPart {
    /// One slot for each row.
    pub slots: Vec<SlotContent>,
    /// On a parity member: the slots that its parity is made of.
    pub masks: Option<Masks>,
    /// On a parity member: the generation.
    pub generation: u16,
}

impl MemberPart {
    /// The slot of masks, if the generation has one.
    #[must_use]
    pub fn masks_slot(
        &self,
        segment: SegmentId,
        erasure: Erasure,
        parity: u8,
        slot_bytes: u32,
    ) -> Option<Vec<u8>> {
        let masks = self.masks.as_ref().filter(|_| self.generation > 0)?;
        Some(masks.encode(segment, erasure, parity, slot_bytes))
    }
}

/// Computes the part of the member at `place` from the others: `members` by place,
/// `None` for unavailable ones. No slot of the result is lost; `None` if some row
/// cannot be recovered because too much is lost. Of the member's own part only the
/// masks count: they only shrink.
///
/// A member without slots of a segment, because all were padding or reclaimed, must
/// be passed with freed slots; one that missed writes with lost ones.
///
/// The members are trusted. Without the key a falsified slot cannot be detected; a
/// reader that opens the result can.
#[must_use]
pub fn rebuild(
    erasure: Erasure,
    place: u8,
    slot_bytes: u32,
    members: &[Option<MemberPart>],
) -> Option<MemberPart> {
    let data = usize::from(erasure.data());
    let place = usize::from(place);
    let others = || {
        let known = members.iter().enumerate();
        known.filter_map(move |(at, held)| Some((at, held.as_ref().filter(|_| at != place)?)))
    };
    let rows = others().map(|(_, held)| held.slots.len()).max()?;
    let mut rebuilt = MemberPart {
        slots: Vec::with_capacity(rows),
        masks: None,
        generation: 0,
    };
    let of_parity = || others().filter(|(at, _)| *at >= data);
    let mut masks = Masks::whole(erasure, rows as u32);
    let mask_of = |held: &MemberPart, row: usize| match &held.masks {
        Some(masks) => masks.of(row as u32),
        None => whole(erasure),
    };
    for row in 0..rows {
        let slot = |at: usize| {
            let held = members.get(at)?.as_ref().filter(|_| at != place)?;
            match held.slots.get(row)? {
                SlotContent::Present(tag, content) => Some(Some((tag, content))),
                SlotContent::Freed if at < data => Some(None),
                _ => None,
            }
        };
        let there = (0..data).filter(|at| slot(*at).is_some());
        let there = there.fold(0, |all: Mask, at| all | 1 << at);
        let parities: Vec<(usize, Mask)> = of_parity()
            .filter(|(at, _)| slot(*at).is_some())
            .map(|(at, held)| (at - data, mask_of(held, row)))
            .collect();
        let masks_at_hand = || of_parity().map(|(_, held)| mask_of(held, row));
        // What no parity has is given up. What some have is there still, or one of them
        // is wrong: then it counts, if it can be worked out.
        // Where there is none, that is what all data is asked that may have been.
        let said = match of_parity().next() {
            None if others().count() == data => whole(erasure) & !there,
            None => whole(erasure),
            Some(_) => masks_at_hand().fold(0, |all, mask| all | mask),
        };
        // New parity is made of all that is there, whatever others leave out.
        let counting = match place < data {
            true => said,
            false => (0..data)
                .filter(|at| slot(*at).is_some_and(|slot| slot.is_some()))
                .fold(said, |all, at| all | 1 << at),
        };
        let is_sure = masks_at_hand().fold(whole(erasure), |all, mask| all & mask);
        let own = members.get(place).and_then(Option::as_ref);
        let own = own.and_then(|held| held.masks.as_ref());
        let counting = own.map_or(counting, |own| counting & own.of(row as u32));
        let worked_out = |wanted: usize| -> Option<(Tag, Vec<u8>)> {
            if let Some(known) = slot(wanted) {
                let zeroes = || ([0; 16], vec![0; slot_bytes as usize]);
                return Some(known.map_or_else(zeroes, |(tag, content)| (*tag, content.clone())));
            }
            let recipe = recipe(wanted, there, &parities)?;
            let (mut tag, mut content) = ([0; 16], vec![0; slot_bytes as usize]);
            let of_parities = recipe.parities.iter().map(|(at, times)| (at + data, times));
            let of_data = recipe.data.iter().map(|(at, times)| (*at, times));
            for (at, times) in of_data.chain(of_parities) {
                if let Some((of_tag, of_content)) = slot(at)? {
                    add(&mut tag, *times, of_tag);
                    add(&mut content, *times, of_content);
                }
            }
            Some((tag, content))
        };
        if place < data {
            let counts = counting >> place & 1 == 1;
            let found = match counts {
                true if is_sure >> place & 1 == 1 => Some(worked_out(place)?),
                true => worked_out(place),
                false => None,
            };
            let held = found.map(|(tag, content)| SlotContent::Present(tag, content));
            let held = held.filter(|held| !held.is_padding());
            rebuilt.slots.push(held.unwrap_or(SlotContent::Freed));
            continue;
        }
        let mut made_of = Vec::with_capacity(data);
        for at in 0..data {
            made_of.push(match (counting >> at & 1, is_sure >> at & 1) {
                (1, 1) => Some(worked_out(at)?),
                (1, _) => worked_out(at),
                _ => None,
            });
        }
        let made_there = made_of.iter().enumerate().filter(|(_, one)| one.is_some());
        let counting = made_there.fold(0, |all, (at, _)| all | 1 << at);
        let (mut tag, mut content) = ([0; 16], vec![0; slot_bytes as usize]);
        let tags = made_of
            .iter()
            .map(|one| one.as_ref().map(|(tag, _)| &tag[..]));
        encode(place - data, tags, &mut tag);
        let contents = made_of
            .iter()
            .map(|one| one.as_ref().map(|(_, content)| &content[..]));
        encode(place - data, contents, &mut content);
        rebuilt.slots.push(SlotContent::Present(tag, content));
        masks.set(row as u32, counting);
    }
    if place >= data {
        let latest = of_parity().map(|(_, held)| held.generation).max();
        let is_whole = masks == Masks::whole(erasure, rows as u32);
        // One that leaves something out has to say so.
        rebuilt.generation = latest.unwrap_or(0).max(u16::from(!is_whole));
        rebuilt.masks = Some(masks);
    }
    Some(rebuilt)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT_BYTES: u32 = 64;

    fn slot(seed: usize) -> (Tag, Vec<u8>) {
        let byte = |at: usize| ((seed + 1) * 89 + at * 7) as u8;
        let tag: Vec<u8> = (0..16).map(|at| byte(at) ^ 0x55).collect();
        let tag = tag.try_into().expect("16 bytes");
        (tag, (0..SLOT_BYTES as usize).map(byte).collect())
    }

    /// All members of a segment of `rows` rows, of which `dead` slots are given up.
    fn members(erasure: Erasure, rows: usize, dead: &[usize]) -> Vec<Option<MemberPart>> {
        let k = usize::from(erasure.data());
        let of = |place: usize, row: usize| {
            let number = row * k + place;
            (!dead.contains(&number)).then(|| slot(number))
        };
        let mut masks = Masks::whole(erasure, rows as u32);
        for row in 0..rows {
            let there = (0..k).filter(|place| of(*place, row).is_some());
            masks.set(row as u32, there.fold(0, |all, place| all | 1 << place));
        }
        let member = |place: usize| {
            let of_row = |row: usize| {
                if place < k {
                    let slot = of(place, row);
                    let held = slot.map(|(tag, content)| SlotContent::Present(tag, content));
                    return held.unwrap_or(SlotContent::Freed);
                }
                let slots: Vec<_> = (0..k).map(|at| of(at, row)).collect();
                let (mut tag, mut content) = ([0; 16], vec![0; SLOT_BYTES as usize]);
                let tags = slots
                    .iter()
                    .map(|one| one.as_ref().map(|(tag, _)| &tag[..]));
                encode(place - k, tags, &mut tag);
                let contents = slots.iter().map(|one| one.as_ref().map(|(_, c)| &c[..]));
                encode(place - k, contents, &mut content);
                SlotContent::Present(tag, content)
            };
            Some(MemberPart {
                slots: (0..rows).map(of_row).collect(),
                masks: (place >= k).then(|| masks.clone()),
                generation: u16::from(place >= k && !dead.is_empty()) * 3,
            })
        };
        (0..usize::from(erasure.members())).map(member).collect()
    }

    #[test]
    fn as_many_lost_members_as_parities_are_rebuilt() {
        for (data, parity) in [(2, 1), (4, 2), (8, 3)] {
            let erasure = Erasure::new(data, parity).expect("allowed");
            for dead in [&[][..], &[0, 3, 9, 10, 11, 17]] {
                let all = members(erasure, 5, dead);
                let count = all.len();
                let sets = (1u32..1 << count).filter(|set| set.count_ones() <= u32::from(parity));
                for lost in sets {
                    let is_lost = |place: usize| lost >> place & 1 == 1;
                    let left: Vec<Option<MemberPart>> = (0..count)
                        .map(|place| all[place].clone().filter(|_| !is_lost(place)))
                        .collect();
                    for place in (0..count).filter(|place| is_lost(*place)) {
                        let rebuilt = rebuild(erasure, place as u8, SLOT_BYTES, &left);
                        // Where no parity is left that says what was given up,
                        // what the data members have counts.
                        let knows = (usize::from(data)..count).any(|at| !is_lost(at));
                        if knows || dead.is_empty() {
                            assert_eq!(rebuilt, all[place], "{erasure} {lost:b} {place}");
                        } else {
                            let (is, was) = (rebuilt.expect("all data"), all[place].as_ref());
                            let was = was.expect("all are there");
                            assert_eq!(
                                (is.slots, is.masks),
                                (was.slots.clone(), was.masks.clone())
                            );
                        }
                    }
                }
            }
        }
    }

    /// Padding is freed, and still counts as zeroes in the parity.
    #[test]
    fn padding_counts_as_zeroes_and_is_rebuilt_as_freed() {
        let erasure = Erasure::new(4, 2).expect("allowed");
        let mut all = members(erasure, 2, &[5, 6, 7]);
        for held in all.iter_mut().flatten().filter(|held| held.masks.is_some()) {
            held.masks = Some(Masks::whole(erasure, 2));
            held.generation = 0;
        }
        for place in 0..6 {
            let mut left = all.clone();
            left[place] = None;
            left[(place + 3) % 6] = None;
            let rebuilt = rebuild(erasure, place as u8, SLOT_BYTES, &left);
            assert_eq!(rebuilt, all[place], "{place}");
        }
    }

    /// One of two parities claims that it is made of nothing.
    #[test]
    fn a_parity_that_claims_to_be_made_of_nothing_costs_no_slot() {
        let erasure = Erasure::new(4, 2).expect("allowed");
        let right = members(erasure, 3, &[]);
        let mut all = right.clone();
        let liar = all[5].as_mut().expect("it is there");
        liar.masks = Some(Masks::none(3));
        liar.generation = 9;
        for place in 0..5 {
            let mut left = all.clone();
            left[place] = None;
            let rebuilt = rebuild(erasure, place as u8, SLOT_BYTES, &left).expect("one is lost");
            let is = right[place].as_ref().expect("it was there");
            assert_eq!((&rebuilt.slots, &rebuilt.masks), (&is.slots, &is.masks));
        }
    }

    /// A slot that a parity is not made of may be freed at any moment.
    #[test]
    fn the_masks_of_a_rebuilt_parity_only_shrink() {
        let erasure = Erasure::new(2, 1).expect("allowed");
        let mut all = members(erasure, 2, &[]);
        let mut masks = Masks::whole(erasure, 2);
        masks.set(1, 0b01);
        all[2].as_mut().expect("it is there").masks = Some(masks.clone());
        let rebuilt = rebuild(erasure, 2, SLOT_BYTES, &all).expect("all data is there");
        assert_eq!(rebuilt.masks, Some(masks));
        let expected = slot(2);
        assert_eq!(
            rebuilt.slots[1],
            SlotContent::Present(expected.0, expected.1)
        );
    }

    #[test]
    fn more_losses_than_parity_are_not_invented() {
        let erasure = Erasure::new(4, 2).expect("allowed");
        let mut left = members(erasure, 3, &[]);
        left[0] = None;
        left[1] = None;
        left[5] = None;
        assert_eq!(rebuild(erasure, 0, SLOT_BYTES, &left), None);
    }
}
