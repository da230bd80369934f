//! What a daemon has done so far: counted by all its threads at once, without
//! locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use monitor::{Histogram, Measures};
use unit::wire::{Status, Verb};

/// Up to what a request took, in microseconds: from a read that the page cache
/// answers to a sync on a disk that is busy.
const BOUNDS_US: [u64; 11] = [
    10, 25, 100, 250, 1_000, 2_500, 10_000, 25_000, 100_000, 1_000_000, 10_000_000,
];

/// How long requests of one verb took.
#[derive(Default)]
struct Took {
    /// How many took longer than the bound before, and not longer than this one;
    /// the last took longer than all bounds.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    /// All of them together.
    sum_ns: AtomicU64,
}

impl Took {
    fn record(&self, took: Duration) {
        let bucket = BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < took);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn histogram(&self) -> Histogram {
        let bounds = BOUNDS_US.iter().map(|bound| {
            let bound = Duration::from_micros(*bound);
            bound.as_secs_f64()
        });
        let bounds = bounds.chain([f64::INFINITY]);
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let sum = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed));
        Histogram {
            buckets: bounds.zip(counts).collect(),
            sum: sum.as_secs_f64(),
        }
    }
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Counters {
    took: [Took; Verb::ALL.len()],
    refused: [AtomicU64; Status::ALL.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    /// A request was answered after so long.
    pub fn answered(&self, verb: Verb, took: Duration) {
        self.took[verb as usize - 1].record(took);
    }

    /// It was answered so.
    pub fn refused(&self, status: Status) {
        self.refused[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// So much content was read.
    pub fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So much content was put.
    pub fn written(&self, bytes: usize) {
        self.written_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn measure(&self, measures: &mut Measures) {
        let took = Verb::ALL.iter().zip(&self.took).map(|(verb, took)| {
            let labels = vec![("verb", verb.name().to_owned())];
            (labels, took.histogram())
        });
        measures.histogram(
            "scree_daemon_request_duration_seconds",
            "How long requests took, from when they were read to when they were answered",
            took,
        );
        let statuses = Status::ALL.iter().zip(&self.refused);
        let refusals = statuses.filter(|(status, _)| **status != Status::Done);
        measures.counter(
            "scree_daemon_refusals",
            "Requests that were not done, by why",
            refusals.map(|(status, count)| {
                let labels = vec![("status", status.name().to_owned())];
                (labels, count.load(Ordering::Relaxed))
            }),
        );
        let ways = [("read", &self.read_bytes), ("written", &self.written_bytes)];
        measures.counter(
            "scree_daemon_transferred_bytes",
            "Bytes of blocks that hosts have read and written",
            ways.map(|(way, bytes)| {
                let labels = vec![("way", way.to_owned())];
                (labels, bytes.load(Ordering::Relaxed))
            }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_in_the_bucket_of_the_first_bound_that_it_keeps() {
        let counters = Counters::default();
        for microseconds in [1, 10, 11, 10_000_000, 10_000_001] {
            counters.answered(Verb::NoteDown, Duration::from_micros(microseconds));
        }
        counters.refused(Status::Version);
        let mut measures = Measures::default();
        counters.measure(&mut measures);
        let text = measures.whole();
        let has = |line: &str| {
            let mut lines = text.lines();
            assert!(lines.any(|found| found == line), "{line} in {text}");
        };
        let name = "scree_daemon_request_duration_seconds";
        has(&format!(
            "{name}_bucket{{le=\"0.00001\",verb=\"note-down\"}} 2"
        ));
        has(&format!(
            "{name}_bucket{{le=\"10.0\",verb=\"note-down\"}} 4"
        ));
        has(&format!(
            "{name}_bucket{{le=\"+Inf\",verb=\"note-down\"}} 5"
        ));
        has(&format!("{name}_count{{verb=\"note-down\"}} 5"));
        has(&format!("{name}_count{{verb=\"note\"}} 0"));
        has("scree_daemon_refusals_total{status=\"version\"} 1");
        has("scree_daemon_refusals_total{status=\"malformed\"} 0");
        assert!(!text.contains("status=\"done\""), "{text}");
    }
}
