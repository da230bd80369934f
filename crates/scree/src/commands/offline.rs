//! What commands have in common that ask nobody who runs.

use std::fmt::Display;
use std::io;
use std::path::Path;

use super::Failure;
use crate::plot::Chart;

/// Something is wrong with a file.
pub fn failed(path: &Path, error: impl Display) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

/// Draws into a file, in the place of what is there.
///
/// # Errors
/// If there is nothing to draw, or the file cannot be written.
pub fn write_picture(path: &Path, chart: &Chart) -> Result<(), Failure> {
    let svg = chart.svg().map_err(|why| failed(path, why))?;
    write(path, &svg).map_err(|error| failed(path, error))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a picture is its user's, as its shell would make it"
)]
fn write(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text)
}

/// How many threads can work at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}
