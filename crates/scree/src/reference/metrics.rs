//! docs/reference/metrics.md: every metric with its type, labels and meaning, from the calls
//! that register them.

use std::collections::BTreeMap;
use std::path::Path;

use super::{check, head, root, row};

/// The crates that register metrics, and the processes that these are in.
const CRATES: [(&str, &str); 4] = [
    ("metrics", "all"),
    ("control", "controller"),
    ("agent", "agent"),
    ("units/daemon", "unit daemon"),
];

/// A metric, as it is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Metric {
    kind: &'static str,
    process: &'static str,
    meaning: String,
}

/// The string literal that `text` begins with, and what follows it.
fn literal(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let end = text.find('"')?;
    let lines = text[..end].split("\\\n").enumerate();
    let lines = lines.map(|(number, line)| if number == 0 { line } else { line.trim_start() });
    Some((lines.collect(), &text[end + 1..]))
}

/// The meaning in the argument that `text` begins with: a literal, or the variable `help` that was
/// set last in `before`. Returns what follows it, too.
fn meaning<'a>(before: &str, text: &'a str) -> Option<(String, &'a str)> {
    match text.strip_prefix("help,") {
        None => literal(text),
        Some(after) => {
            const SET: &str = "let help = ";
            let (help, _) = literal(&before[before.rfind(SET)? + SET.len()..])?;
            Some((help, after))
        }
    }
}

/// The type of a metric by the last method that is called before its name, or, where names are
/// listed first, by the first one that is called with a variable `name` after it.
fn kind(name: &str, before: &str, after: &str) -> Option<&'static str> {
    const METHODS: [(&str, &str); 6] = [
        ("one", "gauge"),
        ("gauge", "gauge"),
        ("count", "counter"),
        ("counter", "counter"),
        ("histogram", "histogram"),
        ("register", ""),
    ];
    // A tuple of an array has no method before its parenthesis.
    let called = before.trim_end().strip_suffix('(');
    let called = called.filter(|called| called.ends_with(|letter: char| letter.is_alphanumeric()));
    let method = match called {
        Some(called) => called.rsplit('.').next()?,
        None => {
            let call = after.find("(name, ")?;
            after[..call].rsplit('.').next()?
        }
    };
    let found = METHODS.iter().find(|(name, _)| *name == method)?;
    match found.1 {
        // A registry is given the metric itself; what takes time is a histogram.
        "" => Some(if name.ends_with("_seconds") {
            "histogram"
        } else {
            "counter"
        }),
        kind => Some(kind),
    }
}

/// The metrics that a source file registers. What follows `mod tests` registers none.
fn scan(source: &str, process: &'static str, into: &mut BTreeMap<String, Metric>) {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut from = 0;
    while let Some(at) = source[from..].find("\"scree_") {
        let at = from + at;
        from = at + 1;
        let Some((name, after)) = literal(&source[at..]) else {
            continue;
        };
        let rest = after.trim_start().strip_prefix(',').map(str::trim_start);
        let Some((meaning, after)) = rest.and_then(|rest| meaning(&source[..at], rest)) else {
            continue;
        };
        let Some(kind) = kind(&name, &source[..at], after) else {
            panic!("{name} is registered in a way that this test cannot read");
        };
        let metric = Metric {
            kind,
            process,
            meaning,
        };
        let name = match kind {
            "counter" => format!("{name}_total"),
            _ => name,
        };
        into.entry(name).or_insert(metric);
    }
}

fn files(folder: &Path, process: &'static str, into: &mut BTreeMap<String, Metric>) {
    let entries = std::fs::read_dir(folder).expect("a folder of sources");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        match path.is_dir() {
            true if name == "tests" => {}
            true => files(&path, process, into),
            false if name == "tests.rs" || !name.ends_with(".rs") => {}
            false => scan(
                &std::fs::read_to_string(&path).expect("text"),
                process,
                into,
            ),
        }
    }
}

#[test]
#[ignore = "the page is not written yet: run `make references` and remove this line"]
fn the_metrics_reference_is_up_to_date() {
    let mut metrics = BTreeMap::new();
    for (name, process) in CRATES {
        let folder = root().join("crates").join(name).join("src");
        files(&folder, process, &mut metrics);
    }
    assert!(metrics.len() > 30, "{} metrics", metrics.len());
    let mut text = "# Metrics\n\nA process with `--listen-metrics ADDR:PORT` serves them at \
                    `/metrics`, as OpenMetrics. A metric without a value has no line there.\n\n"
        .to_owned();
    text += &head(&["Metric", "Type", "Process", "Meaning"]);
    for (name, metric) in metrics {
        text += &row(&[
            format!("`{name}`"),
            metric.kind.to_owned(),
            metric.process.to_owned(),
            metric.meaning,
        ]);
    }
    check("metrics.md", &text);
}

#[test]
fn registrations_are_read_in_each_form() {
    let source = r#"
        measures.one("scree_a_seconds", "How old it is", 1.0);
        measures.counter(
            "scree_b",
            "Two \
             words",
            rows,
        );
        for (name, help, count) in [("scree_c", "Three", 3)] {
            measures.count(name, help, count);
        }
        let help = "Four";
        measures.gauge("scree_e", help, rows);
        let rows = text.starts_with("scree_d");
    "#;
    let mut found = BTreeMap::new();
    scan(source, "agent", &mut found);
    let found: Vec<(&str, &str, &str)> = found
        .iter()
        .map(|(name, one)| (name.as_str(), one.kind, one.meaning.as_str()))
        .collect();
    let expected = [
        ("scree_a_seconds", "gauge", "How old it is"),
        ("scree_b_total", "counter", "Two words"),
        ("scree_c_total", "counter", "Three"),
        ("scree_e", "gauge", "Four"),
    ];
    assert_eq!(found, expected);
}
