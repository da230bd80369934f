//! `scree cost validate`.

use base::report::Table;
use serde::{Deserialize, Serialize};

use super::draw::chart;
use super::scratch::Scratch;
use super::{load, percent, refused, seconds};
use crate::args::{Figure, ValidateArguments};
use crate::commands::Failure;
use crate::commands::files::{check_place, failed, write_picture};
use crate::commands::{Console, print};
use crate::measure::place::place;
use crate::measure::{
    Cipher, Comparison, Machine, MeasuredPlace, PlaceKind, Waiting, Work, compare, median,
};

/// The prediction and the measurement of one work.
#[derive(Serialize, Deserialize)]
pub struct Case {
    pub work: String,
    /// Size of its data, in bytes.
    pub bytes: u64,
    pub cipher: String,
    pub predicted_cpu_s: f64,
    pub measured_cpu_s: f64,
    /// Half the width of the 95 % confidence interval; unknown with fewer than three rounds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub measured_within_s: Option<f64>,
    /// CPU time without encryption.
    pub plain_cpu_s: f64,
    pub predicted_plain_cpu_s: f64,
    /// Accuracy of the prediction, from 0 to 1.
    pub accuracy: f64,
    /// The measurement is too imprecise to judge the prediction; the case does not count.
    #[serde(default)]
    pub is_unclear: bool,
    /// The prediction is within the confidence interval; unknown with fewer than three rounds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub is_within: Option<bool>,
    pub predicted_run_s: f64,
    pub measured_run_s: f64,
    pub plain_run_s: f64,
    pub predicted_plain_run_s: f64,
    /// Time until the last write returned, with and without encryption.
    pub returned_s: f64,
    pub plain_returned_s: f64,
    /// Added CPU time per run time.
    pub predicted_share: f64,
    pub measured_share: f64,
}

/// The result of `scree cost validate`.
#[derive(Serialize, Deserialize)]
pub struct Validation {
    pub place: PlaceKind,
    pub machine: Machine,
    pub calibrated_at: String,
    pub rounds: u32,
    /// Median and minimum of the cases that count.
    pub accuracy_median: Option<f64>,
    pub accuracy_min: Option<f64>,
    pub cases: Vec<Case>,
}

/// The default works: sizes and mixtures that a calibration does not use.
fn works(kind: PlaceKind) -> Vec<Work> {
    let words: &[&str] = match kind {
        PlaceKind::GuestBlock => &[
            "write:100M:1M",
            "cold:100M:256K",
            "direct:32M:16K:30:1",
            "words:50M",
        ],
        PlaceKind::GuestStackable => &[
            "write:100M:64K",
            "write:50M:16K",
            "cold:200M:256K",
            "words:100M",
        ],
        PlaceKind::Filter | PlaceKind::Agent => &[
            "direct:128M:16K:0:1",
            "direct:128M:16K:100:1",
            "direct:128M:64K:50:1",
        ],
    };
    let parsed = words.iter().map(|word| word.parse());
    parsed.collect::<Result<_, _>>().unwrap_or_default()
}

/// The works and ciphers to measure.
struct Selection {
    ciphers: Vec<Cipher>,
    works: Vec<Work>,
}

impl Selection {
    /// Those of the arguments, or the defaults of the place; all can be measured there.
    fn of(arguments: &ValidateArguments, measured: &MeasuredPlace) -> Result<Self, Failure> {
        let kind = arguments.place;
        let ciphers = match arguments.ciphers.is_empty() {
            true => measured
                .layers
                .first()
                .map(|one| one.cipher)
                .into_iter()
                .collect(),
            false => arguments.ciphers.clone(),
        };
        let works = match arguments.works.is_empty() {
            true => works(kind),
            false => arguments.works.clone(),
        };
        if let Some(why) = works.iter().find_map(|work| work.unfit(kind)) {
            return Err(Failure::new(why));
        }
        if let Some(cipher) = ciphers
            .iter()
            .find(|cipher| measured.layer(**cipher).is_none())
        {
            let why = format!("{kind} with {cipher} was not calibrated");
            return Err(failed(&arguments.calibration.calibration, why));
        }
        Ok(Self { ciphers, works })
    }
}

