//! [`Regions`]: a set of regions of a disk.

/// A set of regions, as a bit for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Regions {
    words: Vec<u64>,
}

impl Regions {
    /// The empty set, of a disk with `count` regions.
    pub fn new(count: usize) -> Self {
        Self {
            words: vec![0; count.div_ceil(64)],
        }
    }

    /// The set with these words, of which the lowest bit of the first is region 0.
    pub fn from_words(words: Vec<u64>) -> Self {
        Self { words }
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub fn has(&self, region: usize) -> bool {
        self.words[region / 64] >> (region % 64) & 1 == 1
    }

    pub fn set(&mut self, region: usize) {
        self.words[region / 64] |= 1 << (region % 64);
    }

    pub fn clear(&mut self, region: usize) {
        self.words[region / 64] &= !(1 << (region % 64));
    }

    /// The first region of the set in `from..count`.
    pub fn first(&self, from: usize, count: usize) -> Option<usize> {
        (from..count).find(|region| self.has(*region))
    }

    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    pub fn clear_all(&mut self) {
        self.words.fill(0);
    }

    /// Removes the regions of `other`.
    pub fn remove(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    /// Adds the regions of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }
}
