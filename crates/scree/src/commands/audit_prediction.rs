//! The prediction of the model that is shown beside the result of an audit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::types::{Audit, AuditPlacement, AuditResult, Volume};
use api::words::Encryption;
use base::report::{Table, percent};
use lab::leakage::{FileList, Placement, Redundancy, Simulation, Striping, estimate};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use serde::Serialize;
use volume::VolumeConfig;
use world::host;

use super::audit_report::share;
use super::{Failure, Session};
use crate::output::print_notice;
use crate::progress::Progress;
use crate::signals::EndSignals;

/// Number of trials, which give the range of a single one.
const TRIALS: usize = 10_000;

/// Of a thousand trials, the number that is cut off at each end of the range.
const UNLIKELY_OF_1000: usize = 25;

/// The longest time that a result waits for the model: with many units and files of many lengths,
/// trials take hours.
const PREDICTED_WITHIN: Duration = Duration::from_secs(60);

/// The prediction of the model for the same number of compromised units. `None` if it takes too
/// long or a signal comes: the result is then shown without it.
pub(super) async fn predict(
    session: &Session,
    audit: &Audit,
    volume: &Volume,
    ends: &mut EndSignals,
) -> Option<AuditPrediction> {
    let is_sealed = volume.encryption != Encryption::None.as_str();
    let (placement, found) = (audit.placement.clone(), audit.result.clone()?);
    let predict = move |stop: &AtomicBool| predicted(&placement, &found, is_sealed, stop);
    let _progress = Progress::start("comparing the result with the model");
    let done = in_time(PREDICTED_WITHIN, ends.received(), predict).await;
    done.flatten().unwrap_or_else(|failure| {
        print_notice(
            session.format,
            &format!("there is no prediction: {failure}"),
        );
        None
    })
}

/// Runs `work` on a thread of its own and returns its result, unless it takes longer than `most` or
/// a signal `ends` the command: then it is requested to stop, and abandoned.
async fn in_time<T: Send + 'static>(
    most: Duration,
    ends: impl Future<Output = &'static str>,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> Result<T, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let work = tokio::task::spawn_blocking(move || work(&flag));
    let why = tokio::select! {
        done = host::timeout(most, work) => match done {
            Some(done) => return done.map_err(|error| Failure::of(&error)),
            None => format!("it takes longer than {} s", most.as_secs()),
        },
        signal = ends => format!("{signal} came before it was computed"),
    };
    stop.store(true, Ordering::Relaxed);
    Err(Failure::new(why))
}

/// The prediction of the model for the same number of compromised units.
#[derive(Serialize)]
pub struct AuditPrediction {
    pub units: u32,
    pub compromised: u32,
    /// Blocks are encrypted: no content leaks.
    pub sealed: bool,
    /// Probability that a block is readable from compromised units.
    pub block_ratio: f64,
    /// Part of all bytes in completely readable files: the mean of trials with copysets as Scree
    /// plans them.
    pub leak_ratio: f64,
    /// The same by the equations, whose copysets are random permutations of all units.
    pub equation_ratio: f64,
    /// Lower end of the range of 95 % of the trials.
    pub leak_ratio_min: f64,
    /// Upper end of that range.
    pub leak_ratio_max: f64,
    /// Number of trials.
    pub trials: u32,
    /// Whether the result of the audit is in that range.
    pub agrees: bool,
    /// Part of the trials in which less leaks than was found.
    pub less_ratio: f64,
    /// Part of the trials in which more leaks than was found.
    pub more_ratio: f64,
}

