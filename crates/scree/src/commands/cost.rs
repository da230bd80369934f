//! `scree cost`: what encryption costs (docs/models.md, "Cost").

mod asked;
mod calibrate;
mod chosen;
mod draw;
mod predict;
mod prices;
mod scratch;
mod validate;

use std::path::Path;

use measure::{Calibration, Cipher, Machine, PlaceKind, Stop};

use super::Failure;
use super::offline::{check_file, failed};
use crate::args::CostCommand;
use crate::output::Format;
use crate::signals::Ends;

/// Runs `scree cost`.
pub fn run_cost(format: Format, command: CostCommand) -> Result<(), Failure> {
    match command {
        CostCommand::Calibrate(arguments) => calibrate::run(format, &arguments),
        CostCommand::Predict(arguments) => predict::run(format, &arguments),
        CostCommand::Validate(arguments) => validate::run(format, &arguments),
        CostCommand::Draw(arguments) => draw::run(&arguments),
    }
}

const MIB: f64 = (1 << 20) as f64;

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

/// What a signal stops: what was mounted and started is taken down then. A second one ends this
/// at once, and leaves that where it is.
#[expect(
    clippy::disallowed_methods,
    reason = "signals are those of this machine, and something has to wait for them meanwhile"
)]
fn until_signalled() -> Result<Stop, Failure> {
    let cannot = |error: std::io::Error| Failure::new(format!("signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(cannot)?;
    let mut ends = runtime.block_on(async { Ends::of_command() })?;
    let stop = Stop::default();
    let told = stop.clone();
    let waits = move || {
        runtime.block_on(ends.come());
        told.stop();
        runtime.block_on(ends.come());
        std::process::exit(1);
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    // It ends with the process.
    thread.spawn(waits).map(|_| stop).map_err(cannot)
}

/// A calibration, and in what its machine is another one than this, if it is.
fn load(path: &Path) -> Result<(Calibration, Option<String>), Failure> {
    check_file(path)?;
    let loaded = Calibration::load(path).map_err(|error| match error {
        measure::CalibrationError::Read(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = "there is none; `scree cost calibrate` makes it";
            failed(path, hint)
        }
        error => failed(path, error),
    })?;
    let differs = loaded.machine.differs(&Machine::here());
    Ok((loaded, differs))
}

/// That a calibration tells little.
fn suspect(place: PlaceKind, cipher: Cipher, suspicion: &str) -> String {
    format!(
        "{place} with {cipher}: {suspicion}; calibrate when nothing else runs, with more --rounds or \
         --bytes"
    )
}

/// Seconds, with as many digits as say something.
fn seconds(seconds: f64) -> String {
    if seconds < 0.0 {
        return format!("-{}", self::seconds(-seconds));
    }
    match seconds {
        0.0 => "0".to_owned(),
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.2} s"),
        s => format!("{s:.0} s"),
    }
}

/// A part of 1, in percent.
fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}
