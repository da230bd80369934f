//! How long calls on a unit take: for choosing among replicas, and for metrics.
//!
//! Many threads count at once, and only a failed call takes a lock. Of two calls that end at
//! the same moment one sample may be missing from an average, which is not exact anyway.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::OpClass;
use crate::UnitError;

/// Upper bounds of the histogram buckets, in microseconds: from a read that the page cache
/// answers to a sync on a busy disk.
const BOUNDS_US: [u64; 11] = [
    10, 25, 100, 250, 1_000, 2_500, 10_000, 25_000, 100_000, 1_000_000, 10_000_000,
];

/// A histogram of how long calls of one class took since the process began.
#[derive(Debug, Default)]
pub struct Durations {
    /// Calls for each bound, and the calls above all bounds last.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    /// Total duration of all calls.
    sum_ns: AtomicU64,
}

impl Durations {
    /// Records a call that took this long.
    pub fn record(&self, took: Duration) {
        let bucket = BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < took);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// For each bound in seconds, the number of calls up to it and above the previous bound.
    /// The last bound is infinity.
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

    /// Total duration of all calls, in seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64()
    }
}

/// A new sample moves the average by one part in this many.
const MEAN_OF: u32 = 8;

/// Shortest time after which a read is hedged on another replica.
const HEDGE_AFTER_MIN: Duration = Duration::from_millis(2);

/// Longest time after which a read is hedged: a unit that usually takes longer is of no use.
const HEDGE_AFTER_MAX: Duration = Duration::from_millis(500);

/// Time after which a read is hedged on a unit that has answered no read yet.
const HEDGE_AFTER_FIRST: Duration = Duration::from_millis(50);

/// How long recent reads have taken.
#[derive(Debug)]
pub(super) struct Pace {
    /// A moving average of how long reads took, in microseconds; 0 before the first.
    mean_us: AtomicU32,
    /// An estimate of the 95th percentile of reads, in microseconds.
    hedge_after_us: AtomicU32,
    /// The number of reads under way.
    waiting: AtomicU32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            mean_us: AtomicU32::new(0),
            hedge_after_us: AtomicU32::new(micros(HEDGE_AFTER_FIRST)),
            waiting: AtomicU32::new(0),
        }
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl Pace {
    /// A read begins.
    pub fn begin(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A read ends. `took` is `None` for a failed one: a quick error does not make a quick
    /// unit.
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
        // Up by 19 steps for a longer read, otherwise down by one: the estimate settles where
        // one read in twenty is longer.
        let estimate = self.hedge_after_us.load(Ordering::Relaxed);
        let step = (estimate / 256).max(1);
        let estimate = match took > estimate {
            true => estimate.saturating_add(19 * step),
            false => estimate - step.min(estimate),
        };
        let estimate = estimate.clamp(micros(HEDGE_AFTER_MIN), micros(HEDGE_AFTER_MAX));
        self.hedge_after_us.store(estimate, Ordering::Relaxed);
    }

    /// A read has been under way for this long and has not ended: the next reads go
    /// elsewhere.
    pub fn record_overdue(&self, waited: Duration) {
        let mean = self.mean_us.load(Ordering::Relaxed);
        self.mean_us
            .store(mean.max(micros(waited)), Ordering::Relaxed);
    }

    /// The unit has answered a probe, so it may be quick again. Halves the average: a unit
    /// with a high cost gets no reads that could lower it.
    pub fn forgive(&self) {
        let mean = self.mean_us.load(Ordering::Relaxed);
        self.mean_us.store(mean / 2, Ordering::Relaxed);
    }

    /// How long the next read is likely to take, in microseconds; 0 before the first read.
    pub fn cost_us(&self) -> u32 {
        let mean = self.mean_us.load(Ordering::Relaxed);
        mean.saturating_mul(self.waiting.load(Ordering::Relaxed).saturating_add(1))
    }

    /// The time after which a read is hedged.
    pub fn hedge_after(&self) -> Duration {
        Duration::from_micros(self.hedge_after_us.load(Ordering::Relaxed).into())
    }
}

/// The durations and errors of the calls on a unit, since it was mounted.
#[derive(Debug, Default)]
pub struct Calls {
    took: [Durations; OpClass::ALL.len()],
    /// The number of failed calls by the kind of error.
    errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl Calls {
    /// Records a call that took this long.
    pub(super) fn record(&self, class: OpClass, took: Duration) {
        self.took[class as usize].record(took);
    }

    /// Records a failed call.
    pub(super) fn failed(&self, error: &UnitError) {
        *self.counted().entry(error.kind()).or_default() += 1;
    }

    /// The durations of the calls of a class, failed ones included.
    #[must_use]
    pub fn took(&self, class: OpClass) -> &Durations {
        &self.took[class as usize]
    }

    /// The number of failed calls by the kind of error, without zeros.
    #[must_use]
    pub fn errors(&self) -> BTreeMap<&'static str, u64> {
        self.counted().clone()
    }

    fn counted(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.errors.lock()
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
    fn each_call_counts_in_the_bucket_of_its_lowest_bound() {
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
    fn the_cost_of_a_read_grows_with_the_reads_under_way() {
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
    fn one_read_in_twenty_record_overdue() {
        let pace = Pace::default();
        let mut longer = 0;
        for round in 0..40_000_u64 {
            // Evenly from 3 to 13 ms, in no order.
            let took = 3000 + round * 7919 % 10_000;
            if round >= 20_000 && Duration::from_micros(took) > pace.hedge_after() {
                longer += 1;
            }
            read(&pace, took);
        }
        assert!((800..1200).contains(&longer), "{longer} of 20000");
        for _ in 0..10_000 {
            read(&pace, 10);
        }
        assert_eq!(pace.hedge_after(), HEDGE_AFTER_MIN);
    }

    #[test]
    fn an_overdue_read_raises_the_cost_until_probes_succeed() {
        let pace = Pace::default();
        read(&pace, 100);
        pace.begin();
        pace.record_overdue(Duration::from_millis(4));
        assert!(pace.cost_us() >= 4000);
        for _ in 0..8 {
            pace.forgive();
        }
        assert!(pace.cost_us() < 100);
    }
}
