//! [`Measures`]: metrics, and their text in OpenMetrics.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::{Metric, MetricKind};

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The labels of one row of a metric, as names and values.
pub type Labels = Vec<(&'static str, String)>;

/// A distribution of durations or sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// The upper bound of each bucket and the number of values in it, above the bound of the
    /// bucket before. The last bound is [`f64::INFINITY`].
    pub buckets: Vec<(f64, u64)>,
    /// The sum of all values.
    pub sum: f64,
}

/// The histograms of one metric.
#[derive(Debug)]
struct Histograms {
    metric: Metric,
    rows: Vec<(Labels, Histogram)>,
}

impl Collector for Histograms {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let kind = MetricType::Histogram;
        let help = format!("{}.", self.metric.help);
        let mut family = encoder.encode_descriptor(self.metric.name, &help, None, kind)?;
        for (labels, row) in &self.rows {
            let count = row.buckets.iter().map(|(_, count)| count).sum();
            let mut row_encoder = family.encode_family(labels)?;
            row_encoder.encode_histogram::<NoLabelSet>(row.sum, count, &row.buckets, None)?;
        }
        Ok(())
    }
}

/// The values of metrics at one moment. Each metric is added once, with all its rows: a text with
/// the same metric twice is invalid.
#[derive(Default)]
pub struct Measures {
    registry: Registry,
    /// The text of registries that were included.
    included: String,
}

impl Measures {
    /// Adds a gauge.
    pub fn gauge(&mut self, metric: &Metric, rows: impl IntoIterator<Item = (Labels, f64)>) {
        debug_assert_eq!(metric.kind, MetricKind::Gauge, "{}", metric.name);
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in rows {
            assert_declared(metric, &labels);
            family.get_or_create(&labels).set(value);
        }
        metric.register(&mut self.registry, family);
    }

    /// Adds a gauge with one row without labels.
    pub fn one(&mut self, metric: &Metric, value: f64) {
        debug_assert_eq!(metric.kind, MetricKind::Gauge, "{}", metric.name);
        assert_declared(metric, &Labels::new());
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        metric.register(&mut self.registry, gauge);
    }

    /// Adds a counter.
    pub fn counter(&mut self, metric: &Metric, rows: impl IntoIterator<Item = (Labels, u64)>) {
        debug_assert_eq!(metric.kind, MetricKind::Counter, "{}", metric.name);
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in rows {
            assert_declared(metric, &labels);
            family.get_or_create(&labels).inc_by(value);
        }
        metric.register(&mut self.registry, family);
    }

    /// Adds a counter with one row without labels.
    pub fn count(&mut self, metric: &Metric, value: u64) {
        debug_assert_eq!(metric.kind, MetricKind::Counter, "{}", metric.name);
        assert_declared(metric, &Labels::new());
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        metric.register(&mut self.registry, counter);
    }

    /// Adds histograms.
    pub fn histogram(
        &mut self,
        metric: &Metric,
        rows: impl IntoIterator<Item = (Labels, Histogram)>,
    ) {
        debug_assert_eq!(metric.kind, MetricKind::Histogram, "{}", metric.name);
        let rows: Vec<_> = rows.into_iter().collect();
        for (labels, _) in &rows {
            assert_declared(metric, labels);
        }
        let metric = *metric;
        self.registry
            .register_collector(Box::new(Histograms { metric, rows }));
    }

    /// Adds the metrics of a registry that is kept elsewhere.
    ///
    /// # Panics
    /// Never: writing to a string does not fail.
    pub fn include(&mut self, registry: &Registry) {
        encode_registry(&mut self.included, registry).expect("writing to a string");
    }

    /// The text without the end marker, so that another part's text may follow.
    pub(crate) fn text(&self) -> String {
        let mut text = self.included.clone();
        encode_registry(&mut text, &self.registry).expect("writing to a string");
        text
    }

    /// The complete text.
    #[must_use]
    pub fn whole(&self) -> String {
        with_end_marker(self.text())
    }
}

/// The labels of a row are those that the metric declares.
fn assert_declared(metric: &Metric, labels: &Labels) {
    let declared = metric.labels.iter().map(|label| label.name);
    let is_declared = labels.iter().map(|(name, _)| *name).eq(declared);
    debug_assert!(is_declared, "{} has the labels {labels:?}", metric.name);
}

/// `text` with the end marker, by which a client notices a truncated response.
pub(crate) fn with_end_marker(mut text: String) -> String {
    encode_eof(&mut text).expect("writing to a string");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::declare! {
        A: Gauge "scree_a" ["state": "any"] "A";
        B: Counter "scree_b" ["state": "any"] "B";
        C: Gauge "scree_c" [] "C";
        D: Counter "scree_d" [] "D";
        T: Histogram "scree_t_seconds" ["verb": "any"] "T";
    }

    #[test]
    fn rows_are_written_with_their_labels_and_a_counter_ends_in_total() {
        let mut measures = Measures::default();
        let row = |state: &str| vec![("state", state.to_owned())];
        measures.gauge(&A, [(row("x"), 1.5), (row("a\"\\\nb"), 0.0)]);
        measures.one(&C, 2.0);
        measures.count(&D, 3);
        measures.counter(&B, [(row("x"), u64::MAX)]);
        let text = measures.whole();
        for line in [
            "# TYPE scree_a gauge",
            "scree_d_total 3",
            "scree_a{state=\"x\"} 1.5",
            "scree_a{state=\"a\\\"\\\\\\nb\"} 0.0",
            "scree_c 2.0",
            "# TYPE scree_b counter",
            "scree_b_total{state=\"x\"} 18446744073709551615",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn a_histogram_counts_up_to_each_bound() {
        let mut measures = Measures::default();
        let row = Histogram {
            buckets: vec![(0.001, 3), (0.5, 2), (f64::INFINITY, 1)],
            sum: 7.25,
        };
        let labels = vec![("verb", "put".to_owned())];
        measures.histogram(&T, [(labels, row)]);
        measures.one(&C, 2.0);
        let text = measures.whole();
        for line in [
            "# HELP scree_t_seconds T.",
            "# TYPE scree_t_seconds histogram",
            "scree_t_seconds_sum{verb=\"put\"} 7.25",
            "scree_t_seconds_count{verb=\"put\"} 6",
            "scree_t_seconds_bucket{le=\"0.001\",verb=\"put\"} 3",
            "scree_t_seconds_bucket{le=\"0.5\",verb=\"put\"} 5",
            "scree_t_seconds_bucket{le=\"+Inf\",verb=\"put\"} 6",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
