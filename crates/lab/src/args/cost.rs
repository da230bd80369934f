//! What encryption costs: measured, predicted, and both beside each other.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::size;
use crate::measure::{Cipher, PlaceKind, Work};

/// The verbs of `scree cost`.
#[derive(Subcommand)]
pub enum CostCommand {
    /// Measure on this machine what encryption costs, by itself and where it can run, and keep
    /// that in a file.
    Calibrate(CalibrateArguments),
    /// Say what encryption will cost a workload, in CPU, time and money, wherever it could run.
    /// Nothing is measured.
    Predict(PredictArguments),
    /// Do work with encryption and without, and say what was predicted and what was measured.
    Validate(ValidateArguments),
    /// Draw what `validate` has found.
    Draw(DrawArguments),
}

/// Which calibration.
#[derive(Args)]
pub struct CalibrationArguments {
    /// What was measured, and where that is kept.
    #[arg(long, value_name = "FILE", default_value = "scree-cost.json")]
    pub calibration: PathBuf,
}

/// What places need.
#[derive(Args)]
pub struct PlaceArguments {
    /// A folder on the disk that counts: what is needed for a while is kept below it.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,

    /// The block device of `guest-block`.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<PathBuf>,

    /// The content of that may be lost.
    #[arg(long, requires = "device")]
    pub overwrite: bool,
}

/// Arguments of `scree cost calibrate`.
#[derive(Args)]
pub struct CalibrateArguments {
    /// The calibration file.
    #[command(flatten)]
    pub calibration: CalibrationArguments,

    /// Where encryption runs; may be given again. [default: ciphers by themselves only]
    #[arg(long = "place", value_name = "PLACE", value_parser = place)]
    pub places: Vec<PlaceKind>,

    /// With what it encrypts there; may be given again. [default: all that the place has]
    #[arg(long = "cipher", value_name = "CIPHER", value_parser = cipher)]
    pub ciphers: Vec<Cipher>,

    /// Where and with what it is measured.
    #[command(flatten)]
    pub place: PlaceArguments,

    /// Each cipher is measured for so long by itself, by size and direction.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = cipher_time)]
    pub cipher_time: Duration,

    /// How often each is measured; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// How much is read and written by small requests; four times as much is by large ones.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub bytes: u64,

    /// The memory that there is. [default: all of this machine's]
    #[arg(long, value_name = "SIZE", value_parser = some_size)]
    pub memory: Option<u64>,

    /// The effect of memory is tried with no more data.
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size)]
    pub data_max: u64,
}

/// Arguments of `scree cost predict`.
#[derive(Args)]
pub struct PredictArguments {
    /// What was measured; may be given again: of a guest and of its host.
    #[arg(
        long = "calibration",
        value_name = "FILE",
        default_value = "scree-cost.json"
    )]
    pub calibrations: Vec<PathBuf>,

    /// Where encryption could run; may be given again. [default: all that were calibrated]
    #[arg(long = "place", value_name = "PLACE", value_parser = place)]
    pub places: Vec<PlaceKind>,

    /// With what; may be given again. One that was not calibrated there, but its mode with a key
    /// of another length, is predicted by what both take by themselves. [default: all that were
    /// calibrated]
    #[arg(long = "cipher", value_name = "CIPHER", value_parser = cipher)]
    pub ciphers: Vec<Cipher>,

    /// The workload.
    #[command(flatten)]
    pub workload: WorkloadArguments,

    /// What is paid: CSV with the columns `where` (guest, host), `cpu_hour`, `run_hour` and,
    /// if it is to be told, `currency`.
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,

    /// Of those of which a request takes no longer than this in addition, on the mean, say
    /// which is the cheapest: 500us, 2ms.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub latency_max: Option<Duration>,

    /// Draw the CPU's share by the size of the data into this file, as SVG.
    #[arg(long, value_name = "FILE", conflicts_with = "traces")]
    pub plot: Option<PathBuf>,
}

/// What is read and written.
#[derive(Args)]
#[group(skip)]
#[command(group = ArgGroup::new("asked").required(true).multiple(true))]
pub struct WorkloadArguments {
    /// How much is written.
    #[arg(long, value_name = "SIZE", value_parser = some_size, group = "asked")]
    pub write: Option<u64>,

    /// How much is read.
    #[arg(long, value_name = "SIZE", value_parser = some_size, group = "asked")]
    pub read: Option<u64>,