/// The prediction for the volume's files; `None` if no files are known. It may take long, and fails
/// once `stop` is set.
pub fn predicted(
    real: &AuditPlacement,
    found: &AuditResult,
    is_sealed: bool,
    stop: &AtomicBool,
) -> Result<Option<AuditPrediction>, Failure> {
    let files: FileList = found
        .listing
        .lengths
        .iter()
        .flat_map(|alike| {
            let count = usize::try_from(alike.files).unwrap_or(usize::MAX);
            std::iter::repeat_n(alike.bytes, count)
        })
        .collect();
    let counts = &found.files;
    let count = counts
        .readable
        .saturating_add(counts.partly_readable)
        .saturating_add(counts.unreadable);
    // The lengths of files of an encrypted volume need its key, but do not matter.
    if count == 0 || (files.lengths().is_empty() && !is_sealed) {
        return Ok(None);
    }
    let placement = Placement::on(real.units, redundancy(real), Some(real.scatter_width));
    let placement = placement.striped(Striping {
        width: u32::try_from(VolumeConfig::default().destage_width).ok(),
        granularity: 1,
    });
    let shares = placement
        .shares(real.compromised)
        .map_err(|error| Failure::of(&error))?;
    let all = files.bytes() as f64;
    let mut ratios = vec![0.0; TRIALS];
    let mut equation_ratio = 0.0;
    if !is_sealed {
        let classes = files.classes(real.block_size);
        equation_ratio = estimate(&classes, &shares).bytes / all;
        let simulation = Simulation::new(placement, real.compromised, &files, real.block_size);
        let simulation = simulation
            .map_err(|error| Failure::of(&error))?
            .as_scree_plans(real.scatter_width);
        let mut random = SmallRng::seed_from_u64(1);
        for ratio in &mut ratios {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::new("stopped"));
            }
            let leaked = simulation.trial(&mut random);
            *ratio = leaked.last().copied().unwrap_or(0.0) / all;
        }
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let expectation = Expectation {
        ratios,
        block_ratio: shares.leaks(1),
        equation_ratio,
    };
    Ok(Some(expectation.compared(real, found, is_sealed)))
}

/// The leakage that the model expects, as parts of all bytes.
struct Expectation {
    /// The result of each trial, in ascending order.
    ratios: Vec<f64>,
    block_ratio: f64,
    equation_ratio: f64,
}

impl Expectation {
    fn compared(
        &self,
        real: &AuditPlacement,
        found: &AuditResult,
        is_sealed: bool,
    ) -> AuditPrediction {
        let ratios = &self.ratios;
        let unlikely = TRIALS * UNLIKELY_OF_1000 / 1000;
        let (leak_ratio_min, leak_ratio_max) = (ratios[unlikely], ratios[TRIALS - 1 - unlikely]);
        let of_files = found.files.content.total.max(1) as f64;
        let is = found.files.readable_bytes as f64 / of_files;
        // Rounding of ratios.
        let slack = 1e-9;
        let part = |is_it: &dyn Fn(f64) -> bool| {
            let such = ratios.iter().filter(|ratio| is_it(**ratio));
            such.count() as f64 / TRIALS as f64
        };
        AuditPrediction {
            units: real.units,
            compromised: real.compromised,
            sealed: is_sealed,
            block_ratio: self.block_ratio,
            leak_ratio: ratios.iter().sum::<f64>() / TRIALS as f64,
            equation_ratio: self.equation_ratio,
            leak_ratio_min,
            leak_ratio_max,
            trials: TRIALS as u32,
            less_ratio: part(&|ratio| ratio < is - slack),
            more_ratio: part(&|ratio| ratio > is + slack),
            agrees: (leak_ratio_min - slack..=leak_ratio_max + slack).contains(&is),
        }
    }
}

fn redundancy(real: &AuditPlacement) -> Redundancy {
    let parts = real
        .erasure
        .as_deref()
        .and_then(|text| text.split_once('+'));
    let parsed = parts.and_then(|(data, parity)| Some((data.parse().ok()?, parity.parse().ok()?)));
    match parsed {
        Some((data, parity)) => Redundancy::Erasure { data, parity },
        None => Redundancy::Copies(real.replicas.into()),
    }
}

/// A table of the result and the prediction.
pub fn compared(predicted: &AuditPrediction, found: &AuditResult) -> String {
    let mut table = Table::new(&["", "BLOCKS", "LEAKS", "95 OF 100 TRIALS"]);
    let blocks = found.blocks;
    let there = match predicted.sealed {
        true => blocks.sealed,
        false => blocks.readable,
    };
    let files = &found.files;
    table.row(vec![
        "found".to_owned(),
        share(there, blocks.total),
        share(files.readable_bytes, files.content.total),
        match predicted.agrees {
            true => "agrees".to_owned(),
            false => "does not agree".to_owned(),
        },
    ]);
    table.row(vec![
        "predicted".to_owned(),
        percent(predicted.block_ratio),
        percent(predicted.leak_ratio),
        format!(
            "{} to {}",
            percent(predicted.leak_ratio_min),
            percent(predicted.leak_ratio_max)
        ),
    ]);
    format!("\n{table}")
}

#[cfg(test)]
mod tests {
    use super::super::audit_report::tests::{found, placement};
    use super::*;

    static NOT_STOPPED: AtomicBool = AtomicBool::new(false);

