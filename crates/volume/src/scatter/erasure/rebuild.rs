//! [`rebuild`]: the content that a lost member should hold, from the other members'.
//!
//! Pure: the caller reads the members and writes the result.

use base::SegmentId;
use catalog::Erasure;
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
    let target = Target {
        erasure,
        place: usize::from(place),
        slot_bytes,
        members,
    };
    let rows = target.others().map(|(_, part)| part.slots.len()).max()?;
    let mut slots = Vec::with_capacity(rows);
    if target.place < target.data() {
        for row in 0..rows {
            slots.push(target.data_slot(&target.row(row))?);
        }
        return Some(MemberPart {
            slots,
            masks: None,
            generation: 0,
        });
    }
    let mut masks = Masks::whole(erasure, rows as u32);
    for row in 0..rows {
        let (slot, mask) = target.parity_slot(&target.row(row))?;
        slots.push(slot);
        masks.set(row as u32, mask);
    }
    let latest = target.parities().map(|(_, part)| part.generation).max();
    let is_whole = masks == Masks::whole(erasure, rows as u32);
    Some(MemberPart {
        slots,
        masks: Some(masks),
        // A parity that is not made of all slots needs masks.
        generation: latest.unwrap_or(0).max(u16::from(!is_whole)),
    })
}

/// The member that is rebuilt, and the others' parts.
struct Target<'a> {
    erasure: Erasure,
    place: usize,
    slot_bytes: u32,
    members: &'a [Option<MemberPart>],
}

/// What the other members know of one row.
struct Row {
    number: usize,
    /// Data slots that are present, or known to be zeroes.
    known: Mask,
    /// The parities that are present: number, and mask.
    parities: Vec<(usize, Mask)>,
    /// Data slots that the rebuilt member's content is made of.
    counting: Mask,
    /// Data slots that must be recovered: all parities are made of them.
    certain: Mask,
}

impl<'a> Target<'a> {
    fn data(&self) -> usize {
        usize::from(self.erasure.data())
    }

