//! `scree cost`: what encryption costs (docs/models.md, "Cost").

mod calibrate;
mod draw;
mod predict;
mod prices;
mod scratch;
mod validate;

use std::path::Path;

use measure::{Calibration, Machine};

use super::Failure;
use super::offline::failed;
use crate::args::CostCommand;
use crate::output::Format;

/// Runs `scree cost`.
pub fn run_cost(format: Format, command: CostCommand) -> Result<(), Failure> {
    match command {
        CostCommand::Calibrate(arguments) => calibrate::run(format, &arguments),
        CostCommand::Predict(arguments) => predict::run(format, &arguments),
        CostCommand::Validate(arguments) => validate::run(format, &arguments),
        CostCommand::Draw(arguments) => draw::run(&arguments),
    }
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

/// A calibration, and in what its machine is another one than this, if it is.
fn load(path: &Path) -> Result<(Calibration, Option<String>), Failure> {
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
