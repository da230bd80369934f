//! Counters of a daemon. All its threads update them without locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Histogram, Measures};
use unit::Durations;
use unit_wire::{Status, Verb};

use crate::declared_metrics::{REFUSALS, REQUEST_DURATION, TRANSFERRED_BYTES};

/// Durations, refusals and bytes since the daemon started.
#[derive(Default)]
pub(crate) struct Counters {
    took: [Durations; Verb::ALL.len()],
    refused: [AtomicU64; Status::ALL.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    /// Counts a request that was answered after `took`.
    pub fn answered(&self, verb: Verb, took: Duration) {
        self.took[verb as usize - 1].record(took);
    }

    /// Counts a refusal.
    pub fn refused(&self, status: Status) {
        self.refused[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts content that was read.
    pub fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts content that was put.
    pub fn written(&self, bytes: usize) {
        self.written_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn measure(&self, measures: &mut Measures) {
        let took = Verb::ALL.iter().zip(&self.took).map(|(verb, took)| {
            let labels = vec![("verb", verb.name().to_owned())];
            let histogram = Histogram {
                buckets: took.counts(),
                sum: took.sum_seconds(),
            };
            (labels, histogram)
        });
        measures.histogram(&REQUEST_DURATION, took);
        let statuses = Status::ALL.iter().zip(&self.refused);
        let refusals = statuses.filter(|(status, _)| **status != Status::Done);
        measures.counter(
            &REFUSALS,
            refusals.map(|(status, count)| {
                let labels = vec![("status", status.name().to_owned())];
                (labels, count.load(Ordering::Relaxed))
            }),
        );
        let directions = [("read", &self.read_bytes), ("written", &self.written_bytes)];
        measures.counter(
            &TRANSFERRED_BYTES,
            directions.map(|(direction, bytes)| {
                let labels = vec![("direction", direction.to_owned())];
                (labels, bytes.load(Ordering::Relaxed))
            }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_counts_in_the_bucket_of_its_lowest_bound() {
        let counters = Counters::default();
        for microseconds in [1, 10, 11, 10_000_000, 10_000_001] {
            counters.answered(Verb::WriteNote, Duration::from_micros(microseconds));
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
            "{name}_bucket{{le=\"0.00001\",verb=\"write-note\"}} 2"
        ));
        has(&format!(
            "{name}_bucket{{le=\"10.0\",verb=\"write-note\"}} 4"
        ));
        has(&format!(
            "{name}_bucket{{le=\"+Inf\",verb=\"write-note\"}} 5"
        ));
        has(&format!("{name}_count{{verb=\"write-note\"}} 5"));
        has(&format!("{name}_count{{verb=\"read-note\"}} 0"));
        has("scree_daemon_refusals_total{status=\"version\"} 1");
        has("scree_daemon_refusals_total{status=\"malformed\"} 0");
        assert!(!text.contains("status=\"done\""), "{text}");
    }
}
