//! [`Metric`]: the declaration of a metric, from which both `/metrics` and the reference are made.
//!
//! A crate declares all its metrics once, with [`declare!`](crate::declare), and [`Measures`]
//! accepts no other: so the list of a crate's metrics is complete.
//!
//! [`Measures`]: crate::Measures

use prometheus_client::registry::Registry;

/// What a value of a metric means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only goes up while the process lives.
    Counter,
    /// A distribution of durations or sizes.
    Histogram,
}

impl MetricKind {
    /// The type's name in OpenMetrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// A label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The label's name.
    pub name: &'static str,
    /// The values that the label has, in Markdown, for the reference.
    pub values: &'static str,
}

/// The declaration of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The name without the `_total` that a counter's rows end in.
    pub name: &'static str,
    /// What its values mean.
    pub kind: MetricKind,
    /// The labels that each of its rows has, in this order.
    pub labels: &'static [Label],
    /// One sentence without the period, which the encoder appends.
    pub help: &'static str,
}

impl Metric {
    /// The name of its rows, without a histogram's `_bucket`, `_sum` and `_count`.
    #[must_use]
    pub fn row_name(&self) -> String {
        match self.kind {
            MetricKind::Counter => format!("{}_total", self.name),
            MetricKind::Gauge | MetricKind::Histogram => self.name.to_owned(),
        }
    }

    /// The unit of its values by the end of its name; `None` for plain numbers.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        let units = ["seconds", "bytes"];
        units.into_iter().find(|unit| {
            let stem = self.name.strip_suffix(unit);
            stem.is_some_and(|stem| stem.ends_with('_'))
        })
    }

    /// Registers values that are kept elsewhere, and whose labels are those of this declaration.
    pub fn register(
        &self,
        registry: &mut Registry,
        values: impl prometheus_client::registry::Metric,
    ) {
        registry.register(self.name, self.help, values);
    }
}

/// Declares a crate's metrics: a constant for each, and `ALL`, the list of them.
///
/// ```
/// metrics::declare! {
///     VOLUMES: Gauge "scree_volumes" ["state": "`available`, `error`"]
///         "Volumes by state";
///     PASSES: Counter "scree_repair_passes" [] "Completed passes over a copyset";
/// }
/// assert_eq!(ALL, [VOLUMES, PASSES]);
/// ```
#[macro_export]
macro_rules! declare {
    ($(
        $constant:ident: $kind:ident $name:literal [$($label:literal: $values:literal),*]
            $help:literal;
    )+) => {
        $(
            pub(crate) const $constant: $crate::Metric = $crate::Metric {
                name: $name,
                kind: $crate::MetricKind::$kind,
                labels: &[$($crate::Label { name: $label, values: $values }),*],
                help: $help,
            };
        )+

        /// All metrics that this crate declares.
        #[allow(dead_code, reason = "tests declare metrics that no reference lists")]
        pub const ALL: &[$crate::Metric] = &[$($constant),+];
    };
}
