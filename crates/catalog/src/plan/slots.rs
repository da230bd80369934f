//! [`Slots`]: a set of slots of a segment, in memory and in a free plan.
//!
//! A plan comes from a host, which may be compromised: decoding any bytes takes no
//! more than a few times their size in memory, and time in proportion.

use base::codec::{Reader, Writer};

use super::BadPlan;

/// The encodings of a segment's slots.
const RUNS: u16 = 0;
const BITS: u16 = 1;

/// Size of a run and of a word, in bytes.
const RUN_BYTES: usize = 4;
const WORD_BYTES: usize = 8;

/// Words with one bit for each slot that a u16 can name.
const WORDS_MAX: usize = 1 << 10;

/// Sets of more runs than this are kept as bits.
const RUNS_MAX: usize = WORDS_MAX * WORD_BYTES / RUN_BYTES / 2;

/// A set of slots of a segment.
#[derive(Debug, Clone)]
pub(super) enum Slots {
    /// First and last slot of each run, in order; runs do not touch.
    Runs(Vec<(u16, u16)>),
    /// Bit n of word w is slot 64 w + n. The last word is not 0.
    Bits(Vec<u64>),
}

impl Default for Slots {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

/// Sets are equal if they have the same slots, in either representation.
impl PartialEq for Slots {
    fn eq(&self, other: &Self) -> bool {
        self.runs() == other.runs()
    }
}

impl Eq for Slots {}

impl Slots {
    pub(super) fn insert(&mut self, slot: u16) {
        match self {
            Self::Runs(runs) => {
                insert_into_runs(runs, slot);
                if runs.len() > RUNS_MAX {
                    *self = Self::Bits(to_bits(runs));
                }
            }
            Self::Bits(words) => set(words, slot),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Runs(runs) => runs
                .iter()
                .map(|(first, last)| usize::from(last - first) + 1)
                .sum(),
            Self::Bits(words) => words.iter().map(|word| word.count_ones() as usize).sum(),
        }
    }

    /// The slots, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> + use<> {
        self.runs()
            .into_iter()
            .flat_map(|(first, last)| first..=last)
    }

    /// First and last slot of each run, in order.
    fn runs(&self) -> Vec<(u16, u16)> {
        match self {
            Self::Runs(runs) => runs.clone(),
            Self::Bits(words) => to_runs(words),
        }
    }

    /// Encodes the slots in the shorter form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let runs = self.runs();
        let words = runs
            .last()
            .map_or(0, |(_, last)| usize::from(last / 64) + 1);
        let mut bytes = Vec::new();
        // There are 2^10 words at most, and fewer runs where those are shorter.
        if runs.len() * RUN_BYTES <= words * WORD_BYTES {
            bytes.put_u16(RUNS);
            bytes.put_u16(runs.len() as u16);
            for (first, last) in runs {
                bytes.put_u16(first);
                bytes.put_u16(last);
            }
        } else {
            bytes.put_u16(BITS);
            bytes.put_u16(words as u16);
            for word in to_bits(&runs) {
                bytes.put_u64(word);
            }
        }
        bytes
    }

    /// Whether the set is empty. An empty set is in no plan.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Runs(runs) => runs.is_empty(),
            Self::Bits(words) => words.is_empty(),
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, BadPlan> {
        let (form, count) = (reader.u16()?, usize::from(reader.u16()?));
        match form {
            RUNS => {
                let mut runs: Vec<(u16, u16)> = Vec::new();
                for _ in 0..count {
                    let (first, last) = (reader.u16()?, reader.u16()?);
                    let follows = runs
                        .last()
                        .is_none_or(|(_, before)| first.saturating_sub(*before) > 1);
                    if last < first || !follows {
                        return Err(BadPlan::Slots);
                    }
                    runs.push((first, last));
                }
                Ok(Self::Runs(runs))
            }
            BITS if count <= WORDS_MAX => {
                let mut words = Vec::new();
                for _ in 0..count {
                    words.push(reader.u64()?);
                }
                while words.last() == Some(&0) {
                    words.pop();
                }
                Ok(Self::Bits(words))
            }
            _ => Err(BadPlan::Slots),
        }
    }
}

/// Adds a slot that is at least as large as all others.
fn append(runs: &mut Vec<(u16, u16)>, slot: u16) {
    match runs.last_mut() {
        Some((_, last)) if usize::from(*last) + 1 >= usize::from(slot) => *last = slot,
        _ => runs.push((slot, slot)),
    }
}

