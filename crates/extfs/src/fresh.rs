//! [`Fresh`]: blocks that were written before their file is known.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::map::Run;

/// The maximal number of runs. The oldest are dropped.
const FRESH_MAX: usize = 1 << 16;

/// Blocks that were written and belong to no known file yet.
#[derive(Default)]
pub(super) struct Fresh {
    /// Runs that do not touch each other, by their first block, with their ends.
    runs: BTreeMap<u64, u64>,
    /// The first blocks of the runs, the oldest first. Some runs have become parts of others.
    order: VecDeque<u64>,
}

impl Fresh {
    pub fn add(&mut self, block: u64) {
        let before = self.runs.range_mut(..=block).next_back();
        match before {
            Some((_, end)) if *end > block => {}
            Some((_, end)) if *end == block => *end += 1,
            _ => {
                self.runs.insert(block, block + 1);
                self.order.push_back(block);
            }
        }
        while self.order.len() > FRESH_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.runs.remove(&oldest);
            }
        }
    }

    /// Whether a block was written and belongs to no known file.
    pub fn has(&self, block: u64) -> bool {
        let before = self.runs.range(..=block).next_back();
        before.is_some_and(|(_, end)| *end > block)
    }

    /// Takes the written blocks of a run that now belongs to a file.
    pub fn take(&mut self, run: &Run) -> Vec<Range<u64>> {
        let end = run.block + u64::from(run.length);
        let touched = self.runs.range(..end).rev();
        let touched = touched.take_while(|(_, its_end)| **its_end > run.block);
        let touched: Vec<Range<u64>> = touched.map(|(begin, end)| *begin..*end).collect();
        let mut found = Vec::new();
        for own in touched.into_iter().rev() {
            self.runs.remove(&own.start);
            for rest in [own.start..run.block, end..own.end] {
                if !rest.is_empty() {
                    self.runs.insert(rest.start, rest.end);
                    if rest.start != own.start {
                        self.order.push_back(rest.start);
                    }
                }
            }
            found.push(own.start.max(run.block)..own.end.min(end));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(block: u64, length: u32) -> Run {
        Run {
            place: 0,
            length,
            block,
            is_unwritten: false,
        }
    }

    #[test]
    fn written_blocks_are_taken_once() {
        let mut fresh = Fresh::default();
        for block in [5, 6, 7, 6, 20, 21, 100] {
            fresh.add(block);
        }
        assert!([5, 7, 21].iter().all(|block| fresh.has(*block)));
        assert!([4, 8, 22].iter().all(|block| !fresh.has(*block)));
        assert_eq!(fresh.take(&run(8, 12)), []);
        assert_eq!(fresh.take(&run(6, 15)), [6..8, 20..21]);
        assert_eq!(fresh.take(&run(0, 50)), [5..6, 21..22]);
        let last = fresh.take(&run(0, 1000));
        assert_eq!(last.into_iter().flatten().collect::<Vec<u64>>(), [100]);
        assert_eq!(fresh.take(&run(0, 1000)), []);
    }

    #[test]
    fn the_oldest_runs_are_dropped() {
        let mut fresh = Fresh::default();
        for number in 0..2 * FRESH_MAX as u64 {
            fresh.add(number * 2);
        }
        assert_eq!(fresh.runs.len(), FRESH_MAX);
        assert_eq!(fresh.take(&run(0, 100)), []);
    }
}