/// Runs `scree cost validate`.
pub fn run(console: &dyn Console, arguments: &ValidateArguments) -> Result<(), Failure> {
    let path = &arguments.calibration.calibration;
    let (calibration, differs) = load(path)?;
    if let Some(why) = differs {
        if !arguments.other_machine {
            let why = format!("{why}; to compare it with this machine anyway, add --other-machine");
            return Err(failed(path, why));
        }
        console.notice(&format!("{}: {why}", path.display()));
    }
    let kind = arguments.place;
    let Some(measured) = calibration.place(kind) else {
        return Err(failed(
            path,
            format!("{kind} was not calibrated: run `scree cost calibrate --place {kind}`"),
        ));
    };
    // Arguments are checked before the measurement, which takes long.
    let selection = Selection::of(arguments, measured)?;
    if let Some(picture) = &arguments.plot {
        check_place(picture, [path])?;
    }
    let cases = measure(console, arguments, measured, &selection)?;
    let counted = cases.iter().filter(|case| !case.is_unclear);
    let mut accuracies: Vec<f64> = counted.map(|case| case.accuracy).collect();
    let accuracy_median = (!accuracies.is_empty()).then(|| median(&mut accuracies));
    let accuracy_min = accuracies.iter().copied().reduce(f64::min);
    let validated = Validation {
        place: kind,
        machine: Machine::here(),
        calibrated_at: measured.at.to_string(),
        rounds: arguments.rounds,
        accuracy_median,
        accuracy_min,
        cases,
    };
    // The result is printed even if the picture fails.
    print(console, &validated, shown)?;
    if let Some(path) = &arguments.plot {
        let drawn = std::slice::from_ref(&validated);
        write_picture(path, &chart(drawn, Figure::Share, None)?)?;
    }
    Ok(())
}

/// Runs the works with each cipher, in a temporary folder.
fn measure(
    console: &dyn Console,
    arguments: &ValidateArguments,
    measured: &MeasuredPlace,
    selection: &Selection,
) -> Result<Vec<Case>, Failure> {
    let kind = arguments.place;
    let works = &selection.works;
    let stop = console.stop_on_signal()?;
    let bytes_max = works.iter().map(Work::bytes).max().unwrap_or(0);
    let scratch = Scratch::make(&arguments.at.folder)?;
    let settings = scratch.settings(&arguments.at, &[kind], bytes_max, &stop)?;
    let progress = console.progress("validation");
    let mut opened = place(kind, &settings).map_err(refused)?;
    let mut cases = Vec::new();
    for cipher in &selection.ciphers {
        let mut waiting = Waiting {
            say: &mut |doing| progress.say(doing),
            stop: &stop,
        };
        let rounds = arguments.rounds;
        let compared = compare(measured, &mut *opened, *cipher, works, rounds, &mut waiting);
        cases.extend(compared.map_err(refused)?.iter().map(case));
    }
    drop((opened, progress));
    scratch.remove()?;
    Ok(cases)
}

fn case(comparison: &Comparison) -> Case {
    let measured_cpu_s = comparison.cpu_s();
    Case {
        work: comparison.work.to_string(),
        bytes: comparison.work.bytes(),
        cipher: comparison.cipher.to_string(),
        predicted_cpu_s: comparison.predicted.cpu_s,
        measured_cpu_s,
        measured_within_s: comparison.within_s,
        plain_cpu_s: comparison.plain.cpu_s,
        predicted_plain_cpu_s: comparison.predicted.plain_cpu_s,
        accuracy: comparison.accuracy(),
        is_unclear: comparison.is_unclear(),
        is_within: comparison.is_within(),
        predicted_run_s: comparison.predicted.run_s,
        measured_run_s: comparison.sealed.run_s,
        plain_run_s: comparison.plain.run_s,
        predicted_plain_run_s: comparison.predicted.plain_run_s,
        returned_s: comparison.sealed.returned_s,
        plain_returned_s: comparison.plain.returned_s,
        predicted_share: comparison.predicted.share(),
        measured_share: measured_cpu_s / comparison.sealed.run_s,
    }
}

fn shown(validated: &Validation) -> String {
    let mut table = Table::new(&[
        "WORK",
        "CIPHER",
        "PREDICTED",
        "MEASURED",
        "ACCURACY",
        "WITHOUT",
        "SHARE PREDICTED",
        "MEASURED",
        "TAKES PREDICTED",
        "MEASURED",
    ]);
    for case in &validated.cases {
        table.row(vec![
            case.work.clone(),
            case.cipher.clone(),
            seconds(case.predicted_cpu_s),
            match case.measured_within_s {
                Some(within_s) => {
                    format!("{} ± {}", seconds(case.measured_cpu_s), seconds(within_s))
                }
                None => seconds(case.measured_cpu_s),
            },
            match case.is_unclear {
                true => "-".to_owned(),
                false => percent(case.accuracy),
            },
            seconds(case.plain_cpu_s),
            percent(case.predicted_share),
            percent(case.measured_share),
            seconds(case.predicted_run_s),
            seconds(case.measured_run_s),
        ]);
    }
    let mut text = format!(
        "{}, {} rounds; added CPU time:\n\n{table}\n",
        validated.place, validated.rounds,
    );
    if let (Some(median), Some(least)) = (validated.accuracy_median, validated.accuracy_min) {
        text += &format!(
            "Accuracy: median {}, minimum {}\n",
            percent(median),
            percent(least)
        );
    }
    let unclear = || validated.cases.iter().filter(|case| case.is_unclear);
    if unclear().count() > 0 {
        let within = unclear().filter(|case| case.is_within == Some(true));
        text += &format!(
            "{} of {} do not count: their measurement is uncertain by more than 15 %; for {} of \
             these the prediction is within that uncertainty\n",
            unclear().count(),
            validated.cases.len(),
            within.count(),
        );
    }
    text
}
