//! [`SimulatedRandom`]: random numbers that a seed determines.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Random;

/// The generator SplitMix64 (Steele, Lea and Flood, 2014): 64 bits of state, and one addition and
/// one mix for each number. **It is not secret**: one number reveals all others.
#[derive(Debug)]
pub struct SimulatedRandom(AtomicU64);

/// The step between states, 2⁶⁴ divided by the golden ratio. It visits every state once.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SimulatedRandom {
    /// The numbers that follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        let state = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be zero. The distribution is uniform but for a
    /// deviation of at most `bound` in 2⁶⁴.
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into a collection of `length` items, which must not be empty.
    pub fn index(&self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True with a probability of 1 in `count`; never if `count` is zero.
    pub fn one_in(&self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// A generator of its own, so that two users do not affect each other.
    #[must_use]
    pub fn split(&self) -> Self {
        Self::new(self.next())
    }
}

impl Random for SimulatedRandom {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers_within_their_bound() {
        let (one, two) = (SimulatedRandom::new(7), SimulatedRandom::new(7));
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            let number = one.below(10);
            assert_eq!(number, two.below(10));
            seen[number as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (800..1200).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    fn shuffling_loses_nothing() {
        let mut items: Vec<u32> = (0..100).collect();
        SimulatedRandom::new(1).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