    fn others(&self) -> impl Iterator<Item = (usize, &'a MemberPart)> + use<'a> {
        let place = self.place;
        let known = self.members.iter().enumerate();
        known.filter_map(move |(at, part)| Some((at, part.as_ref().filter(|_| at != place)?)))
    }

    /// The other members with parity.
    fn parities(&self) -> impl Iterator<Item = (usize, &'a MemberPart)> + use<'a> {
        let data = self.data();
        self.others().filter(move |(at, _)| *at >= data)
    }

    /// The slot of another member; `Some(None)` for a freed data slot, which is zeroes.
    fn slot(&self, at: usize, row: usize) -> Option<Option<(&'a Tag, &'a Vec<u8>)>> {
        let part = self.members.get(at)?.as_ref();
        match part.filter(|_| at != self.place)?.slots.get(row)? {
            SlotContent::Present(tag, content) => Some(Some((tag, content))),
            SlotContent::Freed if at < self.data() => Some(None),
            _ => None,
        }
    }

    fn row(&self, number: usize) -> Row {
        let (data, all) = (self.data(), whole(self.erasure));
        let mask_of = |part: &MemberPart| match &part.masks {
            Some(masks) => masks.of(number as u32),
            None => all,
        };
        let union = |mask: Mask, at: usize| mask | 1 << at;
        let known = (0..data).filter(|at| self.slot(*at, number).is_some());
        let known = known.fold(0, union);
        let parities = self.parities();
        let parities = parities.filter(|(at, _)| self.slot(*at, number).is_some());
        let parities = parities.map(|(at, part)| (at - data, mask_of(part)));
        let masks = || self.parities().map(|(_, part)| mask_of(part));
        // A slot in no mask was reclaimed. A slot in some masks still exists, or one of
        // them is wrong: then it counts, if it can be recovered.
        // Without any parity, the data members that are there decide.
        let claimed = match self.parities().next() {
            None if self.others().count() == data => all & !known,
            None => all,
            Some(_) => masks().fold(0, |all, mask| all | mask),
        };
        // New parity is made of all present slots, whatever other parities leave out.
        let is_present = |at: &usize| self.slot(*at, number).is_some_and(|slot| slot.is_some());
        let counting = match self.place < data {
            true => claimed,
            false => (0..data).filter(is_present).fold(claimed, union),
        };
        let own = self.members.get(self.place).and_then(Option::as_ref);
        let own = own.and_then(|part| part.masks.as_ref());
        Row {
            number,
            known,
            parities: parities.collect(),
            counting: own.map_or(counting, |own| counting & own.of(number as u32)),
            certain: masks().fold(all, |all, mask| all & mask),
        }
    }

    /// Tag and content of a data slot, if it is known or can be recovered.
    fn recover(&self, row: &Row, wanted: usize) -> Option<(Tag, Vec<u8>)> {
        let zeroes = || ([0; 16], vec![0; self.slot_bytes as usize]);
        if let Some(slot) = self.slot(wanted, row.number) {
            return Some(slot.map_or_else(zeroes, |(tag, content)| (*tag, content.clone())));
        }
        let recipe = recipe(wanted, row.known, &row.parities)?;
        let (mut tag, mut content) = zeroes();
        let parities = recipe.parities.iter();
        let parities = parities.map(|(at, times)| (at + self.data(), times));
        let data = recipe.data.iter().map(|(at, times)| (*at, times));
        for (at, times) in data.chain(parities) {
            if let Some((of_tag, of_content)) = self.slot(at, row.number)? {
                add(&mut tag, *times, of_tag);
                add(&mut content, *times, of_content);
            }
        }
        Some((tag, content))
    }

    /// As [`Target::recover`], for a slot that counts. The outer `None` means that too
    /// much is lost; the inner one that the slot does not count, or is not available and
    /// only some parities claim it.
    fn counted(&self, row: &Row, at: usize) -> Option<Option<(Tag, Vec<u8>)>> {
        match (row.counting >> at & 1, row.certain >> at & 1) {
            (1, 1) => Some(Some(self.recover(row, at)?)),
            (1, _) => Some(self.recover(row, at)),
            _ => Some(None),
        }
    }

    /// The slot of a data member.
    fn data_slot(&self, row: &Row) -> Option<SlotContent> {
        let slot = self.counted(row, self.place)?;
        let slot = slot.map(|(tag, content)| SlotContent::Present(tag, content));
        let slot = slot.filter(|slot| !slot.is_padding());
        Some(slot.unwrap_or(SlotContent::Freed))
    }

    /// The slot of a parity member, and the mask of the slots that it is made of.
    fn parity_slot(&self, row: &Row) -> Option<(SlotContent, Mask)> {
        let slots = (0..self.data()).map(|at| self.counted(row, at));
        let slots: Vec<Option<(Tag, Vec<u8>)>> = slots.collect::<Option<_>>()?;
        let present = slots.iter().enumerate().filter(|(_, slot)| slot.is_some());
        let mask = present.fold(0, |mask, (at, _)| mask | 1 << at);
        let (mut tag, mut content) = ([0; 16], vec![0; self.slot_bytes as usize]);
        let tags = slots.iter();
        let tags = tags.map(|slot| slot.as_ref().map(|(tag, _)| &tag[..]));
        encode(self.place - self.data(), tags, &mut tag);
        let contents = slots.iter();
        let contents = contents.map(|slot| slot.as_ref().map(|(_, content)| &content[..]));
        encode(self.place - self.data(), contents, &mut content);
        Some((SlotContent::Present(tag, content), mask))
    }
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
                    .map(|slot| slot.as_ref().map(|(tag, _)| &tag[..]));
                encode(place - k, tags, &mut tag);
                let contents = slots.iter().map(|slot| slot.as_ref().map(|(_, c)| &c[..]));
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