    /// What was recorded of a disk: by a filter `trace` (then all of its files), by fio
    /// (write_iolog), or by blktrace, as blkparse prints it. Where it does not tell how many
    /// requests were under way together, say --direct.
    #[arg(long = "trace", value_name = "FILE", group = "asked", num_args = 1..,
          conflicts_with_all = ["write", "read", "request", "data", "warm", "memory"])]
    pub traces: Vec<PathBuf>,

    /// In requests of this size.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = some_size)]
    pub request: u64,

    /// How large the data is, if it is read or written more than once. [default: as much as is
    /// read or written, the larger of both]
    #[arg(long, value_name = "SIZE", value_parser = some_size)]
    pub data: Option<u64>,

    /// It was read or written before.
    #[arg(long)]
    pub warm: bool,

    /// The memory of the machine that reads and writes. [default: as it was calibrated]
    #[arg(long, value_name = "SIZE", value_parser = some_size)]
    pub memory: Option<u64>,

    /// Past memory, with so many requests under way together.
    #[arg(long, value_name = "DEPTH", conflicts_with_all = ["data", "warm", "memory"],
          value_parser = clap::value_parser!(u32).range(1..))]
    pub direct: Option<u32>,

    /// CPU seconds that the program takes besides.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub own_cpu: f64,

    /// How many CPUs it has. [default: as many as were calibrated]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
}

/// Arguments of `scree cost validate`.
#[derive(Args)]
pub struct ValidateArguments {
    /// The calibration file.
    #[command(flatten)]
    pub calibration: CalibrationArguments,

    /// Where encryption runs.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    pub place: PlaceKind,

    /// With what; may be given again. [default: the first that was calibrated]
    #[arg(long = "cipher", value_name = "CIPHER", value_parser = cipher)]
    pub ciphers: Vec<Cipher>,

    /// Where and with what it is measured.
    #[command(flatten)]
    pub at: PlaceArguments,

    /// What is done; may be given again: write:SIZE:REQUEST, cold:SIZE:REQUEST,
    /// random:SIZE:REQUEST, warm:SIZE:REQUEST, apart:SIZE, direct:SIZE:REQUEST:READ_PERCENT:DEPTH, or
    /// words:SIZE. [default: a few of what the place can do]
    #[arg(long = "work", value_name = "WORK")]
    pub works: Vec<Work>,

    /// How often each is done; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// The calibration may be of another machine.
    #[arg(long)]
    pub other_machine: bool,

    /// Draw what was predicted and measured by size into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Arguments of `scree cost draw`.
#[derive(Args)]
pub struct DrawArguments {
    /// What `scree cost validate -o json` has printed.
    #[arg(value_name = "FILE", required = true)]
    pub results: Vec<PathBuf>,

    /// What is drawn by the size of the data.
    #[arg(long, value_enum, value_name = "FIGURE", default_value = "share")]
    pub figure: Figure,

    /// Of work that begins with this word only: write, read, count.
    #[arg(long, value_name = "WORD")]
    pub only: Option<String>,

    /// Draw it into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: PathBuf,
}

/// What can be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// How busy the CPU is in all, with encryption.
    Load,
    /// CPU time that comes in addition by the time that all takes.
    Share,
    /// CPU time that comes in addition, of what it takes without.
    Overhead,
    /// How long it takes with encryption and without.
    Time,
}

fn named<T: Copy + std::fmt::Display>(all: &[T], text: &str) -> Result<T, String> {
    let found = all.iter().find(|one| one.to_string() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        format!("it is none of {}", names.join(", "))
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
        0 => Err("it is at least one byte".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Nothing is reckoned for longer, in seconds: some thirty years.
const SECONDS_MAX: f64 = 1e9;

fn seconds(text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok();
    let usable = parsed.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds));
    usable.ok_or_else(|| "a number of seconds up to 1e9, as 1.5".to_owned())
}

/// `500us`, `2ms`, `1.5s`.
fn time(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is no time: write it as 500us, 2ms or 1.5s");
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let parts = units
        .iter()
        .find_map(|(unit, each_s)| Some((text.strip_suffix(unit)?, each_s)));
    let (number, each_s) = parts.ok_or_else(invalid)?;
    let number = seconds(number.trim()).map_err(|_| invalid())?;
    Duration::try_from_secs_f64(number * each_s).map_err(|_| invalid())
}

/// Longer tells no more of a cipher.
const CIPHER_TIME_MAX: Duration = Duration::from_secs(60);

fn cipher_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("it takes some time".to_owned()),
        time if time > CIPHER_TIME_MAX => Err("it is a minute at most".to_owned()),
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
    fn names_that_are_none_are_told_what_there_is() {
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
