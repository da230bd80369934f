//! [`Overlay`]: the newest state of blocks: single blocks, and ranges that read as
//! zeroes.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// Hashes block numbers. The multiplier spreads runs; a guest that chooses numbers
/// which collide slows down only its own disk.
#[derive(Default, Clone, Copy)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A hash map keyed by block numbers or locations.
pub type BlockMap<V> = HashMap<u64, V, BuildHasherDefault<BlockHasher>>;

/// The state of a block in an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<V> {
    /// It was written.
    Data(V),
    /// It reads as zeroes.
    Zero,
}

/// Writes in the order in which they were applied, the newest on top.
///
/// Invariants: a block in `blocks` is newer than any zero range that covers
/// it; zero ranges do not overlap or touch.
#[derive(Debug, Clone)]
pub struct Overlay<V> {
    blocks: BlockMap<V>,
    /// Start of a range → its end.
    zeroes: BTreeMap<u64, u64>,
}

impl<V> Default for Overlay<V> {
    fn default() -> Self {
        Self {
            blocks: BlockMap::default(),
            zeroes: BTreeMap::new(),
        }
    }
}

impl<V: Copy> Overlay<V> {
    /// Whether no block is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.zeroes.is_empty()
    }

    /// The number of entries that its encoding takes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len() + self.zeroes.len()
    }

    /// The number of blocks with data.
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.blocks.len()
    }

    /// The state of `block`; `None` if it is not in the overlay.
    #[must_use]
    #[inline]
    pub fn get(&self, block: u64) -> Option<Found<V>> {
        if let Some(value) = self.blocks.get(&block) {
            return Some(Found::Data(*value));
        }
        if self.zeroes.is_empty() {
            return None;
        }
        let (_, end) = self.zeroes.range(..=block).next_back()?;
        (block < *end).then_some(Found::Zero)
    }

    /// Records that `block` was written.
    #[inline]
    pub fn insert(&mut self, block: u64, value: V) {
        self.blocks.insert(block, value);
    }

    /// Records that the blocks of `range` read as zeroes.
    pub fn zero(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if range.end - range.start > self.blocks.len() as u64 {
            self.blocks.retain(|block, _| !range.contains(block));
        } else {
            for block in range.clone() {
                self.blocks.remove(&block);
            }
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((first, last)) = self
            .zeroes
            .range(..=end)
            .next_back()
            .map(|(first, last)| (*first, *last))
            .filter(|(_, last)| *last >= start)
        {
            self.zeroes.remove(&first);
            start = start.min(first);
            end = end.max(last);
        }
        self.zeroes.insert(start, end);
    }

    /// Lays `newer` over this one.
    pub fn extend<W: Copy>(&mut self, newer: &Overlay<W>, mut value: impl FnMut(u64, W) -> V) {
        for (start, end) in &newer.zeroes {
            self.zero(*start..*end);
        }
        for (block, newer) in &newer.blocks {
            self.blocks.insert(*block, value(*block, *newer));
        }
    }

    /// The blocks with data, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, V)> + '_ {
        self.blocks.iter().map(|(block, value)| (*block, *value))
    }

    /// The ranges that read as zeroes unless a block covers them, in order.
    pub fn zeroes(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.zeroes.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64),
        Zero(u64, u64),
        Extend,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..64_u64).prop_map(Step::Write),
            3 => (0..64_u64, 0..20_u64).prop_map(|(start, count)| Step::Zero(start, count)),
            1 => Just(Step::Extend),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn the_newest_write_wins(steps in steps()) {
            let mut plain: Vec<Option<Found<usize>>> = vec![None; 100];
            let mut lower = Overlay::default();
            let mut upper = Overlay::default();
            for (time, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Write(block) => {
                        upper.insert(block, time);
                        plain[block as usize] = Some(Found::Data(time));
                    }
                    Step::Zero(start, count) => {
                        upper.zero(start..start + count);
                        plain[start as usize..(start + count) as usize].fill(Some(Found::Zero));
                    }
                    Step::Extend => {
                        lower.extend(&upper, |_, value| value);
                        upper = Overlay::default();
                    }
                }
            }
            for (block, expected) in plain.iter().enumerate() {
                let block = block as u64;
                prop_assert_eq!(upper.get(block).or_else(|| lower.get(block)), *expected);
            }
            lower.extend(&upper, |_, value| value);
            for (block, expected) in plain.iter().enumerate() {
                prop_assert_eq!(lower.get(block as u64), *expected);
            }
            let ranges: Vec<_> = lower.zeroes().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
