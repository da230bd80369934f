//! `scree cost predict`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base::report::Table;
use serde::Serialize;

use super::candidates::{Candidate, candidates};
use super::prices::PriceTable;
use super::workload::{guessed_from, guessed_memory, of_arguments, of_traces};
use super::{MIB, load, percent, seconds, suspect};
use crate::args::{PredictArguments, WorkloadArguments};
use crate::chart::{Chart, Series};
use crate::commands::Failure;
use crate::commands::files::{check_place, write_picture};
use crate::commands::{Console, print};
use crate::cost::{Both, Caching, Flow, Offer, Prediction, Workload, cheapest, predict};
use crate::measure::{Calibration, Machine};

/// A way to encrypt, and its cost.
#[derive(Serialize)]
struct Alternative {
    place: &'static str,
    /// The calibrated machine.
    machine: String,
    cipher: &'static str,
    calibrated_at: String,
    /// How that machine differs from this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_machine: Option<String>,
    /// The place was measured with another cipher; this cipher was only measured by itself.
    is_by_cipher: bool,
    /// Why its calibration may be imprecise.
    #[serde(skip_serializing_if = "Option::is_none")]
    suspicion: Option<String>,
    /// Added CPU seconds.
    cpu_s: f64,
    /// Added CPU time per run time.
    cpu_share: f64,
    /// Run time without and with encryption, in seconds.
    plain_run_s: f64,
    run_s: f64,
    /// Added run time, in seconds.
    longer_s: f64,
    /// Added latency of a request on average, in seconds.
    latency_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    money: Option<f64>,
}

#[derive(Serialize)]
struct CostPrediction {
    read_bytes: f64,
    written_bytes: f64,
    requests: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<String>,
    ways: Vec<Alternative>,
    /// Index in `ways`.
    cheapest: Option<usize>,
}

/// Runs `scree cost predict`.
pub fn run(console: &dyn Console, arguments: &PredictArguments) -> Result<(), Failure> {
    let calibrations = load_all(console, &arguments.calibrations)?;
    if let Some(picture) = &arguments.plot {
        let inputs = arguments.calibrations.iter().chain(&arguments.prices);
        check_place(picture, inputs)?;
    }
    let prices = arguments.prices.as_deref().map(PriceTable::read);
    let prices = prices.transpose()?;
    let asked = &arguments.workload;
    let traced = match asked.traces.is_empty() {
        true => None,
        false => Some(of_traces(console, asked)?),
    };
    let places = candidates(console, &calibrations, arguments)?;
    let times = arguments.plot.as_ref().map_or(1.0, |_| DRAWN_MOST);
    notice_guesses(console, asked, &places, times);
    let mut ways = Vec::new();
    let mut flow = Both::<Flow>::default();
    for one in &places {
        let place = one.place;
        if let Some(suspicion) = &one.suspicion {
            console.notice(&suspect(place.place, one.cipher, suspicion));
        }
        let workload = match &traced {
            Some(traced) => traced(one.calibration),
            None => of_arguments(asked, one.calibration, place),
        };
        flow = workload.total();
        ways.push(alternative(one, &workload, prices.as_ref())?);
    }
    let offers: Vec<Offer> = ways
        .iter()
        .map(|way| Offer {
            cost: way.money.unwrap_or(way.cpu_s),
            latency_s: way.latency_s,
        })
        .collect();
    let latency_s_max = arguments.latency_max.map(|time| time.as_secs_f64());
    let predicted = CostPrediction {
        read_bytes: flow.read.bytes,
        written_bytes: flow.write.bytes,
        requests: flow.read.operations + flow.write.operations,
        currency: prices.map(|prices| prices.currency),
        cheapest: cheapest(&offers, latency_s_max),
        ways,
    };
    // The result is printed even if the picture fails.
    print(console, &predicted, shown)?;
    match &arguments.plot {
        Some(path) => draw(path, asked, &places),
        None => Ok(()),
    }
}

