//! Files that the commands read and write.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use world::host;
use world::real::RealDisk;
use zeroize::Zeroizing;

use super::Failure;
use crate::chart::Chart;

/// A failure about a file.
pub fn failed(path: &Path, error: impl Display) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// If it cannot be read, is larger, or is not a regular file.
pub fn read_file(path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, Failure> {
    check_file(path)?;
    let read = host::read_small(&RealDisk, path, bytes_max);
    read.map_err(|error| failed(path, error))
}

/// Checks that a path is a regular file: a pipe has no length and may never end.
///
/// # Errors
/// If it exists and is something else. A missing file is reported where it is read.
pub fn check_file(path: &Path) -> Result<(), Failure> {
    match host::is_special(path) {
        true => Err(failed(
            path,
            "it is not a regular file; copy its content to one first",
        )),
        false => Ok(()),
    }
}

/// Draws a chart into a file, which is replaced.
///
/// # Errors
/// If there is nothing to draw, or the file cannot be written.
pub fn write_picture(path: &Path, chart: &Chart) -> Result<(), Failure> {
    let svg = chart.svg().map_err(|why| failed(path, why))?;
    write(path, &svg).map_err(|error| failed(path, error))
}

/// Checks that a file can be created at `path` before a long computation. It must not be one of the
/// input files, under whatever name, since these would be overwritten.
///
/// # Errors
/// If its folder does not exist, the path is a folder, or it is one of `inputs`.
pub fn check_place<'a>(
    path: &Path,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Failure> {
    if host::is_folder(path) {
        return Err(failed(path, "it is a folder; name a file"));
    }
    if inputs
        .into_iter()
        .any(|input| host::is_same_file(path, input))
    {
        return Err(failed(path, "it is an input file; draw into another file"));
    }
    match host::is_folder(host::parent_of(path)) {
        false => Err(failed(
            path,
            "its folder does not exist; create it or choose another path",
        )),
        true => Ok(()),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a picture is created as the user's shell would create it"
)]
fn write(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text)
}

/// Number of threads that can run at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}
