//! How long a unit takes: for whoever chooses among copies, and for those who
//! watch.
//!
//! Counted by many threads at once, and without locks but where a call has failed.
//! Two calls that end at the same moment may lose one of their samples from an
//! average; nothing is decided by one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Verb;
use crate::UnitError;

/// Up to what a call took, in microseconds: from a read that the page cache
/// answers to a sync on a disk that is busy.
const BOUNDS_US: [u64; 11] = [
    10, 25, 100, 250, 1_000, 2_500, 10_000, 25_000, 100_000, 1_000_000, 10_000_000,
];

/// How long calls of one kind took, since the process began.
#[derive(Debug, Default)]
pub struct Durations {
    /// How many took longer than the bound before, and not longer than this one;
    /// the last took longer than all bounds.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    /// All of them together.
    sum_ns: AtomicU64,
}

impl Durations {
    /// A call took so long.
    pub fn record(&self, took: Duration) {
        let bucket = BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < took);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// How many calls took up to each bound, in seconds, and more than the bound
    /// before; the last bound is infinity.
    #[must_use]
    pub fn counts(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_US.iter();
        let bounds = bounds.map(|bound| Duration::from_micros(*bound).as_secs_f64());
        let counts = self.counts.iter();
        bounds
            .chain([f64::INFINITY])
            .zip(counts.map(|count| count.load(Ordering::Relaxed)))
            .collect()
    }

    /// All of them together, in seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64()
    }
}

/// Of new samples, one in so many counts for the average.
const MEAN_OF: u32 = 8;

/// What is waited for at least before another copy is asked.
const LATE_MIN: Duration = Duration::from_millis(2);

/// And at most: a unit that takes longer as a rule is as good as away.
const LATE_MAX: Duration = Duration::from_millis(500);

/// How late an answer may be without being *late*, of a unit of which nothing is
/// known.
const LATE_FIRST: Duration = Duration::from_millis(50);

/// How long reads have taken of late.
#[derive(Debug)]
pub(super) struct Pace {
    /// A moving average of what reads took, in microseconds.
    mean_us: AtomicU32,
    /// What one read in twenty takes longer than, in microseconds, as far as it
    /// is known.
    late_us: AtomicU32,
    /// Reads that have begun and not ended.
    waiting: AtomicU32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            mean_us: AtomicU32::new(0),
            late_us: AtomicU32::new(micros(LATE_FIRST)),
            waiting: AtomicU32::new(0),
        }
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl Pace {
    pub fn begin(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A read that had begun has ended, after so long if it brought something: an
    /// error that comes quickly does not make a unit quick.
    pub fn end(&self, took: Option<Duration>) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(took) = took {
            self.sample(took);
        }
    }

    fn sample(&self, took: Duration) {
        let took = micros(took);
        let mean = self.mean_us.load(Ordering::Relaxed);
        let mean = match mean {
            0 => took.max(1),
            mean if took >= mean => mean + (took - mean).div_ceil(MEAN_OF),
            mean => (mean - (mean - took) / MEAN_OF).max(1),
        };
        self.mean_us.store(mean, Ordering::Relaxed);
        // Up by 19 steps if it was later, else down by one: it stays where one in
        // twenty is later.
        let late = self.late_us.load(Ordering::Relaxed);
        let step = (late / 256).max(1);
        let late = match took > late {
            true => late.saturating_add(19 * step),
            false => late - step.min(late),
        };
        let late = late.clamp(micros(LATE_MIN), micros(LATE_MAX));
        self.late_us.store(late, Ordering::Relaxed);
    }

    /// A read has not ended after so long: nothing is known of when it will, but
    /// the next ones go elsewhere.
    pub fn is_late(&self, waited: Duration) {
        let mean = self.mean_us.load(Ordering::Relaxed);
        self.mean_us
            .store(mean.max(micros(waited)), Ordering::Relaxed);
    }

    /// It has answered something else, so it may be as quick as ever: nobody would
    /// find out, if nobody asked it.
    pub fn forgive(&self) {
        let mean = self.mean_us.load(Ordering::Relaxed);
        self.mean_us.store(mean / 2, Ordering::Relaxed);
    }

    /// How long the next read is likely to take, in microseconds; 0 if nothing is
    /// known.
    pub fn cost_us(&self) -> u32 {
        let mean = self.mean_us.load(Ordering::Relaxed);
        mean.saturating_mul(self.waiting.load(Ordering::Relaxed).saturating_add(1))
    }

    pub fn late_after(&self) -> Duration {
        Duration::from_micros(self.late_us.load(Ordering::Relaxed).into())
    }
}

