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
    name: String,
    help: String,
    rows: Vec<(Labels, Histogram)>,
}

impl Collector for Histograms {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let kind = MetricType::Histogram;
        let mut family = encoder.encode_descriptor(&self.name, &self.help, None, kind)?;
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
    /// Adds a metric that goes up and down. Its name ends in its unit, if it has one: `_seconds`,
    /// `_bytes`.
    pub fn gauge(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in rows {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help, family);
    }

    /// Adds a gauge with one row without labels.
    pub fn one(&mut self, name: &str, help: &str, value: f64) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        self.registry.register(name, help, gauge);
    }

    /// Adds a metric that only goes up while the process lives. `_total` is appended to its name.
    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in rows {
            family.get_or_create(&labels).inc_by(value);
        }
        self.registry.register(name, help, family);
    }

    /// Adds a counter with one row without labels.
    pub fn count(&mut self, name: &str, help: &str, value: u64) {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        self.registry.register(name, help, counter);
    }

    /// Adds histograms.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, Histogram)>,
    ) {
        self.registry.register_collector(Box::new(Histograms {
            name: name.to_owned(),
            help: format!("{help}."),
            rows: rows.into_iter().collect(),
        }));
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

/// `text` with the end marker, by which a client notices a truncated response.
pub(crate) fn with_end_marker(mut text: String) -> String {
    encode_eof(&mut text).expect("writing to a string");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_with_their_labels_and_a_counter_ends_in_total() {
        let mut measures = Measures::default();
        let row = |state: &str| vec![("state", state.to_owned())];
        measures.gauge("scree_a", "A", [(row("x"), 1.5), (row("a\"\\\nb"), 0.0)]);
        measures.one("scree_c", "C", 2.0);
        measures.count("scree_d", "D", 3);
        measures.counter("scree_b", "B", [(row("x"), u64::MAX)]);
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
        measures.histogram("scree_t_seconds", "T", [(labels, row)]);
        measures.one("scree_c", "C", 2.0);
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
