//! `scree cost predict`.

use std::collections::BTreeSet;
use std::path::Path;

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
use crate::cost::{Both, Caching, Flow, Offer, Prediction, cheapest, predict};
use crate::measure::Machine;

/// One way to encrypt, and what it would cost.
#[derive(Serialize)]
struct Alternative {
    place: &'static str,
    /// Where that was calibrated.
    machine: String,
    cipher: &'static str,
    calibrated_at: String,
    /// In what that machine is not this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_machine: Option<String>,
    /// It was calibrated with another cipher, and this one by itself only.
    is_by_cipher: bool,
    /// How much of its calibration may be chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    suspicion: Option<String>,
    /// CPU seconds in addition.
    cpu_s: f64,
    /// Those by the time that all takes.
    cpu_share: f64,
    /// How long it takes without encryption, and with it, in seconds.
    plain_run_s: f64,
    run_s: f64,
    /// By how much that is longer, in seconds.
    longer_s: f64,
    /// What a request takes longer, on the mean, in seconds.
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
    /// Of these, by its number.
    cheapest: Option<usize>,
}

/// Runs it.
pub fn run(console: &dyn Console, arguments: &PredictArguments) -> Result<(), Failure> {
    let mut calibrations = Vec::new();
    for path in &arguments.calibrations {
        let (calibration, differs) = load(path)?;
        if let Some(why) = differs {
            let path = path.display();
            let notice = format!("{path}: {why}; what is predicted is for that machine");
            console.notice(&notice);
        }
        calibrations.push(calibration);
    }
    if let Some(picture) = &arguments.plot {
        let inputs = arguments.calibrations.iter().chain(&arguments.prices);
        check_place(picture, inputs)?;
    }
    let here = Machine::here();
    let prices = arguments.prices.as_deref().map(PriceTable::read);
    let prices = prices.transpose()?;
    let asked = &arguments.workload;
    let traced = match asked.traces.is_empty() {
        true => None,
        false => Some(of_traces(console, asked)?),
    };
    let places = candidates(console, &calibrations, arguments)?;
    let times = arguments.plot.as_ref().map_or(1.0, |_| DRAWN_MOST);
    tell_guesses(console, asked, &places, times);
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
        flow = workload.asked();
        let said = predict(&workload, &place.target, &one.layer);
        let paid = prices.as_ref().map(|prices| prices.of(place.place));
        let money = paid.transpose()?.map(|paid| paid.of(&said));
        let numbers = [said.cpu_s, said.run_s, said.latency_s, money.unwrap_or(0.0)];
        if !numbers.iter().all(|number| number.is_finite()) {
            return Err(Failure::new("this is more than can be worked out"));
        }
        let machine = &one.calibration.machine;
        ways.push(Alternative {
            place: place.place.name(),
            machine: machine.name.clone(),
            other_machine: machine.differs(&here),
            cipher: one.cipher.name(),
            calibrated_at: one.at.to_string(),
            is_by_cipher: one.is_by_cipher,
            suspicion: one.suspicion.clone(),
            cpu_s: said.cpu_s,
            cpu_share: said.share(),
            plain_run_s: said.plain_run_s,
            run_s: said.run_s,
            longer_s: said.longer_s(),
            latency_s: said.latency_s,
            money,
        });
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
    // Whatever becomes of the picture, what is predicted is said.
    print(console, &predicted, shown)?;
    match &arguments.plot {
        Some(path) => draw(path, asked, &places),
        None => Ok(()),
    }
}

/// What was not said, or not measured, and is guessed, of `times` as much as is asked for.
fn tell_guesses(
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
            "{place}: the effect of memory was tried with data of up to {}; what it does to more \
             is guessed from that (calibrate with a larger --data-max)",
            base::size::about_bytes(tried)
        );
        console.notice(&notice);
    }
    let guess = |one: &Candidate<'_>| Some((one.place.place, guessed_memory(asked, one.place)?));
    let mut guesses: Vec<_> = places.iter().filter_map(guess).collect();
    guesses.dedup();
    for (place, memory) in guesses {
        let notice = format!(
            "{place}: the machine that has the disk is taken to have {} of memory, as its host \
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
            " (by the cipher alone)"
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
            "The cheapest that encrypts: {} with {}\n",
            way.place, way.cipher
        ),
        None => "None that encrypts is within the latency\n".to_owned(),
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

/// Where that was.
fn machines(ways: &[Alternative]) -> String {
    let names: BTreeSet<&str> = ways.iter().map(|way| &way.machine[..]).collect();
    names.into_iter().collect::<Vec<_>>().join(" and ")
}

/// So many that three of them say something, whatever the money is; four at least.
fn digits_after_point(money: f64) -> usize {
    let zeros = match money.abs() {
        0.0 => 0.0,
        money => (-money.log10()).max(0.0).floor(),
    };
    (zeros as usize + 3).clamp(4, 12)
}

/// When that was: one time, or from which to which.
fn calibrated(ways: &[Alternative]) -> String {
    let times = || ways.iter().map(|way| &way.calibrated_at[..]);
    let (first, last) = (times().min().unwrap_or(""), times().max().unwrap_or(""));
    match first == last {
        true => first.to_owned(),
        false => format!("{first} to {last}"),
    }
}

/// The beginning of rows without encryption: one, if that takes as long everywhere, else one for
/// each place.
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

/// So many sizes are drawn, each twice as large as the one before.
const SIZES: u32 = 8;

/// The largest, of what was asked for.
const DRAWN_MOST: f64 = 2.0;

/// The CPU's share by size, up to twice as much as was asked for.
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
            let said: Prediction = predict(&workload, &one.place.target, &one.layer);
            let asked = workload.asked();
            let bytes = asked.read.bytes + asked.write.bytes;
            (bytes / MIB, 100.0 * said.share())
        };
        Series {
            name: format!("{}, {}", one.place.place, one.cipher),
            points: (0..SIZES).map(at).collect(),
        }
    });
    let chart = Chart {
        title: "What encryption takes of a CPU".to_owned(),
        x: "read and written, MiB".to_owned(),
        y: "CPU time in addition, % of the time it takes".to_owned(),
        series: series.collect(),
        marks: Vec::new(),
    };
    write_picture(path, &chart)
}
