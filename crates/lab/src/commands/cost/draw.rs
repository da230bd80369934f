//! `scree cost draw`: prediction and measurement by data size.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::MIB;
use super::validate::{Case, Validation};
use crate::args::{DrawArguments, Figure};
use crate::chart::{Chart, Series};
use crate::commands::Failure;
use crate::commands::files::{check_place, failed, read_file, write_picture};
use crate::measure::PlaceKind;

/// The largest result file, in bytes.
const BYTES_MAX: u64 = 64 << 20;

/// Runs `scree cost draw`.
pub fn run(arguments: &DrawArguments) -> Result<(), Failure> {
    check_place(&arguments.plot, &arguments.results)?;
    let mut all: Vec<Validation> = Vec::new();
    for path in &arguments.results {
        all.push(read(path)?);
    }
    let chart = chart(&all, arguments.figure, arguments.only.as_deref())?;
    write_picture(&arguments.plot, &chart)
}

fn read(path: &Path) -> Result<Validation, Failure> {
    let bytes = read_file(path, BYTES_MAX)?;
    let parsed = serde_json::from_slice(&bytes);
    parsed.map_err(|error| {
        let why = format!("it is not the output of `scree cost validate -o json`: {error}");
        failed(path, why)
    })
}

/// The two values of a case that are drawn, each with the name of its curve.
fn lines(figure: Figure, case: &Case) -> [(&'static str, f64); 2] {
    let ratio = |part: f64, all: f64| if all > 0.0 { 100.0 * part / all } else { 0.0 };
    match figure {
        Figure::Share => [
            ("predicted", 100.0 * case.predicted_share),
            ("measured", 100.0 * case.measured_share),
        ],
        Figure::Load => {
            let predicted = case.predicted_cpu_s + case.predicted_plain_cpu_s;
            let measured = case.measured_cpu_s + case.plain_cpu_s;
            [
                ("predicted", ratio(predicted, case.predicted_run_s)),
                ("measured", ratio(measured, case.measured_run_s)),
            ]
        }
        Figure::Overhead => [
            ("predicted", ratio(case.predicted_cpu_s, case.plain_cpu_s)),
            ("measured", ratio(case.measured_cpu_s, case.plain_cpu_s)),
        ],
        Figure::Time => [
            ("without", case.plain_run_s),
            ("encrypted", case.measured_run_s),
        ],
    }
}

fn title(figure: Figure) -> (&'static str, &'static str) {
    match figure {
        Figure::Share => ("Added CPU time", "% of the run time"),
        Figure::Load => ("CPU load with encryption", "CPU time, % of the run time"),
        Figure::Overhead => ("Added CPU time", "% of the CPU time without encryption"),
        Figure::Time => ("Run time", "seconds"),
    }
}

/// Draws two curves for each place, memory size and cipher.
pub fn chart(all: &[Validation], figure: Figure, only: Option<&str>) -> Result<Chart, Failure> {
    let is_drawn = |case: &&Case| only.is_none_or(|only| case.work.starts_with(only));
    let mut cases: BTreeMap<_, Vec<&Case>> = BTreeMap::new();
    for one in all {
        let where_ = (one.place, one.machine.memory_bytes);
        for case in one.cases.iter().filter(is_drawn) {
            let line = cases.entry((where_, case.cipher.as_str())).or_default();
            line.push(case);
        }
    }
    let count = |of: fn(&(PlaceKind, u64), &str) -> String| {
        let all: BTreeSet<String> = cases.keys().map(|(at, cipher)| of(at, cipher)).collect();
        all.len()
    };
    let is_named = [
        count(|(place, _), _| place.to_string()) > 1,
        count(|_, cipher| cipher.to_owned()) > 1,
        count(|(_, memory), _| memory.to_string()) > 1,
    ];
    let mut series = Vec::new();
    for (((place, memory), cipher), cases) in &cases {
        for line in 0..2 {
            let each = cases.iter().map(|case| lines(figure, case)[line]);
            let mut points: Vec<(f64, f64)> = cases
                .iter()
                .map(|case| case.bytes as f64 / MIB)
                .zip(each.clone().map(|(_, value)| value))
                .collect();
            points.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
            let names = [
                place.to_string(),
                (*cipher).to_owned(),
                format!("{} MiB of memory", memory >> 20),
            ];
            let named = names.into_iter().zip(is_named).filter(|(_, named)| *named);
            let what = each.map(|(what, _)| what.to_owned()).take(1);
            let name: Vec<String> = what.chain(named.map(|(name, _)| name)).collect();
            series.push(Series {
                name: name.join(", "),
                points,
            });
        }
    }
    if series.is_empty() {
        return Err(Failure::new("no work in these results matches --only"));
    }
    let (title, y) = title(figure);
    Ok(Chart {
        title: title.to_owned(),
        x: "data, MiB".to_owned(),
        y: y.to_owned(),
        series,
        marks: Vec::new(),
    })
}
