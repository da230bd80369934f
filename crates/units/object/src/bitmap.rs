//! A bit for each slot of a segment.
//!
//! Invariant: bits beyond the last slot are zero.

use base::codec::{OutOfBytes, Reader, Writer as _};

/// Bits in a word.
const WORD_BITS: u32 = 64;

/// A set of slots of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bitmap {
    slots: u32,
    words: Box<[u64]>,
}

impl Bitmap {
    /// The empty set of a segment of `slots` slots.
    pub(crate) fn none(slots: u32) -> Self {
        let words = slots.div_ceil(WORD_BITS) as usize;
        Self {
            slots,
            words: vec![0; words].into(),
        }
    }

    /// The full set of a segment of `slots` slots.
    pub(crate) fn all(slots: u32) -> Self {
        let mut all = Self::none(slots);
        all.words.fill(u64::MAX);
        if !slots.is_multiple_of(WORD_BITS)
            && let Some(last) = all.words.last_mut()
        {
            *last = (1 << (slots % WORD_BITS)) - 1;
        }
        all
    }

    /// The same set for a segment of `slots` slots, without slots beyond the last one.
    pub(crate) fn of_length(&self, slots: u32) -> Self {
        if slots == self.slots {
            return self.clone();
        }
        let mut others = Self::none(slots);
        self.iter().for_each(|slot| others.insert(slot));
        others
    }

    /// Length of an encoded set of `slots` slots, in bytes.
    pub(crate) fn bytes_of(slots: u32) -> usize {
        slots.div_ceil(WORD_BITS) as usize * size_of::<u64>()
    }

    /// Number of slots of the segment, in the set or not.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Number of slots in the set.
    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        let word = self.words.get((slot / WORD_BITS) as usize);
        word.is_some_and(|word| word >> (slot % WORD_BITS) & 1 == 1)
    }

    /// Adds a slot, unless it is beyond the last one.
    pub(crate) fn insert(&mut self, slot: u32) {
        if slot < self.slots {
            self.words[(slot / WORD_BITS) as usize] |= 1 << (slot % WORD_BITS);
        }
    }

    /// Number of slots in the set that are before `slot`.
    pub(crate) fn rank(&self, slot: u32) -> u32 {
        let (whole, rest) = ((slot / WORD_BITS) as usize, slot % WORD_BITS);
        let before: u32 = self.words.iter().take(whole).map(|w| w.count_ones()).sum();
        let within = self
            .words
            .get(whole)
            .map_or(0, |word| (word & ((1u64 << rest) - 1)).count_ones());
        before + within
    }

    /// The difference of this set and `others`, a set of the same segment.
    pub(crate) fn without(&self, others: &Self) -> Self {
        debug_assert_eq!(self.slots, others.slots);
        let words = self.words.iter().zip(&others.words);
        Self {
            slots: self.slots,
            words: words.map(|(own, other)| own & !other).collect(),
        }
    }

    /// The slots in the set, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.slots).filter(|slot| self.contains(*slot))
    }

    /// Parses an encoded set; `Ok(None)` if a bit beyond the last slot is set.
    pub(crate) fn decode(reader: &mut Reader<'_>, slots: u32) -> Result<Option<Self>, OutOfBytes> {
        let mut bitmap = Self::none(slots);
        for word in &mut bitmap.words {
            *word = reader.u64()?;
        }
        let is_valid = bitmap.without(&Self::all(slots)).count() == 0;
        Ok(is_valid.then_some(bitmap))
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        for word in &self.words {
            into.put_u64(*word);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bitmap_is_a_set_of_slots(
            slots in 1u32..300,
            some in proptest::collection::btree_set(0u32..400, 0..80),
            others in proptest::collection::btree_set(0u32..300, 0..80),
        ) {
            let of = |set: &BTreeSet<u32>| {
                let mut bitmap = Bitmap::none(slots);
                set.iter().for_each(|slot| bitmap.insert(*slot));
                bitmap
            };
            let (bitmap, other) = (of(&some), of(&others));
            let plain: Vec<u32> = some.iter().copied().filter(|slot| *slot < slots).collect();
            prop_assert_eq!(bitmap.iter().collect::<Vec<u32>>(), plain.clone());
            prop_assert_eq!(bitmap.count() as usize, plain.len());
            for slot in 0..400 {
                let before = plain.iter().filter(|found| **found < slot).count();
                prop_assert_eq!(bitmap.rank(slot) as usize, before);
                prop_assert_eq!(bitmap.contains(slot), plain.contains(&slot));
            }
            let left: Vec<u32> = plain.into_iter().filter(|slot| !others.contains(slot)).collect();
            prop_assert_eq!(bitmap.without(&other).iter().collect::<Vec<u32>>(), left);
            prop_assert_eq!(Bitmap::all(slots).count(), slots);
            let mut bytes = Vec::new();
            bitmap.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), Bitmap::bytes_of(slots));
            prop_assert_eq!(Bitmap::decode(&mut Reader::new(&bytes), slots), Ok(Some(bitmap)));
        }
    }

    #[test]
    fn bits_beyond_the_last_slot_are_refused() {
        let mut bytes = Vec::new();
        Bitmap::all(65).encode(&mut bytes);
        assert_eq!(
            Bitmap::decode(&mut Reader::new(&bytes), 64 + 2).map(|b| b.is_some()),
            Ok(true)
        );
        let narrow = Bitmap::decode(&mut Reader::new(&bytes), 64);
        assert_eq!(narrow, Ok(Some(Bitmap::all(64))), "one word is read");
        Bitmap::all(70).encode(&mut bytes);
        let wide = Bitmap::decode(&mut Reader::new(&bytes[16..]), 69);
        assert_eq!(wide, Ok(None));
    }
}
