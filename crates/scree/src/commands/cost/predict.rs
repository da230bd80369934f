//! `scree cost predict`.

use std::path::Path;

use measure::{Calibration, Cipher, MeasuredPlace, PlaceKind};
use model::cost::{Both, Caching, Flow, Layer, Offer, Prediction, Workload, cheapest, predict};
use serde::Serialize;
use trace::{Record, Verb};

use super::prices::PriceTable;
use super::{load, percent, seconds};
use crate::args::{PredictArguments, WorkloadArguments};
use crate::commands::Failure;
use crate::commands::offline::write_picture;
use crate::commands::traces::read_traces;
use crate::output::{Format, Table, print, print_notice};
use crate::plot::{Chart, Series};

/// What a file system and a cipher below it have at once, in bytes.
const BLOCK_BYTES: f64 = 4096.0;

/// One way to encrypt, and what it would cost.
#[derive(Serialize)]
struct Way {
    place: &'static str,
    cipher: &'static str,
    /// It was calibrated with another cipher, and this one by itself only.
    is_by_cipher: bool,
    /// CPU seconds in addition.
    cpu_s: f64,
    /// Those by the time that all takes.
    cpu_share: f64,
    /// How long it takes without encryption, and with it, in seconds.
    plain_run_s: f64,
    run_s: f64,
    /// What a request takes longer, on the mean, in seconds.
    latency_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    money: Option<f64>,
}

#[derive(Serialize)]
struct Predicted {
    machine: String,
    calibrated_at: String,
    /// In what the machine is not this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_machine: Option<String>,
    read_bytes: f64,
    written_bytes: f64,
    requests: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<String>,
    ways: Vec<Way>,
    /// Of these, by its number.
    cheapest: Option<usize>,
}

/// Runs it.
pub fn run(format: Format, arguments: &PredictArguments) -> Result<(), Failure> {
    let (calibration, differs) = load(&arguments.calibration.calibration)?;
    if let Some(why) = &differs {
        let path = arguments.calibration.calibration.display();
        print_notice(
            format,
            &format!("{path}: {why}; what is predicted is for that machine"),
        );
    }
    let prices = arguments.prices.as_deref().map(PriceTable::read);
    let prices = prices.transpose()?;
    let asked = &arguments.workload;
    let traced = match asked.traces.is_empty() {
        true => None,
        false => Some(of_traces(format, asked)?),
    };
    let places = chosen(&calibration, arguments)?;
    let mut ways = Vec::new();
    let mut flow = Both::<Flow>::default();
    for (place, cipher, layer, is_by_cipher) in &places {
        let workload = match &traced {
            Some(traced) => *traced,
            None => of_arguments(asked, &calibration, place),
        };
        flow = workload.flow;
        let said = predict(&workload, &place.target, layer);
        let paid = prices.as_ref().map(|prices| prices.of(place.place));
        ways.push(Way {
            place: place.place.name(),
            cipher: cipher.name(),
            is_by_cipher: *is_by_cipher,
            cpu_s: said.cpu_s,
            cpu_share: said.share(),
            plain_run_s: said.plain_run_s,
            run_s: said.run_s,
            latency_s: said.latency_s,
            money: paid.transpose()?.map(|paid| paid.of(&said)),
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
    let predicted = Predicted {
        machine: calibration.machine.name.clone(),
        calibrated_at: calibration.at.to_string(),
        other_machine: differs,
        read_bytes: flow.read.bytes,
        written_bytes: flow.write.bytes,
        requests: flow.read.operations + flow.write.operations,
        currency: prices.map(|prices| prices.currency),
        cheapest: cheapest(&offers, latency_s_max),
        ways,
    };
    if let Some(path) = &arguments.plot {
        draw(path, &calibration, asked, &places)?;
    }
    Ok(print(format, &predicted, shown)?)
}

type Chosen<'a> = (&'a MeasuredPlace, Cipher, Layer, bool);

/// Where encryption could run, and with what.
fn chosen<'a>(
    calibration: &'a Calibration,
    arguments: &PredictArguments,
) -> Result<Vec<Chosen<'a>>, Failure> {
    let mut found = Vec::new();
    let kinds: Vec<PlaceKind> = match arguments.places.is_empty() {
        true => calibration.places.iter().map(|one| one.place).collect(),
        false => arguments.places.clone(),
    };
    for kind in kinds {
        let Some(place) = calibration.place(kind) else {
            return Err(Failure::new(format!(
                "{kind} was not calibrated: `scree cost calibrate --place {kind}`"
            )));
        };
        for one in &place.layers {
            if arguments.ciphers.is_empty() || arguments.ciphers.contains(&one.cipher) {
                found.push((place, one.cipher, one.layer.clone(), false));
            }
        }
        let missing = arguments
            .ciphers
            .iter()
            .copied()
            .filter(|cipher| kind.ciphers().contains(cipher) && place.layer(*cipher).is_none());
        for cipher in missing {
            if let Some(layer) = by_cipher(calibration, place, cipher) {
                found.push((place, cipher, layer, true));
            }
        }
    }
    match found.is_empty() {
        true => Err(Failure::new(
            "no such place and cipher was calibrated: `scree cost calibrate --place PLACE`",
        )),
        false => Ok(found),
    }
}

