//! What commands have in common that ask nobody who runs.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use world::host;
use world::real::RealDisk;
use zeroize::Zeroizing;

use super::Failure;
use crate::chart::Chart;

/// Something is wrong with a file.
pub fn failed(path: &Path, error: impl Display) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

/// The content of a file of no more than so many bytes.
///
/// # Errors
/// If it cannot be read, or is something else.
pub fn read_file(path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, Failure> {
    check_file(path)?;
    let read = host::read_small(&RealDisk, path, bytes_max);
    read.map_err(|error| failed(path, error))
}

/// That it is a file: a pipe has no length, and may come to no end.
///
/// # Errors
/// If it is something else. That it is not there is said where it is read.
pub fn check_file(path: &Path) -> Result<(), Failure> {
    match host::is_special(path) {
        true => Err(failed(path, "it is no file; write it to one first")),
        false => Ok(()),
    }
}

/// Draws into a file, in the place of what is there.
///
/// # Errors
/// If there is nothing to draw, or the file cannot be written.
pub fn write_picture(path: &Path, chart: &Chart) -> Result<(), Failure> {
    let svg = chart.svg().map_err(|why| failed(path, why))?;
    write(path, &svg).map_err(|error| failed(path, error))
}

/// Whether a file could be made there, for what takes long before it is written. It is none of
/// those that are read for it, under whatever name: these would be gone.
///
/// # Errors
/// If there is no such folder, or the file is one, or is one of `inputs`.
pub fn check_place<'a>(
    path: &Path,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Failure> {
    if host::is_folder(path) {
        return Err(failed(path, "it is a folder"));
    }
    if inputs
        .into_iter()
        .any(|input| host::is_same_file(path, input))
    {
        return Err(failed(path, "it is what is read; draw into another file"));
    }
    match host::is_folder(host::parent_of(path)) {
        false => Err(failed(path, "its folder is not there")),
        true => Ok(()),
    }
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