fn load_all(console: &dyn Console, paths: &[PathBuf]) -> Result<Vec<Calibration>, Failure> {
    let mut calibrations = Vec::new();
    for path in paths {
        let (calibration, differs) = load(path)?;
        if let Some(why) = differs {
            let path = path.display();
            let notice = format!("{path}: {why}; the prediction is for that machine");
            console.notice(&notice);
        }
        calibrations.push(calibration);
    }
    Ok(calibrations)
}

/// The cost of a workload with this place and cipher.
fn alternative(
    candidate: &Candidate<'_>,
    workload: &Workload,
    prices: Option<&PriceTable>,
) -> Result<Alternative, Failure> {
    let prediction = predict(workload, &candidate.place.target, &candidate.layer);
    let prices = prices
        .map(|prices| prices.of(candidate.place.place))
        .transpose()?;
    let money = prices.map(|prices| prices.of(&prediction));
    let numbers = [
        prediction.cpu_s,
        prediction.run_s,
        prediction.latency_s,
        money.unwrap_or(0.0),
    ];
    if !numbers.iter().all(|number| number.is_finite()) {
        return Err(Failure::new("the numbers are too large for a prediction"));
    }
    let machine = &candidate.calibration.machine;
    Ok(Alternative {
        place: candidate.place.place.name(),
        machine: machine.name.clone(),
        other_machine: machine.differs(&Machine::here()),
        cipher: candidate.cipher.name(),
        calibrated_at: candidate.at.to_string(),
        is_by_cipher: candidate.is_by_cipher,
        suspicion: candidate.suspicion.clone(),
        cpu_s: prediction.cpu_s,
        cpu_share: prediction.share(),
        plain_run_s: prediction.plain_run_s,
        run_s: prediction.run_s,
        longer_s: prediction.longer_s(),
        latency_s: prediction.latency_s,
        money,
    })
}

/// Notices about values that were neither given nor measured, for `times` the given amount of data.
fn notice_guesses(
    console: &dyn Console,
    asked: &WorkloadArguments,
    places: &[Candidate<'_>],
    times: f64,
) {
    let mut beyond: Vec<_> = places
        .iter()
        .filter_map(|one| Some((one.place.place, guessed_from(asked, one.place, times)?)))
        .collect();
    beyond.dedup();
    for (place, tried) in beyond {
        let notice = format!(
            "{place}: the effect of memory was measured with data of up to {}; its effect on more \
             is guessed from that (calibrate with a larger --data-max)",
            base::size::about_bytes(tried)
        );
        console.notice(&notice);
    }
    let guess = |candidate: &Candidate<'_>| {
        Some((
            candidate.place.place,
            guessed_memory(asked, candidate.place)?,
        ))
    };
    let mut guesses: Vec<_> = places.iter().filter_map(guess).collect();
    guesses.dedup();
    for (place, memory) in guesses {
        let notice = format!(
            "{place}: the machine that has the disk is assumed to have {} of memory, as its host \
             has (--memory)",
            base::size::about_bytes(memory)
        );
        console.notice(&notice);
    }
}

fn shown(predicted: &CostPrediction) -> String {
    let mut heads = vec![
        "PLACE",
        "CIPHER",
        "CPU",
        "CPU SHARE",
        "TAKES",
        "LONGER",
        "A REQUEST",
    ];
    if predicted.currency.is_some() {
        heads.push("COSTS");
    }
    let mut table = Table::new(&heads);
    for none in nothing(&predicted.ways) {
        let mut row = none;
        row.extend(["0".to_owned(), "0".to_owned()]);
        if predicted.currency.is_some() {
            row.push("0".to_owned());
        }
        table.row(row);
    }
    for way in &predicted.ways {
        let mark = if way.is_by_cipher {
            " (derived from the cipher alone)"
        } else {
            ""
        };
        let mut row = vec![
            way.place.to_owned(),
            format!("{}{mark}", way.cipher),
            seconds(way.cpu_s),
            percent(way.cpu_share),
            seconds(way.run_s),
            seconds(way.longer_s),
            seconds(way.latency_s),
        ];
        if let (Some(money), Some(currency)) = (way.money, &predicted.currency) {
            let digits = digits_after_point(money);
            row.push(format!("{money:.digits$} {currency}").trim_end().to_owned());
        }
        table.row(row);
    }
    let best = match predicted.cheapest.map(|index| &predicted.ways[index]) {
        Some(way) => format!(
            "The cheapest encryption: {} with {}\n",
            way.place, way.cipher
        ),
        None => "No encryption is within the latency limit\n".to_owned(),
    };
    format!(
        "{} read and {} written in {:.0} requests; calibrated on {}, {}\n\n{table}\n{best}",
        base::size::about_bytes(predicted.read_bytes as u64),
        base::size::about_bytes(predicted.written_bytes as u64),
        predicted.requests,
        machines(&predicted.ways),
        calibrated(&predicted.ways),
    )
}