fn insert_into_runs(runs: &mut Vec<(u16, u16)>, slot: u16) {
    // The first run that ends at `slot` or later, or just before it.
    let at = runs.partition_point(|(_, last)| usize::from(*last) + 1 < usize::from(slot));
    let Some((first, last)) = runs.get_mut(at) else {
        return runs.push((slot, slot));
    };
    if usize::from(slot) + 1 < usize::from(*first) {
        return runs.insert(at, (slot, slot));
    }
    *first = slot.min(*first);
    *last = slot.max(*last);
    let last = *last;
    if let Some((next, end)) = runs.get(at + 1).copied()
        && usize::from(last) + 1 == usize::from(next)
    {
        runs[at].1 = end;
        runs.remove(at + 1);
    }
}

fn set(words: &mut Vec<u64>, slot: u16) {
    let word = usize::from(slot / 64);
    if words.len() <= word {
        words.resize(word + 1, 0);
    }
    words[word] |= 1 << (slot % 64);
}

fn to_bits(runs: &[(u16, u16)]) -> Vec<u64> {
    let mut words = Vec::new();
    for (first, last) in runs {
        (*first..=*last).for_each(|slot| set(&mut words, slot));
    }
    words
}

fn to_runs(words: &[u64]) -> Vec<(u16, u16)> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            // A word's index has 10 bits, a bit's has 6.
            let slot = (at * 64) as u16 + rest.trailing_zeros() as u16;
            rest &= rest - 1;
            append(&mut runs, slot);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn of(slots: impl IntoIterator<Item = u16>) -> Slots {
        let mut these = Slots::default();
        slots.into_iter().for_each(|slot| these.insert(slot));
        these
    }

    #[test]
    fn an_encoding_takes_at_most_one_bit_for_each_slot() {
        for (slots, bytes) in [
            (of(0..=u16::MAX), 4),
            (of((0..=u16::MAX).rev()), 4),
            (of([5]), 4),
            (of([0, u16::MAX]), 8),
            (of((0..16_384).step_by(2)), 16_384 / 8),
            (of((0..=u16::MAX).step_by(3)), 65_536 / 8),
        ] {
            let encoded = slots.encode();
            assert_eq!(encoded.len(), 4 + bytes);
            assert_eq!(Slots::decode(&mut Reader::new(&encoded)), Ok(slots));
        }
    }

    fn decoded(form: u16, count: u16, values: &[u16]) -> Result<Slots, BadPlan> {
        let mut bytes = Vec::new();
        bytes.put_u16(form);
        bytes.put_u16(count);
        values.iter().for_each(|value| bytes.put_u16(*value));
        Slots::decode(&mut Reader::new(&bytes))
    }

    #[test]
    fn invalid_encodings_are_refused() {
        assert_eq!(decoded(0, 2, &[1, 3, 5, 5]), Ok(of([1, 2, 3, 5])));
        for (form, count, values) in [
            (2, 0, [0; 4].as_slice()),
            (1, 1025, &[1; 4 * 1025]),
            (0, 1, &[5, 4]),
            (0, 2, &[7, 9, 1, 2]),
            (0, 2, &[0, u16::MAX, 0, u16::MAX]),
            (0, 2, &[1, 3, 4, 5]),
        ] {
            assert_eq!(decoded(form, count, values), Err(BadPlan::Slots));
        }
        assert!(matches!(decoded(0, 2, &[1, 2, 4]), Err(BadPlan::Short(_))));
        assert!(matches!(decoded(1, 1, &[1, 2, 4]), Err(BadPlan::Short(_))));
    }

    proptest! {
        #[test]
        fn slots_behave_like_a_set(
            step in 1_u16..100,
            inserted in prop::collection::vec(0_u16..2000, 0..4000),
        ) {
            // Some stay as runs, others become bits.
            let inserted: Vec<u16> = inserted.iter().map(|at| at.wrapping_mul(step)).collect();
            let set: BTreeSet<u16> = inserted.iter().copied().collect();
            let slots = of(inserted.iter().copied());
            prop_assert_eq!(slots.len(), set.len());
            prop_assert_eq!(&slots, &of(set.iter().copied()));
            let encoded = slots.encode();
            prop_assert_eq!(Slots::decode(&mut Reader::new(&encoded)), Ok(slots.clone()));
            prop_assert_eq!(slots.is_empty(), set.is_empty());
            prop_assert!(slots.iter().eq(set));
        }
    }
}
