//! docs/reference/metrics.md: every declared metric with its type, unit, labels and meaning.

use std::collections::BTreeSet;

use metrics::{Metric, MetricKind};

use super::{check, head, row};

/// The metrics of a kind of process.
struct Process {
    title: &'static str,
    /// What an operator has to know of all of them.
    introduction: &'static str,
    metrics: &'static [Metric],
}

const PROCESSES: [Process; 4] = [
    Process {
        title: "Every process",
        introduction: "",
        metrics: metrics::ALL,
    },
    Process {
        title: "Controller",
        introduction: "All controllers of a database count the same volumes, snapshots, attachments, \
                       hosts, frees and segments: use `max`, not `sum`.",
        metrics: control::METRICS,
    },
    Process {
        title: "Agent",
        introduction: "`scree up` has these, too. Blocks are of 4 KiB. Counters begin at 0 when the \
                       process starts. Areas of the cache are `metadata` (map pages), `image` (base \
                       images) and `active` (everything else).",
        metrics: agent::METRICS,
    },
    Process {
        title: "Unit daemon",
        introduction: "",
        metrics: unit_daemon::METRICS,
    },
];

fn labels(metric: &Metric) -> String {
    let labels = metric.labels.iter();
    let labels: Vec<String> = labels
        .map(|label| format!("`{}`: {}", label.name, label.values))
        .collect();
    labels.join("; ")
}

#[test]
fn the_metrics_reference_is_up_to_date() {
    let mut text = "# Metrics\n\nA process with `--listen-metrics ADDR:PORT` serves them at \
                    `/metrics`, as OpenMetrics. A metric without a value has no row there; a \
                    yes-or-no metric is 1 or 0. How to collect them: [watch with \
                    Prometheus](../howto/watch-with-prometheus.md).\n"
        .to_owned();
    for process in PROCESSES {
        text += &format!("\n## {}\n\n", process.title);
        if !process.introduction.is_empty() {
            text += &format!("{}\n\n", process.introduction);
        }
        text += &head(&["Metric", "Type", "Unit", "Labels", "Meaning"]);
        let mut metrics: Vec<&Metric> = process.metrics.iter().collect();
        metrics.sort_by_key(|metric| metric.name);
        for metric in metrics {
            text += &row(&[
                format!("`{}`", metric.row_name()),
                metric.kind.name().to_owned(),
                metric.unit().unwrap_or_default().to_owned(),
                labels(metric),
                metric.help.to_owned(),
            ]);
        }
    }
    check("metrics.md", &text);
}

#[test]
fn each_metric_is_declared_once_and_in_the_same_form() {
    let mut names = BTreeSet::new();
    for metric in PROCESSES.iter().flat_map(|process| process.metrics) {
        let name = metric.name;
        assert!(names.insert(name), "{name} is declared twice");
        let is_ours = name.starts_with("scree_") || name == "process_start_time_seconds";
        assert!(is_ours, "{name} does not begin with scree_");
        assert!(
            !name.ends_with("_total"),
            "{name}: the encoder appends _total"
        );
        let is_histogram = metric.kind == MetricKind::Histogram;
        assert!(
            !is_histogram || metric.unit().is_some(),
            "{name} has no unit"
        );
        let help = metric.help;
        let is_sentence = help.starts_with(|letter: char| letter.is_ascii_uppercase());
        assert!(is_sentence && !help.ends_with('.'), "{name}: {help:?}");
    }
    assert!(names.len() > 70, "{} metrics", names.len());
}