/// What calls to a unit have taken and come to, since it was mounted.
#[derive(Debug, Default)]
pub struct Calls {
    took: [Durations; Verb::ALL.len()],
    /// How many failed, by what the error is called.
    errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl Calls {
    /// A call took so long.
    pub(super) fn record(&self, verb: Verb, took: Duration) {
        self.took[verb as usize].record(took);
    }

    /// A call has failed.
    pub(super) fn failed(&self, error: &UnitError) {
        *self.counted().entry(error.kind()).or_default() += 1;
    }

    /// How long calls took, those that failed included.
    #[must_use]
    pub fn took(&self, verb: Verb) -> &Durations {
        &self.took[verb as usize]
    }

    /// How many failed, by the name of the error; none is named that there was not.
    #[must_use]
    pub fn errors(&self) -> BTreeMap<&'static str, u64> {
        self.counted().clone()
    }

    fn counted(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pace: &Pace, took_us: u64) {
        pace.begin();
        pace.end(Some(Duration::from_micros(took_us)));
    }

    #[test]
    fn each_call_is_in_the_bucket_of_the_first_bound_that_it_keeps() {
        let durations = Durations::default();
        for microseconds in [1, 10, 11, 10_000_000, 10_000_001] {
            durations.record(Duration::from_micros(microseconds));
        }
        let counts = durations.counts();
        assert_eq!(counts.len(), BOUNDS_US.len() + 1);
        assert_eq!(counts[..2], [(0.000_01, 2), (0.000_025, 1)]);
        assert_eq!(counts[10..], [(10.0, 1), (f64::INFINITY, 1)]);
        assert!((durations.sum_seconds() - 20.000_023).abs() < 1e-9);
    }

    #[test]
    fn what_a_read_costs_grows_with_those_that_wait() {
        let pace = Pace::default();
        assert_eq!(pace.cost_us(), 0, "nothing is known");
        read(&pace, 100);
        assert_eq!(pace.cost_us(), 100);
        pace.begin();
        assert_eq!(pace.cost_us(), 200);
        pace.end(None);
        assert_eq!(pace.cost_us(), 100, "an error says nothing");
        for _ in 0..100 {
            read(&pace, 900);
        }
        assert_eq!(pace.cost_us(), 900);
        for _ in 0..100 {
            read(&pace, 0);
        }
        assert!(pace.cost_us() < 10, "{}", pace.cost_us());
    }

    #[test]
    fn one_read_in_twenty_is_late() {
        let pace = Pace::default();
        let mut late = 0;
        for round in 0..40_000_u64 {
            // Evenly from 3 to 13 ms, in no order.
            let took = 3000 + round * 7919 % 10_000;
            if round >= 20_000 && Duration::from_micros(took) > pace.late_after() {
                late += 1;
            }
            read(&pace, took);
        }
        assert!((800..1200).contains(&late), "{late} of 20000");
        for _ in 0..10_000 {
            read(&pace, 10);
        }
        assert_eq!(pace.late_after(), LATE_MIN);
    }

    #[test]
    fn a_unit_that_owes_an_answer_costs_what_was_waited_until_it_is_forgiven() {
        let pace = Pace::default();
        read(&pace, 100);
        pace.begin();
        pace.is_late(Duration::from_millis(4));
        assert!(pace.cost_us() >= 4000);
        for _ in 0..8 {
            pace.forgive();
        }
        assert!(pace.cost_us() < 100);
    }
}