/// A layer with a cipher that was not tried there.
fn by_cipher(calibration: &Calibration, place: &MeasuredPlace, cipher: Cipher) -> Option<Layer> {
    let speed = |cipher: Cipher| {
        let mut all = calibration.ciphers.iter();
        all.find(|one| one.cipher == cipher).map(|one| one.cpu)
    };
    let tried = place.layers.first()?;
    let (old, new) = (speed(tried.cipher)?, speed(cipher)?);
    Some(tried.layer.exchanged(&old, &new, BLOCK_BYTES))
}

fn of_arguments(
    asked: &WorkloadArguments,
    calibration: &Calibration,
    place: &MeasuredPlace,
) -> Workload {
    let (read, write) = (asked.read.unwrap_or(0), asked.write.unwrap_or(0));
    let memory = asked.memory.unwrap_or(place.memory_bytes);
    let caching = match asked.direct {
        Some(depth) => Caching::Direct {
            depth: f64::from(depth),
        },
        None => Caching::Memory {
            data_bytes: asked.data.unwrap_or(read.max(write)) as f64,
            memory_bytes: memory as f64,
            is_warm: asked.warm,
        },
    };
    Workload {
        flow: Both {
            read: Flow::of(read, asked.request),
            write: Flow::of(write, asked.request),
        },
        caching,
        own_cpu_s: asked.own_cpu,
        cpus: asked
            .cpus
            .map_or(calibration.machine.cpus as f64, f64::from),
        run_s: None,
    }
}

/// All that reached a disk, as it was recorded.
fn of_traces(format: Format, asked: &WorkloadArguments) -> Result<Workload, Failure> {
    let (records, notices) = read_traces(&asked.traces)?;
    for notice in notices {
        print_notice(format, &notice);
    }
    let mut flow: Both<Flow> = Both::default();
    for record in &records {
        let way = match record.verb {
            Verb::Read => &mut flow.read,
            Verb::Write => &mut flow.write,
            Verb::Flush | Verb::Trim | Verb::WriteZeroes | Verb::Prefetch => continue,
        };
        way.bytes += record.length as f64;
        way.operations += 1.0;
    }
    if flow.read.bytes + flow.write.bytes == 0.0 {
        return Err(Failure::new(
            "nothing is read or written in this trace: there is nothing to encrypt",
        ));
    }
    let run_s = duration_s(&records);
    if run_s == 0.0 {
        let notice = "the trace has no times: how long it takes is worked out by what the target \
                      can do";
        print_notice(format, notice);
    }
    Ok(Workload {
        flow,
        caching: Caching::Direct {
            depth: f64::from(asked.direct.unwrap_or(1)),
        },
        own_cpu_s: asked.own_cpu,
        cpus: asked.cpus.map_or(1.0, f64::from),
        run_s: (run_s > 0.0).then_some(run_s),
    })
}

fn duration_s(records: &[Record]) -> f64 {
    let times = records.iter().map(|record| record.time_ns);
    let (first, last) = times.fold((u64::MAX, 0), |(first, last), time| {
        (first.min(time), last.max(time))
    });
    last.saturating_sub(first) as f64 / 1e9
}

fn shown(predicted: &Predicted) -> String {
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
    let plain_s = predicted.ways.first().map_or(0.0, |way| way.plain_run_s);
    let mut none: Vec<String> = ["none", "-", "0", "0.0 %"].map(str::to_owned).to_vec();
    none.extend([seconds(plain_s), "0".to_owned(), "0".to_owned()]);
    if predicted.currency.is_some() {
        none.push("0".to_owned());
    }
    table.row(none);
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
            seconds((way.run_s - way.plain_run_s).max(0.0)),
            seconds(way.latency_s),
        ];
        if let (Some(money), Some(currency)) = (way.money, &predicted.currency) {
            row.push(format!("{money:.6} {currency}").trim_end().to_owned());
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
        predicted.machine,
        predicted.calibrated_at,
    )
}

/// So many sizes are drawn, each twice as large as the one before.
const SIZES: u32 = 8;

/// The CPU's share by size, from a 64th of what was asked to twice as much.
fn draw(
    path: &Path,
    calibration: &Calibration,
    asked: &WorkloadArguments,
    places: &[Chosen<'_>],
) -> Result<(), Failure> {
    let series = places.iter().map(|(place, cipher, layer, _)| {
        let at = |step: u32| {
            let ratio = 2_f64.powi(step as i32 + 2 - SIZES as i32);
            let mut workload = of_arguments(asked, calibration, place);
            workload.flow.read = workload.flow.read.part(ratio);
            workload.flow.write = workload.flow.write.part(ratio);
            if let Caching::Memory { data_bytes, .. } = &mut workload.caching {
                *data_bytes *= ratio;
            }
            let said: Prediction = predict(&workload, &place.target, layer);
            let bytes = workload.flow.read.bytes + workload.flow.write.bytes;
            (bytes / 1e6, 100.0 * said.share())
        };
        Series {
            name: format!("{}, {cipher}", place.place),
            points: (0..SIZES).map(at).collect(),
        }
    });
    let chart = Chart {
        title: "What encryption takes of a CPU".to_owned(),
        x: "bytes read and written, MB".to_owned(),
        y: "CPU time in addition, % of the time it takes".to_owned(),
        series: series.collect(),
    };
    write_picture(path, &chart)
}
