//! Arguments of `scree cost`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::size;
use crate::measure::{Cipher, PlaceKind, Work};

/// The verbs of `scree cost`.
#[derive(Subcommand)]
pub enum CostCommand {
    /// Measure on this machine what encryption costs, and save it as a calibration.
    Calibrate(CalibrateArguments),
    /// Predict from calibrations what encryption costs a workload in CPU, time and money.
    Predict(PredictArguments),
    /// Run work with and without encryption, and compare the measurement with the prediction.
    Validate(ValidateArguments),
    /// Draw results of `validate`.
    Draw(DrawArguments),
}

/// Names a calibration.
#[derive(Args)]
pub struct CalibrationArguments {
    /// The calibration.
    #[arg(long, value_name = "FILE", default_value = "scree-cost.json")]
    pub calibration: PathBuf,
}

/// Resources for measurements.
#[derive(Args)]
pub struct PlaceArguments {
    /// Folder on the disk to be measured, for temporary files.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,

    /// Block device for `guest-block`.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<PathBuf>,

    /// Allow to overwrite that device.
    #[arg(long, requires = "device")]
    pub overwrite: bool,
}

/// Arguments of `scree cost calibrate`.
#[derive(Args)]
pub struct CalibrateArguments {
    /// The calibration file.
    #[command(flatten)]
    pub calibration: CalibrationArguments,

    /// Place where encryption runs; may be repeated [default: none, only the ciphers themselves]
    #[arg(long = "place", value_name = "PLACE", value_parser = place)]
    pub places: Vec<PlaceKind>,

    /// Cipher to measure there; may be repeated [default: all ciphers of the place]
    #[arg(long = "cipher", value_name = "CIPHER", value_parser = cipher)]
    pub ciphers: Vec<Cipher>,

    /// Where and with what it is measured.
    #[command(flatten)]
    pub place: PlaceArguments,

    /// Time to measure each cipher, per block size and direction.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = cipher_time)]
    pub cipher_time: Duration,

    /// Rounds of each measurement; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Data that small requests read and write; large ones use four times as much.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub bytes: u64,

    /// Memory for the page cache [default: all of this machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = some_size)]
    pub memory: Option<u64>,

    /// Largest data set for measuring the effect of memory.
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size)]
    pub data_max: u64,
}

/// Arguments of `scree cost predict`.
#[derive(Args)]
pub struct PredictArguments {
    /// A calibration; may be repeated, for a guest and its host.
    #[arg(
        long = "calibration",
        value_name = "FILE",
        default_value = "scree-cost.json"
    )]
    pub calibrations: Vec<PathBuf>,

    /// Place where encryption could run; may be repeated [default: all calibrated places]
    #[arg(long = "place", value_name = "PLACE", value_parser = place)]
    pub places: Vec<PlaceKind>,

    /// Cipher; may be repeated. A cipher that was calibrated only with another key length is
    /// predicted from the speeds of both ciphers [default: all calibrated ciphers]
    #[arg(long = "cipher", value_name = "CIPHER", value_parser = cipher)]
    pub ciphers: Vec<Cipher>,

    /// The workload.
    #[command(flatten)]
    pub workload: WorkloadArguments,

    /// Prices: CSV with the columns `where` (guest or host), `cpu_hour`, `run_hour`, and optionally
    /// `currency`.
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,

    /// Latency that encryption may add to a request on average (500us, 2ms); the cheapest place
    /// within this limit is named.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub latency_max: Option<Duration>,

    /// Draw the CPU share by data size into this SVG file.
    #[arg(long, value_name = "FILE", conflicts_with = "traces")]
    pub plot: Option<PathBuf>,
}

/// A workload.
#[derive(Args)]
#[group(skip)]
#[command(group = ArgGroup::new("asked").required(true).multiple(true))]
pub struct WorkloadArguments {
    /// Data written.
    #[arg(long, value_name = "SIZE", value_parser = some_size, group = "asked")]
    pub write: Option<u64>,

    /// Data read.
    #[arg(long, value_name = "SIZE", value_parser = some_size, group = "asked")]
    pub read: Option<u64>,

    /// A trace of the workload: all files of a filter `trace`, one log of fio (write_iolog), or the
    /// output of blkparse. If it has no latencies, give the queue depth with --direct.
    #[arg(long = "trace", value_name = "FILE", group = "asked", num_args = 1..,
          conflicts_with_all = ["write", "read", "request", "data", "warm", "memory"])]
    pub traces: Vec<PathBuf>,

    /// Request size.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = some_size)]
    pub request: u64,

    /// Size of the data set, if it is read or written more than once [default: the larger of --read
    /// and --write]
    #[arg(long, value_name = "SIZE", value_parser = some_size)]
    pub data: Option<u64>,

    /// The data set is in memory already.
    #[arg(long)]
    pub warm: bool,

    /// Memory of the machine that reads and writes [default: as calibrated]
    #[arg(long, value_name = "SIZE", value_parser = some_size)]
    pub memory: Option<u64>,

    /// Bypass memory (direct I/O) with this queue depth.
    #[arg(long, value_name = "DEPTH", conflicts_with_all = ["data", "warm", "memory"],
          value_parser = clap::value_parser!(u32).range(1..))]
    pub direct: Option<u32>,

    /// CPU seconds that the program itself needs.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub own_cpu: f64,

    /// Number of CPUs [default: as calibrated]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
}