    /// A prediction once took an hour, and no signal ended it.
    #[tokio::test]
    async fn a_long_prediction_is_stopped_and_abandoned() {
        let until_stopped = |ended: std::sync::mpsc::Sender<()>| {
            move |stop: &AtomicBool| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                ended.send(()).expect("a receiver");
            }
        };
        let never = std::future::pending();
        let done = in_time(Duration::MAX, never, |_: &AtomicBool| 7).await;
        assert_eq!(done.ok(), Some(7));
        let (ended, stopped) = std::sync::mpsc::channel();
        let short = Duration::from_millis(1);
        let never = std::future::pending();
        let late = in_time(short, never, until_stopped(ended.clone())).await;
        let why = late.expect_err("it takes too long").to_string();
        assert!(why.contains("longer than"), "{why}");
        let signal = std::future::ready("SIGINT");
        let interrupted = in_time(Duration::MAX, signal, until_stopped(ended)).await;
        let why = interrupted.expect_err("it was interrupted").to_string();
        assert!(why.contains("SIGINT"), "{why}");
        assert_eq!(stopped.iter().count(), 2);
    }

    /// With few units the permutations of the equation and Scree's plan differ: both are shown.
    #[test]
    fn a_prediction_is_in_the_range_of_its_trials() {
        let real = AuditPlacement {
            units: 6,
            compromised: 3,
            replicas: 2,
            ..placement()
        };
        let found = found(&[(4096, 100), (16384, 100), (65536, 20)], 0);
        let predicted = predicted(&real, &found, false, &NOT_STOPPED);
        let predicted = predicted.ok().expect("a placement").expect("files");
        let between = predicted.leak_ratio_min..=predicted.leak_ratio_max;
        assert!(between.contains(&predicted.leak_ratio));
        assert!((predicted.leak_ratio / predicted.equation_ratio - 1.0).abs() > 0.05);
        let shown = compared(&predicted, &found);
        let mean = percent(predicted.leak_ratio);
        assert!(shown.contains(&mean), "{shown}");
    }

    #[test]
    fn a_result_is_compared_with_single_trials() {
        let real = placement();
        // A quarter of a hundred files of one block, 15 to 35 of them as a rule.
        let lengths = [(4096, 100)];
        for (files, agrees) in [(25, true), (17, true), (5, false), (60, false)] {
            let found = found(&lengths, files * 4096);
            let predicted = predicted(&real, &found, false, &NOT_STOPPED)
                .ok()
                .expect("a placement");
            let predicted = predicted.expect("there are files");
            assert!((predicted.equation_ratio - 0.25).abs() < 1e-9);
            assert!((predicted.leak_ratio - 0.25).abs() < 0.01);
            assert!((predicted.leak_ratio_min - 0.165).abs() < 0.03);
            assert!((predicted.leak_ratio_max - 0.335).abs() < 0.03);
            assert_eq!(predicted.agrees, agrees, "{files}");
            let sealed = super::predicted(&real, &found, true, &NOT_STOPPED)
                .ok()
                .expect("one")
                .expect("files");
            assert_eq!((sealed.leak_ratio, sealed.agrees), (0.0, false));
        }
        let nothing = predicted(&real, &found(&[], 0), false, &NOT_STOPPED)
            .ok()
            .expect("one");
        assert!(nothing.is_none());
    }

    #[test]
    fn trials_end_when_they_are_stopped() {
        let real = placement();
        let stopped = AtomicBool::new(true);
        let found = found(&[(4096, 100)], 0);
        assert!(predicted(&real, &found, false, &stopped).is_err());
    }

    #[test]
    fn a_placement_of_the_api_is_understood() {
        let mut real = AuditPlacement {
            units: 6,
            compromised: 1,
            replicas: 3,
            erasure: None,
            scatter_width: 8,
            sets: 4,
            block_size: 4096,
        };
        assert_eq!(redundancy(&real), Redundancy::Copies(3));
        real.erasure = Some("4+2".to_owned());
        assert_eq!(
            redundancy(&real),
            Redundancy::Erasure { data: 4, parity: 2 }
        );
    }

    /// The lab's defaults are the widths of Scree's placement.
    #[test]
    fn widths_of_the_lab_are_those_of_the_engine() {
        let copysets = control::control::SCATTER_WIDTH.to_string();
        assert_eq!(lab::args::SCATTER_WIDTH, copysets);
        let destage = VolumeConfig::default().destage_width.to_string();
        assert_eq!(lab::args::DESTAGE_WIDTH, destage);
    }
}