/// The calibrated machines.
fn machines(ways: &[Alternative]) -> String {
    let names: BTreeSet<&str> = ways.iter().map(|way| &way.machine[..]).collect();
    names.into_iter().collect::<Vec<_>>().join(" and ")
}

/// The number of decimals that shows at least three significant digits of an amount of money; at
/// least 2.
fn digits_after_point(money: f64) -> usize {
    let zeros = match money.abs() {
        0.0 => 0.0,
        money => (-money.log10()).max(0.0).floor(),
    };
    (zeros as usize + 3).clamp(4, 12)
}

/// When the calibrations were made: one time, or a range.
fn calibrated(ways: &[Alternative]) -> String {
    let times = || ways.iter().map(|way| &way.calibrated_at[..]);
    let (first, last) = (times().min().unwrap_or(""), times().max().unwrap_or(""));
    match first == last {
        true => first.to_owned(),
        false => format!("{first} to {last}"),
    }
}

/// The rows without encryption: one if the run time is the same everywhere, otherwise one for each
/// place.
fn nothing(ways: &[Alternative]) -> Vec<Vec<String>> {
    let row = |name: String, plain_run_s: f64| {
        let rest = ["-".to_owned(), "0".to_owned(), "0.0 %".to_owned()];
        [vec![name], rest.to_vec(), vec![seconds(plain_run_s)]].concat()
    };
    let mut places: Vec<&Alternative> = ways.iter().collect();
    places.dedup_by_key(|way| way.place);
    match places[..] {
        [first, ..]
            if places
                .iter()
                .all(|way| way.plain_run_s == first.plain_run_s) =>
        {
            vec![row("none".to_owned(), first.plain_run_s)]
        }
        _ => {
            let each = places.iter();
            each.map(|way| row(format!("none, at {}", way.place), way.plain_run_s))
                .collect()
        }
    }
}

/// The number of sizes that are drawn, each twice as large as the one before.
const SIZES: u32 = 8;

/// The largest drawn size, relative to the given one.
const DRAWN_MOST: f64 = 2.0;

/// Draws the share of the CPU by size, up to twice the given size.
fn draw(path: &Path, asked: &WorkloadArguments, places: &[Candidate<'_>]) -> Result<(), Failure> {
    let series = places.iter().map(|one| {
        let at = |step: u32| {
            let ratio = DRAWN_MOST * 2_f64.powi(step as i32 + 1 - SIZES as i32);
            let mut workload = of_arguments(asked, one.calibration, one.place);
            for way in [&mut workload.flow.read, &mut workload.flow.write] {
                way.iter_mut().for_each(|flow| *flow = flow.part(ratio));
            }
            if let Caching::Memory { data_bytes, .. } = &mut workload.caching {
                *data_bytes *= ratio;
            }
            let prediction: Prediction = predict(&workload, &one.place.target, &one.layer);
            let total = workload.total();
            let bytes = total.read.bytes + total.write.bytes;
            (bytes / MIB, 100.0 * prediction.share())
        };
        Series {
            name: format!("{}, {}", one.place.place, one.cipher),
            points: (0..SIZES).map(at).collect(),
        }
    });
    let chart = Chart {
        title: "CPU time of encryption".to_owned(),
        x: "read and written, MiB".to_owned(),
        y: "added CPU time, % of the run time".to_owned(),
        series: series.collect(),
        marks: Vec::new(),
    };
    write_picture(path, &chart)
}