/// Arguments of `scree cost validate`.
#[derive(Args)]
pub struct ValidateArguments {
    /// The calibration file.
    #[command(flatten)]
    pub calibration: CalibrationArguments,

    /// Place where encryption runs.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    pub place: PlaceKind,

    /// Cipher; may be repeated [default: the first calibrated one]
    #[arg(long = "cipher", value_name = "CIPHER", value_parser = cipher)]
    pub ciphers: Vec<Cipher>,

    /// Where and with what it is measured.
    #[command(flatten)]
    pub at: PlaceArguments,

    /// Work; may be repeated: write:SIZE:REQUEST, cold:SIZE:REQUEST, random:SIZE:REQUEST,
    /// warm:SIZE:REQUEST, apart:SIZE, direct:SIZE:REQUEST:READ_PERCENT:DEPTH or words:SIZE
    /// [default: a few that suit the place]
    #[arg(long = "work", value_name = "WORK")]
    pub works: Vec<Work>,

    /// Rounds of each work; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Allow a calibration of another machine.
    #[arg(long)]
    pub other_machine: bool,

    /// Draw prediction and measurement by data size into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Arguments of `scree cost draw`.
#[derive(Args)]
pub struct DrawArguments {
    /// Output of `scree cost validate -o json`.
    #[arg(value_name = "FILE", required = true)]
    pub results: Vec<PathBuf>,

    /// Quantity to draw by data size: `load`, the total CPU load with encryption; `share`, the
    /// added CPU time per run time; `overhead`, the added CPU time relative to that without
    /// encryption; `time`, the run time with and without.
    #[arg(long, value_enum, value_name = "FIGURE", default_value = "share")]
    pub figure: Figure,

    /// Only work whose name begins with this word, such as write.
    #[arg(long, value_name = "WORD")]
    pub only: Option<String>,

    /// The SVG file to write.
    #[arg(long, value_name = "FILE")]
    pub plot: PathBuf,
}

/// A quantity that can be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// Total CPU load with encryption.
    Load,
    /// Added CPU time per run time.
    Share,
    /// Added CPU time relative to that without encryption.
    Overhead,
    /// Run time with and without encryption.
    Time,
}

fn named<T: Copy + std::fmt::Display>(all: &[T], text: &str) -> Result<T, String> {
    let found = all.iter().find(|one| one.to_string() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        format!("use one of {}", names.join(", "))
    })
}

fn place(text: &str) -> Result<PlaceKind, String> {
    named(&PlaceKind::ALL, text)
}

fn cipher(text: &str) -> Result<Cipher, String> {
    named(&Cipher::ALL, text)
}

fn some_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("use a size of at least one byte, such as 4K".to_owned()),
        bytes => Ok(bytes),
    }
}

/// The longest time that is computed with, in seconds: about thirty years.
const SECONDS_MAX: f64 = 1e9;

fn seconds(text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok();
    let usable = parsed.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    usable.ok_or_else(|| "write a number of seconds up to 1e9, such as 1.5".to_owned())
}

/// `500us`, `2ms`, `1.5s`.
fn time(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is not a time: write it as 500us, 2ms or 1.5s");
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let parts = units
        .iter()
        .find_map(|(unit, each_s)| Some((text.strip_suffix(unit)?, each_s)));
    let (number, each_s) = parts.ok_or_else(invalid)?;
    let number = seconds(number.trim()).map_err(|_| invalid())?;
    Duration::try_from_secs_f64(number * each_s).map_err(|_| invalid())
}

/// The longest measurement of one cipher; more would not make it more precise.
const CIPHER_TIME_MAX: Duration = Duration::from_secs(60);

fn cipher_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("use a time above zero, such as 200ms".to_owned()),
        time if time > CIPHER_TIME_MAX => Err("use at most one minute".to_owned()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(time("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(time("1.5 ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(time("0s"), Ok(Duration::ZERO));
        for bad in ["", "5", "ms", "-1s", "nans", "1e300s", "1 h"] {
            assert!(time(bad).is_err(), "{bad:?}");
        }
        assert_eq!(seconds("1e9"), Ok(1e9));
        assert!(seconds("1e308").is_err() && seconds("inf").is_err());
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        assert_eq!(place("filter"), Ok(PlaceKind::Filter));
        assert_eq!(cipher("aes-256-xts"), Ok(Cipher::Aes256Xts));
        assert!(place("moon").expect_err("none").contains("guest-block"));
        assert!(
            cipher("rot13")
                .expect_err("none")
                .contains("chacha20-poly1305")
        );
    }
}
