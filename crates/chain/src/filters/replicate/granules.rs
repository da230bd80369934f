//! [`Granules`]: the blocks of a disk that a partial replica has.

use std::collections::HashMap;
use std::ops::Range;

/// The minimal length of a granule, in bytes. No file system in use has larger blocks, and few have
/// smaller ones.
const GRANULE_BYTES_MIN: u64 = 4096;

/// The maximal number of granules, which take 32 MiB of memory.
const GRANULES_MAX: u64 = 1 << 28;

/// The words of a page of the set.
const WORDS: usize = 512;
/// The granules of a page of the set.
const PAGE: u64 = WORDS as u64 * 64;

/// A set of granules, which are blocks of equal length. Pages without any take no memory.
pub(super) struct Granules {
    /// The length of a granule, in bytes.
    pub bytes: u64,
    disk_bytes: u64,
    pages: HashMap<u64, Box<[u64; WORDS]>>,
}

impl Granules {
    /// The empty set, of a disk of `disk_bytes` bytes.
    pub fn new(disk_bytes: u64) -> Self {
        Self {
            bytes: disk_bytes
                .div_ceil(GRANULES_MAX)
                .next_power_of_two()
                .max(GRANULE_BYTES_MIN),
            disk_bytes,
            pages: HashMap::new(),
        }
    }

    /// `range`, extended to whole granules.
    pub fn around(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.next_multiple_of(self.bytes);
        range.start - range.start % self.bytes..end.min(self.disk_bytes)
    }

    /// `range`, shortened to whole granules.
    pub fn within(&self, range: &Range<u64>) -> Range<u64> {
        let end = match range.end >= self.disk_bytes {
            true => self.disk_bytes,
            false => range.end - range.end % self.bytes,
        };
        let start = range.start.next_multiple_of(self.bytes);
        start.min(end)..end
    }

    /// Adds the granules within `range`.
    pub fn set(&mut self, range: &Range<u64>) {
        let range = self.within(range);
        self.each_word(&range, |pages, page, word, mask| {
            let page = pages.entry(page).or_insert_with(|| Box::new([0; WORDS]));
            page[word] |= mask;
        });
    }

    /// Removes the granules that `range` touches.
    pub fn clear(&mut self, range: &Range<u64>) {
        let range = self.around(range);
        self.each_word(&range, |pages, page, word, mask| {
            if let Some(page) = pages.get_mut(&page) {
                page[word] &= !mask;
            }
        });
    }

    fn each_word(
        &mut self,
        range: &Range<u64>,
        mut each: impl FnMut(&mut HashMap<u64, Box<[u64; WORDS]>>, u64, usize, u64),
    ) {
        let (mut at, end) = (range.start / self.bytes, range.end.div_ceil(self.bytes));
        while at < end && !range.is_empty() {
            let next = end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (next - at))) << (at % 64);
            each(&mut self.pages, at / PAGE, (at % PAGE / 64) as usize, mask);
            at = next;
        }
    }

    /// Whether the granule of this byte is in the set.
    pub fn has(&self, byte: u64) -> bool {
        let at = byte / self.bytes;
        let page = self.pages.get(&(at / PAGE));
        page.is_some_and(|page| page[(at % PAGE / 64) as usize] >> (at % 64) & 1 == 1)
    }

    /// The first byte of `range` whose granule is not in the set.
    pub fn first_missing(&self, range: &Range<u64>) -> Option<u64> {
        let (mut at, end) = (range.start / self.bytes, range.end.div_ceil(self.bytes));
        while at < end && !range.is_empty() {
            let page = self.pages.get(&(at / PAGE));
            let word = page.map_or(0, |page| page[(at % PAGE / 64) as usize]);
            let missing = !word >> (at % 64);
            if missing != 0 {
                at += u64::from(missing.trailing_zeros());
                return (at < end).then(|| (at * self.bytes).max(range.start));
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// The end of the run of granules from `begin` that are not in the set, or `end`.
    pub fn end_of_missing(&self, begin: u64, end: u64) -> u64 {
        let mut at = begin;
        while at < end && !self.has(at) {
            at = (at / self.bytes + 1) * self.bytes;
        }
        at.min(end)
    }
}

#[cfg(test)]
mod tests {
    use world::simulated::SimulatedRandom;

    use super::*;

    #[test]
    fn a_set_of_granules_agrees_with_a_plain_model() {
        const GRANULES: usize = 70_000;
        let disk_bytes = GRANULES as u64 * 4096 - 512;
        for seed in 0..10 {
            let random = SimulatedRandom::new(seed);
            let mut granules = Granules::new(disk_bytes);
            let mut model = vec![false; GRANULES];
            for _ in 0..50 {
                let begin = random.below(disk_bytes);
                let length = match random.below(2) {
                    0 => random.below(20_000),
                    _ => random.below(disk_bytes),
                };
                let range = begin..(begin + length).min(disk_bytes);
                let is_set = random.below(2) == 0;
                for (at, has) in (0..).zip(model.iter_mut()) {
                    let own = at * 4096..((at + 1) * 4096).min(disk_bytes);
                    match is_set {
                        true => *has |= range.start <= own.start && own.end <= range.end,
                        false => *has &= range.end <= own.start || own.end <= range.start,
                    }
                }
                match is_set {
                    true => granules.set(&range),
                    false => granules.clear(&range),
                }
            }
            for (at, has) in (0..).zip(&model) {
                assert_eq!(granules.has(at * 4096), *has, "seed {seed}, granule {at}");
            }
            let mut at = 0;
            while let Some(missing) = granules.first_missing(&(at..disk_bytes)) {
                let end = granules.end_of_missing(missing, disk_bytes);
                for granule in at / 4096..missing / 4096 {
                    assert!(model[granule as usize], "seed {seed}, granule {granule}");
                }
                for granule in missing / 4096..end.div_ceil(4096) {
                    assert!(!model[granule as usize], "seed {seed}, granule {granule}");
                }
                at = end;
            }
        }
    }

    #[test]
    fn a_large_disk_takes_no_more_memory() {
        assert_eq!(Granules::new(1 << 40).bytes, 4096);
        assert_eq!(Granules::new(64 << 40).bytes, 256 << 10);
    }
}
