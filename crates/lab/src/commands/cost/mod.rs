//! `scree cost`: what encryption costs (docs/explanation/cost-model.md).

mod calibrate;
mod candidates;
mod draw;
mod predict;
mod prices;
mod scratch;
mod validate;
mod workload;

use std::path::Path;

use super::Failure;
use super::files::{check_file, failed};
use crate::args::CostCommand;
use crate::commands::Console;
use crate::measure::{Calibration, Cipher, Machine, PlaceKind};

/// Runs `scree cost`.
pub fn run_cost(console: &dyn Console, command: CostCommand) -> Result<(), Failure> {
    match command {
        CostCommand::Calibrate(arguments) => calibrate::run(console, &arguments),
        CostCommand::Predict(arguments) => predict::run(console, &arguments),
        CostCommand::Validate(arguments) => validate::run(console, &arguments),
        CostCommand::Draw(arguments) => draw::run(&arguments),
    }
}

const MIB: f64 = (1 << 20) as f64;

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

/// Loads a calibration, with the difference between its machine and this one, if there is one.
fn load(path: &Path) -> Result<(Calibration, Option<String>), Failure> {
    check_file(path)?;
    let loaded = Calibration::load(path).map_err(|error| match error {
        crate::measure::CalibrationError::Read(error)
            if error.kind() == std::io::ErrorKind::NotFound =>
        {
            let hint = "it does not exist; create it with `scree cost calibrate`";
            failed(path, hint)
        }
        error => failed(path, error),
    })?;
    let differs = loaded.machine.differs(&Machine::here());
    Ok((loaded, differs))
}

/// A notice that a calibration is imprecise.
fn suspect(place: PlaceKind, cipher: Cipher, suspicion: &str) -> String {
    format!(
        "{place} with {cipher}: {suspicion}; calibrate again while the machine is idle, with more \
         --rounds or --bytes"
    )
}

/// A time with its unit, with as many digits as carry information.
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

/// A ratio in percent.
fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}
